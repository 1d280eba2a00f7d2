//! Which collectives send a comm buffer of ours, how their members lie in it, and who writes them there.
//!
//! Decided before any step is made, since a producer that writes into its slot may stand far above the launch.

use super::LowerOptions;
use super::facts::Facts;
use crate::ir::operators::{OperatorId, ViewKind, pure_cast};
use crate::ir::{Arg, CollectiveKind, NodeId, Op, TensorType, Variant};
use crate::program::BufferId;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

type Map<V> = HashMap<NodeId, V, FxBuildHasher>;

/// Most readers of a value that are looked at before it is taken not to be private.
const MAX_READERS: usize = 256;

/// How a member gets into its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Copied by the pack.
    Copied,
    /// Written there by its producer.
    Realised,
}

/// A member of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// The tensor that is packed.
    pub node: NodeId,
    /// Elements in each row.
    pub elements: u64,
    /// Bytes from the start of a row.
    pub offset: u64,
    pub how: How,
}

/// A collective with a comm buffer.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub launch: NodeId,
    /// What puts the members together; `None` for a single tensor.
    pub cat: Option<NodeId>,
    pub kind: CollectiveKind,
    pub ranks: u64,
    /// Rows of the members; for a scatter one for each rank.
    pub rows: u64,
    /// Bytes of a row, padding included.
    pub row_bytes: u64,
    /// Bytes of a row that are padding.
    pub padding: u64,
    pub members: Vec<Member>,
    pub one_shot: bool,
    /// For a scatter: whether the result lies in the buffer itself.
    pub in_place: bool,
    /// The buffer, once it is made.
    pub buffer: Option<BufferId>,
}

impl Bucket {
    /// Bytes that one rank sends.
    pub fn send_bytes(&self) -> u64 {
        self.rows * self.row_bytes
    }
}

/// What was decided.
#[derive(Default)]
pub(super) struct Plan {
    pub buckets: Vec<Bucket>,
    /// Bucket by its `cat`.
    pub by_cat: Map<u32>,
    /// Bucket by its launch.
    pub by_launch: Map<u32>,
    /// Producers that write into slots: bucket and member.
    pub realised: Map<(u32, u32)>,
    /// Casts that are part of a pack, with the place of the pack in order.
    pub absorbed: Map<u32>,
}

pub(super) fn plan(facts: &mut Facts<'_>, options: &LowerOptions) -> Plan {
    let mut plan = Plan::default();
    for &id in facts.graph.order() {
        if let Some(bucket) = find(facts, options, id) {
            let number = plan.buckets.len() as u32;
            if let Some(cat) = bucket.cat {
                plan.by_cat.insert(cat, number);
            }
            plan.by_launch.insert(id, number);
            plan.buckets.push(bucket);
        }
    }
    for bucket in &plan.buckets {
        let at = facts.position(bucket.cat.unwrap_or(bucket.launch));
        for member in &bucket.members {
            absorb(facts, member, at, &mut plan.absorbed);
        }
    }
    if options.realise {
        realise(facts, &mut plan);
    }
    plan
}

fn find(facts: &Facts<'_>, options: &LowerOptions, id: NodeId) -> Option<Bucket> {
    let graph = facts.graph;
    let collective = facts.collective(id)?;
    let ranks = u64::from(graph.group(collective.group).size?);
    let plain = collective.variant == Variant::Functional && !collective.coalesced && ranks > 1;
    let packs = match collective.kind {
        CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. } => dim == 0,
        CollectiveKind::AllReduce { .. } | CollectiveKind::Broadcast { .. } => true,
        CollectiveKind::Reduce { .. } | CollectiveKind::AllToAll | CollectiveKind::Permute => false,
    };
    let input = *graph.collective_inputs(id).first()?;
    let sent = graph.tensor(input)?;
    let bytes = sent.bytes()?.as_const().filter(|&bytes| bytes > 0)?;
    if !plain || !packs {
        return None;
    }
    let reduces = matches!(collective.kind, CollectiveKind::AllReduce { .. });
    let one_shot = reduces && bytes <= options.one_shot_max_bytes;
    let cat = packed_by(facts, input);
    let (nodes, rows): (&[NodeId], u64) = match cat {
        Some(cat) => {
            // Rows are the first dimension, so that each member, however it lies, has them, too.
            let (nodes, dim) = facts.cat(cat).filter(|&(_, dim)| dim <= 1)?;
            (nodes, count(&graph.tensor(cat)?.shape[..dim])?)
        }
        None if one_shot || (reduces && registered(facts, id)) => {
            (std::slice::from_ref(graph.collective_inputs(id).first()?), 1)
        }
        None => return None,
    };
    let element = sent.dtype.bytes();
    let mut members = Vec::with_capacity(nodes.len());
    for &node in nodes {
        let elements = graph.tensor(node)?.elements()?.as_const()? / rows.max(1);
        members.push(Member { node, elements, offset: 0, how: How::Copied });
    }
    let by_rank = matches!(collective.kind, CollectiveKind::ReduceScatter { .. });
    let fits = if by_rank { rows == ranks } else { rows == 1 };
    let apart = cat.is_some() && fits && taken_apart(facts, id, if by_rank { 1 } else { rows }, &members);
    let align = if apart { options.align_bytes.max(element) } else { 1 };
    let (mut at, mut payload) = (0u64, 0u64);
    for member in &mut members {
        at = at.checked_next_multiple_of(if member.elements == 0 { 1 } else { align })?;
        member.offset = at;
        let bytes = member.elements.checked_mul(element)?;
        at = at.checked_add(bytes)?;
        payload += bytes;
    }
    let row_bytes = at.checked_next_multiple_of(align)?;
    let total = row_bytes.checked_mul(rows)?.checked_mul(if by_rank { 1 } else { ranks })?;
    i64::try_from(total).ok()?;
    Some(Bucket {
        launch: id,
        cat,
        kind: collective.kind,
        ranks,
        rows,
        row_bytes,
        padding: row_bytes - payload,
        members,
        // Padding does not change the path: it follows from the payload.
        one_shot,
        in_place: by_rank && fits && copied_out(facts, id),
        buffer: None,
    })
}

fn count(dims: &[crate::ir::Dim]) -> Option<u64> {
    dims.iter().try_fold(1u64, |product, dim| product.checked_mul(dim.as_const()?))
}

/// `impl=registered`: the tensor has to travel from registered memory.
fn registered(facts: &Facts<'_>, id: NodeId) -> bool {
    matches!(facts.graph.args_of(id).get("impl"), Some(Arg::Word(word)) if &**word == "registered")
        || facts.graph.args_of(id).get("impl").and_then(Arg::as_str) == Some("registered")
}

/// The `cat` that makes what is sent, if nobody else reads it.
fn packed_by(facts: &Facts<'_>, input: NodeId) -> Option<NodeId> {
    let mut at = input;
    loop {
        if facts.readers(at).len() != 1 || facts.is_written(at) {
            return None;
        }
        if facts.cat(at).is_some() {
            return Some(at);
        }
        if !facts.is_flat_view(at) {
            return None;
        }
        at = *facts.graph.operands(at).first()?;
    }
}

/// Whether all who read a bucket's result take it apart member by member, so that padding may lie between them.
fn taken_apart(facts: &Facts<'_>, launch: NodeId, rows: u64, members: &[Member]) -> bool {
    let graph = facts.graph;
    let Some(collective) = facts.collective(launch) else { return false };
    let ranks = graph.group(collective.group).size.map_or(1, u64::from);
    let gather = matches!(collective.kind, CollectiveKind::AllGather { .. });
    let rows = if gather { rows * ranks } else { rows };
    let flat = |id: NodeId| graph.tensor(id).is_some_and(|ty| ty.shape.len() == 1);
    let shape_only = |id: &NodeId| facts.effects.get(*id).shape_only;
    let splits = |id: NodeId, from: NodeId| {
        let args = graph.args_of(id);
        let dim = args.at(2, "dim").map_or(Some(0), Arg::as_int);
        let sizes = match args.at(1, "split_sizes") {
            Some(Arg::List(sizes)) => sizes.as_slice(),
            _ => return false,
        };
        let table = graph.tensor(from).is_some_and(|ty| {
            let at = |dim: usize| ty.shape.get(dim).and_then(crate::ir::Dim::as_const);
            if gather { ty.shape.len() == 2 && at(0) == Some(rows) } else { ty.shape.len() == 1 }
        });
        let same = sizes.len() == members.len()
            && sizes.iter().zip(members).all(|(size, member)| size.as_int() == i64::try_from(member.elements).ok());
        facts.view_kind(id) == Some(ViewKind::SplitWithSizes) && table && dim == Some(i64::from(gather)) && same
    };
    let parts = |from: NodeId| {
        facts.readers(from).iter().all(|&reader| {
            if facts.is_flat_view(reader) && gather && flat(from) {
                return facts.readers(reader).iter().all(|&split| shape_only(&split) || splits(split, reader));
            }
            shape_only(&reader) || splits(reader, from)
        })
    };
    flat(launch)
        && facts.readers(launch).iter().all(|&reader| {
            shape_only(&reader)
                || (graph.node(reader).op == Op::Wait
                    && graph.operands(reader).len() == 1
                    && !graph.waits_for_list(reader)
                    && parts(reader))
        })
}

/// Whether all who read a scatter's result copy it, so that the buffer is free soon.
fn copied_out(facts: &Facts<'_>, launch: NodeId) -> bool {
    let mut left = vec![launch];
    let mut any = false;
    while let Some(id) = left.pop() {
        for &reader in facts.readers(id) {
            if facts.graph.node(reader).op == Op::Wait || facts.is_view(reader) {
                left.push(reader);
            } else if facts.operator(reader) == OperatorId::Clone {
                any = true;
            } else if !facts.effects.get(reader).shape_only {
                return false;
            }
        }
    }
    any && !facts.is_written(launch) && !facts.escapes(launch)
}

fn dense(ty: Option<&TensorType>) -> bool {
    ty.is_some_and(TensorType::is_dense)
}

/// The node below flat views of which each has one reader.
fn root(facts: &Facts<'_>, mut at: NodeId) -> NodeId {
    while facts.is_flat_view(at) && facts.readers(at).len() == 1 {
        match facts.graph.operands(at).first() {
            Some(&from) => at = from,
            None => break,
        }
    }
    at
}

fn absorb(facts: &mut Facts<'_>, member: &Member, at: u32, absorbed: &mut Map<u32>) {
    let graph = facts.graph;
    let cast = root(facts, member.node);
    let Some(to) = pure_cast(graph, cast) else { return };
    let &[from] = graph.operands(cast) else { return };
    let Some(ty) = graph.tensor(from) else { return };
    let private = facts.readers(cast).len() == 1 && facts.readers(member.node).len() == 1 && facts.makes_tensor(cast);
    let same_order = cast == member.node || (dense(Some(ty)) && dense(graph.tensor(cast)));
    if private && same_order && Facts::converts(ty.dtype, to) && !facts.is_written(from) && !facts.is_written(cast) {
        absorbed.insert(cast, at);
        let class = facts.class(from);
        facts.last_read[class] = facts.last_read[class].max(at);
    }
}

fn realise(facts: &Facts<'_>, plan: &mut Plan) {
    let mut taken: Map<u32> = Map::default();
    for bucket in &plan.buckets {
        for member in &bucket.members {
            *taken.entry(root(facts, member.node)).or_insert(0) += 1;
        }
    }
    for number in 0..plan.buckets.len() {
        for nth in 0..plan.buckets[number].members.len() {
            let bucket = &plan.buckets[number];
            let member = bucket.members[nth];
            let producer = root(facts, member.node);
            let once = taken.get(&producer) == Some(&1) && !plan.absorbed.contains_key(&producer);
            if bucket.rows == 1
                && member.elements > 0
                && once
                && may_write_slot(facts, plan, bucket, producer, member.node)
            {
                plan.buckets[number].members[nth].how = How::Realised;
                plan.realised.insert(producer, (number as u32, nth as u32));
            }
        }
    }
}

/// Whether a producer may write its value into the slot of a member of the bucket; see the module docs of lowering.
fn may_write_slot(facts: &Facts<'_>, plan: &Plan, bucket: &Bucket, producer: NodeId, member: NodeId) -> bool {
    let graph = facts.graph;
    let own = facts.makes_tensor(producer) && !facts.is_written(producer) && !facts.escapes(producer);
    if !own || !dense(graph.tensor(producer)) || plan.by_cat.contains_key(&producer) {
        return false;
    }
    let same_device = |a: NodeId, b: NodeId| {
        let device = |id: NodeId| graph.tensor(id).and_then(|ty| ty.device.clone());
        device(a) == device(b)
    };
    if !same_device(producer, bucket.launch) {
        return false;
    }
    let limit = facts.position(bucket.launch);
    let (mut left, mut seen) = (vec![producer], 0);
    while let Some(id) = left.pop() {
        for &reader in facts.readers(id) {
            seen += 1;
            let packs = Some(reader) == bucket.cat || reader == bucket.launch;
            // Another view of it in the same bucket would be packed out of the buffer that the pack writes.
            let twice = packs && id != member;
            if seen > MAX_READERS || twice || (!packs && facts.collective(reader).is_some()) {
                return false;
            }
            if packs {
                continue;
            }
            if plan.by_cat.contains_key(&reader) || facts.position(reader) >= limit {
                return false;
            }
            if plan.absorbed.get(&reader).is_some_and(|&at| at >= limit) {
                return false;
            }
            if facts.is_view(reader) {
                left.push(reader);
            }
        }
    }
    true
}
