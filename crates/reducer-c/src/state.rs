//! A reducer as C has it: one object that is between steps, in one, or holds what the last one came to.
//!
//! What borrows stop in Rust is a [`State`] here. A call that changes it takes the reducer out and leaves [`State::Busy`] for as
//! long as it waits for other ranks; so marks of other threads are refused meanwhile and not held up.

use crate::status::Failure;
use crate::table::Handled;
use bucketeer_comm::{Buffer, ReadGuard, WriteGuard};
use bucketeer_reducer::{LocalStep, Marker, Reduced, Reducer, ReducerError, Step};
use self_cell::{MutBorrow, self_cell};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What borrows a reducer.
pub enum Part<'r> {
    Step(Step<'r>),
    Local(LocalStep<'r>),
    Reduced(Reduced<'r>),
    /// Nothing any more.
    Over,
}

self_cell!(
    /// A reducer and what borrows it.
    pub struct Lent {
        owner: MutBorrow<Box<Reducer>>,

        #[not_covariant]
        dependent: Part,
    }
);

impl Lent {
    /// Lends a reducer; gives it back if that fails.
    fn lend<E>(
        reducer: Box<Reducer>,
        part: impl for<'r> FnOnce(&'r mut Reducer) -> Result<Part<'r>, E>,
    ) -> Result<Self, (Box<Reducer>, E)> {
        Self::try_new_or_recover(MutBorrow::new(reducer), |owner| part(owner.borrow_mut()))
            .map_err(|(owner, error)| (owner.into_inner(), error))
    }

    /// Ends the loan.
    fn back(self) -> Box<Reducer> {
        self.into_owner().into_inner()
    }
}

/// What a reducer is doing.
pub enum State {
    Idle(Box<Reducer>),
    Step {
        lent: Lent,
        marker: Marker,
    },
    Local {
        lent: Lent,
        slots: Vec<Buffer>,
    },
    /// The results of the last step can be read.
    Reduced {
        lent: Lent,
        /// Of that step, which says that it is over; none for one in bulk.
        marker: Option<Marker>,
    },
    /// A call has it.
    Busy {
        call: &'static str,
        marker: Option<Marker>,
    },
    /// A call that had it panicked, or it is freed.
    Lost,
}

/// Memory of a reducer that C reads or writes.
pub enum Lock {
    Write(WriteGuard),
    Read(ReadGuard),
}

/// See the module docs.
pub struct Shared {
    state: RwLock<State>,
    /// By parameter.
    locks: Mutex<BTreeMap<usize, Lock>>,
}

impl Handled for Shared {
    type Opaque = crate::reducer::BucketeerReducer;
    const NAME: &'static str = "reducer";
}

/// The right to change the state, for as long as a call takes. If it ends without a new one the reducer is lost.
pub struct Turn<'a> {
    shared: &'a Shared,
    is_over: bool,
}

impl Turn<'_> {
    fn put(mut self, state: State) {
        *self.shared.write() = state;
        self.is_over = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            *self.shared.write() = State::Lost;
        }
    }
}

fn no_step() -> Failure {
    Failure::state("no step runs: begin one first")
}

fn no_results() -> Failure {
    Failure::state("there are no results to read: a step has to be finished, and beginning another one ends them")
}

/// Why the state cannot be changed.
fn refuse(state: &State, call: &str) -> Failure {
    match state {
        State::Step { .. } => Failure::state(format!("a step runs: finish it or give it up before `{call}`")),
        State::Local { .. } => Failure::state(format!("a local step runs: finish it before `{call}`")),
        State::Busy { call: other, .. } => {
            Failure::state(format!("another thread is in `{other}` of this reducer, so `{call}` cannot begin"))
        }
        State::Lost => Failure::state("the reducer is freed, or was lost in a fault of this library"),
        State::Idle(_) | State::Reduced { .. } => no_step(),
    }
}

impl Shared {
    pub fn new(reducer: Reducer) -> Self {
        Self { state: RwLock::new(State::Idle(Box::new(reducer))), locks: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after the state, never before it.
    fn locks(&self) -> MutexGuard<'_, BTreeMap<usize, Lock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a state that a call can begin with; nobody has locked memory of the reducer then.
    fn take(&self, call: &'static str, fits: impl FnOnce(&State) -> bool) -> Result<(Turn<'_>, State), Failure> {
        let mut state = self.write();
        if !fits(&state) {
            return Err(refuse(&state, call));
        }
        if let Some(param) = self.locks().keys().next() {
            return Err(Failure::state(format!("memory of parameter {param} is locked: unlock it before `{call}`")));
        }
        let marker = match &*state {
            State::Step { marker, .. } => Some(marker.clone()),
            State::Reduced { marker, .. } => marker.clone(),
            _ => None,
        };
        let old = std::mem::replace(&mut *state, State::Busy { call, marker });
        drop(state);
        Ok((Turn { shared: self, is_over: false }, old))
    }

    /// Takes a reducer that is between steps. What could be read of the last one is gone.
    fn take_idle(&self, call: &'static str) -> Result<(Turn<'_>, Box<Reducer>), Failure> {
        let between = |state: &State| matches!(state, State::Idle(_) | State::Reduced { .. });
        match self.take(call, between)? {
            (turn, State::Idle(reducer)) => Ok((turn, reducer)),
            (turn, State::Reduced { lent, .. }) => Ok((turn, lent.back())),
            (_, other) => Err(refuse(&other, call)),
        }
    }

    /// Does something with a reducer that is between steps.
    pub fn between<T>(
        &self,
        call: &'static str,
        body: impl FnOnce(&mut Reducer) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (turn, mut reducer) = self.take_idle(call)?;
        let done = body(&mut reducer);
        turn.put(State::Idle(reducer));
        done
    }

    /// Asks a reducer that is between steps. What could be read of the last one still can be.
    pub fn ask<T>(&self, call: &'static str, body: impl FnOnce(&Reducer) -> Result<T, Failure>) -> Result<T, Failure> {
        match &*self.read() {
            State::Idle(reducer) => body(reducer),
            State::Reduced { lent, .. } => lent.with_dependent(|_, part| match part {
                Part::Reduced(reduced) => body(reduced.reducer()),
                _ => Err(no_results()),
            }),
            state => Err(refuse(state, call)),
        }
    }

    /// Begins a step; its number.
    pub fn begin(
        &self,
        call: &'static str,
        body: impl for<'r> FnOnce(&'r mut Reducer) -> Result<Step<'r>, ReducerError>,
    ) -> Result<u64, Failure> {
        let (turn, reducer) = self.take_idle(call)?;
        let mut marker = None;
        let lent = Lent::lend(reducer, |reducer| {
            let step = body(reducer)?;
            marker = Some(step.marker());
            Ok::<_, ReducerError>(Part::Step(step))
        });
        match (lent, marker) {
            (Ok(lent), Some(marker)) => {
                let number = marker.number();
                turn.put(State::Step { lent, marker });
                Ok(number)
            }
            (Ok(lent), None) => {
                turn.put(State::Idle(lent.back()));
                Err(no_step())
            }
            (Err((reducer, error)), _) => {
                turn.put(State::Idle(reducer));
                Err(error.into())
            }
        }
    }

    /// Begins a local step.
    pub fn begin_local(&self, call: &'static str) -> Result<(), Failure> {
        let (turn, reducer) = self.take_idle(call)?;
        let slots = (0..reducer.params().len()).map(|param| reducer.slot(param)).collect::<Result<Vec<_>, _>>();
        let lent = Lent::lend(reducer, |reducer| reducer.local_step().map(Part::Local));
        match (lent, slots) {
            (Ok(lent), Ok(slots)) => {
                turn.put(State::Local { lent, slots });
                Ok(())
            }
            (Ok(lent), Err(error)) => {
                turn.put(State::Idle(lent.back()));
                Err(error.into())
            }
            (Err((reducer, error)), _) => {
                turn.put(State::Idle(reducer));
                Err(error.into())
            }
        }
    }

    /// A step of its own whose results can be read.
    pub fn bulk(
        &self,
        call: &'static str,
        body: impl for<'r> FnOnce(&'r mut Reducer) -> Result<Reduced<'r>, Failure>,
    ) -> Result<(), Failure> {
        let (turn, reducer) = self.take_idle(call)?;
        match Lent::lend(reducer, |reducer| body(reducer).map(Part::Reduced)) {
            Ok(lent) => {
                turn.put(State::Reduced { lent, marker: None });
                Ok(())
            }
            Err((reducer, failure)) => {
                turn.put(State::Idle(reducer));
                Err(failure)
            }
        }
    }

    fn take_step(&self, call: &'static str) -> Result<(Turn<'_>, State), Failure> {
        self.take(call, |state| matches!(state, State::Step { .. } | State::Local { .. }))
    }

    /// Ends a step, local or not.
    pub fn finish(&self, call: &'static str) -> Result<(), Failure> {
        let (turn, mut lent, marker) = match self.take_step(call)? {
            (turn, State::Step { lent, marker }) => (turn, lent, marker),
            (turn, State::Local { lent, .. }) => {
                turn.put(State::Idle(lent.back()));
                return Ok(());
            }
            (_, other) => return Err(refuse(&other, call)),
        };
        let finished = lent.with_dependent_mut(|_, part| match std::mem::replace(part, Part::Over) {
            Part::Step(step) => step.finish().map(|reduced| *part = Part::Reduced(reduced)),
            _ => Ok(()),
        });
        match finished {
            Ok(()) => turn.put(State::Reduced { lent, marker: Some(marker) }),
            Err(error) => {
                turn.put(State::Idle(lent.back()));
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Drops a step.
    pub fn give_up(&self, call: &'static str) -> Result<(), Failure> {
        match self.take_step(call)? {
            (turn, State::Step { lent, .. } | State::Local { lent, .. }) => {
                turn.put(State::Idle(lent.back()));
                Ok(())
            }
            (_, other) => Err(refuse(&other, call)),
        }
    }

    /// Drops the reducer.
    pub fn end(&self, call: &'static str) -> Result<(), Failure> {
        let between = |state: &State| matches!(state, State::Idle(_) | State::Reduced { .. } | State::Lost);
        let (turn, old) = self.take(call, between)?;
        drop(old);
        turn.put(State::Lost);
        Ok(())
    }

    /// Marks the step that runs, or adds to what the local one keeps.
    pub fn mark(
        &self,
        reduced: impl FnOnce(&Marker) -> Result<(), ReducerError>,
        local: impl FnOnce(&LocalStep<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let state = self.read();
        let marker = match &*state {
            State::Step { marker, .. } => marker.clone(),
            // They say that their step is over.
            State::Reduced { marker: Some(marker), .. } | State::Busy { marker: Some(marker), .. } => marker.clone(),
            State::Local { lent, .. } => {
                return lent.with_dependent(|_, part| match part {
                    Part::Local(step) => local(step),
                    _ => Err(no_step()),
                });
            }
            State::Busy { .. } | State::Lost => return Err(refuse(&state, "a mark")),
            State::Idle(_) | State::Reduced { .. } => return Err(no_step()),
        };
        drop(state);
        Ok(reduced(&marker)?)
    }

    /// Does something with the step that runs, or with the reducer between steps.
    pub fn in_step_or_between(
        &self,
        call: &'static str,
        in_step: impl FnOnce(&Step<'_>) -> Result<(), ReducerError>,
        between: impl FnOnce(&mut Reducer) -> Result<(), ReducerError>,
    ) -> Result<(), Failure> {
        let state = self.read();
        let State::Step { lent, .. } = &*state else {
            drop(state);
            return self.between(call, |reducer| Ok(between(reducer)?));
        };
        lent.with_dependent(|_, part| match part {
            Part::Step(step) => Ok(in_step(step)?),
            _ => Err(no_step()),
        })
    }

    /// Reads what the last step came to.
    pub fn results<T>(&self, body: impl FnOnce(&Reduced<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
        match &*self.read() {
            State::Reduced { lent, .. } => lent.with_dependent(|_, part| match part {
                Part::Reduced(reduced) => body(reduced),
                _ => Err(no_results()),
            }),
            state @ (State::Busy { .. } | State::Lost) => Err(refuse(state, "a look at results")),
            _ => Err(no_results()),
        }
    }

    /// Locks a parameter's slot: where its bytes lie, until they are unlocked.
    pub fn lock_slot(&self, param: usize) -> Result<(*mut u8, usize), Failure> {
        let state = self.read();
        let slot = match &*state {
            State::Step { marker, .. } => marker.slot(param)?,
            State::Idle(reducer) => reducer.slot(param)?,
            State::Local { slots, .. } => {
                let missing = || Failure::argument(format!("there is no parameter {param}, only {}", slots.len()));
                slots.get(param).cloned().ok_or_else(missing)?
            }
            State::Reduced { .. } => {
                return Err(Failure::state(
                    "the slots hold results: read those, or begin a step before slots are written",
                ));
            }
            State::Busy { .. } | State::Lost => return Err(refuse(&state, "a lock")),
        };
        self.lock(param, || {
            let mut guard =
                slot.write().map_err(|error| Failure::new(crate::BucketeerStatus::Memory, error.to_string()))?;
            Ok(((guard.as_mut_ptr(), guard.len()), Lock::Write(guard)))
        })
    }

    /// Locks a parameter's result to read it where it lies; none if the parameter keeps its gradient.
    pub fn lock_result(&self, param: usize) -> Result<Option<(*const u8, usize)>, Failure> {
        self.results(|reduced| match reduced.read(param)? {
            None => Ok(None),
            Some(guard) => self.lock(param, || Ok(((guard.as_ptr(), guard.len()), Lock::Read(guard)))).map(Some),
        })
    }

    /// The state is read meanwhile, so that no call that changes it begins.
    fn lock<T>(&self, param: usize, take: impl FnOnce() -> Result<(T, Lock), Failure>) -> Result<T, Failure> {
        let mut locks = self.locks();
        if locks.contains_key(&param) {
            return Err(Failure::state(format!("memory of parameter {param} is locked already")));
        }
        let (place, lock) = take()?;
        locks.insert(param, lock);
        Ok(place)
    }

    pub fn unlock(&self, param: usize) -> Result<(), Failure> {
        match self.locks().remove(&param) {
            Some(Lock::Write(guard)) => drop(guard),
            Some(Lock::Read(guard)) => drop(guard),
            None => return Err(Failure::state(format!("memory of parameter {param} is not locked"))),
        }
        Ok(())
    }

    /// A mark in place lends the slot to a collective.
    pub fn check_unlocked(&self, param: usize) -> Result<(), Failure> {
        match self.locks().contains_key(&param) {
            true => Err(Failure::state(format!("memory of parameter {param} is locked: unlock it before its mark"))),
            false => Ok(()),
        }
    }
}
