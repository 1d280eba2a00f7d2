//! PyTorch FX graphs as lists of nodes: how a program that holds one hands it over, and what it has to change in it.
//!
//! A live `torch.fx.Graph` is not printed and read: its nodes are pushed one by one ([`NodeReader`]), in its order, and
//! mean what the same statements mean as text. What passes did is then told as edits of the list ([`edits`]): which nodes
//! stay, in which order, which have other operands, and which are new. So the holder keeps all that a node has beside its
//! call.

use super::collective::{Meaning, meaning};
use super::emit::functional_call;
use super::error::FxPrintError;
use crate::group_values::GroupValues;
use bucketeer::ir::{Arg, Args, ArgsId, Graph, Name, NodeId, Op, Type, TypeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What a node of an FX graph does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode<'t> {
    /// An input of the graph.
    Placeholder,
    /// A call, or an attribute: `aten.mm.default`, `operator.getitem`, `self.weight`, `method.view`, as FX text has it
    /// without `torch.ops`.
    Call(&'t str),
    /// What the graph gives back.
    Output,
}

/// Takes the nodes of an FX graph.
#[derive(Debug)]
pub struct NodeReader {
    graph: Graph,
    group_values: GroupValues,
    known: HashMap<(Name, ArgsId), (Op, ArgsId), FxBuildHasher>,
}

impl NodeReader {
    /// Begins a graph.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { graph: Graph::new(name), group_values: GroupValues::default(), known: HashMap::default() }
    }

    /// The id of a type, for [`NodeReader::push`].
    pub fn intern_type(&mut self, ty: Type) -> TypeId {
        self.graph.intern_type(ty)
    }

    /// Adds a node behind those that are there. `args` has a hole for each of `operands`, in their order; the arguments of
    /// [`Opcode::Output`] are the results, one by one. Names are those of the list, which differ from one another.
    pub fn push(&mut self, op: Opcode<'_>, name: &str, args: Args, operands: &[NodeId], ty: TypeId) -> NodeId {
        let (op, args) = match op {
            Opcode::Placeholder => (Op::Input, ArgsId::EMPTY),
            Opcode::Output => (Op::Output, self.graph.intern_args(args)),
            Opcode::Call(target) => self.call(target, args, operands),
        };
        let name = self.graph.intern(name);
        self.graph.push(op, name, ty, args, operands)
    }

    fn call(&mut self, target: &str, args: Args, operands: &[NodeId]) -> (Op, ArgsId) {
        let key = (self.graph.intern(target), self.graph.intern_args(args));
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let Self { graph, group_values, .. } = self;
        let args = graph.args(key.1).clone();
        let mut group = |graph: &Graph, index: u32| group_values.name(graph, operands[index as usize]);
        let Meaning { op, args, opaque_group } = meaning(graph, target, args, &mut group);
        let args = graph.intern_args(args);
        if opaque_group.is_none() {
            self.known.insert(key, (op, args));
        }
        (op, args)
    }

    /// Adds a graph that nodes call, by the attribute that holds it.
    pub fn body(&mut self, attribute: &str, graph: Graph) {
        self.graph.bodies.insert(attribute, graph);
    }

    /// The graph. Its edits are logged from here on, for [`edits`].
    #[must_use]
    pub fn finish(self) -> Graph {
        let Self { mut graph, mut group_values, .. } = self;
        group_values.finish(&mut graph);
        graph.start_edit_log();
        graph
    }
}

/// A node of the list as it is to be.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit<'g> {
    /// It stays as it is: the node that was pushed as so-manieth, from 0.
    Kept(usize),
    /// It stays, with these operands in the places of its own, in order of appearance.
    Rewired(usize, &'g [NodeId]),
    /// It is new.
    New(NewNode<'g>),
}

/// A call that is to be added.
#[derive(Clone, PartialEq, Debug)]
pub struct NewNode<'g> {
    /// Its id in the graph, by which others have it as operand. A node that was pushed and does something else now is new,
    /// and keeps its id.
    pub id: NodeId,
    /// A name to give it. A node that goes may have the same one.
    pub name: &'g str,
    /// What it calls, below `torch.ops` where that is an operator.
    pub target: String,
    /// Its arguments, with a hole for each operand.
    pub args: Args,
    /// Its operands.
    pub operands: &'g [NodeId],
    /// The names of the collectives that were merged into it.
    pub members: &'g [Box<str>],
}

/// What has to be done to a list of nodes so that it is what the graph is now: its nodes, in the new order. Nodes that were
/// pushed and do not come up are to go. An operand is the new node of its id, or else the node that was pushed with it.
///
/// # Errors
/// [`FxPrintError`] for a node that FX has no word for.
pub fn edits(graph: &Graph) -> Result<Vec<Edit<'_>>, FxPrintError> {
    let stays = |id: NodeId| graph.original(id).is_some_and(|then| then.does_the_same(graph.node(id)));
    let edit = |&id: &NodeId| {
        let (node, operands) = (graph.node(id), graph.operands(id));
        if let Some(then) = graph.original(id).filter(|_| stays(id)) {
            // A node that does something else now is another one to its readers.
            return Ok(match then.operands == operands && operands.iter().all(|&of| stays(of)) {
                true => Edit::Kept(id.index()),
                false => Edit::Rewired(id.index(), operands),
            });
        }
        let (target, args) = match node.op {
            Op::Wait | Op::Collective(_) => functional_call(graph, id)?,
            Op::Call(target) => (graph.text(target).to_owned(), graph.args_of(id).clone()),
            Op::Input | Op::Output => return Err(FxPrintError::Arguments(graph.name_of(id).to_owned())),
        };
        let mut holes = 0;
        args.for_each_operand(&mut |_| holes += 1);
        if holes != operands.len() {
            return Err(FxPrintError::Arguments(graph.name_of(id).to_owned()));
        }
        let members = &graph.meta_of(id).members;
        Ok(Edit::New(NewNode { id, name: graph.name_of(id), target, args, operands, members }))
    };
    graph.order().iter().map(edit).collect()
}

/// The results that an output gives back, of what FX has as its one argument.
#[must_use]
pub fn results(returned: Arg) -> Args {
    Args::positional(match returned {
        Arg::Tuple(items) | Arg::List(items) => items,
        value => vec![value],
    })
}

#[cfg(test)]
mod tests;
