//! Calls that write memory.

use super::{Step, Walk, undecided};
use crate::check::int::Int;
use crate::check::layout::{self, tensor_of};
use crate::check::terms::{Tensor, Term, Val, Value};
use crate::ir::optable::{Alias, Effects, Fence, split_target};
use crate::ir::{Arg, Name, NodeId};

impl Walk<'_, '_> {
    pub(super) fn writing_call(&mut self, id: NodeId, position: usize, target: Name, effects: &Effects) -> Step {
        let graph = self.found.graph;
        let operands = graph.operands(id);
        self.read_operands(id)?;
        let key = self.key_with_state(id, target, effects.fence);
        let written: Vec<usize> = if effects.fence == Fence::Full {
            (0..operands.len()).collect()
        } else {
            effects.writes.iter().map(|&index| index as usize).collect()
        };
        let known = self.known_write(id, target, written.len());
        if known.is_none() {
            self.note_foreign(id, key);
        }
        let mut places = Vec::with_capacity(written.len());
        for (part, &index) in written.iter().enumerate() {
            let node = operands[index];
            let Some(place) = self.memory.place(node) else {
                if self.context.tensor(self.found.vals[node.index()]).is_none() {
                    continue;
                }
                return undecided(id, format!("writes `{}`, whose memory is not followed", graph.name_of(node)));
            };
            let value = known.as_ref().and_then(|known| known.get(part).cloned()).or_else(|| {
                let val = self.context.whole(Term::Part(key, part as u32), graph.type_of(node));
                tensor_of(self.context, val)
            });
            self.note_hazards(id, place);
            let done = value.and_then(|value| self.memory.write(self.context, place, &value));
            if done.is_none() {
                return undecided(id, format!("what it writes to `{}`", graph.name_of(node)));
            }
            places.push(place);
        }
        let result = match (effects.alias, places.as_slice()) {
            (Alias::Of(_), &[place]) => Some(place),
            (Alias::Written | Alias::Any, [_, ..]) if effects.fence != Fence::Full => {
                Some(self.context.intern(Value::Tuple(places.clone())))
            }
            _ => None,
        };
        let val = match result {
            Some(place) => {
                match written.as_slice() {
                    &[index] => self.memory.set_view(self.context, id, place, operands[index]),
                    _ => self.memory.set_place(id, place),
                }
                match self.memory.read(self.context, place) {
                    Some(val) => val,
                    None => return undecided(id, "what it wrote"),
                }
            }
            None => self.context.whole(Term::Call(key), graph.type_of(id)),
        };
        self.set(id, val);
        let shared = effects.fence == Fence::Full && graph.tensor(id).is_some();
        if shared && self.memory.is_live(id, position + 1) {
            return undecided(id, "its result may share memory that is written later");
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
        let (_, operator, overload) = split_target(graph.text(target));
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
            ("_foreach_copy_", _) => self.foreach_copy(count),
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

    fn foreach_copy(&mut self, count: usize) -> Option<Vec<Tensor>> {
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
