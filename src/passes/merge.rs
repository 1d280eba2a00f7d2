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

use super::bucketing::{Bucket, BucketPlan, Member, MixedDtype, Mode, Unpack};
use super::control::move_control;
use super::emit::{Emitter, Scale, Shape, stems};
use super::filter::reads_size_only;
use super::order::{Adjusted, Cycle, Reordering, reorder};
use crate::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Dependencies, Dim, Dims, Graph, Meta, NodeId, Op, Slot, TensorType,
    Type, Variant,
};
use indexmap::IndexSet;

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    if plan.buckets.is_empty() {
        return Ok(MergeReport::default());
    }
    check_sums(graph, plan)?;
    let readers = SizeReaders::of(graph, &plan.buckets);
    let adjusted = readers.adjusted(dependencies);
    let slot = |member: &Member| dependencies.slot_of(member.collective);
    let slots: Vec<Vec<usize>> = plan.buckets.iter().map(|bucket| bucket.members.iter().map(slot).collect()).collect();
    let kind = plan.buckets[0].key.kind;
    let late = !matches!(kind, CollectiveKind::AllGather { .. } | CollectiveKind::Broadcast { .. });
    let order = reorder(dependencies, &slots, &adjusted, late).map_err(|Cycle { bucket }| MergeError::Cycle {
        members: plan.buckets[bucket].members.iter().map(|m| graph.name_of(m.collective).to_owned()).collect(),
    })?;
    let mut rewrite = Rewrite::new(graph, dependencies, plan, readers, order.slots.len());
    rewrite.run(dependencies, &order);
    Ok(rewrite.finish(order.moved))
}

/// Readers of members' sizes, which will read the size from the member's input instead.
struct SizeReaders {
    /// By reader: what the member does, and its input. (In mode `coalesced` the member's node changes its meaning.)
    of: hashbrown::HashMap<NodeId, (Collective, NodeId), rustc_hash::FxBuildHasher>,
    /// The same in program order: member, reader and the member's input.
    list: Vec<(NodeId, NodeId, NodeId)>,
    /// Other readers of the collective itself, below its wait, which will read the unpacked result: collective, wait
    /// and reader.
    below: Vec<(NodeId, NodeId, NodeId)>,
}

impl SizeReaders {
    fn of(graph: &Graph, buckets: &[Bucket]) -> Self {
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

    fn adjusted(&self, dependencies: &Dependencies) -> Adjusted {
        let mut adjusted = Adjusted::default();
        for &(collective, reader, input) in &self.list {
            let (from, to) = (dependencies.slot_of(collective), dependencies.slot_of(reader));
            adjusted.without.insert((from as u32, to as u32));
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
}

/// One part of a buffer.
#[derive(Clone)]
struct Part {
    elements: Dim,
    /// The tensor whose number of elements gives the size at run time.
    source: Option<NodeId>,
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
        let copy = |member: &Member| match plan.options.unpack {
            Unpack::Auto => dependencies.is_written(member.wait) || dependencies.escapes(member.wait),
            Unpack::Views => dependencies.is_written(member.wait),
            Unpack::Copies => true,
        };
        let copies = plan.buckets.iter().map(|bucket| bucket.members.iter().map(copy).collect()).collect();
        let made = vec![Made::default(); plan.buckets.len()];
        let emit = Emitter::new(graph, capacity + capacity / 4);
        Self { emit, plan, readers, made, bucket_of, unpacks, copies, copied: 0 }
    }

    fn run(&mut self, dependencies: &Dependencies, order: &Reordering) {
        // In mode `coalesced` the member's name lives on as an element of the list, and its wait with it. Before all
        // else, since a reader may be a member itself, and what it reads is packed.
        if self.plan.options.mode == Mode::Concat {
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

    fn finish(self, moved: usize) -> MergeReport {
        let Self { emit, made, bucket_of, copied, .. } = self;
        let Emitter { graph, order, .. } = emit;
        graph.set_order(order);
        let launches: Vec<NodeId> = made.iter().filter_map(|made| made.launch).collect();
        let launch_of = |id: NodeId| match bucket_of.get(id.index()) {
            Some(&bucket) if bucket != u32::MAX => made[bucket as usize].launch.unwrap_or(id),
            _ => id,
        };
        let dropped_wishes = move_control(graph, launch_of);
        MergeReport { launches, moved, copied, dropped_wishes }
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

    /// The members' inputs that have elements, with the index each gets among the parts.
    fn inputs(&self, bucket: &Bucket) -> (Vec<(NodeId, NodeId)>, Vec<Option<usize>>) {
        let graph = &self.emit.graph;
        let (mut inputs, mut index) = (Vec::new(), Vec::new());
        for member in &bucket.members {
            let input = graph.collective_inputs(member.collective)[0];
            // Where another size is only known at run time, the empty result has to be made from the buffer.
            let known = graph.tensor(member.wait).is_some_and(|ty| ty.shape.iter().all(|dim| dim.as_const().is_some()));
            let empty = known && graph.tensor(input).and_then(TensorType::elements) == Some(Dim::Const(0));
            index.push((!empty).then_some(inputs.len()));
            if !empty {
                inputs.push((input, member.collective));
            }
        }
        (inputs, index)
    }

    /// The collective of the first member, on another tensor.
    fn relaunch(&mut self, bucket: &Bucket, packed: NodeId, ty: TensorType) -> NodeId {
        let first = bucket.members[0].collective;
        let graph = &self.emit.graph;
        let args = graph.args_of(first).clone();
        let mut operands = graph.operands(first).to_vec();
        operands[0] = packed;
        let group = bucket.key.group;
        let op = Collective { kind: bucket.key.kind, group, variant: Variant::Functional, coalesced: false };
        self.emit.node(Op::Collective(op), stems(bucket.key.kind).0, Type::Tensor(ty), args, &operands)
    }

    fn flat(&mut self, tensor: NodeId) -> NodeId {
        let ty = self.emit.tensor(tensor);
        let elements = elements_of(&ty);
        // One dimension, so its size follows from the others and needs no tensor to read it from.
        self.emit
            .reshape(tensor, &Shape { dims: [elements].into_iter().collect(), from: (tensor, vec![(0, Scale::Same)]) })
    }

    fn pack_flat(&mut self, bucket: &Bucket) -> Made {
        let (inputs, index) = self.inputs(bucket);
        self.pack_end_to_end(bucket, &inputs, index, 1)
    }

    fn pack_gather(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let dtypes: IndexSet<DType> = inputs.iter().map(|&(input, _)| self.emit.tensor(input).dtype).collect();
        if self.plan.options.mixed_dtype == MixedDtype::Bytes && dtypes.len() > 1 {
            return self.pack_bytes(bucket, &inputs, index, ranks);
        }
        self.pack_end_to_end(bucket, &inputs, index, ranks)
    }

    /// Packs members flat, one after the other; the collective's result is `ranks` times as long.
    fn pack_end_to_end(
        &mut self,
        bucket: &Bucket,
        inputs: &[(NodeId, NodeId)],
        index: Vec<Option<usize>>,
        ranks: u64,
    ) -> Made {
        let (mut parts, mut sizes) = (Vec::with_capacity(inputs.len()), Vec::with_capacity(inputs.len()));
        for &(input, _) in inputs {
            parts.push(self.flat(input));
            sizes.push(Part { elements: elements_of(&self.emit.tensor(input)), source: Some(input) });
        }
        let total = sum(&sizes);
        let ty = self.vector(inputs[0].0, total.clone());
        let packed = self.emit.cat(&parts, 0, ty);
        let ty = self.vector(inputs[0].0, times(&total, ranks));
        let launch = self.relaunch(bucket, packed, ty);
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None }
    }

    /// Packs members of several dtypes as bytes, each at a multiple of its element size.
    fn pack_bytes(
        &mut self,
        bucket: &Bucket,
        inputs: &[(NodeId, NodeId)],
        mut index: Vec<Option<usize>>,
        ranks: u64,
    ) -> Made {
        let (mut parts, mut sizes, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let (mut offset, mut widest) = (0u64, 1u64);
        let model = TensorType { dtype: DType::U8, ..self.emit.tensor(inputs[0].0) };
        let pad = |emit: &mut Emitter<'_>, parts: &mut Vec<NodeId>, sizes: &mut Vec<Part>, bytes: u64| {
            if bytes > 0 {
                parts.push(emit.zeros(model.with_shape([Dim::Const(bytes)].into_iter().collect())));
                sizes.push(Part { elements: Dim::Const(bytes), source: None });
            }
        };
        for &(input, _) in inputs {
            let ty = self.emit.tensor(input);
            let width = ty.dtype.bytes();
            let bytes = ty.bytes().and_then(|b| b.as_const()).expect("only members of known size travel as bytes");
            pad(&mut self.emit, &mut parts, &mut sizes, offset.next_multiple_of(width) - offset);
            offset = offset.next_multiple_of(width) + bytes;
            widest = widest.max(width);
            places.push(parts.len());
            let flat = self.flat(input);
            parts.push(self.emit.bit_cast(flat, DType::U8));
            sizes.push(Part { elements: Dim::Const(bytes), source: None });
        }
        let row = offset.next_multiple_of(widest);
        pad(&mut self.emit, &mut parts, &mut sizes, row - offset);
        for place in index.iter_mut().flatten() {
            *place = places[*place];
        }
        let vector = |elements: u64| model.with_shape([Dim::Const(elements)].into_iter().collect());
        let packed = self.emit.cat(&parts, 0, vector(row));
        let launch = self.relaunch(bucket, packed, vector(row.saturating_mul(ranks)));
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: Some(row) }
    }

    fn pack_scatter(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let share = |emit: &Emitter<'_>, collective: NodeId| elements_of(&emit.tensor(collective));
        let (flat, sizes) = self.pack_by_rank(&inputs, ranks, share);
        let ty = self.vector(inputs[0].0, sum(&sizes));
        let launch = self.relaunch(bucket, flat, ty);
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None }
    }

    /// Packs what goes to each rank side by side; what comes back lies the same way, by sender.
    fn pack_exchange(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let share = |emit: &Emitter<'_>, collective: NodeId| {
            let all = elements_of(&emit.tensor(collective));
            all.divide_exactly(ranks).expect("candidates exchange equally much with each rank")
        };
        let (flat, sizes) = self.pack_by_rank(&inputs, ranks, share);
        let each = sum(&sizes).as_const().and_then(|each| i64::try_from(each).ok());
        let each = Arg::Int(each.expect("candidates exchange amounts that are known and fit"));
        let ty = self.emit.tensor(flat);
        let launch = self.relaunch(bucket, flat, ty);
        let mut args = self.emit.graph.args_of(launch).clone();
        for splits in &mut args.positional[1..] {
            *splits = Arg::List(vec![each.clone(); ranks as usize]);
        }
        let args = self.emit.graph.intern_args(args);
        self.emit.graph.node_mut(launch).args = args;
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None }
    }

    /// Packs members so that what goes to each rank lies together: rows by rank, `share` of each member in a row.
    fn pack_by_rank(
        &mut self,
        inputs: &[(NodeId, NodeId)],
        ranks: u64,
        share: impl Fn(&Emitter<'_>, NodeId) -> Dim,
    ) -> (NodeId, Vec<Part>) {
        let (mut parts, mut sizes) = (Vec::new(), Vec::new());
        for &(input, collective) in inputs {
            let share = share(&self.emit, collective);
            let rows = self.rank_rows(input, collective, ranks, share.clone());
            parts.push(rows);
            sizes.push(Part { elements: share, source: Some(input) });
        }
        let table = self.table(inputs[0].0, ranks, sum(&sizes));
        let packed = self.emit.cat(&parts, 1, table);
        (self.flat(packed), sizes)
    }

    /// A scatter's input as `[ranks, share]`: row r is what rank r gets.
    fn rank_rows(&mut self, input: NodeId, collective: NodeId, ranks: u64, share: Dim) -> NodeId {
        let dim = match self.emit.graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::ReduceScatter { dim, .. }) => dim as usize,
            _ => 0,
        };
        let table = |tensor: NodeId| Shape {
            dims: [Dim::Const(ranks), share.clone()].into_iter().collect(),
            from: (tensor, vec![(0, Scale::Same); 2]),
        };
        if dim == 0 {
            return self.emit.reshape(input, &table(input));
        }
        // [.., ranks * n, ..] as [.., ranks, n, ..], with the ranks moved to the front.
        let ty = self.emit.tensor(input);
        let mut dims = ty.shape.clone();
        dims[dim] = dims[dim].divide_exactly(ranks).unwrap_or_else(|| dims[dim].clone());
        dims.insert(dim, Dim::Const(ranks));
        let from = (0..dims.len())
            .map(|at| (at - usize::from(at > dim), if at == dim + 1 { Scale::Over(ranks) } else { Scale::Same }))
            .collect();
        let split = self.emit.reshape(input, &Shape { dims, from: (input, from) });
        let mut order: Vec<usize> = (0..=ty.shape.len()).filter(|&at| at != dim).collect();
        order.insert(0, dim);
        let moved = self.emit.permute(split, &order);
        self.emit.reshape(moved, &table(moved))
    }

    fn coalesce(&mut self, bucket: &Bucket) -> Made {
        let graph = &self.emit.graph;
        let first = bucket.members[0].collective;
        let inputs: Vec<NodeId> = bucket.members.iter().map(|m| graph.collective_inputs(m.collective)[0]).collect();
        let rest = &graph.operands(first)[1..];
        let args = with_list(graph.args_of(first), inputs.len() as u32);
        let operands: Vec<NodeId> = inputs.iter().chain(rest).copied().collect();
        let types = bucket.members.iter().map(|m| graph.type_of(m.collective).clone()).collect();
        let op =
            Collective { kind: bucket.key.kind, group: bucket.key.group, variant: bucket.key.variant, coalesced: true };
        let stem = stems(bucket.key.kind).0;
        let launch = self.emit.node(Op::Collective(op), stem, Type::Tuple(types), args, &operands);
        for (index, member) in bucket.members.iter().enumerate() {
            self.emit.become_item(member.collective, launch, index);
        }
        Made { launch: Some(launch), ..Made::default() }
    }

    fn unpack(&mut self, index: usize, nth: usize) {
        let plan = self.plan;
        let bucket = &plan.buckets[index];
        let Member { wait, collective, .. } = bucket.members[nth];
        if plan.options.mode == Mode::Coalesced {
            self.emit.order.push(wait);
            return;
        }
        let Some(part) = self.made[index].index[nth] else {
            self.emit.become_empty(wait);
            return;
        };
        let parts = match self.made[index].parts {
            Some(parts) => parts,
            None => {
                let parts = self.split(index);
                self.made[index].parts = Some(parts);
                parts
            }
        };
        let made = One { ranks: self.made[index].ranks, bytes: self.made[index].row_bytes.is_some() };
        let copy = self.copies[index][nth];
        match bucket.key.kind {
            CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll => {
                self.unpack_gather(wait, collective, parts, part, &made, copy);
            }
            _ => self.unpack_slice(wait, collective, parts, part, copy),
        }
    }

    /// Waits for the buffer and cuts it into parts.
    fn split(&mut self, index: usize) -> NodeId {
        let bucket = &self.plan.buckets[index];
        let Made { launch, ranks, row_bytes, .. } = self.made[index];
        let sizes = std::mem::take(&mut self.made[index].sizes);
        let launch = launch.expect("a launch stands before its waits");
        let ty = self.emit.tensor(launch);
        let args = Args::positional(vec![Arg::Operand(0)]);
        let wait = self.emit.node(Op::Wait, stems(bucket.key.kind).1, Type::Tensor(ty), args, &[launch]);
        let gather = matches!(bucket.key.kind, CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll);
        let total = row_bytes.map_or_else(|| sum(&sizes), Dim::Const);
        let buffer = if gather {
            let dims: Dims = [Dim::Const(ranks), total].into_iter().collect();
            self.emit.reshape(wait, &Shape { dims, from: (wait, vec![(0, Scale::Same); 2]) })
        } else {
            wait
        };
        let divisor = if matches!(bucket.key.kind, CollectiveKind::ReduceScatter { .. }) { ranks } else { 1 };
        let mut operands = vec![buffer];
        let mut counts = Vec::with_capacity(sizes.len());
        let mut types = Vec::with_capacity(sizes.len());
        for part in &sizes {
            let source = part.source.unwrap_or(buffer);
            counts.push(self.emit.count(source, &part.elements, divisor, &mut operands));
            types.push(Type::Tensor(self.part_type(buffer, part, gather)));
        }
        let mut positional = vec![Arg::Operand(0), Arg::List(counts)];
        if gather {
            positional.push(Arg::Int(1));
        }
        let args = Args::positional(positional);
        self.emit.call("aten.split_with_sizes.default", "split_with_sizes", Type::Tuple(types), args, &operands)
    }

    /// The type of a part: a column of rows, or a slice.
    fn part_type(&self, buffer: NodeId, part: &Part, gather: bool) -> TensorType {
        let mut ty = self.emit.tensor(buffer);
        let last = ty.shape.len() - 1;
        debug_assert!(gather == (last == 1));
        // The part keeps the strides of the whole.
        if gather {
            ty.strides = ty.strides.clone().or_else(|| ty.dense_strides());
        }
        ty.shape[last] = part.elements.clone();
        ty
    }

    /// The type of one part of a tuple that `split` made.
    fn part_of(&self, parts: NodeId, part: usize) -> TensorType {
        let ty = match self.emit.graph.type_of(parts) {
            Type::Tuple(types) => types.get(part).and_then(Type::as_tensor),
            _ => None,
        };
        ty.cloned().expect("a bucket's buffer is split into tensors, one for each member")
    }

    fn unpack_gather(&mut self, wait: NodeId, collective: NodeId, parts: NodeId, part: usize, made: &One, copy: bool) {
        let out = self.emit.tensor(wait);
        let input = self.emit.graph.collective_inputs(collective)[0];
        let dim = match self.emit.graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::AllGather { dim }) => dim as usize,
            _ => 0,
        };
        let ty = self.part_of(parts, part);
        let mut value = self.emit.get_item(parts, part, ty);
        // Columns of the table lie apart, so a copy has to put them together. It is said as a clone: a reshape would look
        // like a view that shares the buffer, and where each rank gives a single row it would be one.
        if dim == 0 && (made.ranks > 1 || copy) || made.bytes {
            value = self.emit.clone(value);
            self.copied += usize::from(made.ranks == 1);
        }
        if made.bytes {
            value = self.emit.bit_cast(value, out.dtype);
        }
        if dim == 0 {
            let from = (0..out.shape.len())
                .map(|at| (at, if at == 0 { Scale::Times(made.ranks) } else { Scale::Same }))
                .collect();
            self.emit.become_reshape(wait, value, &Shape { dims: out.shape, from: (input, from) });
            return;
        }
        let mut dims = self.emit.tensor(input).shape;
        dims.insert(0, Dim::Const(made.ranks));
        let from = (0..dims.len()).map(|at: usize| (at.saturating_sub(1), Scale::Same)).collect();
        let stacked = self.emit.stack(value, &Shape { dims, from: (input, from) });
        let mut order: Vec<usize> = (1..=out.shape.len()).collect();
        order.insert(dim, 0);
        let moved = self.emit.permute(stacked, &order);
        let dense = self.emit.clone(moved);
        let from = (0..out.shape.len())
            .map(|at| (at, if at == dim { Scale::Times(made.ranks) } else { Scale::Same }))
            .collect();
        self.emit.become_reshape(wait, dense, &Shape { dims: out.shape, from: (input, from) });
    }

    fn unpack_slice(&mut self, wait: NodeId, collective: NodeId, parts: NodeId, part: usize, copy: bool) {
        let graph = &self.emit.graph;
        let out = self.emit.tensor(wait);
        let input = graph.collective_inputs(collective)[0];
        let in_place = graph.collective(collective).is_some_and(|c| c.variant == Variant::InPlace);
        let ty = self.part_of(parts, part);
        let divided = match graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::ReduceScatter { dim, .. }) => Some(dim as usize),
            _ => None,
        };
        let ranks = self.ranks(collective);
        let from = (0..out.shape.len())
            .map(|at| (at, if divided == Some(at) { Scale::Over(ranks) } else { Scale::Same }))
            .collect();
        let shape = Shape { dims: out.shape.clone(), from: (input, from) };
        let flat = out.shape.len() == 1;
        if flat && !copy && !in_place {
            self.emit.become_item(wait, parts, part);
            return;
        }
        let mut value = self.emit.get_item(parts, part, ty);
        if in_place {
            let view = self.emit.reshape(value, &shape);
            let args = Args::positional(vec![Arg::Operand(0), Arg::Operand(1)]);
            self.emit.become_call(wait, "aten.copy_.default", args, &[input, view]);
            return;
        }
        if copy {
            self.copied += 1;
            if flat {
                self.emit.become_clone(wait, value);
                return;
            }
            value = self.emit.clone(value);
        }
        self.emit.become_reshape(wait, value, &shape);
    }

    /// A flat tensor like `model`.
    fn vector(&self, model: NodeId, elements: Dim) -> TensorType {
        self.emit.tensor(model).with_shape([elements].into_iter().collect())
    }

    /// A tensor like `model` with one row per rank.
    fn table(&self, model: NodeId, ranks: u64, columns: Dim) -> TensorType {
        self.emit.tensor(model).with_shape([Dim::Const(ranks), columns].into_iter().collect())
    }
}

/// What unpacking one part needs to know of its bucket.
struct One {
    ranks: u64,
    bytes: bool,
}

fn elements_of(ty: &TensorType) -> Dim {
    ty.elements().expect("types are checked to fit when they are read")
}

fn times(dim: &Dim, factor: u64) -> Dim {
    dim.checked_mul(&Dim::Const(factor)).expect("the result of a merged collective is checked to fit beforehand")
}

fn sum(parts: &[Part]) -> Dim {
    let total = parts.iter().try_fold(Dim::Const(0), |sum, part| sum.checked_add(&part.elements));
    total.expect("the sum of a bucket's members is checked to fit beforehand")
}

/// Refuses buckets whose symbolic sizes have no sum; sums of known sizes are checked by the selection.
fn check_sums(graph: &Graph, plan: &BucketPlan) -> Result<(), MergeError> {
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

/// A collective's arguments with its one tensor replaced by a list of `count`; other operands move up.
fn with_list(args: &Args, count: u32) -> Args {
    fn shift(arg: &Arg, by: u32) -> Arg {
        match arg {
            Arg::Operand(index) => Arg::Operand(index + by),
            Arg::List(items) => Arg::List(items.iter().map(|item| shift(item, by)).collect()),
            other => other.clone(),
        }
    }
    let list = Arg::List((0..count).map(Arg::Operand).collect());
    let mut args = Args {
        positional: args.positional.iter().map(|arg| shift(arg, count - 1)).collect(),
        keyword: args.keyword.iter().map(|(key, arg)| (key.clone(), shift(arg, count - 1))).collect(),
    };
    match args.positional.first_mut().or_else(|| args.keyword.first_mut().map(|(_, arg)| arg)) {
        Some(first) => *first = list,
        None => args.positional.push(list),
    }
    args
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
    }
}
