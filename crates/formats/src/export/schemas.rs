//! What PyTorch's schemas call the parameters of the operators that passes use. A program names every argument.

/// Parameters in order, by target.
const SCHEMAS: [(&str, &[&str]); 24] = [
    ("aten.view.default", &["self", "size"]),
    ("aten.view.dtype", &["self", "dtype"]),
    ("aten.reshape.default", &["self", "shape"]),
    ("aten.permute.default", &["self", "dims"]),
    ("aten.clone.default", &["self"]),
    ("aten.alias.default", &["self"]),
    ("aten.detach.default", &["self"]),
    ("aten.copy_.default", &["self", "src", "non_blocking"]),
    ("aten.cat.default", &["tensors", "dim"]),
    ("aten.stack.default", &["tensors", "dim"]),
    ("aten.full.default", &["size", "fill_value"]),
    ("aten.empty.memory_format", &["size"]),
    ("aten.split_with_sizes.default", &["self", "split_sizes", "dim"]),
    ("aten.slice.Tensor", &["self", "dim", "start", "end", "step"]),
    ("aten.select.int", &["self", "dim", "index"]),
    ("aten.narrow.default", &["self", "dim", "start", "length"]),
    ("aten.unsqueeze.default", &["self", "dim"]),
    ("aten.div.Tensor", &["self", "other"]),
    ("aten.mul.Tensor", &["self", "other"]),
    ("aten.sym_size.int", &["self", "dim"]),
    ("aten.sym_numel.default", &["self"]),
    ("aten.to.dtype", &["self", "dtype", "non_blocking", "copy", "memory_format"]),
    ("prims.convert_element_type.default", &["a", "dtype"]),
    ("_c10d_functional.wait_tensor.default", &["tensor"]),
];

/// The parameters of an operator, if it is one that is known here.
pub(super) fn parameters(target: &str) -> Option<&'static [&'static str]> {
    if target == "_c10d_functional.wait_tensors.default" {
        return Some(&["tensors"]);
    }
    // Python's own operators take `a` and `b`.
    if target.starts_with("operator.") {
        return Some(&["a", "b"]);
    }
    SCHEMAS.iter().find(|(known, _)| *known == target).map(|(_, names)| *names)
}
