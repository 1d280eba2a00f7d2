//! What a node does.

use super::entities::{GroupId, Name};

pub use bucketeer_types::{GlobalRank, GroupRank, ReduceOp};

/// What moves between the ranks of a group. Dimensions count from the outermost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CollectiveKind {
    /// Every rank gets all ranks' tensors, concatenated along `dim` in rank order.
    AllGather {
        /// Dimension that grows by the group size.
        dim: u32,
    },
    /// Every rank gets its share, along `dim`, of the reduced tensor.
    ReduceScatter {
        /// How ranks combine.
        op: ReduceOp,
        /// Dimension that shrinks by the group size.
        dim: u32,
    },
    /// Every rank gets the reduced tensor.
    AllReduce {
        /// How ranks combine.
        op: ReduceOp,
    },
    /// Every rank gets the root's tensor.
    Broadcast {
        /// Rank of the root, as the source graph numbers it.
        root: u32,
    },
    /// The root gets the reduced tensor.
    Reduce {
        /// How ranks combine.
        op: ReduceOp,
        /// Rank of the root, as the source graph numbers it.
        root: u32,
    },
    /// Rank r gets part r of every rank; how much is in the node's arguments.
    AllToAll,
    /// Ranks send to one another in pairs that the node's arguments list.
    Permute,
}

impl CollectiveKind {
    /// The word for the kind: `all_gather`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllReduce { .. } => "all_reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll => "all_to_all",
            Self::Permute => "permute",
        }
    }

    /// How ranks combine, for the kinds that reduce.
    #[must_use]
    pub const fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Self::ReduceScatter { op, .. } | Self::AllReduce { op } | Self::Reduce { op, .. } => Some(op),
            Self::AllGather { .. } | Self::Broadcast { .. } | Self::AllToAll | Self::Permute => None,
        }
    }
}

/// Where a collective's result lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Variant {
    /// In a new tensor.
    Functional,
    /// In the first operand, which is overwritten.
    InPlace,
    /// In the tensor given as `out`, which is overwritten.
    Out,
}

/// The start of a collective. Its value may be read only after a wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Collective {
    /// What moves.
    pub kind: CollectiveKind,
    /// Between whom.
    pub group: GroupId,
    /// Where the result lives.
    pub variant: Variant,
    /// Whether it takes a list of tensors and makes a tuple.
    pub coalesced: bool,
}

impl Collective {
    /// How it moves data, in words: `broadcast from 1 in place`.
    #[must_use]
    pub fn described(self) -> String {
        let mut how = self.kind.name().to_owned();
        match self.kind {
            CollectiveKind::AllGather { dim } => how += &format!(" dim {dim}"),
            CollectiveKind::ReduceScatter { op, dim } => how += &format!(" {op} dim {dim}"),
            CollectiveKind::AllReduce { op } => how += &format!(" {op}"),
            CollectiveKind::Broadcast { root } => how += &format!(" from {root}"),
            CollectiveKind::Reduce { op, root } => how += &format!(" {op} to {root}"),
            CollectiveKind::AllToAll | CollectiveKind::Permute => {}
        }
        how += match self.variant {
            Variant::Functional => "",
            Variant::InPlace => " in place",
            Variant::Out => " out",
        };
        how + if self.coalesced { " coalesced" } else { "" }
    }
}

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A value from outside the graph.
    Input,
    /// The graph's results: its operands. The last node, if there is one.
    Output,
    /// Starts a collective.
    Collective(Collective),
    /// Makes the result of a started collective valid. Its value is that result, not a copy.
    Wait,
    /// Any other operator, by target: `aten.mm.default`. Arguments are kept as written.
    Call(Name),
}

/// PyTorch's functional collectives: operator name to (kind, variant, coalesced). Kinds that reduce or have a root
/// get them from the arguments; see [`torch_collective`].
const TORCH: &[(&str, &str, Variant, bool)] = &[
    ("all_gather_into_tensor", "all_gather", Variant::Functional, false),
    ("all_gather_into_tensor_out", "all_gather", Variant::Out, false),
    ("all_gather_into_tensor_coalesced", "all_gather", Variant::Functional, true),
    ("all_gather_into_tensor_coalesced_out", "all_gather", Variant::Out, true),
    ("reduce_scatter_tensor", "reduce_scatter", Variant::Functional, false),
    ("reduce_scatter_tensor_out", "reduce_scatter", Variant::Out, false),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter", Variant::Functional, true),
    ("reduce_scatter_tensor_coalesced_out", "reduce_scatter", Variant::Out, true),
    ("all_reduce", "all_reduce", Variant::Functional, false),
    ("all_reduce_", "all_reduce", Variant::InPlace, false),
    ("all_reduce_coalesced", "all_reduce", Variant::Functional, true),
    ("all_reduce_coalesced_", "all_reduce", Variant::InPlace, true),
    ("broadcast", "broadcast", Variant::Functional, false),
    ("broadcast_", "broadcast", Variant::InPlace, false),
    ("reduce", "reduce", Variant::Functional, false),
    ("all_to_all_single", "all_to_all", Variant::Functional, false),
    ("permute_tensor", "permute", Variant::Functional, false),
];

/// A collective's fixed part, found from an operator's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveForm {
    /// `all_gather`, as [`CollectiveKind::name`] has it.
    pub kind: &'static str,
    /// Where the result lives.
    pub variant: Variant,
    /// Whether it takes a list.
    pub coalesced: bool,
}

/// The functional collective that PyTorch calls `base` (no namespace, no overload), from
/// `torch/csrc/distributed/c10d/Functional.cpp`.
#[must_use]
pub fn torch_collective(base: &str) -> Option<CollectiveForm> {
    let found = TORCH.iter().find(|(name, ..)| *name == base)?;
    Some(CollectiveForm { kind: found.1, variant: found.2, coalesced: found.3 })
}

/// PyTorch's operator name for a collective.
#[must_use]
pub fn torch_name(collective: Collective) -> &'static str {
    let found = TORCH.iter().find(|(_, kind, variant, coalesced)| {
        (*kind, *variant, *coalesced) == (collective.kind.name(), collective.variant, collective.coalesced)
    });
    // Combinations PyTorch lacks print under the kind's own name.
    found.map_or(collective.kind.name(), |(name, ..)| name)
}
