//! The bytes of a tensor in row-major order, as ranges of leaves.
//!
//! A [`Flat`] is a table of `rows` rows of `width` bytes. Its pieces are ranges of columns, each found in all rows at
//! once. A tensor's shape is kept apart: a reshape changes no byte's place, a packed buffer is a table of one row, and
//! the result of gathering it is a table with a row for each rank.

use super::int::{Int, ONE, ZERO};
use super::pattern::{self, Pattern};
use std::cmp::Ordering;
use std::rc::Rc;

/// What bytes come from: an index into the leaves of a [`Context`](super::terms::Context).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Leaf(pub u32);

/// Most pieces that a table may fall into when its rows are written out.
const MAX_PIECES: usize = 1 << 16;

/// Most lengths of a repeated row that are tried.
const MOST_PERIODS: usize = 4;

/// Most places, with symbols, where rows are cut.
const MOST_SYMBOLIC_CUTS: usize = 64;

/// A range of columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    /// First column.
    pub start: Int,
    /// Columns.
    pub bytes: Int,
    pub leaf: Leaf,
    /// Where the first byte is in the leaf.
    pub offset: Int,
    /// How the place in the leaf goes on from row to row.
    pub outer: Pattern,
    /// And along a row.
    pub inner: Pattern,
}

/// See the module docs. A table of one piece has one row; a table of no bytes has no pieces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flat {
    pub rows: Int,
    pub width: Int,
    pub pieces: Rc<[Piece]>,
}

impl Piece {
    /// Whether its bytes lie end to end in the leaf.
    pub fn is_dense(&self) -> bool {
        self.outer.is_empty() && self.inner == pattern::dense(self.bytes.clone())
    }

    fn shifted(mut self, by: &Int) -> Option<Self> {
        self.offset = self.offset.add(by)?;
        Some(self)
    }

    /// Adds `next`, which starts where this one ends, if the two are one.
    fn join(&mut self, next: &Self) -> Option<()> {
        if self.leaf != next.leaf || self.outer != next.outer {
            return None;
        }
        if self.inner.len() != next.inner.len() {
            return self.join_turn(next);
        }
        let ([mine, tail @ ..], [theirs, others @ ..]) = (self.inner.as_slice(), next.inner.as_slice()) else {
            return None;
        };
        let follows = self.offset.add(&mine.count.mul(&mine.stride)?)? == next.offset;
        if !follows || mine.stride != theirs.stride || tail != others {
            return None;
        }
        let count = mine.count.add(&theirs.count)?;
        self.inner[0].count = count;
        self.bytes = self.bytes.add(&next.bytes)?;
        Some(())
    }

    /// As [`Self::join`], where one of the two is turns of the other: then it is one more turn. A chain that adds the same again
    /// and again stays short.
    fn join_turn(&mut self, next: &Self) -> Option<()> {
        let (turns, one, first) = match self.inner.len().cmp(&next.inner.len()) {
            Ordering::Greater => (&*self, next, false),
            _ => (next, &*self, true),
        };
        let [turn, rest @ ..] = turns.inner.as_slice() else { return None };
        let expected =
            if first { one.offset.add(&turn.stride)? } else { turns.offset.add(&turn.count.mul(&turn.stride)?)? };
        let follows = if first { expected == turns.offset } else { expected == one.offset };
        if !follows || rest != one.inner.as_slice() {
            return None;
        }
        let mut inner = turns.inner.clone();
        inner[0].count = turn.count.add(&ONE)?;
        let bytes = self.bytes.add(&next.bytes)?;
        (self.inner, self.bytes) = (inner, bytes);
        Some(())
    }
}

impl Flat {
    /// No bytes.
    pub fn empty() -> Self {
        Self { rows: ONE, width: ZERO, pieces: Rc::default() }
    }

    /// All bytes of one run.
    pub fn run(leaf: Leaf, offset: Int, pattern: Pattern) -> Option<Self> {
        let bytes = pattern::total(&pattern)?;
        let piece = Piece { start: ZERO, bytes: bytes.clone(), leaf, offset, outer: Pattern::new(), inner: pattern };
        Some(Self { rows: ONE, width: bytes, pieces: Rc::new([piece]) })
    }

    /// The one piece, if all bytes are in one.
    pub fn single(&self) -> Option<&Piece> {
        match &*self.pieces {
            [piece] => Some(piece),
            _ => None,
        }
    }

    /// Number of bytes.
    pub fn total(&self) -> Option<Int> {
        self.rows.mul(&self.width)
    }

    /// Joins neighbours that are one run, gives pieces that repeat a row for each turn, and a table of one piece its one
    /// row. Rows of which each goes on where the one before ends are written out, so that equal bytes have one form.
    pub fn normalize(mut self) -> Option<Self> {
        if self.width.is(0) || self.rows.is(0) {
            return Some(Self::empty());
        }
        self.join_neighbours();
        if self.goes_on() == Some(true)
            && let Some(mut one) = self.rows.known().and_then(|rows| self.fewer_rows(&ONE, rows))
        {
            one.join_neighbours();
            self = one;
        }
        if let Some(piece) = self.in_turns() {
            self.pieces = Rc::new([piece]);
        } else if let Some(table) = self.in_rows() {
            self = table;
        }
        if let ([piece], false) = (&*self.pieces, self.rows.is(1)) {
            let mut run = piece.outer.clone();
            pattern::extend(&mut run, &piece.inner)?;
            return Self::run(piece.leaf, piece.offset.clone(), run);
        }
        Some(self)
    }

    fn join_neighbours(&mut self) {
        let mut joined: Vec<Piece> = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.iter() {
            if joined.last_mut().is_none_or(|last| last.join(piece).is_none()) {
                joined.push(piece.clone());
            }
        }
        if joined.len() < self.pieces.len() {
            self.pieces = joined.into();
        }
    }

    /// Whether the last piece of a row and the first of the next are one run.
    fn goes_on(&self) -> Option<bool> {
        let [first, .., last] = &*self.pieces else { return Some(false) };
        let (Some(step), true) = (first.outer.last(), first.leaf == last.leaf) else { return Some(false) };
        // The step to the next row is that of the innermost loop.
        let mut next = first.clone().shifted(&step.stride)?;
        let mut last = last.clone();
        next.outer.clear();
        last.outer.clear();
        Some(last.join(&next).is_some())
    }

    /// The piece of which all pieces are turns, evenly far apart.
    fn in_turns(&self) -> Option<Piece> {
        let [first, second, ..] = &*self.pieces else { return None };
        let step = second.offset.sub(&first.offset)?;
        let mut expected = first.offset.clone();
        for piece in self.pieces.iter() {
            let same = piece.leaf == first.leaf && piece.bytes == first.bytes && piece.offset == expected;
            if !same || piece.inner != first.inner || piece.outer != first.outer {
                return None;
            }
            expected = expected.add(&step)?;
        }
        let turns = Int::Known(i64::try_from(self.pieces.len()).ok()?);
        let mut inner = Pattern::new();
        pattern::push(&mut inner, turns.clone(), step)?;
        pattern::extend(&mut inner, &first.inner)?;
        Some(Piece { inner, bytes: first.bytes.mul(&turns)?, ..first.clone() })
    }

    /// The table with a row for each turn, if the pieces are turns of the same few, each evenly far apart.
    fn in_rows(&self) -> Option<Self> {
        let alike =
            |a: &Piece, b: &Piece| a.leaf == b.leaf && a.bytes == b.bytes && a.inner == b.inner && a.outer == b.outer;
        let first = self.pieces.first()?;
        let again = (2..=self.pieces.len() / 2).filter(|&at| alike(first, &self.pieces[at]));
        again.take(MOST_PERIODS).find_map(|period| {
            let turns = Int::Known(i64::try_from(self.pieces.len() / period).ok()?);
            let step = |at: usize| self.pieces[at + period].offset.sub(&self.pieces[at].offset);
            let follows = |at: usize| {
                alike(&self.pieces[at], &self.pieces[at - period]) && step(at - period) == step(at % period)
            };
            if !self.pieces.len().is_multiple_of(period) || !(period..self.pieces.len()).all(follows) {
                return None;
            }
            let mut pieces = Vec::with_capacity(period);
            for at in 0..period {
                let mut piece = self.pieces[at].clone();
                pattern::push(&mut piece.outer, turns.clone(), step(at)?)?;
                pieces.push(piece);
            }
            Some(Self { rows: self.rows.mul(&turns)?, width: self.width.div(&turns)?, pieces: pieces.into() })
        })
    }

    /// The columns from `from` to before `to`, of all rows.
    pub fn columns(&self, from: &Int, to: &Int) -> Option<Self> {
        let mut pieces = Vec::new();
        let mut index = self.first_piece(from)?;
        while let Some(piece) = self.pieces.get(index) {
            let end = piece.start.add(&piece.bytes)?;
            if to.at_most(&piece.start)? {
                break;
            }
            index += 1;
            if end.at_most(from)? {
                continue;
            }
            let low = if from.at_most(&piece.start)? { ZERO } else { from.sub(&piece.start)? };
            let high = if end.at_most(to)? { piece.bytes.clone() } else { to.sub(&piece.start)? };
            let mut start = piece.start.add(&low)?.sub(from)?;
            pattern::slice(&piece.inner, &low, &high, &mut |at, inner, bytes| {
                let offset = piece.offset.add(&at)?;
                let next = start.add(&bytes)?;
                let outer = piece.outer.clone();
                pieces.push(Piece { start: start.clone(), bytes, leaf: piece.leaf, offset, outer, inner });
                start = next;
                Some(())
            })?;
        }
        Some(Self { rows: self.rows.clone(), width: to.sub(from)?, pieces: pieces.into() })
    }

    /// A piece that begins at or before a column, with no other such piece behind it.
    fn first_piece(&self, column: &Int) -> Option<usize> {
        let (mut low, mut high) = (0, self.pieces.len());
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            match self.pieces[middle].start.compare(column)? {
                Ordering::Greater => high = middle,
                Ordering::Less | Ordering::Equal => low = middle,
            }
        }
        Some(low)
    }

    /// Tables of equally many rows, side by side.
    pub fn beside(tables: Vec<Self>) -> Option<Self> {
        let rows = tables.first()?.rows.clone();
        let mut pieces = Vec::with_capacity(tables.iter().map(|table| table.pieces.len()).sum());
        let mut width = ZERO;
        for table in tables {
            if table.rows != rows {
                return None;
            }
            for piece in table.pieces.iter() {
                pieces.push(Piece { start: piece.start.add(&width)?, ..piece.clone() });
            }
            width = width.add(&table.width)?;
        }
        Some(Self { rows, width, pieces: pieces.into() })
    }

    /// The same bytes in `rows` rows. `pack` makes a leaf of a list of runs end to end: needed where rows have nothing
    /// in common.
    pub fn with_rows(&self, rows: &Int, pack: &mut dyn FnMut(Flat) -> Option<Leaf>) -> Option<Self> {
        if self.rows == *rows || self.pieces.is_empty() {
            return Some(self.clone());
        }
        if let Some(piece) = self.single() {
            let mut run = piece.outer.clone();
            pattern::extend(&mut run, &piece.inner)?;
            if let Some((outer, inner)) = pattern::split(&run, rows) {
                let width = self.total()?.div(rows)?;
                let piece = Piece { start: ZERO, bytes: width.clone(), outer, inner, ..piece.clone() };
                return Some(Self { rows: rows.clone(), width, pieces: Rc::new([piece]) });
            }
        }
        if let Some(times) = self.rows.div(rows) {
            return self.fewer_rows(rows, times.known()?);
        }
        match rows.div(&self.rows) {
            Some(times) => self.more_rows(rows, times.known()?, pack),
            None => self.fewer_rows(&ONE, self.rows.known()?)?.more_rows(rows, rows.known()?, pack),
        }
    }

    /// Rows end to end, `times` at once.
    fn fewer_rows(&self, rows: &Int, times: i64) -> Option<Self> {
        let count = usize::try_from(times).ok()?.checked_mul(self.pieces.len())?;
        if count > MAX_PIECES {
            return None;
        }
        let mut pieces = Vec::with_capacity(count);
        let splits: Option<Vec<_>> = self.pieces.iter().map(|piece| pattern::split(&piece.outer, rows)).collect();
        let splits = splits?;
        for turn in 0..times {
            let base = self.width.mul(&Int::Known(turn))?;
            for (piece, (outer, along)) in self.pieces.iter().zip(&splits) {
                let mut offset = ZERO;
                let mut rest = turn;
                for step in along.iter().rev() {
                    let count = step.count.known()?;
                    offset = offset.add(&step.stride.mul(&Int::Known(rest % count))?)?;
                    rest /= count;
                }
                let start = base.add(&piece.start)?;
                pieces.push(Piece { start, outer: outer.clone(), ..piece.clone() }.shifted(&offset)?);
            }
        }
        Some(Self { rows: rows.clone(), width: self.width.mul(&Int::Known(times))?, pieces: pieces.into() })
    }

    /// Each row cut into `times` rows.
    fn more_rows(&self, rows: &Int, times: i64, pack: &mut dyn FnMut(Flat) -> Option<Leaf>) -> Option<Self> {
        let width = self.width.div(&Int::Known(times))?;
        if times > MAX_PIECES as i64 {
            return None;
        }
        let parts: Option<Vec<Self>> = (0..times)
            .map(|part| {
                let from = width.mul(&Int::Known(part))?;
                self.columns(&from, &from.add(&width)?)
            })
            .collect();
        let parts = parts?;
        let cuts = cuts(&parts, &width)?;
        if cuts.len().checked_mul(parts.len())? > MAX_PIECES {
            return None;
        }
        let mut pieces = Vec::new();
        for cut in cuts.windows(2) {
            let (from, to) = (cut[0].clone(), cut[1].clone());
            let column: Option<Vec<Self>> = parts.iter().map(|part| part.columns(&from, &to)).collect();
            pieces.push(self.stack(column?, &from, times, pack)?);
        }
        Some(Self { rows: rows.clone(), width, pieces: pieces.into() })
    }

    /// One piece of `parts`, which stand below each other.
    fn stack(
        &self,
        parts: Vec<Self>,
        start: &Int,
        times: i64,
        pack: &mut dyn FnMut(Flat) -> Option<Leaf>,
    ) -> Option<Piece> {
        if let Some(piece) = in_steps(&parts) {
            return Some(Piece { start: start.clone(), ..piece });
        }
        if !self.rows.is(1) {
            return None;
        }
        let bytes = parts.first()?.width.clone();
        let leaf = pack(Self::beside(parts)?.normalize()?)?;
        let mut outer = Pattern::new();
        pattern::push(&mut outer, Int::Known(times), bytes.clone())?;
        let inner = pattern::dense(bytes.clone());
        Some(Piece { start: start.clone(), bytes, leaf, offset: ZERO, outer, inner })
    }
}

/// Where pieces of any of the parts begin, and the end.
fn cuts(parts: &[Flat], width: &Int) -> Option<Vec<Int>> {
    let starts = || parts.iter().flat_map(|part| part.pieces.iter()).map(|piece| &piece.start).chain([width]);
    if let Some(mut known) = starts().map(Int::known).collect::<Option<Vec<i64>>>() {
        known.sort_unstable();
        known.dedup();
        return Some(known.into_iter().map(Int::Known).collect());
    }
    let mut cuts: Vec<Int> = Vec::new();
    for start in starts() {
        let mut at = 0;
        while let Some(cut) = cuts.get(at)
            && cut.compare(start)? == Ordering::Less
        {
            at += 1;
        }
        if cuts.get(at) != Some(start) {
            cuts.insert(at, start.clone());
        }
        if cuts.len() > MOST_SYMBOLIC_CUTS {
            return None;
        }
    }
    Some(cuts)
}

/// The piece of which `parts` are the turns of a new innermost loop over rows.
fn in_steps(parts: &[Flat]) -> Option<Piece> {
    let first = parts.first()?.single()?;
    let step = parts.get(1)?.single()?.offset.sub(&first.offset)?;
    for (turn, part) in parts.iter().enumerate() {
        let piece = part.single()?;
        let offset = first.offset.add(&step.mul(&Int::Known(i64::try_from(turn).ok()?))?)?;
        let same = piece.leaf == first.leaf && piece.inner == first.inner && piece.outer == first.outer;
        if !same || piece.offset != offset {
            return None;
        }
    }
    let mut outer = first.outer.clone();
    pattern::push(&mut outer, Int::Known(i64::try_from(parts.len()).ok()?), step)?;
    Some(Piece { outer, ..first.clone() })
}
