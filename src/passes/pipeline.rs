//! A list of passes with a text form, run in order, each verified and timed.

use super::bucketing::{BucketKind, BucketOptions, BucketPlan, Measure, MixedDtype, Mode, Unpack};
use super::duplicates::{DuplicateStats, dedupe_collectives};
use super::merge::{MergeError, MergeReport};
use super::rounds::bucket;
use super::select::Policy;
use super::trivial::fold_trivial;
use super::waits::dedupe_waits;
use crate::ir::{Dependencies, Graph};
use bucketeer_types::sizes::{format_bytes, parse_bytes};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// One pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pass {
    /// [`dedupe_waits`].
    DedupeWaits,
    /// [`fold_trivial`].
    FoldTrivial,
    /// [`dedupe_collectives`].
    DedupeCollectives,
    /// [`plan`](super::bucketing::plan()) and [`merge`](super::merge::merge()) for one kind.
    Bucket(BucketOptions),
}

impl Pass {
    /// The pass's name in the text form.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::DedupeWaits => "dedupe-waits",
            Self::FoldTrivial => "fold-trivial",
            Self::DedupeCollectives => "dedupe-collectives",
            Self::Bucket(options) => bucket_name(options.kind),
        }
    }
}

/// The name of the pass that buckets a kind.
const fn bucket_name(kind: BucketKind) -> &'static str {
    match kind {
        BucketKind::AllGather => "bucket-all-gather",
        BucketKind::ReduceScatter => "bucket-reduce-scatter",
        BucketKind::AllReduce => "bucket-all-reduce",
        BucketKind::Broadcast => "bucket-broadcast",
        BucketKind::AllToAll => "bucket-all-to-all",
        BucketKind::Permute => "bucket-permute",
    }
}

/// What one pass did.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// The pass's name.
    pub name: &'static str,
    /// How long it took, without verification. For the user's eyes only: nothing is decided by it.
    pub time: Duration,
    /// Nodes that went: waits, collectives that move nothing.
    pub removed: usize,
    /// For bucket passes: what was decided.
    pub plan: Option<BucketPlan>,
    /// For bucket passes: what was done.
    pub merge: Option<MergeReport>,
    /// For `dedupe-collectives`.
    pub duplicates: Option<DuplicateStats>,
}

impl PassReport {
    /// The report of a pass that did nothing yet.
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, time: Duration::ZERO, removed: 0, plan: None, merge: None, duplicates: None }
    }

    /// Whether the pass changed the graph.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.removed > 0
            || self.plan.as_ref().is_some_and(|plan| !plan.buckets.is_empty())
            || self.merge.as_ref().is_some_and(|merge| merge.moved > 0)
    }
}

/// Passes to run in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Pass>,
}

/// Why a pipeline stopped.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The graph was not well-formed to begin with.
    #[error("the graph is not well-formed:\n{0}")]
    Input(crate::ir::verify::VerifyErrors),
    /// A pass broke the graph: a fault of this library.
    #[error("pass `{pass}` broke the graph; please report this:\n{errors}")]
    BrokenBy {
        /// The pass.
        pass: &'static str,
        /// What is wrong.
        errors: crate::ir::verify::VerifyErrors,
    },
    /// A merge was refused.
    #[error("pass `{pass}`: {error}")]
    Merge {
        /// The pass.
        pass: &'static str,
        /// Why.
        error: MergeError,
    },
}

impl Pipeline {
    /// Runs the passes on the graphs that a graph calls, and on those that they call. [`Self::run`] leaves these as they are:
    /// a file holds each as a graph of its own.
    ///
    /// # Errors
    /// [`PipelineError`] of the first graph that stands in the way.
    pub fn run_in_bodies(&self, graph: &mut Graph) -> Result<(), PipelineError> {
        let mut first = Ok(());
        let operators = graph.operators.clone();
        graph.bodies.for_each_mut(&mut |body| {
            if first.is_ok() {
                body.operators.clone_from(&operators);
                first = self.run(body).and_then(|_| self.run_in_bodies(body));
            }
        });
        first
    }

    /// The passes that `rewrite` runs: waits made one, what moves nothing folded, then each kind in `buckets`.
    #[must_use]
    pub fn rewrite(buckets: Vec<BucketOptions>) -> Self {
        let mut passes = vec![Pass::DedupeWaits, Pass::FoldTrivial];
        passes.extend(buckets.into_iter().map(Pass::Bucket));
        Self { passes }
    }

    /// What `rewrite` does when no kind is asked for: those that it merges unasked, at their default caps.
    #[must_use]
    pub fn default_rewrite() -> Self {
        Self::rewrite(BucketKind::ALL.into_iter().filter(|kind| kind.is_default()).map(BucketOptions::new).collect())
    }

    /// Runs the passes. The graph is verified before the first, and after each one that changed
    /// it.
    ///
    /// # Errors
    /// [`PipelineError`]; the graph is then in an undefined but safe state and should be thrown away.
    pub fn run(&self, graph: &mut Graph) -> Result<Vec<PassReport>, PipelineError> {
        self.run_watched(graph, &mut |_| {})
    }

    /// As [`Pipeline::run`], and calls `watch` before each pass, for progress.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn run_watched(
        &self,
        graph: &mut Graph,
        watch: &mut dyn FnMut(&Pass),
    ) -> Result<Vec<PassReport>, PipelineError> {
        crate::ir::verify::verify(graph).map_err(PipelineError::Input)?;
        let mut reports = Vec::with_capacity(self.passes.len());
        for pass in &self.passes {
            watch(pass);
            let start = Instant::now();
            let mut report = run_pass(pass, graph)?;
            report.time = start.elapsed();
            if report.changed() {
                crate::ir::verify::verify(graph)
                    .map_err(|errors| PipelineError::BrokenBy { pass: pass.name(), errors })?;
            }
            reports.push(report);
        }
        Ok(reports)
    }
}

pub(super) fn run_pass(pass: &Pass, graph: &mut Graph) -> Result<PassReport, PipelineError> {
    let mut report = PassReport::new(pass.name());
    match pass {
        Pass::DedupeWaits => report.removed = dedupe_waits(graph),
        Pass::FoldTrivial => report.removed = fold_trivial(graph),
        Pass::DedupeCollectives => {
            let dependencies = Dependencies::keeping_schedule(graph);
            let stats = dedupe_collectives(graph, &dependencies);
            report.removed = stats.folded;
            report.duplicates = Some(stats);
        }
        Pass::Bucket(options) if !options.applies_to(graph) => {
            report.plan = Some(BucketPlan { options: options.clone(), buckets: Vec::new(), remarks: Vec::new() });
            report.merge = Some(MergeReport::default());
        }
        Pass::Bucket(options) => {
            let made = bucket(graph, options);
            let (plan, merged) = made.map_err(|error| PipelineError::Merge { pass: pass.name(), error })?;
            report.merge = Some(merged);
            report.plan = Some(plan);
        }
    }
    Ok(report)
}

/// Why a text is not a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineParseError {
    /// No pass of that name.
    #[error(
        "no pass is called `{0}`; there are dedupe-waits, fold-trivial, dedupe-collectives, bucket-all-gather, \
         bucket-reduce-scatter, bucket-all-reduce, bucket-broadcast, bucket-all-to-all and bucket-permute"
    )]
    UnknownPass(String),
    /// The pass has no such option.
    #[error("pass `{pass}` has no option `{option}`")]
    UnknownOption {
        /// The pass.
        pass: String,
        /// The option.
        option: String,
    },
    /// The option has no such value.
    #[error("option `{option}` of pass `{pass}`: {error}")]
    Value {
        /// The pass.
        pass: String,
        /// The option.
        option: String,
        /// What is wrong.
        error: String,
    },
    /// Braces do not match.
    #[error("expected `}}` to close the options of `{0}`")]
    Unclosed(String),
}

impl FromStr for Pipeline {
    type Err = PipelineParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut passes = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find([',', '{']).unwrap_or(rest.len());
            let name = rest[..end].trim();
            rest = &rest[end..];
            let mut options = "";
            if let Some(after) = rest.strip_prefix('{') {
                let close = after.find('}').ok_or_else(|| PipelineParseError::Unclosed(name.to_owned()))?;
                options = &after[..close];
                rest = after[close + 1..].trim_start();
            }
            passes.push(parse_pass(name, options)?);
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Ok(Self { passes })
    }
}

fn parse_pass(name: &str, options: &str) -> Result<Pass, PipelineParseError> {
    let Some(kind) = BucketKind::ALL.into_iter().find(|&kind| bucket_name(kind) == name) else {
        let plain = [Pass::DedupeWaits, Pass::FoldTrivial, Pass::DedupeCollectives];
        let found = plain.into_iter().find(|pass| pass.name() == name);
        let pass = found.ok_or_else(|| PipelineParseError::UnknownPass(name.to_owned()))?;
        return match options.trim() {
            "" => Ok(pass),
            option => Err(PipelineParseError::UnknownOption { pass: name.to_owned(), option: option.to_owned() }),
        };
    };
    let options = || options.split(',').map(str::trim).filter(|option| !option.is_empty());
    let is_xla = |option: &str| {
        option.split_once('=').is_some_and(|(key, value)| (key.trim(), value.trim()) == ("policy", "xla"))
    };
    let mut bucket = if options().any(is_xla) { BucketOptions::xla(kind) } else { BucketOptions::new(kind) };
    for option in options() {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let known = set_option(&mut bucket, key.trim(), value.trim()).map_err(|error| PipelineParseError::Value {
            pass: name.to_owned(),
            option: key.trim().to_owned(),
            error,
        })?;
        if !known {
            return Err(PipelineParseError::UnknownOption { pass: name.to_owned(), option: key.trim().to_owned() });
        }
    }
    Ok(Pass::Bucket(bucket))
}

/// Lists in options are separated by `/`, for `,` separates options.
fn set_option(bucket: &mut BucketOptions, key: &str, value: &str) -> Result<bool, String> {
    let list = || value.split('/').map(|part| part.trim().to_owned()).collect();
    let choice = |choices: &str| format!("expected one of {choices}, found `{value}`");
    match key {
        "cap" if matches!(value, "none" | "unlimited") => bucket.caps.cap_bytes.clear(),
        "cap" => bucket.caps.cap_bytes = value.split('/').map(cap_bytes).collect::<Result<_, _>>()?,
        "max-members" if value == "none" => bucket.caps.max_members = None,
        "max-members" => {
            let most: usize = value.parse().map_err(|_| format!("expected a number, found `{value}`"))?;
            bucket.caps.max_members = Some(most).filter(|&most| most > 0);
            if most == 0 {
                return Err("a bucket has at least one member".to_owned());
            }
        }
        "suggested" => bucket.suggested_cap_bytes = Some(cap_bytes(value)?),
        "max-member" => bucket.max_member_bytes = Some(cap_bytes(value)?),
        "policy" => {
            bucket.policy = match value {
                "greedy" => Policy::Greedy,
                "adjacent" => Policy::Adjacent,
                "xla" if matches!(bucket.kind, BucketKind::Broadcast | BucketKind::AllToAll) => {
                    return Err(format!("XLA has no combiner of {}", bucket.kind.name().replace('_', "-")));
                }
                "xla" => Policy::Xla,
                _ => return Err(choice("greedy, adjacent, xla")),
            }
        }
        "mode" => {
            bucket.mode = match value {
                "concat" if bucket.kind == BucketKind::Permute => {
                    return Err("permutes are merged as they are: mode coalesced".to_owned());
                }
                "concat" => Mode::Concat,
                "coalesced" if matches!(bucket.kind, BucketKind::Broadcast | BucketKind::AllToAll) => {
                    return Err(format!("PyTorch has no coalesced {}", bucket.kind.name().replace('_', "-")));
                }
                "coalesced" => Mode::Coalesced,
                _ => return Err(choice("concat, coalesced")),
            }
        }
        "mixed-dtype" => {
            bucket.mixed_dtype = match value {
                "split" => MixedDtype::Split,
                "bytes" if !bucket.kind.mixes_dtypes() => {
                    return Err("only gathers and permutes may travel as bytes".to_owned());
                }
                "bytes" => MixedDtype::Bytes,
                _ => return Err(choice("split, bytes")),
            }
        }
        "unpack" => {
            bucket.unpack = match value {
                "auto" => Unpack::Auto,
                "views" => Unpack::Views,
                "copies" => Unpack::Copies,
                _ => return Err(choice("auto, views, copies")),
            }
        }
        "boundaries" => {
            bucket.boundaries = value != "combiner-key" && switch(value)?;
            bucket.combiner_keys = value == "combiner-key" || bucket.boundaries;
        }
        "by-dim" => bucket.by_dim = Some(switch(value)?),
        "measure" => {
            bucket.measure = match value {
                "larger" => Measure::Larger,
                "result" => Measure::Result,
                _ => return Err(choice("larger, result")),
            }
        }
        "fsdp-only" => bucket.fsdp_only = switch(value)?,
        "in-loops" => bucket.in_loops = switch(value)?,
        "groups" => bucket.groups = list(),
        "names" => bucket.names = list(),
        "except" => bucket.except = list(),
        _ => return Ok(false),
    }
    Ok(true)
}

fn cap_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("a cap of zero holds nothing; leave the pass out to merge nothing".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "" | "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(format!("expected on or off, found `{value}`")),
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pass) in self.passes.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}", pass.name())?;
            if let Pass::Bucket(options) = pass {
                write!(f, "{{{}}}", options_text(options).join(","))?;
            }
        }
        Ok(())
    }
}

/// The options of a bucket pass that differ from the defaults, and always the cap.
fn options_text(options: &BucketOptions) -> Vec<String> {
    let xla = options.policy == Policy::Xla;
    let default = if xla { BucketOptions::xla(options.kind) } else { BucketOptions::new(options.kind) };
    let caps = options.caps.cap_bytes.iter().map(|&cap| format_bytes(cap)).collect::<Vec<_>>().join("/");
    let mut text = vec![format!("cap={}", if caps.is_empty() { "none" } else { &caps })];
    let mut add = |differs: bool, option: String| {
        if differs {
            text.push(option);
        }
    };
    let most = options.caps.max_members.map_or("none".to_owned(), |most| most.to_string());
    add(options.caps.max_members != default.caps.max_members, format!("max-members={most}"));
    let most = options.max_member_bytes.unwrap_or(0);
    add(options.max_member_bytes.is_some(), format!("max-member={}", format_bytes(most)));
    let suggested = options.suggested_cap_bytes.unwrap_or(0);
    add(options.suggested_cap_bytes.is_some(), format!("suggested={}", format_bytes(suggested)));
    add(options.policy == Policy::Adjacent, "policy=adjacent".to_owned());
    add(xla, "policy=xla".to_owned());
    let mode = if options.mode == Mode::Coalesced { "coalesced" } else { "concat" };
    add(options.mode != default.mode, format!("mode={mode}"));
    let mixed = if options.mixed_dtype == MixedDtype::Bytes { "bytes" } else { "split" };
    add(options.mixed_dtype != default.mixed_dtype, format!("mixed-dtype={mixed}"));
    let on = |on: bool| if on { "on" } else { "off" };
    add(options.by_dim != default.by_dim, format!("by-dim={}", on(options.by_dim.unwrap_or(false))));
    let measure = if options.measure == Measure::Result { "result" } else { "larger" };
    add(options.measure != default.measure, format!("measure={measure}"));
    let boundaries = |options: &BucketOptions| match (options.boundaries, options.combiner_keys) {
        (false, true) => "combiner-key",
        (all, _) => on(all),
    };
    add(boundaries(options) != boundaries(&default), format!("boundaries={}", boundaries(options)));
    let unpack = if options.unpack == Unpack::Views { "views" } else { "copies" };
    add(options.unpack != default.unpack, format!("unpack={unpack}"));
    add(options.fsdp_only, "fsdp-only=on".to_owned());
    add(!options.in_loops, "in-loops=off".to_owned());
    add(!options.groups.is_empty(), format!("groups={}", options.groups.join("/")));
    add(!options.names.is_empty(), format!("names={}", options.names.join("/")));
    add(!options.except.is_empty(), format!("except={}", options.except.join("/")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_prints_as_it_is_read() {
        for text in [
            "dedupe-waits,fold-trivial,bucket-all-gather{cap=500MB}",
            "bucket-reduce-scatter{cap=1MiB/25MiB,max-members=7,max-member=3KiB,policy=adjacent,mode=coalesced,fsdp-only=on}",
            "bucket-all-gather{cap=none,mixed-dtype=bytes,unpack=copies,in-loops=off,groups=0/1,names=all_*,except=*_3}",
            "dedupe-collectives",
            "bucket-all-gather{cap=31457287,policy=xla},bucket-permute{cap=1KiB,max-members=3,policy=xla}",
            "bucket-all-gather{cap=none,max-members=none,policy=xla,mixed-dtype=split,by-dim=on,boundaries=on}",
            "bucket-permute{cap=25MiB}",
            "bucket-all-reduce{cap=1MiB,policy=xla,boundaries=off}",
            "bucket-all-reduce{cap=1MiB,boundaries=combiner-key}",
            "bucket-all-reduce{cap=24KiB,suggested=48KiB,policy=xla}",
            "bucket-reduce-scatter{cap=1MiB,mode=coalesced,by-dim=off,measure=result}",
            "",
        ] {
            let pipeline: Pipeline = text.parse().unwrap();
            assert_eq!(pipeline.to_string(), text);
        }
    }

    #[test]
    fn faulty_pipelines_name_the_fault() {
        for (text, part) in [
            ("sort", "no pass is called `sort`"),
            ("bucket-all-gather{cap=0}", "a cap of zero"),
            ("bucket-all-gather{cap=true}", "`true` is not a size"),
            ("bucket-all-gather{size=3}", "no option `size`"),
            ("bucket-all-gather{cap=1MB", "expected `}`"),
            ("bucket-all-reduce{mixed-dtype=bytes}", "only gathers"),
            ("bucket-broadcast{policy=xla}", "XLA has no combiner"),
            ("bucket-permute{mode=concat}", "as they are"),
            ("dedupe-waits{x}", "no option `x`"),
            ("bucket-all-gather{max-members=0}", "at least one member"),
            ("bucket-all-gather{max-member=1.5}", "`1.5` is not a size"),
        ] {
            let error = text.parse::<Pipeline>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
