//! Buckets of the sizes that hide best: planned from when gradients become ready and how long messages take.
//!
//! No constant cap is right: the last message is not hidden by anything, so it should be small, and each one before as large
//! as what follows it hides. With times of the first steps and a cost of messages that is an exact plan, of the same code that
//! plans buckets of graphs: [`bucketeer_chain::releases`]. It holds for gradients of one dtype on one stream; where there are
//! several dtypes each planned bucket is cut into one for each.

use crate::assign::{Assignment, Item};
use crate::error::ReducerError;
use crate::layout::items;
use crate::rebuild::share;
use crate::reducer::Reducer;
use crate::shared::Shared;
use crate::timeline::Timeline;
use bucketeer_chain::{MessageCost, releases};
use bucketeer_comm::{CommError, Operands};
use bucketeer_types::{DType, ReduceOp};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Steps that are measured if nothing else is said.
const MEASURED_STEPS: u32 = 3;

/// Messages that are timed: from the smallest, each four times the one before.
const SMALLEST_BYTES: u64 = 1 << 10;

/// The largest message that is timed: behind it, time grows with bytes.
const LARGEST_BYTES: u64 = 64 << 20;

/// How often each is timed; the shortest counts.
const REPEATS: usize = 3;

/// How sizes of buckets are planned. Times are those of marks, on the host: on a device, where marks may run ahead of gradients, a
/// plan is no better than that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How long an all-reduce takes, if that is known: from a profile. Else messages are timed on all ranks, once, which takes
    /// about as long as sending the model four times.
    pub cost: Option<MessageCost>,
    /// How many steps are measured before, after the first rebuild.
    pub measured_steps: u32,
}

impl Default for Fit {
    fn default() -> Self {
        Self { cost: None, measured_steps: MEASURED_STEPS }
    }
}

/// What a plan said, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitReport {
    /// What an all-reduce was taken to cost.
    pub cost: MessageCost,
    /// How long messages were expected to go on after the last gradient.
    pub expected_exposed: Duration,
    /// How long they did, in the mean of the steps since that were waited for; none before the first.
    pub measured_exposed: Option<Duration>,
    /// Steps since.
    pub steps: u32,
}

/// A plan of buckets for gradients that become ready one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Indices of the gradients, by bucket.
    pub buckets: Vec<Vec<usize>>,
    /// When the last message has come, if the first gradient is ready at `ready_ns` of it.
    pub end_ns: u64,
}

/// Plans the buckets of gradients: `items` by parameter, when each is ready, in nanoseconds, and what an all-reduce costs. No plan
/// of buckets in that order ends earlier, if all are of one dtype and none is sparse. Linear, but for a sort.
///
/// ```
/// use bucketeer_chain::{MessageCost, Piece};
/// use bucketeer_reducer::{Item, plan};
/// use bucketeer_types::DType;
///
/// let cost = MessageCost::new(vec![Piece { alpha_ns: 100, ns_per_byte_num: 1, ns_per_byte_den: 1 }])?;
/// let items = [10, 10, 400].map(|bytes| Item { bytes, dtype: DType::F32, device: 0, sparse: false });
/// // The large one comes first, and the two small ones while it is on its way.
/// let plan = plan(&items, &[450, 300, 0], &cost);
/// assert_eq!(plan.buckets, [vec![2], vec![1, 0]]);
/// assert_eq!(plan.end_ns, 620);
/// # Ok::<(), bucketeer_chain::PiecesError>(())
/// ```
#[must_use]
pub fn plan(items: &[Item], ready_ns: &[u64], cost: &MessageCost) -> Plan {
    let count = items.len().min(ready_ns.len());
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| ready_ns[*at]);
    let (sparse, order): (Vec<usize>, Vec<usize>) = order.into_iter().partition(|at| items[*at].sparse);
    let release: Vec<u64> = order.iter().map(|at| ready_ns[*at]).collect();
    let bytes: Vec<u64> = order.iter().map(|at| items[*at].bytes).collect();
    let (end_ns, starts) = releases(&release, &bytes, cost);
    let ends = starts.iter().skip(1).copied().chain([order.len()]);
    let mut buckets = Vec::with_capacity(starts.len());
    for (&start, end) in starts.iter().zip(ends) {
        // One for each kind, in the order in which the kinds come.
        let first = buckets.len();
        let mut kinds: BTreeMap<(DType, u32), usize> = BTreeMap::new();
        for &at in &order[start..end] {
            let bucket = *kinds.entry((items[at].dtype, items[at].device)).or_insert_with(|| {
                buckets.push(Vec::new());
                buckets.len() - 1
            });
            debug_assert!(bucket >= first);
            buckets[bucket].push(at);
        }
    }
    buckets.extend(sparse.into_iter().map(|at| vec![at]));
    Plan { buckets, end_ns }
}

/// What is measured until a plan, and since.
#[derive(Clone, Debug, Default)]
pub struct Fitting {
    /// By parameter, since the first gradient of a step, summed up.
    ready_ns: Vec<u64>,
    steps: u32,
    done: bool,
    report: Option<FitReport>,
    exposed: Duration,
}

impl Fitting {
    /// Adds a step.
    pub fn add(&mut self, timeline: &Timeline) {
        if let Some(report) = &mut self.report {
            if timeline.buckets.iter().any(|bucket| bucket.launched.is_some() && bucket.done.is_none()) {
                // Nobody waited, so nothing is known.
                return;
            }
            report.steps += 1;
            self.exposed += timeline.exposed();
            report.measured_exposed = self.exposed.checked_div(report.steps);
            return;
        }
        let first = timeline.first_mark().unwrap_or_default();
        let last = timeline.last_mark().unwrap_or_default();
        self.ready_ns.resize(timeline.ready.len(), 0);
        for (sum, ready) in self.ready_ns.iter_mut().zip(&timeline.ready) {
            // What was not marked is ready with the last one.
            *sum += ready.unwrap_or(last).saturating_sub(first).as_nanos() as u64;
        }
        self.steps += 1;
    }

    fn mean_ready_ns(&self) -> Vec<u64> {
        self.ready_ns.iter().map(|sum| sum / u64::from(self.steps.max(1))).collect()
    }
}

impl Reducer {
    /// Notes the times of a step, where buckets are to be planned.
    pub(crate) fn note_times(&mut self, timeline: &Timeline) {
        if self.shared.options.caps.fit().is_some() && self.rebuilt {
            self.fitting.add(timeline);
        }
    }

    /// What the plan of buckets said, and what came of it: on the group's first rank, once buckets were planned.
    #[must_use]
    pub const fn fit_report(&self) -> Option<&FitReport> {
        self.fitting.report.as_ref()
    }

    /// Plans buckets on the first rank, when enough steps were measured, and goes over to them on all.
    pub(crate) fn fit_if_due(&mut self) -> Result<(), ReducerError> {
        let shared = self.shared.clone();
        let Some(fit) = shared.options.caps.fit() else { return Ok(()) };
        if !self.rebuilt || self.fitting.done || self.since_rebuild < u64::from(fit.measured_steps.max(1)) {
            return Ok(());
        }
        shared.arrive(true)?;
        let failed = |error| shared.fail(error, self.steps);
        let cost = match &fit.cost {
            Some(cost) => cost.clone(),
            None => self.time_messages().map_err(|error| failed(shared.comm(self.steps, "timed messages", error)))?,
        };
        // Rank 0 may have been without data; then buckets stay as they are.
        let decides = shared.group.rank().0 == 0 && self.fitting.steps > 0;
        let own = decides.then(|| {
            let ready_ns = self.fitting.mean_ready_ns();
            let mut items = items(&shared.params, shared.options.wire.map(|wire| wire.dtype));
            // What is sent counts.
            items.iter_mut().zip(shared.sent.iter()).for_each(|(item, sent)| item.bytes = sent.bytes());
            let plan = plan(&items, &ready_ns, &cost);
            let last = ready_ns.iter().copied().max().unwrap_or(0);
            let expected_exposed = Duration::from_nanos(plan.end_ns.saturating_sub(last));
            let report = FitReport { cost: cost.clone(), expected_exposed, measured_exposed: None, steps: 0 };
            (Assignment { limits_bytes: vec![u64::MAX; plan.buckets.len()], buckets: plan.buckets }, report)
        });
        let (own, report) = own.map_or((None, None), |(own, report)| (Some(own), Some(report)));
        let shown = share(&shared, own, &[u64::MAX], 0, self.steps).map_err(failed)?;
        self.fitting.done = true;
        let Some(assignment) = shown else { return Ok(()) };
        self.lay_out(&assignment).map_err(|error| shared.fail(error, self.steps))?;
        self.fitting.report = report;
        self.note_rebuilt();
        Ok(())
    }

    /// Times all-reduces of several sizes on all ranks together.
    fn time_messages(&self) -> Result<MessageCost, CommError> {
        let shared = &self.shared;
        let total: u64 = shared.sent.iter().filter(|sent| !sent.sparse).map(|sent| sent.bytes()).sum();
        let mut measured = Vec::new();
        let mut bytes = SMALLEST_BYTES;
        loop {
            let took = (0..REPEATS).map(|_| time_one(shared, bytes)).collect::<Result<Vec<_>, _>>()?;
            let least = took.into_iter().min().unwrap_or_default();
            measured.push((bytes, u64::try_from(least.as_nanos()).unwrap_or(u64::MAX)));
            if bytes >= LARGEST_BYTES || bytes >= total {
                return Ok(MessageCost::fit(&measured));
            }
            bytes *= 4;
        }
    }
}

fn time_one(shared: &Shared, bytes: u64) -> Result<Duration, CommError> {
    let failed = |error| CommError::Buffer { site: shared.site("all_reduce"), error };
    let buffer = shared.backend.arena(bytes).and_then(|arena| arena.buffer(0, bytes)).map_err(failed)?;
    // All start together.
    shared.backend.barrier(&shared.group, &shared.call_options())?.wait(None)?;
    let start = Instant::now();
    let operands = Operands::in_place(buffer, DType::F32);
    shared.backend.all_reduce(&shared.group, operands, ReduceOp::Sum.into(), &shared.call_options())?.wait(None)?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer_chain::Piece;

    fn item(bytes: u64, dtype: DType) -> Item {
        Item { bytes, dtype, device: 0, sparse: false }
    }

    fn cost(alpha_ns: u64) -> MessageCost {
        MessageCost::new(vec![Piece { alpha_ns, ns_per_byte_num: 1, ns_per_byte_den: 1 }]).unwrap()
    }

    #[test]
    fn a_plan_is_no_worse_than_any_cap() {
        let items: Vec<Item> = (0..60).map(|at| item(1000 + (at * 7919) % 9000, DType::F32)).collect();
        let ready: Vec<u64> = (0..60u64).map(|at| (60 - at) * 4000).collect();
        let cost = cost(9000);
        let planned = plan(&items, &ready, &cost);
        let order: Vec<usize> = (0..60).rev().collect();
        let mut best = u64::MAX;
        for cap in (0..300_000).step_by(1000) {
            let buckets = crate::assign(&items, &[cap], Some(&order)).unwrap().buckets;
            let mut end = 0;
            for bucket in buckets {
                let bytes = bucket.iter().map(|at| items[*at].bytes).sum();
                end = bucket.iter().map(|at| ready[*at]).max().unwrap().max(end) + cost.ns(bytes);
            }
            best = best.min(end);
        }
        assert!(planned.end_ns < best, "{} is not less than {best}", planned.end_ns);
        let mut all: Vec<usize> = planned.buckets.concat();
        all.sort_unstable();
        assert_eq!(all, (0..60).collect::<Vec<_>>());
    }

    #[test]
    fn buckets_of_a_plan_hold_one_dtype_and_sparse_ones_stand_alone() {
        let mut items = vec![item(8, DType::F32), item(8, DType::F16), item(8, DType::F32), item(8, DType::F16)];
        items.push(Item { sparse: true, ..item(1 << 40, DType::F32) });
        let found = plan(&items, &[4, 3, 2, 1, 0], &cost(1_000_000));
        assert_eq!(found.buckets, [vec![3, 1], vec![2, 0], vec![4]]);
        assert_eq!(plan(&[], &[], &cost(1)), Plan { buckets: Vec::new(), end_ns: 0 });
    }
}
