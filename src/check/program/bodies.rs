//! Runs of programs within the program.

use super::{Play, Player, ProgramVerdict, different, prove, undecided};
use crate::check::effects::has_memory;
use crate::check::terms::Val;
use crate::ir::operators::split_target;
use crate::ir::{Arg, NodeId, Op};
use crate::program::{Operand, Run};

impl Player<'_, '_, '_> {
    /// The node calls these graphs by what decides between them, with these values; and each body is its graph's program.
    pub(super) fn run(&mut self, index: usize, run: &Run) -> Play {
        let id = self.node(index)?;
        let graph = self.graph;
        if !matches!(graph.node(id).op, Op::Call(_)) {
            return different("its node calls nothing");
        }
        let (_, operator, _) = split_target(graph.target_of(id));
        let args = graph.args_of(id);
        let (pick, called, given) = match (operator, &*args.positional) {
            _ if !args.keyword.is_empty() || !graph.target_of(id).starts_with("higher_order.") => {
                return different("its node is not a call of graphs that is followed");
            }
            ("cond", [pick, called @ .., Arg::Tuple(given) | Arg::List(given)]) => (Some(pick), called, &**given),
            ("cond", [pick, called @ ..]) => (Some(pick), called, &[][..]),
            ("invoke_subgraph", [called, _, given @ ..]) => (None, std::slice::from_ref(called), given),
            _ => return different("its node is not a call of graphs that is followed"),
        };
        if called.len() != run.bodies.len() || pick.is_some() != run.pick.is_some() || given.len() != run.given.len() {
            return different("its node is given another number of graphs or values");
        }
        for (called, &body) in called.iter().zip(&run.bodies) {
            self.body(called, id, body as usize)?;
        }
        let reads: Vec<Val> = match self.walked.reads.as_ref().and_then(|reads| reads.of(graph, id)) {
            Some(vals) => vals.to_vec(),
            None => graph.operands(id).iter().map(|operand| self.walked.vals[operand.index()]).collect(),
        };
        for (operand, arg) in run.pick.iter().chain(&run.given).zip(pick.into_iter().chain(given)) {
            match (operand, arg) {
                (_, Arg::Operand(at)) => {
                    let (Some(&node), Some(&val)) = (graph.operands(id).get(*at as usize), reads.get(*at as usize))
                    else {
                        return different("its node has no such operand");
                    };
                    self.holds(operand, node, val)?;
                }
                (Operand::Int(found), Arg::Int(wanted)) if found == wanted => {}
                (Operand::Int(found), Arg::Bool(wanted)) if *found == i64::from(*wanted) => {}
                _ => return different("it is given another value than its node"),
            }
        }
        if super::calls::keeps_its_place(self.walked, id) {
            self.fenced.push(id);
        }
        let effects = self.walked.effects.get(id).clone();
        if effects.launches {
            self.called.push(id);
        }
        if effects.writes.iter().any(|&index| has_memory(graph, graph.operands(id)[index as usize])) {
            return undecided("it may write what it is given, and a body has copies of that");
        }
        self.apart(run.pick.iter().chain(&run.given), &run.made)?;
        self.make(&run.made, id, self.walked.vals[id.index()])
    }

    /// A body is the program of the graph that an argument names.
    fn body(&mut self, called: &Arg, id: NodeId, body: usize) -> Play {
        let graph = self.graph;
        let target = match called {
            Arg::Operand(at) => graph.operands(id).get(*at as usize).map(|&node| graph.target_of(node)),
            Arg::Word(word) => Some(&**word),
            _ => None,
        };
        let lowered = &self.program.bodies[body];
        let Some(target) = target.filter(|target| **target == *lowered.target) else {
            return different(format!("it runs `{}`, which its node does not call", lowered.target));
        };
        if self.bodies[body].is_some() {
            return Ok(());
        }
        let Some(called) = graph.bodies.get(target) else { return undecided(format!("what `{target}` does")) };
        let mut called = called.clone();
        called.operators.clone_from(&graph.operators);
        let sizes = &lowered.program.symbols;
        if let Some((symbol, _)) =
            sizes.iter().find(|(name, size)| self.program.symbols.get(*name).is_some_and(|own| own != *size))
        {
            return different(format!("`{target}` is made for another value of `{symbol}`"));
        }
        match prove(&called, &lowered.program) {
            ProgramVerdict::Equal(proof) => {
                self.bodies[body] = Some(proof);
                Ok(())
            }
            ProgramVerdict::Different(fault) => different(format!("`{target}`: {fault}")),
            ProgramVerdict::CannotDecide(fault) => undecided(format!("`{target}`: {fault}")),
        }
    }
}
