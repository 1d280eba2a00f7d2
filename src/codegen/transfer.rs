//! What a kernel does, in numbers: loops of equal units.
//!
//! A segment of a program moves elements between two strided layouts. Here loops that follow on each other on both sides
//! become one, the innermost is cut into units of up to 16 bytes as far as all addresses are aligned, and what is left at
//! its ends becomes transfers of smaller units. The bases of buffers are aligned as the program says; nothing is assumed of
//! sizes but that they fit 64 bits.

use crate::ir::DType;
use crate::ir::Short;
use crate::program::{BufferId, Layout, Program, Range, Segment, View};
use bucketeer_types::class::{self, Class};
use indexmap::IndexSet;
#[cfg(feature = "serde")]
use serde::Serialize;

/// The widest access of a GPU, in bytes.
pub const WIDEST_BYTES: u64 = 16;

/// The base that an address counts from: a buffer, and how much to add for each rank before this one in the buffer's group.
/// A host knows the address when it knows its rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Anchor {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes for each rank before this one.
    pub rank_bytes: u64,
}

/// Anchors in the order of their first use.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    found: IndexSet<Anchor>,
}

impl Anchors {
    /// The index of an anchor, a new one if it was not used before.
    pub fn index(&mut self, buffer: BufferId, rank_bytes: u64) -> u32 {
        self.found.insert_full(Anchor { buffer, rank_bytes }).0 as u32
    }

    /// All, by index.
    #[must_use]
    pub fn list(&self) -> Vec<Anchor> {
        self.found.iter().copied().collect()
    }
}

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Address {
    /// Index of an [`Anchor`].
    pub anchor: u32,
    /// Bytes from there.
    pub offset: u64,
}

/// What is done with one unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// So many bytes as they are: 16, 8, 4, 2 or 1.
    Move(u64),
    /// So many zeros.
    Zero(u64),
    /// Elements, converted.
    Convert(Conversion),
}

/// Elements to another dtype, or divided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conversion {
    /// Read.
    pub from: DType,
    /// Written.
    pub to: DType,
    /// Elements of a unit: one, or as many of the narrower dtype as are 16 bytes.
    pub elements: u64,
    /// Whether each is divided by the transfer's divisor: in `f64` if one of the dtypes is that, else in `f32`.
    pub divides: bool,
}

impl Conversion {
    /// Elements of a wide unit.
    #[must_use]
    pub const fn most_elements(from: DType, to: DType) -> u64 {
        let (from, to) = (from.bytes(), to.bytes());
        WIDEST_BYTES / if from < to { from } else { to }
    }
}

/// A loop: how often, and how many bytes further each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Loop {
    /// How often; at least once.
    pub size: u64,
    /// In the source, in bytes.
    pub from: u64,
    /// In the target, in bytes.
    pub to: u64,
}

/// The loops of a transfer, outermost first.
pub type Loops = Short<Loop, 3>;

/// Units that move alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// What is done with each.
    pub unit: Unit,
    /// Read; [`Unit::Zero`] reads nothing, and has its target here.
    pub from: Address,
    /// Written.
    pub to: Address,
    /// At least one, outermost first.
    pub loops: Loops,
    /// What converted values are divided by.
    pub divisor: u32,
}

impl Transfer {
    /// Number of units.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.loops.iter().fold(1, |units, each| units * each.size)
    }
}

/// Why there is no kernel for a step.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    /// The dtypes are not made of each other.
    #[error("`{node}`: there is no conversion of {} to {}", from.torch_name(), to.torch_name())]
    Conversion {
        /// The step's node.
        node: String,
        /// The source's.
        from: DType,
        /// The target's.
        to: DType,
    },
    /// Division of what is not a float.
    #[error("`{node}`: {} is not divided by the number of ranks in a kernel; expected a float", dtype.torch_name())]
    Division {
        /// The step's node.
        node: String,
        /// The dtype.
        dtype: DType,
    },
    /// The program runs others.
    #[error("`{node}`: it runs programs of its own, and code is written for one program; write it for each body")]
    Body {
        /// The step's node.
        node: String,
    },
    /// Not all elements of an average move through packs or unpacks.
    #[error("`{node}` is an average that no kernel divides: {reason}")]
    Average {
        /// The collective's node.
        node: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// Elements that are converted do not lie at multiples of their size.
    #[error(
        "`{node}`: elements of {bytes} bytes in `{buffer}` lie at {align}-byte boundaries; expected {bytes}-byte ones"
    )]
    Misaligned {
        /// The step's node.
        node: String,
        /// The buffer's name.
        buffer: String,
        /// Bytes of an element.
        bytes: u64,
        /// What all addresses are a multiple of.
        align: u64,
    },
    /// A target's elements share bytes, or layouts do not fit each other: a program that is not well-formed.
    #[error("`{node}`: {reason}")]
    Malformed {
        /// The step's node.
        node: String,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Cuts the segments of one step into transfers, and collects their anchors.
pub struct Cutter<'a> {
    program: &'a Program,
    node: &'a str,
    anchors: &'a mut Anchors,
    made: Vec<Transfer>,
}

/// One side of a segment while it is cut.
#[derive(Clone, Copy)]
struct Side {
    at: Address,
    /// What the anchor's address is a multiple of, at most [`WIDEST_BYTES`].
    base_align: u64,
}

impl Side {
    fn further(self, bytes: u64) -> Self {
        Self { at: Address { offset: self.at.offset + bytes, ..self.at }, ..self }
    }

    /// What the address and all steps of the loops around are a multiple of.
    fn align(self, steps: impl Iterator<Item = u64>) -> u64 {
        steps.fold(align_of(self.at.offset).min(self.base_align), |align, step| align.min(align_of(step)))
    }
}

/// The largest power of two that divides a number, at most [`WIDEST_BYTES`]; all divide zero.
fn align_of(number: u64) -> u64 {
    let bits = number.trailing_zeros().min(WIDEST_BYTES.trailing_zeros());
    1 << bits
}

impl<'a> Cutter<'a> {
    /// For the step of a node.
    pub fn new(program: &'a Program, node: &'a str, anchors: &'a mut Anchors) -> Self {
        Self { program, node, anchors, made: Vec::new() }
    }

    /// What was cut.
    #[must_use]
    pub fn done(self) -> Vec<Transfer> {
        self.made
    }

    /// One segment, each element divided by `divisor`.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn segment(&mut self, segment: &Segment, divisor: u32) -> Result<(), TransferError> {
        let (from, to) = (self.program.layout(segment.from.layout), self.program.layout(segment.to.layout));
        if from.shape != to.shape || from.shape.len() != from.strides.len() || to.shape.len() != to.strides.len() {
            return Err(self.malformed("a segment's layouts have different shapes"));
        }
        if from.shape.contains(&0) {
            return Ok(());
        }
        self.check_reach(segment.from, from)?;
        self.check_reach(segment.to, to)?;
        let loops = self.loops(from, to)?;
        let (source, target) = (self.side(segment.from), self.side(segment.to));
        if from.dtype == to.dtype && divisor == 1 {
            self.bytes(from.dtype.bytes(), loops, source, target);
            return Ok(());
        }
        self.elements(from.dtype, to.dtype, divisor, loops, source, target)
    }

    /// Whether a view lies in its buffer, at this rank and all before it.
    fn check_reach(&self, view: View, layout: &Layout) -> Result<(), TransferError> {
        let end = layout.span_bytes().and_then(|bytes| view.offset.checked_add(bytes));
        match end {
            Some(end) if end <= self.program.buffer(view.buffer).bytes => Ok(()),
            _ => Err(self.malformed("a segment reaches beyond its buffer")),
        }
    }

    fn malformed(&self, reason: &'static str) -> TransferError {
        TransferError::Malformed { node: self.node.to_owned(), reason }
    }

    fn side(&mut self, view: View) -> Side {
        self.side_of(view.buffer, view.offset, view.rank_bytes)
    }

    fn side_of(&mut self, buffer: BufferId, offset: u64, rank_bytes: u64) -> Side {
        let anchor = self.anchors.index(buffer, rank_bytes);
        let base_align = align_of(self.program.buffer(buffer).align).min(align_of(rank_bytes));
        Side { at: Address { anchor, offset }, base_align }
    }

    /// The loops over elements, in bytes, merged; those that the target has farthest apart first.
    fn loops(&self, from: &Layout, to: &Layout) -> Result<Loops, TransferError> {
        let too_far = || self.malformed("a segment reaches beyond 2^64 bytes");
        let (width, to_width) = (from.dtype.bytes(), to.dtype.bytes());
        let mut loops = Loops::new();
        for ((&size, &from), &to) in
            from.shape.iter().zip(&from.strides).zip(&to.strides).filter(|((size, _), _)| **size > 1)
        {
            let from = from.checked_mul(width).ok_or_else(too_far)?;
            let to = to.checked_mul(to_width).ok_or_else(too_far)?;
            loops.push(Loop { size, from, to });
        }
        loops.sort_by_key(|each| std::cmp::Reverse(each.to));
        let mut span = to_width;
        let mut from_span = width;
        for each in loops.iter().rev() {
            if each.to < span {
                return Err(self.malformed("elements of a segment's target share bytes"));
            }
            let steps = each.size - 1;
            let reach = |span: u64, step: u64| steps.checked_mul(step).and_then(|all| all.checked_add(span));
            span = reach(span, each.to).ok_or_else(too_far)?;
            from_span = reach(from_span, each.from).ok_or_else(too_far)?;
        }
        let mut merged = Loops::new();
        for each in loops {
            match merged.last_mut() {
                // Neither side passes 64 bits, so neither product does.
                Some(outer) if outer.from == each.size * each.from && outer.to == each.size * each.to => {
                    *outer = Loop { size: outer.size * each.size, ..each };
                }
                _ => merged.push(each),
            }
        }
        Ok(merged)
    }

    /// Bytes as they are.
    fn bytes(&mut self, width: u64, mut loops: Loops, from: Side, to: Side) {
        let run = match loops.last() {
            Some(last) if (last.from, last.to) == (width, width) => loops.pop().map_or(width, |last| last.size * width),
            _ => width,
        };
        self.run(run, &loops, from, to);
    }

    /// Runs of bytes, one for each turn of the loops.
    fn run(&mut self, mut bytes: u64, loops: &Loops, mut from: Side, mut to: Side) {
        let phase = |side: Side| side.at.offset % WIDEST_BYTES;
        if loops.is_empty() && phase(from) == phase(to) && bytes > WIDEST_BYTES {
            // What comes before the first boundary, so that the rest moves in the widest units.
            let head = (WIDEST_BYTES - phase(from)) % WIDEST_BYTES;
            self.pieces(head, loops, &mut from, &mut to);
            bytes -= head;
        }
        self.pieces(bytes, loops, &mut from, &mut to);
    }

    /// Cuts runs into the widest units that alignment allows, and what is left into narrower ones.
    fn pieces(&mut self, mut bytes: u64, loops: &Loops, from: &mut Side, to: &mut Side) {
        while bytes > 0 {
            let align = from.align(loops.iter().map(|each| each.from)).min(to.align(loops.iter().map(|each| each.to)));
            let width = align.min(1 << bytes.ilog2());
            let units = bytes / width;
            self.push(Unit::Move(width), *from, *to, loops, Loop { size: units, from: width, to: width }, 1);
            let done = units * width;
            (*from, *to) = (from.further(done), to.further(done));
            bytes -= done;
        }
    }

    /// A range of zeros.
    pub fn zero(&mut self, range: Range) {
        let mut side = self.side_of(range.buffer, range.offset, range.rank_bytes);
        let mut bytes = range.bytes;
        while bytes > 0 {
            // Up to the first boundary, then the bulk, then the rest.
            let align = side.align(std::iter::empty()).min(1 << bytes.ilog2());
            let bulk = if align == side.base_align.min(WIDEST_BYTES) { bytes / align } else { 1 };
            self.push(Unit::Zero(align), side, side, &Loops::new(), Loop { size: bulk, from: 0, to: align }, 1);
            side = side.further(bulk * align);
            bytes -= bulk * align;
        }
    }

    /// Elements, converted or divided.
    fn elements(
        &mut self,
        from_dtype: DType,
        to_dtype: DType,
        divisor: u32,
        mut loops: Loops,
        from: Side,
        to: Side,
    ) -> Result<(), TransferError> {
        let classes = [from_dtype, to_dtype].map(class::class);
        if from_dtype != to_dtype && classes.contains(&Class::Opaque) {
            return Err(TransferError::Conversion { node: self.node.to_owned(), from: from_dtype, to: to_dtype });
        }
        if divisor != 1
            && let Some(at) = classes.iter().position(|class| *class != Class::Float)
        {
            return Err(TransferError::Division { node: self.node.to_owned(), dtype: [from_dtype, to_dtype][at] });
        }
        let (width, to_width) = (from_dtype.bytes(), to_dtype.bytes());
        let aligns = |loops: &Loops, from: Side, to: Side| {
            (from.align(loops.iter().map(|each| each.from)), to.align(loops.iter().map(|each| each.to)))
        };
        let (align, to_align) = aligns(&loops, from, to);
        for (side, align, bytes) in [(from, align, width), (to, to_align, to_width)] {
            if align < bytes.min(WIDEST_BYTES) {
                let anchor = self.anchors.list()[side.at.anchor as usize];
                let buffer = self.program.buffer(anchor.buffer).name.to_string();
                return Err(TransferError::Misaligned { node: self.node.to_owned(), buffer, bytes, align });
            }
        }
        let unit = |elements: u64| {
            Unit::Convert(Conversion { from: from_dtype, to: to_dtype, elements, divides: divisor != 1 })
        };
        let inner = match loops.last() {
            Some(last) if (last.from, last.to) == (width, to_width) => loops.pop(),
            _ => None,
        };
        let Some(inner) = inner else {
            let last = loops.pop().unwrap_or(Loop { size: 1, from: width, to: to_width });
            self.push(unit(1), from, to, &loops, last, divisor);
            return Ok(());
        };
        let most = Conversion::most_elements(from_dtype, to_dtype);
        let (align, to_align) = aligns(&loops, from, to);
        let wide = align >= (most * width).min(WIDEST_BYTES) && to_align >= (most * to_width).min(WIDEST_BYTES);
        let units = if wide { inner.size / most } else { 0 };
        if units > 0 {
            let wide = Loop { size: units, from: most * width, to: most * to_width };
            self.push(unit(most), from, to, &loops, wide, divisor);
        }
        let done = units * most;
        if done < inner.size {
            let (from, to) = (from.further(done * width), to.further(done * to_width));
            self.push(unit(1), from, to, &loops, Loop { size: inner.size - done, ..inner }, divisor);
        }
        Ok(())
    }

    fn push(&mut self, unit: Unit, from: Side, to: Side, around: &Loops, inner: Loop, divisor: u32) {
        let mut loops = around.clone();
        // A loop of one turn is none, but some loop there is.
        if inner.size > 1 || loops.is_empty() {
            loops.push(inner);
        }
        self.made.push(Transfer { unit, from: from.at, to: to.at, loops, divisor });
    }
}
