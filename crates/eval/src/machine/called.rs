//! Calls of graphs: their nodes run in the place of the call, on the ranks that call them.

use super::{Machine, last_uses};
use crate::EvalError;
use crate::call::{Call, Rank};
use crate::copy::converted_bytes;
use crate::memory::NodeError;
use crate::value::Value;
use crate::world::World;
use bucketeer::ir::bodies::{BodyCall, body_call, communicating, waits_for_all};
use bucketeer::ir::{Arg, Graph, NodeId, Op, Type};

impl<'g> Machine<'g> {
    /// Runs the graph that a call names, if it names one or two that are known. False where it does not, or where a graph
    /// leaves something in flight; the call is then an operator of unknown meaning.
    pub(super) fn call_body(&mut self, id: NodeId) -> Result<bool, EvalError> {
        let graph = self.graph;
        if graph.bodies.is_empty() || self.alone {
            return Ok(false);
        }
        let Some(call) = body_call(graph, id) else { return Ok(false) };
        let bodies: Option<Vec<&'g Graph>> = call.targets.iter().map(|target| graph.bodies.get(target)).collect();
        let Some(bodies) = bodies.filter(|bodies| bodies.iter().all(|body| can_run(body, &call))) else {
            return Ok(false);
        };
        let mut chosen = vec![Vec::new(); bodies.len()];
        for rank in 0..self.ranks.len() {
            let first = match call.pick {
                None => true,
                Some(pick) => self.is_true(id, rank, pick).map_err(|fault| self.error(id, Some(rank), fault))?,
            };
            chosen[usize::from(!first)].push(rank);
        }
        if communicating(graph, id).is_some() && chosen.iter().filter(|ranks| !ranks.is_empty()).count() > 1 {
            let reason = "ranks take different branches, and one of them communicates".to_owned();
            return Err(self.error(id, None, NodeError::Undefined(reason)));
        }
        let mut runs = Vec::with_capacity(bodies.len());
        for (body, ranks) in bodies.into_iter().zip(chosen).filter(|(_, ranks)| !ranks.is_empty()) {
            // A group of the graph may have ranks that do not run it.
            let Some(world) = self.world.of_called(body, &ranks, self.options)? else { return Ok(false) };
            runs.push((body, ranks, world));
        }
        runs.into_iter().try_for_each(|(body, ranks, world)| self.run_on(id, &call, body, &ranks, world))?;
        Ok(true)
    }

    fn is_true(&mut self, id: NodeId, rank: usize, pick: &Arg) -> Result<bool, NodeError> {
        let call = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
        match call.value(pick)? {
            Value::Scalar(number) => Ok(number.float() != 0.0),
            Value::Tensor(tensor) if tensor.elements() == 1 => {
                let bytes = call.read(&tensor)?;
                Ok(converted_bytes(&bytes, tensor.dtype, bucketeer::ir::DType::Bool)? != [0])
            }
            _ => Err(NodeError::misfit("what says which graph runs is not a single number")),
        }
    }

    /// Runs a graph on some of the ranks, and gives the call its results.
    fn run_on(
        &mut self,
        id: NodeId,
        call: &BodyCall<'g>,
        body: &'g Graph,
        on: &[usize],
        world: World,
    ) -> Result<(), EvalError> {
        let inputs: Vec<NodeId> = body.order().iter().copied().filter(|&id| body.node(id).op == Op::Input).collect();
        let mut given: Vec<Vec<Value>> = Vec::with_capacity(on.len());
        for &rank in on {
            let values = Call::new(self.graph, id, &mut self.ranks[rank], &self.symbols, self.options);
            let landed = |arg| {
                let (value, mut found) = (values.value(arg)?, Ok(()));
                value.for_each_tensor(&mut |tensor| {
                    if values.rank.memory.is_pending(tensor) && found.is_ok() {
                        found = values.read(tensor).map(drop);
                    }
                });
                found.map(|()| value)
            };
            let values = call.given.iter().map(landed).collect::<Result<_, NodeError>>();
            given.push(values.map_err(|fault| self.error(id, Some(rank), fault))?);
        }
        let mut callers = Vec::with_capacity(on.len());
        let mut ranks: Vec<Option<Rank>> = std::mem::take(&mut self.ranks).into_iter().map(Some).collect();
        let mut inner = Machine {
            graph: body,
            options: self.options,
            symbols: self.symbols.clone(),
            world,
            ranks: Vec::with_capacity(on.len()),
            last_use: last_uses(body),
            seed: self.seed,
            alone: false,
        };
        for &place in on {
            let Some(mut rank) = ranks[place].take() else { continue };
            let values = std::mem::replace(&mut rank.values, vec![None; body.arena_len()]);
            callers.push((values, std::mem::take(&mut rank.memory.races)));
            inner.ranks.push(rank);
        }
        let done = inner.body(&inputs, given);
        for ((&place, mut rank), (values, mut races)) in on.iter().zip(inner.ranks).zip(callers) {
            // The nodes of a graph that is called have no names here.
            races.extend((!rank.memory.races.is_empty()).then_some(id));
            rank.memory.races = races;
            let left = std::mem::replace(&mut rank.values, values);
            left.into_iter().flatten().for_each(|value| value.release(&mut rank.memory));
            ranks[place] = Some(rank);
        }
        self.ranks = ranks.into_iter().flatten().collect();
        for (&rank, mut values) in on.iter().zip(done?) {
            let one = values.len() == 1 && matches!(self.graph.type_of(id), Type::Tensor(_));
            let value = if one { values.swap_remove(0) } else { Value::Tuple(values) };
            self.set(id, rank, value.clone())?;
            value.release(&mut self.ranks[rank].memory);
        }
        Ok(())
    }

    /// Runs all nodes with these values for the inputs, by rank. Gives the results by rank, held once more.
    fn body(&mut self, inputs: &[NodeId], given: Vec<Vec<Value>>) -> Result<Vec<Vec<Value>>, EvalError> {
        for (rank, values) in given.into_iter().enumerate() {
            for (&input, value) in inputs.iter().zip(values) {
                self.set(input, rank, value)?;
            }
        }
        for &id in self.graph.order() {
            if self.graph.node(id).op != Op::Input {
                self.node(id)?;
            }
        }
        let Some(&output) = self.graph.order().last() else { return Ok(vec![Vec::new(); self.ranks.len()]) };
        let mut all = Vec::with_capacity(self.ranks.len());
        for rank in 0..self.ranks.len() {
            let call = Call::new(self.graph, output, &mut self.ranks[rank], &self.symbols, self.options);
            let results = self.graph.operands(output).iter().map(|&id| call.value_of(id).cloned());
            let results = results
                .collect::<Result<Vec<_>, NodeError>>()
                .map_err(|fault| self.error(output, Some(rank), fault))?;
            results.iter().for_each(|value| value.hold(&mut self.ranks[rank].memory));
            all.push(results);
        }
        Ok(all)
    }
}

/// Whether a graph can run in the place of a call: it has an input for each value, its results are its operands in order,
/// and it leaves nothing in flight.
fn can_run(body: &Graph, call: &BodyCall<'_>) -> bool {
    let inputs = body.order().iter().filter(|&&id| body.node(id).op == Op::Input);
    let pending = inputs.clone().any(|&id| body.meta_of(id).pending);
    let output = body.order().last().filter(|&&id| body.node(id).op == Op::Output);
    let in_order = |&id: &NodeId| (0..).zip(&body.args_of(id).positional).all(|(at, arg)| *arg == Arg::Operand(at));
    let regions = body.regions().len() > 1;
    !pending
        && !regions
        && inputs.count() == call.given.len()
        && output.is_some_and(in_order)
        && waits_for_all(body) != Some(false)
}
