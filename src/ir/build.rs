//! Builds graphs node by node, for compilers and tests: types of collectives and waits follow from what they are of,
//! arguments are plain values, and the whole is verified at the end.

use super::args::{Arg, Args};
use super::entities::{GroupId, NodeId};
use super::graph::Graph;
use super::operators::infer_type;
use super::ops::{Collective, CollectiveKind, Op, Variant};
use super::types::{DType, TensorType, Type};
use super::verify::{VerifyErrors, verify};

/// Builds a graph. Nodes stand in the order in which they are added.
///
/// ```
/// use bucketeer::ir::{CollectiveKind, DType, GraphBuilder, ReduceOp, TensorType};
///
/// let mut build = GraphBuilder::new("step");
/// let world = build.group("world", 8);
/// let gradient = build.input("gradient", TensorType::dense(DType::F32, &[1024]));
/// let started = build.collective("reduce", CollectiveKind::AllReduce { op: ReduceOp::Sum }, world, gradient);
/// let reduced = build.wait("reduced", started);
/// let graph = build.finish(&[reduced])?;
/// assert_eq!(graph.order().len(), 4);
/// # Ok::<(), bucketeer::ir::verify::VerifyErrors>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

/// An argument of a call: a value of the graph, a plain one, or a list of both.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildArg {
    /// What a node makes.
    Node(NodeId),
    /// Anything that has no node in it.
    Plain(Arg),
    /// `[a, b]`.
    List(Vec<BuildArg>),
}

impl From<NodeId> for BuildArg {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

impl From<i64> for BuildArg {
    fn from(value: i64) -> Self {
        Self::Plain(Arg::Int(value))
    }
}

impl From<bool> for BuildArg {
    fn from(value: bool) -> Self {
        Self::Plain(Arg::Bool(value))
    }
}

impl From<&str> for BuildArg {
    fn from(text: &str) -> Self {
        Self::Plain(Arg::Str(text.into()))
    }
}

impl From<DType> for BuildArg {
    fn from(dtype: DType) -> Self {
        Self::Plain(Arg::DType(dtype))
    }
}

impl<T: Into<Self>> From<Vec<T>> for BuildArg {
    fn from(items: Vec<T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl BuildArg {
    /// The argument with a hole for each node, and the nodes that go there.
    fn with_holes(self, operands: &mut Vec<NodeId>) -> Arg {
        match self {
            Self::Plain(arg) => arg,
            Self::List(items) => Arg::List(items.into_iter().map(|item| item.with_holes(operands)).collect()),
            Self::Node(node) => {
                operands.push(node);
                // Graphs have fewer than 2^32 nodes.
                Arg::Operand(operands.len() as u32 - 1)
            }
        }
    }
}

impl GraphBuilder {
    /// A graph without nodes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { graph: Graph::new(name) }
    }

    /// The graph so far: for types, groups, operators and what else there is no shorthand for.
    #[must_use]
    pub const fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// A process group of that many ranks; the same for the same name.
    pub fn group(&mut self, name: &str, ranks: u32) -> GroupId {
        self.graph.intern_group(name, Some(ranks))
    }

    /// A tensor from outside.
    pub fn input(&mut self, name: &str, ty: TensorType) -> NodeId {
        self.add(name, Op::Input, Some(Type::Tensor(ty)), Args::default(), &[])
    }

    /// A call of an operator by its target, such as `aten.mm.default`, with the type of what it makes.
    pub fn call(&mut self, name: &str, target: &str, args: Vec<BuildArg>, ty: impl Into<Type>) -> NodeId {
        let mut operands = Vec::new();
        let args = args.into_iter().map(|arg| arg.with_holes(&mut operands)).collect();
        let target = self.graph.intern(target);
        self.add(name, Op::Call(target), Some(ty.into()), Args::positional(args), &operands)
    }

    /// The start of a collective of one tensor, in a new tensor. Its value may be read only after [`Self::wait`].
    pub fn collective(&mut self, name: &str, kind: CollectiveKind, group: GroupId, input: NodeId) -> NodeId {
        let op = Op::Collective(Collective { kind, group, variant: Variant::Functional, coalesced: false });
        self.add(name, op, None, Args::positional(vec![Arg::Operand(0)]), &[input])
    }

    /// The wait for a collective. Its value is the collective's result.
    pub fn wait(&mut self, name: &str, started: NodeId) -> NodeId {
        self.add(name, Op::Wait, None, Args::positional(vec![Arg::Operand(0)]), &[started])
    }

    fn add(&mut self, name: &str, op: Op, ty: Option<Type>, args: Args, operands: &[NodeId]) -> NodeId {
        let ty = ty.unwrap_or_else(|| infer_type(&self.graph, op, &args, operands));
        let (name, ty) = (self.graph.intern(name), self.graph.intern_type(ty));
        let args = self.graph.intern_args(args);
        self.graph.push(op, name, ty, args, operands)
    }

    /// The graph, with these results.
    ///
    /// # Errors
    /// What is not well-formed, each with its node: names given twice, collectives that are read before a wait, dimensions that
    /// a group does not divide, and the like.
    pub fn finish(mut self, results: &[NodeId]) -> Result<Graph, VerifyErrors> {
        let args = (0..results.len() as u32).map(Arg::Operand).collect();
        self.add("output", Op::Output, Some(Type::Unknown), Args::positional(args), results);
        verify(&self.graph)?;
        Ok(self.graph)
    }
}

impl From<TensorType> for Type {
    fn from(ty: TensorType) -> Self {
        Self::Tensor(ty)
    }
}
