//! The reduction that a computation is.
//!
//! A reducer takes two parameters and combines them with one instruction. Compilers wrap it: they convert the parameters to
//! a wider type and the result back, or call another computation. As long as one operation of a known kind is left, the
//! reduction is known; its type, if it is not that of the tensors, and how it is wrapped are part of what members of a
//! bucket agree on. All other reducers are not followed.

use super::module::{Instruction, Module};
use super::shape::scalar;
use bucketeer::ir::{DType, ReduceOp};

/// Calls that are followed.
const MOST_CALLS: usize = 8;

/// A reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reducer {
    pub op: ReduceOp,
    /// The type in which values are combined; none if the graph lacks it.
    pub dtype: Option<DType>,
    pub form: Form,
}

/// How a reducer is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Two parameters and one instruction.
    Plain,
    /// With conversions around it.
    Converts,
    /// As a call of another one.
    Calls,
}

impl Reducer {
    /// What sets the reducer apart from a plain one on tensors of these types, in words; `None` if nothing does, and the
    /// outer `None` if values of these types would be narrowed on their way.
    pub(super) fn noted(self, inputs: impl Iterator<Item = DType>) -> Option<Option<String>> {
        let form = match self.form {
            Form::Plain => "",
            Form::Converts => " by converts",
            Form::Calls => " by a call",
        };
        let Some(dtype) = self.dtype else { return Some(None) };
        let others: Vec<DType> = inputs.filter(|&input| input != dtype).collect();
        match others.is_empty() {
            _ if !others.iter().all(|&input| widens(input, dtype)) => None,
            false => Some(Some(format!("{}{form}", dtype.short_name()))),
            true if form.is_empty() => Some(None),
            true => Some(Some(form.trim_start().to_owned())),
        }
    }
}

/// Whether each value of one float type is one of the other, which has more than twice the digits: a sum, product or
/// choice of two then rounds to the same value.
fn widens(from: DType, to: DType) -> bool {
    match to {
        DType::F32 => matches!(
            from,
            DType::F16 | DType::Bf16 | DType::F8E4m3fn | DType::F8E5m2 | DType::F8E4m3fnuz | DType::F8E5m2fnuz
        ),
        DType::F64 => from == DType::F32 || widens(from, DType::F32),
        _ => false,
    }
}

/// The reduction of a computation.
pub(super) fn reducer(text: &str, module: &Module, computation: usize) -> Option<Reducer> {
    let mut at = computation;
    for calls in 0..MOST_CALLS {
        let form = if calls == 0 { Form::Plain } else { Form::Calls };
        let list = &module.instructions[module.computations[at].instructions()];
        let [a, b, .., root] = list else { return None };
        let first = module.computations[at].first;
        let is_parameter = |instruction: &Instruction| instruction.opcode.of(text) == "parameter";
        let at_end = module.computations[at].root as usize == module.computations[at].end as usize - 1;
        if !is_parameter(a) || !is_parameter(b) || !at_end {
            return None;
        }
        let targets: Vec<u32> = module.operands(root).iter().map(|operand| operand.target).collect();
        let of_both = targets == [first, first + 1] || targets == [first + 1, first];
        match (list.len(), root.opcode.of(text)) {
            (3, "call") if of_both => {
                at = module.attribute(text, root, "to_apply").and_then(|value| module.called(value).next())?;
            }
            (3, opcode) if of_both => {
                return Some(Reducer { op: operation(opcode)?, dtype: scalar(root.shape.of(text)), form });
            }
            (6, "convert") => {
                let op = converted(text, module, first, root)?;
                let (dtype, outer) = (scalar(op.shape.of(text))?, scalar(root.shape.of(text))?);
                let same = [a, b].iter().all(|parameter| scalar(parameter.shape.of(text)) == Some(outer));
                let form = if calls == 0 { Form::Converts } else { Form::Calls };
                let found = Reducer { op: operation(op.opcode.of(text))?, dtype: Some(dtype), form };
                return Some(found).filter(|_| same && widens(outer, dtype));
            }
            _ => return None,
        }
    }
    None
}

/// The operation between two conversions of the parameters and that of its result.
fn converted<'m>(text: &str, module: &'m Module, first: u32, root: &Instruction) -> Option<&'m Instruction> {
    let of = |instruction: &Instruction| -> Vec<u32> {
        module.operands(instruction).iter().map(|operand| operand.target).collect()
    };
    let &[op] = of(root).as_slice() else { return None };
    let op = &module.instructions[op as usize];
    let &[left, right] = of(op).as_slice() else { return None };
    let mut sources = Vec::new();
    for side in [left, right] {
        let side = &module.instructions[side as usize];
        if side.opcode.of(text) != "convert" || scalar(side.shape.of(text)) != scalar(op.shape.of(text)) {
            return None;
        }
        sources.extend(of(side));
    }
    sources.sort_unstable();
    (sources == [first, first + 1]).then_some(op)
}

fn operation(opcode: &str) -> Option<ReduceOp> {
    Some(match opcode {
        "add" => ReduceOp::Sum,
        "multiply" => ReduceOp::Product,
        "minimum" => ReduceOp::Min,
        "maximum" => ReduceOp::Max,
        "and" => ReduceOp::BitAnd,
        "or" => ReduceOp::BitOr,
        "xor" => ReduceOp::BitXor,
        _ => return None,
    })
}
