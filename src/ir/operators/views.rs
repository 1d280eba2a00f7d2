//! View operators: which elements of their operand they show.
//!
//! An operator that shows its operand as one of these does, with its arguments in the same places, is one row of the table
//! (`rows.rs`). That an operator hands on memory at all is what PyTorch's schemas say (`torch.tsv`).

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
    /// Parts of the numbers given, as passes take buckets apart: `split_with_sizes(x, split_sizes, dim)`.
    SplitWithSizes,
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
