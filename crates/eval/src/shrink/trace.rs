//! Follows sizes through graphs: which are equal, which are products and sums of others.

use super::extents::{Extent, Extents};
use super::node::{Literal, Node};
use super::rules;
use crate::symbols::Symbols;
use bucketeer::ir::operators::effects;
use bucketeer::ir::{Arg, Dim, Graph, NodeId, Op, Type};
use hashbrown::HashMap;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// The sizes of a value.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Nothing is known of it; values of the same number come about in the same way.
    Unknown(u32),
    /// A tensor's, by dimension.
    Tensor(Vec<Extent>),
    /// Of several values.
    Tuple(Vec<Shape>),
    /// An integer, which is the size of something.
    Number(Extent),
}

/// What is followed through all graphs together.
#[derive(Debug, Default)]
pub struct Tracer {
    /// All sizes.
    pub extents: Extents,
    /// Whether views that cannot be followed may have any sizes with the right product.
    pub may_guess: bool,
    /// The first such view: in which graph, at which position.
    pub guessed: Option<(usize, usize)>,
    /// The largest size that a node keeps as it is.
    pub keeps: Option<Keeps>,
    /// What the first graph's output is made of.
    results: Option<Vec<Shape>>,
    /// Sizes of groups by name, where they are known.
    groups: HashMap<String, u64, FxBuildHasher>,
    /// Symbolic sizes, by text.
    symbols: HashMap<String, Extent, FxBuildHasher>,
    /// Shapes of inputs and of what unknown operators make, by all that they depend on.
    made: HashMap<String, Shape, FxBuildHasher>,
}

/// A size that a node keeps as it is.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    /// The size.
    pub size: u64,
    /// In which graph, and at which position.
    pub place: (usize, usize),
}

/// A graph whose sizes were followed.
#[derive(Debug)]
pub struct Traced {
    /// Shapes by arena index.
    pub shapes: Vec<Option<Shape>>,
    /// Numbers in arguments that are sizes.
    pub literals: Vec<Literal>,
}

impl Tracer {
    /// A tracer that makes at most so many extents, for groups with these members.
    #[must_use]
    pub fn new(most: usize, groups: &IndexMap<String, Vec<Vec<u32>>>) -> Self {
        let size = |(name, lists): (&String, &Vec<Vec<u32>>)| Some((name.clone(), lists.first()?.len() as u64));
        let mut tracer = Self { groups: groups.iter().filter_map(size).collect(), ..Self::default() };
        tracer.extents.most = most;
        tracer
    }

    /// The size of a group, if it is known.
    #[must_use]
    pub fn group_size(&self, name: &str) -> Option<u64> {
        self.groups.get(name).copied()
    }

    /// Whether a size is that of a group. Rows for the ranks of a group are as many at any size of the columns.
    #[must_use]
    pub fn is_group_size(&self, size: u64) -> bool {
        self.groups.values().any(|&group| group == size)
    }

    /// Follows the sizes of a well-formed graph.
    pub fn trace(&mut self, side: usize, graph: &Graph, symbols: &Symbols) -> Traced {
        let mut traced = Traced { shapes: vec![None; graph.arena_len()], literals: Vec::new() };
        for group in graph.groups() {
            self.groups.extend(group.size.map(|size| (group.name.to_string(), u64::from(size))));
        }
        for (position, &id) in graph.order().iter().enumerate() {
            self.extents.place = (side, position);
            let shape = self.node(graph, symbols, id, &mut traced);
            traced.shapes[id.index()] = Some(shape);
        }
        traced
    }

    fn node(&mut self, graph: &Graph, symbols: &Symbols, id: NodeId, traced: &mut Traced) -> Shape {
        let first = || graph.operands(id).first().and_then(|operand| traced.shapes[operand.index()].clone());
        let literals = traced.literals.len();
        let known = match graph.node(id).op {
            Op::Input => {
                let key = format!("input {} {}", graph.name_of(id), graph.type_of(id));
                return self.made(key, graph.type_of(id), symbols);
            }
            Op::Output => {
                self.outputs(graph, id, traced);
                return Shape::Unknown(0);
            }
            Op::Wait if graph.waits_for_list(id) => {
                let parts = graph.operands(id).iter().map(|operand| traced.shapes[operand.index()].clone());
                parts.collect::<Option<_>>().map(Shape::Tuple)
            }
            Op::Wait => first(),
            Op::Collective(_) | Op::Call(_) => {
                let mut node = Node::new(self, (graph, symbols), id, &traced.shapes, &mut traced.literals);
                rules::shape(&mut node)
            }
        };
        let stated = graph.type_of(id);
        match known {
            Some(shape) if self.agrees(&shape, stated, symbols) => shape,
            // What a rule did not finish says nothing.
            _ => {
                traced.literals.truncate(literals);
                self.unknown(graph, symbols, id, traced)
            }
        }
    }

    /// Results of all graphs are as large: that they are equal is what is asked.
    fn outputs(&mut self, graph: &Graph, id: NodeId, traced: &Traced) {
        let shape = |operand: &NodeId| traced.shapes[operand.index()].clone().unwrap_or(Shape::Unknown(0));
        let shapes: Vec<Shape> = graph.operands(id).iter().map(shape).collect();
        match self.results.take() {
            Some(known) => {
                known.iter().zip(&shapes).for_each(|(a, b)| self.same(a, b));
                self.results = Some(known);
            }
            None => self.results = Some(shapes),
        }
    }

    fn same(&mut self, a: &Shape, b: &Shape) {
        match (a, b) {
            (Shape::Tensor(a), Shape::Tensor(b)) if a.len() == b.len() => {
                a.iter().zip(b).for_each(|(&a, &b)| self.extents.unify(a, b));
            }
            (Shape::Tuple(a), Shape::Tuple(b)) => a.iter().zip(b).for_each(|(a, b)| self.same(a, b)),
            (Shape::Number(a), Shape::Number(b)) => self.extents.unify(*a, *b),
            _ => {}
        }
    }

    /// Whether a shape is what a type says; symbolic sizes of the type become one with it.
    fn agrees(&mut self, shape: &Shape, ty: &Type, symbols: &Symbols) -> bool {
        match (shape, ty) {
            (Shape::Tensor(dims), Type::Tensor(tensor)) => {
                let Some(sizes) = symbols.sizes(&tensor.shape) else { return false };
                let found = dims.iter().map(|&dim| self.extents.size(dim) as usize);
                if !found.eq(sizes) {
                    return false;
                }
                for (&dim, stated) in dims.iter().zip(&tensor.shape) {
                    if let Dim::Sym(_) = stated {
                        let symbol = self.stated(stated, symbols);
                        self.extents.unify(dim, symbol);
                    }
                }
                true
            }
            (Shape::Tuple(shapes), Type::Tuple(types)) => {
                shapes.len() == types.len()
                    && shapes.iter().zip(types).all(|(shape, ty)| self.agrees(shape, ty, symbols))
            }
            (Shape::Number(number), Type::SymInt(expr)) => {
                symbols.evaluate(expr) == i64::try_from(self.extents.size(*number)).ok()
            }
            (_, Type::Unknown) | (Shape::Unknown(_), _) => true,
            (_, _) => false,
        }
    }

    /// The extent of a size in a type.
    fn stated(&mut self, dim: &Dim, symbols: &Symbols) -> Extent {
        let size =
            symbols.sizes(std::slice::from_ref(dim)).and_then(|sizes| sizes.first().copied()).unwrap_or(0) as u64;
        let Dim::Sym(expr) = dim else { return self.extents.leaf(size) };
        let text = expr.to_string();
        if let Some(&extent) = self.symbols.get(&text) {
            return extent;
        }
        // Sizes that come out of data are what they are.
        let extent = if text.contains('u') { self.extents.fixed(size) } else { self.extents.leaf(size) };
        self.symbols.insert(text, extent);
        extent
    }

    fn of_type(&mut self, ty: &Type, symbols: &Symbols, number: u32) -> Shape {
        match ty {
            Type::Tensor(tensor) => Shape::Tensor(tensor.shape.iter().map(|dim| self.stated(dim, symbols)).collect()),
            Type::Tuple(types) => Shape::Tuple(types.iter().map(|ty| self.of_type(ty, symbols, number)).collect()),
            Type::SymInt(expr) => match Dim::from_expr(expr.clone()) {
                Some(dim) => Shape::Number(self.stated(&dim, symbols)),
                None => Shape::Unknown(number),
            },
            Type::Unknown | Type::SymOther(_) | Type::Token => Shape::Unknown(number),
        }
    }

    /// The shape that belongs to a key: what comes about in the same way has the same sizes, in all graphs.
    fn made(&mut self, key: String, ty: &Type, symbols: &Symbols) -> Shape {
        if let Some(shape) = self.made.get(&key) {
            return shape.clone();
        }
        let shape = self.of_type(ty, symbols, self.made.len() as u32);
        self.made.insert(key, shape.clone());
        shape
    }

    /// What an operator of unknown meaning makes: anything of the stated type.
    fn unknown(&mut self, graph: &Graph, symbols: &Symbols, id: NodeId, traced: &Traced) -> Shape {
        // An operator that overwrites one operand hands it on.
        if let [index] = effects(graph, id).writes[..]
            && let Some(operand) = graph.operands(id).get(index as usize)
            && let Some(shape @ Shape::Tensor(_)) = traced.shapes[operand.index()].clone()
            && self.agrees(&shape, graph.type_of(id), symbols)
        {
            return shape;
        }
        let sizes = |operand: &NodeId| match &traced.shapes[operand.index()] {
            Some(shape) => self.describe(shape),
            None => "?".to_owned(),
        };
        let operands: Vec<String> = graph.operands(id).iter().map(sizes).collect();
        let (target, args, ty) = (graph.target_of(id), graph.args_of(id), graph.type_of(id));
        let key = format!("{target} {} {args:?} {}", operands.join(" "), without_layout(ty));
        self.made(key, ty, symbols)
    }

    /// A shape with the sizes that it has in the graph.
    fn describe(&self, shape: &Shape) -> String {
        match shape {
            Shape::Unknown(number) => format!("?{number}"),
            Shape::Tensor(dims) => format!("{:?}", dims.iter().map(|&dim| self.extents.size(dim)).collect::<Vec<_>>()),
            Shape::Tuple(shapes) => shapes.iter().map(|shape| self.describe(shape) + ",").collect(),
            Shape::Number(extent) => self.extents.size(*extent).to_string(),
        }
    }
}

/// The text of a type, without strides and device.
fn without_layout(ty: &Type) -> String {
    match ty {
        Type::Tensor(tensor) => {
            let bare = bucketeer::ir::TensorType { strides: None, device: None, ..tensor.clone() };
            Type::Tensor(bare).to_string()
        }
        Type::Tuple(types) => types.iter().map(|ty| without_layout(ty) + ",").collect(),
        other => other.to_string(),
    }
}

/// Whether an argument is a list.
#[must_use]
pub fn is_list(arg: &Arg) -> bool {
    matches!(arg, Arg::List(_) | Arg::Tuple(_))
}
