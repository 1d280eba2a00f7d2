//! Whether two ranks call the same.

use super::call::Op;
use super::signature::Described;

/// What differs between two ranks, and how each would put it.
pub struct Difference {
    pub what: &'static str,
    pub first: String,
    pub second: String,
}

/// One rank's calls and its place among those that take part.
pub struct Side<'a, C> {
    pub place: usize,
    pub calls: &'a [C],
}

/// The first difference between the calls of two ranks of `size`. Without `detail`, only what decides where bytes go: op,
/// root and lengths.
pub fn difference<C: Described>(
    first: Side<'_, C>,
    second: Side<'_, C>,
    size: usize,
    detail: bool,
) -> Option<Difference> {
    let (a, b) = (first.calls, second.calls);
    if a.len() != b.len() {
        return Some(said("number of calls", a.len(), b.len()));
    }
    let pairs = a.iter().zip(b).enumerate();
    pairs.into_iter().find_map(|(index, (x, y))| {
        let mut found = one(x, y, (first.place, second.place), size, detail)?;
        if a.len() > 1 {
            for text in [&mut found.first, &mut found.second] {
                *text = format!("{text} (call {} of {})", index + 1, a.len());
            }
        }
        Some(found)
    })
}

fn said(what: &'static str, first: impl ToString, second: impl ToString) -> Difference {
    Difference { what, first: first.to_string(), second: second.to_string() }
}

fn one<C: Described>(a: &C, b: &C, places: (usize, usize), size: usize, detail: bool) -> Option<Difference> {
    let ends = matches!((a.op(), b.op()), (Op::Send { .. }, Op::Recv { .. }));
    if a.op().name() != b.op().name() && !ends {
        return Some(said("op", a.op().name(), b.op().name()));
    }
    let kind = |call: &C| call.op().reduction().map_or_else(|| "none".to_owned(), |reduction| reduction.to_string());
    if detail && a.op().reduction() != b.op().reduction() {
        return Some(said("reduction", kind(a), kind(b)));
    }
    if let (Some(x), Some(y)) = (a.op().root(), b.op().root())
        && x != y
    {
        return Some(said("root", format!("group rank {}", x.0), format!("group rank {}", y.0)));
    }
    let elements = |call: &C| format!("{} x {}", call.dtype().short_name(), call.count());
    if detail && a.dtype() != b.dtype() {
        return Some(said("dtype", elements(a), elements(b)));
    }
    if matches!(a.op(), Op::AllToAll { .. }) {
        return splits(a, b, places, size);
    }
    let bytes = |call: &C| call.count() * call.dtype().bytes();
    match (bytes(a) == bytes(b), a.dtype() == b.dtype()) {
        (true, _) => None,
        (false, true) => Some(said("count", elements(a), elements(b))),
        (false, false) => Some(said("size", elements(a), elements(b))),
    }
}

/// What each sends to the other against what the other expects.
fn splits<C: Described>(a: &C, b: &C, (first, second): (usize, usize), size: usize) -> Option<Difference> {
    let (a_sends, a_wants) = a.split_bytes(size);
    let (b_sends, b_wants) = b.split_bytes(size);
    let gives = |bytes: u64, to: usize| format!("{bytes} bytes for group rank {to}");
    let wants = |bytes: u64, from: usize| format!("room for {bytes} bytes from group rank {from}");
    // What another rank reports may be of other lengths.
    let at = |parts: &[u64], place: usize| parts.get(place).copied().unwrap_or(0);
    let (given, wanted) = (at(&a_sends, second), at(&b_wants, first));
    if given != wanted {
        return Some(said("split", gives(given, second), wants(wanted, first)));
    }
    let (given, wanted) = (at(&b_sends, first), at(&a_wants, second));
    if given != wanted {
        return Some(said("split", wants(wanted, second), gives(given, first)));
    }
    None
}
