//! Collectives as they are started: what they send, make and write.

use super::{Launch, Pending, Result, Walk, fault, undecided};
use crate::check::exchange;
use crate::check::groups::group_operand;
use crate::check::int::{Int, product};
use crate::check::layout::tensor_of;
use crate::check::terms::{GroupKey, Tensor, Term, Val, Value};
use crate::ir::{Arg, Collective, CollectiveKind, NodeId, RegionId, Type, Variant};

/// Target of the look-ups of collectives: no operator has it.
const EXCHANGE: u32 = u32::MAX;

impl Walk<'_, '_> {
    pub(super) fn collective(&mut self, id: NodeId, position: usize, collective: Collective) -> Result {
        let graph = self.found.graph;
        let operands = graph.operands(id);
        for &operand in operands {
            self.check_read(id, operand)?;
        }
        let sent = graph.collective_inputs(id).len();
        if sent == 0 {
            return fault(id, "sends nothing");
        }
        self.read_operands(id)?;
        let inputs = self.operands[..sent].to_vec();
        self.find_group(id, collective);
        let even = self.is_even(id, collective, inputs[0]);
        let pairs = self.pairs(id, collective);
        let results = self.results(id, collective, &inputs, even)?;
        let group = self.found.groups[collective.group.index()];
        let pending = self.found.pending.len() as u32;
        let empty = |val: &Val| self.context.tensor(*val).is_some_and(|tensor| tensor.flat.pieces.is_empty());
        let alone = self.context.groups.size(group) == Some(1)
            && !matches!(collective.kind, CollectiveKind::AllToAll | CollectiveKind::Permute);
        let trivial = alone || inputs.iter().chain(&results).all(empty);
        for _ in 0..sent {
            self.found.pending.push(Pending { node: id, waited: false });
        }
        let kind = collective.kind;
        let fences = self.fences;
        let requested = self.requested_group(id, collective);
        self.found.launches.push(Launch {
            node: id,
            kind,
            group,
            requested,
            even,
            pairs,
            inputs,
            pending,
            trivial,
            fences,
        });
        self.in_flight[id.index()] = (pending, sent as u32);
        let launch = self.found.launches.len() - 1;
        for (part, &input) in graph.collective_inputs(id).iter().enumerate() {
            let Some(place) = self.memory.place(input) else { continue };
            for storage in self.memory.storages_of(self.context, place) {
                self.memory.storage_mut(storage).readers.push((launch, pending + part as u32));
            }
        }
        let val = match (collective.coalesced, results.as_slice()) {
            (false, &[one]) => one,
            _ => self.context.intern(Value::Tuple(results.clone())),
        };
        self.set(id, val);
        match collective.variant {
            Variant::Functional => self.fresh_results(id, position, val, &results),
            Variant::InPlace => self.results_into(id, collective, &operands[..sent], &results, pending),
            Variant::Out => {
                let mut outs = Vec::new();
                if let Some(out) = graph.args_of(id).get("out") {
                    out.for_each_operand(&mut |index| outs.extend(operands.get(index as usize).copied()));
                }
                if outs.len() != sent {
                    return fault(id, format!("has {} `out` tensors for {sent} inputs", outs.len()));
                }
                self.in_place_gather(id, collective, &operands[..sent], &outs)?;
                self.results_into(id, collective, &outs, &results, pending)
            }
        }
    }

    /// Takes a group that is a value for what it is.
    fn find_group(&mut self, id: NodeId, collective: Collective) {
        let Some(operand) = group_operand(self.found.graph, id) else { return };
        if let Some(&val) = self.operands.get(operand) {
            let group = &mut self.found.groups[collective.group.index()];
            *group = self.context.groups.of_value(val, *group);
        }
    }

    /// The group with what the collective is asked for beside its kind.
    fn requested_group(&mut self, id: NodeId, collective: Collective) -> GroupKey {
        let group = self.found.groups[collective.group.index()];
        self.context.groups.with_request(group, self.found.graph.args_of(id), &self.operands)
    }

    /// Whether an all-to-all gives each rank as many rows: no lists, empty ones, or lists that say so.
    fn is_even(&self, id: NodeId, collective: Collective, input: Val) -> bool {
        let (args, operands) = (self.found.graph.args_of(id), self.found.graph.operands(id));
        let size = self.context.groups.size(self.found.groups[collective.group.index()]);
        let rows = self.context.tensor(input).and_then(|tensor| tensor.shape.first());
        let (Some(size), Some(rows), CollectiveKind::AllToAll) = (size, rows, collective.kind) else { return false };
        let Some(part) = rows.div(&Int::Known(i64::from(size))) else { return false };
        [(1, "output_split_sizes"), (2, "input_split_sizes")].into_iter().all(|(place, name)| {
            match args.at(place, name) {
                None | Some(Arg::None) => true,
                Some(Arg::List(items)) if items.is_empty() => true,
                Some(Arg::List(items)) => {
                    items.len() == size as usize
                        && items.iter().all(|item| self.number(operands, item) == Some(part.clone()))
                }
                Some(_) => false,
            }
        })
    }

    /// A number among the arguments: written, or an operand that is a size.
    fn number(&self, operands: &[NodeId], arg: &Arg) -> Option<Int> {
        let Arg::Operand(index) = arg else { return arg.as_int().map(Int::Known) };
        match self.context.value(*self.operands.get(*index as usize)?) {
            Value::Int(expr) => Some(Int::from_expr(expr.clone())),
            // A graph that is held against a program has the sizes that hints gave it; the program is for those alone.
            _ if self.found.reads.is_some() => match self.found.graph.type_of(*operands.get(*index as usize)?) {
                Type::SymInt(expr) => expr.as_constant().map(Int::Known),
                _ => None,
            },
            _ => None,
        }
    }

    /// A number for what a permute says behind its tensors: each tensor of a list travels as it would alone.
    fn pairs(&mut self, id: NodeId, collective: Collective) -> Option<u32> {
        let args = self.found.graph.args_of(id);
        let rest = args.positional.get(1..).filter(|_| collective.kind == CollectiveKind::Permute)?;
        let mut operands = false;
        rest.iter().for_each(|arg| arg.for_each_operand(&mut |_| operands = true));
        if operands {
            return None;
        }
        let pairs = self.context.pairs_id(rest);
        Some(self.context.intern_call(EXCHANGE, pairs, 1, &[]))
    }

    /// What a collective makes of each input.
    fn results(&mut self, id: NodeId, collective: Collective, inputs: &[Val], even: bool) -> Result<Vec<Val>> {
        let group = self.requested_group(id, collective);
        let mut results = Vec::with_capacity(inputs.len());
        for (place, &input) in inputs.iter().enumerate() {
            let exchange = self.context.exchange_id(collective.kind, group);
            let lookup = self.context.intern_call(EXCHANGE, exchange, 0, &[input]);
            let val = match self.context.call(lookup).result {
                Some(val) => val,
                None => {
                    let val = self.result(id, collective, place, input, even);
                    if !matches!(collective.kind, CollectiveKind::AllToAll | CollectiveKind::Permute) {
                        self.context.set_result(lookup, val);
                    }
                    val
                }
            };
            if !collective.coalesced && collective.variant != Variant::Out {
                self.check_type(id, val)?;
            }
            results.push(val);
        }
        Ok(results)
    }

    /// What a collective makes of one input.
    fn result(&mut self, id: NodeId, collective: Collective, place: usize, input: Val, even: bool) -> Val {
        let graph = self.found.graph;
        let group = self.requested_group(id, collective);
        let tensor = tensor_of(self.context, input);
        let made = tensor.and_then(|tensor| exchange::result(self.context, collective.kind, group, &tensor, even));
        if let Some(tensor) = made {
            self.found.pieces += tensor.flat.pieces.len();
            return self.context.intern(Value::Tensor(tensor));
        }
        let key = match self.pairs(id, collective) {
            Some(pairs) => pairs,
            None => {
                let (target, args) = (self.context.text(graph.target_of(id)), self.context.args_id(graph.args_of(id)));
                self.context.intern_call(target, args, 0, &self.operands)
            }
        };
        self.note_foreign(id, key);
        let ty = match graph.type_of(id) {
            Type::Tuple(parts) if collective.coalesced => parts.get(place).unwrap_or(&Type::Unknown),
            ty => ty,
        };
        self.context.whole(Term::Exchange(collective.kind, key, group, input), ty)
    }

    fn fresh_results(&mut self, id: NodeId, position: usize, val: Val, results: &[Val]) -> Result {
        if !self.memory.is_live(id, position) {
            return Ok(());
        }
        let mut places = Vec::with_capacity(results.len());
        for &result in results {
            match self.allocate(id, result)? {
                Some(place) => places.push(place),
                None => return undecided(id, "its result is written, but its type is not known"),
            }
        }
        let tuple = matches!(self.context.value(val), Value::Tuple(_));
        let place = if tuple { self.context.intern(Value::Tuple(places)) } else { places[0] };
        self.memory.set_place(id, place);
        Ok(())
    }

    /// Results that overwrite tensors.
    fn results_into(
        &mut self,
        id: NodeId,
        collective: Collective,
        into: &[NodeId],
        results: &[Val],
        pending: u32,
    ) -> Result {
        let graph = self.found.graph;
        if graph.node(id).region != RegionId::ROOT {
            return undecided(id, "writes memory inside a region");
        }
        let mut places = Vec::with_capacity(into.len());
        for (index, (&node, &result)) in into.iter().zip(results).enumerate() {
            let name = graph.name_of(node);
            let place = self.memory.place(node);
            let (Some(place), Some(value)) = (place, tensor_of(self.context, result)) else {
                return undecided(id, format!("what it makes of `{name}`"));
            };
            match self.context.tensor(place).and_then(|into| fits(into, &value)) {
                Some(true) => {}
                Some(false) => {
                    return fault(id, format!("writes a result to `{name}`, which has another dtype or size"));
                }
                None => return undecided(id, format!("whether its result has the size of `{name}`")),
            }
            self.note_hazards(id, place);
            if self.memory.write(self.context, place, &value).is_none() {
                return undecided(id, format!("what it writes to `{name}`"));
            }
            let storages = self.memory.storages_of(self.context, place);
            // What has no bytes is in no storage, and nobody can read it.
            self.found.pending[pending as usize + index].waited |= storages.is_empty();
            for storage in storages {
                let waited = |pending: u32| self.found.pending[pending as usize].waited;
                self.memory.add_pending(storage, place, pending + index as u32, waited);
            }
            places.push(place);
        }
        match (collective.coalesced, places.as_slice(), into) {
            (false, &[place], &[into]) => self.memory.set_view(self.context, id, place, into),
            _ => {
                let place = self.context.intern(Value::Tuple(places));
                self.memory.set_place(id, place);
            }
        }
        Ok(())
    }

    /// A gather whose input is part of its result must find it at its own rank's place. PyTorch's merged graphs hold
    /// that rank as a number: they are right on that rank alone.
    fn in_place_gather(&mut self, id: NodeId, collective: Collective, inputs: &[NodeId], outs: &[NodeId]) -> Result {
        let group = self.found.groups[collective.group.index()];
        let size = self.context.groups.size(group);
        for &input in inputs {
            let Some(from) = self.memory.place(input) else { continue };
            let sources = self.memory.storages_of(self.context, from);
            for &out in outs {
                let Some(to) = self.memory.place(out) else { continue };
                if !self.memory.storages_of(self.context, to).iter().any(|storage| sources.contains(storage)) {
                    continue;
                }
                let (from, to) = (self.context.tensor(from), self.context.tensor(to));
                let Some((from, to)) = from.zip(to) else { continue };
                let rank = rank_of_slot(collective.kind, size, from, to);
                if rank.is_none() && (size.is_none() || !places_are_known(from, to)) {
                    return undecided(id, "whether it sends the part of one rank of the memory that it writes");
                }
                let Some(rank) = rank else {
                    return fault(id, "sends part of the memory that it writes, not at the place of one rank");
                };
                if let Some(&(_, other, node)) =
                    self.found.ranks.iter().find(|known| known.0 == group && known.1 != rank)
                {
                    let name = self.found.graph.name_of(node);
                    return fault(id, format!("is made for rank {rank}, but `{name}` for rank {other}"));
                }
                self.found.ranks.push((group, rank, id));
            }
        }
        Ok(())
    }
}

/// Whether a result has the dtype and the number of elements of what it is written to; `None` where sizes do not say.
fn fits(into: &Tensor, value: &Tensor) -> Option<bool> {
    let (a, b) = (product(&into.shape)?, product(&value.shape)?);
    match into.dtype == value.dtype && a == b {
        true => Some(true),
        false if into.dtype != value.dtype => Some(false),
        false => a.compare(&b).filter(|order| order.is_ne()).map(|_| false),
    }
}

/// Whether it is known where both lie: a slot of a rank that is not found is then none.
fn places_are_known(from: &Tensor, to: &Tensor) -> bool {
    let known = |tensor: &Tensor| {
        tensor.flat.pieces.iter().all(|piece| piece.offset.known().is_some() && piece.bytes.known().is_some())
    };
    known(from) && known(to)
}

/// The rank whose slot of `to` is `from`.
fn rank_of_slot(kind: CollectiveKind, size: Option<u32>, from: &Tensor, to: &Tensor) -> Option<i64> {
    let (CollectiveKind::AllGather { dim: 0 }, Some(from), Some(to)) = (kind, from.flat.single(), to.flat.single())
    else {
        return None;
    };
    let dense = crate::check::flat::Piece::is_dense;
    let rank = from.offset.sub(&to.offset)?.div(&from.bytes)?.known()?;
    (dense(from) && dense(to) && (0..i64::from(size?)).contains(&rank)).then_some(rank)
}
