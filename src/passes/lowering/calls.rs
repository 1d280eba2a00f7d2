//! Calls: copies, packs of other kinds, and compute steps.

use super::LowerError;
use super::build::refuse;
use super::walk::{Lowering, Value};
use crate::ir::Short;
use crate::ir::operators::{Alias, CommunicateKind, Fence, OperatorId, Placement, ViewKind};
use crate::ir::{Arg, NodeId, Op, TensorType, Type};
use crate::program::{BufferKind, CommOp, Compute, Layout, Made, Moves, Operand, Segment, StepKind, View};

impl Lowering<'_> {
    pub(super) fn call(&mut self, id: NodeId) -> Result<Value, LowerError> {
        let graph = self.graph;
        if let Type::SymInt(expr) = graph.type_of(id)
            && let Some(value) = expr.as_constant()
        {
            return Ok(Value::Int(value));
        }
        if self.facts.is_constant(id) {
            return self.constant(id);
        }
        if let Some(&first) = graph.operands(id).first() {
            if let (Value::Padded(number), false) = (self.value(first), self.facts.effects.get(id).shape_only) {
                return self.of_padded(id, number);
            }
            if self.plan.absorbed.contains_key(&id) {
                self.unconverted.insert(id);
                return Ok(self.value(first));
            }
            if self.unconverted.contains(&first) && self.facts.is_flat_view(id) {
                self.unconverted.insert(id);
            }
        }
        if let Some(&number) = self.plan.by_cat.get(&id) {
            return self.bucket_cat(id, number);
        }
        if let Some(value) = self.called(id)? {
            return Ok(value);
        }
        if let Some(value) = self.communication(id)? {
            return Ok(value);
        }
        if self.facts.is_view(id) {
            return self.view_or_copy(id);
        }
        match self.facts.operator(id) {
            OperatorId::Clone => match self.copied(id)? {
                Some(value) => Ok(value),
                None => self.compute(id),
            },
            OperatorId::CopyInto => match self.copied_in(id) {
                Some(value) => Ok(value),
                None => self.compute(id),
            },
            OperatorId::Cat => match self.joined(id)? {
                Some(value) => Ok(value),
                None => self.compute(id),
            },
            _ => self.compute(id),
        }
    }

    fn constant(&mut self, id: NodeId) -> Result<Value, LowerError> {
        let graph = self.graph;
        let Op::Call(target) = graph.node(id).op else { return Ok(Value::Nothing) };
        if let Some(&known) = self.constants.get(&target) {
            return Ok(Value::Tensor(known));
        }
        let Some(ty) = graph.tensor(id) else { return Ok(Value::Host(self.host(id, None))) };
        let layout = self.fresh_layout(id, ty)?;
        let view = self.build.tensor(graph.text(target), layout, BufferKind::Constant, ty.device.as_deref());
        self.constants.insert(target, view);
        Ok(Value::Tensor(view))
    }

    fn view_or_copy(&mut self, id: NodeId) -> Result<Value, LowerError> {
        if let Some(value) = self.view(id) {
            return Ok(value);
        }
        // A view may be none where a bucket's memory lies otherwise.
        let copies = self.facts.view_kind(id).is_some_and(|kind| {
            matches!(kind, ViewKind::View | ViewKind::Reshape | ViewKind::Flatten | ViewKind::Contiguous)
        });
        if copies && let Some(value) = self.reshaped(id)? {
            return Ok(value);
        }
        if self.facts.is_written(id) {
            return refuse(
                self.graph,
                id,
                "something writes memory that it may be a view of, and where it lies is not known",
            );
        }
        self.compute(id)
    }

    /// Where a copy of `from` for node `id` goes, and whether it may be part of the unpack of a bucket.
    fn copy_to(&mut self, id: NodeId, from: View, to: View) {
        let segment = Segment { from, to };
        let node = self.graph.name_of(id);
        let bucket = self.build.is_comm(from.buffer) && !self.build.is_comm(to.buffer);
        let operand = self.graph.operands(id).first().copied();
        let still = operand.filter(|&operand| !self.facts.is_written(operand) && !self.facts.is_written(id));
        let Some(operand) = still.filter(|_| bucket) else {
            self.build.step(node, StepKind::Copy(segment));
            return;
        };
        // Another class in the same buffer is the result of a later launch in place.
        let key = (from.buffer, self.facts.class(operand));
        if let (Some(&step), true) = (self.unpacks.get(&key), self.options.unpack_at_once)
            && let StepKind::Unpack(moves) = &mut self.build.program.steps[step.0 as usize].kind
        {
            moves.segments.push(segment);
            return;
        }
        let step = self.build.step(node, StepKind::Unpack(Moves { segments: vec![segment], zeros: Vec::new() }));
        self.unpacks.insert(key, step);
    }

    /// A dense copy in another shape.
    fn reshaped(&mut self, id: NodeId) -> Result<Option<Value>, LowerError> {
        let (Some(&operand), Some(ty)) = (self.graph.operands(id).first(), self.graph.tensor(id)) else {
            return Ok(None);
        };
        let Value::Tensor(from) = self.value(operand) else { return Ok(None) };
        let Layout { dtype, shape, .. } = self.build.layout(from).clone();
        let dtype_now = if self.unconverted.contains(&id) { dtype } else { ty.dtype };
        let plain = TensorType { strides: None, dtype: dtype_now, ..ty.clone() };
        let wanted = self.fresh_layout(id, &plain)?;
        let (Some(old), true) = (Layout::dense(dtype, &shape), dtype == wanted.dtype) else { return Ok(None) };
        if old.elements() != wanted.elements() {
            return Ok(None);
        }
        let view = self.build.tensor(self.graph.name_of(id), wanted, BufferKind::Device, ty.device.as_deref());
        let layout = self.build.layout_id(old);
        self.copy_to(id, from, View { layout, ..view });
        Ok(Some(Value::Tensor(view)))
    }

    /// A clone.
    fn copied(&mut self, id: NodeId) -> Result<Option<Value>, LowerError> {
        let (Some(&operand), Some(ty)) = (self.graph.operands(id).first(), self.graph.tensor(id)) else {
            return Ok(None);
        };
        let Value::Tensor(from) = self.value(operand) else { return Ok(None) };
        let old = self.build.layout(from);
        let shape = ty.shape.iter().map(crate::ir::Dim::as_const);
        if old.dtype != ty.dtype || !shape.eq(old.shape.iter().map(|&size| Some(size))) {
            return Ok(None);
        }
        let to = self.fresh(id)?;
        self.copy_to(id, from, to);
        Ok(Some(Value::Tensor(to)))
    }

    /// `copy_(x, y)` between tensors alike that do not share a buffer.
    fn copied_in(&mut self, id: NodeId) -> Option<Value> {
        let &[to, from] = self.graph.operands(id) else { return None };
        let (Value::Tensor(to), Value::Tensor(from)) = (self.value(to), self.value(from)) else { return None };
        let (new, old) = (self.build.layout(to), self.build.layout(from));
        let alike = (new.dtype, &new.shape) == (old.dtype, &old.shape) && to.buffer != from.buffer;
        let whole = self.graph.args_of(id).positional.iter().all(|arg| matches!(arg, Arg::Operand(_) | Arg::Bool(_)));
        if !alike || !whole || new.strides.contains(&0) {
            return None;
        }
        self.build.step(self.graph.name_of(id), StepKind::Copy(Segment { from, to }));
        Some(Value::Tensor(to))
    }

    /// A `cat` into a buffer of its own.
    fn joined(&mut self, id: NodeId) -> Result<Option<Value>, LowerError> {
        let Some((operands, dim)) = self.facts.cat(id) else { return Ok(None) };
        let views: Option<Vec<View>> = operands
            .iter()
            .map(|&operand| match self.value(operand) {
                Value::Tensor(view) => Some(view),
                _ => None,
            })
            .collect();
        let Some(views) = views else { return Ok(None) };
        let to = self.fresh(id)?;
        let whole = self.build.layout(to).clone();
        let mut start = 0;
        let mut segments = Vec::with_capacity(views.len());
        for from in views {
            let length = self.build.layout(from).shape[dim];
            let part = super::layouts::slice(&whole, dim, start, length, 1);
            let Some(place) = part.and_then(|(part, skip)| self.build.moved(to, part, skip)) else {
                return refuse(self.graph, id, "its parts do not fit into it");
            };
            if self.build.layout(place).shape != self.build.layout(from).shape {
                return refuse(
                    self.graph,
                    id,
                    "its parts differ in other dimensions than the one they are put together along",
                );
            }
            if self.build.layout(from).elements() != Some(0) {
                segments.push(Segment { from, to: place });
            }
            start += length;
        }
        if !segments.is_empty() {
            self.build.step(self.graph.name_of(id), StepKind::Pack(Moves { segments, zeros: Vec::new() }));
        }
        Ok(Some(Value::Tensor(to)))
    }

    /// A step that calls the operator.
    pub(super) fn compute(&mut self, id: NodeId) -> Result<Value, LowerError> {
        let graph = self.graph;
        let effects = self.facts.effects.get(id).clone();
        let operands: Short<Operand, 2> =
            graph.operands(id).iter().map(|&operand| self.operand(self.value(operand))).collect();
        let holds_tensor = |operand: &Operand| !matches!(operand, Operand::Int(_) | Operand::Host(_));
        let fence = effects.fence == Fence::Full;
        if fence && operands.iter().any(holds_tensor) {
            return refuse(graph, id, "nothing is known of what it does with the memory it is given");
        }
        if effects.sees > Placement::Nothing {
            self.check_placement(id, effects.sees)?;
        }
        if effects.restates {
            return refuse(graph, id, "it changes the sizes or strides of a tensor in place, which no step does");
        }
        if operands.iter().zip(graph.operands(id)).any(|(_, &operand)| matches!(self.value(operand), Value::Padded(_)))
        {
            return refuse(graph, id, "it reads a padded bucket as a whole");
        }
        let hands_on = matches!(effects.alias, Alias::Of(_) | Alias::Written);
        let (made, value) = if effects.writes.is_empty() || !hands_on {
            self.check_not_written_later(id, effects.alias)?;
            if effects.writes.is_empty()
                && effects.alias != Alias::Fresh
                && self.facts.is_written(id)
                && self.graph.tensor(id).is_some()
            {
                return refuse(graph, id, "its memory is written, and whose it is, is not known");
            }
            self.made(id)?
        } else {
            (Made::Nothing, self.written_value(id, &effects.writes, effects.alias))
        };
        let Op::Call(target) = graph.node(id).op else { return Ok(Value::Nothing) };
        let key = (target.index() as u32, graph.node(id).args.index() as u32);
        let call = self.build.call(key, || (graph.text(target).into(), graph.args_of(id).clone()));
        let writes = effects.writes.iter().copied().collect();
        let kind = StepKind::Compute(Compute { call, operands, writes, made });
        if fence {
            self.build.fence(graph.name_of(id), kind);
        } else {
            self.build.step(graph.name_of(id), kind);
        }
        Ok(value)
    }

    /// Refuses a call that sees strides or storage offsets of a tensor that lies otherwise in the program.
    fn check_placement(&self, id: NodeId, sees: Placement) -> Result<(), LowerError> {
        for &operand in self.graph.operands(id) {
            let Value::Tensor(view) = self.value(operand) else { continue };
            let layout = self.build.layout(view);
            let buffer = self.build.program.buffer(view.buffer);
            let stated = self.graph.tensor(operand).and_then(super::build::layout_of);
            let whole = view.offset == 0 && view.rank_bytes == 0 && layout.span_bytes() == Some(buffer.bytes);
            let own = !self.facts.is_view(operand) && buffer.kind != BufferKind::Comm;
            let placed = sees < Placement::Storage || (whole && own);
            if !(placed && stated.as_ref() == Some(layout)) {
                let name = self.graph.name_of(operand);
                let reason = format!("it sees how `{name}` lies in memory, and in the program that lies otherwise");
                return refuse(self.graph, id, reason);
            }
        }
        Ok(())
    }

    /// Refuses a call whose result may be memory of what it is given, where that is written later: then the result would
    /// have to change, too, and a step makes memory of its own.
    fn check_not_written_later(&self, id: NodeId, alias: Alias) -> Result<(), LowerError> {
        if alias != Alias::Any || !self.facts.is_written_after(id) {
            return Ok(());
        }
        let reason =
            "its result may be memory of what it is given, and something writes that later; declare what it does";
        refuse(self.graph, id, reason)
    }

    /// The value of a call that writes its operands.
    fn written_value(&mut self, id: NodeId, writes: &[u32], alias: Alias) -> Value {
        let operand =
            |index: u32| self.graph.operands(id).get(index as usize).map_or(Value::Nothing, |&at| self.value(at));
        match alias {
            Alias::Of(index) => operand(index),
            Alias::Fresh | Alias::Written | Alias::Any => {
                let parts = writes.iter().map(|&index| operand(index)).collect();
                self.tuple(parts)
            }
        }
    }

    /// Memory for what a call makes.
    pub(super) fn made(&mut self, id: NodeId) -> Result<(Made, Value), LowerError> {
        match self.graph.type_of(id) {
            Type::Tensor(_) => {
                let view = self.fresh(id)?;
                Ok((Made::Tensor(view), Value::Tensor(view)))
            }
            Type::Tuple(types) => {
                let types: Vec<Option<TensorType>> = types.iter().map(|ty| ty.as_tensor().cloned()).collect();
                self.made_tuple(id, &types)
            }
            _ if self.facts.readers(id).is_empty() => Ok((Made::Nothing, Value::Nothing)),
            Type::Unknown => match self.types_by_readers(id) {
                Some(types) => self.made_tuple(id, &types),
                None => {
                    let host = self.host(id, None);
                    Ok((Made::Host(host), Value::Host(host)))
                }
            },
            Type::SymInt(_) | Type::SymOther(_) | Type::Token => {
                let host = self.host(id, None);
                Ok((Made::Host(host), Value::Host(host)))
            }
        }
    }

    /// What a call makes whose type is not stated, if only its elements are read: their types, as far as they are read.
    fn types_by_readers(&self, id: NodeId) -> Option<Vec<Option<TensorType>>> {
        let mut types: Vec<Option<TensorType>> = Vec::new();
        for &reader in self.facts.readers(id) {
            if !matches!(self.facts.view_kind(reader), Some(ViewKind::Element | ViewKind::TupleElement)) {
                return None;
            }
            let index = self.int(reader, self.graph.args_of(reader).at(1, "index")?)?;
            let index = usize::try_from(index).ok().filter(|&index| index < 4096)?;
            types.resize(types.len().max(index + 1), None);
            types[index] = Some(self.graph.tensor(reader)?.clone());
        }
        Some(types)
    }

    fn made_tuple(&mut self, id: NodeId, types: &[Option<TensorType>]) -> Result<(Made, Value), LowerError> {
        let (mut made, mut values) = (Vec::with_capacity(types.len()), Vec::with_capacity(types.len()));
        for (index, ty) in types.iter().enumerate() {
            let (one, value) = match ty {
                Some(ty) => {
                    let layout = self.fresh_layout(id, ty)?;
                    let name = format!("{}.{index}", self.graph.name_of(id));
                    let view = self.build.tensor(&name, layout, BufferKind::Device, ty.device.as_deref());
                    (Made::Tensor(view), Value::Tensor(view))
                }
                None => (Made::Nothing, Value::Nothing),
            };
            made.push(one);
            values.push(value);
        }
        Ok((Made::Tuple(made), self.tuple(values)))
    }

    /// Sends, receives, barriers and the like, which are calls in the graph.
    fn communication(&mut self, id: NodeId) -> Result<Option<Value>, LowerError> {
        let graph = self.graph;
        let OperatorId::Communicate(kind) = self.facts.operator(id) else { return Ok(None) };
        let (sends, waited_later) = match kind {
            CommunicateKind::ShardDimAllToAll => return self.shard_dim_alltoall(id).map(Some),
            CommunicateKind::Barrier => {
                let Some(group) = self.named_group(id) else { return Ok(None) };
                self.start_in(id, group, CommOp::Barrier, crate::ir::DType::U8, Vec::new());
                self.land_at_once(id);
                return Ok(Some(Value::Nothing));
            }
            CommunicateKind::Send => (true, false),
            CommunicateKind::Recv => (false, false),
            CommunicateKind::Isend => (true, true),
            CommunicateKind::Irecv => (false, true),
        };
        let Some(group) = self.named_group(id) else {
            return refuse(graph, id, "it names no group whose ranks are known, as its last argument");
        };
        let peer = graph.args_of(id).positional.get(1).and_then(|arg| self.int(id, arg));
        let Some(peer) = peer.and_then(|peer| u32::try_from(peer).ok()) else {
            return refuse(graph, id, "its second argument is not a rank");
        };
        let Some(&operand) = graph.operands(id).first() else {
            return refuse(graph, id, "it takes no tensor");
        };
        let view = self.tensor(id, operand)?;
        let Some(range) = self.build.range(view) else {
            return refuse(graph, id, "its tensor is not dense");
        };
        if sends && waited_later && self.facts.is_written_in_flight(id, operand) {
            return refuse(graph, id, "its tensor is written while it is sent; wait for it before, or clone it");
        }
        let dtype = self.build.layout(view).dtype;
        let op = if sends { CommOp::Send { peer } } else { CommOp::Recv { peer } };
        let part = crate::program::Part { count: range.bytes / dtype.bytes(), send: range, recv: range };
        self.start_in(id, group, op, dtype, vec![part]);
        if !waited_later {
            self.land_at_once(id);
        }
        Ok(Some(Value::Tensor(view)))
    }
}
