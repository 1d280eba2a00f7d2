//! How to rewrite: a plan applied to its graph.
//!
//! In mode `concat` a bucket becomes pack, one collective, wait, unpack, in plain ATen operators:
//!
//! | kind | pack | unpack of member i |
//! |---|---|---|
//! | all-gather | members flat, end to end | columns of `[group, total]`, one copy each |
//! | reduce-scatter | `[group, n_i]` side by side, so that chunk r of every member lies together | a slice |
//! | all-reduce, broadcast | members flat, end to end | a slice |
//! | all-to-all | as a reduce-scatter | as an all-gather |
//!
//! Gathers of several dtypes travel as bytes: each member starts at a multiple of its element size, and so does each
//! rank's row. A gather along an inner dimension is gathered flat and permuted when it is unpacked; a scatter along one
//! is permuted when it is packed. Members without elements take no part; their results are made empty.
//!
//! In mode `coalesced` the members' tensors go into one coalesced collective as they are.
//!
//! The node that waited for a member becomes the one that unpacks it, under its old name and type, so readers are left
//! untouched. The merged wait stands where the first member's result is needed. No rank number appears: the graph is the
//! same on every rank.
//!
//! Results of scatters, reduces and broadcasts are slices of one buffer. With [`Unpack::Auto`] a result that is written
//! later or leaves the graph is copied out, so that no write shows in a neighbour and no output keeps others alive.

mod pack;
mod unpack;

use super::bucketing::{Bucket, BucketPlan, Member, Mode, Unpack};
use super::control::move_control;
use super::emit::Emitter;
use super::filter::reads_size_only;
use super::order::{Adjusted, Cycle, Members, Place, Reordering, reorder};
use crate::ir::{Arg, Args, Collective, CollectiveKind, Dependencies, Dim, Graph, Meta, NodeId, Op, Order, Slot, Type};
use indexmap::IndexSet;

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeReport {
    /// The merged launches, one for each bucket of the plan that has any bytes.
    pub launches: Vec<NodeId>,
    /// Nodes that changed their place relative to the rest.
    pub moved: usize,
    /// Results that are copied out of a buffer that others share.
    pub copied: usize,
    /// Soft control edges that stood in the way and were given up, by the names of both ends.
    pub dropped_wishes: Vec<(String, String)>,
}

/// Why a plan cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The plan was not made for this graph, or was edited: its merges close a loop.
    #[error("merging {members:?} would make a node depend on itself; plan again for this graph")]
    Cycle {
        /// Names of the members of a bucket on the loop.
        members: Vec<String>,
    },
    /// The sizes of a bucket's members have no sum that fits.
    #[error("the sizes of {members:?} do not add up to anything that fits in 64 bits; set a cap")]
    Size {
        /// Names of the members.
        members: Vec<String>,
    },
}

/// Applies a plan. The graph must be the one the plan and `dependencies` were made for.
///
/// Cost: near-linear in nodes and edges, for all buckets together.
///
/// # Errors
/// [`MergeError`] for a plan that [`plan`](super::bucketing::plan) did not make for this graph, or whose symbolic
/// sizes do not fit; the graph is unchanged then.
pub fn merge(graph: &mut Graph, dependencies: &Dependencies, plan: &BucketPlan) -> Result<MergeReport, MergeError> {
    merge_at(graph, dependencies, plan, None)
}

/// As [`merge`], with launches at a place of one's own. Where a schedule is kept, they stand at the last member all the
/// same.
///
/// # Errors
/// As [`merge`].
pub fn merge_at(
    graph: &mut Graph,
    dependencies: &Dependencies,
    plan: &BucketPlan,
    place: Option<Place>,
) -> Result<MergeReport, MergeError> {
    merging_at(graph, dependencies, plan, place).map(|merging| merging.report)
}

/// What a merge did, and where.
#[derive(Default)]
pub(super) struct Merging {
    pub(super) report: MergeReport,
    /// By bucket: its launch, if it has any bytes.
    pub(super) launches: Vec<Option<NodeId>>,
    /// The nodes that changed their place relative to the rest.
    pub(super) moved: Vec<NodeId>,
}

/// As [`merge_at`], and says what it did where.
pub(super) fn merging_at(
    graph: &mut Graph,
    dependencies: &Dependencies,
    plan: &BucketPlan,
    place: Option<Place>,
) -> Result<Merging, MergeError> {
    if plan.buckets.is_empty() {
        return Ok(Merging::default());
    }
    check_sums(graph, plan)?;
    let readers = SizeReaders::of(graph, &plan.buckets);
    let (slots, bucket_of) = slots_of(graph, dependencies, plan);
    let place = place_of(dependencies, plan, place);
    let order = reorder(dependencies, &slots, &readers.adjusted(dependencies), place);
    let order = order.map_err(|Cycle { bucket }| MergeError::Cycle {
        members: plan.buckets[bucket_of[bucket]]
            .members
            .iter()
            .map(|m| graph.name_of(m.collective).to_owned())
            .collect(),
    })?;
    Ok(merge_in_order(graph, dependencies, plan, readers, &order))
}

/// Where the launches of a plan go, if a place of one's own was asked for or not.
pub(super) fn place_of(dependencies: &Dependencies, plan: &BucketPlan, own: Option<Place>) -> Place {
    match (dependencies.keeps_schedule(), own) {
        (true, _) => Place::Last,
        (false, Some(place)) => place,
        (false, None) if late(plan) => Place::BestOrLast,
        (false, None) => Place::BestOrFirst,
    }
}

/// Applies a plan whose sums are checked, with its launches in the places that `order` gives them.
pub(super) fn merge_in_order(
    graph: &mut Graph,
    dependencies: &Dependencies,
    plan: &BucketPlan,
    readers: SizeReaders,
    order: &Reordering,
) -> Merging {
    let mut rewrite = Rewrite::new(graph, dependencies, plan, readers, order.slots.len());
    rewrite.run(dependencies, order);
    rewrite.finish(order.moved.iter().filter_map(|&slot| dependencies.node(slot)).collect())
}

/// The slots of each bucket's members, in pack order, and the bucket of each of these lists. Where nothing is launched,
/// nothing needs to move: there each member stands for itself.
fn slots_of(graph: &Graph, dependencies: &Dependencies, plan: &BucketPlan) -> (Vec<Members>, Vec<usize>) {
    let slot = |member: &Member| dependencies.slot_of(member.collective);
    let (mut slots, mut bucket_of) = (Vec::with_capacity(plan.buckets.len()), Vec::with_capacity(plan.buckets.len()));
    for (index, bucket) in plan.buckets.iter().enumerate() {
        if plan.options.mode == Mode::Coalesced || bucket.members.iter().any(|member| pack::travels(graph, member)) {
            slots.push(bucket.members.iter().map(slot).collect());
        } else {
            slots.extend(bucket.members.iter().map(|member| vec![slot(member)]));
        }
        bucket_of.resize(slots.len(), index);
    }
    (slots, bucket_of)
}

/// Whether launches of the plan's kind stand at their last member where the better place is not worth finding.
pub(super) fn late(plan: &BucketPlan) -> bool {
    let kind = plan.buckets.first().map(|bucket| bucket.key.kind);
    !matches!(kind, Some(CollectiveKind::AllGather { .. } | CollectiveKind::Broadcast { .. }))
}

/// Readers of members' sizes, which will read the size from the member's input instead.
pub(super) struct SizeReaders {
    /// By reader: what the member does, and its input. (In mode `coalesced` the member's node changes its meaning.)
    of: hashbrown::HashMap<NodeId, (Collective, NodeId), rustc_hash::FxBuildHasher>,
    /// The same in program order: member, reader and the member's input.
    list: Vec<(NodeId, NodeId, NodeId)>,
    /// Other readers of the collective itself, below its wait, which will read the unpacked result: collective, wait
    /// and reader.
    below: Vec<(NodeId, NodeId, NodeId)>,
}

impl SizeReaders {
    pub(super) fn of(graph: &Graph, buckets: &[Bucket]) -> Self {
        let mut wait_of = vec![None; graph.arena_len()];
        for member in buckets.iter().flat_map(|bucket| &bucket.members) {
            wait_of[member.collective.index()] = Some(member.wait);
        }
        // What a member sends may be another member, named directly below its wait: then the size is its result's.
        let input = |collective: NodeId| {
            let named = graph.collective_inputs(collective)[0];
            wait_of[named.index()].unwrap_or(named)
        };
        let mut readers = Self { of: hashbrown::HashMap::default(), list: Vec::new(), below: Vec::new() };
        for &id in graph.order() {
            for &operand in graph.operands(id) {
                let Some(wait) = wait_of[operand.index()].filter(|_| graph.node(id).op != Op::Wait) else { continue };
                if reads_size_only(graph, id)
                    && let Some(collective) = graph.collective(operand)
                {
                    readers.of.insert(id, (collective, input(operand)));
                    readers.list.push((operand, id, input(operand)));
                } else {
                    readers.below.push((operand, wait, id));
                }
            }
        }
        readers
    }

    /// What the merge changes in the order of the graph.
    pub(super) fn adjusted(&self, dependencies: &Dependencies) -> Adjusted {
        let mut adjusted = Adjusted::default();
        for &(collective, reader, input) in &self.list {
            let (from, to) = (dependencies.slot_of(collective), dependencies.slot_of(reader));
            // An order edge between the two stays.
            let data_alone = |(before, why)| before != from || why == Order::Data;
            if dependencies.before_with_reason(to).all(data_alone) {
                adjusted.without.insert((from as u32, to as u32));
            }
            adjusted.with.entry(to).or_default().push(dependencies.slot_of(input));
        }
        adjusted
    }
}

/// What is known of a bucket while its graph is rewritten.
#[derive(Clone, Default)]
struct Made {
    launch: Option<NodeId>,
    /// The tuple that members' parts are taken from; made at the first unpack.
    parts: Option<NodeId>,
    /// For each member: its index in the tuple, or `None` if it has no elements.
    index: Vec<Option<usize>>,
    /// Sizes of the parts in the tuple, in elements of the buffer.
    sizes: Vec<Part>,
    /// Ranks of the group.
    ranks: u64,
    /// Whether bytes travel, in rows of this many.
    row_bytes: Option<u64>,
    /// In mode `coalesced`, for each member that is gathered along another dimension than it was: its element of the launch,
    /// the dimension along which it is gathered, and the one along which it was.
    turned: Vec<Option<(NodeId, usize, usize)>>,
}

/// One part of a buffer.
#[derive(Clone)]
struct Part {
    elements: Dim,
    /// The tensor whose number of elements gives the size at run time.
    source: Option<NodeId>,
}

/// Whether a result that lies in a bucket's buffer is copied out of it.
pub(super) fn is_copied_out(dependencies: &Dependencies, unpack: Unpack, member: &Member) -> bool {
    match unpack {
        Unpack::Auto => dependencies.is_written(member.wait) || dependencies.escapes(member.wait),
        Unpack::Views => dependencies.is_written(member.wait) || dependencies.is_seen(member.wait),
        Unpack::Copies => true,
    }
}

struct Rewrite<'a> {
    emit: Emitter<'a>,
    plan: &'a BucketPlan,
    readers: SizeReaders,
    made: Vec<Made>,
    /// By arena index: bucket of a member collective, or `u32::MAX`.
    bucket_of: Vec<u32>,
    /// By arena index of a wait: bucket and member.
    unpacks: Vec<Option<(u32, u32)>>,
    /// For each bucket and member: whether the result must be copied out.
    copies: Vec<Vec<bool>>,
    copied: usize,
}

impl<'a> Rewrite<'a> {
    fn new(
        graph: &'a mut Graph,
        dependencies: &Dependencies,
        plan: &'a BucketPlan,
        readers: SizeReaders,
        capacity: usize,
    ) -> Self {
        let mut bucket_of = vec![u32::MAX; graph.arena_len()];
        let mut unpacks = vec![None; graph.arena_len()];
        for (index, bucket) in plan.buckets.iter().enumerate() {
            for (nth, member) in bucket.members.iter().enumerate() {
                bucket_of[member.collective.index()] = index as u32;
                unpacks[member.wait.index()] = Some((index as u32, nth as u32));
            }
        }
        let copy = |member: &Member| is_copied_out(dependencies, plan.options.unpack, member);
        let copies = plan.buckets.iter().map(|bucket| bucket.members.iter().map(copy).collect()).collect();
        let made = vec![Made::default(); plan.buckets.len()];
        let emit = Emitter::new(graph, capacity + capacity / 4);
        Self { emit, plan, readers, made, bucket_of, unpacks, copies, copied: 0 }
    }

    fn run(&mut self, dependencies: &Dependencies, order: &Reordering) {
        // In mode `coalesced` the member's name lives on as an element of the list, and its wait with it. Before all
        // else, since a reader may be a member itself, and what it reads is packed.
        if self.plan.options.mode == Mode::Concat || self.plan.options.by_dim == Some(false) {
            for &(collective, wait, reader) in &self.readers.below {
                let operands = self.emit.graph.operands_mut(reader).iter_mut();
                operands.filter(|operand| **operand == collective).for_each(|operand| *operand = wait);
            }
        }
        for &slot in &order.slots {
            let Slot::Node(id) = dependencies.slots()[slot] else { continue };
            self.emit.region = self.emit.graph.node(id).region;
            let bucket = self.bucket_of[id.index()];
            if bucket != u32::MAX {
                self.launch(bucket as usize);
            } else if let Some((bucket, member)) = self.unpacks[id.index()] {
                self.unpack(bucket as usize, member as usize);
            } else if let Some(&(collective, input)) = self.readers.of.get(&id) {
                self.read_size(id, collective, input);
            } else {
                self.emit.order.push(id);
            }
        }
    }

    fn finish(self, moved: Vec<NodeId>) -> Merging {
        let Self { emit, made, bucket_of, copied, .. } = self;
        let Emitter { graph, order, .. } = emit;
        graph.set_order(order);
        let launches: Vec<Option<NodeId>> = made.iter().map(|made| made.launch).collect();
        let launch_of = |id: NodeId| match bucket_of.get(id.index()) {
            Some(&bucket) if bucket != u32::MAX => made[bucket as usize].launch.unwrap_or(id),
            _ => id,
        };
        let dropped_wishes = move_control(graph, launch_of);
        let merged = launches.iter().copied().flatten().collect();
        let report = MergeReport { launches: merged, moved: moved.len(), copied, dropped_wishes };
        Merging { report, launches, moved }
    }

    /// Gives a reader of a member's size the size of the member's input, multiplied or divided as the collective does.
    fn read_size(&mut self, id: NodeId, collective: Collective, input: NodeId) {
        let graph = &self.emit.graph;
        let ranks = graph.group(collective.group).size.map_or(1, u64::from);
        let args = graph.args_of(id).clone();
        let rank = graph.tensor(input).map_or(0, |t| t.shape.len() as i64);
        let dim = args.positional.get(1).and_then(Arg::as_int).map(|dim| if dim < 0 { dim + rank } else { dim });
        let touches = |along: u32| dim.is_none_or(|dim| dim == i64::from(along));
        // A gather of single elements makes a dimension that its input has not.
        let scalar = rank == 0;
        let operator = match collective.kind {
            CollectiveKind::AllGather { dim } if touches(dim) => Some("operator.mul"),
            CollectiveKind::ReduceScatter { dim, .. } if touches(dim) => Some("operator.floordiv"),
            _ => None,
        };
        let target = graph.target_of(id).to_owned();
        let Some(operator) = operator.filter(|_| ranks != 1) else {
            self.emit.become_call(id, &target, args, &[input]);
            return;
        };
        let ty = graph.type_of(input).as_tensor().and_then(|t| match dim {
            Some(dim) => t.shape.get(dim as usize).and_then(Dim::to_expr),
            None => t.elements().and_then(|e| e.to_expr()),
        });
        let ty = ty.map_or(Type::Unknown, Type::SymInt);
        let (target, args) = if scalar {
            ("aten.sym_numel.default".to_owned(), Args::positional(vec![Arg::Operand(0)]))
        } else {
            (target, args)
        };
        let stem = if target.contains("sym_numel") { "sym_numel" } else { "sym_size_int" };
        let size = self.emit.call(&target, stem, ty, args, &[input]);
        let by = Args::positional(vec![Arg::Operand(0), Arg::Int(ranks as i64)]);
        self.emit.become_call(id, operator, by, &[size]);
    }

    fn ranks(&self, collective: NodeId) -> u64 {
        let graph = &self.emit.graph;
        let stated = graph.collective(collective).and_then(|c| graph.group(c.group).size).map(u64::from);
        stated.unwrap_or(1)
    }

    fn launch(&mut self, index: usize) {
        let bucket = &self.plan.buckets[index];
        let ranks = self.ranks(bucket.members[0].collective);
        if self.plan.options.mode == Mode::Concat && self.inputs(bucket).0.is_empty() {
            // Nothing travels, so nothing is launched: the shapes are the same on every rank.
            self.made[index].index = vec![None; bucket.members.len()];
            return;
        }
        let made = match (self.plan.options.mode, bucket.key.kind) {
            (Mode::Coalesced, _) => self.coalesce(bucket),
            (Mode::Concat, CollectiveKind::AllGather { .. }) => self.pack_gather(bucket, ranks),
            (Mode::Concat, CollectiveKind::ReduceScatter { .. }) => self.pack_scatter(bucket, ranks),
            (Mode::Concat, CollectiveKind::AllToAll) => self.pack_exchange(bucket, ranks),
            (Mode::Concat, _) => self.pack_flat(bucket),
        };
        let meta = merged_meta(self.emit.graph, bucket);
        if let Some(launch) = made.launch {
            self.emit.graph.set_meta(launch, meta);
        }
        self.made[index] = made;
    }
}

fn sum(parts: &[Part]) -> Dim {
    let total = parts.iter().try_fold(Dim::Const(0), |sum, part| sum.checked_add(&part.elements));
    total.expect("the sum of a bucket's members is checked to fit beforehand")
}

/// Refuses buckets whose symbolic sizes have no sum; sums of known sizes are checked by the selection.
pub(super) fn check_sums(graph: &Graph, plan: &BucketPlan) -> Result<(), MergeError> {
    for bucket in &plan.buckets {
        let ranks = graph.group(bucket.key.group).size.map_or(1, u64::from);
        let total = bucket.members.iter().try_fold(Dim::Const(0), |sum, member| {
            let input = graph.tensor(*graph.collective_inputs(member.collective).first()?)?;
            sum.checked_add(&input.bytes()?.checked_mul(&Dim::Const(ranks))?)
        });
        if total.is_none() {
            let members = bucket.members.iter().map(|m| graph.name_of(m.collective).to_owned()).collect();
            return Err(MergeError::Size { members });
        }
    }
    Ok(())
}

/// Metadata of a merged collective: the boundary the members share, all their sources, all their names.
fn merged_meta(graph: &Graph, bucket: &Bucket) -> Meta {
    let mut sources = IndexSet::new();
    for member in &bucket.members {
        sources.extend(graph.meta_of(member.collective).sources.iter().cloned());
    }
    let name = |member: &Member| graph.name_of(member.collective).into();
    Meta {
        key: graph.meta_of(bucket.members[0].collective).key.clone(),
        sources: sources.into_iter().collect(),
        members: bucket.members.iter().map(name).collect(),
        pending: false,
        sync: bucket.members.iter().all(|member| graph.meta_of(member.collective).sync),
    }
}
