//! What is launched: buckets in order, stage by stage, and what ranks used.

use super::{Flight, Graph, InStep, Progress, SparseFlight};
use crate::error::ReducerError;
use crate::hook::{HookBucket, HookError, Part, Stage, StageCall};
use crate::options::Unused;
use crate::shared::{Shared, begin_gather, lock};
use crate::sparse::SparseGradient;
use bucketeer_comm::{Buffer, Call, CommError, Op, Operands, Work};
use bucketeer_types::{DType, ReduceOp};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl InStep {
    /// Launches complete buckets that all others before them have been, and after the last one the used map.
    pub(super) fn advance(&self, progress: &mut Progress, now: Duration) -> Result<(), ReducerError> {
        if let Some(error) = &progress.failed {
            return Err(error.clone());
        }
        let launched = self.launch_complete(progress, now);
        launched.map_err(|error| progress.failed.insert(self.shared.fail(error, self.number)).clone())
    }

    pub(super) fn launch_complete(&self, progress: &mut Progress, now: Duration) -> Result<(), ReducerError> {
        let count = self.layout.buckets.len();
        while progress.next < count && self.pending[progress.next].load(Ordering::Acquire) == 0 {
            let bucket = progress.next;
            progress.next += 1;
            self.begin(progress, bucket)?;
            if !matches!(progress.flights[bucket], Flight::Skipped) {
                progress.launched_ns[bucket] = now.as_nanos() as u64;
            }
        }
        if progress.next == count && self.needs_map() && !progress.map_launched {
            self.launch_map(progress)?;
        }
        Ok(())
    }

    /// Whether ranks tell one another what they used.
    pub(super) fn needs_map(&self) -> bool {
        match &self.graph {
            Graph::Dynamic => matches!(self.shared.options.unused, Unused::Average | Unused::Skip),
            Graph::Learning { used_somewhere } => used_somewhere.is_none(),
            Graph::Learned(_) => false,
        }
    }

    pub(super) fn launch_map(&self, progress: &mut Progress) -> Result<(), ReducerError> {
        progress.map_launched = true;
        let used = self.used.iter().map(|used| i32::from(used.load(Ordering::Relaxed)));
        let bytes: Vec<u8> = used.flat_map(i32::to_le_bytes).collect();
        let launched = self.shared.reduce_one(&bytes, DType::I32, ReduceOp::Sum);
        progress.map = Some(launched.map_err(|error| self.shared.comm(self.number, "the used map", error))?);
        Ok(())
    }

    /// `bucket 2 (from parameter 5 (f.bias))`.
    pub(super) fn bucket_name(&self, bucket: usize) -> String {
        let first = self.layout.buckets[bucket].layout.parts.first().map_or(0, |part| part.param);
        format!("bucket {bucket} (from {})", self.shared.named(first))
    }

    pub(super) fn bucket_failed(&self, bucket: usize, error: CommError) -> ReducerError {
        self.shared.comm(self.number, self.bucket_name(bucket), error)
    }

    /// Launches the first stage of a bucket.
    pub(super) fn begin(&self, progress: &mut Progress, bucket: usize) -> Result<(), ReducerError> {
        let what = &self.layout.buckets[bucket];
        // The same on all ranks: what no rank uses, by what each says of this step, or by the first step of a static graph.
        let unused = |part: &Part| match &self.graph {
            Graph::Dynamic => !self.used[part.param].load(Ordering::Relaxed),
            Graph::Learning { .. } => false,
            Graph::Learned(learned) => !learned.used_somewhere[part.param],
        };
        if self.shared.options.unused == Unused::Skip && what.layout.parts.iter().all(unused) {
            progress.flights[bucket] = Flight::Skipped;
            return Ok(());
        }
        if what.sparse {
            return self.begin_sparse(progress, bucket);
        }
        if self.shared.hook.is_some() {
            let stage = self.ask_hook(bucket, None)?;
            return self.apply(progress, bucket, 0, stage);
        }
        let operands = Operands::in_place(what.buffer.clone(), what.layout.dtype);
        let reduction = self.factors()?.reduction;
        let work = self.launch(bucket, Op::AllReduce(reduction), operands)?;
        progress.flights[bucket] = Flight::Running { stage: 0, works: vec![work] };
        Ok(())
    }

    pub(super) fn launch(&self, bucket: usize, op: Op, operands: Operands) -> Result<Work, ReducerError> {
        let call = Call::collective(op, operands);
        let work = self.shared.backend.launch(&self.shared.group, call, &self.shared.call_options());
        work.map_err(|error| self.bucket_failed(bucket, error))
    }

    /// What the hook does with a bucket first, or after a stage. A hook that panics has failed.
    pub(super) fn ask_hook(&self, bucket: usize, after: Option<usize>) -> Result<Stage, ReducerError> {
        let Some(hooked) = &self.shared.hook else { return Ok(Stage::Done) };
        let what = &self.layout.buckets[bucket];
        let seen = HookBucket {
            layout: &what.layout,
            step: self.reduced,
            divisor: self.factors()?.divisor,
            buffer: &what.buffer,
            group: &self.shared.group,
            backend: self.shared.backend.as_ref(),
        };
        let mut hook = lock(&hooked.hook);
        let asked = catch_unwind(AssertUnwindSafe(|| match after {
            None => hook.begin(&seen),
            Some(stage) => hook.next(&seen, stage),
        }));
        let asked = asked.unwrap_or_else(|panic| Err(HookError(format!("it panicked: {}", words(&*panic)).into())));
        asked.map_err(|error| self.hook_failed(bucket, error))
    }

    pub(super) fn hook_failed(&self, bucket: usize, error: impl Into<HookError>) -> ReducerError {
        let first = self.layout.buckets[bucket].layout.parts.first().map_or(0, |part| part.param);
        ReducerError::Hook {
            rank: self.shared.rank(),
            step: self.number,
            bucket,
            first: self.shared.named(first),
            hook: self.shared.hook.as_ref().map_or_else(String::new, |hooked| hooked.name.clone()),
            reason: error.into().0,
        }
    }

    /// Does what a hook wants.
    pub(super) fn apply(
        &self,
        progress: &mut Progress,
        bucket: usize,
        stage: usize,
        wanted: Stage,
    ) -> Result<(), ReducerError> {
        let what = &self.layout.buckets[bucket];
        progress.flights[bucket] = match wanted {
            Stage::Calls(calls) => {
                let launch = |wanted: StageCall| {
                    let group = wanted.group.as_ref().unwrap_or(&self.shared.group);
                    if wanted.group.is_some() {
                        self.shared.note_beside(group);
                    }
                    self.shared.backend.launch(group, wanted.call, &self.shared.call_options())
                };
                let works = calls.into_iter().map(launch).collect::<Result<_, _>>();
                let works = works.map_err(|error| match error {
                    CommError::Invalid { .. } | CommError::Buffer { .. } => {
                        self.hook_failed(bucket, format!("a call of it cannot be made: {error}"))
                    }
                    error => self.bucket_failed(bucket, error),
                })?;
                Flight::Running { stage, works }
            }
            Stage::Done => Flight::Done,
            Stage::DoneIn(result) => {
                let (found, wanted) = (result.bytes(), what.buffer.bytes());
                if found != wanted {
                    let reason = format!("its result has {found} bytes, the bucket {wanted}");
                    return Err(self.hook_failed(bucket, reason));
                }
                if result != what.buffer {
                    let copied =
                        result.read().and_then(|from| what.buffer.write().map(|mut to| to.copy_from_slice(&from)));
                    copied.map_err(|error| self.hook_failed(bucket, error))?;
                }
                Flight::Done
            }
        };
        Ok(())
    }

    pub(super) fn begin_sparse(&self, progress: &mut Progress, bucket: usize) -> Result<(), ReducerError> {
        let param = self.layout.buckets[bucket].layout.parts[0].param;
        let rows = progress.sparse_in.get(&param).map_or(0, |gradient| gradient.rows.len() as u64);
        let (counts, work) = self.gather(bucket, &rows.to_le_bytes(), DType::I64)?;
        progress.sparse_flights.insert(bucket, SparseFlight::Counts(counts));
        progress.flights[bucket] = Flight::Running { stage: 0, works: vec![work] };
        Ok(())
    }

    /// Begins to gather this rank's bytes and the others'.
    pub(super) fn gather(&self, bucket: usize, bytes: &[u8], dtype: DType) -> Result<(Buffer, Work), ReducerError> {
        let Shared { backend, group, .. } = &*self.shared;
        begin_gather(backend.as_ref(), group, bytes, dtype, &self.shared.call_options())
            .map_err(|error| self.bucket_failed(bucket, error))
    }

    pub(super) fn next_sparse(&self, progress: &mut Progress, bucket: usize, stage: usize) -> Result<(), ReducerError> {
        let param = self.layout.buckets[bucket].layout.parts[0].param;
        let what = &self.shared.params[param];
        let read = |buffer: &Buffer| buffer.read().map_err(|error| self.shared.buffer(error));
        match progress.sparse_flights.remove(&bucket) {
            Some(SparseFlight::Counts(counts)) => {
                let count = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) as usize;
                let counts: Vec<usize> = read(&counts)?.as_chunks::<8>().0.iter().map(count).collect();
                let most = counts.iter().copied().max().unwrap_or(0);
                let rows = what.shape().first().copied().unwrap_or(0);
                if most as u64 > rows {
                    let reason = format!("a rank says that it has {most} rows of a parameter of {rows}");
                    return Err(self.refuse(param, reason));
                }
                if most == 0 {
                    progress.sparse_out.insert(param, SparseGradient::default());
                    progress.flights[bucket] = Flight::Done;
                    return Ok(());
                }
                let (rows, values) = progress.sparse_in.remove(&param).unwrap_or_default().padded(what, most);
                let (rows, first) = self.gather(bucket, &rows, DType::I64)?;
                let (values, second) = self.gather(bucket, &values, self.shared.sent[param].dtype)?;
                progress.sparse_flights.insert(bucket, SparseFlight::Rows { counts, rows, values });
                progress.flights[bucket] = Flight::Running { stage: stage + 1, works: vec![first, second] };
            }
            Some(SparseFlight::Rows { counts, rows, values }) => {
                let sum = SparseGradient::of_ranks(what, &counts, &read(&rows)?, &read(&values)?);
                progress.sparse_out.insert(param, sum);
                progress.flights[bucket] = Flight::Done;
            }
            None => progress.flights[bucket] = Flight::Done,
        }
        Ok(())
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}
