//! The reference evaluator: what a graph computes, on all ranks at once, slow and obvious.
//!
//! **Values.** A tensor is dtype, sizes, strides and offset on a storage of bytes. Views share storages, so a write
//! through one shows in all, as in PyTorch. The layout operators, casts, common arithmetic and the operators that
//! PyTorch's bucketing adds have PyTorch's meaning; floats are computed in `f64` and rounded once. Any other operator is
//! a fixed mixing function of its target, arguments and operands' elements, with results of the stated types. Each
//! result is held against its stated type. Where a type states strides, what a call makes lies so, but for calls that are
//! to be laid out as their operators do it ([`EvalOptions::laid_out`]).
//!
//! **Ranks.** All ranks of the graph's groups run in lockstep in program order. Every collective a graph can hold is
//! evaluated; reductions run in the order of the group's ranks, rounded to the dtype at each step, and an average is
//! divided last.
//!
//! **Waits.** A collective takes its operands when it starts. Its result is poison until a wait on any view of it:
//! reading or writing it before is an error that names both nodes. A write to what it still sends is a race, which is
//! reported beside the results.
//!
//! **Inputs** depend on seed, name and rank alone; they are numbers, or any bits where that is asked for. Symbols have the values given, else their hints, else a multiple of
//! every group's size. Memory that nobody wrote holds NaNs and minus ones.
//!
//! **Large graphs** are scaled down before they are run: [`shrink()`].
//!
//! Not covered: regions are run in place (loops twice), since what their labels say is not known; views with no meaning
//! here (`diagonal`, `unfold`) are evaluated as copies.

mod call;
mod compare;
mod copy;
mod create;
mod dispatch;
mod exchange;
mod layout;
mod linear;
mod machine;
mod memory;
mod mix;
mod output;
mod pointwise;
mod scalars;
mod shrink;
pub mod step;
mod symbols;
mod tensor;
mod value;
mod world;

pub use compare::{Comparison, Difference, compare};
pub use output::{Output, OutputTensor, RankOutputs, Sharer};
pub use shrink::{Scaling, ShrinkError, Shrunk, shrink};
pub use value::Scalar;

pub use bucketeer::check::Side;
use bucketeer::ir::{Graph, VerifyError, VerifyErrors, verify};
use indexmap::{IndexMap, IndexSet};

/// What a graph is run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalOptions {
    /// Members of groups, by name: lists of global ranks. They go before what the graph says.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
    /// Number of ranks, for graphs whose groups do not list any: a group of that size, or of unknown size, then holds
    /// all.
    pub ranks: Option<u32>,
    /// What inputs are made from.
    pub seed: u64,
    /// Values of symbols; they go before the graph's hints.
    pub symbols: IndexMap<String, i64>,
    /// Integers in inputs, and out of operators of unknown meaning, are below this.
    pub integers: u64,
    /// Inputs hold any bits, NaNs with payloads among them, rather than numbers.
    pub raw_inputs: bool,
    /// Calls, by name, whose results lie as their operators lay them, whatever strides their types state. Those are then
    /// held against it, and a type that states none stands for dense elements. What other calls make lies as stated.
    pub laid_out: IndexSet<String>,
    /// Most bytes of all tensors of all ranks together.
    pub max_bytes: u64,
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self {
            groups: IndexMap::new(),
            ranks: None,
            seed: 0,
            symbols: IndexMap::new(),
            integers: 4,
            raw_inputs: false,
            laid_out: IndexSet::new(),
            max_bytes: 1 << 30,
        }
    }
}

/// Why a graph could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The graph is not well-formed.
    #[error("the graph is not well-formed:\n{0}")]
    IllFormed(VerifyErrors),
    /// Who is in a group is not known, or cannot be.
    #[error("group `{group}`: {reason}")]
    Group {
        /// The group.
        group: String,
        /// What is wrong.
        reason: String,
    },
    /// There are too many ranks to run them all.
    #[error("{ranks} ranks are more than the {most} that can be evaluated")]
    TooManyRanks {
        /// How many there are.
        ranks: usize,
        /// How many can be.
        most: u32,
    },
    /// The graph's tensors are too large, by their stated types.
    #[error("the graph's tensors have {bytes} bytes on all ranks, more than the {most} allowed; scale the graph down")]
    GraphTooLarge {
        /// How many there are.
        bytes: u64,
        /// How many may be.
        most: u64,
    },
    /// The tensors are too large, as was found on the way.
    #[error("{}more than the {most} bytes allowed are live", node.as_ref().map_or(String::new(), |n| format!("`{n}`: ")))]
    TooLarge {
        /// Where it was found.
        node: Option<String>,
        /// How many may be.
        most: u64,
    },
    /// A result is read before its wait.
    #[error("`{node}` reads `{pending}`, which is in flight: it is not waited for")]
    ReadsPending {
        /// The reader.
        node: String,
        /// The collective.
        pending: String,
    },
    /// A result is overwritten before its wait.
    #[error("`{node}` writes to the result of `{pending}`, which is in flight")]
    WritesPending {
        /// The writer.
        node: String,
        /// The collective.
        pending: String,
    },
    /// A value is needed as a tensor, but nothing says what it is.
    #[error("`{node}` reads `{operand}` as a tensor, but its type is not known")]
    UnknownType {
        /// The reader.
        node: String,
        /// What it reads.
        operand: String,
    },
    /// A value is not what its type says.
    #[error("`{node}` is {found}, but is stated as {stated}")]
    Type {
        /// The node.
        node: String,
        /// What it is.
        found: String,
        /// What it should be.
        stated: String,
        /// Whether dtype and sizes are right, so that only the strides differ.
        only_strides: bool,
    },
    /// Arguments do not fit the operator.
    #[error("`{node}` ({target}) on rank {rank}: {reason}")]
    Misfit {
        /// The node.
        node: String,
        /// Its operator.
        target: String,
        /// Where it was found first.
        rank: u32,
        /// What is wrong.
        reason: String,
    },
    /// The operator's meaning is known, but not for such operands.
    #[error("`{node}` ({target}) cannot be evaluated: {reason}")]
    Undefined {
        /// The node.
        node: String,
        /// Its operator.
        target: String,
        /// Why.
        reason: String,
    },
    /// The graphs do not belong together.
    #[error("the graphs do not belong together: {0}")]
    Unrelated(String),
    /// One of two graphs could not be evaluated.
    #[error("{}: {error}", of_side(side))]
    Side {
        /// Which.
        side: Side,
        /// Why.
        error: Box<EvalError>,
    },
}

const fn of_side(side: &Side) -> &'static str {
    match side {
        Side::Before => "in the graph before",
        Side::After => "in the graph after",
    }
}

/// Runs a graph on all ranks of its groups.
///
/// # Errors
/// [`EvalError`], naming the first node that cannot be evaluated.
///
/// ```
/// use bucketeer_eval::{EvalOptions, Output, evaluate};
/// use bucketeer::ir::text::parse;
///
/// let graph = parse("x = input f32[4]\ng = all_gather(x, G0:2)\noutput(wait(g))").unwrap();
/// let ranks = evaluate(&graph, &EvalOptions::default()).unwrap();
/// assert_eq!(ranks.len(), 2);
/// assert_eq!(ranks[0].outputs, ranks[1].outputs);
/// ```
pub fn evaluate(graph: &Graph, options: &EvalOptions) -> Result<Vec<RankOutputs>, EvalError> {
    well_formed(graph)?;
    let mut machine = machine::Machine::new(graph, options)?;
    machine.run()?;
    machine.finish()
}

/// Whether a graph can be run, however it reads what is pending: that is found again, and exactly, by running.
fn well_formed(graph: &Graph) -> Result<(), EvalError> {
    let Err(VerifyErrors(errors)) = verify(graph) else { return Ok(()) };
    let pending = |error: &VerifyError| matches!(error, VerifyError::ReadPending { .. });
    let fatal: Vec<VerifyError> = errors.into_iter().filter(|error| !pending(error)).collect();
    if fatal.is_empty() { Ok(()) } else { Err(EvalError::IllFormed(VerifyErrors(fatal))) }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
