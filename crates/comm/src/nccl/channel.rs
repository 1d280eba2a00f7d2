//! One group as one rank has it: its communicator, its stream, what is on its way, and what is wrong.

use super::World;
use super::enqueue::HeldOfHost;
use super::launched::{Launched, Scratch};
use super::record::FlightRecord;
use super::verdict::{GroupFailure, Launch, LaunchSite, Report};
use crate::call::Call;
use crate::error::{CommError, Fate, Site};
use crate::group::{Group, numbers};
use crate::signature::CallSignature;
use crate::transport::{Lane, Part, parts};
use crate::{BufferError, lock};
use bucketeer_cuda::nccl::{Comm, NcclError, NcclResult};
use bucketeer_cuda::{CudaError, Event, Stream};
use bucketeer_types::GlobalRank;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// See the module docs.
pub struct Channel {
    pub group: Group,
    /// What its keys in the store begin with.
    key: String,
    pub stream: Stream,
    pub state: Mutex<State>,
    record: Arc<Mutex<FlightRecord>>,
    grace: Duration,
}

/// What the lock guards. It is not held while anything is waited for.
#[derive(Default)]
pub struct State {
    pub comm: Option<Comm>,
    /// Collectives launched.
    launched: u64,
    /// Launched to (`true`) and from others, by group rank.
    lanes: BTreeMap<(bool, u32), u64>,
    /// On its way, in the stream's order.
    pub flying: VecDeque<Arc<Launched>>,
    pub trouble: Option<Trouble>,
    pub broken: Option<GroupFailure>,
    /// Whoever is gone: what is launched from now on would wait for it.
    pub departed: Option<(GlobalRank, Fate)>,
    /// When it was seen to have left in order.
    pub departing: Option<Instant>,
    /// A call of NCCL's that may wait for others, and has not come back.
    pub entered: Option<Entered>,
    /// It ended in order.
    pub closed: bool,
    scratch: BTreeMap<usize, Vec<Scratch>>,
    /// Over, to be recorded again.
    events: Vec<Event>,
}

/// A call of NCCL's that a thread of this rank is in.
pub struct Entered {
    /// What is launched; none while the communicator is closed, which has a limit of its own.
    pub place: Option<LaunchSite>,
    pub since: Instant,
    pub timeout: Duration,
}

impl State {
    /// Whether something here would wait for a rank that is gone. To close does not need one that has done so.
    pub fn waits_for_gone(&self, fate: Option<Fate>) -> bool {
        let enters = |entered: &Entered| entered.place.is_some() || fate != Some(Fate::Left);
        !self.flying.is_empty() || self.entered.as_ref().is_some_and(enters)
    }

    /// What takes too long, and how long.
    pub fn late(&self, now: Instant) -> Option<(LaunchSite, Duration)> {
        let flying = self.flying.iter().find_map(|ticket| ticket.late(now));
        flying.or_else(|| {
            let Entered { place: Some(place), since, timeout } = self.entered.as_ref()? else { return None };
            let waited = now.saturating_duration_since(*since);
            (waited >= *timeout).then(|| (place.clone(), waited))
        })
    }
}

/// Something is wrong, and it is not agreed on yet what.
pub struct Trouble {
    pub cause: Cause,
    pub since: Instant,
    /// Whether others were told, and asked.
    pub told: bool,
    /// What they answered, by place.
    pub reports: Vec<Option<Report>>,
}

/// How it shows.
pub enum Cause {
    /// A launch takes too long.
    Late { place: LaunchSite, waited: Duration },
    /// The library or the device says so.
    Failed { reason: String, elsewhere: bool },
    /// A member is gone while something is on its way.
    Gone,
    /// Another member is in trouble.
    Asked,
}

/// An error with all that is behind it.
pub fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        source = error.source();
    }
    text
}

/// Whether NCCL says that the fault is another rank's.
pub fn is_elsewhere(error: &NcclError) -> bool {
    matches!(error, NcclError::Timeout { .. })
        || matches!(error.code(), Some(NcclResult::REMOTE_ERROR | NcclResult::INVALID_USAGE))
}

impl Channel {
    pub(super) fn new(world: &World, group: Group, stream: Stream) -> Self {
        Self {
            key: format!("{}/group/{}", world.options.name, key_of(group.name())),
            group,
            stream,
            state: Mutex::default(),
            record: world.record.clone(),
            grace: world.options.grace,
        }
    }

    /// The key of one that only members of this list have: groups of one name may exist side by side.
    pub fn key_of_list(&self, what: &str) -> String {
        let first = self.group.members().first().map_or(0, |rank| rank.0);
        format!("{}/{first}/{what}", self.key)
    }

    pub fn key_of_rank(&self, what: &str, rank: GlobalRank) -> String {
        format!("{}/{what}/{}", self.key, rank.0)
    }

    pub fn name(&self) -> Arc<str> {
        self.group.shared_name()
    }

    pub fn members(&self) -> Vec<GlobalRank> {
        self.group.members().to_vec()
    }

    pub fn own(&self) -> GlobalRank {
        self.group.members()[self.group.place()]
    }

    pub const fn grace(&self) -> Duration {
        self.grace
    }

    pub fn site(&self, op: &'static str) -> Site {
        self.group.site(op)
    }

    pub fn invalid(&self, op: &'static str, reason: impl Into<String>) -> CommError {
        self.group.invalid(op, reason)
    }

    pub fn held(&self, op: &'static str, error: BufferError) -> CommError {
        CommError::Buffer { site: self.site(op), error }
    }

    pub fn own_failure(&self, reason: &impl ToString) -> GroupFailure {
        GroupFailure::Failed { rank: self.own(), reason: reason.to_string(), elsewhere: false }
    }

    /// Notes that a thread goes into NCCL, and may wait there.
    pub fn enter(&self, place: Option<LaunchSite>, timeout: Duration) {
        lock(&self.state).entered = Some(Entered { place, since: Instant::now(), timeout });
    }

    pub fn leave(&self) {
        lock(&self.state).entered = None;
    }

    /// That nothing is wrong so far.
    pub fn check_whole(&self, op: &'static str) -> Result<(), CommError> {
        let state = lock(&self.state);
        let site = self.site(op);
        if let Some(verdict) = &state.broken {
            return Err(Arc::new(verdict.describe(&self.name())).at(site));
        }
        state.departed.map_or(Ok(()), |(rank, fate)| Err(CommError::Remote { site, rank, fate }))
    }

    /// Numbers the parts of a launch: each send and receive is counted between its two ranks.
    pub fn number(&self, calls: &[(Call, HeldOfHost)]) -> Vec<(LaunchSite, Vec<CallSignature>)> {
        let mut state = lock(&self.state);
        let own = self.group.rank().0;
        let number = |part: Part<&Call, ()>| {
            let (next, pair) = match part.lane {
                Lane::All => (&mut state.launched, None),
                Lane::To(peer) => (state.lanes.entry((true, peer)).or_default(), Some((own, peer))),
                Lane::From(peer) => (state.lanes.entry((false, peer)).or_default(), Some((peer, own))),
            };
            let place = LaunchSite { op: part.op.to_owned(), seq: *next, pair };
            *next += 1;
            (place, part.calls.into_iter().map(CallSignature::of).collect())
        };
        parts(calls.iter().map(|(call, _)| (call, ()))).into_iter().map(number).collect()
    }

    /// Notes launches in the flight record.
    pub fn record(&self, places: &[(LaunchSite, Vec<CallSignature>)]) -> Vec<u64> {
        let mut record = lock(&self.record);
        places.iter().map(|(place, calls)| record.launched(self.name(), place.seq, place.pair, calls)).collect()
    }

    pub fn recorded(&self, entries: &[u64], well: bool) {
        let mut record = lock(&self.record);
        entries.iter().for_each(|entry| record.end(*entry, well));
    }

    /// Collectives that are done.
    pub fn done(&self) -> u64 {
        let state = lock(&self.state);
        let first = state.flying.iter().flat_map(|ticket| ticket.places()).find(|place| place.pair.is_none());
        first.map_or(state.launched, |place| place.seq)
    }

    /// Where this rank is.
    pub fn report(&self) -> Report {
        let state = lock(&self.state);
        let error = match &state.trouble {
            Some(Trouble { cause: Cause::Failed { reason, elsewhere }, .. }) => Some((reason.clone(), *elsewhere)),
            _ => None,
        };
        let (launched, lanes) = (state.launched, &state.lanes);
        let lanes = lanes.iter().map(|((sends, peer), count)| (*sends, *peer, *count)).collect();
        drop(state);
        let record = lock(&self.record);
        let (mut recent, mut bytes) = (Vec::new(), 0);
        for entry in record.of_group(self.group.name()).rev() {
            let launch = Launch { seq: entry.seq, pair: entry.pair, calls: entry.calls.clone(), of: entry.of };
            bytes += serde_json::to_vec(&launch).map_or(0, |text| text.len());
            if bytes > MOST_REPORT_BYTES && !recent.is_empty() {
                break;
            }
            recent.push(launch);
        }
        recent.reverse();
        Report { launched, lanes, error, recent }
    }

    /// Ends what the device is done with.
    pub fn reap(&self) {
        loop {
            let (ticket, comm) = {
                let mut state = lock(&self.state);
                if state.broken.is_some() {
                    return;
                }
                let (Some(front), comm) = (state.flying.front(), state.comm.clone()) else { return };
                match front.is_over() {
                    Ok(false) => return,
                    Ok(true) => (state.flying.pop_front(), comm),
                    Err(error) => {
                        drop(state);
                        return self.raise_cuda(&error);
                    }
                }
            };
            let Some(ticket) = ticket else { return };
            // What a failed communicator leaves is over, too.
            if let Some(Err(error)) = comm.map(|comm| comm.check()) {
                let mut state = lock(&self.state);
                if let Some(verdict) = state.broken.clone() {
                    // Given up while it was in nobody's hands.
                    drop(state);
                    return ticket.fail(&verdict);
                }
                state.flying.push_front(ticket);
                drop(state);
                // Closed by whoever is about to give the verdict.
                if !matches!(error, NcclError::Closed { .. }) {
                    self.raise(Cause::Failed { reason: text(&error), elsewhere: is_elsewhere(&error) });
                }
                return;
            }
            let Some(flight) = ticket.complete() else { continue };
            let mut state = lock(&self.state);
            if state.events.len() < MOST_EVENTS {
                state.events.push(flight.event);
            }
            for scratch in flight.scratches {
                let list = state.scratch.entry(scratch.device.len()).or_default();
                if list.len() < MOST_SCRATCHES {
                    list.push(scratch);
                }
            }
        }
    }

    fn raise_cuda(&self, error: &CudaError) {
        self.raise(Cause::Failed { reason: text(error), elsewhere: false });
    }

    /// Something is wrong. Of several the first counts, but what is wrong here before what others ask, and a failure before
    /// all else.
    pub fn raise(&self, cause: Cause) {
        let mut state = lock(&self.state);
        if state.broken.is_some() {
            return;
        }
        let weight = |cause: &Cause| match cause {
            Cause::Asked => 0,
            Cause::Gone | Cause::Late { .. } => 1,
            Cause::Failed { .. } => 2,
        };
        match &mut state.trouble {
            Some(trouble) if weight(&trouble.cause) < weight(&cause) => {
                trouble.cause = cause;
                trouble.told = false;
            }
            Some(_) => {}
            trouble @ None => {
                let reports = vec![None; self.group.size()];
                *trouble = Some(Trouble { cause, since: Instant::now(), told: false, reports });
            }
        }
    }

    /// An event to record on the stream: a launch makes none where an earlier one's can be had.
    pub fn event(&self) -> Result<Event, CudaError> {
        match lock(&self.state).events.pop() {
            Some(event) => Ok(event),
            None => self.stream.context().event(),
        }
    }

    /// A scratch of at least so many bytes.
    pub fn scratch(&self, bytes: usize) -> Result<Scratch, CudaError> {
        let bytes = bytes.next_power_of_two().max(LEAST_SCRATCH_BYTES);
        if let Some(scratch) = lock(&self.state).scratch.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(scratch);
        }
        let context = self.stream.context();
        Ok(Scratch { device: context.alloc(bytes)?, pinned: context.alloc_pinned(bytes)? })
    }
}

const LEAST_SCRATCH_BYTES: usize = 256;

/// About the most bytes of a report's launches, so that those of all members fit into the store.
const MOST_REPORT_BYTES: usize = 32 << 10;

/// Most scratches of one size that are kept for later calls.
const MOST_SCRATCHES: usize = 32;

/// Most events that are kept for later calls.
const MOST_EVENTS: usize = 256;

/// Ranks in words, the same for the same ranks: of many a digest.
pub fn told_members(members: &[GlobalRank]) -> String {
    const MOST_TOLD: usize = 32;
    let list = numbers(members);
    match members {
        [first, .., last] if members.len() > MOST_TOLD => {
            let digest = fnv(list.as_bytes());
            format!(
                "{} ranks, the first {} and the last {}, with the digest {digest:016x}",
                members.len(),
                first.0,
                last.0
            )
        }
        _ => list,
    }
}

/// A name as part of a key: with its length, so that no two give the same keys; long ones by a hash.
fn key_of(name: &str) -> String {
    const MOST_BYTES: usize = 128;
    if name.len() <= MOST_BYTES {
        return format!("{}:{name}", name.len());
    }
    format!("{}#{:016x}", name.len(), fnv(name.as_bytes()))
}

/// FNV-1a of 64 bits, the same on all machines.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
