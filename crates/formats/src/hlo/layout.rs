//! Instructions that only move elements, in the operators that the graph has for that.
//!
//! So the checker can follow what is packed and unpacked, here or by XLA. All else is a call that is not followed.

use super::attributes::numbers;
use super::module::{Instruction, Module};
use bucketeer::ir::{Arg, Args, Dim, TensorType, Type};

/// The opcodes that [`operator`] looks at.
pub(super) const MOVES: &[&str] = &["reshape", "bitcast", "copy", "transpose", "concatenate", "slice", "iota"];

/// The operator and its arguments that mean what an instruction does; `None` if there is none.
pub(super) fn operator(
    text: &str,
    module: &Module,
    instruction: &Instruction,
    operands: &[&Type],
    ty: &Type,
) -> Option<(&'static str, Args)> {
    let tensor = ty.as_tensor()?;
    if instruction.opcode.of(text) == "iota" {
        // What has no elements has no value.
        let keyword = vec![("dtype".into(), Arg::DType(tensor.dtype))];
        let args = || Some(Args { positional: vec![sizes(tensor)?, Arg::Int(0)], keyword });
        return Some(("aten.full.default", args()?)).filter(|_| tensor.elements() == Some(Dim::Const(0)));
    }
    let input = operands.first()?.as_tensor()?;
    let one = |positional: Vec<Arg>| Args::positional([vec![Arg::Operand(0)], positional].concat());
    let attribute = |key: &str| module.attribute(text, instruction, key).map(|value| value.of(text));
    let single = operands.len() == 1 && input.dtype == tensor.dtype;
    let elements = || input.elements() == tensor.elements();
    match instruction.opcode.of(text) {
        "reshape" if single && elements() => Some(("aten.reshape.default", one(vec![sizes(tensor)?]))),
        "bitcast" if single && elements() => {
            let operand = &module.instructions[module.operands(instruction)[0].target as usize];
            let plain = is_row_major(operand.shape.of(text)) && is_row_major(instruction.shape.of(text));
            Some(("aten.reshape.default", one(vec![sizes(tensor)?]))).filter(|_| plain)
        }
        "copy" if single && input.shape == tensor.shape => Some(("aten.clone.default", one(Vec::new()))),
        "transpose" if single => {
            let order = numbers(attribute("dimensions")?)?;
            let moved = order.len() == input.shape.len()
                && order.iter().zip(&tensor.shape).all(|(&from, to)| input.shape.get(from as usize) == Some(to));
            let order = order.into_iter().map(|dim| Arg::Int(dim.into())).collect();
            Some(("aten.permute.default", one(vec![Arg::List(order)]))).filter(|_| moved)
        }
        "concatenate" => {
            let &[dim] = numbers(attribute("dimensions")?)?.as_slice() else { return None };
            let parts = (0..operands.len() as u32).map(Arg::Operand).collect();
            Some(("aten.cat.default", Args::positional(vec![Arg::List(parts), Arg::Int(dim.into())])))
                .filter(|_| fits(operands, tensor, dim as usize))
        }
        "slice" if single => {
            let (dim, start, end) = slice(attribute("slice")?, input, tensor)?;
            let ints = [dim as i64, i64::try_from(start).ok()?, i64::try_from(end).ok()?];
            Some(("aten.slice.Tensor", one(ints.map(Arg::Int).into())))
        }
        _ => None,
    }
}

fn sizes(tensor: &TensorType) -> Option<Arg> {
    let size = |dim: &Dim| dim.as_const().and_then(|size| i64::try_from(size).ok()).map(Arg::Int);
    Some(Arg::List(tensor.shape.iter().map(size).collect::<Option<_>>()?))
}

/// Whether tensors have the dtype of the whole, and its shape but for one dimension, along which they sum up.
fn fits(parts: &[&Type], whole: &TensorType, dim: usize) -> bool {
    let mut sum = Some(Dim::Const(0));
    let same = parts.iter().all(|part| {
        part.as_tensor().is_some_and(|part| {
            sum = part.shape.get(dim).and_then(|size| sum.take()?.checked_add(size));
            let others = part.shape.iter().zip(&whole.shape).enumerate().all(|(at, (a, b))| at == dim || a == b);
            part.dtype == whole.dtype && part.shape.len() == whole.shape.len() && others
        })
    });
    same && sum.as_ref() == whole.shape.get(dim)
}

/// The one dimension that `{[0:8], [2:4]}` cuts, and where; none where it takes steps or cuts several.
fn slice(text: &str, from: &TensorType, to: &TensorType) -> Option<(usize, u64, u64)> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut cut = None;
    let mut ranges = inner.split(',');
    for (dim, (from, to)) in from.shape.iter().zip(&to.shape).enumerate() {
        let range = ranges.next()?.trim().strip_prefix('[')?.strip_suffix(']')?;
        let mut bounds = range.split(':').map(|bound| bound.trim().parse::<u64>().ok());
        let (start, end, step) = (bounds.next()??, bounds.next()??, bounds.next().unwrap_or(Some(1))?);
        let size = end.checked_sub(start)?;
        if step != 1 || to.as_const() != Some(size) || from.as_const()? < end {
            return None;
        }
        if from != to && cut.replace((dim, start, end)).is_some() {
            return None;
        }
    }
    // One that takes all is a cut of the whole first dimension.
    let all = || Some((0, 0, from.shape.first()?.as_const()?));
    if ranges.next().is_none_or(|rest| rest.trim().is_empty()) { cut.or_else(all) } else { None }
}

/// Whether elements lie in logical order: no layout, or the dimensions from last to first, without tiles.
fn is_row_major(shape: &str) -> bool {
    let Some((_, layout)) = shape.split_once('{') else { return true };
    let Some(order) = layout.strip_suffix('}') else { return false };
    let rank = shape.split_once(']').map_or(0, |(sizes, _)| sizes.matches(',').count() + 1);
    order.is_empty() || order.split(',').map(str::parse).eq((0..rank).rev().map(Ok))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::ir::DType;

    #[test]
    fn slices_of_one_dimension_are_cuts() {
        let cut = |text: &str, from: &[u64], to: &[u64]| {
            slice(text, &TensorType::dense(DType::F32, from), &TensorType::dense(DType::F32, to))
        };
        assert_eq!(cut("{[0:4], [2:5]}", &[4, 8], &[4, 3]), Some((1, 2, 5)));
        assert_eq!(cut("{[0:4]}", &[4], &[4]), Some((0, 0, 4)));
        assert_eq!(cut("{[1:4], [2:5]}", &[4, 8], &[3, 3]), None);
        assert_eq!(cut("{[0:4:2]}", &[4], &[2]), None);
        assert_eq!(cut("{[0:9]}", &[4], &[9]), None);
        assert_eq!(cut("{[0:4]}", &[4, 8], &[4, 8]), None);
    }

    #[test]
    fn layouts_from_last_to_first_are_row_major() {
        for shape in ["f32[]", "f32[8]{0}", "f32[8,4]{1,0}", "f32[8,4]", "f32[]{}"] {
            assert!(is_row_major(shape), "{shape}");
        }
        for shape in ["f32[8,4]{0,1}", "f32[8,4]{1,0:T(8,128)}", "f32[8,4,2]{2,0,1}"] {
            assert!(!is_row_major(shape), "{shape}");
        }
    }
}
