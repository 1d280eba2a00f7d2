//! Memory that is written: which values share it, and what it holds.
//!
//! A node whose memory is written at or after its place has a *place*: a tensor over the leaf of a storage. Views of it
//! are the same operators on places. Reading a place puts the storage's content of that moment in; writing one puts a
//! value into the content. Memory that nothing writes, or no longer, needs none of this: its nodes are plain values.

use super::flat::{Flat, Leaf, Piece};
use super::int::{Int, ONE, ZERO};
use super::pattern::{self, Pattern, Step};
use super::terms::{Context, Tensor, Term, Val, Value};
use crate::ir::optable::{Alias, Effects, Fence};
use crate::ir::{Graph, NodeId, TypeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Most ranges that one write may fall into.
const MAX_RANGES: i64 = 1 << 16;

/// Effects of every node, found once per distinct kind of call.
pub(super) struct EffectTable {
    index: Vec<u32>,
    distinct: Vec<Effects>,
    any_write: bool,
}

impl EffectTable {
    pub fn of(graph: &Graph) -> Self {
        let mut known = HashMap::<_, u32, FxBuildHasher>::default();
        let mut table = Self { index: vec![0; graph.arena_len()], distinct: Vec::new(), any_write: false };
        for &id in graph.order() {
            let node = graph.node(id);
            let index = *known.entry((node.op, node.args, node.ty != TypeId::UNKNOWN)).or_insert_with(|| {
                table.distinct.push(crate::ir::optable::effects(graph, id));
                table.distinct.len() as u32 - 1
            });
            table.index[id.index()] = index;
        }
        table.any_write = table.distinct.iter().any(|effects| !writes(effects, 1).is_empty());
        table
    }

    pub fn get(&self, id: NodeId) -> &Effects {
        &self.distinct[self.index[id.index()] as usize]
    }
}

/// Operands that may be written: a fence may write whatever it is given.
fn writes(effects: &Effects, operands: usize) -> Vec<u32> {
    if effects.fence == Fence::Full { (0..operands as u32).collect() } else { effects.writes.to_vec() }
}

/// Memory that several values may share.
#[derive(Debug)]
pub(super) struct Storage {
    /// What it holds, without the last writes.
    content: Tensor,
    /// Ranges written since, in order.
    recent: Vec<(Int, Flat)>,
    /// The collective's result that is in flight into it, as the walk numbers them.
    pub pending: Option<u32>,
    /// Launches that send from it, with their results in flight.
    pub readers: Vec<(usize, u32)>,
    /// How many of them have a write or a wait below them.
    pub followed: usize,
}

/// See the module docs.
pub(super) struct Memory {
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
}

fn find(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        parent[at as usize] = parent[parent[at as usize] as usize];
        at = parent[at as usize];
    }
    at
}

impl Memory {
    /// Memory of no graph: places are given by whoever uses it.
    pub fn empty() -> Self {
        Self {
            class: Vec::new(),
            last_write: Vec::new(),
            places: HashMap::default(),
            empty: HashMap::default(),
            storages: Vec::new(),
            by_leaf: HashMap::default(),
        }
    }

    pub fn of(graph: &Graph, effects: &EffectTable) -> Self {
        let mut memory = Self::empty();
        if !effects.any_write {
            return memory;
        }
        let mut class: Vec<u32> = (0..graph.arena_len() as u32).collect();
        for &id in graph.order() {
            let operands = graph.operands(id);
            let shared = match effects.get(id).alias {
                Alias::Fresh => &[],
                Alias::Of(index) => operands.get(index as usize..=index as usize).unwrap_or(&[]),
                Alias::Any => operands,
            };
            for operand in shared {
                let (a, b) = (find(&mut class, operand.index() as u32), find(&mut class, id.index() as u32));
                class[a.max(b) as usize] = a.min(b);
            }
        }
        for index in 0..class.len() as u32 {
            class[index as usize] = find(&mut class, index);
        }
        memory.last_write = vec![0; class.len()];
        for (position, &id) in graph.order().iter().enumerate() {
            let operands = graph.operands(id);
            for index in writes(effects.get(id), operands.len()) {
                if let Some(operand) = operands.get(index as usize) {
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
            recent: Vec::new(),
            pending: None,
            readers: Vec::new(),
            followed: 0,
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
        self.settle(context, storage)?;
        let content = &self.storages[storage as usize].content.flat;
        let mut run = piece.outer.clone();
        pattern::extend(&mut run, &piece.inner)?;
        window(context, content, &piece.offset, &run)
    }

    /// Puts recent writes into the content.
    fn settle(&mut self, context: &mut Context<'_>, storage: u32) -> Option<()> {
        let storage = &mut self.storages[storage as usize];
        if storage.recent.is_empty() {
            return Some(());
        }
        let recent = std::mem::take(&mut storage.recent);
        let base = context.with_rows(&storage.content.flat, &ONE)?;
        let mut order: Vec<usize> = (0..recent.len()).collect();
        let known: Option<Vec<i64>> = recent.iter().map(|(at, _)| at.known()).collect();
        let ends: Option<Vec<i64>> = recent.iter().map(|(at, flat)| at.add(&flat.total()?)?.known()).collect();
        if let (Some(starts), Some(ends)) = (&known, &ends) {
            order.sort_by_key(|&index| starts[index]);
            if order.windows(2).all(|pair| ends[pair[0]] <= starts[pair[1]]) {
                let writes = order.iter().map(|&index| recent[index].clone()).collect();
                storage.content.flat = overlay(context, base, writes)?;
                return Some(());
            }
        }
        let mut flat = base;
        for write in recent {
            flat = overlay(context, flat, vec![write])?;
        }
        storage.content.flat = flat;
        Some(())
    }

    /// Puts a value where a place is. They have equally many bytes.
    pub fn write(&mut self, context: &mut Context<'_>, place: Val, value: &Tensor) -> Option<()> {
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
            return Some(());
        }
        if let Some(columns) = columns_of(&run, &total).filter(|columns| columns.rows.known().is_none()) {
            self.settle(context, storage)?;
            let content = self.storages[storage as usize].content.flat.clone();
            self.storages[storage as usize].content.flat = columns.overlay(context, &content, &piece.offset, &flat)?;
            return Some(());
        }
        let row = context.with_rows(&flat, &ONE)?;
        let recent = &mut self.storages[storage as usize].recent;
        let mut at = ZERO;
        runs(&run, &piece.offset, &mut |offset, bytes| {
            let next = at.add(&bytes)?;
            recent.push((offset, row.columns(&at, &next)?));
            at = next;
            Some(())
        })
    }
}

/// All rows of a storage, and of each as many bytes.
struct Columns {
    rows: Int,
    row_bytes: Int,
    bytes: Int,
}

/// A pattern that visits the same columns of each row of a storage of `total` bytes.
fn columns_of(run: &[Step], total: &Int) -> Option<Columns> {
    let (rows, bytes) = match run {
        [rows, columns] if columns.stride.is(1) => (rows, columns.count.clone()),
        [rows] if !rows.stride.is(1) => (rows, ONE),
        _ => return None,
    };
    let all = rows.count.mul(&rows.stride)? == *total;
    all.then(|| Columns { rows: rows.count.clone(), row_bytes: rows.stride.clone(), bytes })
}

impl Columns {
    /// These columns of a storage's content, from `offset` on.
    fn of(&self, context: &mut Context<'_>, content: &Flat, offset: &Int) -> Option<Flat> {
        context.with_rows(content, &self.rows)?.columns(offset, &offset.add(&self.bytes)?)?.normalize()
    }

    /// A storage's content with other bytes in these columns.
    fn overlay(&self, context: &mut Context<'_>, content: &Flat, offset: &Int, value: &Flat) -> Option<Flat> {
        let end = offset.add(&self.bytes)?;
        if !end.at_most(&self.row_bytes)? {
            return None;
        }
        let table = context.with_rows(content, &self.rows)?;
        let mut parts = Vec::new();
        if !offset.is(0) {
            parts.push(table.columns(&ZERO, offset)?);
        }
        parts.push(context.with_rows(value, &self.rows)?);
        if end != self.row_bytes {
            parts.push(table.columns(&end, &self.row_bytes)?);
        }
        Flat::beside(parts)?.normalize()
    }
}

/// Visits the dense runs of a pattern in order.
fn runs(run: &[Step], offset: &Int, visit: &mut dyn FnMut(Int, Int) -> Option<()>) -> Option<()> {
    match run {
        [] => visit(offset.clone(), ONE),
        [last] if last.stride.is(1) => visit(offset.clone(), last.count.clone()),
        [first, rest @ ..] => {
            let count = first.count.known().filter(|count| *count <= MAX_RANGES)?;
            (0..count).try_for_each(|turn| {
                let offset = offset.add(&first.stride.mul(&Int::Known(turn))?)?;
                runs(rest, &offset, visit)
            })
        }
    }
}

/// Tables side by side as one row, where they have different numbers of rows.
fn beside(context: &mut Context<'_>, tables: Vec<Flat>) -> Option<Flat> {
    if let [_] = tables.as_slice() {
        return tables.into_iter().next();
    }
    let rows: Option<Vec<Flat>> = tables.iter().map(|table| context.with_rows(table, &ONE)).collect();
    Flat::beside(rows?)
}

/// One row with ranges written over, which do not overlap and stand in order.
fn overlay(context: &mut Context<'_>, base: Flat, writes: Vec<(Int, Flat)>) -> Option<Flat> {
    let mut parts = Vec::with_capacity(2 * writes.len() + 1);
    let mut at = ZERO;
    for (start, flat) in writes {
        if at != start {
            parts.push(base.columns(&at, &start)?);
        }
        at = start.add(&flat.total()?)?;
        parts.push(context.with_rows(&flat, &ONE)?);
    }
    if at != base.width {
        parts.push(base.columns(&at, &base.width)?);
    }
    Flat::beside(parts)?.normalize()
}

/// The bytes of `content` that a pattern visits.
fn window(context: &mut Context<'_>, content: &Flat, offset: &Int, run: &Pattern) -> Option<Flat> {
    let total = content.total()?;
    if offset.is(0) && *run == pattern::dense(total.clone()) {
        return Some(content.clone());
    }
    if let Some(piece) = content.single()
        && piece.inner == pattern::dense(total.clone())
    {
        return Flat::run(piece.leaf, piece.offset.add(offset)?, run.clone());
    }
    if let Some(columns) = columns_of(run, &total) {
        return columns.of(context, content, offset);
    }
    if let Some(turned) = turned_window(context, content, offset, run) {
        return Some(turned);
    }
    let row = context.with_rows(content, &ONE)?;
    let mut parts = Vec::new();
    runs(run, offset, &mut |at, bytes| {
        parts.push(row.columns(&at, &at.add(&bytes)?)?);
        Some(())
    })?;
    Flat::beside(parts)?.normalize()
}

/// A window of dimensions in another order: that in the order of their strides, turned.
fn turned_window(context: &mut Context<'_>, content: &Flat, offset: &Int, run: &Pattern) -> Option<Flat> {
    let order = by_stride(run);
    if order.is_sorted() {
        return None;
    }
    let mut sorted = Pattern::new();
    for &index in &order {
        pattern::push(&mut sorted, run[index].count.clone(), run[index].stride.clone())?;
    }
    let flat = window(context, content, offset, &sorted)?;
    let shape = order.iter().map(|&index| run[index].count.clone()).collect();
    let back: Vec<usize> =
        (0..run.len()).map(|dim| order.iter().position(|&index| index == dim)).collect::<Option<_>>()?;
    let tensor = Tensor { dtype: crate::ir::DType::U8, shape, flat };
    super::layout::permute(context, &tensor, &back).map(|turned| turned.flat)
}

/// A write whose dimensions lie in another order than they are visited: the pattern and the value in the order in which
/// they lie, where that is dense or a range of columns, so that no place is written twice.
fn turned_write(context: &mut Context<'_>, place: &Piece, value: &Flat) -> Option<(Pattern, Flat)> {
    let order = by_stride(&place.inner);
    if order.is_sorted() || !place.outer.is_empty() {
        return None;
    }
    let mut sorted = Pattern::new();
    for &index in &order {
        pattern::push(&mut sorted, place.inner[index].count.clone(), place.inner[index].stride.clone())?;
    }
    let dense = sorted == pattern::dense(place.bytes.clone());
    let row_bytes = |run: &[Step]| run.first().and_then(|rows| rows.count.mul(&rows.stride));
    let columns = row_bytes(&sorted).and_then(|total| columns_of(&sorted, &total));
    let fits = |columns: Columns| columns.bytes.at_most(&columns.row_bytes) == Some(true);
    if !(dense || columns.is_some_and(fits)) {
        return None;
    }
    let shape = place.inner.iter().map(|step| step.count.clone()).collect();
    let tensor = Tensor { dtype: crate::ir::DType::U8, shape, flat: value.clone() };
    let turned = match super::layout::permute(context, &tensor, &order) {
        Some(turned) => turned,
        None => {
            let whole = context.opaque_tensor(&tensor)?;
            super::layout::permute(context, &whole, &order)?
        }
    };
    Some((sorted, turned.flat))
}

/// Loops by their strides, the longest first. A stride that is a multiple of another is longer; where neither is, and
/// sizes do not say, they stay in their order, and what is built on it fails.
fn by_stride(run: &[Step]) -> Vec<usize> {
    let longer = |a: &Int, b: &Int| match a.compare(b) {
        Some(order) => order.is_gt(),
        None => a.div(b).is_some(),
    };
    let mut order: Vec<usize> = Vec::with_capacity(run.len());
    for (index, step) in run.iter().enumerate() {
        let after = order.iter().rposition(|&other| !longer(&step.stride, &run[other].stride));
        order.insert(after.map_or(0, |place| place + 1), index);
    }
    order
}
