//! One operator call by itself, for whoever holds its operands elsewhere: the compute steps of a program.
//!
//! The call means what it means in a graph: it is put into a graph of its own, whose inputs are its operands.

use super::machine::Machine;
use super::output::{Output, OutputTensor};
use super::value::Value;
use super::{EvalError, EvalOptions};
use bucketeer::ir::operators::effects;
use bucketeer::ir::{Args, Graph, NodeId, Op, TensorType, Type, TypeId};

/// What one rank carries from call to call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Its number among all ranks.
    pub rank: u32,
    /// How many random draws there were.
    pub draws: u64,
    /// How many calls that may talk to the world there were.
    pub fences: u64,
    /// How many calls made numbers of operators whose meaning is not known.
    pub unknown: u64,
}

/// An operator with its arguments and the types of its operands.
#[derive(Clone, Debug)]
pub struct OperatorCall {
    graph: Graph,
    call: NodeId,
    /// Operands that the call overwrites, by index.
    writes: Vec<usize>,
}

/// What a call made.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// Its value.
    pub made: Output,
    /// Operands that it overwrote, by index, as they are afterwards.
    pub written: Vec<(usize, Output)>,
}

impl OperatorCall {
    /// A call of `target`, with holes in `args` for operands of these types, that makes a value of type `made`, whatever
    /// its strides: a view has those of its operand, and what it makes is taken in logical order. The name is for errors.
    #[must_use]
    pub fn new(name: &str, target: &str, args: &Args, operands: &[Type], made: Type) -> Self {
        let mut graph = Graph::new(name);
        let nothing = graph.intern_args(Args::default());
        let mut inputs = Vec::with_capacity(operands.len());
        for (index, ty) in operands.iter().enumerate() {
            let (name, ty) = (graph.intern(&format!("operand {index}")), graph.intern_type(ty.clone()));
            inputs.push(graph.push(Op::Input, name, ty, nothing, &[]));
        }
        let (name, target) = (graph.intern(name), graph.intern(target));
        let (made, args) = (graph.intern_type(without_strides(made)), graph.intern_args(args.clone()));
        let call = graph.push(Op::Call(target), name, made, args, &inputs);
        let output = graph.intern("output");
        graph.push(Op::Output, output, TypeId::UNKNOWN, nothing, &[call]);
        let writes = effects(&graph, call).writes.iter().map(|&index| index as usize).collect();
        Self { graph, call, writes }
    }

    /// Evaluates the call on one rank.
    ///
    /// # Errors
    /// [`EvalError`], naming the call.
    pub fn run(
        &self,
        operands: &[Output],
        counters: &mut Counters,
        options: &EvalOptions,
    ) -> Result<CallResult, EvalError> {
        let mut machine = Machine::new(&self.graph, options)?;
        machine.resume(*counters);
        let inputs = self.graph.operands(self.call);
        for (&id, operand) in inputs.iter().zip(operands) {
            machine.give(id, operand)?;
        }
        machine.one(self.call)?;
        *counters = machine.counters();
        let made = machine.see(self.call)?;
        let written = self.writes.iter().filter(|&&index| index < inputs.len());
        let written =
            written.map(|&index| Ok((index, machine.see(inputs[index])?))).collect::<Result<_, EvalError>>()?;
        Ok(CallResult { made, written })
    }
}

fn without_strides(ty: Type) -> Type {
    match ty {
        Type::Tensor(ty) => Type::Tensor(TensorType { strides: None, ..ty }),
        Type::Tuple(parts) => Type::Tuple(parts.into_iter().map(without_strides).collect()),
        other => other,
    }
}

/// What the evaluator gives an input of that name and type on a rank.
///
/// # Errors
/// [`EvalError`] for sizes that have no value, or too many bytes.
pub fn seeded_input(name: &str, ty: &Type, rank: u32, options: &EvalOptions) -> Result<Output, EvalError> {
    let mut graph = Graph::new(name);
    let nothing = graph.intern_args(Args::default());
    let (name, ty) = (graph.intern(name), graph.intern_type(ty.clone()));
    let input = graph.push(Op::Input, name, ty, nothing, &[]);
    let mut machine = Machine::new(&graph, options)?;
    machine.resume(Counters { rank, ..Counters::default() });
    machine.seed_input(input)?;
    machine.see(input)
}

/// A value in a rank's memory.
pub(super) fn place(memory: &mut super::memory::RankMemory, value: &Output) -> Result<Value, super::memory::NodeError> {
    Ok(match value {
        Output::Tensor(OutputTensor { dtype, sizes, strides, bytes, device, .. }) => {
            let mut tensor = memory.strided(*dtype, sizes, strides, bytes)?;
            tensor.device = device.clone();
            Value::Tensor(tensor)
        }
        Output::Tuple(values) => {
            Value::Tuple(values.iter().map(|value| place(memory, value)).collect::<Result<_, _>>()?)
        }
        Output::Number(number) => Value::Scalar(*number),
        Output::Opaque(state) => Value::Opaque(*state),
    })
}
