//! Values and what they are made of, each kept once: equal ids are equal values, in both graphs.

use super::flat::{Flat, Leaf};
use super::gaps::Gaps;
use super::groups::Groups;
use super::int::{Int, ONE, ZERO, product};
use super::pattern::{self, Pattern};
use super::verdict::Side;
use crate::ir::{Arg, Args, CollectiveKind, DType, ReduceOp, SymExpr, TensorType, Type};
use hashbrown::{HashMap, HashSet, HashTable};
use rustc_hash::{FxBuildHasher, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A value: an index into the values of a [`Context`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Val(pub u32);

pub(super) type Shape = SmallVec<[Int; 4]>;

/// A tensor's value: its bytes in row-major order, and how they are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tensor {
    pub dtype: DType,
    pub shape: Shape,
    pub flat: Flat,
}

/// What a node makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Tensor(Tensor),
    /// A symbolic integer that follows from sizes.
    Int(SymExpr),
    Tuple(Vec<Val>),
    /// Anything else: a scalar, a token, a tuple or tensor of unknown type.
    Opaque(Leaf),
}

/// A group, in both graphs, and what else its collectives are asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct GroupKey(pub u32);

/// How the ranks' elements at one place become one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Merge {
    All(ReduceOp),
    /// As `All`, and only at the root.
    Root(ReduceOp, u32),
    /// The root's.
    Broadcast(u32),
}

/// What bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Term {
    /// An input of the graph, as it was given.
    Input(u32),
    /// The result of a call.
    Call(u32),
    /// Part of what a call makes or writes.
    Part(u32, u32),
    /// The memory that a node of one graph allocates; stands for its content at the time of reading.
    Storage(u32),
    /// One element, as text.
    Const(Box<str>, DType),
    /// Never written: memory as the node of that name got it.
    Unset(u32),
    /// The same bytes as elements of another dtype.
    Bits(DType, Leaf),
    /// Each element converted.
    Cast(DType, Leaf),
    /// Moved to a device.
    Moved(u32, Leaf),
    /// All ranks' bytes of a leaf, in rank order.
    Ranks(GroupKey, Leaf),
    /// The ranks' elements of a leaf made one.
    Merged(Merge, GroupKey, Leaf),
    /// The ranks' elements of a leaf made one, from this rank's row on: byte `a` is byte `a` of the reduced leaf, plus
    /// what the pattern skips to this rank.
    Shard(ReduceOp, GroupKey, Leaf, Box<Pattern>),
    /// This rank's row of all ranks' tables, in rank order: byte `a` of part `r` is byte `a` of rank r's leaf, plus what
    /// the pattern skips to this rank.
    Turned(GroupKey, Leaf, Box<Pattern>),
    /// What a collective makes of a value that is not followed further; the call has the arguments.
    Exchange(CollectiveKind, u32, GroupKey, Val),
    /// The bytes of a value in order, not followed further.
    Whole(Val),
    /// What a value has become in memory that others may have written, by the log of these writes.
    Later(Val, Val),
    /// What happened to memory that may be shared; see [`super::memory`].
    Event(Event, Box<[Val]>),
    /// How a tensor that a value is made from lies in memory, which is more than its value: a call, and which.
    Lies(u32),
    /// The body that a node is in, by number.
    Region(u32),
    /// A state before the graph runs.
    State(State),
}

/// What happens to memory that may be shared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Event {
    /// A call may have made one of several.
    Join,
    /// What a place was when it was joined.
    Role,
    /// A place was written.
    Write,
    /// Operands of a call have bytes in common.
    Overlap,
}

/// A leaf with what is known of its bytes.
#[derive(Clone, Debug)]
pub(super) struct LeafData {
    pub term: Term,
    pub dtype: Option<DType>,
    pub bytes: Option<Int>,
}

/// What calls read and leave behind beside memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum State {
    /// Of random numbers.
    Random,
    /// What calls see and change that may communicate.
    World,
    /// What calls leave that always launch.
    Launches,
}

impl State {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Random, Self::World, Self::Launches];
}

/// A call that was seen: target, arguments, type, and then operands and the states it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRecord {
    pub target: u32,
    pub args: u32,
    pub ty: u32,
    first: u32,
    count: u32,
    pub result: Option<Val>,
}

/// Everything that both graphs speak of.
pub(super) struct Context<'g> {
    values: Vec<Value>,
    value_table: HashTable<Entry>,
    leaves: Vec<LeafData>,
    leaf_table: HashTable<Entry>,
    calls: Vec<CallRecord>,
    call_operands: Vec<Val>,
    call_table: HashTable<Entry>,
    texts: HashMap<&'g str, u32, FxBuildHasher>,
    text_list: Vec<&'g str>,
    args: HashMap<&'g Args, u32, FxBuildHasher>,
    /// What permutes say behind their tensors.
    pairs: HashMap<&'g [Arg], u32, FxBuildHasher>,
    types: HashMap<Type, u32, FxBuildHasher>,
    exchanges: Vec<(CollectiveKind, GroupKey)>,
    /// Views of the source that could not be if its tensors were dense where nothing is said.
    loose_views: HashSet<u32, FxBuildHasher>,
    pub groups: Groups<'g>,
    pub gaps: Gaps,
    /// By value: the first node with it, in the source and in the result; `u32::MAX` is none.
    pub origins: Vec<[u32; 2]>,
}

/// An index with the hash of what it stands for.
#[derive(Clone, Copy)]
struct Entry {
    index: u32,
    hash: u32,
}

impl Entry {
    fn new(index: u32, hash: u64) -> Self {
        Self { index, hash: Self::half(hash) }
    }

    fn half(hash: u64) -> u32 {
        (hash ^ (hash >> 32)) as u32
    }

    /// What the table sees: it needs good bits at both ends.
    fn spread(hash: u64) -> u64 {
        u64::from(Self::half(hash)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn rehash(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn is(&self, hash: u64) -> bool {
        self.hash == Self::half(hash)
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<'g> Context<'g> {
    pub fn new() -> Self {
        Self {
            values: Vec::new(),
            value_table: HashTable::new(),
            leaves: Vec::new(),
            leaf_table: HashTable::new(),
            calls: Vec::new(),
            call_operands: Vec::new(),
            call_table: HashTable::new(),
            texts: HashMap::default(),
            text_list: Vec::new(),
            args: HashMap::default(),
            pairs: HashMap::default(),
            types: HashMap::default(),
            exchanges: Vec::new(),
            loose_views: HashSet::default(),
            groups: Groups::default(),
            gaps: Gaps::default(),
            origins: Vec::new(),
        }
    }

    pub fn value(&self, val: Val) -> &Value {
        &self.values[val.0 as usize]
    }

    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    pub fn leaf(&self, leaf: Leaf) -> &LeafData {
        &self.leaves[leaf.0 as usize]
    }

    pub fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    pub fn tensor(&self, val: Val) -> Option<&Tensor> {
        match self.value(val) {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub fn intern(&mut self, value: Value) -> Val {
        let hash = hash_of(&value);
        let Self { values, value_table, .. } = self;
        let spread = Entry::spread(hash);
        if let Some(entry) = value_table.find(spread, |entry| entry.is(hash) && values[entry.index as usize] == value) {
            return Val(entry.index);
        }
        let index = values.len() as u32;
        values.push(value);
        self.origins.push([u32::MAX; 2]);
        value_table.insert_unique(spread, Entry::new(index, hash), Entry::rehash);
        Val(index)
    }

    pub fn intern_leaf(&mut self, term: Term, dtype: Option<DType>, bytes: Option<Int>) -> Leaf {
        // The dtype is part of what a leaf is: the same bytes may be elements of two.
        let hash = hash_of(&(&term, dtype));
        let Self { leaves, leaf_table, .. } = self;
        let spread = Entry::spread(hash);
        let found = leaf_table.find(spread, |entry| {
            let known = &leaves[entry.index as usize];
            entry.is(hash) && known.dtype == dtype && known.term == term
        });
        if let Some(entry) = found {
            return Leaf(entry.index);
        }
        let index = leaves.len() as u32;
        leaves.push(LeafData { term, dtype, bytes });
        leaf_table.insert_unique(spread, Entry::new(index, hash), Entry::rehash);
        Leaf(index)
    }

    /// The call of that target, arguments and operands, new if it was not seen before.
    pub fn intern_call(&mut self, target: u32, args: u32, ty: u32, operands: &[Val]) -> u32 {
        let hash = hash_of(&(target, args, ty, operands));
        let Self { calls, call_operands, call_table, .. } = self;
        let spread = Entry::spread(hash);
        let found = call_table.find(spread, |entry| {
            let call = &calls[entry.index as usize];
            entry.is(hash)
                && (call.target, call.args, call.ty) == (target, args, ty)
                && call_operands[call.first as usize..(call.first + call.count) as usize] == *operands
        });
        if let Some(entry) = found {
            return entry.index;
        }
        let (index, first) = (calls.len() as u32, call_operands.len() as u32);
        call_operands.extend_from_slice(operands);
        calls.push(CallRecord { target, args, ty, first, count: operands.len() as u32, result: None });
        call_table.insert_unique(spread, Entry::new(index, hash), Entry::rehash);
        index
    }

    /// A number for what a collective does, to look its results up by.
    pub fn exchange_id(&mut self, kind: CollectiveKind, group: GroupKey) -> u32 {
        let known = self.exchanges.iter().position(|known| *known == (kind, group));
        known.unwrap_or_else(|| {
            self.exchanges.push((kind, group));
            self.exchanges.len() - 1
        }) as u32
    }

    /// Whether the source has a view that cannot be, as far as is known: strides then lie otherwise than is said.
    pub fn is_loose_view(&mut self, call: u32, side: Side) -> bool {
        if side == Side::Before {
            self.loose_views.insert(call);
        }
        self.loose_views.contains(&call)
    }

    pub fn call_count(&self) -> usize {
        self.calls.len()
    }

    pub fn call(&self, index: u32) -> &CallRecord {
        &self.calls[index as usize]
    }

    pub fn set_result(&mut self, index: u32, val: Val) {
        self.calls[index as usize].result = Some(val);
    }

    pub fn call_operands(&self, index: u32) -> &[Val] {
        let call = self.calls[index as usize];
        &self.call_operands[call.first as usize..(call.first + call.count) as usize]
    }

    pub fn text(&mut self, text: &'g str) -> u32 {
        let Self { texts, text_list, .. } = self;
        *texts.entry(text).or_insert_with(|| {
            text_list.push(text);
            text_list.len() as u32 - 1
        })
    }

    pub fn text_of(&self, id: u32) -> &'g str {
        self.text_list[id as usize]
    }

    pub fn args_id(&mut self, args: &'g Args) -> u32 {
        let next = self.args.len() as u32;
        *self.args.entry(args).or_insert(next)
    }

    /// The arguments of a number; looked for, as only messages need them.
    pub fn args_of(&self, id: u32) -> Option<&'g Args> {
        self.args.iter().find(|(_, known)| **known == id).map(|(args, _)| *args)
    }

    /// The type of a number, as [`Self::args_of`].
    pub fn type_of(&self, id: u32) -> Option<&Type> {
        self.types.iter().find(|(_, known)| **known == id).map(|(ty, _)| ty)
    }

    /// A number for what a permute says behind its tensors.
    pub fn pairs_id(&mut self, pairs: &'g [Arg]) -> u32 {
        let next = self.pairs.len() as u32;
        *self.pairs.entry(pairs).or_insert(next)
    }

    /// A number for a type; strides play no part, for they are not part of a value.
    pub fn type_id(&mut self, ty: &Type) -> u32 {
        let next = self.types.len() as u32;
        *self.types.entry(without_strides(ty)).or_insert(next)
    }

    /// A number for a type with its strides.
    pub fn stated_id(&mut self, ty: &Type) -> u32 {
        let next = self.types.len() as u32;
        *self.types.entry(ty.clone()).or_insert(next)
    }

    /// A tensor of a leaf's bytes in order, typed as stated; opaque if the type is not that of a tensor of known size.
    pub fn whole(&mut self, term: Term, ty: &Type) -> Val {
        let tensor = ty.as_tensor().and_then(|ty| Some((ty, shape_of(ty)?)));
        let Some((ty, shape)) = tensor else {
            let leaf = self.intern_leaf(term, None, None);
            return self.intern(Value::Opaque(leaf));
        };
        let bytes = bytes_of(&shape, ty.dtype);
        let leaf = self.intern_leaf(term, Some(ty.dtype), bytes.clone());
        let flat = bytes.and_then(|bytes| {
            if bytes.is(0) { Some(Flat::empty()) } else { Flat::run(leaf, ZERO, pattern::dense(bytes)) }
        });
        match flat {
            Some(flat) => self.intern(Value::Tensor(Tensor { dtype: ty.dtype, shape, flat })),
            None => self.intern(Value::Opaque(leaf)),
        }
    }

    /// Part of what a call makes or writes, of the dtype and sizes of a tensor.
    pub fn part_like(&mut self, call: u32, part: u32, like: &Tensor) -> Option<Val> {
        let bytes = bytes_of(&like.shape, like.dtype);
        let leaf = self.intern_leaf(Term::Part(call, part), Some(like.dtype), bytes);
        self.leaf_tensor(leaf, like.dtype, like.shape.clone())
    }

    /// Something that happened to memory.
    pub fn event(&mut self, event: Event, what: Vec<Val>) -> Val {
        let leaf = self.intern_leaf(Term::Event(event, what.into()), None, None);
        self.intern(Value::Opaque(leaf))
    }

    /// What a value in memory has become by a log.
    pub fn later(&mut self, value: Val, log: Val) -> Val {
        match self.value(value).clone() {
            Value::Int(_) => value,
            Value::Tuple(parts) => {
                let parts = parts.into_iter().map(|part| self.later(part, log)).collect();
                self.intern(Value::Tuple(parts))
            }
            Value::Opaque(_) => {
                let leaf = self.intern_leaf(Term::Later(value, log), None, None);
                self.intern(Value::Opaque(leaf))
            }
            Value::Tensor(tensor) => {
                let bytes = bytes_of(&tensor.shape, tensor.dtype);
                let leaf = self.intern_leaf(Term::Later(value, log), Some(tensor.dtype), bytes);
                self.leaf_tensor(leaf, tensor.dtype, tensor.shape).unwrap_or(value)
            }
        }
    }

    /// A tensor of the bytes of a leaf from its start.
    pub fn leaf_tensor(&mut self, leaf: Leaf, dtype: DType, shape: Shape) -> Option<Val> {
        let bytes = bytes_of(&shape, dtype)?;
        let flat = if bytes.is(0) { Flat::empty() } else { Flat::run(leaf, ZERO, pattern::dense(bytes))? };
        Some(self.intern(Value::Tensor(Tensor { dtype, shape, flat })))
    }

    /// A leaf that holds the bytes of a table in order.
    pub fn pack(&mut self, flat: Flat) -> Option<Leaf> {
        let bytes = flat.total()?;
        let first = self.leaf(flat.pieces.first()?.leaf).dtype;
        let dtype = first.filter(|_| flat.pieces.iter().all(|piece| self.leaf(piece.leaf).dtype == first));
        let val =
            self.intern(Value::Tensor(Tensor { dtype: DType::U8, shape: [bytes.clone()].into_iter().collect(), flat }));
        Some(self.intern_leaf(Term::Whole(val), dtype, Some(bytes)))
    }

    /// The bytes of a leaf as elements of a dtype; `None` where they are not made of whole ones.
    pub fn bits(&mut self, leaf: Leaf, dtype: DType) -> Option<Leaf> {
        let LeafData { term, dtype: Some(own), bytes } = self.leaf(leaf) else { return None };
        if *own == dtype {
            return Some(leaf);
        }
        if let Term::Bits(_, inner) = *term {
            return self.bits(inner, dtype);
        }
        let bytes = bytes.clone();
        if let Some(bytes) = &bytes {
            bytes.div(&element(dtype))?;
        }
        Some(self.intern_leaf(Term::Bits(dtype, leaf), Some(dtype), bytes))
    }

    /// The bytes in `rows` rows.
    pub fn with_rows(&mut self, flat: &Flat, rows: &Int) -> Option<Flat> {
        flat.with_rows(rows, &mut |flat| self.pack(flat))
    }

    /// The same tensor as one leaf that is not followed further.
    pub fn opaque_tensor(&mut self, tensor: &Tensor) -> Option<Tensor> {
        let bytes = bytes_of(&tensor.shape, tensor.dtype)?;
        let flat_shape = [product(&tensor.shape)?].into_iter().collect();
        let val = self.intern(Value::Tensor(Tensor { shape: flat_shape, ..tensor.clone() }));
        let leaf = self.intern_leaf(Term::Whole(val), Some(tensor.dtype), Some(bytes.clone()));
        self.gaps.add_tensor(leaf);
        let flat = Flat::run(leaf, ZERO, pattern::dense(bytes))?;
        Some(Tensor { dtype: tensor.dtype, shape: tensor.shape.clone(), flat })
    }
}

fn without_strides(ty: &Type) -> Type {
    match ty {
        Type::Tensor(tensor) => Type::Tensor(TensorType { strides: None, ..tensor.clone() }),
        Type::Tuple(parts) => Type::Tuple(parts.iter().map(without_strides).collect()),
        other => other.clone(),
    }
}

/// The sizes of a type.
pub(super) fn shape_of(ty: &TensorType) -> Option<Shape> {
    ty.shape.iter().map(Int::from_dim).collect()
}

/// The bytes of a tensor.
pub(super) fn bytes_of(shape: &[Int], dtype: DType) -> Option<Int> {
    product(shape)?.mul(&element(dtype))
}

/// The bytes of one element.
pub(super) fn element(dtype: DType) -> Int {
    Int::Known(i64::try_from(dtype.bytes()).unwrap_or(1))
}

/// A tensor of one element, everywhere.
pub(super) fn constant(context: &mut Context<'_>, text: &str, dtype: DType, shape: Shape) -> Option<Tensor> {
    let leaf = context.intern_leaf(Term::Const(text.into(), dtype), Some(dtype), Some(element(dtype)));
    let count = product(&shape)?;
    if count.is(0) {
        return Some(Tensor { dtype, shape, flat: Flat::empty() });
    }
    let mut run = Pattern::new();
    pattern::push(&mut run, count, ZERO)?;
    pattern::push(&mut run, element(dtype), ONE)?;
    Some(Tensor { dtype, shape, flat: Flat::run(leaf, ZERO, run)? })
}

/// The text of a fill value: numbers that are equal have one text.
pub(super) fn fill_text(arg: &Arg) -> Option<String> {
    Some(match arg {
        Arg::Int(value) => value.to_string(),
        Arg::Bool(value) => i64::from(*value).to_string(),
        Arg::Float(text) => match text.parse::<f64>() {
            Ok(value) if value == value.trunc() && value.abs() < 1e15 && (value != 0.0 || value.is_sign_positive()) => {
                (value as i64).to_string()
            }
            _ => text.to_string(),
        },
        Arg::Word(text) => text.to_string(),
        _ => return None,
    })
}
