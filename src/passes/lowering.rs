//! From a graph to a [`Program`]: buffers, packs, collectives, waits, unpacks, compute steps, and a memory plan.
//!
//! Each node in order becomes at most a few steps:
//!
//! | node | becomes |
//! |---|---|
//! | a view of known form | nothing: another placement in the same buffer |
//! | a view of another form, where nothing writes the memory | a compute step with memory of its own |
//! | `clone`, `contiguous`, a reshape that copies | a copy; all that read one bucket's result become one unpack |
//! | `cat` that only a collective reads | a pack, straight into the collective's comm buffer |
//! | any other `cat` of one dtype | a pack into a buffer of its own |
//! | a cast that only such a pack reads | nothing: the pack converts |
//! | a collective | one launch, see below; nothing over one rank (a copy) or of no bytes |
//! | a wait | a wait for the launch; nothing where there is none to wait for |
//! | a call of graphs that are known, once or by a condition | a run of their programs, one for each graph |
//! | any other call | a compute step |
//!
//! | collective | send | receive |
//! |---|---|---|
//! | all-gather | the tensor; of a bucket, slot `rank` of the result | a new buffer |
//! | reduce-scatter | the tensor or the bucket, rank-major | a new buffer; slot `rank` of the bucket, where all its parts are copied out |
//! | all-reduce, broadcast, reduce | in place, see below; else a copy of the tensor first | the same |
//! | all-to-all, permute | the tensor | a new buffer |
//! | out and in-place forms | the tensor | the given one |
//!
//! What is not dense is packed first, and put in its place behind the wait; so are gathers and scatters along an inner
//! dimension. What is written between its launch and its wait is packed, too: what arrives is what it was at the launch.
//!
//! **In place** happens only where nobody can tell: the storage is the program's, nothing else writes it, it does not
//! leave the graph, and nothing reads it later.
//!
//! **Realised in its slot.** A member of a bucket whose producer is a step of ours writes straight into its slot, and its
//! segment of the pack is gone, if: the value is dense and in one row of the bucket; nothing writes it, nor does it leave the
//! graph; it is packed once; and all who read it do so before the launch. Inputs are never relabelled.
//!
//! **Alignment.** Members of a bucket lie at multiples of `align_bytes`, and so does the end of a row, where whoever reads the
//! result takes it apart member by member; else the bucket is dense. Padding is filled with zeros by the pack, so that
//! nothing unset is sent or reduced, and no view of the result covers it.
//!
//! **One shot.** An all-reduce of 1 to `one_shot_max_bytes` bytes takes [`Path::OneShot`] in a comm buffer, a larger one
//! [`Path::Normal`], an empty one neither: one path for each size, the same on all ranks.
//!
//! **Order between streams.** A launch waits for the compute step issued last before it, as PyTorch's do; so it sees what
//! it sends, and whoever used its memory before is done. The compute stream waits for a launch at its wait.
//!
//! Cost: near-linear in nodes, operands and members.

mod bodies;
mod buckets;
mod build;
mod calls;
mod collectives;
mod facts;
mod layouts;
mod packing;
mod pieces;
mod views;
mod walk;

use crate::ir::concrete::{SizeError, with_sizes};
use crate::ir::{Graph, RegionId, VerifyErrors, verify};
use crate::program::plan::TooLarge;
use crate::program::{Path, Program};
use indexmap::IndexMap;

/// How to lower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// Values of symbolic sizes; before the graph's hints.
    pub symbols: IndexMap<Box<str>, u64>,
    /// Members of buckets, and rows, lie at multiples of this; a power of two. A dtype's own size counts, too.
    pub align_bytes: u64,
    /// The largest all-reduce that takes the one-shot path, included; zero for none.
    pub one_shot_max_bytes: u64,
    /// Whether producers write straight into their slots of comm buffers.
    pub realise: bool,
    /// Whether all copies out of a bucket are one step where the first of them stands; else each stands where its node does,
    /// which keeps the bucket for longer and its members for less long.
    pub unpack_at_once: bool,
}

impl Default for LowerOptions {
    fn default() -> Self {
        Self { symbols: IndexMap::new(), align_bytes: 16, one_shot_max_bytes: 0, realise: true, unpack_at_once: true }
    }
}

/// What lowering did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerReport {
    /// Members of buckets that are copied into them.
    pub packed: usize,
    /// Members whose producers write into their slots.
    pub realised: usize,
    /// Casts that became part of a pack.
    pub absorbed: usize,
    /// Padding in comm buffers, in bytes of one rank.
    pub padding_bytes: u64,
    /// All-reduces and broadcasts in place on storage of their input.
    pub in_place: usize,
    /// Launches on the one-shot path.
    pub one_shot: usize,
    /// Waits that had nothing to wait for.
    pub waits_dropped: usize,
}

/// Why a graph cannot be lowered.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// The graph is not well-formed.
    #[error(transparent)]
    Graph(#[from] VerifyErrors),
    /// An option makes no sense.
    #[error("align_bytes is {0}; expected a power of two up to 2^20")]
    Align(u64),
    /// A size has no value.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The graph holds a loop, branch or called body.
    #[error("`{node}` is in region `{label}`; only graphs without regions are lowered")]
    Region {
        /// Name of its first node.
        node: String,
        /// The region's label.
        label: String,
    },
    /// The number of ranks is not known.
    #[error("`{node}`: the size of group `{group}` is not known; list its members")]
    GroupSize {
        /// Name of the collective.
        node: String,
        /// Name of the group.
        group: String,
    },
    /// A node cannot be lowered.
    #[error("`{node}` ({target}): {reason}")]
    Node {
        /// Name of the node.
        node: String,
        /// What it calls.
        target: String,
        /// Why not.
        reason: String,
    },
    /// The plan is too large.
    #[error(transparent)]
    Plan(#[from] TooLarge),
}

/// Lowers a graph, and plans its memory. The program is the same on every rank.
///
/// # Errors
/// [`LowerError`], naming the first node that stands in the way.
pub fn lower(graph: &Graph, options: &LowerOptions) -> Result<(Program, LowerReport), LowerError> {
    if !options.align_bytes.is_power_of_two() || options.align_bytes > 1 << 20 {
        return Err(LowerError::Align(options.align_bytes));
    }
    verify(graph)?;
    if let Some(&id) = graph.order().iter().find(|&&id| graph.node(id).region != RegionId::ROOT) {
        let label = graph.region(graph.node(id).region).label.to_string();
        return Err(LowerError::Region { node: graph.name_of(id).to_owned(), label });
    }
    let (concrete, symbols) = with_sizes(graph, &options.symbols)?;
    let (mut program, report) = walk::walk(&concrete, options, symbols)?;
    program.place_buffers()?;
    debug_assert!(program.check_form().is_ok(), "{:?}", program.check_form());
    Ok((program, report))
}

/// The path of an all-reduce of that many bytes; `None` where nothing is launched.
#[must_use]
pub const fn all_reduce_path(bytes: u64, one_shot_max_bytes: u64) -> Option<Path> {
    match bytes {
        0 => None,
        _ if bytes <= one_shot_max_bytes => Some(Path::OneShot),
        _ => Some(Path::Normal),
    }
}
