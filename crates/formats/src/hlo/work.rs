//! How much instructions compute beside moving their operands and results.
//!
//! | instruction | work |
//! |---|---|
//! | `dot` | twice the elements of its result, for each element of the contracting dimensions |
//! | `convolution` | twice the elements of its result, for each element of the filter of one output feature; holes that `lhs_dilate` puts in are not computed |
//! | custom call of a cuBLAS product | as `dot`, by the dimensions in its config |
//! | `fusion` | that of its body |
//! | what runs a loop, a branch or another body; any other custom call; what communicates and is no message; what is not known | not known |
//! | all others | none |
//!
//! Bodies of fusions are read here and nowhere else: the graph has but a digest of them.

use super::attributes::{entry, numbers};
use super::module::{Instruction, Module};
use super::opcodes::{Doing, doing};
use super::shape;
use bucketeer::ir::{TensorType, Type, Work};

/// Opcodes that compute more than their shapes tell.
const UNCOUNTED: &[&str] =
    &["call", "cholesky", "conditional", "ragged-dot", "scaled-dot", "scan", "triangular-solve", "while"];

/// The work of instructions, and by computation that of bodies up to the last one that was asked for.
pub(super) struct Works<'t> {
    text: &'t str,
    module: &'t Module,
    bodies: Vec<Work>,
}

impl<'t> Works<'t> {
    pub(super) fn new(text: &'t str, module: &'t Module) -> Self {
        Self { text, module, bodies: Vec::new() }
    }

    /// The work of an instruction; `None` for one that moves bytes and no more, or none.
    pub(super) fn of(&mut self, instruction: &Instruction) -> Option<Work> {
        let opcode = instruction.opcode.of(self.text);
        let unknown = |what: String| Some(Work::Unknown(what.into()));
        let counted = |counted: Option<Work>| {
            Some(
                counted.unwrap_or_else(|| Work::Unknown(format!("a {opcode} of dimensions that are not known").into())),
            )
        };
        match opcode {
            "dot" => counted(self.dot(instruction)),
            "convolution" => counted(self.convolution(instruction)),
            "custom-call" => {
                let target = self.attribute(instruction, "custom_call_target").unwrap_or("?").trim_matches('"');
                let product = if target.starts_with("__cublas$") { self.cublas(instruction) } else { None };
                product.or_else(|| unknown(format!("a custom-call of `{target}`")))
            }
            "fusion" => {
                let calls = self.module.attribute(self.text, instruction, "calls")?;
                let body = self.module.called(calls).next()?;
                Some(self.body(body))
            }
            // The graph takes these for views, though they move what they are given.
            "transpose" | "slice" => Some(Work::Flops(Vec::new())),
            "async-start" => unknown("an async-start, which runs a body".to_owned()),
            _ if UNCOUNTED.contains(&opcode) => unknown(format!("a {opcode}")),
            _ => match doing(opcode) {
                Doing::Computes => None,
                Doing::Collective => unknown(format!("an {opcode} that the plan has no message for")),
                Doing::Talks => unknown(format!("a {opcode}")),
                Doing::Unknown => unknown(format!("`{opcode}`, which is not known")),
            },
        }
    }

    /// The work of all instructions of a body.
    fn body(&mut self, computation: usize) -> Work {
        let module = self.module;
        // In the order of the text, so that what a body calls is known before it.
        while let Some(next) = module.computations.get(self.bodies.len()).filter(|_| self.bodies.len() <= computation) {
            let instructions = &module.instructions[next.instructions()];
            let all = instructions.iter().fold(Work::Flops(Vec::new()), |all, one| match self.of(one) {
                Some(more) => all.and(more),
                None => all,
            });
            self.bodies.push(all);
        }
        self.bodies[computation].clone()
    }

    fn attribute(&self, instruction: &Instruction, key: &str) -> Option<&'t str> {
        self.module.attribute(self.text, instruction, key).map(|value| value.of(self.text))
    }

    fn operand(&self, instruction: &Instruction, position: usize) -> Option<TensorType> {
        let operand = self.module.operands(instruction).get(position)?;
        tensor(self.module.instructions[operand.target as usize].shape.of(self.text))
    }

    fn dot(&self, instruction: &Instruction) -> Option<Work> {
        let left = self.operand(instruction, 0)?;
        let result = tensor(instruction.shape.of(self.text))?;
        let contracted = match self.attribute(instruction, "lhs_contracting_dims") {
            Some(dims) => numbers(dims)?,
            None => Vec::new(),
        };
        let depths = contracted.iter().map(|&dim| left.shape.get(dim as usize)?.as_const());
        Some(work(&left, sizes(&result)?.into_iter().chain(depths.collect::<Option<Vec<u64>>>()?), 1))
    }

    fn convolution(&self, instruction: &Instruction) -> Option<Work> {
        let (left, filter) = (self.operand(instruction, 0)?, self.operand(instruction, 1)?);
        let result = tensor(instruction.shape.of(self.text))?;
        // `b01f_01io->b01f`: of the filter, `o` are the output features.
        let labels = self.attribute(instruction, "dim_labels")?;
        let (_, of_filter) = labels.split_once("->")?.0.split_once('_')?;
        let features = of_filter.find('o').filter(|_| of_filter.len() == filter.shape.len())?;
        let taps = sizes(&filter)?.into_iter().enumerate().filter(|&(dim, _)| dim != features).map(|(_, size)| size);
        let window = self.attribute(instruction, "window").unwrap_or("{}");
        let holes = match entry(window, "lhs_dilate") {
            Some(dilate) => dilate.split('x').map(|by| by.parse::<u64>().ok()).product::<Option<u64>>()?,
            None => 1,
        };
        Some(work(&left, sizes(&result)?.into_iter().chain(taps), holes))
    }

    /// A product that a library computes: the second operand's batch and contracting dimensions stand in its config, as JSON or as
    /// an escaped string of JSON, and all others are columns.
    fn cublas(&self, instruction: &Instruction) -> Option<Work> {
        let (left, right) = (self.operand(instruction, 0)?, self.operand(instruction, 1)?);
        let config = self.attribute(instruction, "backend_config")?.replace('\\', "");
        let dims = |key: &str| -> Option<Vec<usize>> {
            let (_, after) = config.split_once(&format!("\"{key}\":["))?;
            let list = after.split_once(']')?.0;
            list.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.trim().trim_matches('"').parse().ok()).collect()
        };
        let mut shared = dims("rhs_contracting_dimensions")?;
        shared.extend(dims("rhs_batch_dimensions").unwrap_or_default());
        let columns = sizes(&right)?.into_iter().enumerate().filter(|(dim, _)| !shared.contains(dim));
        Some(work(&left, sizes(&left)?.into_iter().chain(columns.map(|(_, size)| size)), 1))
    }
}

/// Twice the product of some sizes, done in the type of a tensor; the parts of it that are not holes.
fn work(of: &TensorType, sizes: impl Iterator<Item = u64>, holes: u64) -> Work {
    let all = sizes.fold(2u64, u64::saturating_mul);
    Work::Flops(vec![(all / holes.max(1), of.dtype)])
}

fn tensor(shape: &str) -> Option<TensorType> {
    match shape::parse(shape) {
        Ok(Type::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

fn sizes(tensor: &TensorType) -> Option<Vec<u64>> {
    tensor.shape.iter().map(bucketeer::ir::Dim::as_const).collect()
}
