//! Ranks as processes, each with its GPU, that meet by way of a store.

use super::report::{Equality, Outcome};
use super::{Both, Job, NAMES, explained};
use crate::talk;
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::check::eval::num::{Class, class, load_float};
use bucketeer::check::eval::{Output, OutputTensor};
use bucketeer::ir::{DType, GlobalRank};
use bucketeer::program::Program;
use bucketeer::runtime::cuda::nvrtc::Nvrtc;
use bucketeer::runtime::cuda::{self, Driver};
use bucketeer::runtime::executor::{DeviceExecutor, Reference, Run, RunError, Times};
use bucketeer::runtime::nccl::{Nccl, NcclOptions, NcclRank};
use bucketeer::runtime::rendezvous::Rendezvous;
use bucketeer::runtime::store::{MemoryStore, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This process among the ranks of a world.
pub struct Process {
    store: Arc<dyn Store>,
    local_rank: u32,
    flight_records: PathBuf,
}

/// What a rank tells of its runs.
#[derive(Serialize, Deserialize)]
struct Told {
    /// Of each program, by run, in nanoseconds: see [`numbers`].
    times: [Vec<[u64; 13]>; 2],
    equality: Equality,
}

/// How often a rank looks whether another is gone while it waits for its word.
const LOOK: Duration = Duration::from_millis(20);

impl Process {
    /// The world that the environment names, with as many ranks as the graph asks for. Waits for all of them.
    pub fn join(job: &Job, ranks: u32) -> Result<Self> {
        let meeting = Rendezvous::from_env()?;
        let found = meeting.as_ref().map_or(1, |meeting| meeting.world_size);
        if found != ranks {
            let says = meeting.as_ref().map_or_else(
                || "no launcher says which rank this is, so it is a world of one".to_owned(),
                |meeting| format!("{} says that there are {found}", meeting.launcher),
            );
            bail!(
                "the graph runs on {ranks} ranks, and {says}; start as many: bucketeer launch --nproc {ranks} -- run ..., or \
                 torchrun, mpirun or srun"
            );
        }
        let folder = |port: u16| std::env::temp_dir().join(format!("bucketeer-flight-{port}"));
        let (store, local_rank, named): (Arc<dyn Store>, _, _) = match meeting {
            None => {
                let store = MemoryStore::world(1).pop().ok_or_else(|| anyhow!("no store for a world of one"))?;
                (Arc::new(store), 0, std::env::temp_dir().join(format!("bucketeer-flight-{}", std::process::id())))
            }
            Some(meeting) => {
                let store = meeting.join(job.local.timeout)?;
                (Arc::new(store), meeting.local_rank.unwrap_or(0), folder(meeting.port))
            }
        };
        let flight_records = job.flight_records.clone().unwrap_or(named);
        Ok(Self { store, local_rank, flight_records })
    }

    pub fn rank(&self) -> u32 {
        self.store.rank().0
    }

    /// Runs both programs, compares what this rank made of them, and puts together what all ranks tell.
    pub fn run(
        &self,
        job: &Job,
        programs: &[Program; 2],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<(Both, Outcome)> {
        let record = self.flight_records.join(format!("flight-rank{}.json", self.rank()));
        // Of an earlier run, and not to be taken for this one's.
        let _ = std::fs::remove_file(&record);
        let ran = self.both(job, programs, inputs, progress);
        if ran.is_err() && record.exists() {
            talk::say(&format!("note: the last calls of rank {} are in {}", self.rank(), record.display()));
        }
        let [came, bucketed] = ran?;
        let equality = equality(&came.0, &bucketed.0, self.rank() as usize, self.store.world_size());
        let told = Told { times: [came.1, bucketed.1].map(|times| times.iter().map(numbers).collect()), equality };
        let all = self.exchange(job, &told)?;
        self.leave()?;
        let outputs = came.0.outputs.len();
        Ok(([vec![came.0], vec![bucketed.0]], outcome(&all, outputs)))
    }

    /// The fastest run of each program on this rank, and the times of all.
    fn both(
        &self,
        job: &Job,
        programs: &[Program; 2],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<[(Run, Vec<Times>); 2]> {
        let nccl = Nccl::load(None).context("--backend nccl")?;
        let driver = Driver::load(None).context("--backend nccl")?;
        let context = driver.device(self.ordinal(&driver)?)?.context()?;
        let nvrtc = Nvrtc::load(None);
        let run = |which: usize| {
            let options = NcclOptions {
                timeout: job.local.timeout,
                flight_records: Some(self.flight_records.clone()),
                name: format!("run/{which}"),
                ..NcclOptions::default()
            };
            let rank = NcclRank::new(&nccl, &context, self.store.clone(), options)?;
            let made = self.one(job, &programs[which], inputs, (which, &rank, &context, &nvrtc), progress);
            let made = made.map_err(|error| error.downcast::<RunError>().map_or_else(|error| error, explained))?;
            rank.close()?;
            Ok::<_, anyhow::Error>(made)
        };
        Ok([run(0)?, run(1)?])
    }

    fn one(
        &self,
        job: &Job,
        program: &Program,
        inputs: &[Output],
        (which, rank, context, nvrtc): (usize, &NcclRank, &cuda::Context, &Result<Nvrtc, cuda::nvrtc::NvrtcError>),
        progress: &talk::Progress,
    ) -> Result<(Run, Vec<Times>)> {
        let mut executor = DeviceExecutor::new(program, rank, context, nvrtc.as_ref())?;
        let (mut best, mut times): (Option<Run>, Vec<Times>) = (None, Vec::new());
        for nth in 1..=job.repeat {
            progress.set(format!("running {}, {nth} of {}", NAMES[which], job.repeat));
            self.meet(job, &format!("run/{which}/{nth}"), b"")?;
            let run = executor.run(inputs, &mut Reference::new(GlobalRank(self.rank()), job.seed))?;
            times.push(run.times);
            if best.as_ref().is_none_or(|best| run.times.total < best.times.total) {
                best = Some(run);
            }
        }
        Ok((best.context("nothing was run")?, times))
    }

    /// The GPU of this rank.
    fn ordinal(&self, driver: &Driver) -> Result<u32> {
        let (count, local) = (driver.device_count()?, self.local_rank);
        match count {
            // Where a launcher shows each rank one GPU, it is the first.
            1 => Ok(0),
            _ if local < count => Ok(local),
            _ => bail!("this is rank {local} of this machine, counted from 0, and the machine has {count} GPUs"),
        }
    }

    fn exchange(&self, job: &Job, told: &Told) -> Result<Vec<Told>> {
        let own = serde_json::to_vec(told).context("cannot write JSON")?;
        let values = self.meet(job, "run/told", &own)?;
        let read = |(rank, value): (usize, &Vec<u8>)| {
            serde_json::from_slice(value).with_context(|| format!("rank {rank} tells its times in other words"))
        };
        values.iter().enumerate().map(read).collect()
    }

    /// Rank 0 may hold the store: it stays until the others have read what they need.
    fn leave(&self) -> Result<()> {
        let key = |rank: u32| format!("run/end/{rank}");
        self.store.set(&key(self.rank()), b"")?;
        let keys: Vec<String> = (0..self.store.world_size()).map(key).collect();
        let start = Instant::now();
        while self.rank() == 0 && start.elapsed() < END_LIMIT && self.store.wait(&keys, LOOK).is_err() {}
        Ok(())
    }

    /// Tells all ranks something, and waits for what they tell, in rank order.
    fn meet(&self, job: &Job, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = |rank: u32| format!("{what}/{rank}");
        self.store.set(&key(self.rank()), value)?;
        let keys: Vec<String> = (0..self.store.world_size()).map(key).collect();
        let start = Instant::now();
        loop {
            match self.store.wait(&keys, LOOK) {
                Ok(values) => return Ok(values),
                Err(StoreError::Timeout { .. }) if start.elapsed() < job.local.timeout => {}
                Err(error) => return Err(error.into()),
            }
            let values = self.store.get(&keys)?;
            let missing = |rank: &GlobalRank| values.get(rank.0 as usize).is_some_and(Option::is_none);
            if let Some((rank, fate)) = self.store.gone().into_iter().find(|(rank, _)| missing(rank)) {
                bail!("rank {} {fate} before all were done", rank.0);
            }
        }
    }
}

/// Longest wait for other ranks at the very end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Times as numbers.
fn numbers(times: &Times) -> [u64; 13] {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let steps = |steps: usize| steps as u64;
    let Times { total, compute, pack, unpack, copy, comm, sent_bytes, exposed } = times;
    let kinds = [compute, pack, unpack, copy, comm];
    let mut numbers = [0; 13];
    for (at, kind) in kinds.into_iter().enumerate() {
        (numbers[2 * at], numbers[2 * at + 1]) = (steps(kind.steps), nanos(kind.time));
    }
    [numbers[10], numbers[11], numbers[12]] = [nanos(*total), *sent_bytes, nanos(*exposed)];
    numbers
}

/// What [`numbers`] were.
fn times(numbers: &[u64; 13]) -> Times {
    let kind = |at: usize| bucketeer::runtime::executor::StepKindTimes {
        steps: numbers[2 * at] as usize,
        time: Duration::from_nanos(numbers[2 * at + 1]),
    };
    Times {
        compute: kind(0),
        pack: kind(1),
        unpack: kind(2),
        copy: kind(3),
        comm: kind(4),
        total: Duration::from_nanos(numbers[10]),
        sent_bytes: numbers[11],
        exposed: Duration::from_nanos(numbers[12]),
    }
}

/// Of each program, the run whose slowest rank was fastest; and how all ranks' outputs compare.
fn outcome(all: &[Told], outputs: usize) -> Outcome {
    let fastest = |which: usize| {
        let runs = all.iter().map(|told| told.times[which].len()).min().unwrap_or(0);
        let of = |run: usize| all.iter().map(|told| times(&told.times[which][run])).collect::<Vec<_>>();
        let slowest = |times: &[Times]| times.iter().map(|times| times.total).max().unwrap_or_default();
        (0..runs).map(of).min_by_key(|times| slowest(times)).unwrap_or_default()
    };
    let mut equality = Equality::Bits;
    for told in all {
        equality = match (equality, told.equality) {
            (found @ Equality::Differs(..), _) | (Equality::Bits, found) | (found, Equality::Bits) => found,
            (Equality::Rounded(a), Equality::Rounded(b)) => Equality::Rounded(a.max(b)),
            (_, found) => found,
        };
    }
    Outcome { times: [fastest(0), fastest(1)], equality, outputs }
}

/// How the outputs of one rank compare.
fn equality(before: &Run, after: &Run, rank: usize, ranks: u32) -> Equality {
    let mut most = 0.0f64;
    for (place, (a, b)) in before.outputs.iter().zip(&after.outputs).enumerate() {
        match rounding(a, b, ranks) {
            Some(rounded) => most = most.max(rounded),
            None => return Equality::Differs(rank, place),
        }
    }
    if most > 0.0 { Equality::Rounded(most) } else { Equality::Bits }
}

/// By how much two values differ, over the largest value of each tensor: 0 for the same bits, `None` when that is more than
/// sums in another order explain.
fn rounding(a: &Output, b: &Output, ranks: u32) -> Option<f64> {
    if a.same_elements(b) {
        return Some(0.0);
    }
    match (a, b) {
        (Output::Tensor(a), Output::Tensor(b)) => tensor_rounding(a, b, ranks),
        (Output::Tuple(a), Output::Tuple(b)) if a.len() == b.len() => {
            a.iter().zip(b).try_fold(0.0f64, |most, (a, b)| Some(most.max(rounding(a, b, ranks)?)))
        }
        _ => None,
    }
}

/// How many roundings of one sum each rank may stand for: the sum itself, and what is computed from it.
const ROUNDINGS_PER_RANK: f64 = 8.0;

fn tensor_rounding(a: &OutputTensor, b: &OutputTensor, ranks: u32) -> Option<f64> {
    let unit = match a.dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => return None,
    };
    if class(a.dtype) != Class::Float || a.dtype != b.dtype || a.sizes != b.sizes {
        return None;
    }
    let width = a.dtype.bytes() as usize;
    let values = |tensor: &OutputTensor| -> Vec<f64> {
        tensor.bytes.chunks_exact(width).map(|element| load_float(tensor.dtype, element)).collect()
    };
    let (a, b) = (values(a), values(b));
    let largest = a.iter().chain(&b).map(|value| value.abs()).fold(0.0, f64::max);
    let mut most = 0.0f64;
    for (a, b) in a.iter().zip(&b) {
        if a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()) {
            most = most.max((a - b).abs() / largest);
        }
    }
    // Not so for what is no number.
    (most <= ROUNDINGS_PER_RANK * f64::from(ranks) * unit).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Output {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (sizes, strides) = (vec![values.len()], vec![1]);
        Output::Tensor(OutputTensor { dtype: DType::F32, sizes, strides, bytes, device: None, pending: false })
    }

    #[test]
    fn what_sums_in_another_order_explain_is_rounding_and_more_is_not() {
        let [one, near, far] = [&[1.0, 1e-9], &[1.0 + 1e-6, 0.0], &[1.0 + 1e-5, 0.0]].map(|values| tensor(values));
        assert_eq!(rounding(&one, &one, 2), Some(0.0));
        assert!(rounding(&one, &near, 2).is_some_and(|most| most > 9e-7 && most < 1.1e-6));
        assert_eq!(rounding(&one, &far, 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0]), 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0, f32::NAN]), 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0, f32::INFINITY]), 2), None);
    }

    #[test]
    fn the_fastest_run_is_the_one_whose_slowest_rank_was_fastest() {
        let told = |totals: [u64; 2], equality| {
            let one = |total| numbers(&Times { total: Duration::from_nanos(total), sent_bytes: 7, ..Times::default() });
            Told { times: [totals.map(one).to_vec(), totals.map(one).to_vec()], equality }
        };
        let all = [told([1, 3], Equality::Bits), told([9, 4], Equality::Rounded(0.5))];
        let found = outcome(&all, 2);
        assert_eq!(found.times[1].iter().map(|times| times.total.as_nanos()).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((found.equality, found.times[0][0].sent_bytes), (Equality::Rounded(0.5), 7));
        let all = [told([1, 1], Equality::Differs(0, 3)), told([1, 1], Equality::Differs(1, 0))];
        assert_eq!(outcome(&all, 2).equality, Equality::Differs(0, 3));
    }
}
