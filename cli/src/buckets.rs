//! What to merge, as options say it: as typed, then as validated.

use crate::talk;
use anyhow::{Context, Result, bail};
use bucketeer::ir::{CollectiveKind, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, Measure, MixedDtype, Mode, Unpack, matches_pattern};
use bucketeer::passes::select::{Caps, Policy};
use bucketeer::passes::{Pass, Pipeline};
use bucketeer_formats::{Document, Format};
use bucketeer_types::sizes::{format_bytes, parse_bytes};

/// Which collectives to merge, and how.
#[derive(Clone, PartialEq, Eq, Default, Debug, clap::Args)]
pub struct BucketArgs {
    /// Bucket all-gathers
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_gather: Option<String>,
    /// Bucket reduce-scatters
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    reduce_scatter: Option<String>,
    /// Bucket all-reduces
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_reduce: Option<String>,
    /// Bucket broadcasts
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    broadcast: Option<String>,
    /// Bucket all-to-alls in which every pair of ranks exchanges equally much
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_to_all: Option<String>,
    /// Bucket permutes of the same pairs; not in FX text, for PyTorch has no word for the result
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    permute: Option<String>,
    /// Which collectives are tried with which [default: greedy]
    #[arg(long)]
    policy: Option<PolicyWord>,
    /// How members are put together [default: concat; of HLO text, and with policy xla, coalesced]
    #[arg(long)]
    mode: Option<ModeWord>,
    /// Whether gathers of different dtypes may travel together [default: split; of HLO text, in one tuple, bytes]
    #[arg(long)]
    mixed_dtype: Option<MixedWord>,
    /// Whether gathers and scatters along different dimensions are kept apart [default: off; in mode coalesced on; with
    /// policy xla off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    by_dim: Option<SwitchWord>,
    /// What counts against a CAP [default: larger; with policy xla result]
    #[arg(long)]
    measure: Option<MeasureWord>,
    /// Whether boundaries that users set (`key=`, and in HLO text `combiner_key` and `collective_group_key`) keep
    /// collectives apart [default: on; with policy xla only `combiner_key`, as in jaxlib 0.10.2 on GPUs; on CPUs it has
    /// none, which is off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    boundaries: Option<SwitchWord>,
    /// What scatters and reduces hand out [default: auto]
    #[arg(long)]
    unpack: Option<UnpackWord>,
    /// Cap of the first bucket of each kind and group, before those of CAP
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    first_bucket: Option<String>,
    /// Most members of a bucket
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_members: Option<String>,
    /// Largest collective to bucket: a larger one moves fast enough alone, or is not worth copying [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    max_member: Option<String>,
    /// Only FSDP's gathers of parameters and scatters of gradients
    #[arg(long)]
    fsdp_only: bool,
    /// Whether collectives in loop bodies are bucketed, each body by itself [default: on]
    #[arg(long, value_name = "on|off")]
    in_loops: Option<SwitchWord>,
    /// Only collectives of this process group; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    only_groups: Vec<String>,
    /// Only collectives whose name matches; `*` is any text, `?` any character; may be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// No collective whose name matches; may be repeated
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Send a tensor once where the graph sends it again; keeps results alive for longer
    #[arg(long)]
    dedupe_collectives: bool,
    /// The passes to run, in text form, instead of the options above
    #[arg(long, value_name = "TEXT", conflicts_with_all = [
        "all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "permute", "policy", "mode",
        "mixed_dtype", "unpack", "by_dim", "measure", "boundaries", "first_bucket", "max_members", "max_member", "fsdp_only",
        "in_loops", "only_groups", "only", "except", "dedupe_collectives",
    ])]
    pipeline: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum PolicyWord {
    /// First fit over all that may travel together
    Greedy,
    /// Neighbours in wait order, as PyTorch Inductor does
    Adjacent,
    /// As XLA's combiners do; with their caps for GPUs (30 MiB and 7 bytes, 2048 members) where none are given
    Xla,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum ModeWord {
    /// One buffer: pack, one collective, unpack
    Concat,
    /// One grouped launch of the members as they are
    Coalesced,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum MixedWord {
    /// No
    Split,
    /// Yes, as bytes
    Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum MeasureWord {
    /// The larger of what goes in and what comes out
    Larger,
    /// What comes out, as XLA counts
    Result,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum UnpackWord {
    /// Views where nothing writes a result and none leaves the graph, else copies
    Auto,
    /// Views where nothing writes a result
    Views,
    /// Copies
    Copies,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SwitchWord {
    On,
    Off,
}

/// The passes that the options ask for.
#[derive(Debug)]
pub struct Passes {
    /// The passes to run.
    pub pipeline: Pipeline,
    /// What to say before.
    pub notes: Vec<String>,
    /// Whether the options say how members are put together, and what is handed out.
    mode_is_given: bool,
    unpack_is_given: bool,
    /// Likewise whether gathers of different dtypes may travel together, and which kinds are merged.
    mixed_is_given: bool,
    kinds_are_given: bool,
}

/// Caps above this are taken, but are likely a slip of the unit.
const ABSURD_CAP: u64 = 1 << 40;

/// What a cap option says.
enum CapWord {
    Off,
    /// By bucket index; empty is no limit.
    Caps(Vec<u64>),
}
impl BucketArgs {
    /// Checks the options, all before any work.
    pub fn validate(&self) -> Result<Passes> {
        let mut notes = Vec::new();
        let pipeline = match &self.pipeline {
            Some(text) => text.parse().with_context(|| format!("--pipeline `{text}`"))?,
            None => self.passes(&mut notes)?,
        };
        for pass in &pipeline.passes {
            if let Pass::Bucket(options) = pass {
                notes.extend(absurd_caps(options));
            }
        }
        Ok(Passes {
            pipeline,
            notes,
            mode_is_given: self.mode.is_some() || self.pipeline.is_some(),
            unpack_is_given: self.unpack.is_some() || self.pipeline.is_some(),
            mixed_is_given: self.mixed_dtype.is_some() || self.pipeline.is_some(),
            kinds_are_given: self.permute.is_some() || self.pipeline.is_some(),
        })
    }

    fn passes(&self, notes: &mut Vec<String>) -> Result<Pipeline> {
        let mut pipeline = Pipeline::rewrite(self.buckets(notes)?);
        if self.dedupe_collectives {
            let at = pipeline.passes.iter().take_while(|pass| !matches!(pass, Pass::Bucket(_))).count();
            pipeline.passes.insert(at, Pass::DedupeCollectives);
        }
        Ok(pipeline)
    }

    fn buckets(&self, notes: &mut Vec<String>) -> Result<Vec<BucketOptions>> {
        let typed = |kind| match kind {
            BucketKind::AllGather => ("--all-gather", &self.all_gather),
            BucketKind::ReduceScatter => ("--reduce-scatter", &self.reduce_scatter),
            BucketKind::AllReduce => ("--all-reduce", &self.all_reduce),
            BucketKind::Broadcast => ("--broadcast", &self.broadcast),
            BucketKind::AllToAll => ("--all-to-all", &self.all_to_all),
            BucketKind::Permute => ("--permute", &self.permute),
        };
        let xla = matches!(self.policy, Some(PolicyWord::Xla));
        let mut caps = Vec::new();
        for kind in BucketKind::ALL {
            let (option, text) = typed(kind);
            if let Some(text) = text {
                caps.push((kind, read_caps(option, text)?));
            }
        }
        // Only `off` is given: the other kinds are as if nothing was.
        let defaults = caps.iter().all(|(_, cap)| matches!(cap, CapWord::Off));
        let mut chosen = Vec::new();
        // XLA's combiners have an order of their own.
        let others = BucketKind::ALL.into_iter().filter(|kind| !xla || !BucketKind::XLA.contains(kind));
        let first_kinds: &[BucketKind] = if xla { &BucketKind::XLA } else { &[] };
        for kind in first_kinds.iter().copied().chain(others) {
            match caps.iter().find(|(given, _)| *given == kind) {
                Some((_, CapWord::Off)) => {}
                Some((_, CapWord::Caps(list))) => chosen.push((kind, list.clone())),
                None if defaults && xla && BucketKind::XLA.contains(&kind) => {
                    chosen.push((kind, BucketOptions::xla(kind).caps.cap_bytes));
                }
                None if defaults && !xla && kind.is_default() => {
                    chosen.push((kind, vec![kind.default_cap_bytes()]));
                }
                None => {}
            }
        }
        if defaults && !chosen.is_empty() {
            let text = |(kind, list): &(BucketKind, Vec<u64>)| {
                format!("{} {}", kind.name().replace('_', "-"), format_bytes(list[0]))
            };
            let list: Vec<String> = chosen.iter().map(text).collect();
            notes.push(format!("no cap given: {} (defaults)", list.join(", ")));
        }
        let first = match &self.first_bucket {
            Some(text) => Some(read_size("--first-bucket", text)?),
            None => None,
        };
        let max_member_bytes = match &self.max_member {
            Some(text) => Some(read_size("--max-member", text)?),
            None => None,
        };
        let max_members = match self.max_members.as_deref().map(|text| (text, text.parse::<usize>())) {
            None => None,
            Some((_, Ok(most))) if most > 0 => Some(most),
            Some((text, _)) => bail!("--max-members `{text}`: expected a whole number of at least 1"),
        };
        if self.mixed_dtype.is_some_and(|word| matches!(word, MixedWord::Bytes))
            && !chosen.iter().any(|(kind, _)| kind.mixes_dtypes())
        {
            bail!("--mixed-dtype `bytes`: only gathers and permutes may travel as bytes, and neither is asked for");
        }
        let sizes = Sizes { first, max_members, max_member_bytes };
        chosen.into_iter().map(|(kind, list)| self.options(kind, list, &sizes)).collect()
    }

    fn options(&self, kind: BucketKind, mut cap_bytes: Vec<u64>, sizes: &Sizes) -> Result<BucketOptions> {
        if let Some(first) = sizes.first {
            if cap_bytes.is_empty() {
                // The last of the list goes for all further buckets, so `none` needs a number.
                cap_bytes.push(i64::MAX as u64);
            }
            cap_bytes.insert(0, first);
        }
        let word = kind.name().replace('_', "-");
        let mut options = match self.policy {
            Some(PolicyWord::Xla) if !BucketKind::XLA.contains(&kind) => {
                bail!("--policy `xla`: XLA has no combiner of {word}s, and --{word} is asked for");
            }
            Some(PolicyWord::Xla) => BucketOptions::xla(kind),
            _ => BucketOptions::new(kind),
        };
        options.caps = Caps { cap_bytes, max_members: sizes.max_members.or(options.caps.max_members) };
        options.max_member_bytes = sizes.max_member_bytes;
        options.policy = match self.policy {
            None | Some(PolicyWord::Greedy) => Policy::Greedy,
            Some(PolicyWord::Adjacent) => Policy::Adjacent,
            Some(PolicyWord::Xla) => Policy::Xla,
        };
        options.by_dim = self.by_dim.map(|word| word == SwitchWord::On).or(options.by_dim);
        options.measure = match self.measure {
            None => options.measure,
            Some(MeasureWord::Larger) => Measure::Larger,
            Some(MeasureWord::Result) => Measure::Result,
        };
        if let Some(word) = self.boundaries {
            options.boundaries = word == SwitchWord::On;
            options.combiner_keys = options.boundaries;
        }
        options.mode = match self.mode {
            None => options.mode,
            Some(ModeWord::Concat) if kind == BucketKind::Permute => {
                bail!("--mode `concat`: permutes are merged as they are, and --permute is asked for");
            }
            Some(ModeWord::Concat) => Mode::Concat,
            Some(ModeWord::Coalesced) if matches!(kind, BucketKind::Broadcast | BucketKind::AllToAll) => {
                bail!("--mode `coalesced`: PyTorch has no coalesced {word}, and --{word} is asked for");
            }
            Some(ModeWord::Coalesced) => Mode::Coalesced,
        };
        options.mixed_dtype = match self.mixed_dtype {
            Some(MixedWord::Bytes) if kind.mixes_dtypes() => MixedDtype::Bytes,
            None => options.mixed_dtype,
            Some(MixedWord::Split | MixedWord::Bytes) => MixedDtype::Split,
        };
        options.unpack = match self.unpack {
            None | Some(UnpackWord::Auto) => Unpack::Auto,
            Some(UnpackWord::Views) => Unpack::Views,
            Some(UnpackWord::Copies) => Unpack::Copies,
        };
        options.fsdp_only = self.fsdp_only;
        options.in_loops = self.in_loops != Some(SwitchWord::Off);
        options.groups.clone_from(&self.only_groups);
        options.names.clone_from(&self.only);
        options.except.clone_from(&self.except);
        Ok(options)
    }
}

/// Limits that go for all kinds.
struct Sizes {
    first: Option<u64>,
    max_members: Option<usize>,
    max_member_bytes: Option<u64>,
}

fn read_caps(option: &str, text: &str) -> Result<CapWord> {
    match text.trim() {
        "off" => Ok(CapWord::Off),
        "none" | "unlimited" => Ok(CapWord::Caps(Vec::new())),
        _ => {
            let last = text.matches(',').count();
            let cap = |(index, part): (usize, &str)| match part.trim() {
                // The last of the list goes for all further buckets, so `none` needs a number.
                "none" | "unlimited" if index == last => Ok(i64::MAX as u64),
                "none" | "unlimited" => {
                    bail!("{option} `{text}`: `none` goes for all further buckets, so it comes last")
                }
                part => read_size(option, part),
            };
            text.split(',').enumerate().map(cap).collect::<Result<_>>().map(CapWord::Caps)
        }
    }
}

fn read_size(option: &str, text: &str) -> Result<u64> {
    match parse_bytes(text) {
        Ok(0) if matches!(option, "--first-bucket" | "--max-member") => {
            bail!("{option} `{text}`: a limit of zero holds nothing")
        }
        Ok(0) => {
            bail!("{option} `{text}`: a cap of zero holds nothing; `off` leaves the kind alone, `none` is no limit")
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => bail!("{option} `{text}`: {}", error.expected),
    }
}
fn absurd_caps(options: &BucketOptions) -> Option<String> {
    let cap = options.caps.cap_bytes.iter().find(|&&cap| cap > ABSURD_CAP && cap < i64::MAX as u64)?;
    let kind = options.kind.name().replace('_', "-");
    Some(format!("warning: a cap of {} for {kind} is above 1 TiB; is the unit right?", format_bytes(*cap)))
}

/// Whether a graph gathers tensors of more than one dtype.
fn gathers_several_dtypes(document: &Document) -> bool {
    document.graphs().iter().any(|graph| {
        let gathers = graph.order().iter().copied().filter(|&id| {
            graph.collective(id).is_some_and(|made| matches!(made.kind, CollectiveKind::AllGather { .. }))
        });
        let inputs = gathers.flat_map(|id| graph.collective_inputs(id));
        let mut dtypes = inputs.filter_map(|&input| graph.tensor(input)).map(|tensor| tensor.dtype);
        let first = dtypes.next();
        dtypes.any(|dtype| Some(dtype) != first)
    })
}

impl Passes {
    /// Fits the passes to the form of the file: in HLO text a merged collective takes its members as they are, and no
    /// value is a view of another. Refuses what the form has no words for.
    pub fn fit_to(&mut self, document: &Document) -> Result<()> {
        let is_pytorch = matches!(document.format(), Format::Fx | Format::Export);
        let permutes = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.kind == BucketKind::Permute);
        if is_pytorch && !self.kinds_are_given && self.pipeline.passes.iter().any(permutes) {
            self.pipeline.passes.retain(|pass| !permutes(pass));
            self.notes.push("PyTorch has no word for several permutes in one; they are left alone".to_owned());
        }
        for pass in &mut self.pipeline.passes {
            let Pass::Bucket(options) = pass else { continue };
            let lists = options.mode == Mode::Coalesced && options.kind == BucketKind::AllGather;
            if is_pytorch && lists && options.mixed_dtype == MixedDtype::Bytes {
                options.mixed_dtype = MixedDtype::Split;
                if !gathers_several_dtypes(document) {
                    continue;
                }
                self.notes.push(
                    "note: gathers of several dtypes are not merged: PyTorch's gloo backend computes a coalesced gather \
                     of them wrongly; --mode concat sends them as bytes"
                        .to_owned(),
                );
            }
            match document.format() {
                Format::Fx if options.kind == BucketKind::Permute => {
                    bail!("FX text has no word for several permutes in one; it cannot be rewritten with --permute");
                }
                Format::Export if options.kind == BucketKind::Permute => {
                    bail!(
                        "PyTorch has no operator for several permutes in one; a program cannot be rewritten with --permute"
                    );
                }
                Format::Hlo => {
                    // XLA's combiners take the suggestion of its annotator only where their caps are the default.
                    if options.policy == Policy::Xla && options.caps == BucketOptions::xla(options.kind).caps {
                        options.suggested_cap_bytes = options.suggested_cap_bytes.or(document.suggested_cap_bytes());
                    }
                    let has_form = !matches!(options.kind, BucketKind::Broadcast | BucketKind::AllToAll);
                    if has_form && !self.mode_is_given {
                        options.mode = Mode::Coalesced;
                    }
                    // A tuple holds members of any dtypes.
                    if options.mode == Mode::Coalesced && options.kind.mixes_dtypes() && !self.mixed_is_given {
                        options.mixed_dtype = MixedDtype::Bytes;
                    }
                    if !self.unpack_is_given {
                        options.unpack = Unpack::Views;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Warns of filters that name nothing in the graph.
    pub fn warn_of_strangers(&self, graph: &Graph) {
        let options = self.pipeline.passes.iter().find_map(|pass| match pass {
            Pass::Bucket(options) => Some(options),
            _ => None,
        });
        let Some(options) = options else { return };
        for name in &options.groups {
            if !graph.groups().iter().any(|group| &*group.name == name) {
                talk::warn(&format!("no collective of graph `{}` has the group `{name}`", graph.name));
            }
        }
        let collectives: Vec<&str> =
            graph.order().iter().filter(|&&id| graph.collective(id).is_some()).map(|&id| graph.name_of(id)).collect();
        for pattern in options.names.iter().chain(&options.except) {
            if !collectives.iter().any(|name| matches_pattern(pattern, name)) {
                talk::warn(&format!("no collective of graph `{}` matches `{pattern}`", graph.name));
            }
        }
    }
}
