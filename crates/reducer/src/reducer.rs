//! A reducer between steps: buckets, their rebuild, and the group.

use crate::agree::agree;
use crate::assign::{Assignment, assign};
use crate::device::OnDevice;
use crate::error::ReducerError;
use crate::factors::FactorCell;
use crate::fit::Fitting;
use crate::hook::Hook;
use crate::in_step::{Accumulated, Ended, Graph, InStep, Learned};
use crate::layout::{Layout, Sent, describe, items};
use crate::options::{ReducerOptions, Scale, Wire};
use crate::param::Param;
use crate::rebuild::share;
use crate::shared::{Hooked, Shared, lock};
use crate::sparse::SparseGradient;
use crate::stats::{Gathered, Stats};
use crate::step::{LocalStep, Step};
use crate::tensors::{Tensor, broadcast};
use crate::timeline::Timeline;
use bucketeer_comm::{Arena, Backend, Buffer, Group};
use bucketeer_types::DType;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// One rank's side of data-parallel training: takes the gradients of each step, and gives back what all ranks together have.
///
/// All ranks of the group make one of the same parameters and options, and take the same steps. Give it a group of its own:
/// when a rank fails it breaks the group, so that no other waits for it.
///
/// See the [crate's docs](crate) for the ways in.
pub struct Reducer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) accumulated: Arc<Accumulated>,
    /// Steps that were begun, reduced or not in the end.
    pub(crate) steps: u64,
    /// Reduced steps since the group is this one.
    pub(crate) reduced: u64,
    pub(crate) rebuilt: bool,
    /// Reduced steps since.
    pub(crate) since_rebuild: u64,
    pub(crate) fitting: Fitting,
    /// A failure of a step that nobody waited for, found when the group changed.
    late: Option<String>,
    /// This rank's ready order, if it had a step to see it in.
    pub(crate) order: Option<Vec<usize>>,
    /// The buckets, while their memory is given back.
    released: Option<Assignment>,
    learned: Option<Arc<Learned>>,
    /// Of a static graph: which parameters any rank used in the first step.
    used_somewhere: Option<Arc<[bool]>>,
    pub(crate) last: LastStep,
    pub(crate) gathered: Gathered,
}

/// What the last step left.
#[derive(Default)]
pub(crate) struct LastStep {
    pub number: u64,
    pub kept: Vec<bool>,
    pub out: Option<f64>,
    pub sparse: BTreeMap<usize, SparseGradient>,
    pub timeline: Option<Timeline>,
}

/// The buckets of a reducer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketInfo {
    /// Indices of parameters, in the order in which they lie.
    pub params: Vec<usize>,
    /// Bytes of their gradients, in their own dtype.
    pub bytes: u64,
    /// The cap in force when it was closed, in bytes; 0 for a sparse one.
    pub limit_bytes: u64,
}

impl Reducer {
    /// Makes a reducer of parameters, in an order that is the same on all ranks, and compares it with the other ranks'.
    /// Waits for them.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for parameters or options that cannot be used; [`ReducerError::Disagree`] where ranks
    /// have not the same, on every rank; [`ReducerError::Comm`]; [`ReducerError::Buffer`] where memory is short.
    pub fn new(
        backend: Arc<dyn Backend>,
        group: &Group,
        params: Vec<Param>,
        options: ReducerOptions,
    ) -> Result<Self, ReducerError> {
        Self::make(backend, group, params, options, None, false)
    }

    /// The same with a hook in the place of the mean.
    ///
    /// # Errors
    /// As [`new`](Self::new); a hook and a wire dtype exclude one another.
    pub fn with_hook(
        backend: Arc<dyn Backend>,
        group: &Group,
        params: Vec<Param>,
        options: ReducerOptions,
        hook: Box<dyn Hook>,
    ) -> Result<Self, ReducerError> {
        let name = hook.describe();
        Self::make(backend, group, params, options, Some(Arc::new(Hooked { hook: Mutex::new(hook), name })), false)
    }

    pub(crate) fn make(
        backend: Arc<dyn Backend>,
        group: &Group,
        params: Vec<Param>,
        options: ReducerOptions,
        hook: Option<Arc<Hooked>>,
        on_device: bool,
    ) -> Result<Self, ReducerError> {
        let rank = backend.rank();
        let invalid = |reason: String| ReducerError::Invalid { rank, reason };
        check(&params, &options, hook.is_some()).map_err(invalid)?;
        if on_device {
            check_on_device(&params, &options).map_err(invalid)?;
        }
        let device = device_of(backend.as_ref(), group, on_device)?;
        let wire = options.wire.map(|wire| wire.dtype);
        let sent: Arc<[Sent]> = params.iter().map(|param| Sent::of(param, wire)).collect();
        let caps = options.initial_caps();
        let mut assignment =
            assign(&items(&params, wire), &caps, None).map_err(|error| ReducerError::Assign { rank, error })?;
        // Backward runs from the end.
        assignment.buckets.reverse();
        assignment.limits_bytes.reverse();
        let params: Arc<[Param]> = params.into();
        let shared = Arc::new(Shared::new(backend, group.clone(), params, sent, options, hook, device));
        if !agree(&shared, &describe(&assignment.buckets))? {
            assignment = share(&shared, Some(assignment), &caps, 0, 0)?.unwrap_or_default();
        }
        let arena = shared.arena().map_err(|error| shared.fail(error, 0))?;
        let layout = Layout::new(&assignment, &shared.params, &shared.sent, arena, 0);
        let layout = Arc::new(layout.map_err(|error| shared.buffer(error))?);
        let accumulated = Arc::new(Accumulated::new(shared.params.len()));
        let mut reducer = Self {
            shared,
            layout,
            accumulated,
            steps: 0,
            reduced: 0,
            rebuilt: false,
            since_rebuild: 0,
            fitting: Fitting::default(),
            late: None,
            order: None,
            released: None,
            learned: None,
            used_somewhere: None,
            last: LastStep::default(),
            gathered: Gathered::default(),
        };
        reducer.gathered.initial_bucket_bytes = reducer.bucket_bytes();
        reducer.tell_hook();
        Ok(reducer)
    }

    /// Begins a step whose gradients are reduced. Makes the buckets again, if that is due, which all ranks do together.
    ///
    /// # Errors
    /// [`ReducerError::Broken`] after a failure; [`ReducerError::Invalid`] where weights are wanted;
    /// [`ReducerError::Comm`].
    pub fn step(&mut self) -> Result<Step<'_>, ReducerError> {
        if self.shared.options.scale == Scale::Weighted {
            return Err(self.shared.invalid("the mean is over samples: begin steps with `weighted_step`"));
        }
        self.shared.check()?;
        self.rebuild_if_due()?;
        let factors = FactorCell::of_ranks(&self.shared, self.shared.group.size());
        Ok(self.begin(factors))
    }

    /// The same for a mean over samples: this rank had so many of them in this step. 0 is a number, for a rank without input; the
    /// sum over ranks is not.
    ///
    /// # Errors
    /// As [`step`](Self::step); [`ReducerError::Invalid`] for weights that are negative or not finite, or not wanted.
    pub fn weighted_step(&mut self, samples: f64) -> Result<Step<'_>, ReducerError> {
        self.check_weight(samples)?;
        self.shared.check()?;
        self.rebuild_if_due()?;
        let factors = self.weights(samples)?;
        Ok(self.begin(factors).announced())
    }

    pub(crate) fn check_weight(&self, samples: f64) -> Result<(), ReducerError> {
        if self.shared.options.scale != Scale::Weighted {
            return Err(self.shared.invalid("weights are given, but the options say another scale than `Weighted`"));
        }
        if !(samples.is_finite() && samples >= 0.0) {
            return Err(self.shared.invalid(format!("a step of {samples} samples; give 0 or more")));
        }
        Ok(())
    }

    /// Begins to sum the weights of the ranks.
    pub(crate) fn weights(&self, samples: f64) -> Result<FactorCell, ReducerError> {
        let failed = |error| self.shared.fail(self.shared.comm(self.steps, "the sum of weights", error), self.steps);
        FactorCell::of_weights(&self.shared, samples).map_err(failed)
    }

    pub(crate) fn begin(&mut self, factors: FactorCell) -> Step<'_> {
        let step = Arc::new(self.in_step(factors));
        self.steps += 1;
        Step::new(self, step)
    }

    fn in_step(&self, factors: FactorCell) -> InStep {
        let graph = match (self.shared.options.static_graph, &self.learned, &self.used_somewhere) {
            (false, ..) => Graph::Dynamic,
            (true, Some(learned), _) => Graph::Learned(learned.clone()),
            (true, None, used) => Graph::Learning { used_somewhere: used.clone() },
        };
        let (shared, layout, accumulated) = (self.shared.clone(), self.layout.clone(), self.accumulated.clone());
        InStep::new(shared, layout, (self.steps, self.reduced), graph, accumulated, factors)
    }

    /// Takes part in a step of others, without gradients. What this rank knows of its own order and graph stays.
    pub(crate) fn shadow(&mut self, factors: FactorCell) -> Result<(), ReducerError> {
        let step = self.in_step(factors);
        self.steps += 1;
        let ended = step.shadow()?;
        self.accumulated.clear();
        self.reduced += 1;
        self.since_rebuild += 1;
        self.used_somewhere = ended.used_somewhere;
        Ok(())
    }

    /// Begins a step whose gradients are kept here and added to those of the next reduced step: c10d's `no_sync`. Nothing is
    /// sent.
    ///
    /// # Errors
    /// [`ReducerError::Broken`].
    pub fn local_step(&mut self) -> Result<LocalStep<'_>, ReducerError> {
        self.shared.check()?;
        self.take_memory()?;
        self.steps += 1;
        Ok(LocalStep::new(self))
    }

    /// Forgets what local steps kept: for who drops gradients.
    pub fn clear_local(&mut self) {
        self.accumulated.clear();
    }

    /// Gives all ranks the tensors that one of them has, a place in the group: the parameters at the start. Tensors of one
    /// dtype travel together. All ranks call it with the same tensors.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for a root that there is not; [`ReducerError::Comm`].
    pub fn broadcast(&mut self, root: usize, tensors: &mut [Tensor<'_>]) -> Result<(), ReducerError> {
        self.shared.check()?;
        broadcast(&self.shared, tensors, root, "tensors", self.steps)
    }

    /// Notes what a finished step was.
    pub(crate) fn ended(&mut self, step: &InStep, ended: Ended) {
        self.accumulated.clear();
        self.reduced += 1;
        self.since_rebuild += 1;
        self.used_somewhere = ended.used_somewhere;
        self.learned = ended.learned;
        self.note_times(&ended.timeline);
        let reordered = step.reordered.load(Ordering::Relaxed);
        self.gathered.add(&ended.timeline, ended.unused, &ended.order, reordered);
        self.order = Some(ended.order);
        let sparse = std::mem::take(&mut lock(&step.progress).sparse_out);
        self.last =
            LastStep { number: step.number, kept: ended.kept, out: ended.out, sparse, timeline: Some(ended.timeline) };
    }

    /// Gives the memory of the gradients back until the next step begins, which takes it again: for who needs it between steps.
    /// What slots hold is lost; the last step's gradients are read before.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] while local steps keep something in it.
    pub fn release_memory(&mut self) -> Result<(), ReducerError> {
        if self.accumulated.holds_local() {
            let reason = "local steps have left gradients in the buckets: reduce them, or clear them, before memory is given back";
            return Err(self.shared.invalid(reason));
        }
        if self.released.is_some() {
            return Ok(());
        }
        let none = Arena::new(0).map_err(|error| self.shared.buffer(error))?;
        self.released = Some(self.layout.assignment());
        self.last = LastStep { number: self.last.number, timeline: self.last.timeline.take(), ..LastStep::default() };
        let layout = Layout::new(&Assignment::default(), &[], &[], none, self.layout.generation + 1);
        self.layout = Arc::new(layout.map_err(|error| self.shared.buffer(error))?);
        Ok(())
    }

    /// Takes the memory again that was given back.
    pub(crate) fn take_memory(&mut self) -> Result<(), ReducerError> {
        let Some(assignment) = &self.released else { return Ok(()) };
        let shared = &self.shared;
        let arena = shared.arena()?;
        let generation = self.layout.generation + 1;
        let layout = Layout::new(assignment, &shared.params, &shared.sent, arena, generation);
        self.layout = Arc::new(layout.map_err(|error| shared.buffer(error))?);
        self.released = None;
        Ok(())
    }

    /// Sends gradients in another dtype from the next step on. All ranks call it together; buckets are those of a first step
    /// again, in new memory.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ReducerError::Invalid`] while local steps keep something.
    pub fn set_wire(&mut self, wire: Option<Wire>) -> Result<(), ReducerError> {
        self.shared.arrive(true)?;
        self.shared.check()?;
        if self.accumulated.holds_local() {
            return Err(self.shared.invalid("local steps have left gradients: reduce them, or clear them, before"));
        }
        let Shared { backend, group, params, options, hook, .. } = &*self.shared;
        let options = ReducerOptions { wire, ..options.clone() };
        let made =
            Self::make(backend.clone(), group, params.to_vec(), options, hook.clone(), self.shared.device.is_some())?;
        let generation = self.layout.generation + 1;
        let layout =
            Layout::new(&made.layout.assignment(), params, &made.shared.sent, made.layout.arena.clone(), generation);
        let layout = layout.map_err(|error| self.shared.buffer(error))?;
        let gathered = std::mem::take(&mut self.gathered);
        *self = Self { layout: Arc::new(layout), steps: self.steps, gathered, ..made };
        Ok(())
    }

    pub(crate) fn tell_hook(&self) {
        if let Some(hooked) = &self.shared.hook {
            let buckets: Vec<_> = self.layout.buckets.iter().map(|bucket| bucket.layout.clone()).collect();
            lock(&hooked.hook).rebuilt(&buckets, &self.shared.group);
        }
    }

    /// Goes on with another group, after ranks have left or come, or after a failure: all its ranks call this, and ranks that
    /// are new make a reducer on it. Buckets stay as the group's first rank has them for one step, and are made again.
    /// Gradients of local steps are kept, unless a step has failed, which may have used them up; what a static graph is, is learned
    /// again.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn change_group(&mut self, group: &Group) -> Result<(), ReducerError> {
        // Calls of a step that nobody waited for.
        let late = self.shared.arrive(true).err().map(|error| error.to_string());
        self.late = late.or(self.late.take());
        if self.shared.check().is_err() {
            self.accumulated.clear();
        }
        // Others wait for what is not launched here.
        let given_up = |shared: &Shared, error| {
            shared.backend.abort(group);
            error
        };
        self.take_memory().map_err(|error| given_up(&self.shared, error))?;
        let Shared { backend, params, sent, options, hook, device: old, .. } = &*self.shared;
        let device = device_of(backend.as_ref(), group, old.is_some())?;
        if let (Some(device), Some(old)) = (&device, old) {
            let followed = device.follow(old).map_err(|reason| self.shared.device_failed(reason));
            followed.map_err(|error| given_up(&self.shared, error))?;
        }
        let (params, sent, options, hook) = (params.clone(), sent.clone(), options.clone(), hook.clone());
        let shared = Shared::new(backend.clone(), group.clone(), params, sent, options, hook, device);
        let shared = Arc::new(shared);
        let own = self.layout.assignment();
        let same = agree(&shared, &describe(&own.buckets))?;
        let shown = if same { None } else { share(&shared, Some(own), &shared.options.caps.list(), 0, self.steps)? };
        self.shared = shared;
        (self.reduced, self.rebuilt, self.order) = (0, false, None);
        self.fitting = Fitting::default();
        (self.learned, self.used_somewhere) = (None, None);
        match shown {
            Some(assignment) => {
                let laid_out = self.lay_out(&assignment);
                laid_out.map_err(|error| self.shared.fail(error, self.steps))?;
            }
            None => self.tell_hook(),
        }
        Ok(())
    }

    /// The buckets, in the order of launches.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.layout.infos()
    }

    /// What is known of the steps so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let gathered = &self.gathered;
        let bytes = |param: &usize| self.shared.params.get(*param).map_or(0, Param::bytes);
        Stats {
            reduced_steps: gathered.steps,
            initial_bucket_bytes: gathered.initial_bucket_bytes.clone(),
            rebuilt_bucket_bytes: gathered.rebuilt_bucket_bytes.clone(),
            ready_order: gathered.ready_order.clone(),
            unused_bytes: gathered.unused.iter().map(bytes).fold(0, u64::saturating_add),
            can_be_static: gathered.can_be_static(),
            reordered_gradients: gathered.reordered,
            averages: gathered.averages(),
            error: self.shared.check().err().map(|error| error.to_string()).or_else(|| self.late.clone()),
        }
    }

    /// When what happened in the last reduced step, if there was one.
    #[must_use]
    pub const fn timeline(&self) -> Option<&Timeline> {
        self.last.timeline.as_ref()
    }

    /// Counted up each time the buckets are made again. Slots of another generation are no longer a parameter's.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.layout.generation
    }

    /// Where a parameter's gradient lies in its bucket, in the parameter's own order of elements if it is dense: for frameworks
    /// that write gradients there. Empty for a sparse one. Good until [`generation`](Self::generation) changes, which it
    /// does only when a step begins; what it holds has moved along then.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has.
    pub fn slot(&self, param: usize) -> Result<Buffer, ReducerError> {
        let place = self.layout.places.get(param);
        place.map(|place| place.slot.clone()).ok_or_else(|| match self.released {
            Some(_) => self.shared.invalid("the memory of the gradients was given back; the next step takes it again"),
            None => self.shared.no_param(param),
        })
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.shared.params
    }

    /// The ranks.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.shared.group
    }
}

/// What can be told of parameters and options without other ranks.
fn check(params: &[Param], options: &ReducerOptions, hooked: bool) -> Result<(), String> {
    if params.is_empty() {
        return Err("no parameter is to be trained; give at least one".to_owned());
    }
    for (index, param) in params.iter().enumerate() {
        param.check().map_err(|reason| format!("parameter {index} ({}): {reason}", param.name()))?;
    }
    if params.len() > i32::MAX as usize {
        return Err(format!("there are {} parameters; 2^31 are too many", params.len()));
    }
    if options.caps.list().is_empty() {
        return Err("the list of caps is empty; give at least one, in bytes".to_owned());
    }
    let Some(wire) = options.wire else { return Ok(()) };
    if hooked {
        return Err("a hook decides what is sent: give a hook or a wire dtype, not both".to_owned());
    }
    match wire.dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        other => Err(format!("gradients cannot be sent as {}; give f64, f32, f16 or bf16", other.torch_name())),
    }
}

/// The device that a group's calls run on, if buckets are to be there.
fn device_of(backend: &dyn Backend, group: &Group, wanted: bool) -> Result<Option<OnDevice>, ReducerError> {
    let found = if wanted { OnDevice::of(backend, group) } else { return Ok(None) };
    let reason = || format!("calls of backend {} run on no device, so buckets cannot be there", backend.name());
    found.map(Some).ok_or_else(|| ReducerError::Invalid { rank: backend.rank(), reason: reason() })
}

/// What buckets on a device are not for: what is computed outside of collectives.
fn check_on_device(params: &[Param], options: &ReducerOptions) -> Result<(), String> {
    if let Some(wire) = options.wire {
        let name = wire.dtype.torch_name();
        return Err(format!(
            "gradients on a device are sent in their own dtype, as nothing converts them there; {name} is given"
        ));
    }
    if options.scale == Scale::Weighted {
        return Err(
            "gradients on a device are not multiplied by weights there: give the sum or mean over ranks".to_owned()
        );
    }
    if options.caps.fit().is_some_and(|fit| fit.cost.is_none()) {
        return Err(
            "messages of a device are not timed here: give the cost of an all-reduce with sizes that fit".to_owned()
        );
    }
    match params.iter().position(Param::is_sparse) {
        Some(index) => {
            let name = params[index].name();
            Err(format!("parameter {index} ({name}): gradients on a device are dense, and it was declared sparse"))
        }
        None => Ok(()),
    }
}
