//! Buckets made again, in the order in which gradients became ready, the same on all ranks.

use crate::assign::{Assignment, assign};
use crate::error::ReducerError;
use crate::layout::{Layout, items};
use crate::options::SmallBucket;
use crate::reducer::Reducer;
use crate::shared::Shared;
use bucketeer_types::DType;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long gradients on a device may take to move to other slots, if options give no timeout: as long as a collective.
const MOVE_LIMIT: Duration = Duration::from_secs(600);

/// What another rank sent is no assignment.
const NOT_OURS: &str = "the buckets that came from another rank do not hold each parameter once";

impl Reducer {
    /// Whether the next reduced step makes the buckets again.
    fn is_due(&self) -> bool {
        let wanted = if self.shared.options.static_graph { 2 } else { 1 };
        self.shared.options.rebuilds() && !self.rebuilt && self.reduced >= wanted
    }

    /// Makes the buckets again in the ready order of the first rank that has one: a rank that never had data has none.
    pub(crate) fn rebuild_if_due(&mut self) -> Result<(), ReducerError> {
        self.take_memory().map_err(|error| self.shared.fail(error, self.steps))?;
        self.shared.arrive(false)?;
        if !self.is_due() {
            return self.fit_if_due();
        }
        let shared = self.shared.clone();
        shared.arrive(true)?;
        let failed = |error| shared.fail(error, self.steps);
        let own = match &self.order {
            Some(order) => Some(self.by_order(order)?),
            None => None,
        };
        let caps = shared.options.caps.list();
        let mut root = 0;
        let assignment = loop {
            match share(&shared, own.clone(), &caps, root, self.steps).map_err(failed)? {
                Some(assignment) => break assignment,
                None if root + 1 < shared.group.size() => root += 1,
                // No rank had a step. They all try again after the next one.
                None => return Ok(()),
            }
        };
        self.lay_out(&assignment).map_err(|error| shared.fail(error, self.steps))?;
        self.rebuilt = true;
        self.note_rebuilt();
        Ok(())
    }

    /// Notes that there are other buckets.
    pub(crate) fn note_rebuilt(&mut self) {
        self.since_rebuild = 0;
        self.gathered.rebuilt_bucket_bytes = Some(self.bucket_bytes());
    }

    pub(crate) fn bucket_bytes(&self) -> Vec<u64> {
        self.layout.buckets.iter().map(|bucket| bucket.gradient_bytes).collect()
    }

    /// The assignment for a ready order.
    fn by_order(&self, order: &[usize]) -> Result<Assignment, ReducerError> {
        let options = &self.shared.options;
        let items = items(&self.shared.params, options.wire.map(|wire| wire.dtype));
        let last = options.small_bucket == SmallBucket::Last;
        let order: Vec<usize> = if last { order.iter().rev().copied().collect() } else { order.to_vec() };
        let assignment = assign(&items, &options.caps.list(), Some(&order));
        let mut assignment = assignment.map_err(|error| ReducerError::Assign { rank: self.shared.rank(), error })?;
        if last {
            assignment.buckets.reverse();
            assignment.limits_bytes.reverse();
        }
        Ok(assignment)
    }

    /// Goes over to other buckets in the same memory. What slots hold moves along if it is somebody's.
    pub(crate) fn lay_out(&mut self, assignment: &Assignment) -> Result<(), ReducerError> {
        let shared = &self.shared;
        let buffer = |error| shared.buffer(error);
        let moves = self.accumulated.holds_any();
        let arena = match &shared.device {
            // Moves inside of one allocation are the host's.
            Some(_) if moves => shared.arena()?,
            _ => self.layout.arena.clone(),
        };
        let generation = self.layout.generation + 1;
        let next = Layout::new(assignment, &shared.params, &shared.sent, arena, generation).map_err(buffer)?;
        match &shared.device {
            _ if !moves => {}
            None => self.layout.move_to(&next).map_err(buffer)?,
            Some(device) => {
                let limit = shared.options.timeout.unwrap_or(MOVE_LIMIT);
                device.move_slots(&self.layout, &next, limit).map_err(|reason| shared.device_failed(reason))?;
            }
        }
        self.layout = Arc::new(next);
        self.tell_hook();
        Ok(())
    }
}

/// The assignment of one rank for all: indices in the order of buckets and the number of these, then their sizes, as c10d
/// sends them. `None` if that rank has none. Limits are by this rank's own caps.
pub fn share(
    shared: &Shared,
    own: Option<Assignment>,
    caps: &[u64],
    root: usize,
    step: u64,
) -> Result<Option<Assignment>, ReducerError> {
    let params = shared.params.len();
    let bytes = |numbers: Vec<i32>| numbers.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    let numbers =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|one| i32::from_le_bytes(*one)).collect::<Vec<_>>();
    // All are below 2^31, as there are not more parameters.
    let number = |number: usize| number as i32;
    let mut list = vec![-1; params + 1];
    if let Some(own) = &own {
        for (to, from) in list.iter_mut().zip(own.buckets.iter().flatten()) {
            *to = number(*from);
        }
        list[params] = number(own.buckets.len());
    }
    let list = numbers(&shared.broadcast(&bytes(list), DType::I32, root, "the order of the rebuild", step)?);
    let Ok(count @ 1..) = usize::try_from(list[params]) else { return Ok(None) };
    let mut sizes = vec![0; count];
    for (size, bucket) in sizes.iter_mut().zip(own.iter().flat_map(|own| &own.buckets)) {
        *size = number(bucket.len());
    }
    let sizes = numbers(&shared.broadcast(&bytes(sizes), DType::I32, root, "the sizes of the rebuild", step)?);
    let mut rest = &list[..params];
    let mut buckets = Vec::with_capacity(count);
    for size in sizes {
        let cut = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
        let (bucket, others) = cut.ok_or_else(|| shared.invalid(NOT_OURS))?;
        rest = others;
        buckets.push(bucket.iter().map(|index| *index as usize).collect::<Vec<_>>());
    }
    let mut all = buckets.concat();
    all.sort_unstable();
    if !all.into_iter().eq(0..params) {
        return Err(shared.invalid(NOT_OURS));
    }
    let limits_bytes = limits(shared, &buckets, caps);
    Ok(Some(Assignment { buckets, limits_bytes }))
}

/// The cap in force for each bucket: buckets of a kind take one after the other, those that are left over, too.
fn limits(shared: &Shared, buckets: &[Vec<usize>], caps: &[u64]) -> Vec<u64> {
    let items = items(&shared.params, shared.options.wire.map(|wire| wire.dtype));
    let last = caps.last().copied().unwrap_or(u64::MAX);
    let mut used: BTreeMap<(DType, u32), usize> = BTreeMap::new();
    let mut limit = |bucket: &Vec<usize>| match bucket.first().and_then(|param| items.get(*param)) {
        Some(item) if !item.sparse => {
            let nth = used.entry((item.dtype, item.device)).or_default();
            *nth += 1;
            caps.get(*nth - 1).copied().unwrap_or(last)
        }
        _ => 0,
    };
    if shared.options.small_bucket == SmallBucket::Last {
        let mut limits: Vec<u64> = buckets.iter().rev().map(&mut limit).collect();
        limits.reverse();
        return limits;
    }
    buckets.iter().map(limit).collect()
}
