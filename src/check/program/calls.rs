//! Moves and calls.

use super::{Play, Player, different, undecided};
use crate::check::effects::{Alias, Effects, Fence, has_memory};
use crate::check::layout;
use crate::check::terms::{Context, Tensor, Term, Val, Value, constant};
use crate::check::walk::Walked;
use crate::ir::operators::split_target;
use crate::ir::{Arg, Graph, NodeId, Op};
use crate::program::{BufferId, BufferKind, Compute, Layout, Made, Moves, Operand, Program, Segment, View};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Values of at most so many pieces are taken as they are read.
const FEW_PIECES: usize = 2;
/// Operands that are looked at for a segment.
const MOST_TRIED: usize = 4;

/// Readers of elements of tuples, by the node that makes the tuple.
pub(super) fn elements(graph: &Graph) -> HashMap<NodeId, Vec<(usize, NodeId)>, FxBuildHasher> {
    let mut elements: HashMap<NodeId, Vec<(usize, NodeId)>, FxBuildHasher> = HashMap::default();
    for &id in graph.order() {
        let Op::Call(target) = graph.node(id).op else { continue };
        if !matches!(split_target(graph.text(target)).1, "getitem" | "get_tuple_element" | "item") {
            continue;
        }
        let index =
            graph.args_of(id).at(1, "index").and_then(Arg::as_int).and_then(|index| usize::try_from(index).ok());
        if let (Some(&base), Some(index)) = (graph.operands(id).first(), index) {
            elements.entry(base).or_default().push((index, id));
        }
    }
    elements
}

/// Buffers of constants of the module, by name.
pub(super) fn constants(program: &Program) -> HashMap<&str, BufferId, FxBuildHasher> {
    let constants = program.buffers.iter().enumerate().filter(|(_, buffer)| buffer.kind == BufferKind::Constant);
    constants.map(|(index, buffer)| (&*buffer.name, BufferId(index as u32))).collect()
}

/// What constants of the module hold before the program runs.
pub(super) fn held(
    context: &Context<'_>,
    walked: &Walked<'_>,
    constants: &HashMap<&str, BufferId, FxBuildHasher>,
) -> HashMap<BufferId, Tensor, FxBuildHasher> {
    let held = walked.attributes.iter().filter_map(|&(id, initial, _)| {
        let buffer = *constants.get(walked.graph.target_of(id))?;
        Some((buffer, context.tensor(initial)?.clone()))
    });
    held.collect()
}

/// Whether a node draws random numbers or may talk to the world.
pub(super) fn keeps_its_place(walked: &Walked<'_>, id: NodeId) -> bool {
    let call = matches!(walked.graph.node(id).op, Op::Call(_));
    call && walked.effects.get(id).fence != Fence::Free
}

impl Player<'_, '_, '_> {
    pub(super) fn moves(&mut self, index: usize, moves: &Moves) -> Play {
        self.moved(index, &moves.segments)?;
        for &range in &moves.zeros {
            let dtype = self.contents.sent_as(range);
            let count = i64::try_from(range.bytes / dtype.bytes()).unwrap_or(i64::MAX);
            let shape = [crate::check::int::Int::Known(count)].into_iter().collect();
            let Some(zeros) = constant(self.context, "0", dtype, shape) else {
                return undecided("zeros of that size");
            };
            self.contents.put_range(self.context, self.program, range, &zeros)?;
        }
        Ok(())
    }

    /// What a segment reads. Where that falls into many pieces, or is not followed, it may be the value of an operand of
    /// the step's node all the same: from the `from`-th on, which is moved past it.
    fn source(&mut self, index: usize, segment: &Segment, from: &mut usize) -> Play<Tensor> {
        let layout = self.program.layout(segment.from.layout);
        let plain = self.contents.get(self.context, self.program, segment.from, layout);
        let tensor = plain.as_ref().ok().and_then(|&val| self.context.tensor(val)).cloned();
        if let Some(tensor) = tensor.as_ref().filter(|tensor| tensor.flat.pieces.len() <= FEW_PIECES) {
            return Ok(tensor.clone());
        }
        if let Ok(id) = self.node(index) {
            let operands = self.graph.operands(id);
            for (at, &node) in operands.iter().enumerate().skip(*from).take(MOST_TRIED) {
                let val = self.walked.vals[node.index()];
                let followed = self.context.tensor(val).cloned();
                if let Some(value) = followed.filter(|value| value.dtype == layout.dtype)
                    && !self.is_written(node)
                    && self.view_holds(segment.from, node, val).is_ok()
                {
                    *from = at + 1;
                    return Ok(value);
                }
            }
        }
        match (tensor, plain) {
            (Some(tensor), _) => Ok(tensor),
            (None, Err(halt)) => Err(halt),
            (None, Ok(_)) => undecided("it moves what is not a tensor"),
        }
    }

    /// Segments move at once: all are read before any is written.
    pub(super) fn moved(&mut self, index: usize, segments: &[Segment]) -> Play {
        let mut values = Vec::with_capacity(segments.len());
        let mut from = 0;
        for segment in segments {
            let tensor = self.source(index, segment, &mut from)?;
            let to = self.program.layout(segment.to.layout).dtype;
            let converted = if tensor.dtype == to { Some(tensor) } else { layout::cast(self.context, &tensor, to) };
            match converted {
                Some(tensor) => values.push(self.context.intern(Value::Tensor(tensor))),
                None => return undecided("a conversion that is not followed"),
            }
        }
        if let Some((view, layout, dim)) = self.side_by_side(segments) {
            let tensors: Option<Vec<Tensor>> = values.iter().map(|&val| self.context.tensor(val).cloned()).collect();
            let joined = tensors.and_then(|tensors| layout::cat(self.context, &tensors, dim));
            if let Some(joined) = joined {
                let val = self.context.intern(Value::Tensor(joined));
                return self.contents.put_as(self.context, self.program, view, &layout, val);
            }
        }
        for (segment, val) in segments.iter().zip(values) {
            self.contents.put(self.context, self.program, segment.to, val)?;
        }
        Ok(())
    }

    /// If segments go side by side along a dimension and make a dense tensor: that tensor's place and layout, and the
    /// dimension. Written at once it is a table of few pieces, not many ranges.
    fn side_by_side(&self, segments: &[Segment]) -> Option<(View, Layout, i64)> {
        let (first, rest) = segments.split_first()?;
        let second = rest.first()?;
        let layout = |segment: &Segment| self.program.layout(segment.to.layout);
        let mut whole = layout(first).clone();
        let step = second.to.offset.checked_sub(first.to.offset)?;
        let along = |dim: &usize| {
            let bytes = whole.shape[*dim].checked_mul(whole.strides[*dim])?.checked_mul(whole.dtype.bytes())?;
            (bytes == step).then_some(())
        };
        let dim = (0..whole.shape.len()).find(|dim| along(dim).is_some())?;
        let skip = whole.strides[dim].checked_mul(whole.dtype.bytes())?;
        for segment in rest {
            let next = layout(segment);
            let alike = next.dtype == whole.dtype
                && next.strides == whole.strides
                && next.shape.len() == whole.shape.len()
                && (0..whole.shape.len()).all(|at| at == dim || next.shape[at] == whole.shape[at])
                && (segment.to.buffer, segment.to.rank_bytes) == (first.to.buffer, first.to.rank_bytes)
                && Some(segment.to.offset) == whole.shape[dim].checked_mul(skip)?.checked_add(first.to.offset);
            if !alike {
                return None;
            }
            whole.shape[dim] = whole.shape[dim].checked_add(next.shape[dim])?;
        }
        whole.is_dense().then_some((first.to, whole, i64::try_from(dim).ok()?))
    }

    pub(super) fn compute(&mut self, index: usize, compute: &Compute) -> Play {
        let id = self.node(index)?;
        let graph = self.graph;
        let call = &self.program.calls[compute.call as usize];
        if !matches!(graph.node(id).op, Op::Call(_))
            || *call.target != *graph.target_of(id)
            || call.args != *graph.args_of(id)
        {
            return different("its node calls another operator, or with other arguments");
        }
        let operands = graph.operands(id);
        if operands.len() != compute.operands.len() {
            return different("its node has another number of operands");
        }
        let read: Vec<Val> = match self.walked.reads.as_ref().and_then(|reads| reads.of(graph, id)) {
            Some(vals) => vals.to_vec(),
            None => operands.iter().map(|operand| self.walked.vals[operand.index()]).collect(),
        };
        let shape_only = self.walked.effects.get(id).shape_only;
        for ((operand, &node), &val) in compute.operands.iter().zip(operands).zip(&read) {
            if !shape_only {
                self.holds(operand, node, val)?;
            }
        }
        if keeps_its_place(self.walked, id) {
            self.fenced.push(id);
        }
        let effects = self.walked.effects.get(id).clone();
        // Sizes and tokens cannot be written.
        let written = effects.writes.iter().filter(|&&index| has_memory(graph, operands[index as usize]));
        if !written.eq(&compute.writes) {
            return different("it writes other operands than its node");
        }
        match (compute.writes.as_slice(), effects.alias) {
            ([], _) => {
                self.apart(&compute.operands, &compute.made)?;
                self.make(&compute.made, id, self.walked.vals[id.index()])
            }
            (&[written], Alias::Of(same)) if written == same => {
                let Operand::Tensor(view) = &compute.operands[written as usize] else {
                    return undecided("what it writes is not a tensor");
                };
                self.contents.put(self.context, self.program, *view, self.walked.vals[id.index()])
            }
            (_, Alias::Fresh | Alias::Any) => self.writes_and_makes(compute, id, &effects, &read),
            (writes, _) => {
                let Value::Tuple(parts) = self.context.value(self.walked.vals[id.index()]).clone() else {
                    return undecided("what it writes");
                };
                for (&written, part) in writes.iter().zip(parts) {
                    let Operand::Tensor(view) = &compute.operands[written as usize] else {
                        return undecided("what it writes is not a tensor");
                    };
                    let val = match self.context.value(part) {
                        Value::Tensor(_) => part,
                        _ => return undecided("what it writes"),
                    };
                    self.contents.put(self.context, self.program, *view, val)?;
                }
                Ok(())
            }
        }
    }

    /// A call that writes operands and makes a value of its own, none of which is followed: what it writes is part of it.
    fn writes_and_makes(&mut self, compute: &Compute, id: NodeId, effects: &Effects, read: &[Val]) -> Play {
        let val = self.walked.vals[id.index()];
        let leaf = match self.context.value(val) {
            Value::Opaque(leaf) => Some(*leaf),
            Value::Tensor(tensor) => tensor.flat.single().map(|piece| piece.leaf),
            Value::Int(_) | Value::Tuple(_) => None,
        };
        let term = leaf.map(|leaf| &self.context.leaf(leaf).term);
        let Some(&Term::Call(key)) = term else { return undecided("what it writes") };
        self.apart(&compute.operands, &compute.made)?;
        self.make(&compute.made, id, val)?;
        let graph = self.graph;
        for (part, &written) in (0u32..).zip(&effects.writes) {
            let node = graph.operands(id)[written as usize];
            if !has_memory(graph, node) {
                continue;
            }
            let before = self.context.tensor(read[written as usize]).cloned();
            let made = match before.and_then(|like| self.context.part_like(key, part, &like)) {
                Some(made) => made,
                None => self.context.whole(Term::Part(key, part), graph.type_of(node)),
            };
            match &compute.operands[written as usize] {
                Operand::Tensor(view) if self.program.layout(view.layout).overlaps_itself() => {
                    return undecided(format!("it may write `{}`, whose elements share memory", graph.name_of(node)));
                }
                Operand::Tensor(view) => self.contents.put(self.context, self.program, *view, made)?,
                Operand::Host(host) if self.attribute_of(node, *host).is_some() => {
                    let target = graph.target_of(node);
                    self.held.insert(target, made);
                    // What was made of it may be part of it.
                    let context = &*self.context;
                    self.hosts.retain(|_, val| matches!(context.value(*val), Value::Int(_)));
                }
                _ => return undecided("what it writes is not a tensor"),
            }
        }
        Ok(())
    }

    /// What a step makes may not lie over what it reads, nor over another of its results.
    pub(super) fn apart<'o>(&self, operands: impl IntoIterator<Item = &'o Operand>, makes: &Made) -> Play {
        let (mut read, mut made) = (Vec::new(), Vec::new());
        operands.into_iter().for_each(|operand| operand_views(operand, &mut read));
        made_views(makes, &mut made);
        let bytes = |view: &View| self.program.layout(view.layout).span_bytes().unwrap_or(u64::MAX);
        let over = |a: &View, b: &View| {
            let ends = (a.offset.saturating_add(bytes(a)), b.offset.saturating_add(bytes(b)));
            let apart = a.rank_bytes == b.rank_bytes && (ends.0 <= b.offset || ends.1 <= a.offset);
            a.buffer == b.buffer && bytes(a) > 0 && bytes(b) > 0 && !apart
        };
        for (index, view) in made.iter().enumerate() {
            if read.iter().chain(&made[..index]).any(|other| over(view, other)) {
                return different("what it makes lies over what it reads, or over another of its results");
            }
        }
        Ok(())
    }

    /// What a step makes is the value of its node.
    pub(super) fn make(&mut self, made: &Made, id: NodeId, val: Val) -> Play {
        match made {
            Made::Nothing => Ok(()),
            Made::Tensor(view) => self.contents.put(self.context, self.program, *view, val),
            Made::Host(host) => {
                self.hosts.insert(*host, val);
                Ok(())
            }
            Made::Tuple(items) => {
                if let Value::Tuple(parts) = self.context.value(val).clone()
                    && parts.len() == items.len()
                {
                    return items.iter().zip(parts).try_for_each(|(item, part)| self.make(item, id, part));
                }
                // A tuple that is not followed: its elements are what those make of it who read them.
                let readers = self.elements.get(&id).cloned().unwrap_or_default();
                for (index, item) in items.iter().enumerate() {
                    if let Some(&(_, reader)) = readers.iter().find(|(at, _)| *at == index) {
                        self.make(item, reader, self.walked.vals[reader.index()])?;
                    }
                }
                Ok(())
            }
        }
    }
}

fn operand_views(operand: &Operand, views: &mut Vec<View>) {
    match operand {
        Operand::Tensor(view) => views.push(*view),
        Operand::Int(_) | Operand::Host(_) => {}
        Operand::Tuple(items) => items.iter().for_each(|item| operand_views(item, views)),
    }
}

fn made_views(made: &Made, views: &mut Vec<View>) {
    match made {
        Made::Tensor(view) => views.push(*view),
        Made::Nothing | Made::Host(_) => {}
        Made::Tuple(items) => items.iter().for_each(|item| made_views(item, views)),
    }
}
