//! Runs of bytes in a leaf, as nested loops.

use super::int::{Int, ONE, ZERO};
use smallvec::SmallVec;

/// One loop: `count` times, `stride` bytes apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Loop {
    pub count: Int,
    pub stride: Int,
}

/// Loops from the outermost in, which visit bytes of a leaf in order. Two loops that are one are kept as one, and loops
/// of one turn are left out, so equal visits have equal patterns (but for those of stride zero).
pub(super) type Pattern = SmallVec<[Loop; 1]>;

/// `bytes` bytes end to end.
pub(super) fn dense(bytes: Int) -> Pattern {
    let mut pattern = Pattern::new();
    push(&mut pattern, bytes, ONE);
    pattern
}

/// Adds a loop inside all others.
pub(super) fn push(pattern: &mut Pattern, count: Int, stride: Int) -> Option<()> {
    if count.is(1) {
        return Some(());
    }
    if let Some(last) = pattern.last_mut()
        && last.stride == stride.mul(&count)?
    {
        last.count = last.count.mul(&count)?;
        last.stride = stride;
        return Some(());
    }
    pattern.push(Loop { count, stride });
    Some(())
}

pub(super) fn extend(pattern: &mut Pattern, steps: &[Loop]) -> Option<()> {
    steps.iter().try_for_each(|step| push(pattern, step.count.clone(), step.stride.clone()))
}

/// How many bytes are visited.
pub(super) fn total(pattern: &[Loop]) -> Option<Int> {
    pattern.iter().try_fold(ONE, |product, step| product.mul(&step.count))
}

/// The outer loops that make `count` turns, and the rest.
pub(super) fn split(pattern: &[Loop], count: &Int) -> Option<(Pattern, Pattern)> {
    let (mut head, mut tail) = (Pattern::new(), Pattern::new());
    let mut wanted = count.clone();
    let mut steps = pattern.iter();
    while !wanted.is(1) {
        let step = steps.next()?;
        if let Some(rest) = wanted.div(&step.count) {
            push(&mut head, step.count.clone(), step.stride.clone())?;
            wanted = rest;
            continue;
        }
        let inner = step.count.div(&wanted)?;
        push(&mut head, wanted, step.stride.mul(&inner)?)?;
        push(&mut tail, inner, step.stride.clone())?;
        wanted = ONE;
    }
    for step in steps {
        push(&mut tail, step.count.clone(), step.stride.clone())?;
    }
    Some((head, tail))
}

/// Hands on what is visited from the `from`-th byte to before the `to`-th, as (offset, pattern, bytes), in order.
pub(super) fn slice(
    pattern: &[Loop],
    from: &Int,
    to: &Int,
    emit: &mut dyn FnMut(Int, Pattern, Int) -> Option<()>,
) -> Option<()> {
    if from == to {
        return Some(());
    }
    let Some((first, rest)) = pattern.split_first() else {
        return emit(ZERO, Pattern::new(), to.sub(from)?);
    };
    let unit = total(rest)?;
    if let (Some(start), Some(end)) = (from.div(&unit), to.div(&unit)) {
        let mut part = Pattern::new();
        push(&mut part, end.sub(&start)?, first.stride.clone())?;
        extend(&mut part, rest)?;
        return emit(start.mul(&first.stride)?, part, to.sub(from)?);
    }
    let (from, to, unit) = (from.known()?, to.known()?, unit.known()?);
    let turn = |index: i64| Int::Known(index).mul(&first.stride);
    let mut inner = |index: i64, from: i64, to: i64| {
        let offset = turn(index)?;
        slice(rest, &Int::Known(from), &Int::Known(to), &mut |at, part, bytes| emit(at.add(&offset)?, part, bytes))
    };
    let (first_turn, last_turn) = (from / unit, (to - 1) / unit);
    if first_turn == last_turn {
        return inner(first_turn, from - first_turn * unit, to - first_turn * unit);
    }
    let head = from % unit != 0;
    if head {
        inner(first_turn, from % unit, unit)?;
    }
    let (start, end) = (first_turn + i64::from(head), to / unit);
    if start < end {
        let mut part = Pattern::new();
        push(&mut part, Int::Known(end - start), first.stride.clone())?;
        extend(&mut part, rest)?;
        emit(turn(start)?, part, Int::Known((end - start) * unit))?;
    }
    if to % unit != 0 {
        let offset = turn(end)?;
        slice(rest, &ZERO, &Int::Known(to % unit), &mut |at, part, bytes| emit(at.add(&offset)?, part, bytes))?;
    }
    Some(())
}

/// The pattern with `old` bytes of an element replaced by `new`: all counts of elements stay.
pub(super) fn rescale(pattern: &[Loop], old: i64, new: i64) -> Option<Pattern> {
    if old == new {
        return Some(pattern.iter().cloned().collect());
    }
    let (old, new) = (Int::Known(old), Int::Known(new));
    let elements = total(pattern)?.div(&old)?;
    let (outer, inner) = split(pattern, &elements)?;
    if inner != dense(old.clone()) {
        return None;
    }
    let mut result = Pattern::new();
    for step in &outer {
        push(&mut result, step.count.clone(), step.stride.div(&old)?.mul(&new)?)?;
    }
    push(&mut result, new, ONE)?;
    Some(result)
}
