//! What to merge: the selection on our own graph, with a remark for every collective.
//!
//! [`plan`] reads a graph and returns a [`BucketPlan`], a plain value that can be printed, compared and tested;
//! [`merge`](super::merge) applies it. One engine serves all kinds; what differs is in [`BucketKey`].
//!
//! A collective is a candidate if its result is read only after exactly one wait in its own region. Two readers before
//! the wait are harmless, because they read the shape, which follows from the input: `sym_size` and `sym_numel`.

use super::select::{Candidate, Caps, PlanGraph, Policy, Refusal, select};
use crate::ir::optable;
use crate::ir::{
    Arg, CollectiveKind, DType, Dependencies, Dim, Graph, GroupId, NodeId, Op, Order, ProcessGroup, RegionId,
    RegionKind, SymExpr, Type, Variant,
};
use indexmap::{IndexMap, IndexSet};
use std::collections::VecDeque;

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
}

impl BucketKind {
    /// Every kind, in the order in which `rewrite` runs them.
    pub const ALL: [Self; 5] = [Self::ReduceScatter, Self::AllReduce, Self::AllGather, Self::Broadcast, Self::AllToAll];

    /// The word for the kind: `all_gather`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
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
            CollectiveKind::Reduce { .. } | CollectiveKind::Permute => None,
        }
    }

    /// The cap `rewrite` uses when none is given. 256 MiB is about where gathers and scatters of 8 GPUs reach 90 % of
    /// their bandwidth; 25 MiB is what PyTorch's DDP uses for all-reduces.
    #[must_use]
    pub const fn default_cap_bytes(self) -> u64 {
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => 256 << 20,
            Self::AllReduce | Self::Broadcast => 25 << 20,
        }
    }
}

/// Whether gathers of different dtypes may travel together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MixedDtype {
    /// No: the dtype is part of the key.
    #[default]
    Split,
    /// Yes, as bytes in one buffer, each member aligned to its own element size. Gathers only: bytes cannot be summed.
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

/// What to merge, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketOptions {
    /// The kind to merge.
    pub kind: BucketKind,
    /// Which collectives are tried with which.
    pub policy: Policy,
    /// How large a bucket may grow.
    pub caps: Caps,
    /// Whether gathers of different dtypes may travel together.
    pub mixed_dtype: MixedDtype,
    /// How members are put together.
    pub mode: Mode,
    /// What unpacking hands out.
    pub unpack: Unpack,
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
            mixed_dtype: MixedDtype::default(),
            mode: Mode::default(),
            unpack: Unpack::default(),
            fsdp_only: false,
            in_loops: true,
            groups: Vec::new(),
            names: Vec::new(),
            except: Vec::new(),
        }
    }
}

impl BucketOptions {
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
    /// Device, as an index into a table of the plan's own.
    pub device: u32,
    /// User boundary, likewise.
    pub boundary: u32,
    /// Further options stated on the collective, likewise.
    pub extras: u32,
}

impl BucketKey {
    /// Names of the fields in which two keys differ.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
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

/// Why a collective was left alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// An option keeps it out.
    Filtered {
        /// Which.
        by: &'static str,
    },
    /// It is a merged collective already.
    AlreadyMerged,
    /// It takes a list: it travels as one already.
    Coalesced,
    /// It writes a tensor given as `out`, which others may read.
    WritesOut,
    /// It exchanges other amounts with some ranks than with others, or amounts known only at run time.
    UnevenSplits,
    /// Nothing waits for it in this graph.
    NoWait,
    /// More than one node waits for it.
    WaitedTwice {
        /// How many.
        waits: usize,
    },
    /// Something reads or views it before its wait.
    ReadBeforeWait {
        /// The reader.
        by: String,
    },
    /// Its wait is in another region.
    RegionBorder,
    /// It is in a loop body, and those were not to be touched.
    InLoop,
    /// Its size is not known, so it cannot be held against the cap.
    SizeUnknown,
    /// Larger than the cap by itself.
    Oversize {
        /// Its own bytes.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// Every bucket it might have joined was full.
    CapReached {
        /// A collective it did not fit with.
        other: String,
    },
    /// It depends on the bucket it might have joined, or the bucket on it.
    Dependent {
        /// A collective of that bucket.
        other: String,
        /// The nodes from one to the other; `...` where the path is long or leads through another bucket.
        path: Vec<String>,
        /// The strongest reason for order on the path, beside data.
        because: Order,
    },
    /// No neighbour in wait order has its key (policy `adjacent`).
    NotAdjacent,
    /// The graph has merged collectives of the kind already (policy `adjacent`, which looks at a graph once: after its
    /// own merges others would be neighbours).
    LookedAt,
    /// The nearest collective of its kind differs in these parts of the key.
    KeyDiffers {
        /// The nearest one.
        from: String,
        /// The parts.
        fields: Vec<&'static str>,
    },
    /// It is the only one of its kind.
    NoPartner,
}

impl Reason {
    /// One word or two for tables.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Filtered { .. } => "filtered",
            Self::AlreadyMerged => "already merged",
            Self::Coalesced => "coalesced",
            Self::WritesOut => "writes out",
            Self::UnevenSplits => "uneven splits",
            Self::NoWait => "no wait in sight",
            Self::WaitedTwice { .. } => "waited twice",
            Self::ReadBeforeWait { .. } => "read before wait",
            Self::RegionBorder => "region border",
            Self::InLoop => "in loop",
            Self::SizeUnknown => "size unknown",
            Self::Oversize { .. } => "oversize",
            Self::CapReached { .. } => "cap reached",
            Self::Dependent { because, .. } => match because {
                Order::Data => "dependent",
                Order::Memory => "written between",
                Order::Fence => "fence",
                Order::Control => "control edge",
                Order::Region => "region border",
            },
            Self::NotAdjacent => "not adjacent",
            Self::LookedAt => "looked at before",
            Self::KeyDiffers { .. } => "key differs",
            Self::NoPartner => "no partner",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Filtered { by } => write!(f, "left out by {by}"),
            Self::AlreadyMerged => f.write_str("is a bucket already; rewrite the original graph for other caps"),
            Self::Coalesced => f.write_str("takes a list, so it travels in one launch already"),
            Self::WritesOut => f.write_str("writes into a tensor given as `out`, which others may read"),
            Self::UnevenSplits => f.write_str("does not exchange equally much, known beforehand, with every rank"),
            Self::NoWait => f.write_str("no wait in sight: its result leaves the graph before it is valid"),
            Self::WaitedTwice { waits } => write!(f, "{waits} nodes wait for it; `dedupe-waits` makes them one"),
            Self::ReadBeforeWait { by } => write!(f, "`{by}` takes it before its wait"),
            Self::RegionBorder => f.write_str("its wait is in another region"),
            Self::InLoop => f.write_str("is in a loop body, and `in_loops` is off"),
            Self::SizeUnknown => f.write_str("size unknown; give the symbols a value with `--hint`, or lift the cap"),
            Self::Oversize { bytes, cap_bytes } => write!(f, "{bytes} bytes are more than the cap of {cap_bytes}"),
            Self::CapReached { other } => write!(f, "cap reached: does not fit with `{other}`"),
            Self::Dependent { other, path, .. } => {
                write!(f, "{}: cannot travel with `{other}`", self.label())?;
                if path.is_empty() { Ok(()) } else { write!(f, " ({})", path.join(" > ")) }
            }
            Self::NotAdjacent => f.write_str("no neighbour in wait order has its key"),
            Self::LookedAt => f.write_str("the graph has merged collectives already, and `adjacent` looks at it once"),
            Self::KeyDiffers { from, fields } => {
                write!(f, "key differs from that of `{from}`, the nearest: {}", fields.join(", "))
            }
            Self::NoPartner => f.write_str("the only one of its kind"),
        }
    }
}

/// What was decided for a collective.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It joins a bucket.
    Merged {
        /// Index into [`BucketPlan::buckets`].
        bucket: usize,
    },
    /// It stays as it is.
    Alone(Reason),
}

/// One collective of the planned kind, and what was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The collective.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
    /// What was decided.
    pub decision: Decision,
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
    let view = View::new(graph, dependencies, options);
    let selection = select(&view, options.policy, &options.caps);
    let mut outcomes: IndexMap<NodeId, Result<usize, Refusal>> = IndexMap::new();
    for outcome in &selection.outcomes {
        outcomes.insert(view.node(outcome.node), outcome.bucket);
    }
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
    let remarks =
        Remarks { view: &view, buckets: &selection.buckets, budget: PATH_BUDGET, group_of: None }.all(&outcomes);
    BucketPlan { options: options.clone(), buckets, remarks }
}

/// Bytes a collective is counted with: the larger of input and output. `None` when a size is symbolic without a hint.
#[must_use]
pub fn collective_bytes(graph: &Graph, id: NodeId) -> Option<u64> {
    fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
        match ty {
            Type::Tensor(tensor) => match tensor.bytes()? {
                Dim::Const(bytes) => Some(bytes),
                Dim::Sym(expr) => evaluate(graph, &expr),
            },
            // What a coalesced collective makes.
            Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
            Type::SymInt(_) | Type::SymOther(_) | Type::Token | Type::Unknown => None,
        }
    }
    let value = |id: NodeId| bytes(graph, graph.type_of(id));
    let input = graph.collective_inputs(id).iter().try_fold(0u64, |sum, &input| sum.checked_add(value(input)?))?;
    Some(input.max(value(id)?))
}

fn evaluate(graph: &Graph, expr: &SymExpr) -> Option<u64> {
    let hint = |symbol: &str| graph.hints.get(symbol).and_then(|&value| i64::try_from(value).ok());
    expr.evaluate(&hint).and_then(|value| u64::try_from(value).ok())
}

/// Whether `text` matches `pattern`, in which `*` is any text and `?` any character.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut restart: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                restart = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match restart {
                Some((star, at)) => {
                    restart = Some((star, at + 1));
                    p = star + 1;
                    t = at + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// A candidate as the selection sees it.
struct Entry {
    key: BucketKey,
    bytes: Option<u64>,
    /// Slot of the wait.
    wait: usize,
}

/// Our graph as a [`PlanGraph`].
struct View<'a> {
    graph: &'a Graph,
    dependencies: &'a Dependencies,
    /// By slot: index into `entries`, or `u32::MAX`.
    index: Vec<u32>,
    entries: Vec<Entry>,
    /// Collectives of the kind, in issue order, with the reason if they are no candidates.
    seen: Vec<(NodeId, Option<Reason>)>,
}

impl<'a> View<'a> {
    fn new(graph: &'a Graph, dependencies: &'a Dependencies, options: &BucketOptions) -> Self {
        let readers = Readers::of(graph, options.kind);
        let filter = Filter::of(graph, options);
        let elsewhere = waited_elsewhere(graph, dependencies);
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
            let checked = filter.check(graph, id).and_then(|()| only_wait(graph, &readers, id));
            let checked = checked.and_then(|wait| match elsewhere.get(&id) {
                Some(&by) => Err(Reason::ReadBeforeWait { by: graph.name_of(by).to_owned() }),
                None => Ok(wait),
            });
            let reason = match checked {
                Ok(wait) => {
                    let slot = dependencies.slot_of(id);
                    view.index[slot] = view.entries.len() as u32;
                    view.entries.push(Entry {
                        key: traits.key(graph, id, options),
                        bytes: collective_bytes(graph, id),
                        wait: dependencies.slot_of(wait),
                    });
                    None
                }
                Err(reason) => Some(reason),
            };
            view.seen.push((id, reason));
        }
        let merged_before = view.seen.iter().any(|(_, reason)| *reason == Some(Reason::AlreadyMerged));
        if merged_before && options.policy == Policy::Adjacent {
            view.entries.clear();
            view.seen.iter_mut().for_each(|(_, reason)| *reason = reason.take().or(Some(Reason::LookedAt)));
        }
        view
    }

    fn entry(&self, slot: usize) -> &Entry {
        &self.entries[self.index[slot] as usize]
    }

    fn node(&self, slot: usize) -> NodeId {
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
        let entry = self.entries.get(self.index[node] as usize)?;
        Some(Candidate { key: entry.key, bytes: entry.bytes, wait: entry.wait })
    }
}

/// Device, user boundary and further options, numbered in order of first appearance.
#[derive(Default)]
struct Traits {
    seen: IndexSet<String>,
}

impl Traits {
    fn number(&mut self, text: String) -> u32 {
        self.seen.insert_full(text).0 as u32
    }

    fn key(&mut self, graph: &Graph, id: NodeId, options: &BucketOptions) -> BucketKey {
        let collective = graph.collective(id).expect("keys are made for collectives");
        let tensor = graph.tensor(id);
        let kind = match collective.kind {
            other if options.mode == Mode::Coalesced => other,
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
        let device = tensor.and_then(|t| t.device.as_deref()).unwrap_or("?");
        let boundary = graph.meta_of(id).key.as_deref().map_or(String::new(), |key| format!("key {key}"));
        let known = |name: &str| {
            matches!(
                name,
                "out" | "group_size" | "group_name" | "reduce_op" | "op" | "src" | "root" | "self" | "input" | "dim"
            )
        };
        let extras: Vec<_> = graph.args_of(id).keyword.iter().filter(|(name, _)| !known(name)).collect();
        BucketKey {
            kind,
            variant: collective.variant,
            group: same_ranks(graph, collective.group),
            dtype: if bytes_travel { None } else { tensor.map(|t| t.dtype) },
            region: graph.node(id).region,
            device: self.number(format!("device {device}")),
            boundary: self.number(boundary),
            extras: self.number(format!("extras {extras:?}")),
        }
    }
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

/// Who reads the collectives of one kind.
struct Readers {
    /// By arena index: index into `lists`, or `u32::MAX`.
    index: Vec<u32>,
    lists: Vec<Vec<NodeId>>,
}

impl Readers {
    fn of(graph: &Graph, kind: BucketKind) -> Self {
        let mut readers = Self { index: vec![u32::MAX; graph.arena_len()], lists: Vec::new() };
        for &id in graph.order() {
            if graph.collective(id).is_some_and(|c| BucketKind::of(c.kind) == Some(kind)) {
                readers.index[id.index()] = readers.lists.len() as u32;
                readers.lists.push(Vec::new());
            }
            for &operand in graph.operands(id) {
                if let Some(list) = readers.lists.get_mut(readers.index[operand.index()] as usize)
                    && list.last() != Some(&id)
                {
                    list.push(id);
                }
            }
        }
        readers
    }

    fn get(&self, id: NodeId) -> &[NodeId] {
        self.lists.get(self.index[id.index()] as usize).map_or(&[], Vec::as_slice)
    }
}

/// Whether a node reads nothing of its operand but a size that follows from the input of the collective it names.
#[must_use]
pub(super) fn reads_size_only(graph: &Graph, id: NodeId) -> bool {
    let Op::Call(target) = graph.node(id).op else { return false };
    let (_, base, _) = optable::split_target(graph.text(target));
    base == "sym_numel" || (base == "sym_size" && graph.args_of(id).positional.get(1).and_then(Arg::as_int).is_some())
}

/// Collectives that write a given tensor and are waited for under another name of its memory, with that wait; or whose
/// memory another collective writes before their own wait, with that one.
fn waited_elsewhere(
    graph: &Graph,
    dependencies: &Dependencies,
) -> hashbrown::HashMap<NodeId, NodeId, rustc_hash::FxBuildHasher> {
    let mut in_flight = hashbrown::HashMap::<u32, NodeId, rustc_hash::FxBuildHasher>::default();
    let mut elsewhere = hashbrown::HashMap::default();
    for &id in graph.order() {
        let class = dependencies.alias_class(id);
        match graph.node(id).op {
            Op::Collective(collective) if collective.variant != Variant::Functional => {
                if let Some(other) = in_flight.insert(class, id) {
                    elsewhere.insert(other, id);
                }
            }
            Op::Wait => {
                if let Some(started) = in_flight.remove(&class)
                    && graph.operands(id).first() != Some(&started)
                {
                    elsewhere.insert(started, id);
                }
            }
            _ => {}
        }
    }
    elsewhere
}

/// The one wait of a collective that may be merged.
fn only_wait(graph: &Graph, readers: &Readers, id: NodeId) -> Result<NodeId, Reason> {
    let collective = graph.collective(id).expect("asked of collectives only");
    if !graph.meta_of(id).members.is_empty() {
        return Err(Reason::AlreadyMerged);
    }
    if collective.coalesced {
        return Err(Reason::Coalesced);
    }
    if collective.variant == Variant::Out {
        return Err(Reason::WritesOut);
    }
    let list = readers.get(id);
    let mut waits = list.iter().copied().filter(|&reader| graph.node(reader).op == Op::Wait);
    let Some(wait) = waits.next() else { return Err(Reason::NoWait) };
    let more = waits.count();
    if more > 0 {
        return Err(Reason::WaitedTwice { waits: more + 1 });
    }
    // Readers stand in program order, so those before the wait come first in the list.
    let early =
        list.iter().copied().take_while(|&reader| reader != wait).find(|&reader| !reads_size_only(graph, reader));
    if let Some(by) = early {
        return Err(Reason::ReadBeforeWait { by: graph.name_of(by).to_owned() });
    }
    if graph.node(wait).region != graph.node(id).region {
        return Err(Reason::RegionBorder);
    }
    let tensor = |&id: &NodeId| graph.tensor(id).is_some();
    // The wait's type is what its readers will be given.
    if !tensor(&id) || !tensor(&wait) || !graph.collective_inputs(id).iter().all(tensor) {
        return Err(Reason::SizeUnknown);
    }
    if collective.kind == CollectiveKind::AllToAll && !exchanges_evenly(graph, id) {
        return Err(Reason::UnevenSplits);
    }
    Ok(wait)
}

/// Whether an all-to-all sends as many rows to each rank as it gets from each, all known. Its arguments are the tensor,
/// the rows from each rank and the rows for each rank; an empty list means equal parts.
fn exchanges_evenly(graph: &Graph, id: NodeId) -> bool {
    let args = graph.args_of(id);
    let input = graph.collective_inputs(id).first().and_then(|&input| graph.tensor(input));
    let ranks = graph.collective(id).and_then(|c| graph.group(c.group).size).map(u64::from);
    let (Some(ranks), Some(input)) = (ranks, input) else { return false };
    let rows = input.shape.first().and_then(Dim::as_const).filter(|rows| rows % ranks == 0).map(|rows| rows / ranks);
    let Some(rows) = rows.and_then(|rows| i64::try_from(rows).ok()) else { return false };
    let even = |list: Option<&Arg>| match list {
        Some(Arg::List(splits)) => {
            splits.is_empty() || (splits.len() as u64 == ranks && splits.iter().all(|split| *split == Arg::Int(rows)))
        }
        _ => false,
    };
    let sizes_known = input.elements().is_some_and(|elements| elements.as_const().is_some());
    let same = graph.tensor(id).is_some_and(|output| output.shape == input.shape);
    sizes_known && same && args.positional.len() == 3 && even(args.positional.get(1)) && even(args.positional.get(2))
}

/// The options that keep collectives out.
struct Filter<'a> {
    options: &'a BucketOptions,
    /// For the FSDP filter: whether each node passes, by arena index.
    fsdp: Option<Vec<bool>>,
}

impl<'a> Filter<'a> {
    fn of(graph: &Graph, options: &'a BucketOptions) -> Self {
        let fsdp = match options.kind {
            BucketKind::AllGather if options.fsdp_only => Some(from_one_parameter(graph)),
            BucketKind::ReduceScatter if options.fsdp_only => Some(only_to_outputs(graph)),
            _ => None,
        };
        Self { options, fsdp }
    }

    fn check(&self, graph: &Graph, id: NodeId) -> Result<(), Reason> {
        let name = graph.name_of(id);
        let group = graph.collective(id).map_or("", |c| &graph.group(c.group).name);
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches_pattern(pattern, name));
        if !self.options.groups.is_empty() && !self.options.groups.iter().any(|wanted| wanted == group) {
            return Err(Reason::Filtered { by: "the group filter" });
        }
        if (!self.options.names.is_empty() && !any(&self.options.names)) || any(&self.options.except) {
            return Err(Reason::Filtered { by: "the name filter" });
        }
        if !self.options.in_loops && in_loop(graph, graph.node(id).region) {
            return Err(Reason::InLoop);
        }
        match &self.fsdp {
            Some(passes) if !passes[id.index()] => Err(Reason::Filtered { by: "the FSDP filter" }),
            _ => Ok(()),
        }
    }
}

fn in_loop(graph: &Graph, mut region: RegionId) -> bool {
    while region != RegionId::ROOT {
        if graph.region(region).kind == RegionKind::Loop {
            return true;
        }
        region = graph.region(region).parent;
    }
    false
}

/// Names under which tracers pass data and gradients rather than parameters.
const NOT_PARAMETERS: &[&str] =
    &["tangents", "activation", "input", "hidden", "grad", "batch", "token", "target", "label"];

/// Nodes that depend on exactly one input, and that one may be a parameter.
fn from_one_parameter(graph: &Graph) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum From {
        None,
        One(NodeId),
        Many,
    }
    let mut from = vec![From::None; graph.arena_len()];
    for &id in graph.order() {
        from[id.index()] = if graph.node(id).op == Op::Input {
            From::One(id)
        } else {
            graph.operands(id).iter().fold(From::None, |sum, operand| match (sum, from[operand.index()]) {
                (From::None, other) | (other, From::None) => other,
                (a, b) if a == b => a,
                _ => From::Many,
            })
        };
    }
    let parameter = |id: NodeId| !NOT_PARAMETERS.iter().any(|prefix| graph.name_of(id).starts_with(prefix));
    from.into_iter().map(|from| matches!(from, From::One(id) if parameter(id))).collect()
}

/// Nodes whose value reaches nothing but outputs, through operators of one operand.
fn only_to_outputs(graph: &Graph) -> Vec<bool> {
    let mut passes = vec![true; graph.arena_len()];
    for &id in graph.order().iter().rev() {
        let operands = graph.operands(id);
        let is_output = graph.node(id).op == Op::Output;
        let unary = operands.windows(2).all(|pair| pair[0] == pair[1]);
        let passes_on = is_output || (unary && passes[id.index()]);
        if !passes_on {
            for operand in operands {
                passes[operand.index()] = false;
            }
        }
    }
    passes
}

/// Steps all searches for paths of one plan may take together, and the longest path that is written out.
const PATH_BUDGET: usize = 2_000_000;
const LONGEST_PATH: usize = 12;

/// Turns outcomes into remarks.
struct Remarks<'a> {
    view: &'a View<'a>,
    buckets: &'a [Vec<usize>],
    budget: usize,
    /// By slot: bucket + 1, or 0; made when a path is first asked for.
    group_of: Option<Vec<u32>>,
}

impl Remarks<'_> {
    fn all(mut self, outcomes: &IndexMap<NodeId, Result<usize, Refusal>>) -> Vec<Remark> {
        let graph = self.view.graph;
        let view = self.view;
        let mut remarks = Vec::with_capacity(view.seen.len());
        for (nth, (id, excluded)) in view.seen.iter().enumerate() {
            let decision = match (excluded, outcomes.get(id)) {
                (Some(reason), _) => Decision::Alone(reason.clone()),
                (None, Some(Ok(bucket))) => Decision::Merged { bucket: *bucket },
                (None, Some(Err(refusal))) => Decision::Alone(self.reason(nth, *id, *refusal)),
                (None, None) => Decision::Alone(Reason::NoPartner),
            };
            let group = graph.collective(*id).map_or("", |c| &graph.group(c.group).name);
            remarks.push(Remark {
                node: *id,
                name: graph.name_of(*id).to_owned(),
                group: group.to_owned(),
                bytes: collective_bytes(graph, *id),
                decision,
            });
        }
        remarks
    }

    fn reason(&mut self, nth: usize, id: NodeId, refusal: Refusal) -> Reason {
        let slot = self.view.dependencies.slot_of(id);
        let name = |slot: usize| self.view.graph.name_of(self.view.node(slot)).to_owned();
        match refusal {
            Refusal::Oversize { cap_bytes } => {
                Reason::Oversize { bytes: self.view.entry(slot).bytes.unwrap_or(0), cap_bytes }
            }
            Refusal::SizeUnknown => Reason::SizeUnknown,
            Refusal::CapReached { other } => Reason::CapReached { other: name(other) },
            Refusal::NotAdjacent => Reason::NotAdjacent,
            Refusal::Dependent { other } => {
                let (path, because) = self.path(other.min(slot), other.max(slot));
                Reason::Dependent { other: name(other), path, because }
            }
            Refusal::NoPartner => self.nearest(nth, slot),
        }
    }

    /// The nearest other candidate, and in what its key differs.
    fn nearest(&self, nth: usize, slot: usize) -> Reason {
        let candidate = |at: usize| {
            let (id, excluded) = &self.view.seen[at];
            excluded.is_none().then_some(*id)
        };
        // A few steps each way: a remark is not worth a walk over the whole graph.
        let near = (1..=64).flat_map(|step| [nth.checked_sub(step), Some(nth + step)]).flatten();
        let found = near.filter(|&at| at < self.view.seen.len()).find_map(candidate);
        match found {
            Some(other) => {
                let other_key = self.view.entry(self.view.dependencies.slot_of(other)).key;
                let fields = self.view.entry(slot).key.differences(&other_key);
                Reason::KeyDiffers { from: self.view.graph.name_of(other).to_owned(), fields }
            }
            None => Reason::NoPartner,
        }
    }

    /// A shortest path from `first` or its bucket to `last`, going through buckets as through one node.
    fn path(&mut self, first: usize, last: usize) -> (Vec<String>, Order) {
        let dependencies = self.view.dependencies;
        let group_of = self.group_of.get_or_insert_with(|| {
            let mut group_of = vec![0; dependencies.slots().len()];
            for (number, members) in self.buckets.iter().enumerate() {
                members.iter().for_each(|&slot| group_of[slot] = number as u32 + 1);
            }
            group_of
        });
        let goal = group_of[first];
        let arrived = |slot: usize| slot == first || (goal != 0 && group_of[slot] == goal);
        // From each slot found, the slot nearer to `last` and why that one comes after it.
        let mut next = hashbrown::HashMap::<usize, (usize, Order), rustc_hash::FxBuildHasher>::default();
        let mut queue = VecDeque::from([last]);
        next.insert(last, (last, Order::Data));
        while let Some(slot) = queue.pop_front() {
            let bucket = match group_of[slot] {
                0 => &[][..],
                number if slot != last => &self.buckets[number as usize - 1][..],
                _ => &[],
            };
            let around = dependencies.before_with_reason(slot).chain(bucket.iter().map(|&other| (other, Order::Data)));
            for (before, why) in around {
                self.budget = self.budget.saturating_sub(1);
                if next.contains_key(&before) {
                    continue;
                }
                next.insert(before, (slot, why));
                if arrived(before) {
                    return spell(self.view, before, last, &next);
                }
                queue.push_back(before);
            }
            if self.budget == 0 {
                break;
            }
        }
        (Vec::new(), Order::Data)
    }
}

/// Writes a path out.
fn spell(
    view: &View<'_>,
    from: usize,
    to: usize,
    next: &hashbrown::HashMap<usize, (usize, Order), rustc_hash::FxBuildHasher>,
) -> (Vec<String>, Order) {
    let (mut path, mut because, mut at) = (Vec::new(), Order::Data, from);
    loop {
        if let Some(id) = view.dependencies.node(at) {
            path.push(view.graph.name_of(id).to_owned());
        }
        if at == to {
            break;
        }
        let (after, why) = next[&at];
        because = because.max(why);
        at = after;
    }
    if path.len() > LONGEST_PATH {
        let tail = path.split_off(path.len() - LONGEST_PATH / 2);
        path.truncate(LONGEST_PATH / 2);
        path.push("...".to_owned());
        path.extend(tail);
    }
    (path, because)
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("all_gather*", "all_gather_into_tensor_3", true),
            ("*_3", "all_gather_33", false),
            ("a?c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b", "axxc", false),
            ("", "a", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }
}
