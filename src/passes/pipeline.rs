//! A list of passes with a text form, run in order, each verified and timed.

use super::bucketing::{BucketKind, BucketOptions, BucketPlan, OptionError};
use super::duplicates::{DuplicateStats, dedupe_collectives};
use super::memory::{Alive, MemoryCap, MemoryUse};
use super::merge::{MergeError, MergeReport};
use super::own::OwnPass;
use super::rounds::bucket;
use super::trivial::fold_trivial;
use super::waits::dedupe_waits;
use crate::ir::{Dependencies, Graph};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// One pass.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pass {
    /// [`dedupe_waits`].
    DedupeWaits,
    /// [`fold_trivial`].
    FoldTrivial,
    /// [`dedupe_collectives`].
    DedupeCollectives,
    /// [`plan`](super::bucketing::plan()) and [`merge`](super::merge::merge()) for one kind.
    Bucket(BucketOptions),
    /// A pass of the user's own. It prints by its name, which is not read back.
    Own(OwnPass),
}

impl Pass {
    /// The pass's name in the text form.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::DedupeWaits => "dedupe-waits",
            Self::FoldTrivial => "fold-trivial",
            Self::DedupeCollectives => "dedupe-collectives",
            Self::Bucket(options) => bucket_name(options.kind),
            Self::Own(OwnPass(pass)) => pass.name(),
        }
    }
}

impl Pass {
    /// The pass on a graph that needed so many bytes when it came to the pipeline, if that counts.
    pub(super) fn of_graph(&self, came_with_bytes: Option<u64>) -> Cow<'_, Self> {
        match (self, came_with_bytes) {
            (Self::Bucket(options), Some(bytes)) if options.memory.is_relative() => {
                let memory = options.memory.bytes(bytes).map_or(options.memory, MemoryCap::Bytes);
                Cow::Owned(Self::Bucket(BucketOptions { memory, ..options.clone() }))
            }
            _ => Cow::Borrowed(self),
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
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
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
#[non_exhaustive]
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
    /// A pass of the user's own could not be done.
    #[error("pass `{pass}`: {error}")]
    Own {
        /// The pass.
        pass: &'static str,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
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

    /// Whether a cap on memory depends on what a graph needs as it stands.
    pub(super) fn has_relative_cap(&self) -> bool {
        self.passes.iter().any(|pass| matches!(pass, Pass::Bucket(options) if options.memory.is_relative()))
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
        let came = self.has_relative_cap().then(|| Alive::of(graph).peak_bytes);
        for pass in &self.passes {
            watch(pass);
            let start = Instant::now();
            let mut report = run_pass(&pass.of_graph(came), graph)?;
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
            report.plan =
                Some(BucketPlan { memory: MemoryUse::of(graph, options.memory), ..BucketPlan::empty(options.clone()) });
            report.merge = Some(MergeReport::default());
        }
        Pass::Own(OwnPass(own)) => {
            report = own.run(graph).map_err(|error| PipelineError::Own { pass: pass.name(), error })?;
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
#[non_exhaustive]
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
    let options = options.split(',').map(str::trim).filter(|option| !option.is_empty());
    let parts = options.map(|option| option.split_once('=').unwrap_or((option, "")));
    let parsed = BucketOptions::parse(kind, parts.map(|(name, value)| (name.trim(), value.trim())));
    parsed.map(Pass::Bucket).map_err(|error| match error {
        OptionError::Unknown(option) => PipelineParseError::UnknownOption { pass: name.to_owned(), option },
        OptionError::Value { option, error } => {
            PipelineParseError::Value { pass: name.to_owned(), option: option.to_owned(), error }
        }
    })
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pass) in self.passes.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}", pass.name())?;
            if let Pass::Bucket(options) = pass {
                write!(f, "{{{options}}}")?;
            }
        }
        Ok(())
    }
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
