//! What buffers hold, and who has which bytes of an arena.

use super::clock::Clocks;
use super::{Play, different, undecided};
use crate::check::flat::{Flat, Leaf};
use crate::check::int::{Int, ONE};
use crate::check::memory::WrittenMemory;
use crate::check::pattern::{self, Pattern};
use crate::check::terms::{Context, Tensor, Term, Val, Value};
use crate::ir::DType;
use crate::program::{BufferId, Layout, Program, Range, StepKind, View};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::BTreeMap;

/// A storage of a buffer: all of it, or the slot of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    buffer: BufferId,
    /// Zero for all of the buffer.
    rank_bytes: u64,
}

pub(super) struct Contents {
    constants: HashMap<BufferId, Tensor, FxBuildHasher>,
    /// Element types of collectives that send a buffer.
    sent_as: HashMap<BufferId, DType, FxBuildHasher>,
    memory: WrittenMemory,
    leaves: HashMap<Part, Leaf, FxBuildHasher>,
    /// By buffer: the slot size that was written last, if any; zero if all of it was.
    written: Vec<u64>,
    /// By buffer: whether it has its place.
    has_place: Vec<bool>,
    /// By arena: start to end and owner.
    owners: Vec<BTreeMap<u64, (u64, BufferId)>>,
    /// Storages made so far.
    count: u32,
}

fn int(value: u64) -> Int {
    Int::Known(i64::try_from(value).unwrap_or(i64::MAX))
}

impl Contents {
    pub fn new(program: &Program, constants: HashMap<BufferId, Tensor, FxBuildHasher>) -> Self {
        let mut sent_as = HashMap::default();
        for step in &program.steps {
            if let StepKind::Collective(collective) = &step.kind {
                sent_as.extend(collective.parts.iter().map(|part| (part.send.buffer, collective.dtype)));
            }
        }
        Self {
            constants,
            sent_as,
            memory: WrittenMemory::empty(),
            leaves: HashMap::default(),
            written: vec![0; program.buffers.len()],
            has_place: vec![false; program.buffers.len()],
            owners: vec![BTreeMap::new(); program.arenas.len()],
            count: 0,
        }
    }

    /// A buffer is touched: it takes its place in its arena, if it does not have it.
    pub fn claim(&mut self, program: &Program, clocks: &Clocks, buffer: BufferId) -> Play {
        if std::mem::replace(&mut self.has_place[buffer.0 as usize], true) {
            return Ok(());
        }
        let this = program.buffer(buffer);
        let Some(place) = this.place else {
            let arena = !matches!(this.kind, crate::program::BufferKind::Input | crate::program::BufferKind::Constant);
            return if arena { different(format!("`{}` has no place in an arena", this.name)) } else { Ok(()) };
        };
        if this.bytes == 0 {
            return Ok(());
        }
        let arena = &program.arenas[place.arena as usize];
        let device_kind =
            if this.kind == crate::program::BufferKind::Comm { this.kind } else { crate::program::BufferKind::Device };
        if arena.kind != device_kind || arena.device != this.device {
            return different(format!("`{}` lies in an arena of another kind or device", this.name));
        }
        let (start, end) = (place.offset, place.offset + this.bytes);
        let owners = &self.owners[place.arena as usize];
        let before = owners.range(..start).next_back().filter(|(_, (to, _))| *to > start).map(|(&from, _)| from);
        let overlapped: Vec<u64> = before.into_iter().chain(owners.range(start..end).map(|(&from, _)| from)).collect();
        for from in overlapped {
            let Some((_, owner)) = self.owners[place.arena as usize].remove(&from) else { continue };
            let old = program.buffer(owner);
            if !clocks.is_free(owner) {
                return different(format!(
                    "`{}` takes the place of `{}`, which may still be in use",
                    this.name, old.name
                ));
            }
            // Whatever it held is gone.
            self.has_place[owner.0 as usize] = false;
            self.forget(owner);
        }
        self.owners[place.arena as usize].insert(start, (end, buffer));
        self.forget(buffer);
        Ok(())
    }

    fn forget(&mut self, buffer: BufferId) {
        self.leaves.remove(&Part { buffer, rank_bytes: 0 });
        let slot = self.written[buffer.0 as usize];
        self.leaves.remove(&Part { buffer, rank_bytes: slot });
        self.written[buffer.0 as usize] = 0;
    }

    /// The element type that a range is sent as; bytes if nothing sends it whole.
    pub fn sent_as(&self, range: Range) -> DType {
        let dtype = self.sent_as.get(&range.buffer).copied().unwrap_or(DType::U8);
        let whole = range.bytes.is_multiple_of(dtype.bytes()) && range.offset.is_multiple_of(dtype.bytes());
        if whole { dtype } else { DType::U8 }
    }

    /// The storage leaf of a part, unset if it is new.
    fn leaf(&mut self, context: &mut Context<'_>, program: &Program, part: Part) -> Play<Leaf> {
        if let Some(&leaf) = self.leaves.get(&part) {
            return Ok(leaf);
        }
        let bytes = if part.rank_bytes == 0 { program.buffer(part.buffer).bytes } else { part.rank_bytes };
        self.count += 1;
        let unset = context.intern_leaf(Term::Storage(u32::MAX - self.count), Some(DType::U8), Some(int(bytes)));
        let flat =
            if bytes == 0 { Some(Flat::empty()) } else { Flat::run(unset, Int::Known(0), pattern::dense(int(bytes))) };
        let content = flat.map(|flat| Tensor { dtype: DType::U8, shape: [int(bytes)].into_iter().collect(), flat });
        let content = self.constants.get(&part.buffer).cloned().or(content);
        let place = content.and_then(|content| self.memory.allocate(context, &content));
        let leaf = place.and_then(|place| context.tensor(place)?.flat.single().map(|piece| piece.leaf));
        match leaf {
            Some(leaf) => {
                self.leaves.insert(part, leaf);
                Ok(leaf)
            }
            None => undecided(format!("the memory of `{}`", program.buffer(part.buffer).name)),
        }
    }

    /// The place of a view with a layout: a tensor over its storage.
    fn place(&mut self, context: &mut Context<'_>, program: &Program, view: View, layout: &Layout) -> Play<Val> {
        let shape = layout.shape.iter().map(|&size| int(size)).collect();
        let element = layout.dtype.bytes();
        if layout.elements() == Some(0) {
            return Ok(context.intern(Value::Tensor(Tensor { dtype: layout.dtype, shape, flat: Flat::empty() })));
        }
        let within = view.rank_bytes == 0
            || layout
                .span_bytes()
                .and_then(|span| span.checked_add(view.offset))
                .is_some_and(|end| end <= view.rank_bytes);
        if !within {
            return undecided(format!("`{}` by rank beyond one slot", program.buffer(view.buffer).name));
        }
        let leaf = self.leaf(context, program, Part { buffer: view.buffer, rank_bytes: view.rank_bytes })?;
        let run = run_of(layout, element);
        let flat = run.and_then(|run| Flat::run(leaf, int(view.offset), run));
        match flat {
            Some(flat) => Ok(context.intern(Value::Tensor(Tensor { dtype: layout.dtype, shape, flat }))),
            None => undecided("a size that passes 64 bits"),
        }
    }

    /// What a view with another layout holds.
    pub fn get(&mut self, context: &mut Context<'_>, program: &Program, view: View, layout: &Layout) -> Play<Val> {
        let place = self.place(context, program, view, layout)?;
        match self.memory.read(context, place) {
            Some(val) => Ok(val),
            None => undecided(format!("what `{}` holds", program.show_view(view))),
        }
    }

    /// A view is written.
    pub fn put(&mut self, context: &mut Context<'_>, program: &Program, view: View, val: Val) -> Play {
        self.put_as(context, program, view, program.layout(view.layout), val)
    }

    /// A view with another layout is written.
    pub fn put_as(
        &mut self,
        context: &mut Context<'_>,
        program: &Program,
        view: View,
        layout: &Layout,
        val: Val,
    ) -> Play {
        let Some(value) = context.tensor(val).cloned() else {
            return different(format!("`{}` is written with what is not a tensor", program.show_view(view)));
        };
        let shape = layout.shape.iter().map(|&size| int(size));
        if value.dtype != layout.dtype || !shape.eq(value.shape.iter().cloned()) {
            return different(format!("`{}` is written with a tensor of another type", program.show_view(view)));
        }
        if layout.elements() == Some(0) {
            return Ok(());
        }
        if layout.overlaps_itself() {
            return different(format!("`{}` is written, but its elements share memory", program.show_view(view)));
        }
        self.write_part(Part { buffer: view.buffer, rank_bytes: view.rank_bytes });
        let place = self.place(context, program, view, layout)?;
        match self.memory.write(context, place, &value) {
            Some(()) => Ok(()),
            None => undecided(format!("what is written to `{}`", program.show_view(view))),
        }
    }

    /// A part is written: what was known of another part of its buffer holds no more.
    fn write_part(&mut self, part: Part) {
        let other = std::mem::replace(&mut self.written[part.buffer.0 as usize], part.rank_bytes);
        if other != part.rank_bytes {
            self.leaves.remove(&Part { buffer: part.buffer, rank_bytes: other });
        }
    }

    /// What a range holds, as elements.
    pub fn get_range(
        &mut self,
        context: &mut Context<'_>,
        program: &Program,
        range: Range,
        dtype: DType,
    ) -> Play<Tensor> {
        let leaf_view = self.place_of_range(context, program, range, dtype)?;
        let val = self.memory.read(context, leaf_view);
        match val.and_then(|val| context.tensor(val).cloned()) {
            Some(tensor) => Ok(tensor),
            None => undecided(format!("what `{}` holds", program.buffer(range.buffer).name)),
        }
    }

    /// Needs a constant of the module to hold `val` from its first byte to its last.
    pub fn constant_holds(&mut self, context: &mut Context<'_>, program: &Program, buffer: BufferId, val: Val) -> Play {
        let name = &program.buffer(buffer).name;
        let Some(wanted) = context.tensor(val).cloned() else { return undecided(format!("what `{name}` is left as")) };
        let bytes = program.buffer(buffer).bytes;
        let found =
            self.get_range(context, program, Range { buffer, offset: 0, bytes, rank_bytes: 0 }, wanted.dtype)?;
        if found.flat == wanted.flat {
            return Ok(());
        }
        let may_be_shared =
            wanted.flat.pieces.iter().any(|piece| matches!(context.leaf(piece.leaf).term, Term::Later(..)));
        if may_be_shared {
            return undecided(format!("what `{name}` is left as, for its memory may be that of other values"));
        }
        different(format!("`{name}` is not left as the graph leaves it"))
    }

    /// A range is written.
    pub fn put_range(&mut self, context: &mut Context<'_>, program: &Program, range: Range, value: &Tensor) -> Play {
        if range.bytes == 0 {
            return Ok(());
        }
        self.write_part(Part { buffer: range.buffer, rank_bytes: range.rank_bytes });
        let place = self.place_of_range(context, program, range, value.dtype)?;
        match self.memory.write(context, place, value) {
            Some(()) => Ok(()),
            None => undecided(format!("what is written to `{}`", program.buffer(range.buffer).name)),
        }
    }

    fn place_of_range(
        &mut self,
        context: &mut Context<'_>,
        program: &Program,
        range: Range,
        dtype: DType,
    ) -> Play<Val> {
        let count = range.bytes / dtype.bytes();
        let shape = [int(count)].into_iter().collect();
        if count == 0 {
            return Ok(context.intern(Value::Tensor(Tensor { dtype, shape, flat: Flat::empty() })));
        }
        if range.rank_bytes > 0 && range.offset + range.bytes > range.rank_bytes {
            return undecided(format!("`{}` by rank beyond one slot", program.buffer(range.buffer).name));
        }
        let leaf = self.leaf(context, program, Part { buffer: range.buffer, rank_bytes: range.rank_bytes })?;
        match Flat::run(leaf, int(range.offset), pattern::dense(int(range.bytes))) {
            Some(flat) => Ok(context.intern(Value::Tensor(Tensor { dtype, shape, flat }))),
            None => undecided("a size that passes 64 bits"),
        }
    }
}

/// The bytes of a layout from its first element on.
fn run_of(layout: &Layout, element: u64) -> Option<Pattern> {
    let mut run = Pattern::new();
    for (&size, &stride) in layout.shape.iter().zip(&layout.strides) {
        pattern::push(&mut run, int(size), int(stride.checked_mul(element)?))?;
    }
    pattern::push(&mut run, int(element), ONE)?;
    Some(run)
}
