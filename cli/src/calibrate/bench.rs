//! Measuring, as one rank does it. All ranks do the same in the same order: what decides is told to all before it counts.

use super::layout::{self, Members, RankLocation};
use super::memory;
use super::{BackendWord, Job, Kind};
use crate::units::{count, human};
use crate::{talk, world};
use anyhow::{Context as _, Result, anyhow, bail};
use bucketeer::ir::{DType, GroupRank, ReduceOp};
use bucketeer::passes::schedule::profile::Class;
use bucketeer::program::Layout;
use bucketeer_comm::{Arena, Backend, Buffer, Call, CallOptions, Group, Op, Operands, Work};
use bucketeer_cuda::{Context, Event, Stream};
use bucketeer_exec::copy_elements;
use std::time::{Duration, Instant};

/// The smallest message.
pub const FIRST_BYTES: u64 = 4 << 10;

/// The largest message is at least so long, so that there are sizes to fit.
pub const LEAST_MOST_BYTES: u64 = 16 << 10;

/// What is sent: elements of four bytes.
const DTYPE: DType = DType::F32;

/// Neither zero nor anything that arithmetic is slow with: 0.0115, as `f32`.
const FILL: u8 = 0x3c;

/// What all calls of a size may take before there are fewer of them, and how many there are then at least.
const BUDGET: Duration = Duration::from_secs(1);
const FEW: u32 = 3;

/// On a device, calls that are enqueued together, so that what the host takes is hidden: so many, and less above this size.
const MOST_IN_ROW: u64 = 20;
const ROW_BYTES: u64 = 64 << 20;

/// Copies are measured from here on where there are messages of so many bytes: smaller ones stay in caches that a step's other
/// work would have emptied, and buckets are larger.
const FIRST_COPY_BYTES: u64 = 256 << 10;
const COPY_OCTAVES_BYTES: u64 = 4 << 20;

/// Buffers come at multiples of this.
const ALIGN_BYTES: u64 = 4096;

/// What one kind takes in one class of groups.
#[derive(Clone, Debug)]
pub struct Table {
    pub class: Class,
    pub kind: Kind,
    /// Bytes of the message, and nanoseconds; sorted.
    pub points: Vec<(u64, u64)>,
}

/// What was measured, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Measured {
    pub ranks: u32,
    pub per_node: u32,
    /// Whether the launcher said so.
    pub nodes_known: bool,
    /// The largest message.
    pub most_bytes: u64,
    pub tables: Vec<Table>,
    /// Bytes of a copy, and nanoseconds.
    pub copies: Vec<(u64, u64)>,
}

/// The sizes up to the largest: two in each octave.
pub fn sizes(most_bytes: u64) -> Vec<u64> {
    let octaves = (0..).map(|octave| FIRST_BYTES << octave).take_while(|bytes| *bytes <= 1 << 62);
    octaves.flat_map(|bytes| [bytes, bytes + bytes / 2]).take_while(|bytes| *bytes <= most_bytes).collect()
}

/// One rank that measures.
pub struct Bench<'a> {
    job: &'a Job,
    backend: &'a dyn Backend,
    device: Option<(&'a Context, Stream)>,
    world: Group,
    groups: Vec<(Members, Group)>,
    per_node: Option<u32>,
    most_bytes: u64,
    /// Of the largest message each.
    buffers: [Buffer; 2],
}

impl<'a> Bench<'a> {
    /// Agrees with all ranks on nodes and sizes, and makes buffers and groups.
    pub fn new(
        job: &'a Job,
        backend: &'a dyn Backend,
        device: Option<&'a Context>,
        place: RankLocation,
    ) -> Result<Self> {
        let (ranks, own) = (backend.world_size(), backend.rank().0);
        let world = world::all_ranks(backend, "calibrate")?;
        let here = place.per_node.unwrap_or(ranks);
        let fits_bytes = match device {
            Some(context) => memory::most_bytes(context.memory().ok().map(|(free, _)| free as u64), 1, 2),
            // MPI takes one more for what an all-reduce gathers.
            None => memory::most_bytes(memory::free_bytes(), here, if job.backend == BackendWord::Mpi { 3 } else { 2 }),
        };
        let told = [place.local_rank, place.per_node].map(|known| known.map_or(0, |number| u64::from(number) + 1));
        let all = exchange(backend, &world, &[told[0], told[1], fits_bytes])?;
        let known = |number: u64| u32::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let places: Vec<RankLocation> =
            all.iter().map(|told| RankLocation { local_rank: known(told[0]), per_node: known(told[1]) }).collect();
        let per_node = layout::per_node(&places)?;
        let fits_bytes = all.iter().map(|told| told[2]).min().unwrap_or(0);
        let most_bytes = largest(job.most_bytes, fits_bytes, here)?;
        let half_bytes = most_bytes.next_multiple_of(ALIGN_BYTES);
        let arena = match device {
            None => backend.arena(2 * half_bytes),
            Some(context) => {
                let bytes = usize::try_from(2 * half_bytes).unwrap_or(usize::MAX);
                Arena::on_device(context.alloc(bytes).map_err(|error| short(most_bytes, &error))?)
            }
        };
        let arena = arena.map_err(|error| short(most_bytes, &error))?;
        let buffers = [arena.buffer(0, most_bytes)?, arena.buffer(half_bytes, most_bytes)?];
        let mut groups = Vec::new();
        for members in layout::groups(ranks, per_node.unwrap_or(ranks), own) {
            let group = backend.new_group(members.name, &members.ranks)?;
            groups.push((members, group));
        }
        let device = match device {
            Some(context) => Some((context, context.stream()?)),
            None => None,
        };
        Ok(Self { job, backend, device, world, groups, per_node, most_bytes, buffers })
    }

    /// Measures all kinds in all groups, and copies.
    pub fn measure(self, progress: Option<&talk::Progress>) -> Result<Measured> {
        self.touch()?;
        let mut tables = Vec::new();
        for (members, group) in &self.groups {
            for &kind in &self.job.kinds {
                let mut points: Vec<(u64, u64)> = Vec::new();
                for bytes in sizes(self.most_bytes) {
                    let message = Message::of(kind, group, bytes);
                    if points.last().is_some_and(|last| last.0 == message.bytes) {
                        continue;
                    }
                    if let Some(progress) = progress {
                        let (kind, bytes) = (kind.name(), human(message.bytes));
                        progress.set(format!("{}: {kind} of {bytes}", members.name));
                    }
                    points.push((message.bytes, self.time(&|| self.call(group, &message))?));
                }
                tables.push(Table { class: members.class, kind, points });
            }
        }
        let mut copies = Vec::new();
        let first_bytes = if self.most_bytes < COPY_OCTAVES_BYTES { FIRST_BYTES } else { FIRST_COPY_BYTES };
        for bytes in sizes(self.most_bytes).into_iter().filter(|bytes| *bytes >= first_bytes) {
            if let Some(progress) = progress {
                progress.set(format!("copies of {}", human(bytes)));
            }
            copies.push((bytes, self.time(&|| self.copy(bytes))?));
        }
        Ok(Measured {
            ranks: self.backend.world_size(),
            per_node: self.per_node.unwrap_or_else(|| self.backend.world_size()),
            nodes_known: self.per_node.is_some(),
            most_bytes: self.most_bytes,
            tables,
            copies,
        })
    }

    /// Writes to all memory, so that no call is the first to do so.
    fn touch(&self) -> Result<()> {
        for buffer in &self.buffers {
            match (buffer.device(), &self.device) {
                (Some(memory), Some((_, stream))) => {
                    stream.fill(&memory, 0..memory.len(), FILL)?;
                    stream.synchronize()?;
                }
                _ => buffer.write()?.fill(FILL),
            }
        }
        Ok(())
    }

    /// The median of what something takes the slowest rank. `once` does it, and says how long it took this one.
    fn time(&self, once: &dyn Fn() -> Result<Duration>) -> Result<u64> {
        let timed = || {
            self.backend.barrier(&self.world, &CallOptions::default())?.wait(None)?;
            once().map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        // The first pays for what nobody has touched or connected yet, the second says how many there can be.
        timed()?;
        let first = slowest(&exchange(self.backend, &self.world, &[timed()?])?);
        let times = (0..repeats(self.job.repeat, first[0])).map(|_| timed()).collect::<Result<Vec<u64>>>()?;
        let mut times = slowest(&exchange(self.backend, &self.world, &times)?);
        times.sort_unstable();
        Ok(times[(times.len() - 1) / 2].max(1))
    }

    /// How long a message takes, from its launch until it is there.
    fn call(&self, group: &Group, message: &Message) -> Result<Duration> {
        match &self.device {
            Some((context, _)) => {
                let stream = self.backend.stream(group).ok_or_else(|| anyhow!("the group has no stream"))?;
                let in_row = in_row(message.bytes);
                let mut works = Vec::new();
                let timed = Timed::enqueue(context, &stream, || {
                    for _ in 0..in_row {
                        works.push(self.launch(group, message)?);
                    }
                    Ok(())
                })?;
                works.iter().try_for_each(|work| work.wait(None))?;
                Ok(timed.time()? / in_row)
            }
            None => {
                let start = Instant::now();
                self.launch(group, message)?.wait(None)?;
                Ok(start.elapsed())
            }
        }
    }

    fn launch(&self, group: &Group, message: &Message) -> Result<Work> {
        let options = CallOptions::default();
        let [input, output] = &self.buffers;
        let (input, output) = (input.part(0, message.input_bytes)?, output.part(0, message.output_bytes)?);
        Ok(match &message.op {
            Some(op) => self.backend.launch(
                group,
                Call::collective(op.clone(), Operands::new(input, output, DTYPE)),
                &options,
            )?,
            // Each sends to the next, and the last to the first.
            None => {
                let (place, size) = (group.rank().0, group.size() as u32);
                let (next, last) = (GroupRank((place + 1) % size), GroupRank((place + size - 1) % size));
                self.backend.start_coalescing(group)?;
                self.backend.recv(group, output, DTYPE, last, &options)?;
                self.backend.send(group, input, DTYPE, next, &options)?;
                self.backend.end_coalescing(group, &options)?
            }
        })
    }

    /// How long a copy takes that packs a bucket.
    fn copy(&self, bytes: u64) -> Result<Duration> {
        let [input, output] = &self.buffers;
        let (input, output) = (input.part(0, bytes)?, output.part(0, bytes)?);
        if let (Some((context, stream)), Some(from), Some(to)) = (&self.device, input.device(), output.device()) {
            let in_row = in_row(bytes);
            let timed = Timed::enqueue(context, stream, || {
                Ok((0..in_row).try_for_each(|_| stream.copy(&from, 0..from.len(), &to, 0))?)
            })?;
            return Ok(timed.time()? / in_row);
        }
        let layout = Layout::dense(DTYPE, &[bytes / DTYPE.bytes()]).context("a size that no memory has")?;
        let (from, mut to) = (input.read()?, output.write()?);
        let start = Instant::now();
        copy_elements(&from, &layout, &mut to, &layout)?;
        Ok(start.elapsed())
    }
}

/// A call and its bytes.
struct Message {
    /// `None` for a permute.
    op: Option<Op>,
    input_bytes: u64,
    output_bytes: u64,
    /// As costs count them: of a scatter or reduce what is given, of all others what comes out.
    bytes: u64,
}

impl Message {
    /// Of about so many bytes: where ranks have parts, these are of whole elements.
    fn of(kind: Kind, group: &Group, bytes: u64) -> Self {
        let (size, root) = (group.size() as u64, GroupRank(0));
        let sum = ReduceOp::Sum;
        let part = (bytes / size / DTYPE.bytes()).max(1) * DTYPE.bytes();
        let (op, input_bytes, output_bytes) = match kind {
            Kind::AllGather => (Some(Op::AllGather), part, part * size),
            Kind::ReduceScatter => (Some(Op::ReduceScatter(sum.into())), part * size, part),
            Kind::AllReduce => (Some(Op::AllReduce(sum.into())), bytes, bytes),
            Kind::Broadcast => (Some(Op::Broadcast { root }), bytes, bytes),
            Kind::Reduce => (Some(Op::Reduce { op: sum.into(), root }), bytes, bytes),
            Kind::AllToAll => (Some(Op::AllToAll { send: Vec::new(), receive: Vec::new() }), part * size, part * size),
            Kind::Permute => (None, bytes, bytes),
        };
        let bytes = if kind == Kind::ReduceScatter { input_bytes } else { output_bytes };
        Self { op, input_bytes, output_bytes, bytes }
    }
}

/// Work on a stream, between two events.
struct Timed {
    start: Event,
    end: Event,
}

impl Timed {
    fn enqueue(context: &Context, stream: &Stream, enqueue: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (start, end) = (context.timing_event()?, context.timing_event()?);
        stream.record(&start)?;
        enqueue()?;
        stream.record(&end)?;
        Ok(Self { start, end })
    }

    /// Waits for it, and says how long it took.
    fn time(&self) -> Result<Duration> {
        self.end.synchronize()?;
        Ok(self.end.since(&self.start)?)
    }
}

/// How many calls are enqueued together.
fn in_row(bytes: u64) -> u32 {
    (ROW_BYTES / bytes.max(1)).clamp(1, MOST_IN_ROW) as u32
}

/// How many calls there are of a size, of which one took so long.
fn repeats(asked: u32, first_ns: u64) -> u32 {
    let fit = BUDGET.as_nanos() as u64 / first_ns.max(1);
    asked.min(u32::try_from(fit).unwrap_or(u32::MAX).max(FEW))
}

/// The largest message, of those asked for, that fits.
fn largest(asked_bytes: u64, fits_bytes: u64, ranks_here: u32) -> Result<u64> {
    let sizes = sizes(asked_bytes.min(fits_bytes));
    match sizes.last() {
        Some(&most) if most >= LEAST_MOST_BYTES => Ok(most),
        _ => bail!(
            "the free memory holds buffers of {} for messages of {}, expected at least {}; free memory, or start fewer ranks",
            human(fits_bytes),
            count(ranks_here as usize, "rank"),
            human(LEAST_MOST_BYTES)
        ),
    }
}

/// Why there are no buffers.
fn short(most_bytes: u64, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("no buffers for messages of {}: {error}; lower --max-bytes", human(most_bytes))
}

/// As many numbers of each rank, in rank order.
fn exchange(backend: &dyn Backend, world: &Group, numbers: &[u64]) -> Result<Vec<Vec<u64>>> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let all = world::gather(backend, world, &bytes)?;
    let read = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    Ok(all.into_iter().map(read).collect())
}

/// Of each number the largest of all ranks.
fn slowest(all: &[Vec<u64>]) -> Vec<u64> {
    let of = |at: usize| all.iter().filter_map(|numbers| numbers.get(at)).copied().max().unwrap_or(0);
    (0..all.first().map_or(0, Vec::len)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::ir::GlobalRank;
    use bucketeer_comm::fake::FakeRank;

    #[test]
    fn sizes_come_twice_in_each_octave() {
        assert_eq!(sizes(16 << 10), [4096, 6144, 8192, 12_288, 16_384]);
        assert_eq!(sizes(16_383).last(), Some(&12_288));
        assert_eq!((sizes(1 << 30).len(), sizes(4095).len()), (37, 0));
        assert!(sizes(u64::MAX).is_sorted());
    }

    #[test]
    fn messages_count_what_costs_count_and_fit_their_call() {
        let rank = FakeRank::new(GlobalRank(0), 3).unwrap();
        let group = world::all_ranks(&rank, "three").unwrap();
        let arena = Arena::new(1 << 16).unwrap();
        for kind in Kind::ALL {
            for bytes in sizes(16 << 10) {
                let message = Message::of(kind, &group, bytes);
                assert!(message.bytes <= bytes && message.bytes + 12 > bytes, "{kind:?}: {}", message.bytes);
                assert_eq!(message.bytes, message.input_bytes.max(message.output_bytes), "{kind:?}");
                let Some(op) = message.op else { continue };
                let input = arena.buffer(0, message.input_bytes).unwrap();
                let output = arena.buffer(1 << 15, message.output_bytes).unwrap();
                Call::collective(op, Operands::new(input, output, DTYPE)).check(&group).unwrap();
            }
        }
    }

    #[test]
    fn long_calls_are_made_less_often_and_three_times_at_least() {
        assert_eq!([0, 1000, 100_000_000].map(|first| repeats(9, first)), [9; 3]);
        assert_eq!([200_000_000, 500_000_000, u64::MAX].map(|first| repeats(9, first)), [5, 3, 3]);
        assert_eq!((repeats(1, 0), repeats(2, u64::MAX)), (1, 2));
    }

    #[test]
    fn the_largest_message_is_what_is_asked_for_or_fits() {
        assert_eq!(largest(1 << 30, u64::MAX, 2).unwrap(), 1 << 30);
        assert_eq!(largest(100 << 20, 1 << 20, 2).unwrap(), 1 << 20);
        assert_eq!(largest(100 << 20, u64::MAX, 2).unwrap(), 96 << 20);
        let error = largest(1 << 30, 8 << 10, 2).unwrap_err().to_string();
        assert!(error.contains("buffers of 8.0 KiB") && error.contains("at least 16.0 KiB"), "{error}");
    }

    #[test]
    fn of_all_ranks_the_slowest_counts() {
        assert_eq!(slowest(&[vec![1, 5], vec![3, 2]]), [3, 5]);
        assert_eq!(slowest(&[]), [0; 0]);
    }
}
