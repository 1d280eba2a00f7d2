//! One node of a graph whose sizes are followed: its arguments, and what its rule may do.

use super::extents::{Extent, Extents};
use super::trace::{Keeps, Shape, Tracer};
use crate::call::wrap_dim;
use crate::symbols::Symbols;
use bucketeer::ir::operators::Operator;
use bucketeer::ir::{Arg, Args, DType, Graph, NodeId};

/// Sizes up to this may be kept without a word.
const LARGE: u64 = 4;

/// Where an argument stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArgPosition {
    /// Among those without a name.
    Positional(usize),
    /// Under a name.
    Keyword(Box<str>),
}

/// A number in the text of a graph that is the size of something.
#[derive(Clone, Debug)]
pub struct Literal {
    /// In which node.
    pub node: NodeId,
    /// In which argument.
    pub place: ArgPosition,
    /// Which of a list.
    pub item: Option<usize>,
    /// Of what.
    pub extent: Extent,
}

/// A node being followed.
pub struct Node<'a> {
    /// What both graphs share.
    pub tracer: &'a mut Tracer,
    /// The graph.
    pub graph: &'a Graph,
    /// Values of symbols.
    pub symbols: &'a Symbols,
    /// The node.
    pub id: NodeId,
    /// Its arguments.
    pub args: &'a Args,
    /// What it calls.
    pub operator: Operator<'a>,
    /// Shapes of the nodes so far, by arena index.
    pub shapes: &'a [Option<Shape>],
    /// Numbers found so far.
    pub literals: &'a mut Vec<Literal>,
}

/// An argument with its place.
pub type Found<'a> = (ArgPosition, &'a Arg);

impl<'a> Node<'a> {
    /// A node of a graph.
    pub fn new(
        tracer: &'a mut Tracer,
        (graph, symbols): (&'a Graph, &'a Symbols),
        id: NodeId,
        shapes: &'a [Option<Shape>],
        literals: &'a mut Vec<Literal>,
    ) -> Self {
        let operator = graph.operator_of(id);
        Self { tracer, graph, symbols, id, args: graph.args_of(id), operator, shapes, literals }
    }

    /// The extents of both graphs.
    pub fn extents(&mut self) -> &mut Extents {
        &mut self.tracer.extents
    }

    /// The argument at `position` or under one of the names.
    pub fn arg(&self, position: usize, names: &[&str]) -> Option<Found<'a>> {
        let args = self.args;
        let found = match args.positional.get(position) {
            Some(arg) => Some((ArgPosition::Positional(position), arg)),
            None => names.iter().find_map(|name| Some((ArgPosition::Keyword((*name).into()), args.get(name)?))),
        };
        found.filter(|(_, arg)| **arg != Arg::None)
    }

    /// The shape of an operand.
    pub fn operand(&self, index: u32) -> Option<&'a Shape> {
        let id = *self.graph.operands(self.id).get(index as usize)?;
        self.shapes[id.index()].as_ref()
    }

    /// The dimensions of a tensor argument.
    pub fn tensor_of(&self, arg: &Arg) -> Option<Vec<Extent>> {
        let Arg::Operand(index) = arg else { return None };
        match self.operand(*index)? {
            Shape::Tensor(dims) => Some(dims.clone()),
            _ => None,
        }
    }

    /// The dimensions of the tensor at a place.
    pub fn tensor(&self, position: usize, names: &[&str]) -> Option<Vec<Extent>> {
        self.tensor_of(self.arg(position, names)?.1)
    }

    /// The dimensions of the first argument.
    pub fn first(&self) -> Option<Vec<Extent>> {
        self.tensor(0, &["self", "input", "a", "x"])
    }

    /// The dimensions of a list of tensors.
    pub fn tensors(&self, arg: &Arg) -> Option<Vec<Vec<Extent>>> {
        match arg {
            Arg::List(items) | Arg::Tuple(items) => items.iter().map(|item| self.tensor_of(item)).collect(),
            Arg::Operand(index) => match self.operand(*index)? {
                Shape::Tensor(dims) => Some(vec![dims.clone()]),
                Shape::Tuple(shapes) => {
                    let dims = |shape: &Shape| if let Shape::Tensor(dims) = shape { Some(dims.clone()) } else { None };
                    shapes.iter().map(dims).collect()
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// An integer, as it stands or as an operand has it.
    pub fn int(&self, arg: &Arg) -> Option<i64> {
        match arg {
            Arg::Int(value) => Some(*value),
            Arg::Bool(value) => Some(i64::from(*value)),
            Arg::Operand(index) => match self.operand(*index)? {
                Shape::Number(extent) => i64::try_from(self.tracer.extents.size(*extent)).ok(),
                _ => None,
            },
            _ => None,
        }
    }

    /// The integer at a place, or a default.
    pub fn int_at(&self, position: usize, name: &str, default: i64) -> Option<i64> {
        self.arg(position, &[name]).map_or(Some(default), |(_, arg)| self.int(arg))
    }

    /// A dimension of `rank` at a place, or a default.
    pub fn dim_at(&self, position: usize, name: &str, default: i64, rank: usize) -> Option<usize> {
        wrap_dim(self.int_at(position, name, default)?, rank).ok().filter(|dim| *dim < rank)
    }

    /// Integers: a list, or one.
    pub fn ints(&self, arg: &Arg) -> Option<Vec<i64>> {
        match arg {
            Arg::List(items) | Arg::Tuple(items) => items.iter().map(|item| self.int(item)).collect(),
            arg => self.int(arg).map(|value| vec![value]),
        }
    }

    /// The dtype at a place.
    pub fn dtype(&self, position: usize) -> Option<DType> {
        match self.arg(position, &["dtype"])?.1 {
            Arg::DType(dtype) => Some(*dtype),
            _ => None,
        }
    }

    /// The size of an extent in the graph.
    pub fn size(&self, extent: Extent) -> u64 {
        self.tracer.extents.size(extent)
    }

    /// The sizes of extents in the graph.
    pub fn sizes(&self, extents: &[Extent]) -> Vec<u64> {
        extents.iter().map(|&extent| self.size(extent)).collect()
    }

    /// Says of what an argument, or an item of it, is the size. What is negative has a meaning of its own and stays.
    pub fn is_size_of(&mut self, place: &ArgPosition, item: Option<usize>, arg: &Arg, extent: Extent) {
        match arg {
            Arg::Int(value) if u64::try_from(*value) == Ok(self.size(extent)) => {
                self.literals.push(Literal { node: self.id, place: place.clone(), item, extent });
            }
            Arg::Operand(index) => {
                if let Some(&Shape::Number(number)) = self.operand(*index) {
                    self.extents().unify(number, extent);
                }
            }
            _ => {}
        }
    }

    /// Says of what the items of a list are the sizes.
    pub fn are_sizes_of(&mut self, (place, arg): &Found<'_>, extents: &[Extent]) {
        match arg {
            Arg::List(items) | Arg::Tuple(items) => {
                for (nth, (item, &extent)) in items.iter().zip(extents).enumerate() {
                    self.is_size_of(place, Some(nth), item, extent);
                }
            }
            arg => {
                if let [extent] = *extents {
                    self.is_size_of(place, None, arg, extent);
                }
            }
        }
    }

    /// Keeps sizes as they are.
    pub fn fix(&mut self, extents: &[Extent]) {
        let size = extents.iter().map(|&extent| self.size(extent)).max().unwrap_or(0);
        if size > self.tracer.keeps.map_or(LARGE, |keeps| keeps.size) {
            self.tracer.keeps = Some(Keeps { size, place: self.tracer.extents.place });
        }
        extents.iter().for_each(|&extent| self.extents().fix(extent));
    }

    /// What shapes broadcast to; sizes that must be equal become one.
    pub fn broadcast(&mut self, shapes: &[Vec<Extent>]) -> Option<Vec<Extent>> {
        let rank = shapes.iter().map(Vec::len).max()?;
        let mut result: Vec<Option<Extent>> = vec![None; rank];
        for shape in shapes {
            for (place, &dim) in shape.iter().enumerate() {
                let known = &mut result[place + rank - shape.len()];
                match *known {
                    Some(other) if self.tracer.extents.size(other) != 1 => {
                        if self.tracer.extents.size(dim) != 1 {
                            self.tracer.extents.unify(other, dim);
                        }
                    }
                    _ => *known = Some(dim),
                }
            }
        }
        result.into_iter().collect()
    }

    /// Makes shapes one, dimension by dimension.
    pub fn same(&mut self, a: &[Extent], b: &[Extent]) {
        for (&a, &b) in a.iter().zip(b) {
            self.extents().unify(a, b);
        }
    }
}
