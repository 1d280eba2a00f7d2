//! Random faults at random points of random steps: no rank hangs, and who is at fault is named.

use bucketeer_comm::Backend;
use bucketeer_comm::local::{Action, Hook as FaultHook, LocalOptions, Phase, run};
use bucketeer_reducer::hooks::{AllReduce, PowerSgd, PowerSgdOptions, Quantise};
use bucketeer_reducer::{
    BucketLayout, Caps, FirstStep, Hook, HookBucket, HookError, Param, Rebuild, Reducer, ReducerError, ReducerOptions,
    Stage, Unused,
};
use bucketeer_types::{DType, GlobalRank};
use kit::collective::{Random, ranks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The rank dies before a launch.
    Dies,
    /// It comes far too late to a launch.
    Stalls,
    /// It panics before a mark.
    Panics,
    /// It leaves before a mark.
    Leaves,
    /// It marks twice, and goes on.
    MarksTwice,
    /// It forgets a mark.
    Forgets,
    /// It gives a gradient of another size, and gives the step up.
    WrongSize,
    /// Its hook fails.
    HookFails,
}

const FAULTS: [Fault; 8] = [
    Fault::Dies,
    Fault::Stalls,
    Fault::Panics,
    Fault::Leaves,
    Fault::MarksTwice,
    Fault::Forgets,
    Fault::WrongSize,
    Fault::HookFails,
];

/// One run.
#[derive(Clone, Debug)]
struct Plan {
    fault: Fault,
    ranks: usize,
    culprit: usize,
    step: u64,
    /// Which launch of the culprit, or which mark of the step.
    point: u64,
    params: usize,
    options: ReducerOptions,
    hook: Option<u64>,
}

impl Plan {
    fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut draw = |most: u64| random.below(most + 1);
        // A rank that stalls takes time, and others have to be sure that it does.
        let fault = match FAULTS[(seed % 8) as usize] {
            Fault::Stalls if seed % 32 != 1 => Fault::Dies,
            fault => fault,
        };
        let ranks = 2 + draw(2) as usize;
        let params = 1 + draw(5) as usize;
        let hook = if fault == Fault::HookFails { Some(0) } else { (draw(2) == 0).then(|| draw(2)) };
        // Where a rank may forget a mark.
        let refuses = fault == Fault::Forgets;
        let unused = if refuses || draw(1) == 0 { Unused::Refuse } else { Unused::Average };
        let options = ReducerOptions {
            caps: Caps::List(vec![4 << draw(4), 64]),
            unused,
            static_graph: !refuses && draw(3) == 0,
            first_step: if draw(1) == 0 { FirstStep::OneLaunch } else { FirstStep::Buckets },
            rebuild: if draw(3) == 0 { Rebuild::Never } else { Rebuild::Auto },
            timeout: (fault != Fault::Stalls).then_some(Duration::from_secs(20)),
            ..ReducerOptions::default()
        };
        let culprit = draw(ranks as u64 - 1) as usize;
        let point = if matches!(fault, Fault::Dies | Fault::Stalls) { draw(24) } else { draw(params as u64 - 1) };
        Self { fault, ranks, culprit, step: draw(3), point, params, options, hook }
    }

    /// Faults of launches, for the world of threads.
    fn hook(&self) -> Option<FaultHook> {
        let action = match self.fault {
            Fault::Dies => Action::Kill,
            Fault::Stalls => Action::Stall(Duration::from_millis(1200)),
            _ => return None,
        };
        let (culprit, point, launches) = (GlobalRank(self.culprit as u32), self.point, AtomicU64::new(0));
        Some(Arc::new(move |at| {
            let counts = at.rank == culprit && at.phase == Phase::Before;
            if counts && launches.fetch_add(1, Ordering::SeqCst) == point { action } else { Action::Go }
        }))
    }
}

/// A hook that fails at one bucket of one step of one rank.
struct FailsOnce {
    here: bool,
    step: u64,
}

impl Hook for FailsOnce {
    fn describe(&self) -> String {
        "fails once".to_owned()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        if self.here && bucket.step() == self.step && bucket.layout().is_last() {
            return Err("on purpose".into());
        }
        AllReduce.begin(bucket)
    }

    fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(Stage::Done)
    }

    fn rebuilt(&mut self, _: &[BucketLayout], _: &bucketeer_comm::Group) {}
}

/// How a rank ended: with the steps that it finished, or an error.
type End = Result<u64, ReducerError>;

fn play(plan: &Plan, backend: Arc<dyn Backend>) -> End {
    let place = backend.rank().0 as usize;
    let here = place == plan.culprit;
    let group = backend.new_group("reducer", &ranks(plan.ranks)).unwrap();
    let params: Vec<Param> =
        (0..plan.params).map(|at| Param::new(format!("p{at}"), &[1 + at as u64 * 3, 2], DType::F32)).collect();
    let bytes: Vec<usize> = params.iter().map(|param| param.bytes() as usize).collect();
    let hook: Option<Box<dyn Hook>> = match plan.hook {
        _ if plan.fault == Fault::HookFails => Some(Box::new(FailsOnce { here, step: plan.step })),
        Some(0) => Some(Box::new(Quantise::per_tensor())),
        Some(1) => {
            let options = PowerSgdOptions { start_step: 1, min_rate: 0.1, ..PowerSgdOptions::default() };
            let power = PowerSgd::new(if options.error_feedback {
                PowerSgdOptions { start_step: 2, ..options }
            } else {
                options
            });
            Some(Box::new(power.unwrap()))
        }
        _ => None,
    };
    let mut reducer = match hook {
        None => Reducer::new(backend, &group, params, plan.options.clone())?,
        Some(hook) => Reducer::with_hook(backend, &group, params, plan.options.clone(), hook)?,
    };
    let gradient = |param: usize, number: u64, sum: f32| -> Vec<u8> {
        let value = sum * (1 + param) as f32 + number as f32;
        value.to_le_bytes().into_iter().cycle().take(bytes[param]).collect()
    };
    let own = place as f32 + 1.0;
    let is_mean = plan.hook.is_none();
    for number in 0..5u64 {
        let step = reducer.step()?;
        for (at, param) in (0..plan.params).rev().enumerate() {
            let now = here && number == plan.step && at as u64 == plan.point;
            match plan.fault {
                Fault::Panics if now => panic!("a fault on purpose"),
                Fault::Leaves if now => return Ok(number),
                Fault::Forgets if now => continue,
                Fault::WrongSize if now => return Err(step.ready(param, &[0; 3]).unwrap_err()),
                _ => {}
            }
            step.ready(param, &gradient(param, number, own))?;
            if plan.fault == Fault::MarksTwice && now {
                let twice = step.ready(param, &gradient(param, number, own));
                match &plan.options {
                    // A static graph learns how often, in its first step.
                    options if options.static_graph && number == 0 => drop(twice),
                    _ => {
                        let text = twice.unwrap_err().to_string();
                        let wanted = format!("rank {place}, step {number}, parameter {param} (p{param})");
                        assert!(text.contains(&wanted), "{text}");
                    }
                }
            }
        }
        let reduced = step.finish()?;
        // Whatever fails later: what is given out is right, within the rounding of a mean over three.
        let mean = (plan.ranks as f32 + 1.0) / 2.0;
        for param in (0..plan.params).filter(|_| is_mean) {
            let mut found = vec![0; bytes[param]];
            assert!(reduced.copy_to(param, &mut found).unwrap());
            let wanted = gradient(param, number, mean);
            let numbers = |bytes: &[u8]| f32::from_le_bytes(*bytes.first_chunk().unwrap());
            let pairs = found.chunks(4).zip(wanted.chunks(4)).map(|(found, wanted)| (numbers(found), numbers(wanted)));
            assert!(
                pairs.into_iter().all(|(found, wanted)| (found - wanted).abs() <= 1e-6 * wanted),
                "{place} {number}"
            );
        }
    }
    Ok(5)
}

/// Whether an error says who is at fault.
fn names(error: &ReducerError, culprit: usize) -> bool {
    let rank = GlobalRank(culprit as u32);
    match error {
        ReducerError::Elsewhere { rank: who, .. } => *who == rank,
        ReducerError::Broken { cause, .. } => names(cause, culprit),
        error => error.culprits().contains(&rank) || error.to_string().contains(&format!("rank {culprit}")),
    }
}

fn check(seed: u64) {
    let plan = Plan::draw(seed);
    let timeout = Duration::from_millis(if plan.fault == Fault::Stalls { 600 } else { 20_000 });
    let options = LocalOptions { timeout, hook: plan.hook(), pin: false, ..LocalOptions::default() };
    let start = Instant::now();
    let ends = run(plan.ranks as u32, options, |rank| play(&plan, Arc::new(rank))).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{seed}: {plan:?} took {:?}", start.elapsed());
    for (place, end) in ends.into_iter().enumerate() {
        let end = match end {
            Ok(end) => end,
            Err(_) => {
                assert!(plan.fault == Fault::Panics && place == plan.culprit, "{seed}: {plan:?}: rank {place} panics");
                continue;
            }
        };
        match (plan.fault, end) {
            // A second mark is refused, and all goes on; in a graph that was learned so, it is missed later.
            (Fault::MarksTwice, Ok(steps)) => assert_eq!(steps, 5, "{seed}: {plan:?}"),
            (Fault::MarksTwice, Err(error)) => {
                assert!(plan.options.static_graph && plan.step == 0, "{seed}: {plan:?}: {error}");
            }
            (Fault::Leaves, Ok(_)) if place == plan.culprit => {}
            // Launches may end before the point.
            (Fault::Dies | Fault::Stalls, Ok(steps)) => assert_eq!(steps, 5, "{seed}: {plan:?}"),
            (_, Ok(steps)) => panic!("{seed}: {plan:?}: rank {place} ends well after {steps} steps"),
            // A rank that comes too late finds the others gone.
            (Fault::Stalls, Err(_)) if place == plan.culprit => {}
            (_, Err(error)) => {
                assert!(names(&error, plan.culprit), "{seed}: {plan:?}: rank {place} says: {error}");
            }
        }
    }
}

#[test]
fn a_thousand_random_faults_end_on_all_ranks_and_name_the_culprit() {
    let first = std::env::var("BUCKETEER_FAULT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let run = |seed| std::panic::catch_unwind(|| check(seed)).err().map(|panic| super::words(&*panic));
    let failed: Vec<String> = (first..first + 1000).filter_map(run).collect();
    std::panic::set_hook(quiet);
    assert!(failed.is_empty(), "{} of 1000 fail:\n{}", failed.len(), failed.join("\n"));
}
