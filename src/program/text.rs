//! The words of the text form, in both directions.

use super::{BufferKind, CommOp, Path};
use crate::ir::ReduceOp;

pub(super) const KINDS: [(BufferKind, &str); 5] = [
    (BufferKind::Input, "input"),
    (BufferKind::Output, "output"),
    (BufferKind::Device, "device"),
    (BufferKind::Comm, "comm"),
    (BufferKind::Constant, "constant"),
];

pub(super) fn kind_word(kind: BufferKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("device", |(_, word)| word)
}

pub(super) const fn path_word(path: Path) -> &'static str {
    match path {
        Path::Normal => "normal",
        Path::OneShot => "one_shot",
    }
}

impl CommOp {
    /// The word for what it does: `all_gather`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll { .. } => "all_to_all",
            Self::Permute { .. } => "permute",
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
            Self::Barrier => "barrier",
        }
    }

    /// How ranks combine, for those that reduce.
    #[must_use]
    pub const fn reduce_op(&self) -> Option<ReduceOp> {
        match self {
            Self::ReduceScatter(op) | Self::AllReduce(op) | Self::Reduce { op, .. } => Some(*op),
            Self::AllGather
            | Self::Broadcast { .. }
            | Self::AllToAll { .. }
            | Self::Permute { .. }
            | Self::Send { .. }
            | Self::Recv { .. }
            | Self::Barrier => None,
        }
    }
}
