//! Launches: what is sent from where, where the result goes, and what is put in its place behind the wait.

use super::LowerError;
use super::build::refuse;
use super::layouts;
use super::walk::{Flight, Lowering, Value};
use crate::ir::operators::collective_result;
use crate::ir::{Arg, Collective, CollectiveKind, DType, NodeId, ReduceOp, Variant};
use crate::program::{self, BufferKind, CommOp, Layout, Moves, Part, Path, Range, Segment, StepKind, View};

/// Most ranks of an exchange: its program has two numbers for each.
const MAX_LISTED_RANKS: u64 = 1 << 16;

/// One tensor of a launch.
struct Lowered {
    dtype: DType,
    part: Part,
    /// What is put in its place behind the wait.
    then: Vec<Segment>,
    value: View,
}

impl Lowering<'_> {
    pub(super) fn collective(&mut self, id: NodeId, collective: Collective) -> Result<Value, LowerError> {
        let graph = self.graph;
        let group = graph.group(collective.group);
        let Some(ranks) = group.size.map(u64::from).filter(|&ranks| ranks > 0) else {
            let (node, group) = (graph.name_of(id).to_owned(), group.name.to_string());
            return Err(LowerError::GroupSize { node, group });
        };
        if let Some(Arg::Word(dtype)) = graph.args_of(id).get("transport") {
            return refuse(graph, id, format!("transport={dtype} is not lowered; cast before and after it"));
        }
        if let Some(Arg::DType(dtype)) = graph.args_of(id).get("transport") {
            let dtype = dtype.short_name();
            return refuse(graph, id, format!("transport={dtype} is not lowered; cast before and after it"));
        }
        if let Some(&number) = self.plan.by_launch.get(&id) {
            return self.bucket_launch(id, number);
        }
        let inputs: Vec<NodeId> = graph.collective_inputs(id).to_vec();
        let outs = self.outs(id, collective.variant, &inputs)?;
        let mut lowered = Vec::with_capacity(inputs.len());
        let mut values = Vec::with_capacity(inputs.len());
        for (index, &input) in inputs.iter().enumerate() {
            let from = self.tensor(id, input)?;
            let out = outs.get(index).copied();
            let to = Target { index, listed: collective.coalesced, out };
            let exchanges = matches!(collective.kind, CollectiveKind::AllToAll | CollectiveKind::Permute);
            if (ranks == 1 && !exchanges) || self.build.layout(from).elements() == Some(0) {
                values.push(Value::Tensor(self.moves_nothing(id, from, &to)?));
                continue;
            }
            let one = self.one(id, collective, ranks, input, from, &to)?;
            values.push(Value::Tensor(one.value));
            lowered.push((input, one));
        }
        self.start_all(id, collective, ranks, lowered)?;
        Ok(if collective.coalesced { self.tuple(values) } else { values.first().copied().unwrap_or(Value::Nothing) })
    }

    /// The given tensors that results go to.
    fn outs(&self, id: NodeId, variant: Variant, inputs: &[NodeId]) -> Result<Vec<View>, LowerError> {
        let graph = self.graph;
        let nodes: Vec<NodeId> = match variant {
            Variant::Functional => Vec::new(),
            Variant::InPlace => inputs.to_vec(),
            Variant::Out => {
                let mut outs = Vec::new();
                if let Some(arg) = graph.args_of(id).get("out") {
                    arg.for_each_operand(&mut |index| outs.extend(graph.operands(id).get(index as usize)));
                }
                if outs.len() != inputs.len() {
                    return refuse(graph, id, "it has not one `out` for each input");
                }
                outs
            }
        };
        nodes.into_iter().map(|node| self.tensor(id, node)).collect()
    }

    /// One launch for each dtype, in order of first use.
    fn start_all(
        &mut self,
        id: NodeId,
        collective: Collective,
        ranks: u64,
        mut left: Vec<(NodeId, Lowered)>,
    ) -> Result<(), LowerError> {
        while let Some(first) = left.first() {
            let dtype = first.1.dtype;
            let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(|(_, one)| one.dtype == dtype);
            left = later;
            let (inputs, now): (Vec<NodeId>, Vec<Lowered>) = now.into_iter().unzip();
            let op = self.comm_op(id, collective.kind, ranks, dtype, &now)?;
            let (parts, then): (Vec<Part>, Vec<Vec<Segment>>) = now.into_iter().map(|one| (one.part, one.then)).unzip();
            let bytes = parts.iter().map(|part| part.send.bytes).sum();
            let reduces = matches!(op, CommOp::AllReduce(_));
            let registered = parts.iter().all(|part| self.build.is_comm(part.send.buffer));
            let path = match super::all_reduce_path(bytes, self.options.one_shot_max_bytes) {
                Some(path) if reduces && registered => path,
                _ => Path::Normal,
            };
            self.start(id, op, dtype, path, parts, then.concat());
            self.check_launch(id, &inputs)?;
        }
        Ok(())
    }

    /// Refuses the launch that was issued last if two of its tensors cannot go together.
    fn check_launch(&self, id: NodeId, inputs: &[NodeId]) -> Result<(), LowerError> {
        let program = &self.build.program;
        let launched = program.steps.iter().rev().find_map(|step| match &step.kind {
            StepKind::Collective(collective) => Some(collective),
            _ => None,
        });
        let Some(clash) = launched.and_then(|launched| program.clash_in_launch(launched)) else { return Ok(()) };
        let name = |at: usize| inputs.get(at).map_or("its tensor", |&input| self.graph.name_of(input));
        let (first, second) = (name(clash.first), name(clash.second));
        refuse(self.graph, id, format!("`{first}` and `{second}` {}", clash.reason))
    }

    /// Issues a launch of a collective node; `then` is put in its place when it is done.
    pub(super) fn start(
        &mut self,
        id: NodeId,
        op: CommOp,
        dtype: DType,
        path: Path,
        parts: Vec<Part>,
        then: Vec<Segment>,
    ) {
        let group = self.graph.collective(id).map_or(0, |collective| collective.group.index() as u32);
        let members = self.graph.meta_of(id).members.clone();
        let collective = program::Collective { op, group, dtype, path, members, parts };
        let step = self.build.launch(self.graph.name_of(id), collective);
        if path == Path::OneShot {
            // It is done when it is done.
            self.report.one_shot += 1;
            self.put_back(self.graph.name_of(id), then);
        } else {
            let flight = Flight { step, node: id, then };
            self.flights.entry(self.facts.class(id)).or_default().push(flight);
        }
    }

    /// Issues a launch for a call.
    pub(super) fn start_in(&mut self, id: NodeId, group: u32, op: CommOp, dtype: DType, parts: Vec<Part>) {
        let collective = program::Collective { op, group, dtype, path: Path::Normal, members: Vec::new(), parts };
        let step = self.build.launch(self.graph.name_of(id), collective);
        self.flights.entry(self.facts.class(id)).or_default().push(Flight { step, node: id, then: Vec::new() });
    }

    /// Waits for the launch that was issued last.
    pub(super) fn land_at_once(&mut self, id: NodeId) {
        let class = self.facts.class(id);
        if let Some(flight) = self.flights.get_mut(&class).and_then(Vec::pop) {
            self.build.step(self.graph.name_of(id), StepKind::Wait(flight.step));
        }
    }

    /// The group that a call names by its last string or word.
    pub(super) fn named_group(&self, id: NodeId) -> Option<u32> {
        let args = self.graph.args_of(id);
        let all = args.positional.iter().chain(args.keyword.iter().map(|(_, arg)| arg));
        let name = |arg| match arg {
            &Arg::Str(ref text) | &Arg::Word(ref text) => Some(text),
            _ => None,
        };
        let name = all.rev().find_map(name)?;
        let known = |group: &crate::ir::ProcessGroup| group.name == *name && group.size.is_some_and(|size| size > 0);
        self.graph.groups().iter().position(known).map(|index| index as u32)
    }

    /// How ranks combine. A sum of bools is their or, which is their maximum; their product is their minimum.
    pub(super) fn reduce_op(&self, id: NodeId, op: ReduceOp, dtype: DType) -> Result<ReduceOp, LowerError> {
        match (dtype, op) {
            (DType::Bool, ReduceOp::Sum) => Ok(ReduceOp::Max),
            (DType::Bool, ReduceOp::Product) => Ok(ReduceOp::Min),
            (DType::Bool, ReduceOp::Avg) => refuse(self.graph, id, "bools have no average"),
            _ => Ok(op),
        }
    }

    fn comm_op(
        &self,
        id: NodeId,
        kind: CollectiveKind,
        ranks: u64,
        dtype: DType,
        parts: &[Lowered],
    ) -> Result<CommOp, LowerError> {
        Ok(match kind {
            CollectiveKind::AllGather { .. } => CommOp::AllGather,
            CollectiveKind::ReduceScatter { op, .. } => CommOp::ReduceScatter(self.reduce_op(id, op, dtype)?),
            CollectiveKind::AllReduce { op } => CommOp::AllReduce(self.reduce_op(id, op, dtype)?),
            CollectiveKind::Broadcast { root } => CommOp::Broadcast { root },
            CollectiveKind::Reduce { op, root } => CommOp::Reduce { op: self.reduce_op(id, op, dtype)?, root },
            CollectiveKind::AllToAll => {
                let [one] = parts else { return refuse(self.graph, id, "it exchanges several tensors at once") };
                let element = dtype.bytes();
                let args = self.graph.args_of(id);
                let shape = self.input_shape(id)?;
                let row = shape.iter().skip(1).fold(1u64, |product, &size| product.saturating_mul(size));
                let send_counts = self.counts(id, args.positional.get(2), ranks, row, one.part.send.bytes / element)?;
                let recv_counts = self.counts(id, args.positional.get(1), ranks, row, one.part.recv.bytes / element)?;
                CommOp::AllToAll { send_counts, recv_counts }
            }
            CollectiveKind::Permute => CommOp::Permute { pairs: self.pairs(id, ranks)? },
        })
    }

    fn input_shape(&self, id: NodeId) -> Result<crate::ir::Short<u64, 4>, LowerError> {
        self.shape_of(self.graph.collective_inputs(id)[0])
    }

    /// Elements for each rank, from rows in a list; without one, equally many.
    fn counts(&self, id: NodeId, list: Option<&Arg>, ranks: u64, row: u64, total: u64) -> Result<Vec<u64>, LowerError> {
        self.check_rank_count(id, ranks)?;
        let given = match list {
            Some(Arg::List(items) | Arg::Tuple(items)) if !items.is_empty() => items,
            None | Some(Arg::List(_) | Arg::Tuple(_) | Arg::None) if total.is_multiple_of(ranks) => {
                return Ok(vec![total / ranks; ranks as usize]);
            }
            _ => return refuse(self.graph, id, "its parts are neither listed nor equal"),
        };
        let rows: Option<Vec<u64>> =
            given.iter().map(|item| u64::try_from(self.int(id, item)?).ok()?.checked_mul(row)).collect();
        match rows {
            Some(rows)
                if rows.len() as u64 == ranks
                    && rows.iter().try_fold(0u64, |sum, &rows| sum.checked_add(rows)) == Some(total) =>
            {
                Ok(rows)
            }
            Some(_) => refuse(self.graph, id, "its lists of parts do not add up to its tensors, one for each rank"),
            None => refuse(
                self.graph,
                id,
                "how much it exchanges with each rank is not known before it runs; give the sizes",
            ),
        }
    }

    /// A program lists what goes to each rank.
    fn check_rank_count(&self, id: NodeId, ranks: u64) -> Result<(), LowerError> {
        if ranks <= MAX_LISTED_RANKS {
            return Ok(());
        }
        let reason = format!("its group has {ranks} ranks; exchanges are lowered for at most {MAX_LISTED_RANKS}");
        refuse(self.graph, id, reason)
    }

    fn pairs(&self, id: NodeId, ranks: u64) -> Result<Vec<(u32, u32)>, LowerError> {
        let list = match self.graph.args_of(id).positional.get(1) {
            Some(Arg::List(items) | Arg::Tuple(items)) => items.as_slice(),
            _ => return refuse(self.graph, id, "it lists no pairs of ranks"),
        };
        let rank = |arg: &Arg| u32::try_from(self.int(id, arg)?).ok().filter(|&rank| u64::from(rank) < ranks);
        let pair = |arg: &Arg| match arg {
            Arg::List(items) | Arg::Tuple(items) if items.len() == 2 => Some((rank(&items[0])?, rank(&items[1])?)),
            _ => None,
        };
        let pairs: Option<Vec<(u32, u32)>> = match list.first() {
            // PyTorch lists where each rank sends to.
            Some(Arg::Int(_)) => (0u32..).zip(list).map(|(from, to)| Some((from, rank(to)?))).collect(),
            _ => list.iter().map(pair).collect(),
        };
        pairs.map_or_else(|| refuse(self.graph, id, "its pairs are not ranks of the group"), Ok)
    }

    /// The result of a collective over one rank, or of no bytes: a copy, so that its memory is its own.
    fn moves_nothing(&mut self, id: NodeId, from: View, to: &Target) -> Result<View, LowerError> {
        let new = match to.out {
            Some(out) => out,
            None => self.result(id, to)?,
        };
        let shape = self.build.layout(new).shape.clone();
        let same_bytes = self.build.layout(from).elements() == self.build.layout(new).elements();
        let there = (from.buffer, from.offset) == (new.buffer, new.offset);
        if self.build.layout(from).elements() != Some(0) && same_bytes && !there {
            let Some(layout) = layouts::reshape(self.build.layout(from), &shape) else {
                return refuse(self.graph, id, "its result has another shape than its tensor");
            };
            let Some(from) = self.build.moved(from, layout, 0) else {
                return refuse(self.graph, id, "its size passes 64 bits");
            };
            self.build.step(self.graph.name_of(id), StepKind::Copy(Segment { from, to: new }));
        }
        Ok(new)
    }

    /// A new buffer for a result.
    fn result(&mut self, id: NodeId, to: &Target) -> Result<View, LowerError> {
        let graph = self.graph;
        let ty = match graph.type_of(id) {
            crate::ir::Type::Tuple(parts) if to.listed => parts.get(to.index).and_then(crate::ir::Type::as_tensor),
            ty => ty.as_tensor(),
        };
        let inferred = || {
            let collective = graph.collective(id)?;
            let input = graph.tensor(*graph.collective_inputs(id).get(to.index)?)?;
            collective_result(collective.kind, graph.group(collective.group).size, input)
        };
        let Some(ty) = ty.cloned().or_else(inferred) else {
            return refuse(graph, id, "the size of its result is not known");
        };
        // Results of collectives are dense, whatever the strides of their inputs.
        let plain = crate::ir::TensorType { strides: None, ..ty.clone() };
        let layout = self.fresh_layout(id, &plain)?;
        let name = graph.name_of(id);
        let name = if to.listed { format!("{name}.{}", to.index) } else { name.to_owned() };
        Ok(self.build.tensor(&name, layout, BufferKind::Device, ty.device.as_deref()))
    }

    /// A dense comm buffer of a layout's shape, for what is packed or put in its place by a step of its own.
    fn scratch(
        &mut self,
        id: NodeId,
        to: &Target,
        word: &str,
        dtype: DType,
        shape: &[u64],
    ) -> Result<View, LowerError> {
        let Some(layout) = Layout::dense(dtype, shape) else {
            return refuse(self.graph, id, "its size passes 64 bits");
        };
        let device = self.graph.tensor(self.graph.collective_inputs(id)[to.index]).and_then(|ty| ty.device.clone());
        let name = format!("{}.{word}{}", self.graph.name_of(id), to.index);
        Ok(self.build.tensor(&name, layout, BufferKind::Comm, device.as_deref()))
    }

    fn one(
        &mut self,
        id: NodeId,
        collective: Collective,
        ranks: u64,
        input: NodeId,
        from: View,
        to: &Target,
    ) -> Result<Lowered, LowerError> {
        match collective.kind {
            CollectiveKind::AllGather { dim } => self.gather(id, ranks, dim as usize, from, to),
            CollectiveKind::ReduceScatter { dim, .. } => self.scatter(id, ranks, dim as usize, from, to),
            CollectiveKind::AllReduce { .. } | CollectiveKind::Broadcast { .. } | CollectiveKind::Reduce { .. } => {
                self.in_place(id, input, from, to)
            }
            CollectiveKind::AllToAll | CollectiveKind::Permute => {
                let send = self.dense_send(id, from, to)?;
                self.received(id, send, to)
            }
        }
    }

    /// What is sent, as a dense view; packed where the tensor is not dense, lies where the result goes, or is written
    /// while it is sent: what arrives is what it was at the launch.
    fn dense_send(&mut self, id: NodeId, from: View, to: &Target) -> Result<View, LowerError> {
        let overlaps = to.out.is_some_and(|out| out.buffer == from.buffer);
        let input = self.graph.collective_inputs(id)[to.index];
        if self.build.layout(from).is_dense() && !overlaps && !self.facts.is_written_in_flight(id, input) {
            return Ok(from);
        }
        let Layout { dtype, shape, .. } = self.build.layout(from).clone();
        let packed = self.scratch(id, to, "pack", dtype, &shape)?;
        self.pack_into(id, Segment { from, to: packed });
        Ok(packed)
    }

    fn pack_into(&mut self, id: NodeId, segment: Segment) {
        let moves = Moves { segments: vec![segment], zeros: Vec::new() };
        self.build.step(self.graph.name_of(id), StepKind::Pack(moves));
    }

    fn range_of(&self, id: NodeId, view: View) -> Result<Range, LowerError> {
        match self.build.range(view) {
            Some(range) => Ok(range),
            None => refuse(self.graph, id, "its tensor is not dense"),
        }
    }

    /// The launch of what lies dense in `send` into a dense result.
    fn received(&mut self, id: NodeId, send: View, to: &Target) -> Result<Lowered, LowerError> {
        let value = match to.out {
            Some(out) => out,
            None => self.result(id, to)?,
        };
        let Layout { dtype, shape, .. } = self.build.layout(value).clone();
        let (recv, then) = if self.build.layout(value).is_dense() {
            (value, Vec::new())
        } else {
            let dense = self.scratch(id, to, "result", dtype, &shape)?;
            (dense, vec![Segment { from: dense, to: value }])
        };
        let (send, recv) = (self.range_of(id, send)?, self.range_of(id, recv)?);
        Ok(Lowered { dtype, part: Part { count: send.bytes / dtype.bytes(), send, recv }, then, value })
    }

    fn gather(&mut self, id: NodeId, ranks: u64, dim: usize, from: View, to: &Target) -> Result<Lowered, LowerError> {
        let layout = self.build.layout(from).clone();
        if dim == 0 {
            if to.out.is_none() && !layout.is_dense() {
                return self.gather_in_place(id, ranks, from, to);
            }
            let send = self.dense_send(id, from, to)?;
            return self.received(id, send, to);
        }
        // Rank by rank first; along the dimension behind the wait.
        let send = self.dense_send(id, from, to)?;
        let value = match to.out {
            Some(out) => out,
            None => self.result(id, to)?,
        };
        let by_rank: Vec<u64> = std::iter::once(ranks).chain(layout.shape.iter().copied()).collect();
        let all = self.scratch(id, to, "result", layout.dtype, &by_rank)?;
        let Some(place) =
            layouts::chunks(self.build.layout(value), dim, ranks).and_then(|place| self.build.moved(value, place, 0))
        else {
            return refuse(self.graph, id, "its result has not one part for each rank");
        };
        let (send, recv) = (self.range_of(id, send)?, self.range_of(id, all)?);
        let part = Part { count: send.bytes / layout.dtype.bytes(), send, recv };
        Ok(Lowered { dtype: layout.dtype, part, then: vec![Segment { from: all, to: place }], value })
    }

    /// Packs what is not dense straight into this rank's part of the result.
    fn gather_in_place(&mut self, id: NodeId, ranks: u64, from: View, to: &Target) -> Result<Lowered, LowerError> {
        let value = self.result(id, to)?;
        let Layout { dtype, shape, .. } = self.build.layout(from).clone();
        let recv = self.range_of(id, value)?;
        let bytes = recv.bytes / ranks;
        let group = self.graph.collective(id).map(|collective| collective.group.index() as u32);
        self.build.program.buffers[value.buffer.0 as usize].group = group;
        let send = Range { bytes, rank_bytes: bytes, ..recv };
        let Some(slot) = self.build.view_of(send, dtype, &shape) else {
            return refuse(self.graph, id, "its size passes 64 bits");
        };
        self.pack_into(id, Segment { from, to: slot });
        Ok(Lowered { dtype, part: Part { count: bytes / dtype.bytes(), send, recv }, then: Vec::new(), value })
    }

    fn scatter(&mut self, id: NodeId, ranks: u64, dim: usize, from: View, to: &Target) -> Result<Lowered, LowerError> {
        let send = if dim == 0 {
            self.dense_send(id, from, to)?
        } else {
            let rows = layouts::chunks(self.build.layout(from), dim, ranks);
            let Some(rows) = rows.and_then(|rows| self.build.moved(from, rows, 0)) else {
                return refuse(self.graph, id, "its tensor has not one part for each rank");
            };
            let Layout { dtype, shape, .. } = self.build.layout(rows).clone();
            let packed = self.scratch(id, to, "pack", dtype, &shape)?;
            self.pack_into(id, Segment { from: rows, to: packed });
            packed
        };
        self.received(id, send, to)
    }

    /// All-reduce, broadcast and reduce work in place.
    fn in_place(&mut self, id: NodeId, input: NodeId, from: View, to: &Target) -> Result<Lowered, LowerError> {
        let dtype = self.build.layout(from).dtype;
        let dense = self.build.layout(from).is_dense();
        let (value, then) = match to.out {
            Some(out) if self.build.layout(out).is_dense() => {
                if (out.buffer, out.offset) != (from.buffer, from.offset) {
                    self.build.step(self.graph.name_of(id), StepKind::Copy(Segment { from, to: out }));
                }
                (out, Vec::new())
            }
            Some(out) => {
                let shape = self.build.layout(from).shape.clone();
                let packed = self.scratch(id, to, "pack", dtype, &shape)?;
                self.pack_into(id, Segment { from, to: packed });
                (packed, vec![Segment { from: packed, to: out }])
            }
            None if dense && self.is_private(id, input, from) => {
                self.report.in_place += 1;
                (from, Vec::new())
            }
            None => {
                let value = self.result(id, to)?;
                self.build.step(self.graph.name_of(id), StepKind::Copy(Segment { from, to: value }));
                (value, Vec::new())
            }
        };
        let range = self.range_of(id, value)?;
        let part = Part { count: range.bytes / dtype.bytes(), send: range, recv: range };
        Ok(Lowered { dtype, part, then, value: to.out.unwrap_or(value) })
    }

    /// Whether nobody can tell if a launch overwrites its tensor.
    fn is_private(&self, id: NodeId, input: NodeId, view: View) -> bool {
        let class = self.facts.class(input);
        let own = self.build.owns(view.buffer) && !self.facts.foreign[class] && view.rank_bytes == 0;
        own && !self.facts.memory.written[class]
            && !self.facts.memory.escapes[class]
            && self.facts.sends[class] == 1
            && self.facts.last_read[class] == self.facts.position(id)
    }

    /// Part r of a dimension goes to rank r; what comes back is put together along another. It waits for itself.
    pub(super) fn shard_dim_alltoall(&mut self, id: NodeId) -> Result<Value, LowerError> {
        let graph = self.graph;
        let Some(group) = self.named_group(id) else {
            return refuse(graph, id, "it names no group whose ranks are known, as its last argument");
        };
        let ranks = u64::from(self.build.program.groups[group as usize].size);
        self.check_rank_count(id, ranks)?;
        let Some(&input) = graph.operands(id).first() else { return refuse(graph, id, "it takes no tensor") };
        let from = self.tensor(id, input)?;
        let args = graph.args_of(id);
        let rank = self.build.layout(from).shape.len();
        let dim = |at: usize, name: &str| {
            args.at(at, name).and_then(|arg| self.int(id, arg)).and_then(|dim| super::views::wrap(dim, rank))
        };
        let (Some(gather), Some(shard)) = (dim(1, "gather_dim"), dim(2, "shard_dim")) else {
            return refuse(graph, id, "its dimensions are not known");
        };
        let value = self.fresh(id)?;
        if self.build.layout(from).elements() == Some(0) {
            return Ok(Value::Tensor(value));
        }
        let rows = layouts::chunks(self.build.layout(from), shard, ranks);
        let place = layouts::chunks(self.build.layout(value), gather, ranks);
        let views = rows
            .zip(place)
            .and_then(|(rows, place)| Some((self.build.moved(from, rows, 0)?, self.build.moved(value, place, 0)?)));
        let Some((rows, place)) = views else {
            return refuse(graph, id, "its tensors have not one part for each rank");
        };
        let Layout { dtype, shape, .. } = self.build.layout(rows).clone();
        if self.build.layout(place).shape != shape {
            return refuse(graph, id, "its result is not as large as its tensor");
        }
        let to = Target { index: 0, listed: false, out: None };
        let device = graph.tensor(id).and_then(|ty| ty.device.clone());
        let dense = |walk: &mut Self, word: &str| match Layout::dense(dtype, &shape) {
            Some(layout) => {
                let name = format!("{}.{word}{}", graph.name_of(id), to.index);
                Ok(walk.build.tensor(&name, layout, BufferKind::Comm, device.as_deref()))
            }
            None => refuse(graph, id, "its size passes 64 bits"),
        };
        let (packed, all) = (dense(self, "pack")?, dense(self, "result")?);
        self.pack_into(id, Segment { from: rows, to: packed });
        let (send, recv) = (self.range_of(id, packed)?, self.range_of(id, all)?);
        let count = send.bytes / dtype.bytes();
        let each = vec![count / ranks; ranks as usize];
        let op = CommOp::AllToAll { send_counts: each.clone(), recv_counts: each };
        self.start_in(id, group, op, dtype, vec![Part { count, send, recv }]);
        self.land_at_once(id);
        let moves = Moves { segments: vec![Segment { from: all, to: place }], zeros: Vec::new() };
        self.build.step(graph.name_of(id), StepKind::Unpack(moves));
        Ok(Value::Tensor(value))
    }
}

/// Where one result goes.
struct Target {
    /// Its index among the inputs.
    index: usize,
    /// Whether the collective makes a tuple.
    listed: bool,
    /// The tensor that is given for it.
    out: Option<View>,
}
