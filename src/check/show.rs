//! Values as text, and where two values first differ.

use super::flat::{Leaf, Piece};
use super::pattern;
use super::terms::{Context, GroupKey, Merge, State, Term, Val, Value};
use crate::ir::{Graph, NodeId, Spacing};
use std::fmt::Write as _;

/// How deep terms are printed.
const DEPTH: u32 = 3;
/// Most pieces and operands that are printed of one value.
const WIDTH: usize = 6;

/// Both graphs, to name the nodes that made a value.
pub(super) struct Show<'a, 'g> {
    pub context: &'a Context<'g>,
    pub graphs: [&'g Graph; 2],
}

impl Show<'_, '_> {
    /// The node of a graph that first made a value.
    pub fn origin(&self, val: Val, side: usize) -> Option<NodeId> {
        let index = self.context.origins[val.0 as usize][side];
        (index != u32::MAX).then(|| NodeId::from_index(index as usize))
    }

    pub fn node_name(&self, val: Val, side: usize) -> Option<String> {
        self.origin(val, side).map(|id| self.graphs[side].name_of(id).to_owned())
    }

    /// The term of a value.
    pub fn term(&self, val: Val) -> String {
        let mut text = String::new();
        self.value(&mut text, val, DEPTH);
        text
    }

    /// The term of a leaf.
    pub fn leaf_term(&self, leaf: Leaf) -> String {
        let mut text = String::new();
        self.leaf(&mut text, leaf, DEPTH);
        text
    }

    fn value(&self, out: &mut String, val: Val, depth: u32) {
        match self.context.value(val) {
            Value::Int(expr) => {
                let _ = write!(out, "{expr}");
            }
            Value::Opaque(leaf) => self.leaf(out, *leaf, depth),
            Value::Tuple(parts) => {
                out.push('(');
                self.list(out, parts.iter().copied(), parts.len(), |out, part| self.value(out, part, depth));
                out.push(')');
            }
            Value::Tensor(tensor) => match &*tensor.flat.pieces {
                [] => out.push_str("nothing"),
                [piece] => self.piece(out, piece, depth),
                pieces => {
                    out.push('[');
                    self.list(out, pieces.iter(), pieces.len(), |out, piece| self.piece(out, piece, depth));
                    out.push(']');
                }
            },
        }
    }

    fn list<T>(&self, out: &mut String, items: impl Iterator<Item = T>, count: usize, show: impl Fn(&mut String, T)) {
        for (index, item) in items.take(WIDTH).enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            show(out, item);
        }
        if count > WIDTH {
            let _ = write!(out, ", .. {} more", count - WIDTH);
        }
    }

    fn piece(&self, out: &mut String, piece: &Piece, depth: u32) {
        self.leaf(out, piece.leaf, depth);
        let data = self.context.leaf(piece.leaf);
        if matches!(data.term, Term::Const(..)) {
            return;
        }
        let whole = piece.outer.is_empty() && piece.inner == pattern::dense(piece.bytes.clone());
        if whole && piece.offset.is(0) && data.bytes.as_ref() == Some(&piece.bytes) {
            return;
        }
        let _ = write!(out, "@{}", piece.offset);
        let steps: Vec<String> =
            piece.outer.iter().chain(&piece.inner).map(|step| format!("{}:{}", step.count, step.stride)).collect();
        let _ = write!(out, "<{}>", steps.join(", "));
    }

    fn group(&self, group: GroupKey) -> String {
        let groups = &self.context.groups;
        let mut text = groups.name(group).to_owned();
        if let Some(val) = groups.value(group) {
            text.clear();
            self.value(&mut text, val, 1);
        }
        let request = groups.request(group);
        if request.is_empty() { text } else { format!("{text} ({request})") }
    }

    /// The arguments and the type of the call that makes a value: what two calls of one operator may differ in.
    pub fn details(&self, val: Val) -> Option<String> {
        let record = self.context.call(self.call_of(val)?);
        let mut text = String::new();
        let _ = self.context.args_of(record.args)?.write(&mut text, Spacing::Tight, &|index| format!("#{index}"));
        Some(format!("called with ({text}) : {}", self.context.type_of(record.ty)?))
    }

    fn leaf(&self, out: &mut String, leaf: Leaf, depth: u32) {
        let context = self.context;
        match &context.leaf(leaf).term {
            Term::Input(number) => out.push_str(&self.input_name(*number)),
            Term::Call(call) => self.call(out, *call, depth),
            Term::Part(call, part) => {
                self.call(out, *call, depth);
                let _ = if *part == u32::MAX { write!(out, ".state") } else { write!(out, ".{part}") };
            }
            Term::Storage(u32::MAX) => out.push_str("memory"),
            Term::Storage(number) => {
                let _ = write!(out, "memory{number}");
            }
            Term::Const(text, _) => out.push_str(text),
            Term::Unset(name) => {
                let _ = write!(out, "unwritten `{}`", context.text_of(*name));
            }
            Term::Bits(dtype, inner) => self.around(out, &format!("bits as {}", dtype.short_name()), *inner, depth),
            Term::Cast(dtype, inner) => self.around(out, dtype.short_name(), *inner, depth),
            Term::Moved(device, inner) => self.around(out, &format!("to {}", context.text_of(*device)), *inner, depth),
            Term::Ranks(group, inner) => {
                self.around(out, &format!("all_gather in {}", self.group(*group)), *inner, depth);
            }
            Term::Merged(merge, group, inner) => {
                let what = match merge {
                    Merge::All(op) => format!("all_reduce {op}"),
                    Merge::Root(op, root) => format!("reduce {op} to {root}"),
                    Merge::Broadcast(root) => format!("broadcast from {root}"),
                };
                self.around(out, &format!("{what} in {}", self.group(*group)), *inner, depth);
            }
            Term::Shard(op, group, inner, rows) => {
                let stride = rows.last().map_or(super::int::ZERO, |step| step.stride.clone());
                let name = format!("reduce_scatter {op} in {} by {stride}", self.group(*group));
                self.around(out, &name, *inner, depth);
            }
            Term::Turned(group, inner, rows) => {
                let stride = rows.last().map_or(super::int::ZERO, |step| step.stride.clone());
                self.around(out, &format!("all_to_all in {} by {stride}", self.group(*group)), *inner, depth);
            }
            Term::Exchange(kind, _, group, val) => {
                let _ = write!(out, "{} in {}(", kind.name(), self.group(*group));
                self.deeper(out, depth, |out, depth| self.value(out, *val, depth));
                out.push(')');
            }
            Term::Whole(val) => self.value(out, *val, depth),
            Term::Later(val, _) => {
                self.value(out, *val, depth);
                out.push_str(" after writes that may have reached it");
            }
            Term::Event(..) => out.push_str("writes to memory that may be shared"),
            Term::Lies(call) => {
                out.push_str("where ");
                self.call(out, *call, depth);
                out.push_str(" lies");
            }
            Term::Region(region) => {
                let _ = write!(out, "region {region}");
            }
            Term::State(state) => out.push_str(match state {
                State::Random => "random state",
                State::World => "world",
                State::Launches => "launches of called graphs",
            }),
        }
    }

    fn input_name(&self, number: u32) -> String {
        let inputs = self.graphs[0].order().iter().filter(|&&id| self.graphs[0].node(id).op == crate::ir::Op::Input);
        let name = inputs.clone().nth(number as usize).map(|&id| self.graphs[0].name_of(id));
        name.unwrap_or("input").to_owned()
    }

    fn deeper(&self, out: &mut String, depth: u32, show: impl Fn(&mut String, u32)) {
        if depth == 0 { out.push_str("..") } else { show(out, depth - 1) }
    }

    fn around(&self, out: &mut String, name: &str, inner: Leaf, depth: u32) {
        out.push_str(name);
        out.push('(');
        self.deeper(out, depth, |out, depth| self.leaf(out, inner, depth));
        out.push(')');
    }

    fn call(&self, out: &mut String, call: u32, depth: u32) {
        let record = self.context.call(call);
        out.push_str(self.context.text_of(record.target));
        out.push('(');
        let operands = self.context.call_operands(call);
        self.deeper(out, depth, |out, depth| {
            self.list(out, operands.iter().copied(), operands.len(), |out, operand| self.value(out, operand, depth));
        });
        out.push(')');
    }

    /// Follows two values down to where they first differ.
    pub fn first_difference(&self, before: Val, after: Val) -> (Val, Val) {
        let mut pair = (before, after);
        for _ in 0..self.context.value_count() {
            let Some(deeper) = self.step(pair.0, pair.1) else { break };
            pair = deeper;
        }
        pair
    }

    /// The first pair of operands that differ, of two values that are calls of the same operator.
    fn step(&self, before: Val, after: Val) -> Option<(Val, Val)> {
        if let (Value::Tuple(a), Value::Tuple(b)) = (self.context.value(before), self.context.value(after)) {
            return a.iter().zip(b).find(|(a, b)| a != b).map(|(&a, &b)| (a, b));
        }
        let (a, b) = (self.call_of(before)?, self.call_of(after)?);
        let (x, y) = (self.context.call(a), self.context.call(b));
        if (x.target, x.args, x.ty) != (y.target, y.args, y.ty) {
            return None;
        }
        let operands = self.context.call_operands(a).iter().zip(self.context.call_operands(b));
        operands.filter(|(a, b)| a != b).map(|(&a, &b)| (a, b)).next()
    }

    fn call_of(&self, val: Val) -> Option<u32> {
        let mut leaf = match self.context.value(val) {
            Value::Opaque(leaf) => *leaf,
            Value::Tensor(tensor) => tensor.flat.single()?.leaf,
            Value::Tuple(_) | Value::Int(_) => return None,
        };
        loop {
            match &self.context.leaf(leaf).term {
                Term::Call(call) | Term::Part(call, _) => return Some(*call),
                Term::Cast(_, inner)
                | Term::Bits(_, inner)
                | Term::Ranks(_, inner)
                | Term::Merged(_, _, inner)
                | Term::Shard(_, _, inner, _)
                | Term::Turned(_, inner, _)
                | Term::Moved(_, inner) => {
                    leaf = *inner;
                }
                _ => return None,
            }
        }
    }
}
