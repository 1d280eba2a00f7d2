//! A step while gradients come: who is marked, and what is launched when.

use crate::copy::{self, Change};
use crate::error::ReducerError;
use crate::factors::{FactorCell, Factors};
use crate::hook::{HookBucket, HookError, Stage};
use crate::layout::Layout;
use crate::options::Unused;
use crate::param::{real, same_order};
use crate::shared::{Shared, lock};
use crate::sparse::SparseGradient;
use bucketeer_comm::{Arena, Buffer, BufferError, CommError, Op, Operands, Work};
use bucketeer_types::{DType, ReduceOp};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A parameter that was not marked.
const NEVER: u64 = u64::MAX;

/// What a step knows of static graphs.
#[derive(Clone)]
pub enum Graph {
    /// Each parameter is marked once, or not at all.
    Dynamic,
    /// Marks are counted; all is launched at the end. What any rank uses is known if this one had no data in the first
    /// step.
    Learning { used_somewhere: Option<Arc<[bool]>> },
    /// Parameters are ready at their last mark.
    Learned(Arc<Learned>),
}

/// What the first step of a static graph was.
#[derive(Debug)]
pub struct Learned {
    /// Marks of each parameter.
    pub marks: Vec<u32>,
    /// Whether any rank used it.
    pub used_somewhere: Arc<[bool]>,
}

/// What local steps left behind for the next reduced one.
pub struct Accumulated {
    /// Which slots hold something.
    pub slots: Vec<AtomicBool>,
    /// Gradients that have no slot of their own dtype.
    pub aside: Mutex<BTreeMap<usize, Vec<u8>>>,
    /// Sparse ones.
    pub sparse: Mutex<BTreeMap<usize, SparseGradient>>,
    /// Whether a slot was ever marked as written in place, so that what slots hold is somebody's.
    pub in_place: AtomicBool,
}

impl Accumulated {
    pub fn new(params: usize) -> Self {
        let slots = (0..params).map(|_| AtomicBool::new(false)).collect();
        Self { slots, aside: Mutex::default(), sparse: Mutex::default(), in_place: AtomicBool::new(false) }
    }

    /// Whether there is something of a parameter.
    fn has(&self, param: usize) -> bool {
        self.slots[param].load(Ordering::Relaxed)
    }

    /// Whether what slots hold between steps is somebody's.
    pub fn holds_any(&self) -> bool {
        self.in_place.load(Ordering::Relaxed) || self.slots.iter().any(|slot| slot.load(Ordering::Relaxed))
    }

    pub fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(false, Ordering::Relaxed));
        lock(&self.aside).clear();
        lock(&self.sparse).clear();
    }
}

/// A bucket's way.
enum Flight {
    Waiting,
    /// Calls of a stage are in flight.
    Running {
        stage: usize,
        works: Vec<Work>,
    },
    Done,
    /// Nothing of it is used anywhere.
    Skipped,
}

/// Rows of a sparse bucket on their way.
enum SparseFlight {
    Counts(Buffer),
    Rows { counts: Vec<usize>, rows: Buffer, values: Buffer },
}

/// What is launched so far. Locked by whoever completes a bucket.
#[derive(Default)]
pub struct Progress {
    flights: Vec<Flight>,
    /// The first bucket that is not launched.
    next: usize,
    map: Option<(Buffer, Work)>,
    map_launched: bool,
    sparse_in: BTreeMap<usize, SparseGradient>,
    sparse_flights: BTreeMap<usize, SparseFlight>,
    pub sparse_out: BTreeMap<usize, SparseGradient>,
    /// What was in slots that were filled with zeros.
    saved: Vec<(usize, Vec<u8>)>,
    failed: Option<ReducerError>,
    /// The last mark that was refused.
    refused: Option<Arc<str>>,
    pub first_launch: Option<Duration>,
    pub last_launch: Option<Duration>,
}

/// One step of a reducer.
pub struct InStep {
    pub shared: Arc<Shared>,
    pub layout: Arc<Layout>,
    pub number: u64,
    pub graph: Graph,
    pub accumulated: Arc<Accumulated>,
    factors: FactorCell,
    /// When it began.
    pub start: Instant,
    /// Marks of each parameter.
    marks: Vec<AtomicU32>,
    /// Whether a gradient came.
    used: Vec<AtomicBool>,
    /// Parameters of each bucket that are not ready.
    pending: Vec<AtomicU32>,
    /// Which parameter became ready how late: nanoseconds since the start.
    ready_ns: Vec<AtomicU64>,
    /// And as which one.
    ready_place: Vec<AtomicU64>,
    places: AtomicU64,
    /// Marks of other strides than the parameter's.
    pub reordered: AtomicU64,
    /// Whether the step is over. Marks hold it to read.
    closed: RwLock<bool>,
    primed: OnceLock<Result<(), ReducerError>>,
    pub progress: Mutex<Progress>,
}

/// What a mark may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// The gradient is final.
    Take,
    /// More marks of it come.
    Count,
}

impl InStep {
    pub fn new(
        shared: Arc<Shared>,
        layout: Arc<Layout>,
        number: u64,
        graph: Graph,
        accumulated: Arc<Accumulated>,
        factors: FactorCell,
    ) -> Self {
        let params = shared.params.len();
        let of_bucket = |bucket: &crate::layout::Bucket| AtomicU32::new(bucket.layout.parts.len() as u32);
        let pending = layout.buckets.iter().map(of_bucket).collect();
        let flights = layout.buckets.iter().map(|_| Flight::Waiting).collect();
        Self {
            marks: (0..params).map(|_| AtomicU32::new(0)).collect(),
            used: (0..params).map(|_| AtomicBool::new(false)).collect(),
            ready_ns: (0..params).map(|_| AtomicU64::new(NEVER)).collect(),
            ready_place: (0..params).map(|_| AtomicU64::new(NEVER)).collect(),
            pending,
            places: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            closed: RwLock::new(false),
            primed: OnceLock::new(),
            progress: Mutex::new(Progress { flights, ..Progress::default() }),
            start: Instant::now(),
            shared,
            layout,
            number,
            graph,
            accumulated,
            factors,
        }
    }

    fn refuse(&self, param: usize, reason: impl Into<String>) -> ReducerError {
        let param = self.shared.named(param);
        ReducerError::Mark { rank: self.shared.rank(), step: self.number, param, reason: reason.into() }
    }

    fn refuse_buffer(&self, param: usize, error: &BufferError) -> ReducerError {
        self.refuse(param, error.to_string())
    }

    /// Notes a mark that was refused, for the error of a step that is given up after it.
    fn noted<T>(&self, result: Result<T, ReducerError>) -> Result<T, ReducerError> {
        if let Err(error @ ReducerError::Mark { .. }) = &result {
            lock(&self.progress).refused = Some(error.to_string().into());
        }
        result
    }

    fn factors(&self) -> Result<Factors, ReducerError> {
        self.factors.get(&self.shared, self.number)
    }

    /// Runs a mark while the step is open.
    fn mark(&self, param: usize, body: impl FnOnce() -> Result<(), ReducerError>) -> Result<(), ReducerError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if param >= self.shared.params.len() {
            let count = self.shared.params.len();
            return self.noted(Err(self.refuse(param, format!("there are {count} parameters, from 0"))));
        }
        if *closed {
            return Err(self.refuse(param, "the step is over; begin another one before backward runs"));
        }
        let prime = || self.prime();
        self.primed.get_or_init(prime).clone()?;
        self.noted(body())
    }

    /// What is to be done before the first mark: parameters that a static graph does not use here are ready.
    fn prime(&self) -> Result<(), ReducerError> {
        let Graph::Learned(learned) = &self.graph else { return Ok(()) };
        for (param, _) in learned.marks.iter().enumerate().filter(|(_, marks)| **marks == 0) {
            self.leave_out(param)?;
            self.completes(param);
        }
        Ok(())
    }

    /// Takes a parameter, or says why it cannot be.
    fn claim(&self, param: usize) -> Result<Claim, ReducerError> {
        let marks = &self.marks[param];
        match &self.graph {
            Graph::Dynamic => match marks.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Ok(Claim::Take),
                Err(_) => Err(self.refuse(
                    param,
                    "it is marked a second time in this step. It is used outside of the model's forward, or by two \
                     checkpoints that run backward on their own, or was declared unused and is used. Where every step \
                     marks it equally often, make the reducer with a static graph",
                )),
            },
            Graph::Learning { .. } => {
                marks.fetch_add(1, Ordering::AcqRel);
                Ok(Claim::Take)
            }
            Graph::Learned(learned) => {
                let (before, wanted) = (marks.fetch_add(1, Ordering::AcqRel), learned.marks[param]);
                if before < wanted {
                    return Ok(if before + 1 == wanted { Claim::Take } else { Claim::Count });
                }
                marks.fetch_sub(1, Ordering::AcqRel);
                let found = before + 1;
                Err(self.refuse(
                    param,
                    format!(
                        "it is marked {found} times in this step, and was {wanted} times in the first one. The graph has \
                         changed, so it is not static: make the reducer without"
                    ),
                ))
            }
        }
    }

    fn give_back(&self, param: usize) {
        self.marks[param].fetch_sub(1, Ordering::AcqRel);
    }

    /// A gradient of `bytes`, in the order of the parameter's own strides unless others are given.
    pub fn ready(&self, param: usize, bytes: &[u8], strides: Option<&[u64]>) -> Result<(), ReducerError> {
        self.mark(param, || {
            let what = &self.shared.params[param];
            if what.is_sparse() {
                return Err(self.refuse(param, "it was declared sparse: give rows and values"));
            }
            let place = what.place_strides();
            let width = what.dtype().bytes() as usize;
            let ordered = match strides {
                Some(strides) if strides.len() != place.len() || !same_order(what.shape(), strides, &place) => {
                    self.reordered.fetch_add(1, Ordering::Relaxed);
                    let ordered = copy::in_order(bytes, width, what.shape(), strides, &place);
                    Some(ordered.map_err(|reason| self.refuse(param, reason))?)
                }
                _ => None,
            };
            let bytes = ordered.as_deref().unwrap_or(bytes);
            if bytes.len() as u64 != what.bytes() {
                let found = bytes.len();
                return Err(self.refuse(param, format!("its gradient has {found} bytes; {what} has {}", what.bytes())));
            }
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                self.take(param, bytes).inspect_err(|_| self.give_back(param))?;
            }
            self.is_ready(param, claim, true)
        })
    }

    /// Copies a gradient into its slot, on top of what local steps left there.
    fn take(&self, param: usize, bytes: &[u8]) -> Result<(), ReducerError> {
        let factors = self.factors()?;
        let from = real(self.shared.params[param].dtype()).map_or(DType::F32, |(dtype, _)| dtype);
        let change = Change { from, to: self.shared.sent[param].dtype, factor: factors.copy };
        let slot = &self.layout.places[param].slot;
        let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
        if !self.accumulated.has(param) {
            change.put(bytes, &mut target);
        } else if let Some(sum) = lock(&self.accumulated.aside).get_mut(&param) {
            copy::add(from, bytes, sum);
            change.put(sum, &mut target);
        } else {
            copy::add(from, bytes, &mut target);
            copy::scale(from, factors.copy, &mut target);
        }
        Ok(())
    }

    /// A gradient that is in the slot.
    pub fn ready_in_place(&self, param: usize) -> Result<(), ReducerError> {
        self.mark(param, || {
            self.check_in_place(param)?;
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                self.accumulated.in_place.store(true, Ordering::Relaxed);
                let scaled = self.factors().and_then(|factors| {
                    if factors.copy.is_none() {
                        return Ok(());
                    }
                    let slot = &self.layout.places[param].slot;
                    let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
                    copy::scale(self.shared.sent[param].dtype, factors.copy, &mut target);
                    Ok(())
                });
                scaled.inspect_err(|_| self.give_back(param))?;
            }
            self.is_ready(param, claim, true)
        })
    }

    /// Whether a parameter's slot holds its gradient as it is.
    pub fn check_in_place(&self, param: usize) -> Result<(), ReducerError> {
        let what = &self.shared.params[param];
        if what.is_sparse() {
            return Err(
                self.refuse(param, "it was declared sparse, so it has no place in a bucket: give rows and values")
            );
        }
        if real(what.dtype()).map(|(dtype, _)| dtype) != Some(self.shared.sent[param].dtype) {
            let wire = self.shared.sent[param].dtype.short_name();
            return Err(self.refuse(param, format!("its bucket holds {wire}: give the gradient itself")));
        }
        Ok(())
    }

    /// A sparse gradient.
    pub fn ready_sparse(&self, param: usize, rows: &[u64], values: &[u8]) -> Result<(), ReducerError> {
        self.mark(param, || {
            let what = &self.shared.params[param];
            if !what.is_sparse() {
                return Err(self.refuse(param, "it was not declared sparse: give a dense gradient, or declare it"));
            }
            let factor = self.factors()?.sparse;
            let gradient = SparseGradient::new(what, rows, values, factor);
            let mut gradient = gradient.map_err(|reason| self.refuse(param, reason))?;
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                if let Some(mut sum) = lock(&self.accumulated.sparse).remove(&param) {
                    copy::scale(self.shared.sent[param].dtype, factor, &mut sum.values);
                    sum.add(what, &gradient);
                    gradient = sum;
                }
                lock(&self.progress).sparse_in.insert(param, gradient);
            }
            self.is_ready(param, claim, true)
        })
    }

    /// No gradient comes in this step.
    pub fn unused(&self, param: usize) -> Result<(), ReducerError> {
        self.mark(param, || {
            if !self.shared.options.allows_unused() || !matches!(self.graph, Graph::Dynamic) {
                let reason = "it was declared unused, which this reducer learns by itself or does not allow; say in its \
                              options what becomes of unused parameters";
                return Err(self.refuse(param, reason));
            }
            let claim = self.claim(param)?;
            self.leave_out(param).inspect_err(|_| self.give_back(param))?;
            self.is_ready(param, claim, false)
        })
    }

    /// Gives zeros, or what local steps left.
    fn leave_out(&self, param: usize) -> Result<(), ReducerError> {
        let what = &self.shared.params[param];
        if what.is_sparse() {
            let mut left = lock(&self.accumulated.sparse).remove(&param);
            if let Some(left) = &mut left {
                self.used[param].store(true, Ordering::Relaxed);
                copy::scale(self.shared.sent[param].dtype, self.factors()?.sparse, &mut left.values);
            }
            lock(&self.progress).sparse_in.insert(param, left.unwrap_or_default());
            return Ok(());
        }
        let factors = self.factors()?;
        let slot = &self.layout.places[param].slot;
        let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
        if !self.accumulated.has(param) {
            if self.accumulated.in_place.load(Ordering::Relaxed) {
                lock(&self.progress).saved.push((param, target.to_vec()));
            }
            target.fill(0);
            return Ok(());
        }
        self.used[param].store(true, Ordering::Relaxed);
        let from = real(what.dtype()).map_or(DType::F32, |(dtype, _)| dtype);
        match lock(&self.accumulated.aside).get(&param) {
            Some(sum) => {
                Change { from, to: self.shared.sent[param].dtype, factor: factors.copy }.put(sum, &mut target);
            }
            None => copy::scale(from, factors.copy, &mut target),
        }
        Ok(())
    }

    /// Notes that a parameter was marked, and launches what that completes.
    fn is_ready(&self, param: usize, claim: Claim, used: bool) -> Result<(), ReducerError> {
        let now = self.start.elapsed();
        // 584 years fit.
        self.ready_ns[param].store(now.as_nanos() as u64, Ordering::Relaxed);
        if used {
            self.used[param].store(true, Ordering::Relaxed);
        }
        let learning = matches!(self.graph, Graph::Learning { .. });
        if !learning && claim == Claim::Take && self.completes(param) {
            let mut progress = lock(&self.progress);
            self.advance(&mut progress, now)?;
        }
        Ok(())
    }

    /// Counts a parameter as ready; whether its bucket is complete with it.
    fn completes(&self, param: usize) -> bool {
        self.ready_place[param].store(self.places.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.pending[self.layout.places[param].bucket].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Launches complete buckets that all others before them have been, and after the last one the used map.
    fn advance(&self, progress: &mut Progress, now: Duration) -> Result<(), ReducerError> {
        if let Some(error) = &progress.failed {
            return Err(error.clone());
        }
        let launched = self.launch_complete(progress, now);
        launched.map_err(|error| progress.failed.insert(self.shared.fail(error, self.number)).clone())
    }

    fn launch_complete(&self, progress: &mut Progress, now: Duration) -> Result<(), ReducerError> {
        let count = self.layout.buckets.len();
        while progress.next < count && self.pending[progress.next].load(Ordering::Acquire) == 0 {
            let bucket = progress.next;
            progress.next += 1;
            self.begin(progress, bucket)?;
            progress.first_launch.get_or_insert(now);
            progress.last_launch = Some(now);
        }
        if progress.next == count && self.needs_map() && !progress.map_launched {
            self.launch_map(progress)?;
        }
        Ok(())
    }

    /// Whether ranks tell one another what they used.
    fn needs_map(&self) -> bool {
        match &self.graph {
            Graph::Dynamic => matches!(self.shared.options.unused, Unused::Average | Unused::Skip),
            Graph::Learning { used_somewhere } => used_somewhere.is_none(),
            Graph::Learned(_) => false,
        }
    }

    fn launch_map(&self, progress: &mut Progress) -> Result<(), ReducerError> {
        progress.map_launched = true;
        let used = self.used.iter().map(|used| i32::from(used.load(Ordering::Relaxed)));
        let bytes: Vec<u8> = used.flat_map(i32::to_le_bytes).collect();
        let launched = self.shared.reduce_one(&bytes, DType::I32, ReduceOp::Sum);
        progress.map = Some(launched.map_err(|error| self.shared.comm(self.number, "the used map", error))?);
        Ok(())
    }

    /// `bucket 2 (from parameter 5 (f.bias))`.
    fn bucket_name(&self, bucket: usize) -> String {
        let first = self.layout.buckets[bucket].layout.parts.first().map_or(0, |part| part.param);
        format!("bucket {bucket} (from {})", self.shared.named(first))
    }

    fn bucket_failed(&self, bucket: usize, error: CommError) -> ReducerError {
        self.shared.comm(self.number, self.bucket_name(bucket), error)
    }

    /// Launches the first stage of a bucket.
    fn begin(&self, progress: &mut Progress, bucket: usize) -> Result<(), ReducerError> {
        let what = &self.layout.buckets[bucket];
        let unused = |part: &crate::hook::Part| !self.used[part.param].load(Ordering::Relaxed);
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

    fn launch(&self, bucket: usize, op: Op, operands: Operands) -> Result<Work, ReducerError> {
        let call = bucketeer_comm::Call::collective(op, operands);
        let work = self.shared.backend.launch(&self.shared.group, call, &self.shared.call_options());
        work.map_err(|error| self.bucket_failed(bucket, error))
    }

    /// What the hook does with a bucket first, or after a stage. A hook that panics has failed.
    fn ask_hook(&self, bucket: usize, after: Option<usize>) -> Result<Stage, ReducerError> {
        let Some(hooked) = &self.shared.hook else { return Ok(Stage::Done) };
        let what = &self.layout.buckets[bucket];
        let seen = HookBucket {
            layout: &what.layout,
            step: self.number,
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

    fn hook_failed(&self, bucket: usize, error: impl Into<HookError>) -> ReducerError {
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
    fn apply(&self, progress: &mut Progress, bucket: usize, stage: usize, wanted: Stage) -> Result<(), ReducerError> {
        let what = &self.layout.buckets[bucket];
        progress.flights[bucket] = match wanted {
            Stage::Calls(calls) => {
                let launch = |wanted: crate::hook::StageCall| {
                    let group = wanted.group.as_ref().unwrap_or(&self.shared.group);
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

    fn begin_sparse(&self, progress: &mut Progress, bucket: usize) -> Result<(), ReducerError> {
        let param = self.layout.buckets[bucket].layout.parts[0].param;
        let rows = progress.sparse_in.get(&param).map_or(0, |gradient| gradient.rows.len() as u64);
        let (counts, work) = self.gather(bucket, &rows.to_le_bytes(), DType::I64)?;
        progress.sparse_flights.insert(bucket, SparseFlight::Counts(counts));
        progress.flights[bucket] = Flight::Running { stage: 0, works: vec![work] };
        Ok(())
    }

    /// Begins to gather this rank's bytes and the others'.
    fn gather(&self, bucket: usize, bytes: &[u8], dtype: DType) -> Result<(Buffer, Work), ReducerError> {
        let len = bytes.len() as u64;
        let place = u64::from(self.shared.group.rank().0);
        let memory = || {
            let arena = Arena::new(len.saturating_mul(self.shared.group.size() as u64))?;
            let whole = arena.buffer(0, arena.bytes())?;
            let own = whole.part(place * len, len)?;
            own.write()?.copy_from_slice(bytes);
            Ok((own, whole))
        };
        let (own, whole) = memory().map_err(|error| self.shared.buffer(error))?;
        let work = self.launch(bucket, Op::AllGather, Operands::new(own, whole.clone(), dtype))?;
        Ok((whole, work))
    }

    fn next_sparse(&self, progress: &mut Progress, bucket: usize, stage: usize) -> Result<(), ReducerError> {
        let param = self.layout.buckets[bucket].layout.parts[0].param;
        let what = &self.shared.params[param];
        let read = |buffer: &Buffer| buffer.read().map_err(|error| self.shared.buffer(error));
        match progress.sparse_flights.remove(&bucket) {
            Some(SparseFlight::Counts(counts)) => {
                let count = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) as usize;
                let counts: Vec<usize> = read(&counts)?.as_chunks::<8>().0.iter().map(count).collect();
                let most = counts.iter().copied().max().unwrap_or(0);
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

    /// Ends the step: no mark is taken from here on, what is not marked is missing or left out, and all is launched. Then
    /// waits, bucket by bucket; `done` is called for each in order.
    pub fn finish(&self, mut done: impl FnMut(usize, &Progress)) -> Result<Ended, ReducerError> {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.primed.get_or_init(|| self.prime()).clone()?;
        self.settle()?;
        let mut progress = lock(&self.progress);
        let now = self.start.elapsed();
        let ended = self.end(&mut progress, now, &mut done);
        ended.map_err(|error| progress.failed.get_or_insert_with(|| self.shared.fail(error, self.number)).clone())
    }

    /// Takes part without gradients, but for what local steps left.
    pub fn shadow(&self) -> Result<Ended, ReducerError> {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        for param in 0..self.shared.params.len() {
            self.leave_out(param)?;
            // A graph that is being learned is completed below.
            if !matches!(self.graph, Graph::Learning { .. }) {
                self.completes(param);
            }
        }
        let mut progress = lock(&self.progress);
        let now = self.start.elapsed();
        let ended = self.end(&mut progress, now, &mut |_, _| {});
        ended.map_err(|error| progress.failed.get_or_insert_with(|| self.shared.fail(error, self.number)).clone())
    }

    /// Parameters that nobody marked.
    fn settle(&self) -> Result<(), ReducerError> {
        if let Some(error) = lock(&self.progress).failed.clone() {
            return Err(error);
        }
        let marked = |param: usize| self.marks[param].load(Ordering::Acquire);
        let all = 0..self.shared.params.len();
        let (missing, way_out): (Vec<usize>, _) = match &self.graph {
            Graph::Learned(learned) => (
                all.filter(|param| marked(*param) < learned.marks[*param]).collect(),
                "the first step marked it, so the graph is not static: make the reducer without",
            ),
            Graph::Dynamic if !self.shared.options.allows_unused() => (
                all.filter(|param| marked(*param) == 0).collect(),
                "the model did not use it, or an output of it was left out of the loss: say in the options what becomes \
                 of unused parameters, or use all",
            ),
            _ => {
                for param in all.filter(|param| marked(*param) == 0) {
                    self.leave_out(param)?;
                    if let Graph::Dynamic = self.graph {
                        self.completes(param);
                    }
                }
                return Ok(());
            }
        };
        if missing.is_empty() {
            return Ok(());
        }
        let params = missing.into_iter().map(|param| self.shared.named(param)).collect();
        let error = ReducerError::Missing { rank: self.shared.rank(), step: self.number, params, way_out };
        let error = self.shared.fail(error, self.number);
        lock(&self.progress).failed = Some(error.clone());
        Err(error)
    }

    fn end(
        &self,
        progress: &mut Progress,
        now: Duration,
        done: &mut dyn FnMut(usize, &Progress),
    ) -> Result<Ended, ReducerError> {
        if let Graph::Learning { .. } = self.graph {
            // The map comes first, as what is unused is part of what is learned.
            if self.needs_map() {
                self.launch_map(progress)?;
            }
            for param in 0..self.shared.params.len() {
                self.completes(param);
            }
        }
        self.launch_complete(progress, now)?;
        let used_somewhere = match self.early_map() {
            true => self.read_map(progress)?,
            false => None,
        };
        let count = self.layout.buckets.len();
        let (mut ended, mut stage) = (0, 0);
        while ended < count {
            for bucket in 0..count {
                self.wait(progress, bucket, stage)?;
                let is_done = matches!(progress.flights[bucket], Flight::Done | Flight::Skipped);
                if is_done && bucket == ended {
                    ended += 1;
                    done(bucket, progress);
                }
            }
            stage += 1;
        }
        let used_somewhere = match used_somewhere {
            Some(map) => Some(map),
            None => self.read_map(progress)?,
        };
        self.outcomes(progress, used_somewhere)
    }

    /// Whether a parameter is unused here, so that results depend on the map.
    fn early_map(&self) -> bool {
        self.needs_map() && self.used.iter().any(|used| !used.load(Ordering::Relaxed))
    }

    /// Waits for a stage of a bucket, if it is in that one, and begins the next.
    fn wait(&self, progress: &mut Progress, bucket: usize, at: usize) -> Result<(), ReducerError> {
        let works = match &mut progress.flights[bucket] {
            Flight::Running { stage, works } if *stage == at => std::mem::take(works),
            _ => return Ok(()),
        };
        for work in works {
            work.wait(None).map_err(|error| self.bucket_failed(bucket, error))?;
        }
        let what = &self.layout.buckets[bucket];
        if what.sparse {
            self.next_sparse(progress, bucket, at)
        } else if self.shared.hook.is_some() {
            let stage = self.ask_hook(bucket, Some(at))?;
            self.apply(progress, bucket, at + 1, stage)
        } else {
            progress.flights[bucket] = Flight::Done;
            Ok(())
        }
    }

    /// Which parameters any rank used, where ranks tell one another.
    fn read_map(&self, progress: &mut Progress) -> Result<Option<Vec<u32>>, ReducerError> {
        let Some((buffer, work)) = progress.map.take() else { return Ok(None) };
        work.wait(None).map_err(|error| self.shared.comm(self.number, "the used map", error))?;
        let bytes = buffer.read().map_err(|error| self.shared.buffer(error))?;
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|count| u32::from_le_bytes(*count)).collect()))
    }

    /// What became of each parameter; puts back what is kept.
    fn outcomes(&self, progress: &mut Progress, used: Option<Vec<u32>>) -> Result<Ended, ReducerError> {
        let ranks = self.shared.group.size() as u32;
        let from_map = || used.as_ref().map(|used| used.iter().map(|count| *count > 0).collect::<Arc<[bool]>>());
        let used_somewhere = match &self.graph {
            Graph::Learned(learned) => Some(learned.used_somewhere.clone()),
            Graph::Learning { used_somewhere } => used_somewhere.clone().or_else(from_map),
            Graph::Dynamic => from_map(),
        };
        let learned = match (&self.graph, &used_somewhere) {
            (Graph::Learned(learned), _) => Some(learned.clone()),
            (Graph::Learning { .. }, Some(used_somewhere)) => Some(Arc::new(Learned {
                marks: self.marks.iter().map(|marks| marks.load(Ordering::Acquire)).collect(),
                used_somewhere: used_somewhere.clone(),
            })),
            _ => None,
        };
        if let (Unused::Skip, Graph::Dynamic, Some(used)) = (self.shared.options.unused, &self.graph, &used)
            && let Some(param) = used.iter().position(|count| *count != 0 && *count != ranks)
        {
            let reason = format!("{} of {ranks} ranks used it; to skip it, all have to agree", used[param]);
            return Err(self.refuse(param, reason));
        }
        let kept = |param: usize| {
            let here = self.used[param].load(Ordering::Relaxed);
            let somewhere = used_somewhere.as_ref().is_none_or(|used| used.get(param).copied().unwrap_or(true));
            !here && (!somewhere || self.shared.options.unused == Unused::KeepMine)
        };
        let kept: Vec<bool> = (0..self.shared.params.len()).map(kept).collect();
        for (param, bytes) in std::mem::take(&mut progress.saved) {
            if kept[param] {
                let mut slot = self.layout.places[param].slot.write().map_err(|error| self.shared.buffer(error))?;
                slot.copy_from_slice(&bytes);
            }
        }
        let out = self.factors()?.out;
        let ready_ns = self.ready_ns.iter().map(|ns| ns.load(Ordering::Relaxed)).collect();
        Ok(Ended { kept, out, learned, used_somewhere, order: self.order(), ready_ns })
    }

    /// Parameters in the order in which they became ready; the rest follows by index.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<(bool, u64, usize)> = (0..self.shared.params.len())
            .map(|param| {
                let used = self.used[param].load(Ordering::Relaxed);
                (!used, self.ready_place[param].load(Ordering::Relaxed), param)
            })
            .collect();
        order.sort_unstable_by_key(|(unused, place, param)| (*unused, if *unused { 0 } else { *place }, *param));
        order.into_iter().map(|(_, _, param)| param).collect()
    }

    /// What dense results are multiplied by when they are read.
    pub fn out(&self) -> Result<Option<f64>, ReducerError> {
        Ok(self.factors()?.out)
    }

    /// Gives a step up that was not finished. Harmless if nothing was marked: a forward without a backward.
    pub fn give_up(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        let (failed, reason) = {
            let progress = lock(&self.progress);
            (progress.failed.is_some(), progress.refused.clone())
        };
        let marked = self.marks.iter().any(|marks| marks.load(Ordering::Acquire) > 0);
        if !failed && (marked || reason.is_some()) {
            let error = ReducerError::GivenUp { rank: self.shared.rank(), step: self.number, reason };
            self.shared.fail(error, self.number);
        }
    }
}

/// What a finished step leaves.
pub struct Ended {
    /// Whether a parameter's gradient was left as it was.
    pub kept: Vec<bool>,
    /// What dense results are multiplied by when they are read.
    pub out: Option<f64>,
    /// What was learned of a static graph.
    pub learned: Option<Arc<Learned>>,
    /// Which parameters any rank used, where that is known.
    pub used_somewhere: Option<Arc<[bool]>>,
    /// Ready order.
    pub order: Vec<usize>,
    /// By parameter.
    pub ready_ns: Vec<u64>,
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}
