//! Calls that write memory.

use super::{Result, Walk, undecided};
use crate::check::effects::{Alias, Effects, has_memory};
use crate::check::int::Int;
use crate::check::layout::{self, tensor_of};
use crate::check::terms::{Tensor, Term, Val, Value};
use crate::ir::operators::split_target;
use crate::ir::{Arg, Name, NodeId, Type};

impl Walk<'_, '_> {
    pub(super) fn writing_call(&mut self, id: NodeId, position: usize, target: Name, effects: &Effects) -> Result {
        let graph = self.found.graph;
        let operands = graph.operands(id);
        self.read_operands(id)?;
        let count = self.operands.len();
        self.add_placement(id, effects)?;
        self.add_overlaps(id)?;
        let key = self.key_with_state(id, target, effects);
        self.operands.truncate(count);
        if effects.reshapes {
            self.note_foreign(id, key);
            return self.reshaped(id, position, key);
        }
        // An `out` that does not fit is given another size, and so memory that is not followed.
        if let Alias::Of(index) = effects.alias
            && let Some(&into) = operands.get(index as usize).filter(|_| effects.writes.contains(&index))
            && let (Some(was), Some(made)) = (graph.tensor(into), graph.tensor(id))
            && was.shape != made.shape
        {
            return undecided(id, format!("it gives `{}` another size", graph.name_of(into)));
        }
        // One without elements fits nothing but that; where the text does not say what was made, it may have been given a size.
        let is_empty = |&&index: &&u32| {
            graph
                .tensor(operands[index as usize])
                .is_some_and(|tensor| tensor.shape.iter().any(|dim| dim.as_const() == Some(0)))
        };
        if *graph.type_of(id) == Type::Unknown
            && let Some(&index) = effects.writes.iter().find(is_empty)
        {
            return undecided(id, format!("it may give `{}` another size", graph.name_of(operands[index as usize])));
        }
        let written: Vec<usize> = effects.writes.iter().map(|&index| index as usize).collect();
        let known = if effects.may { None } else { self.known_write(id, target, written.len()) };
        if known.is_none() {
            self.note_foreign(id, key);
        }
        let mut places = Vec::with_capacity(written.len());
        for (part, &index) in written.iter().enumerate().filter(|(_, index)| has_memory(graph, operands[**index])) {
            let value = known.as_ref().and_then(|known| known.get(part).cloned());
            self.write_operand(id, operands[index], key, part as u32, value)?;
            places.extend(self.memory.place(operands[index]));
        }
        let place = match effects.alias {
            Alias::Of(index) => self.memory.place(operands[index as usize]),
            Alias::Written if places.len() == written.len() => Some(self.context.intern(Value::Tuple(places))),
            _ => None,
        };
        let Some(place) = place else {
            let val = self.context.whole(Term::Call(key), graph.type_of(id));
            self.set(id, val);
            return if self.memory.is_live(id, position + 1) { self.place_result(id, val, effects) } else { Ok(()) };
        };
        match effects.alias {
            Alias::Of(index) => self.memory.set_view(self.context, id, place, operands[index as usize]),
            _ => self.memory.set_place(id, place),
        }
        let Some(val) = self.memory.read(self.context, place) else { return undecided(id, "what it wrote") };
        self.set(id, val);
        Ok(())
    }

    /// Writes one operand: a value that is known, or what the call makes of it.
    fn write_operand(&mut self, id: NodeId, node: NodeId, key: u32, part: u32, value: Option<Tensor>) -> Result {
        let graph = self.found.graph;
        let unfollowed = format!("what it writes to `{}`", graph.name_of(node));
        let Some(place) = self.memory.place(node) else {
            self.make_loose(id, node)?;
            let val = self.context.whole(Term::Part(key, part), graph.type_of(node));
            self.memory.write_loose(self.context, node, val);
            return Ok(());
        };
        self.note_hazards(id, place);
        let parts = match (self.context.value(place), graph.type_of(node)) {
            (Value::Tuple(parts), Type::Tuple(types)) => parts.iter().copied().zip(types).collect(),
            _ => vec![(place, graph.type_of(node))],
        };
        for (index, (place, ty)) in parts.into_iter().enumerate() {
            let number = (index as u32) << 16 | part;
            // Where no type is stated, what is written is as large as its place.
            let into = self.context.tensor(place).filter(|_| *ty == Type::Unknown).cloned();
            let value = value.clone().or_else(|| {
                let val = match into {
                    Some(into) => self.context.part_like(key, number, &into)?,
                    None => self.context.whole(Term::Part(key, number), ty),
                };
                tensor_of(self.context, val)
            });
            if value.and_then(|value| self.memory.write(self.context, place, &value)).is_none() {
                return undecided(id, unfollowed);
            }
        }
        Ok(())
    }

    /// What comes after the launches that send from a storage, where nothing else does yet.
    pub(super) fn note_followed(&mut self, storage: u32, by: NodeId) {
        let storage = self.memory.storage_mut(storage);
        let sent = &storage.readers[storage.followed..];
        self.found.followers.extend(sent.iter().map(|&(launch, _)| (launch, by)));
        storage.followed = storage.readers.len();
    }

    /// Writes to what a launch in flight still sends.
    pub(super) fn note_hazards(&mut self, writer: NodeId, place: Val) {
        for storage in self.memory.storages_of(self.context, place) {
            self.note_followed(storage, writer);
            let readers = std::mem::take(&mut self.memory.storage_mut(storage).readers);
            let found = &mut self.found;
            let flies = |&(_, pending): &(usize, u32)| {
                let pending = found.pending[pending as usize];
                !pending.waited && pending.node != writer
            };
            let flying: Vec<(usize, u32)> = readers.into_iter().filter(flies).collect();
            found.hazards.extend(flying.iter().map(|&(launch, _)| (launch, writer)));
            let storage = self.memory.storage_mut(storage);
            storage.followed = flying.len();
            storage.readers = flying;
        }
    }

    /// What a call writes, where that is known: one tensor for each operand written, in the shape of that operand.
    fn known_write(&mut self, id: NodeId, target: Name, count: usize) -> Option<Vec<Tensor>> {
        let graph = self.found.graph;
        let (namespace, operator, overload) = split_target(graph.text(target));
        if !matches!(namespace, "" | "aten" | "prims" | "fsdp" | "method" | "torch") {
            return None;
        }
        let args = graph.args_of(id);
        let tensor = |walk: &Self, place: usize| tensor_of(walk.context, *walk.operands.get(place)?);
        match (operator, overload) {
            ("copy_", _) if count == 1 => {
                let (into, from) = (tensor(self, 0)?, tensor(self, 1)?);
                let from = layout::expand(&from, &into.shape)?;
                let from = layout::cast(self.context, &from, into.dtype)?;
                Some(vec![self.on_device_of(id, from)?])
            }
            ("zero_", _) if count == 1 => {
                let into = tensor(self, 0)?;
                Some(vec![crate::check::terms::constant(self.context, "0", into.dtype, into.shape)?])
            }
            ("fill_", "Scalar") if count == 1 => {
                let into = tensor(self, 0)?;
                let text = crate::check::terms::fill_text(args.at(1, "value")?)?;
                Some(vec![crate::check::terms::constant(self.context, &text, into.dtype, into.shape)?])
            }
            ("split_with_sizes_copy", "out") => {
                let from = tensor(self, 0)?;
                let dim = layout::dimension(args.at(2, "dim").map_or(Some(0), Arg::as_int)?, from.shape.len())?;
                let Arg::List(sizes) = args.at(1, "split_sizes")? else { return None };
                let sizes: Option<Vec<Int>> = sizes.iter().map(|size| size.as_int().map(Int::Known)).collect();
                let sizes = sizes?;
                let total: i64 = sizes.iter().filter_map(Int::known).sum();
                let parts = layout::split(self.context, &from, dim, &sizes)?;
                let fits = from.shape[dim].is(total) && parts.len() == count && self.outs_fit(id, &parts);
                fits.then_some(parts)
            }
            ("_foreach_copy_", _) => self.foreach_copy(id, count),
            _ => None,
        }
    }

    /// Whether `out` tensors have the dtypes and shapes of what is written to them.
    fn outs_fit(&self, id: NodeId, parts: &[Tensor]) -> bool {
        let graph = self.found.graph;
        let mut index = 0;
        let mut fit = true;
        if let Some(out) = graph.args_of(id).get("out") {
            out.for_each_operand(&mut |operand| {
                let into = self.operands.get(operand as usize).and_then(|&val| self.context.tensor(val));
                let same = |(into, part): (&Tensor, &Tensor)| into.dtype == part.dtype && into.shape == part.shape;
                fit &= into.zip(parts.get(index)).is_some_and(same);
                index += 1;
            });
        }
        fit && index == parts.len()
    }

    /// The copies are made one after the other, or at once: it has to be the same.
    fn foreach_copy(&mut self, id: NodeId, count: usize) -> Option<Vec<Tensor>> {
        let places: Vec<Option<Val>> =
            self.found.graph.operands(id).iter().map(|&operand| self.memory.place(operand)).collect();
        let (into, from) = places.split_at(count.min(places.len()));
        if self.memory.any_overlap(self.context, into, from) {
            return None;
        }
        let tensors: Option<Vec<Tensor>> =
            self.operands.iter().map(|&operand| tensor_of(self.context, operand)).collect();
        let tensors = tensors.filter(|tensors| tensors.len() == 2 * count)?;
        let (into, from) = tensors.split_at(count);
        into.iter()
            .zip(from)
            .map(|(into, from)| {
                let from = layout::expand(from, &into.shape)?;
                layout::cast(self.context, &from, into.dtype)
            })
            .collect()
    }

    /// A value copied to another device is another value: collectives run where their input is.
    fn on_device_of(&mut self, id: NodeId, from: Tensor) -> Option<Tensor> {
        let graph = self.found.graph;
        let device = |node: &NodeId| graph.tensor(*node).and_then(|ty| ty.device.as_deref());
        let [into, source, ..] = graph.operands(id) else { return None };
        match (device(into), device(source)) {
            (Some(to), Some(old)) if to != old => {
                let to = self.context.text(to);
                layout::map_leaves(self.context, &from, |leaf| Term::Moved(to, leaf))
            }
            _ => Some(from),
        }
    }
}
