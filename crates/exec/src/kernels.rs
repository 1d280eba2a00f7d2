//! What runs compute steps.

use super::RunError;
use bucketeer::ir::{Args, DType, Dim, GlobalRank, TensorType, Type};
use bucketeer::program::{Buffer, BufferKind, Input, Made, Operand, Program, View};
use bucketeer_eval::step::{CallResult, Counters, OperatorCall, seeded_input};
use bucketeer_eval::{EvalOptions, Output, OutputTensor, Scalar};
use std::collections::{BTreeMap, HashMap};

/// A compute step, with its operands as values. Elements are in logical order, whatever the strides.
#[derive(Debug)]
pub struct ComputeStep<'a> {
    /// Name of the graph's node.
    pub name: &'a str,
    /// `aten.mm.default`.
    pub target: &'a str,
    /// As the graph has them, with holes for the operands.
    pub args: &'a Args,
    /// What fills the holes.
    pub operands: &'a [Output],
    /// What it has to make, as far as a program says.
    pub made: Type,
}

/// Runs compute steps on one rank: the reference evaluator, or the kernels of the program that embeds us.
pub trait Kernels {
    /// Runs one step.
    ///
    /// # Errors
    /// Whatever stops the run.
    fn run(&mut self, step: &ComputeStep<'_>) -> Result<CallResult, RunError>;

    /// Operators that it does not know and made numbers of its own for, since it was asked last; in order of their names.
    fn take_unknown(&mut self) -> Vec<UnknownOperator> {
        Vec::new()
    }
}

/// An operator whose meaning is not known to what ran it, so that its results are not those of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOperator {
    /// `aten.erfinv.default`; of a constant of the module, whose value no graph holds, its name.
    pub target: Box<str>,
    /// The first node that calls it.
    pub node: Box<str>,
    /// How often it was called.
    pub calls: u64,
}

impl<F: FnMut(&ComputeStep<'_>) -> Result<CallResult, RunError>> Kernels for F {
    fn run(&mut self, step: &ComputeStep<'_>) -> Result<CallResult, RunError> {
        self(step)
    }
}

/// The reference evaluator: slow, obvious, and for any operator.
#[derive(Debug)]
pub struct Reference {
    counters: Counters,
    options: EvalOptions,
    /// Steps that were made ready, by name and target. Programs have names of their own, so that there may be several, which
    /// differ in arguments or in what they make.
    ready: HashMap<(Box<str>, Box<str>), Vec<Ready>>,
    /// By target.
    unknown: BTreeMap<Box<str>, UnknownOperator>,
}

/// A step that was made ready.
#[derive(Debug)]
struct Ready {
    args: Args,
    made: Type,
    operands: Vec<Type>,
    step: OperatorCall,
}

impl Reference {
    /// For one rank. Random operators draw from the seed.
    #[must_use]
    pub fn new(rank: GlobalRank, seed: u64) -> Self {
        let options = EvalOptions { seed, ..EvalOptions::default() };
        Self {
            counters: Counters { rank: rank.0, ..Counters::default() },
            options,
            ready: HashMap::new(),
            unknown: BTreeMap::new(),
        }
    }
}

impl Kernels for Reference {
    fn run(&mut self, step: &ComputeStep<'_>) -> Result<CallResult, RunError> {
        let operands: Vec<Type> = step.operands.iter().map(type_of_value).collect();
        let known = self.ready.entry((step.name.into(), step.target.into())).or_default();
        let same = |ready: &Ready| ready.args == *step.args && ready.made == step.made && ready.operands == operands;
        let at = known.iter().position(same).unwrap_or_else(|| {
            let made = OperatorCall::new(step.name, step.target, step.args, &operands, step.made.clone());
            known.push(Ready { args: step.args.clone(), made: step.made.clone(), operands, step: made });
            known.len() - 1
        });
        let ready = &mut known[at].step;
        let before = self.counters.unknown;
        let result = ready.run(step.operands, &mut self.counters, &self.options)?;
        if self.counters.unknown > before {
            let first = || UnknownOperator { target: step.target.into(), node: step.name.into(), calls: 0 };
            self.unknown.entry(step.target.into()).or_insert_with(first).calls += 1;
        }
        Ok(result)
    }

    fn take_unknown(&mut self) -> Vec<UnknownOperator> {
        std::mem::take(&mut self.unknown).into_values().collect()
    }
}

/// Inputs of a program for one rank, as the evaluator makes them of a seed.
///
/// # Errors
/// [`RunError::Compute`] when they are too large.
pub fn seeded_inputs(program: &Program, rank: GlobalRank, seed: u64) -> Result<Vec<Output>, RunError> {
    program.inputs.iter().map(|input| seeded(program, input, rank, seed)).collect()
}

/// One input, as the evaluator makes it of a seed.
pub(super) fn seeded(program: &Program, input: &Input, rank: GlobalRank, seed: u64) -> Result<Output, RunError> {
    let options = EvalOptions { seed, ..EvalOptions::default() };
    let ty = match &input.value {
        Operand::Tensor(view) => Type::Tensor(type_of_view(program, *view)),
        Operand::Int(value) => return Ok(Output::Number(Scalar::Int(*value))),
        Operand::Host(_) | Operand::Tuple(_) => Type::Unknown,
    };
    Ok(seeded_input(&input.name, &ty, rank.0, &options)?)
}

/// All whose values in a run are not the graph's: operators that the kernels do not know, and constants.
pub(super) fn unknown(program: &Program, kernels: &mut dyn Kernels, all: &mut Vec<UnknownOperator>) {
    let constants = program.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Constant);
    let constants =
        constants.map(|buffer| UnknownOperator { target: buffer.name.clone(), node: buffer.name.clone(), calls: 1 });
    add_unknown(all, kernels.take_unknown());
    add_unknown(all, constants);
}

/// Adds what a part of a run computed otherwise; of one target, the first node stays.
pub(super) fn add_unknown(all: &mut Vec<UnknownOperator>, more: impl IntoIterator<Item = UnknownOperator>) {
    for one in more {
        match all.iter_mut().find(|known| known.target == one.target) {
            Some(known) => known.calls += one.calls,
            None => all.push(one),
        }
    }
}

/// What the evaluator makes of a constant of the module.
pub(super) fn seeded_constant(buffer: &Buffer) -> Result<Output, RunError> {
    let shape = std::iter::once(Dim::Const(buffer.bytes)).collect();
    let ty = Type::Tensor(TensorType { dtype: DType::U8, shape, strides: None, device: None });
    Ok(seeded_input(&buffer.name, &ty, 0, &EvalOptions::default())?)
}

pub(super) fn type_of_view(program: &Program, view: View) -> TensorType {
    let layout = program.layout(view.layout);
    let dims = |sizes: &[u64]| sizes.iter().map(|&size| Dim::Const(size)).collect();
    let device = program.buffer(view.buffer).device.as_deref().map(Into::into);
    TensorType { dtype: layout.dtype, shape: dims(&layout.shape), strides: Some(dims(&layout.strides)), device }
}

pub(super) fn type_of(program: &Program, made: &Made) -> Type {
    match made {
        Made::Tensor(view) => Type::Tensor(type_of_view(program, *view)),
        Made::Tuple(parts) => Type::Tuple(parts.iter().map(|part| type_of(program, part)).collect()),
        Made::Nothing | Made::Host(_) => Type::Unknown,
    }
}

fn type_of_value(value: &Output) -> Type {
    let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::Const(size as u64)).collect();
    match value {
        Output::Tensor(OutputTensor { dtype, sizes, strides, device, .. }) => Type::Tensor(TensorType {
            dtype: *dtype,
            shape: dims(sizes),
            strides: Some(dims(strides)),
            device: device.clone(),
        }),
        Output::Tuple(values) => Type::Tuple(values.iter().map(type_of_value).collect()),
        Output::Number(_) | Output::Opaque(_) => Type::Unknown,
    }
}
