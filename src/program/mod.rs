//! The lowered form: what an executor or a code generator runs. `docs/program.md` describes it with an example.
//!
//! A [`Program`] is the same on every rank. All its sizes are numbers of bytes or elements; a place that depends on the
//! rank is written as an offset plus `rank_bytes` times the rank's place in the group. Nothing here knows how programs are
//! made; [`crate::passes::lowering`] makes them, and [`crate::check::program`] proves them against their graph.

mod args;
mod error;
mod form;
#[cfg(feature = "serde")]
mod json;
mod launch;
pub mod lives;
mod parse;
pub mod plan;
mod print;
mod quoted;
mod text;

pub use error::ProgramError;

use crate::ir::Short;
use crate::ir::{Args, DType, ReduceOp};
use indexmap::IndexMap;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A buffer of the program: an index into [`Program::buffers`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct BufferId(pub u32);

/// A layout: an index into [`Program::layouts`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LayoutId(pub u32);

/// A step: an index into [`Program::steps`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StepId(pub u32);

/// A value that is not a tensor and is known only when the program runs: an index into [`Program::hosts`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct HostId(pub u32);

/// Whose memory a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum BufferKind {
    /// The caller's; in no arena.
    Input,
    /// The program's, and handed to the caller at the end: it lives in a device arena until then.
    Output,
    /// The program's.
    Device,
    /// The program's, registered for communication: in a comm arena, at the same offset in each run.
    Comm,
    /// A constant of the module, by the name of the buffer; in no arena.
    Constant,
}

/// Where a buffer lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ArenaOffset {
    /// Index into [`Program::arenas`].
    pub arena: u32,
    /// Bytes from the start of the arena.
    pub offset: u64,
}

/// A range of memory with one use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Buffer {
    /// Unique in the program: the name of the node whose value it first holds, with a word behind a dot for others.
    pub name: Box<str>,
    /// Size in bytes.
    pub bytes: u64,
    /// Its address is a multiple of this power of two.
    pub align: u64,
    /// Whose memory it is.
    pub kind: BufferKind,
    /// `cuda:0`; `None` where the graph does not say.
    pub device: Option<Box<str>>,
    /// Index of the group whose ranks `rank_bytes` counts in this buffer.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub group: Option<u32>,
    /// Where it lies, for buffers in arenas.
    pub place: Option<ArenaOffset>,
}

/// One allocation that holds buffers, none of which overlap while both are in use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Arena {
    /// [`BufferKind::Device`] (device and output buffers) or [`BufferKind::Comm`].
    pub kind: BufferKind,
    /// Device of its buffers.
    pub device: Option<Box<str>>,
    /// Size in bytes: the planned peak.
    pub bytes: u64,
    /// The largest number of bytes in use at once: no plan can need less.
    pub live_bytes: u64,
}

/// How a tensor's elements lie: dtype, sizes and strides in elements, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Layout {
    /// Element type.
    #[cfg_attr(feature = "serde", serde(with = "json::dtype"))]
    pub dtype: DType,
    /// Sizes.
    pub shape: Short<u64, 4>,
    /// Strides, as many as sizes. Zero repeats.
    pub strides: Short<u64, 4>,
}

/// A tensor in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct View {
    /// Where it is.
    pub buffer: BufferId,
    /// How its elements lie.
    pub layout: LayoutId,
    /// Bytes from the start of the buffer to the first element.
    pub offset: u64,
    /// Added to the offset once for each rank before this one in the buffer's group.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "json::is_zero"))]
    pub rank_bytes: u64,
}

/// A dense range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Range {
    /// Where it is.
    pub buffer: BufferId,
    /// Bytes from the start of the buffer.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Added to the offset once for each rank before this one in the buffer's group.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "json::is_zero"))]
    pub rank_bytes: u64,
}

/// What runs one after the other, in issue order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Stream {
    /// Everything that is not a collective.
    Compute,
    /// The collectives of the group with that index.
    Comm(u32),
}

/// Elements of `from`, in row-major order, into `to`, which has the same shape; converted where the dtypes differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Segment {
    /// Read.
    pub from: View,
    /// Written.
    pub to: View,
}

/// Segments that move at once, in any order: no segment reads what another writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Moves {
    /// What is copied.
    pub segments: Vec<Segment>,
    /// What is filled with zeros: padding, so that nothing unset is ever sent or reduced.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub zeros: Vec<Range>,
}

/// What a collective does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum CommOp {
    /// Each rank's send range, in rank order.
    AllGather,
    /// This rank's part of the reduced send range.
    ReduceScatter(#[cfg_attr(feature = "serde", serde(with = "json::reduce_op"))] ReduceOp),
    /// The reduced range, in place.
    AllReduce(#[cfg_attr(feature = "serde", serde(with = "json::reduce_op"))] ReduceOp),
    /// The root's range, in place.
    Broadcast {
        /// The root, as the graph numbers it.
        root: u32,
    },
    /// The reduced range on the root, in place; elsewhere the range stays as it is.
    Reduce {
        /// How ranks combine.
        #[cfg_attr(feature = "serde", serde(with = "json::reduce_op"))]
        op: ReduceOp,
        /// The root, as the graph numbers it.
        root: u32,
    },
    /// Part r of the send range goes to rank r; what came from rank r is part r of the receive range.
    AllToAll {
        /// Elements to each rank.
        send_counts: Vec<u64>,
        /// Elements from each rank.
        recv_counts: Vec<u64>,
    },
    /// Ranks send along pairs (from, to); who gets nothing has its receive range filled with zeros.
    Permute {
        /// Places in the group.
        pairs: Vec<(u32, u32)>,
    },
    /// The send range to one rank.
    Send {
        /// The rank, as the graph numbers it.
        peer: u32,
    },
    /// The receive range from one rank.
    Recv {
        /// The rank, as the graph numbers it.
        peer: u32,
    },
    /// Nothing; returns when all ranks are there.
    Barrier,
}

/// How a collective travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Path {
    /// The backend's collective, on the group's stream, with a [`StepKind::Wait`].
    Normal,
    /// A kernel on the compute stream that reads the comm buffers of all ranks: done when it is done, so nobody waits.
    OneShot,
}

/// One tensor of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Part {
    /// Elements in the send range of each rank ([`CommOp::Recv`]: in the receive range).
    pub count: u64,
    /// What is sent.
    pub send: Range,
    /// Where the result goes: the send range itself, or apart from it; for a gather the send range may be this rank's part
    /// of it, for a scatter it may be this rank's part of the send range.
    pub recv: Range,
}

/// A collective. Several parts are one grouped launch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Collective {
    /// What it does.
    pub op: CommOp,
    /// Index into [`Program::groups`].
    pub group: u32,
    /// Element type; of [`CommOp::Barrier`], `u8`.
    #[cfg_attr(feature = "serde", serde(with = "json::dtype"))]
    pub dtype: DType,
    /// How it travels.
    pub path: Path,
    /// Collectives of the source that were merged into it, by name; none if it is one of them itself.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub members: Vec<Box<str>>,
    /// Its tensors, in order.
    pub parts: Vec<Part>,
}

/// An operator and its arguments, with holes for the operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct CallForm {
    /// `aten.mm.default`.
    pub target: Box<str>,
    /// As the graph has them.
    #[cfg_attr(feature = "serde", serde(with = "json::args"))]
    pub args: Args,
}

/// What a compute step is given.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Operand {
    /// A tensor.
    Tensor(View),
    /// An integer, known beforehand.
    Int(i64),
    /// What an earlier step made.
    Host(HostId),
    /// Several.
    Tuple(Vec<Operand>),
}

/// What a compute step makes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Made {
    /// Nothing beside what it writes.
    Nothing,
    /// A tensor, in memory that nothing else uses at the time.
    Tensor(View),
    /// A value of another kind.
    Host(HostId),
    /// Several; [`Made::Nothing`] stands for those that nobody reads.
    Tuple(Vec<Made>),
}

/// A call of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Compute {
    /// Index into [`Program::calls`].
    pub call: u32,
    /// What fills the holes.
    pub operands: Short<Operand, 2>,
    /// Operands that are overwritten, by index.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "<[_]>::is_empty"))]
    pub writes: Short<u32, 1>,
    /// What it makes.
    pub made: Made,
}

/// Runs one of several programs, each of a graph that the node calls: the branches of `cond`, the body of
/// `invoke_subgraph`. What it is given is copied in, and what it makes is copied out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Run {
    /// Indexes into [`Program::bodies`]: one, or two of which `pick` says which.
    pub bodies: Short<u32, 2>,
    /// A tensor of one element, or another value: the first body runs if it is true, the second if not.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub pick: Option<Operand>,
    /// The inputs of each body, in order.
    pub given: Vec<Operand>,
    /// The outputs of each body, in order, as far as they are read.
    pub made: Made,
}

/// A graph that the program calls.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Body {
    /// The attribute that holds it: `self.true_graph_0`.
    pub target: Box<str>,
    /// What it does; its ids are its own, and so are its arenas.
    pub program: Program,
}

/// What a step does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum StepKind {
    /// Into a comm buffer.
    Pack(Moves),
    /// Out of one.
    Unpack(Moves),
    /// One tensor to another.
    Copy(Segment),
    /// Starts a collective.
    Collective(Collective),
    /// Makes the compute stream wait for a started collective.
    Wait(StepId),
    /// Calls an operator.
    Compute(Compute),
    /// Runs a program of [`Program::bodies`].
    Run(Run),
}

/// One step. Steps of one stream run in order; between streams only `after` orders them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Step {
    /// Name of the graph's node that it is for.
    pub node: Box<str>,
    /// Where it runs.
    pub stream: Stream,
    /// Earlier steps of other streams that have to be done.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "<[_]>::is_empty"))]
    pub after: Short<StepId, 1>,
    /// What it does.
    pub kind: StepKind,
}

/// Ranks that communicate.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Group {
    /// Its name in the graph.
    pub name: Box<str>,
    /// Number of ranks; zero where not known, and then no step uses it.
    pub size: u32,
    /// The groups of this name, each the global ranks it holds in order; empty when not known.
    pub members: Vec<Vec<u32>>,
}

/// What the caller gives.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Input {
    /// Name of the input.
    pub name: Box<str>,
    /// A tensor in an input buffer, an integer that the program was made for, or any other value.
    pub value: Operand,
}

/// What the caller gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Outputs {
    /// The structure, with holes for the values.
    #[cfg_attr(feature = "serde", serde(with = "json::args"))]
    pub args: Args,
    /// The values.
    pub values: Vec<Operand>,
}

/// See the module docs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Program {
    /// The graph's name.
    pub name: String,
    /// Members of buckets lie at multiples of this power of two.
    pub align_bytes: u64,
    /// Values of symbolic sizes that the program was made for.
    pub symbols: IndexMap<Box<str>, u64>,
    /// Process groups.
    pub groups: Vec<Group>,
    /// Allocations.
    pub arenas: Vec<Arena>,
    /// Names of values that are not tensors.
    pub hosts: Vec<Box<str>>,
    /// How tensors lie.
    pub layouts: Vec<Layout>,
    /// Operators with arguments.
    pub calls: Vec<CallForm>,
    /// Graphs that it calls.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub bodies: Vec<Body>,
    /// Memory.
    pub buffers: Vec<Buffer>,
    /// What the caller gives, in order.
    pub inputs: Vec<Input>,
    /// What runs, in issue order.
    pub steps: Vec<Step>,
    /// What the caller gets.
    pub outputs: Outputs,
}

impl Layout {
    /// A dense layout, or `None` when its strides pass 64 bits.
    #[must_use]
    pub fn dense(dtype: DType, shape: &[u64]) -> Option<Self> {
        let mut strides = Short::with_capacity(shape.len());
        let mut step = 1u64;
        for &size in shape.iter().rev() {
            strides.push(step);
            step = step.checked_mul(size.max(1))?;
        }
        strides.reverse();
        Some(Self { dtype, shape: shape.into(), strides })
    }

    /// Number of elements, or `None` when it passes 64 bits.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))
    }

    /// Bytes from the first element's first byte to the last element's last, or `None` when that passes 64 bits.
    #[must_use]
    pub fn span_bytes(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let last = self
            .shape
            .iter()
            .zip(&self.strides)
            .try_fold(0u64, |at, (&size, &stride)| at.checked_add((size - 1).checked_mul(stride)?))?;
        last.checked_add(1)?.checked_mul(self.dtype.bytes())
    }

    /// Whether elements share memory: those along a dimension of stride zero.
    #[must_use]
    pub fn overlaps_itself(&self) -> bool {
        self.shape.iter().zip(&self.strides).any(|(&size, &stride)| size > 1 && stride == 0)
    }

    /// Whether elements lie end to end in logical order; strides of dimensions of size one do not matter.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut step = 1u64;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != step {
                return false;
            }
            step = step.saturating_mul(size);
        }
        true
    }
}

impl Program {
    /// A layout.
    ///
    /// # Panics
    /// For an id of another program.
    #[must_use]
    pub fn layout(&self, id: LayoutId) -> &Layout {
        &self.layouts[id.0 as usize]
    }

    /// A buffer.
    ///
    /// # Panics
    /// For an id of another program.
    #[must_use]
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Bytes of all arenas, those of its bodies included: what the program allocates.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.sum(&|program| program.arenas.iter().fold(0, |sum, arena| sum.saturating_add(arena.bytes)))
    }

    /// Bytes of all comm arenas, those of its bodies included.
    #[must_use]
    pub fn comm_bytes(&self) -> u64 {
        self.sum(&|program| {
            let comm = program.arenas.iter().filter(|arena| arena.kind == BufferKind::Comm);
            comm.fold(0, |sum, arena| sum.saturating_add(arena.bytes))
        })
    }

    /// The sum of the arenas' largest live sets, those of its bodies included.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.sum(&|program| program.arenas.iter().fold(0, |sum, arena| sum.saturating_add(arena.live_bytes)))
    }

    /// Collectives that the program launches itself; those of its bodies are theirs.
    #[must_use]
    pub fn launches(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.kind, StepKind::Collective(_))).count()
    }

    /// A number of this program and of each body.
    fn sum(&self, of: &dyn Fn(&Self) -> u64) -> u64 {
        self.bodies.iter().fold(of(self), |sum, body| sum.saturating_add(body.program.sum(of)))
    }
}
