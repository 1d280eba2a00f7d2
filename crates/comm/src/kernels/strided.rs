//! Loops over elements that do not lie end to end on both sides.

/// How many elements of a line are moved before the next line's, where lines take turns: a line of cache of `f32`.
const TILE: usize = 16;

/// A loop: how often, and how many bytes further each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How often.
    pub size: usize,
    /// In the source, in bytes.
    pub from: usize,
    /// In the target, in bytes.
    pub to: usize,
}

impl Loop {
    /// Once.
    pub const ONCE: Self = Self { size: 1, from: 0, to: 0 };
}

/// Two loops: lines, and the elements of each.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// Over lines.
    pub lines: Loop,
    /// Over the elements of a line.
    pub elements: Loop,
    /// Whether lines take turns, a few elements each: for sources that are denser across lines than along them.
    pub in_turns: bool,
}

/// What becomes of an element of `A` bytes.
pub trait ElementMap<const A: usize, const B: usize>: Copy {
    fn one(self, element: [u8; A]) -> [u8; B];

    /// All of a line that lies end to end on both sides. Both have equally many.
    #[inline(always)]
    fn line(self, source: &[[u8; A]], target: &mut [[u8; B]]) {
        for (target, source) in target.iter_mut().zip(source) {
            *target = self.one(*source);
        }
    }
}

/// Takes `step` for each element, `A` bytes in the source and `B` in the target. Slices begin at the first element.
///
/// # Panics
/// When an element is outside of a slice, or there is none.
#[inline(always)]
pub fn map<const A: usize, const B: usize>(
    source: &[u8],
    target: &mut [u8],
    plane: Plane,
    step: impl ElementMap<A, B>,
) {
    let Plane { lines, elements, in_turns } = plane;
    let tile = if in_turns { TILE } else { elements.size };
    for first in (0..elements.size).step_by(tile) {
        let part = Loop { size: tile.min(elements.size - first), ..elements };
        for line in 0..lines.size {
            let source = &source[line * lines.from + first * elements.from..];
            let target = &mut target[line * lines.to + first * elements.to..];
            map_line(source, target, part, step);
        }
    }
}

#[inline(always)]
fn map_line<const A: usize, const B: usize>(
    source: &[u8],
    target: &mut [u8],
    elements: Loop,
    step: impl ElementMap<A, B>,
) {
    let Loop { size, from, to } = elements;
    if (from, to) == (A, B) {
        return step.line(&source.as_chunks::<A>().0[..size], &mut target.as_chunks_mut::<B>().0[..size]);
    }
    for index in 0..size {
        let mut element = [0; A];
        element.copy_from_slice(&source[index * from..index * from + A]);
        target[index * to..index * to + B].copy_from_slice(&step.one(element));
    }
}

#[derive(Clone, Copy)]
struct Move;

impl<const N: usize> ElementMap<N, N> for Move {
    #[inline(always)]
    fn one(self, element: [u8; N]) -> [u8; N] {
        element
    }
}

/// Moves elements of a width for which there is a loop; whether there is.
///
/// # Panics
/// If the plane reaches beyond the source or the target.
pub fn move_elements(width: usize, source: &[u8], target: &mut [u8], plane: Plane) -> bool {
    match width {
        1 => map::<1, 1>(source, target, plane, Move),
        2 => map::<2, 2>(source, target, plane, Move),
        4 => map::<4, 4>(source, target, plane, Move),
        8 => map::<8, 8>(source, target, plane, Move),
        16 => map::<16, 16>(source, target, plane, Move),
        32 => map::<32, 32>(source, target, plane, Move),
        64 => map::<64, 64>(source, target, plane, Move),
        _ => return false,
    }
    true
}
