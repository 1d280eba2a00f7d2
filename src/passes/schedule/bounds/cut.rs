//! The least time until an item is done, and the least after it.
//!
//! All messages that an item needs arrive on the stream of their group, and after each has arrived the computation between it and
//! the item is still to come, on one machine. Put them in the order of what is still to come, the most first: of all plans of
//! such a stream one of neighbours in buckets is the shortest, and [`releases`] finds it, backwards. What can only be launched once the
//! item is done takes the mirrored time. Costs are taken at the least start and the least slope of the group, which is a
//! straight line, for which that is exact.
//!
//! An item is cut at for each of some places along the computation, and around the best of these.

use super::super::chain::releases;
use super::super::costs::{MessageCost, Piece};
use super::heads::is_in;
use super::{Bound, Bounds, LowerBound};

/// Places that are looked at, and how often again around the best.
const PLACES: usize = 48;
const AROUND: usize = 4;

/// The best cut; `None` where there are too many items, or none takes time.
pub(super) fn cut(all: &Bounds<'_>) -> Option<LowerBound> {
    if !all.heads.has_sets() {
        return None;
    }
    let problem = all.problem;
    let mut timed: Vec<usize> = (0..problem.compute.len()).filter(|&item| problem.compute_ns[item] > 0).collect();
    timed.sort_unstable_by_key(|&item| problem.as_written[item]);
    let cut = Cut::of(all);
    let mut best: Option<(u64, usize)> = None;
    let last = timed.len().checked_sub(1)?;
    let (mut from, mut to, mut looked_at) = (0, last, vec![false; timed.len()]);
    for _ in 0..=AROUND {
        for step in 0..PLACES {
            let place = from + (to - from) * step / (PLACES - 1);
            if std::mem::replace(&mut looked_at[place], true) {
                continue;
            }
            let ns = cut.at(timed[place]);
            if best.is_none_or(|(least, _)| ns > least) {
                best = Some((ns, place));
            }
        }
        let (_, place) = best?;
        let reach = (to - from).div_ceil(PLACES - 1);
        (from, to) = (place.saturating_sub(reach), (place + reach).min(last));
    }
    let (ns, place) = best?;
    Some(LowerBound { ns, bound: Bound::Cut { at: problem.compute[timed[place]] } })
}

struct Cut<'a> {
    all: &'a Bounds<'a>,
    /// By group: its least start and slope.
    costs: Vec<Option<MessageCost>>,
}

impl<'a> Cut<'a> {
    fn of(all: &'a Bounds<'a>) -> Self {
        let problem = all.problem;
        let mut lines: Vec<Option<Piece>> = vec![None; problem.groups];
        for message in problem.messages.iter().filter(|message| !message.vanishes) {
            let line = &mut lines[message.group as usize];
            for piece in problem.costs[message.cost as usize].pieces() {
                let least = line.get_or_insert(*piece);
                least.alpha_ns = least.alpha_ns.min(piece.alpha_ns);
                let cross =
                    |one: &Piece, other: &Piece| u128::from(one.ns_per_byte_num) * u128::from(other.ns_per_byte_den);
                if cross(piece, least) < cross(least, piece) {
                    (least.ns_per_byte_num, least.ns_per_byte_den) = (piece.ns_per_byte_num, piece.ns_per_byte_den);
                }
            }
        }
        let costs = lines.into_iter().map(|line| MessageCost::new(vec![line?]).ok()).collect();
        Self { all, costs }
    }

    /// The least time of a plan, by what has to be over before an item and what can only begin after it.
    fn at(&self, item: usize) -> u64 {
        let Bounds { heads, tails, least_ns, .. } = self.all;
        let mut own = heads.set(item).to_vec();
        own[item / 64] |= 1 << (item % 64);
        let before = self.chains(heads.set(item), &own, |message| tails.set(message));
        let after = self.chains(tails.set(item), tails.set(item), |message| heads.set(message));
        let before = before.max(heads.ns[item].saturating_add(least_ns[item]));
        before.saturating_add(after.max(tails.ns[item]))
    }

    /// The least time that the messages of a set take, each with the computation that stands between it and the item.
    fn chains<'b>(&self, set: &[u64], within: &[u64], between: impl Fn(usize) -> &'b [u64]) -> u64 {
        let problem = self.all.problem;
        let computes = problem.compute.len();
        let mut chains: Vec<Vec<(u64, u64)>> = vec![Vec::new(); problem.groups];
        for (at, message) in problem.messages.iter().enumerate() {
            let item = computes + at;
            if message.vanishes || !is_in(set, item) {
                continue;
            }
            let mut ns = 0u64;
            for (word, (&one, &other)) in between(item).iter().zip(within).enumerate() {
                let mut bits = one & other;
                while bits != 0 {
                    let other = word * 64 + bits.trailing_zeros() as usize;
                    ns = ns.saturating_add(problem.compute_ns.get(other).copied().unwrap_or(0));
                    bits &= bits - 1;
                }
            }
            chains[message.group as usize].push((ns, message.bytes));
        }
        let mut most = 0;
        for (chain, cost) in chains.iter_mut().zip(&self.costs) {
            let Some(cost) = cost.as_ref().filter(|_| !chain.is_empty()) else { continue };
            chain.sort_unstable();
            let (release_ns, bytes): (Vec<u64>, Vec<u64>) = chain.iter().copied().unzip();
            most = most.max(releases(&release_ns, &bytes, cost).0);
        }
        most
    }
}
