//! Where a view of a tensor's elements in another shape would lie.

use super::ViewKind;
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::ops::Op;
use crate::ir::types::{Dim, Dims, TensorType};

/// Strides with which the elements of a tensor, where they lie, have another shape of as many elements; `None` where
/// only a copy has it, or sizes with symbols do not say. The rule is PyTorch's (`computeStride` in ATen's TensorUtils):
/// the old dimensions fall into runs in which each stride is the next one's size times its stride, and each run is cut
/// anew.
#[must_use]
pub fn view_strides(tensor: &TensorType, shape: &[Dim]) -> Option<Dims> {
    let one = Dim::Const(1);
    let mut strides: Dims = shape.iter().map(|_| one.clone()).collect();
    let old_strides = match &tensor.strides {
        Some(strides) if strides.len() == tensor.shape.len() => strides.clone(),
        _ => tensor.dense_strides()?,
    };
    if tensor.elements() == Some(Dim::Const(0)) || old_strides.is_empty() {
        return tensor.with_shape(shape.iter().cloned().collect()).dense_strides();
    }
    let (mut chunk, mut base) = (one.clone(), old_strides[old_strides.len() - 1].clone());
    let (mut new, mut cut) = (shape.len(), one.clone());
    for old in (0..tensor.shape.len()).rev() {
        chunk = chunk.checked_mul(&tensor.shape[old])?;
        if old > 0 && (tensor.shape[old - 1] == one || chunk.checked_mul(&base)? == old_strides[old - 1]) {
            continue;
        }
        while new > 0 && (cut != chunk || shape[new - 1] == one) {
            strides[new - 1] = cut.checked_mul(&base)?;
            cut = cut.checked_mul(&shape[new - 1])?;
            new -= 1;
        }
        if cut != chunk {
            return None;
        }
        if old > 0 {
            base = old_strides[old - 1].clone();
            (chunk, cut) = (one.clone(), one.clone());
        }
    }
    (new == 0).then_some(strides)
}

/// Whether an operator that gives a view where it can has to copy here, as far as types say.
#[must_use]
pub fn must_copy(graph: &Graph, id: NodeId) -> bool {
    let Op::Call(target) = graph.node(id).op else { return false };
    let Some(kind @ (ViewKind::Reshape | ViewKind::Flatten | ViewKind::Contiguous)) = graph.operator(target).view()
    else {
        return false;
    };
    let tensor = graph.operands(id).first().and_then(|&from| graph.tensor(from));
    let (Some(from), Some(to)) = (tensor, graph.tensor(id)) else { return false };
    let known = |tensor: &TensorType| {
        let mut dims = tensor.shape.iter().chain(tensor.strides.iter().flatten());
        dims.all(|dim| dim.as_const().is_some())
    };
    if !known(from) || !known(to) {
        return false;
    }
    match kind {
        ViewKind::Contiguous => !from.is_dense(),
        _ => view_strides(from, &to.shape).is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Type;

    fn strides(from: &str, shape: &[u64]) -> Option<Vec<u64>> {
        let Ok(Type::Tensor(from)) = Type::parse(from) else { panic!("{from}") };
        let shape: Dims = shape.iter().map(|&size| Dim::Const(size)).collect();
        view_strides(&from, &shape).map(|strides| strides.iter().filter_map(Dim::as_const).collect())
    }

    #[test]
    fn a_shape_is_a_view_where_runs_of_strides_fit_it() {
        assert_eq!(strides("f32[4, 6]", &[24]), Some(vec![1]));
        assert_eq!(strides("f32[4, 6]", &[2, 2, 3, 2]), Some(vec![12, 6, 2, 1]));
        // Columns of a table: rows may be cut, not joined.
        assert_eq!(strides("f32[4, 6][8, 1]", &[2, 2, 6]), Some(vec![16, 8, 1]));
        assert_eq!(strides("f32[4, 6][8, 1]", &[24]), None);
        assert_eq!(strides("f32[4, 6][1, 4]", &[24]), None);
        assert_eq!(strides("f32[1, 8][1, 3]", &[8]), Some(vec![3]));
        assert_eq!(strides("f32[1, 8][1, 3]", &[2, 1, 4]), Some(vec![12, 12, 3]));
        assert_eq!(strides("f32[0, 6][1, 4]", &[0]), Some(vec![1]));
        assert_eq!(strides("f32[]", &[1, 1]), Some(vec![1, 1]));
    }
}
