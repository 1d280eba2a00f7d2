//! A step while gradients come: who is marked, and what is launched when.

mod device;
mod ends;
mod launches;
mod marks;

use crate::error::ReducerError;
use crate::factors::{FactorCell, Factors};
use crate::layout::{Bucket, Layout};
use crate::shared::{Shared, lock};
use crate::sparse::SparseGradient;
use crate::timeline::Timeline;
use bucketeer_comm::{Buffer, BufferError, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// A parameter that was not marked, a bucket that was not launched.
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

    /// Whether local steps left something.
    pub fn holds_local(&self) -> bool {
        self.slots.iter().any(|slot| slot.load(Ordering::Relaxed)) || !lock(&self.sparse).is_empty()
    }

    /// Whether what slots hold between steps is somebody's.
    pub fn holds_any(&self) -> bool {
        self.in_place.load(Ordering::Relaxed) || self.holds_local()
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
    /// The same of slots on a device.
    saved_on_device: Vec<(usize, crate::device::Memory)>,
    /// Whether the end does not wait for buckets on a device.
    pub on_stream: bool,
    failed: Option<ReducerError>,
    /// Slots of a graph that is being learned, which are scaled when no more marks come.
    scale_later: BTreeSet<usize>,
    /// By bucket, since the start of the step; [`NEVER`] for what was not launched.
    launched_ns: Vec<u64>,
    /// When the wait for it ended.
    done_ns: Vec<u64>,
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
    /// The last mark that was refused.
    refused: Mutex<Option<Arc<str>>>,
    /// Reduced steps of the group before this one.
    reduced: u64,
    /// Whether other ranks know that this step comes.
    announced: AtomicBool,
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
        (number, reduced): (u64, u64),
        graph: Graph,
        accumulated: Arc<Accumulated>,
        factors: FactorCell,
    ) -> Self {
        let params = shared.params.len();
        let of_bucket = |bucket: &Bucket| AtomicU32::new(bucket.layout.parts.len() as u32);
        let pending = layout.buckets.iter().map(of_bucket).collect();
        let flights = layout.buckets.iter().map(|_| Flight::Waiting).collect();
        let never = vec![NEVER; layout.buckets.len()];
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
            refused: Mutex::default(),
            reduced,
            announced: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                flights,
                launched_ns: never.clone(),
                done_ns: never,
                ..Progress::default()
            }),
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
            *lock(&self.refused) = Some(error.to_string().into());
        }
        result
    }

    /// Whether this is the first step of a static graph, in which marks are counted.
    const fn is_learning(&self) -> bool {
        matches!(self.graph, Graph::Learning { .. })
    }

    fn factors(&self) -> Result<Factors, ReducerError> {
        self.factors.get(&self.shared, self.number).map_err(|error| self.shared.fail(error, self.number))
    }

    /// Counts a parameter as ready; whether its bucket is complete with it.
    fn completes(&self, param: usize) -> bool {
        self.ready_place[param].store(self.places.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.pending[self.layout.places[param].bucket].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// What dense results are multiplied by when they are read.
    pub fn out(&self) -> Result<Option<f64>, ReducerError> {
        Ok(self.factors()?.out)
    }

    /// Notes that ranks have told one another of the step, so that it cannot be left out.
    pub fn announce(&self) {
        self.announced.store(true, Ordering::Release);
    }

    /// Takes no more marks. Waits for those that are being taken.
    fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Gives a step up that was not finished. Harmless if nothing was marked and no other rank knows of it: a forward without a
    /// backward.
    pub fn give_up(&self) {
        self.close();
        let failed = lock(&self.progress).failed.is_some();
        let reason = lock(&self.refused).clone();
        let marked = self.marks.iter().any(|marks| marks.load(Ordering::Acquire) > 0);
        if !failed && (marked || reason.is_some() || self.announced.load(Ordering::Acquire)) {
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
    /// Parameters that this rank did not use.
    pub unused: Vec<usize>,
    /// When what happened.
    pub timeline: Timeline,
}
