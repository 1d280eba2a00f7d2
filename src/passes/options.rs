//! What to merge, and how: the options of a bucket pass, and one table that reads, prints and documents them.

mod table;

pub use table::OPTIONS;

use super::memory::MemoryCap;
use super::plan::Reason;
use super::select::{Caps, Policy};
use crate::ir::{CollectiveKind, Graph, NodeId};

/// The kinds of collectives that can be merged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BucketKind {
    /// All-gathers.
    AllGather,
    /// Reduce-scatters.
    ReduceScatter,
    /// All-reduces, in place or not.
    AllReduce,
    /// Broadcasts of one root, in place or not.
    Broadcast,
    /// All-to-alls in which every pair of ranks exchanges equally much.
    AllToAll,
    /// Permutes of the same pairs; only as one launch of the members as they are (mode `coalesced`).
    Permute,
}

impl BucketKind {
    /// Every kind, in the order in which `rewrite` runs them.
    pub const ALL: [Self; 6] =
        [Self::ReduceScatter, Self::AllReduce, Self::AllGather, Self::Broadcast, Self::AllToAll, Self::Permute];

    /// The kinds that XLA's combiners merge, in the order in which they run.
    pub const XLA: [Self; 4] = [Self::AllGather, Self::AllReduce, Self::ReduceScatter, Self::Permute];

    /// The word for the kind: `all_gather`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Permute => "permute",
        }
    }

    /// The word as people write it: `all-gather`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllReduce => "all-reduce",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all-to-all",
            Self::Permute => "permute",
        }
    }

    /// The kind that can be merged, of a collective.
    #[must_use]
    pub const fn of(kind: CollectiveKind) -> Option<Self> {
        match kind {
            CollectiveKind::AllGather { .. } => Some(Self::AllGather),
            CollectiveKind::ReduceScatter { .. } => Some(Self::ReduceScatter),
            CollectiveKind::AllReduce { .. } => Some(Self::AllReduce),
            CollectiveKind::Broadcast { .. } => Some(Self::Broadcast),
            CollectiveKind::AllToAll => Some(Self::AllToAll),
            CollectiveKind::Permute => Some(Self::Permute),
            CollectiveKind::Reduce { .. } => None,
        }
    }

    /// Whether members of several dtypes may travel together: where nothing is reduced or sorted by rank.
    #[must_use]
    pub const fn mixes_dtypes(self) -> bool {
        matches!(self, Self::AllGather | Self::Permute)
    }

    /// Whether `rewrite` merges the kind unasked.
    #[must_use]
    pub const fn is_default(self) -> bool {
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllReduce => true,
            Self::Broadcast | Self::AllToAll | Self::Permute => false,
        }
    }

    /// The cap `rewrite` uses when none is given. 256 MiB is about where gathers and scatters of 8 GPUs reach 90 % of
    /// their bandwidth; 25 MiB is what PyTorch's DDP uses for all-reduces.
    #[must_use]
    pub const fn default_cap_bytes(self) -> u64 {
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => 256 << 20,
            Self::AllReduce | Self::Broadcast | Self::Permute => 25 << 20,
        }
    }
}

/// Whether gathers of different dtypes may travel together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MixedDtype {
    /// No: the dtype is part of the key.
    #[default]
    Split,
    /// Yes, as bytes in one buffer, each member aligned to its own element size; permutes as they are. Gathers and permutes
    /// only: bytes cannot be summed.
    /// Members of symbolic size travel with others of their dtype and of symbolic size.
    Bytes,
}

/// How members are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// One buffer: pack, one collective, unpack.
    #[default]
    Concat,
    /// One grouped launch of the members as they are; nothing is copied.
    Coalesced,
}

/// What unpacking hands out for scatters and reduces, whose results lie end to end in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Unpack {
    /// Views where no result is written or leaves the graph, else copies.
    #[default]
    Auto,
    /// Views wherever no result is written.
    Views,
    /// Copies always.
    Copies,
}

/// What a collective counts with against a cap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Measure {
    /// The larger of what goes in and what comes out.
    #[default]
    Larger,
    /// What comes out, as XLA counts: of a scatter only this rank's share.
    Result,
}

/// What to merge, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketOptions {
    /// The kind to merge.
    pub kind: BucketKind,
    /// Which collectives are tried with which.
    pub policy: Policy,
    /// How large a bucket may grow.
    pub caps: Caps,
    /// In bytes, how large buckets may grow of what is pipelined or marked as synchronous: what XLA's annotator wrote into
    /// the module. Those are then merged first, and the rest after them up to `caps`; only where a pipeline runs.
    pub suggested_cap_bytes: Option<u64>,
    /// Largest collective that is worth copying into a bucket; `None` is no limit. Where ranks share memory, a copy of
    /// more than some ten KiB takes longer than the launch that it saves.
    pub max_member_bytes: Option<u64>,
    /// The most bytes that may be alive at once in the graph after the pass, as [`Alive`](super::memory::Alive) counts them.
    /// Where it says how much more than the graph needs as it stands, that is the graph as it came to the pass, and in a
    /// [`Pipeline`](super::Pipeline) the one that came to the first pass. A graph that is above it already is not put further
    /// above it.
    pub memory: MemoryCap,
    /// Whether gathers of different dtypes may travel together.
    pub mixed_dtype: MixedDtype,
    /// How members are put together.
    pub mode: Mode,
    /// What unpacking hands out.
    pub unpack: Unpack,
    /// Whether the dimension of a gather or scatter is part of the key, so that members agree on it. If nothing is said:
    /// in mode `coalesced`, where the others would have to be put in another order.
    pub by_dim: Option<bool>,
    /// What counts against the caps.
    pub measure: Measure,
    /// Whether a boundary that the user set is part of the key.
    pub boundaries: bool,
    /// Whether `combiner_key` of HLO text is, where other boundaries are not: as XLA's combiners for GPUs have it.
    pub combiner_keys: bool,
    /// Only FSDP's collectives: a gather derived from exactly one parameter-like input, a scatter whose result reaches
    /// only outputs, through operators of one operand. Other kinds are not filtered.
    pub fsdp_only: bool,
    /// Whether collectives in loop bodies are merged (with others of the same body).
    pub in_loops: bool,
    /// Only these groups, by name; empty is all.
    pub groups: Vec<String>,
    /// Only collectives whose name matches one of these; empty is all. `*` is any text, `?` any character.
    pub names: Vec<String>,
    /// No collective whose name matches one of these.
    pub except: Vec<String>,
}

impl BucketOptions {
    /// The options `rewrite` starts from.
    #[must_use]
    pub fn new(kind: BucketKind) -> Self {
        Self {
            kind,
            policy: Policy::default(),
            caps: Caps::bytes(kind.default_cap_bytes()),
            suggested_cap_bytes: None,
            max_member_bytes: None,
            memory: MemoryCap::None,
            mixed_dtype: MixedDtype::default(),
            mode: if kind == BucketKind::Permute { Mode::Coalesced } else { Mode::default() },
            unpack: Unpack::default(),
            by_dim: None,
            measure: Measure::default(),
            boundaries: true,
            combiner_keys: true,
            fsdp_only: false,
            in_loops: true,
            groups: Vec::new(),
            names: Vec::new(),
            except: Vec::new(),
        }
    }

    /// The options of XLA's combiner for GPUs (jaxlib 0.10.2): 30 MiB and 7 bytes of results, 2048 members, gathers of
    /// any dtypes and dimensions together, one instruction that takes the members as they are. Of the boundaries that users
    /// set, that release looks at `combiner_key`, not at `collective_group_key`; for CPUs it looks at neither, which is
    /// `combiner_keys` off.
    #[must_use]
    pub fn xla(kind: BucketKind) -> Self {
        Self {
            policy: Policy::Xla,
            caps: Caps { cap_bytes: vec![(30 << 20) + 7], max_members: Some(2048) },
            mixed_dtype: if kind.mixes_dtypes() { MixedDtype::Bytes } else { MixedDtype::Split },
            mode: Mode::Coalesced,
            by_dim: Some(false),
            measure: Measure::Result,
            boundaries: false,
            ..Self::new(kind)
        }
    }

    /// Whether a second look at a graph could find more than the first: `adjacent` drops members that its own merges
    /// make neighbours, `xla` ends buckets that a later one could fill, a list of caps begins again at its head, and what a
    /// cap on memory kept apart could travel with other such. A graph that has merged collectives of the kind is left alone then, so that a run on its own output changes nothing.
    pub(super) fn looks_once(&self) -> bool {
        self.policy != Policy::Greedy
            || self.memory != MemoryCap::None
            || self.caps.cap_bytes.windows(2).any(|caps| caps[0] != caps[1])
    }

    /// Whether a collective of that size is worth copying.
    pub(super) fn allows_member(&self, bytes: Option<u64>) -> Result<(), Reason> {
        match (self.max_member_bytes, bytes) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(Reason::SizeUnknown),
            (Some(max_member_bytes), Some(bytes)) if bytes > max_member_bytes => {
                Err(Reason::LargeMember { bytes, max_member_bytes })
            }
            (Some(_), Some(_)) => Ok(()),
        }
    }

    /// Whether the graph has any collective of the kind.
    #[must_use]
    pub fn applies_to(&self, graph: &Graph) -> bool {
        let kind = |id: NodeId| graph.collective(id).and_then(|c| BucketKind::of(c.kind));
        graph.order().iter().any(|&id| kind(id) == Some(self.kind))
    }
}

/// An option of bucket passes: a row of the one table that reads and prints the text of pipelines, feeds the command
/// line, and makes the page `docs/options.md`.
pub struct BucketOption {
    /// Its name, in the text of a pipeline and on the command line.
    pub name: &'static str,
    /// What it says, in a sentence without its end.
    pub help: &'static str,
    /// What goes where it is not given, in words. Empty where `help` says so.
    pub default: &'static str,
    /// What it may be.
    pub values: Values,
    get: fn(&BucketOptions) -> String,
    set: fn(&mut BucketOptions, &str) -> Result<(), String>,
}

/// What an option may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Values {
    /// One of some words.
    Words(&'static [Word]),
    /// One of some words; with none, `on`.
    Switch(&'static [Word]),
    /// A number of bytes as text, such as `25MiB`.
    Bytes,
    /// Numbers of bytes, or `none`.
    Caps,
    /// A whole number of at least 1.
    Count,
    /// A cap on memory, as [`MemoryCap`] reads it.
    Memory,
    /// Names or patterns.
    List,
}

/// A value of an option, and what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// What it means, in a sentence without its end. May be empty.
    pub help: &'static str,
}

impl Eq for BucketOption {}

impl PartialEq for BucketOption {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for BucketOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Why options are not those of a bucket pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// No option has the name.
    #[error("no option `{0}`")]
    Unknown(String),
    /// The option cannot have the value.
    #[error("option `{option}`: {error}")]
    Value {
        /// The option.
        option: &'static str,
        /// What is wrong, and what may stand there.
        error: String,
    },
}

impl BucketOptions {
    /// The options that a policy starts from: [`Self::xla`] or [`Self::new`].
    #[must_use]
    pub fn of_policy(kind: BucketKind, policy: Policy) -> Self {
        match policy {
            Policy::Xla => Self::xla(kind),
            _ => Self { policy, ..Self::new(kind) },
        }
    }

    /// Reads options, each a name of [`OPTIONS`] and its value, in any order. What is not given is as the policy has it.
    ///
    /// # Errors
    /// [`OptionError`] of the first that cannot be.
    pub fn parse<'a>(
        kind: BucketKind,
        mut given: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Result<Self, OptionError> {
        let xla = given.clone().any(|(name, value)| (name, value) == ("policy", "xla"));
        let mut options = if xla { Self::xla(kind) } else { Self::new(kind) };
        given.try_for_each(|(name, value)| options.set(name, value))?;
        Ok(options)
    }

    /// Sets an option by its name. Lists are separated by `/`.
    ///
    /// # Errors
    /// [`OptionError`], where no option has the name or it cannot have the value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let option = OPTIONS.iter().find(|option| option.name == name);
        let option = option.ok_or_else(|| OptionError::Unknown(name.to_owned()))?;
        (option.set)(self, value).map_err(|error| OptionError::Value { option: option.name, error })
    }
}

impl std::fmt::Display for BucketOptions {
    /// The cap, and what differs from the defaults of the policy: `cap=25MiB,policy=adjacent`. [`BucketOptions::parse`]
    /// reads it back, except that an option of a list cannot hold `/` or `,`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unlike = Self::new(self.kind);
        let default = Self::of_policy(self.kind, self.policy);
        let mut comma = "";
        for BucketOption { name, get, .. } in OPTIONS {
            let value = get(self);
            let default = if *name == "policy" { &unlike } else { &default };
            if *name == "cap" || value != get(default) {
                write!(f, "{comma}{name}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}
