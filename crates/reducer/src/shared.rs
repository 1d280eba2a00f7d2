//! What the steps of a reducer share, and how a failure becomes known on all ranks.

use crate::device::OnDevice;
use crate::error::{Named, ReducerError};
use crate::hook::Hook;
use crate::layout::{Sent, arena_bytes};
use crate::options::ReducerOptions;
use crate::param::Param;
use bucketeer_comm::{Arena, Backend, Buffer, BufferError, CallOptions, CommError, Group, Operands, Work};
use bucketeer_types::{DType, GlobalRank};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long ranks wait for one another's reasons.
const REASONS_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a reason.
const REASON_BYTES: usize = 1024;

/// Locks, whether or not a holder panicked: what our locks guard is whole wherever a holder may panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A hook, and what it says it is.
pub struct Hooked {
    pub hook: Mutex<Box<dyn Hook>>,
    pub name: String,
}

/// What does not change while a reducer has its group.
pub struct Shared {
    pub backend: Arc<dyn Backend>,
    pub group: Group,
    /// Where ranks say why they failed, when the group is broken.
    reasons: Option<Group>,
    pub params: Arc<[Param]>,
    pub sent: Arc<[Sent]>,
    pub options: ReducerOptions,
    pub hook: Option<Arc<Hooked>>,
    /// Where the buckets are, if not in memory of the host.
    pub device: Option<OnDevice>,
    /// Collectives of buckets on the device that nobody has waited for: step, bucket, call.
    flying: Mutex<VecDeque<(u64, String, Work)>>,
    /// Other groups that a hook has launched on.
    beside: Mutex<Vec<Group>>,
    broken: Mutex<Option<Arc<ReducerError>>>,
}

impl Shared {
    pub fn new(
        backend: Arc<dyn Backend>,
        group: Group,
        params: Arc<[Param]>,
        sent: Arc<[Sent]>,
        options: ReducerOptions,
        hook: Option<Arc<Hooked>>,
        device: Option<OnDevice>,
    ) -> Self {
        // Reasons are told over a group that no gradient uses; without one they stay with their rank.
        let name = format!("{} (reasons)", group.name());
        let joined = backend.joined(&name, group.members());
        let reasons = joined.or_else(|| backend.new_group(&name, group.members()).ok());
        let (flying, broken) = (Mutex::default(), Mutex::default());
        let beside = Mutex::default();
        Self { backend, group, reasons, params, sent, options, hook, device, flying, beside, broken }
    }

    /// Memory for the gradients.
    pub fn arena(&self) -> Result<Arena, ReducerError> {
        match &self.device {
            None => self.backend.arena(arena_bytes(&self.sent)).map_err(|error| self.buffer(error)),
            Some(device) => device.arena(arena_bytes(&self.sent)).map_err(|reason| self.device_failed(reason)),
        }
    }

    pub fn device_failed(&self, reason: impl Into<Arc<str>>) -> ReducerError {
        ReducerError::Device { rank: self.rank(), reason: reason.into() }
    }

    /// Keeps calls of a bucket that nobody waits for now.
    pub fn leave_flying(&self, step: u64, bucket: &str, works: Vec<Work>) {
        lock(&self.flying).extend(works.into_iter().map(|work| (step, bucket.to_owned(), work)));
    }

    /// Sees how those ended that have; all, if it waits.
    pub fn arrive(&self, waits: bool) -> Result<(), ReducerError> {
        loop {
            let first = {
                let mut flying = lock(&self.flying);
                match flying.front() {
                    Some((.., work)) if waits || work.is_done() => flying.pop_front(),
                    _ => None,
                }
            };
            let Some((step, bucket, work)) = first else { return Ok(()) };
            work.wait(None).map_err(|error| self.fail(self.comm(step, bucket, error), step))?;
        }
    }

    pub fn rank(&self) -> GlobalRank {
        self.backend.rank()
    }

    pub fn named(&self, index: usize) -> Named {
        Named { index, name: self.params.get(index).map_or_else(String::new, |param| param.name().to_owned()) }
    }

    pub fn invalid(&self, reason: impl Into<String>) -> ReducerError {
        ReducerError::Invalid { rank: self.rank(), reason: reason.into() }
    }

    /// An index that no parameter has.
    pub fn no_param(&self, param: usize) -> ReducerError {
        self.invalid(format!("there is no parameter {param}, only {}", self.params.len()))
    }

    pub fn buffer(&self, error: BufferError) -> ReducerError {
        ReducerError::Buffer { rank: self.rank(), error }
    }

    pub fn comm(&self, step: u64, what: impl Into<String>, error: CommError) -> ReducerError {
        ReducerError::Comm { rank: self.rank(), step, what: what.into(), error: Box::new(error) }
    }

    pub fn call_options(&self) -> CallOptions {
        CallOptions { timeout: self.options.timeout, async_op: true }
    }

    /// Memory of the host for a small call, in which the bytes lie.
    pub fn staged(&self, bytes: &[u8]) -> Result<Buffer, BufferError> {
        let buffer = Arena::new(bytes.len() as u64)?.buffer(0, bytes.len() as u64)?;
        buffer.write()?.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// What every rank has to say, by place in the group. All ranks give equally many bytes.
    pub fn gather(&self, bytes: &[u8], what: &str, step: u64) -> Result<Vec<Vec<u8>>, ReducerError> {
        gather(self.backend.as_ref(), &self.group, bytes, &self.call_options())
            .map_err(|error| self.comm(step, what, error))
    }

    /// The root's bytes. All ranks give equally many.
    pub fn broadcast(
        &self,
        bytes: &[u8],
        dtype: DType,
        root: usize,
        what: &str,
        step: u64,
    ) -> Result<Vec<u8>, ReducerError> {
        let buffer = self.staged(bytes).map_err(|error| self.buffer(error))?;
        let root = bucketeer_types::GroupRank(root as u32);
        let work =
            self.backend.broadcast(&self.group, Operands::in_place(buffer.clone(), dtype), root, &self.call_options());
        work.and_then(|work| work.wait(None)).map_err(|error| self.comm(step, what, error))?;
        let bytes = buffer.read().map_err(|error| self.buffer(error))?.to_vec();
        Ok(bytes)
    }

    /// Begins to reduce a single number.
    pub fn reduce_one(
        &self,
        value: &[u8],
        dtype: DType,
        op: bucketeer_types::ReduceOp,
    ) -> Result<(Buffer, Work), CommError> {
        let failed = |error| CommError::Buffer { site: self.site("all_reduce"), error };
        let buffer = self.staged(value).map_err(failed)?;
        let work = self.backend.all_reduce(
            &self.group,
            Operands::in_place(buffer.clone(), dtype),
            op.into(),
            &self.call_options(),
        )?;
        Ok((buffer, work))
    }

    /// Which call of the group an error is about that came before its launch.
    pub fn site(&self, op: &'static str) -> bucketeer_comm::Site {
        bucketeer_comm::Site { group: self.group.name().into(), op, seq: None }
    }

    /// Notes another group that a hook launches on: whoever waits there is released, too, if this rank fails.
    pub fn note_beside(&self, group: &Group) {
        let mut beside = lock(&self.beside);
        if !beside.contains(group) {
            beside.push(group.clone());
        }
    }

    /// Whether an earlier step failed.
    pub fn check(&self) -> Result<(), ReducerError> {
        match &*lock(&self.broken) {
            None => Ok(()),
            Some(cause) => Err(ReducerError::Broken { rank: self.rank(), cause: cause.clone() }),
        }
    }

    /// Breaks the reducer on all ranks: releases those that wait, and tells and asks why. The first error counts; it comes
    /// back, or what another rank says that made it.
    pub fn fail(&self, error: ReducerError, step: u64) -> ReducerError {
        if let Some(cause) = &*lock(&self.broken) {
            return (**cause).clone();
        }
        let (own, asks) = match &error {
            // Nothing was launched here, and others wait for it.
            ReducerError::Comm { error, .. } if is_own(error) => (true, true),
            ReducerError::Comm { error, .. } => (false, error.culprits().is_empty() && !tells_both_sides(error)),
            _ => (true, true),
        };
        if own {
            self.backend.abort(&self.group);
            lock(&self.beside).iter().for_each(|group| self.backend.abort(group));
        }
        let told = if asks { self.tell(own.then(|| error.to_string())) } else { Vec::new() };
        let theirs = told.into_iter().find_map(|(rank, reason)| Some((rank, reason?)));
        let error = match theirs {
            Some((rank, reason)) if !own => ReducerError::Elsewhere { rank, step, reason },
            _ => error,
        };
        lock(&self.broken).get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Tells the other ranks a reason, if there is one, and returns theirs. Nothing where they do not answer.
    fn tell(&self, reason: Option<String>) -> Vec<(GlobalRank, Option<String>)> {
        let Some(group) = &self.reasons else { return Vec::new() };
        let mut record = vec![0; REASON_BYTES];
        if let Some(reason) = reason {
            let mut text = reason.into_bytes();
            text.truncate(REASON_BYTES - 3);
            record[0] = 1;
            record[1..3].copy_from_slice(&(text.len() as u16).to_le_bytes());
            record[3..3 + text.len()].copy_from_slice(&text);
        }
        let timeout = self.options.timeout.map_or(REASONS_TIMEOUT, |own| own.min(REASONS_TIMEOUT));
        let options = CallOptions::default().timeout(timeout);
        let Ok(records) = gather(self.backend.as_ref(), group, &record, &options) else { return Vec::new() };
        let read = |record: &[u8]| {
            let len = usize::from(u16::from_le_bytes([record[1], record[2]]));
            let text = record.get(3..3 + len)?;
            (record[0] == 1).then(|| String::from_utf8_lossy(text).into_owned())
        };
        group.members().iter().copied().zip(records.iter().map(|record| read(record))).collect()
    }
}

/// Whether a call could not be made, which only this rank knows.
const fn is_own(error: &CommError) -> bool {
    matches!(error, CommError::Invalid { .. } | CommError::Buffer { .. })
}

/// Whether every rank gets this error with what the others have.
const fn tells_both_sides(error: &CommError) -> bool {
    matches!(error, CommError::Mismatch { .. })
}

/// What every rank gives, by place in the group, when it has come. All give equally many bytes.
fn gather(
    backend: &dyn Backend,
    group: &Group,
    bytes: &[u8],
    options: &CallOptions,
) -> Result<Vec<Vec<u8>>, CommError> {
    let (whole, work) = begin_gather(backend, group, bytes, DType::U8, options)?;
    work.wait(None)?;
    let all = whole.read().map_err(|error| gather_failed(group, error))?;
    Ok(match bytes.len() {
        0 => vec![Vec::new(); group.size()],
        len => all.chunks(len).map(<[u8]>::to_vec).collect(),
    })
}

/// Begins to gather this rank's bytes and the others', end to end.
pub fn begin_gather(
    backend: &dyn Backend,
    group: &Group,
    bytes: &[u8],
    dtype: DType,
    options: &CallOptions,
) -> Result<(Buffer, Work), CommError> {
    let len = bytes.len() as u64;
    let memory = || {
        let arena = Arena::new(len.saturating_mul(group.size() as u64))?;
        let whole = arena.buffer(0, arena.bytes())?;
        let own = whole.part(u64::from(group.rank().0) * len, len)?;
        own.write()?.copy_from_slice(bytes);
        Ok((own, whole))
    };
    let (own, whole) = memory().map_err(|error| gather_failed(group, error))?;
    let work = backend.all_gather_into(group, Operands::new(own, whole.clone(), dtype), options)?;
    Ok((whole, work))
}

fn gather_failed(group: &Group, error: BufferError) -> CommError {
    CommError::Buffer {
        site: bucketeer_comm::Site { group: group.name().into(), op: "all_gather_into", seq: None },
        error,
    }
}
