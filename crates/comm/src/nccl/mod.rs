//! NCCL as a [`Backend`](crate::Backend): one communicator and one stream for each group, and a watchdog that lets
//! nothing hang.
//!
//! - **Launches** are enqueued by the calling thread, in its order, so that ranks that run the same program launch in the same
//!   order on all groups.
//! - **Buffers** of a device ([`Arena::on_device`](crate::Arena::on_device)) are used where they are; which stream
//!   waits for which is the caller's to say, by the group's [`stream`](crate::Backend::stream). Buffers of the host are lent to the
//!   call, and travel by way of page-locked memory.
//! - **Groups** connect at their first launch, or by [`announce`](crate::Backend::announce), which does so in an order that all ranks
//!   agree on. All members have to come for that, also when the first launch is a message between two of them.
//! - **Faults.** A thread of the rank asks NCCL for errors, the clock for calls that take too long, and the store for other
//!   ranks. The rank that notices something asks all members where they are, waits for [`NcclOptions::grace`] at most, and
//!   writes a verdict, which is everyone's. Then all calls in flight fail with an error that names the ranks at fault, the
//!   communicator is aborted, and the last 256 calls are written to [`NcclOptions::flight_records`].
//! - **Values.** Sums are NCCL's own: their order is not that of the ranks, and depends on sizes and topology.
//!
//! NCCL does not reduce 16-bit integers, and has no bitwise operations; such calls are refused. Bools are reduced as bytes of
//! 0 and 1.

mod announce;
mod channel;
mod connect;
mod enqueue;
mod launched;
mod record;
mod verdict;
mod watch;

use crate::backend::Announced;
use crate::call::Call;
use crate::error::{CommError, Fate, Site};
use crate::group::Group;
use crate::groups::GroupTable;
use crate::lock;
use crate::signature::Described;
use crate::store::Store;
use crate::ticket::Pending;
use crate::transport::{Joined, Transport};
use bucketeer_cuda::nccl::{Comm, Nccl, NcclError};
use bucketeer_cuda::{Context, Stream};
use bucketeer_types::GlobalRank;
use channel::Channel;
use enqueue::HeldOfHost;
use launched::{Flight, Launched};
use record::FlightRecord;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use verdict::{GroupFailure, error_at};
use watch::Bell;

/// How a rank on NCCL behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NcclOptions {
    /// How long a call may take if it does not say so itself, and how long a group may take to connect. Ten minutes, as in
    /// PyTorch.
    pub timeout: Duration,
    /// How long others have to say where they are when something is wrong, and what is on its way to arrive when a rank is
    /// gone.
    pub grace: Duration,
    /// How often the watchdog looks at the device.
    pub poll: Duration,
    /// How often it looks at the store, when all is well.
    pub store_poll: Duration,
    /// The folder that a rank writes `flight-rankN.json` to when a group of it fails.
    pub flight_records: Option<PathBuf>,
    /// Keeps worlds apart that follow one another on one store; the same on all ranks.
    pub name: String,
}

impl Default for NcclOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            grace: Duration::from_secs(2),
            poll: Duration::from_millis(20),
            store_poll: Duration::from_millis(250),
            flight_records: None,
            name: "world".to_owned(),
        }
    }
}

/// What a rank's threads share.
struct World {
    nccl: Nccl,
    context: Context,
    store: Arc<dyn Store>,
    options: NcclOptions,
    channels: Mutex<Vec<Arc<Channel>>>,
    record: Arc<Mutex<FlightRecord>>,
    /// Held while a group connects.
    connecting: Mutex<()>,
    announced: AtomicU64,
    /// This rank's digests in the store, and who reads them.
    digests: Mutex<Vec<(String, Vec<GlobalRank>)>>,
    bell: (Mutex<Bell>, Condvar),
}

/// One rank of a world of processes or threads, on its GPU; see the module docs.
///
/// [`close`](Self::close) ends it together with the others. One that is dropped leaves: others' calls that wait for it fail.
pub struct NcclRank {
    world: Arc<World>,
    groups: GroupTable<Joined<Self>>,
    watchdog: Option<JoinHandle<()>>,
}

/// Longest wait for the watchdog's end. It may be in a call of the driver's.
const STOP_LIMIT: Duration = Duration::from_secs(5);

impl NcclRank {
    /// The rank that the store says this is, on the device of `context`. Does not wait for others.
    ///
    /// # Errors
    /// [`CommError::Failed`] when the system gives no thread.
    pub fn new(nccl: &Nccl, context: &Context, store: Arc<dyn Store>, options: NcclOptions) -> Result<Self, CommError> {
        let (rank, world_size) = (store.rank(), store.world_size());
        let world = Arc::new(World {
            nccl: nccl.clone(),
            context: context.clone(),
            store,
            options,
            channels: Mutex::default(),
            record: Arc::new(Mutex::new(FlightRecord::new(rank))),
            connecting: Mutex::new(()),
            announced: AtomicU64::new(0),
            digests: Mutex::default(),
            bell: (Mutex::default(), Condvar::new()),
        });
        let watched = world.clone();
        let started = thread::Builder::new().name(format!("watchdog of rank {}", rank.0));
        let watchdog = started.spawn(move || watch::watch(&watched)).map_err(|error| CommError::Failed {
            site: Site { group: "world".into(), op: "world", seq: None },
            rank,
            reason: format!("the system gives no thread: {error}").into(),
            elsewhere: false,
        })?;
        Ok(Self { world, groups: GroupTable::new(rank, world_size), watchdog: Some(watchdog) })
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.world.context
    }

    /// The library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.world.nccl
    }

    /// Ends all groups in order, together with the other members, who close too: waits for all calls, and at most for the
    /// timeout for the others.
    ///
    /// # Errors
    /// The first error of a group. The others are closed all the same.
    pub fn close(self) -> Result<(), CommError> {
        let mut channels = lock(&self.world.channels).clone();
        channels.sort_by(|a, b| (a.group.name(), a.group.members()).cmp(&(b.group.name(), b.group.members())));
        let mut first = Ok(());
        for channel in &channels {
            let closed = self.close_one(channel);
            first = first.and(closed);
        }
        first
    }

    fn close_one(&self, channel: &Arc<Channel>) -> Result<(), CommError> {
        let flying: Vec<Arc<Launched>> = lock(&channel.state).flying.iter().cloned().collect();
        flying.iter().try_for_each(|launched| launched.wait(launched.at, launched.timeout))?;
        let comm = lock(&channel.state).comm.clone();
        let Some(comm) = comm else {
            lock(&channel.state).closed = true;
            return Ok(());
        };
        channel.enter(None, Duration::MAX);
        let closed = comm.close();
        match closed {
            Ok(()) => {
                let mut state = lock(&channel.state);
                (state.comm, state.entered, state.closed) = (None, None, true);
                Ok(())
            }
            Err(error) => {
                let place = verdict::LaunchSite { op: "close".to_owned(), seq: 0, pair: None };
                let verdict = self.world.cause_of(channel, &error, place);
                channel.leave();
                Err(self.world.fail(channel, verdict).describe(&channel.name()))
            }
        }
    }

    fn fly(
        &self,
        channel: &Channel,
        comm: &Comm,
        calls: Vec<(Call, HeldOfHost)>,
    ) -> Result<(enqueue::Enqueued, bucketeer_cuda::Event), NcclError> {
        let enqueued = enqueue::enqueue(channel, comm, calls)?;
        let event = channel.event()?;
        channel.stream.record(&event)?;
        Ok((enqueued, event))
    }

    /// Gives a group up on purpose. Whoever is gone is the better reason, which others may not have seen yet.
    fn leave_to_others(&self, channel: &Channel) {
        let departed = lock(&channel.state).departed;
        let verdict = match departed {
            Some((rank, fate)) => GroupFailure::Remote { rank, fate, after: None },
            None => GroupFailure::Aborted { by: channel.own() },
        };
        self.give_up(channel, verdict);
    }

    fn give_up(&self, channel: &Channel, verdict: GroupFailure) {
        let agreed = self.world.agree(channel, verdict);
        self.world.break_off(channel, &agreed);
    }
}

impl Transport for NcclRank {
    const NAME: &'static str = "nccl";
    type State = Arc<Channel>;
    type Held = HeldOfHost;
    type Pending = Arc<Launched>;

    fn groups(&self) -> &GroupTable<Joined<Self>> {
        &self.groups
    }

    fn timeout(&self) -> Duration {
        self.world.options.timeout
    }

    fn stream_of(&self, channel: &Arc<Channel>) -> Option<Stream> {
        Some(channel.stream.clone())
    }

    fn compare_plans(&self, launches: &[Announced]) -> Result<(), CommError> {
        self.world.announce(launches)
    }

    fn join(&self, group: &Group, op: &'static str) -> Result<Arc<Channel>, CommError> {
        let stream = self.world.context.stream().map_err(|error| CommError::Failed {
            site: group.site(op),
            rank: self.groups.rank(),
            reason: channel::text(&error).into(),
            elsewhere: false,
        })?;
        let channel = Arc::new(Channel::new(&self.world, group.clone(), stream));
        lock(&self.world.channels).push(channel.clone());
        Ok(channel)
    }

    fn hold(&self, group: &Group, channel: &Arc<Channel>, call: &Call) -> Result<HeldOfHost, CommError> {
        let op = call.op().name();
        enqueue::check(&self.world.nccl, &self.world.context, call).map_err(|reason| channel.invalid(op, reason))?;
        enqueue::hold(call, group).map_err(|error| channel.held(op, error))
    }

    fn post(
        &self,
        _: &Group,
        channel: &Arc<Channel>,
        calls: Vec<(Call, HeldOfHost)>,
        timeout: Duration,
    ) -> Result<Arc<Launched>, CommError> {
        let first = calls[0].0.op().name();
        self.world.whole(channel, first)?;
        let comm = self.world.connected(channel)?;
        let places = channel.number(&calls);
        let entries = channel.record(&places);
        let places: Vec<verdict::LaunchSite> = places.into_iter().map(|(place, _)| place).collect();
        channel.enter(places.first().cloned(), timeout);
        match self.fly(channel, &comm, calls) {
            Ok((enqueued, event)) => {
                let enqueue::Enqueued { scratches, held, returns } = enqueued;
                let flight = Flight { places, entries, event, scratches, held, returns };
                let launched = Arc::new(Launched::new(channel.clone(), flight, timeout));
                let mut state = lock(&channel.state);
                state.entered = None;
                if let Some(verdict) = state.broken.clone() {
                    drop(state);
                    self.world.dump(channel, &verdict, Vec::new());
                    launched.fail(&verdict);
                } else {
                    state.flying.push_back(launched.clone());
                }
                Ok(launched)
            }
            Err(error) => {
                channel.recorded(&entries, false);
                let verdict = self.world.cause_of(channel, &error, places[0].clone());
                channel.leave();
                let agreed = self.world.fail(channel, verdict);
                Err(error_at(&agreed, &channel.name(), &places[0]))
            }
        }
    }

    fn give_up(&self, _: &Group, channel: &Arc<Channel>) {
        self.leave_to_others(channel);
    }
}

impl fmt::Debug for NcclRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on {:?}", self.groups.rank().0, self.groups.world_size(), self.world.nccl)
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        let (rank, fate) = (self.groups.rank(), if thread::panicking() { Fate::Panicked } else { Fate::Left });
        // Whoever is lost may be why this one goes.
        let gone = if fate == Fate::Left { self.world.store.gone() } else { Vec::new() };
        for channel in lock(&self.world.channels).iter() {
            channel.reap();
            let state = lock(&channel.state);
            let is_over = state.broken.is_some() || state.closed;
            drop(state);
            if !is_over {
                let lost =
                    |(rank, fate): &&(GlobalRank, Fate)| *fate != Fate::Left && channel.group.members().contains(rank);
                let verdict = match gone.iter().find(lost) {
                    Some(&(rank, fate)) => GroupFailure::Remote { rank, fate, after: None },
                    None => GroupFailure::Remote { rank, fate, after: Some(channel.done()) },
                };
                self.give_up(channel, verdict);
            }
        }
        let mut bell = lock(&self.world.bell.0);
        bell.stop = true;
        self.world.bell.1.notify_all();
        let waited = self.world.bell.1.wait_timeout_while(bell, STOP_LIMIT, |bell| !bell.stopped);
        let (bell, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let stopped = bell.stopped;
        drop(bell);
        // So that the store's handle goes with this one, and says how.
        if let (true, Some(watchdog)) = (stopped, self.watchdog.take()) {
            let _ = watchdog.join();
        }
    }
}
