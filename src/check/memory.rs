//! Memory that is written: which values share it, and what it holds.
//!
//! A node whose memory is written at or after its place has a *place*: a tensor over the leaf of a storage. Views of it
//! are the same operators on places. Reading a place puts the storage's content of that moment in; writing one puts a
//! value into the content. Memory that nothing writes, or no longer, needs none of this: its nodes are plain values.
//!
//! What may be shared, and is not known to be, is in [`sharing`].

use super::effects::{Alias, EffectTable, has_memory};
use super::flat::{Flat, Leaf, Piece};
use super::int::{Int, ONE, ZERO};
use super::pattern;
use super::terms::{Context, Tensor, Term, Val, Value};
use crate::ir::{Graph, Name, NodeId, Op};
use hashbrown::HashMap;
use ranges::{beside, columns_of, runs, turned_write, window};
use recent::{Recent, Written};
use rustc_hash::FxBuildHasher;
use sharing::{Joined, Sharing};

mod ranges;
mod recent;
mod sharing;

/// Memory that several values may share.
#[derive(Debug)]
pub(super) struct Storage {
    /// What it holds, without the last writes.
    content: Tensor,
    /// What was written since.
    recent: Recent,
    /// The content as one row, if it was asked for.
    row: Option<Flat>,
    /// The results of collectives that go into it, as the walk numbers them, and where.
    pending: Vec<(Val, u32)>,
    /// Launches that send from it, with their results in flight.
    pub readers: Vec<(usize, u32)>,
    /// How many of them have a write or a wait below them.
    pub followed: usize,
    /// Places in it whose memory may also be that of other values.
    joined: Vec<Joined>,
}

/// See the module docs.
pub(super) struct WrittenMemory {
    /// Class of each node; empty where nothing is written.
    class: Vec<u32>,
    /// Place in order of the last write of a class, one more; zero is none.
    last_write: Vec<u32>,
    places: HashMap<NodeId, Val, FxBuildHasher>,
    /// Storages of views of no bytes: their places do not say.
    empty: HashMap<NodeId, Vec<u32>, FxBuildHasher>,
    storages: Vec<Storage>,
    /// Storage of each storage leaf.
    by_leaf: HashMap<Leaf, u32, FxBuildHasher>,
    sharing: Sharing,
}

pub(super) fn find(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        parent[at as usize] = parent[parent[at as usize] as usize];
        at = parent[at as usize];
    }
    at
}

/// The attribute of the module that a node reads.
pub(super) fn attribute(graph: &Graph, id: NodeId) -> Option<Name> {
    let Op::Call(target) = graph.node(id).op else { return None };
    let text = graph.text(target);
    let reads = text.starts_with("self.") && !text.ends_with(".__call__") && graph.args_of(id).positional.is_empty();
    (reads && graph.operands(id).is_empty()).then_some(target)
}

impl WrittenMemory {
    /// Memory of no graph: places are given by whoever uses it.
    pub fn empty() -> Self {
        Self {
            class: Vec::new(),
            last_write: Vec::new(),
            places: HashMap::default(),
            empty: HashMap::default(),
            storages: Vec::new(),
            by_leaf: HashMap::default(),
            sharing: Sharing::default(),
        }
    }

    pub fn of(graph: &Graph, effects: &EffectTable) -> Self {
        let mut memory = Self::empty();
        if !effects.writes {
            return memory;
        }
        let mut class: Vec<u32> = (0..graph.arena_len() as u32).collect();
        let mut attributes: HashMap<Name, NodeId, FxBuildHasher> = HashMap::default();
        for &id in graph.order() {
            let operands = graph.operands(id);
            let effects = effects.get(id);
            let mut share = |other: NodeId| {
                let (a, b) = (find(&mut class, other.index() as u32), find(&mut class, id.index() as u32));
                class[a.max(b) as usize] = a.min(b);
            };
            match effects.alias {
                _ if effects.reshapes => operands.iter().for_each(|&operand| share(operand)),
                Alias::Fresh => {}
                Alias::Of(index) => operands.get(index as usize).into_iter().for_each(|&operand| share(operand)),
                Alias::Written => {
                    effects.writes.iter().for_each(|&index| share(operands[index as usize]));
                }
                Alias::Any => operands.iter().filter(|&&id| has_memory(graph, id)).for_each(|&operand| share(operand)),
            }
            if let Some(name) = attribute(graph, id) {
                share(*attributes.entry(name).or_insert(id));
            }
        }
        for index in 0..class.len() as u32 {
            class[index as usize] = find(&mut class, index);
        }
        memory.last_write = vec![0; class.len()];
        for (position, &id) in graph.order().iter().enumerate() {
            let operands = graph.operands(id);
            for &index in &effects.get(id).writes {
                if let Some(&operand) = operands.get(index as usize).filter(|&&operand| has_memory(graph, operand)) {
                    memory.last_write[class[operand.index()] as usize] = position as u32 + 1;
                }
            }
        }
        memory.class = class;
        memory
    }

    /// Whether the memory of a node is written at this place in the order or later.
    pub fn is_live(&self, id: NodeId, position: usize) -> bool {
        !self.class.is_empty() && self.last_write[self.class[id.index()] as usize] as usize > position
    }

    /// By node: a number for its memory, where anything writes that; empty where nothing is written.
    pub fn written_classes(&self) -> Vec<u32> {
        let written = |&class: &u32| if self.last_write[class as usize] > 0 { class } else { u32::MAX };
        self.class.iter().map(written).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.class.is_empty()
    }

    pub fn place(&self, id: NodeId) -> Option<Val> {
        self.places.get(&id).copied()
    }

    pub fn set_place(&mut self, id: NodeId, place: Val) {
        self.places.insert(id, place);
    }

    /// Gives a new value memory of its own; the place is all of it.
    pub fn allocate(&mut self, context: &mut Context<'_>, content: &Tensor) -> Option<Val> {
        let bytes = content.flat.total()?;
        // Storages of both graphs have leaves of their own: no two are one.
        let number = context.leaf_count() as u32;
        let leaf = context.intern_leaf(Term::Storage(number), Some(content.dtype), Some(bytes));
        self.by_leaf.insert(leaf, self.storages.len() as u32);
        self.storages.push(Storage {
            content: content.clone(),
            recent: Recent::default(),
            row: None,
            pending: Vec::new(),
            readers: Vec::new(),
            followed: 0,
            joined: Vec::new(),
        });
        context.leaf_tensor(leaf, content.dtype, content.shape.clone())
    }

    /// The storages that a place is in.
    pub fn storages_of(&self, context: &Context<'_>, place: Val) -> Vec<u32> {
        match context.value(place) {
            Value::Tensor(tensor) => {
                tensor.flat.pieces.iter().filter_map(|piece| self.by_leaf.get(&piece.leaf).copied()).collect()
            }
            Value::Tuple(parts) => parts.iter().flat_map(|&part| self.storages_of(context, part)).collect(),
            Value::Int(_) | Value::Opaque(_) => Vec::new(),
        }
    }

    /// The storages that a node's value is in.
    pub fn storages_of_node(&self, context: &Context<'_>, id: NodeId) -> Vec<u32> {
        let Some(place) = self.place(id) else { return Vec::new() };
        let storages = self.storages_of(context, place);
        if storages.is_empty() { self.empty.get(&id).cloned().unwrap_or_default() } else { storages }
    }

    /// Gives a view of `base` its place.
    pub fn set_view(&mut self, context: &Context<'_>, id: NodeId, place: Val, base: NodeId) {
        self.set_place(id, place);
        let of_tensor = self.place(base).is_some_and(|place| context.tensor(place).is_some());
        if of_tensor && self.storages_of(context, place).is_empty() {
            let storages = self.storages_of_node(context, base);
            self.empty.insert(id, storages);
        }
    }

    /// Results that go into the memory of a node.
    pub fn pending_at(&self, context: &Context<'_>, id: NodeId) -> Vec<u32> {
        let Some(place) = self.place(id) else { return Vec::new() };
        // A part of no bytes is waited for as all of its memory is.
        if context.tensor(place).is_some() && self.storages_of(context, place).is_empty() {
            let storages = self.empty.get(&id).into_iter().flatten();
            return storages.flat_map(|&storage| &self.storages[storage as usize].pending).map(|&(_, of)| of).collect();
        }
        self.pending_in(context, place)
    }

    /// Results that go into a place.
    pub fn pending_in(&self, context: &Context<'_>, place: Val) -> Vec<u32> {
        if let Value::Tuple(parts) = context.value(place) {
            return parts.iter().flat_map(|&part| self.pending_in(context, part)).collect();
        }
        let mut found = Vec::new();
        for storage in self.storages_of(context, place) {
            let pending = self.storages[storage as usize].pending.iter();
            found.extend(pending.filter(|(into, _)| self.overlap(context, *into, place)).map(|&(_, pending)| pending));
        }
        found
    }

    /// A result goes into a place; those that are waited for no longer do.
    pub fn add_pending(&mut self, storage: u32, place: Val, pending: u32, is_waited: impl Fn(u32) -> bool) {
        let list = &mut self.storages[storage as usize].pending;
        list.retain(|&(_, pending)| !is_waited(pending));
        list.push((place, pending));
    }

    pub fn storage_mut(&mut self, index: u32) -> &mut Storage {
        &mut self.storages[index as usize]
    }

    /// The value at a place now.
    pub fn read(&mut self, context: &mut Context<'_>, place: Val) -> Option<Val> {
        match context.value(place).clone() {
            Value::Tensor(tensor) => {
                let mut tables = Vec::with_capacity(tensor.flat.pieces.len());
                for piece in tensor.flat.pieces.iter() {
                    tables.push(self.read_piece(context, piece)?);
                }
                let flat = if tables.is_empty() { Flat::empty() } else { beside(context, tables)?.normalize()? };
                Some(context.intern(Value::Tensor(Tensor { flat, ..tensor })))
            }
            Value::Tuple(parts) => {
                let parts: Option<Vec<Val>> = parts.iter().map(|&part| self.read(context, part)).collect();
                parts.map(|parts| context.intern(Value::Tuple(parts)))
            }
            Value::Int(_) | Value::Opaque(_) => Some(place),
        }
    }

    fn read_piece(&mut self, context: &mut Context<'_>, piece: &Piece) -> Option<Flat> {
        let Some(&storage) = self.by_leaf.get(&piece.leaf) else {
            return Some(Flat { rows: ONE, width: piece.bytes.clone(), pieces: std::rc::Rc::new([piece.clone()]) });
        };
        self.refresh(context, storage)?;
        let mut run = piece.outer.clone();
        pattern::extend(&mut run, &piece.inner)?;
        if let Some(flat) = self.read_range(context, storage, &piece.offset, &run) {
            return Some(flat);
        }
        self.settle(context, storage)?;
        let content = &self.storages[storage as usize].content.flat;
        window(context, content, &piece.offset, &run)
    }

    /// A range of a storage with recent writes, without putting them all into its content; `None` where it has none, the
    /// range is all of it, or no known one.
    fn read_range(
        &mut self,
        context: &mut Context<'_>,
        storage: u32,
        offset: &Int,
        run: &[pattern::Loop],
    ) -> Option<Flat> {
        let storage = &mut self.storages[storage as usize];
        let [step] = run else { return None };
        let (start, count) = (offset.known()?, step.count.known()?);
        let (end, total) = (start.checked_add(count)?, storage.content.flat.total()?.known()?);
        if storage.recent.is_empty() || !step.stride.is(1) || count == 0 || count == total || end > total || start < 0 {
            return None;
        }
        if storage.row.is_none() {
            storage.row = context.with_rows(&storage.content.flat, &ONE);
        }
        storage.recent.read(storage.row.as_ref()?, start, end)
    }

    /// Puts recent writes into the content.
    fn settle(&mut self, context: &mut Context<'_>, storage: u32) -> Option<()> {
        let storage = &mut self.storages[storage as usize];
        if storage.recent.is_empty() {
            return Some(());
        }
        let base = context.with_rows(&storage.content.flat, &ONE)?;
        storage.row = None;
        storage.content.flat = storage.recent.settle(context, base)?;
        Some(())
    }

    /// Puts a value where a place is, whatever else may be there.
    fn put(&mut self, context: &mut Context<'_>, place: Val, value: &Tensor) -> Option<()> {
        let tensor = super::layout::tensor_of(context, place)?;
        let Some(piece) = tensor.flat.single() else {
            return tensor.flat.pieces.is_empty().then_some(());
        };
        let storage = *self.by_leaf.get(&piece.leaf)?;
        let total = self.storages[storage as usize].content.flat.total()?;
        let (run, flat) =
            turned_write(context, piece, &value.flat).unwrap_or_else(|| (piece.inner.clone(), value.flat.clone()));
        if piece.offset.is(0) && run == pattern::dense(total.clone()) {
            let storage = &mut self.storages[storage as usize];
            storage.content.flat = flat;
            storage.recent.clear();
            storage.row = None;
            return Some(());
        }
        if let Some(columns) = columns_of(&run, &total).filter(|columns| columns.rows.known().is_none()) {
            self.settle(context, storage)?;
            let content = self.storages[storage as usize].content.flat.clone();
            self.storages[storage as usize].content.flat = columns.overlay(context, &content, &piece.offset, &flat)?;
            self.storages[storage as usize].row = None;
            return Some(());
        }
        let row = context.with_rows(&flat, &ONE)?;
        let mut at = ZERO;
        runs(&run, &piece.offset, &mut |offset, bytes| {
            let next = at.add(&bytes)?;
            self.write_range(context, storage, &offset, &row.columns(&at, &next)?)?;
            at = next;
            Some(())
        })
    }

    fn write_range(&mut self, context: &mut Context<'_>, storage: u32, at: &Int, flat: &Flat) -> Option<()> {
        if let Written::SettleFirst = self.storages[storage as usize].recent.write(at, flat)? {
            self.settle(context, storage)?;
            self.storages[storage as usize].recent.write(at, flat)?;
        }
        Some(())
    }
}
