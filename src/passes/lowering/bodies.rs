//! Calls of graphs that are known: a program for each graph, and a step that runs one of them.

use super::build::refuse;
use super::walk::{Lowering, Value};
use super::{LowerError, LowerOptions, lower};
use crate::ir::Short;
use crate::ir::bodies::{BodyCall, body_call, communicating};
use crate::ir::{Arg, NodeId};
use crate::program::{Body, Operand, Program, Run, StepKind};

impl<'g> Lowering<'g> {
    /// A run of the graphs that a node calls. None where it calls none, or not so that a program could; then it is a compute
    /// step, unless the graphs communicate.
    pub(super) fn called(&mut self, id: NodeId) -> Result<Option<Value>, LowerError> {
        if self.graph.bodies.is_empty() || !self.graph.target_of(id).starts_with("higher_order.") {
            return Ok(None);
        }
        let communicates = communicating(self.graph, id);
        let step = match body_call(self.graph, id) {
            Some(call) => self.run_of(id, &call),
            None => Err("only `cond` and `invoke_subgraph` are lowered that do".to_owned()),
        };
        match (step, communicates) {
            (Ok((run, value)), _) => {
                let effects = self.facts.effects.get(id);
                let (node, fence) = (self.graph.name_of(id), effects.fence == crate::ir::operators::Fence::Full);
                match fence {
                    true => self.build.fence(node, StepKind::Run(run)),
                    false => drop(self.build.step(node, StepKind::Run(run))),
                }
                Ok(Some(value))
            }
            (Err(_), None) => Ok(None),
            (Err(reason), Some(called)) => {
                let called = called.strip_prefix("self.").unwrap_or(called);
                let reason = format!(
                    "it calls the graph `{called}`, which communicates, and no step does that: {reason}; write the graph's \
                     nodes in its place"
                );
                refuse(self.graph, id, reason)
            }
        }
    }

    fn run_of(&mut self, id: NodeId, call: &BodyCall<'g>) -> Result<(Run, Value), String> {
        let effects = self.facts.effects.get(id);
        if !effects.writes.is_empty() {
            return Err("it writes what it is given".to_owned());
        }
        if effects.alias != crate::ir::operators::Alias::Fresh && self.facts.is_written(id) {
            return Err("its result may be memory that is written".to_owned());
        }
        let pick = call.pick.map(|arg| self.given(id, arg)).transpose()?;
        let given = call.given.iter().map(|arg| self.given(id, arg)).collect::<Result<Vec<_>, _>>()?;
        let bodies = call.targets.iter().map(|target| self.body(target)).collect::<Result<Short<_, 2>, _>>()?;
        let (buffers, hosts) = (self.build.program.buffers.len(), self.build.program.hosts.len());
        let (made, value) = self.made(id).map_err(|error| error.to_string())?;
        let run = Run { bodies, pick, given, made };
        match self.build.program.check_run(&run) {
            Ok(()) => Ok((run, value)),
            Err(reason) => {
                // A compute step makes its own.
                self.build.program.buffers.truncate(buffers);
                self.build.program.hosts.truncate(hosts);
                Err(reason)
            }
        }
    }

    fn given(&self, id: NodeId, arg: &Arg) -> Result<Operand, String> {
        match arg {
            Arg::Operand(index) => {
                match self.graph.operands(id).get(*index as usize).map(|&operand| self.value(operand)) {
                    Some(value @ (Value::Tensor(_) | Value::Int(_) | Value::Host(_))) => Ok(self.operand(value)),
                    _ => Err("it is given what is neither a tensor nor a number".to_owned()),
                }
            }
            Arg::Int(value) => Ok(Operand::Int(*value)),
            Arg::Bool(value) => Ok(Operand::Int(i64::from(*value))),
            _ => Err("it is given what is neither a tensor nor a number".to_owned()),
        }
    }

    /// The program of the graph that an attribute holds.
    fn body(&mut self, target: &'g str) -> Result<u32, String> {
        if let Some(known) = self.bodies.get(target) {
            return known.clone();
        }
        let made = self.lowered(target).map(|program| {
            self.build.program.bodies.push(Body { target: target.into(), program });
            self.build.program.bodies.len() as u32 - 1
        });
        self.bodies.insert(target, made.clone());
        made
    }

    fn lowered(&self, target: &str) -> Result<Program, String> {
        let name = target.strip_prefix("self.").unwrap_or(target);
        let mut graph = self.graph.bodies.get(target).ok_or_else(|| format!("`{name}` is not known"))?.clone();
        // What its caller declares, and the sizes that it was made for, go for it.
        graph.operators.clone_from(&self.graph.operators);
        let mut options = LowerOptions { ..self.options.clone() };
        options.symbols.extend(self.build.program.symbols.clone());
        let (program, _) = lower(&graph, &options).map_err(|error| format!("`{name}`: {error}"))?;
        if let Some(held) = program.buffers.iter().find(|buffer| buffer.kind == crate::program::BufferKind::Constant) {
            return Err(format!("`{name}` reads `{}`, which its caller's program holds", held.name));
        }
        Ok(program)
    }
}
