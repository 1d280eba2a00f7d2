//! What to merge: the selection on our own graph, with a remark for every collective.
//!
//! [`plan`] reads a graph and returns a [`BucketPlan`], a plain value that can be printed, compared and tested;
//! [`merge`](super::merge) applies it. One engine serves all kinds; what differs is in [`BucketKey`].
//!
//! A collective is a candidate if its result is read only after exactly one wait in its own region. Two readers before
//! the wait are harmless, because they read the shape, which follows from the input: `sym_size` and `sym_numel`.

use super::filter::{Filter, Readers, XlaRules, only_wait, waited_elsewhere};
use super::remarks::{Remarks, Scope};
use super::rounds::Round;
use super::select::{Candidate, Caps, PlanGraph, Policy, Selection, selected};
use crate::ir::{
    Arg, Args, CollectiveKind, DType, Dependencies, Graph, GroupId, NodeId, ProcessGroup, RegionId, Slot, Spacing,
    Type, Variant,
};
use indexmap::IndexSet;

pub use super::filter::matches_pattern;
pub use super::remarks::{Decision, Reason, Remark};

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
}

impl BucketOptions {
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
    /// make neighbours, `xla` ends buckets that a later one could fill, and a list of caps begins again at its head. A
    /// graph that has merged collectives of the kind is left alone then, so that a run on its own output changes nothing.
    fn looks_once(&self) -> bool {
        self.policy != Policy::Greedy || self.caps.cap_bytes.windows(2).any(|caps| caps[0] != caps[1])
    }

    /// Whether a collective of that size is worth copying.
    fn allows_member(&self, bytes: Option<u64>) -> Result<(), Reason> {
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

/// Everything that members of one bucket agree on. In mode `concat` the dimension of a gather or scatter is not in it:
/// members are packed flat, and unpacking puts each along its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BucketKey {
    /// Kind, with reduce op or root; dimensions are zero where members are packed flat.
    pub kind: CollectiveKind,
    /// In a new tensor or in place.
    pub variant: Variant,
    /// The ranks.
    pub group: GroupId,
    /// Element type; `None` when bytes travel.
    pub dtype: Option<DType>,
    /// Region the collectives stand in.
    pub region: RegionId,
    /// Device, as a number of the plan's own; 0 if it is not stated.
    pub device: u32,
    /// User boundary, likewise.
    pub boundary: u32,
    /// Further options stated on the collective, likewise.
    pub extras: u32,
}

impl BucketKey {
    /// Names of the fields in which two keys differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let checks = [
            (self.kind != other.kind, "reduce op, root or dimension"),
            (self.variant != other.variant, "in-place form"),
            (self.group != other.group, "group"),
            (self.dtype != other.dtype, "dtype"),
            (self.region != other.region, "region"),
            (self.device != other.device, "device"),
            (self.boundary != other.boundary, "user boundary"),
            (self.extras != other.extras, "options"),
        ];
        checks.into_iter().filter(|(differs, _)| *differs).map(|(_, field)| field).collect()
    }
}

/// Collectives that travel in one call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// What they agree on.
    pub key: BucketKey,
    /// At least two, in pack order.
    pub members: Vec<Member>,
}

/// A collective of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The collective.
    pub collective: NodeId,
    /// Its wait.
    pub wait: NodeId,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
}

/// What to merge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketPlan {
    /// The options it was made with.
    pub options: BucketOptions,
    /// In the order in which they were opened.
    pub buckets: Vec<Bucket>,
    /// One for each collective of the kind, in issue order.
    pub remarks: Vec<Remark>,
}

impl BucketPlan {
    /// Names of the members, bucket by bucket.
    #[must_use]
    pub fn names(&self, graph: &Graph) -> Vec<Vec<String>> {
        let name = |member: &Member| graph.name_of(member.collective).to_owned();
        self.buckets.iter().map(|bucket| bucket.members.iter().map(name).collect()).collect()
    }
}

/// Chooses the buckets of one kind. A pure function of graph and options; the graph must pass
/// [`verify`](crate::ir::verify()).
#[must_use]
pub fn plan(graph: &Graph, dependencies: &Dependencies, options: &BucketOptions) -> BucketPlan {
    plan_round(graph, dependencies, options, Round::Only)
}

/// Chooses the buckets among the collectives that a round looks at.
pub(super) fn plan_round(
    graph: &Graph,
    dependencies: &Dependencies,
    options: &BucketOptions,
    round: Round,
) -> BucketPlan {
    let view = View::new(graph, dependencies, options, round);
    let selection = selected(&view, options.policy, &options.caps);
    planned(&view, &selection, options, Scope::OneGraph)
}

/// The plan that a selection stands for.
pub(super) fn planned(view: &View<'_>, selection: &Selection, options: &BucketOptions, scope: Scope) -> BucketPlan {
    let bucket = |slots: &Vec<usize>| Bucket {
        key: view.entry(slots[0]).key,
        members: slots
            .iter()
            .map(|&slot| {
                let entry = view.entry(slot);
                Member { collective: view.node(slot), wait: view.node(entry.wait), bytes: entry.bytes }
            })
            .collect(),
    };
    let buckets: Vec<Bucket> = selection.buckets.iter().map(bucket).collect();
    let remarks = Remarks::new(view, selection, scope).all();
    BucketPlan { options: options.clone(), buckets, remarks }
}

/// Bytes a collective is counted with: the larger of input and output. `None` when a size is symbolic without a hint.
#[must_use]
pub fn collective_bytes(graph: &Graph, id: NodeId) -> Option<u64> {
    fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
        match ty {
            Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
            // What a coalesced collective makes.
            Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
            Type::SymInt(_) | Type::SymOther(_) | Type::Token | Type::Unknown => None,
        }
    }
    let value = |id: NodeId| bytes(graph, graph.type_of(id));
    let input = graph.collective_inputs(id).iter().try_fold(0u64, |sum, &input| sum.checked_add(value(input)?))?;
    Some(input.max(value(id)?))
}

/// Bytes a collective counts with against the caps. XLA knows no sizes but numbers.
fn counted_bytes(graph: &Graph, id: NodeId, options: &BucketOptions) -> Option<u64> {
    let result = || graph.tensor(id)?.bytes();
    match (options.policy, options.measure) {
        (Policy::Xla, Measure::Result) => result()?.as_const(),
        (_, Measure::Result) => graph.likely_value(&result()?),
        (_, Measure::Larger) => collective_bytes(graph, id),
    }
}

/// A candidate as the selection sees it.
pub(super) struct Entry {
    pub(super) key: BucketKey,
    pub(super) bytes: Option<u64>,
    /// Slot of the wait.
    wait: usize,
}

/// Our graph as a [`PlanGraph`].
pub(super) struct View<'a> {
    pub(super) graph: &'a Graph,
    pub(super) dependencies: &'a Dependencies,
    /// By slot: index into `entries`, or `u32::MAX`.
    index: Vec<u32>,
    entries: Vec<Entry>,
    /// Collectives of the kind, in issue order, with the reason if they are no candidates.
    pub(super) seen: Vec<(NodeId, Option<Reason>)>,
}

impl<'a> View<'a> {
    pub(super) fn new(graph: &'a Graph, dependencies: &'a Dependencies, options: &BucketOptions, round: Round) -> Self {
        let readers = Readers::of(graph, options.kind);
        let filter = Filter::of(graph, options);
        let elsewhere = waited_elsewhere(graph, dependencies);
        let xla = (options.policy == Policy::Xla).then(|| XlaRules::of(graph, options.kind));
        let mut traits = Traits::default();
        let mut view = Self {
            graph,
            dependencies,
            index: vec![u32::MAX; dependencies.slots().len()],
            entries: Vec::new(),
            seen: Vec::new(),
        };
        for &id in graph.order() {
            let Some(collective) = graph.collective(id) else { continue };
            if BucketKind::of(collective.kind) != Some(options.kind) {
                continue;
            }
            let bytes = counted_bytes(graph, id, options);
            let checked = filter.check(graph, id).and_then(|()| only_wait(graph, &readers, id));
            let checked = checked.and_then(|wait| round.check(graph, id).map(|()| wait));
            let checked = checked.and_then(|wait| match graph.group(collective.group).size {
                // XLA does not look at that.
                Some(1) if options.policy != Policy::Xla => Err(Reason::OneRank),
                _ => options.allows_member(bytes).map(|()| wait),
            });
            let checked = checked.and_then(|wait| {
                let mut values = graph.collective_inputs(id).iter().chain([&id, &wait]);
                if values.any(|&id| dependencies.is_restated(id)) { Err(Reason::Restated) } else { Ok(wait) }
            });
            let checked = checked.and_then(|wait| match elsewhere.get(&id) {
                Some(&by) => Err(Reason::ReadBeforeWait { by: graph.name_of(by).to_owned() }),
                None => Ok(wait),
            });
            let checked =
                checked.and_then(|wait| xla.as_ref().map_or(Ok(()), |xla| xla.check(id, wait)).map(|()| wait));
            let reason = match checked {
                Ok(wait) => {
                    let slot = dependencies.slot_of(id);
                    view.index[slot] = view.entries.len() as u32;
                    view.entries.push(Entry {
                        key: traits.key(graph, id, options),
                        bytes,
                        wait: dependencies.slot_of(wait),
                    });
                    None
                }
                Err(reason) => Some(reason),
            };
            view.seen.push((id, reason));
        }
        let merged_before = view.seen.iter().any(|(_, reason)| *reason == Some(Reason::AlreadyMerged));
        if merged_before && options.looks_once() && round == Round::Only {
            view.entries.clear();
            view.seen.iter_mut().for_each(|(_, reason)| *reason = reason.take().or(Some(Reason::LookedAt)));
        }
        view
    }

    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[self.index[slot] as usize]
    }

    /// What there is to know of the slot's collective, if it is a candidate.
    pub(super) fn candidate_at(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(self.index[slot] as usize)
    }

    /// Why the slot's collective is no candidate, if it is one of the kind.
    pub(super) fn excluded(&self, slot: usize) -> Option<&Reason> {
        let nth = self.seen_at(slot)?;
        self.seen[nth].1.as_ref()
    }

    /// Makes the slot's collective none of the candidates.
    pub(super) fn exclude(&mut self, slot: usize, reason: Reason) {
        if let Some(nth) = self.seen_at(slot) {
            self.index[slot] = u32::MAX;
            self.seen[nth].1.get_or_insert(reason);
        }
    }

    /// The place of a slot among those that were seen, which stand in the order of the slots.
    fn seen_at(&self, slot: usize) -> Option<usize> {
        self.seen.binary_search_by_key(&slot, |(id, _)| self.dependencies.slot_of(*id)).ok()
    }

    pub(super) fn node(&self, slot: usize) -> NodeId {
        self.dependencies.node(slot).expect("a candidate's slot holds a node")
    }
}

impl PlanGraph for View<'_> {
    type Key = BucketKey;

    fn node_count(&self) -> usize {
        self.dependencies.slots().len()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.dependencies.before(node).iter().map(|&slot| slot as usize)
    }

    fn candidate(&self, node: usize) -> Option<Candidate<BucketKey>> {
        let entry = self.candidate_at(node)?;
        Some(Candidate { key: entry.key, bytes: entry.bytes, wait: entry.wait })
    }

    fn body(&self, node: usize) -> usize {
        let region = match self.dependencies.slots()[node] {
            Slot::Node(id) => self.graph.node(id).region,
            Slot::Enter(region) | Slot::Exit(region) => self.graph.region(region).parent,
        };
        region.index()
    }
}

/// Devices, user boundaries and further options, each numbered in order of first appearance. Nothing stated is 0.
#[derive(Default)]
struct Traits {
    devices: IndexSet<Box<str>>,
    boundaries: IndexSet<Box<str>>,
    extras: IndexSet<Box<str>>,
}

/// The number of a text, a new one if it was not seen before.
fn number(seen: &mut IndexSet<Box<str>>, text: Option<&str>) -> u32 {
    let Some(text) = text else { return 0 };
    let index = seen.get_index_of(text).unwrap_or_else(|| seen.insert_full(text.into()).0);
    index as u32 + 1
}

impl Traits {
    fn key(&mut self, graph: &Graph, id: NodeId, options: &BucketOptions) -> BucketKey {
        let collective = graph.collective(id).expect("keys are made for collectives");
        let tensor = graph.tensor(id);
        let xla = options.policy == Policy::Xla;
        let kind = match collective.kind {
            other if options.by_dim.unwrap_or(options.mode == Mode::Coalesced) => other,
            CollectiveKind::AllGather { .. } => CollectiveKind::AllGather { dim: 0 },
            CollectiveKind::ReduceScatter { op, .. } => CollectiveKind::ReduceScatter { op, dim: 0 },
            other => other,
        };
        // Padding between members of sizes known only at run time cannot be written down: those keep their dtype.
        let known_size = graph.collective_inputs(id).iter().all(|&input| {
            graph.tensor(input).and_then(crate::ir::TensorType::bytes).is_some_and(|bytes| bytes.as_const().is_some())
        });
        let bytes_travel =
            options.mixed_dtype == MixedDtype::Bytes && options.kind == BucketKind::AllGather && known_size;
        // Permutes are not packed.
        let permutes = options.mixed_dtype == MixedDtype::Bytes && options.kind == BucketKind::Permute;
        let extras = further_options(graph, id, xla);
        let boundary =
            graph.meta_of(id).key.as_deref().and_then(|key| match (options.boundaries, options.combiner_keys) {
                (true, _) => Some(key),
                (false, true) => combiner_key(key),
                (false, false) => None,
            });
        BucketKey {
            kind,
            variant: collective.variant,
            group: same_ranks(graph, collective.group),
            dtype: if bytes_travel || permutes { None } else { tensor.map(|t| t.dtype) },
            region: graph.node(id).region,
            device: number(&mut self.devices, tensor.and_then(|t| t.device.as_deref())),
            boundary: number(&mut self.boundaries, boundary),
            extras: number(&mut self.extras, extras.as_deref()),
        }
    }
}

/// The `combiner_key` among the boundaries of HLO text, which stands first.
fn combiner_key(boundaries: &str) -> Option<&str> {
    let first = boundaries.split(", collective_group_key=").next()?;
    first.starts_with("combiner_key=").then_some(first)
}

/// What is stated on a collective beside its tensors, kind and group, as text; operands by the names of their nodes. Of
/// a permute also its pairs. That HLO text writes all devices as `{}` matters to XLA only.
fn further_options(graph: &Graph, id: NodeId, xla: bool) -> Option<String> {
    let known = |name: &str| {
        matches!(
            name,
            "out" | "group_size" | "group_name" | "reduce_op" | "op" | "src" | "root" | "self" | "input" | "dim"
        ) || (name == "replica_groups" && !xla)
    };
    let args = graph.args_of(id);
    let further = args.keyword.iter().filter(|(name, _)| !known(name)).cloned();
    let permutes = graph.collective(id).is_some_and(|c| c.kind == CollectiveKind::Permute);
    let pairs = args.positional.iter().skip(1).filter(|arg| permutes && matches!(arg, Arg::List(_))).cloned();
    let further = Args { positional: pairs.collect(), keyword: further.collect() };
    // The sign keeps a node apart from a word.
    let operand = |index: u32| format!("%{}", graph.name_of(graph.operands(id)[index as usize]));
    let mut text = String::new();
    further.write(&mut text, Spacing::Tight, &operand).expect("text can be written to a string");
    (!text.is_empty()).then_some(text)
}

/// The group itself; for one that is known by its ranks alone (`tag:[0, 1]`, as older operators name groups), the first
/// group that is known to have just these ranks.
fn same_ranks(graph: &Graph, id: GroupId) -> GroupId {
    let by_ranks = |group: &ProcessGroup| group.name.contains(":[") && group.members.len() == 1;
    let group = graph.group(id);
    if !by_ranks(group) {
        return id;
    }
    let found = graph.groups().iter().position(|other| other.members == group.members && !by_ranks(other));
    found.map_or(id, GroupId::from_index)
}
