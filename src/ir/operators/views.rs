//! View operators: which elements of their operand they show, by name.
//!
//! This is the one table of them: lowering, the evaluator, shrink and the verifier ask it what a name means, and match on the
//! kind. A new operator that shows its operand as one of these does, with its arguments in the same places, is one row. The
//! checker has a reading of its own (`check/signature.rs`), so that a proof does not rest on this table; that an operator
//! hands on memory at all is what PyTorch's schemas say (`torch.tsv`).

/// What a view shows of its first operand. Arguments are in the places that the first name of each kind has them in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ViewKind {
    /// All of it, as it is: `alias(x)`.
    Same,
    /// An element of a tuple, or a row of a tensor: `getitem(x, index)`.
    Element,
    /// An element of a tuple: `get_tuple_element(x, index)`.
    TupleElement,
    /// Its elements in order, in another shape, or their bytes as another dtype: `view(x, size)`, `view(x, dtype)`.
    View,
    /// Its bytes as another dtype: `bitcast(x, dtype)`.
    Bits,
    /// As a view where strides allow, else a copy: `reshape(x, shape)`.
    Reshape,
    /// Dimensions made one, as a view or a copy: `flatten(x, start_dim, end_dim)`.
    Flatten,
    /// One dimension made several: `unflatten(x, dim, sizes)`.
    Unflatten,
    /// Dimensions in another order: `permute(x, dims)`.
    Permute,
    /// Two dimensions exchanged: `transpose(x, dim0, dim1)`; `t(x)`.
    Transpose,
    /// Repeated along dimensions of size one, and along new ones: `expand(x, size)`.
    Expand,
    /// The same, where each dimension goes being said: `broadcast_in_dim(x, shape, broadcast_dimensions)`.
    BroadcastInDim,
    /// Every so many rows from one to another: `slice(x, dim, start, end, step)`.
    Slice,
    /// So many rows from one on: `narrow(x, dim, start, length)`.
    Narrow,
    /// One row: `select(x, dim, index)`.
    Select,
    /// Without dimensions of size one: `squeeze(x, dim)`.
    Squeeze,
    /// With one more: `unsqueeze(x, dim)`.
    Unsqueeze,
    /// Parts of so many rows, or of the numbers given: `split(x, split_size, dim)`.
    Split,
    /// So many parts: `chunk(x, chunks, dim)`.
    Chunk,
    /// Every row: `unbind(x, dim)`.
    Unbind,
    /// Whatever sizes and strides say: `as_strided(x, size, stride, storage_offset)`.
    Strided,
    /// As it is where it is dense, else a copy: `contiguous(x)`.
    Contiguous,
    /// As it is where it has that dtype and place, else a copy: `to(x, dtype)`.
    Convert,
}

/// By name, in order.
const VIEWS: &[(&str, ViewKind)] = &[
    ("_reshape_alias", ViewKind::View),
    ("_unsafe_view", ViewKind::View),
    ("alias", ViewKind::Same),
    ("as_strided", ViewKind::Strided),
    ("bitcast", ViewKind::Bits),
    ("broadcast_in_dim", ViewKind::BroadcastInDim),
    ("broadcast_to", ViewKind::Expand),
    ("chunk", ViewKind::Chunk),
    ("contiguous", ViewKind::Contiguous),
    ("detach", ViewKind::Same),
    ("expand", ViewKind::Expand),
    ("expand_as", ViewKind::Expand),
    ("flatten", ViewKind::Flatten),
    ("get_tuple_element", ViewKind::TupleElement),
    ("getitem", ViewKind::Element),
    ("item", ViewKind::TupleElement),
    ("lift_fresh", ViewKind::Same),
    ("narrow", ViewKind::Narrow),
    ("permute", ViewKind::Permute),
    ("positive", ViewKind::Same),
    ("ravel", ViewKind::Flatten),
    ("reshape", ViewKind::Reshape),
    ("reshape_as", ViewKind::Reshape),
    ("resolve_conj", ViewKind::Same),
    ("resolve_neg", ViewKind::Same),
    ("select", ViewKind::Select),
    ("slice", ViewKind::Slice),
    ("split", ViewKind::Split),
    ("split_with_sizes", ViewKind::Split),
    ("squeeze", ViewKind::Squeeze),
    ("squeeze_dims", ViewKind::Squeeze),
    ("swapaxes", ViewKind::Transpose),
    ("swapdims", ViewKind::Transpose),
    ("t", ViewKind::Transpose),
    ("to", ViewKind::Convert),
    ("transpose", ViewKind::Transpose),
    ("unbind", ViewKind::Unbind),
    ("unflatten", ViewKind::Unflatten),
    ("unsafe_chunk", ViewKind::Chunk),
    ("unsafe_split", ViewKind::Split),
    ("unsafe_split_with_sizes", ViewKind::Split),
    ("unsqueeze", ViewKind::Unsqueeze),
    ("view", ViewKind::View),
    ("view_as", ViewKind::View),
    ("view_of", ViewKind::Same),
];

/// Namespaces whose names mean what PyTorch means by them: `mylib.cat` is called, whatever it is.
pub const TORCH_NAMESPACES: &[&str] = &["", "aten", "prims", "torch", "operator", "_operator", "method"];

/// What the operator of a name shows of its operand, in a namespace of PyTorch's; `None` for what is not a view that is
/// followed.
#[must_use]
pub fn view_kind(name: &str) -> Option<ViewKind> {
    VIEWS.binary_search_by_key(&name, |(known, _)| known).ok().map(|at| VIEWS[at].1)
}

impl ViewKind {
    /// Whether it shows all elements in their order, in whatever shape.
    #[must_use]
    pub const fn keeps_order(self) -> bool {
        matches!(
            self,
            Self::Same | Self::View | Self::Reshape | Self::Flatten | Self::Unflatten | Self::Squeeze | Self::Unsqueeze
        )
    }

    /// Whether it copies where strides do not allow a view.
    #[must_use]
    pub const fn may_copy(self) -> bool {
        matches!(self, Self::Reshape | Self::Flatten | Self::Contiguous | Self::Convert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found() {
        assert!(VIEWS.is_sorted_by_key(|(name, _)| name));
        for (name, kind) in VIEWS {
            assert_eq!(view_kind(name), Some(*kind));
        }
        assert_eq!(view_kind("relu"), None);
    }
}
