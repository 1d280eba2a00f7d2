//! Ranks that come late, never, or go away: every other rank gets an error that names them, in time.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::local::{Action, Hook, LocalOptions, LocalRank, Phase, Point, run};
use bucketeer_comm::{Backend, Call, CallOptions, CommError, Fate, Group, Op, Operands};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(20);
/// Longer than anything takes on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts who has come so far.
#[derive(Default)]
struct Gate(Mutex<usize>, Condvar);

impl Gate {
    fn add(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    /// Waits until so many have come.
    fn wait_for(&self, count: usize) {
        let come = self.0.lock().unwrap();
        drop(self.1.wait_timeout_while(come, PATIENCE, |come| *come < count).unwrap());
    }
}

/// The first ranks of the world.
fn ranks(size: usize) -> Vec<GlobalRank> {
    (0..size as u32).map(GlobalRank).collect()
}

fn options() -> LocalOptions {
    LocalOptions { timeout: PATIENCE, pin: false, ..LocalOptions::default() }
}

/// The same call on all ranks, in an arena of its own.
fn call(op: &str, rank: &dyn Backend, group: &Group) -> Call {
    let size = group.size() as u64;
    let arena = rank.arena(2 * 240 * size).expect("a small arena");
    let data = |input, output| {
        let (input, output) = (arena.buffer(0, input).unwrap(), arena.buffer(240 * size, output).unwrap());
        Operands::new(input, output, DType::F32)
    };
    let (sum, root) = (ReduceOp::Sum.into(), GroupRank(0));
    let (op, input, output) = match op {
        "all_reduce" => (Op::AllReduce(sum), 240, 240),
        "all_gather_into" => (Op::AllGather, 240, 240 * size),
        "reduce_scatter" => (Op::ReduceScatter(sum), 240 * size, 240),
        "broadcast" => (Op::Broadcast { root }, 240, 240),
        "reduce" => (Op::Reduce { op: sum, root }, 240, 240),
        "all_to_all_single" => (Op::AllToAll { send: Vec::new(), receive: Vec::new() }, 240 * size, 240 * size),
        "barrier" => return Call::barrier(),
        // From rank 1, the one at fault, to rank 0.
        "send" => {
            let buffer = arena.buffer(0, 240).unwrap();
            return match group.rank().0 {
                0 => Call::recv(buffer, DType::F32, GroupRank(1)),
                _ => Call::send(buffer, DType::F32, root),
            };
        }
        other => panic!("{other} is not a case"),
    };
    Call::collective(op, data(input, output))
}

const OPS: [&str; 8] =
    ["all_reduce", "all_gather_into", "reduce_scatter", "broadcast", "reduce", "all_to_all_single", "barrier", "send"];

/// What rank 1 does at its second call, the one with sequence number 1.
#[derive(Clone, Copy, Debug)]
struct Fault {
    phase: Phase,
    kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FaultKind {
    Kill,
    Stall,
}

/// All pairs of phase and kind.
fn faults() -> Vec<Fault> {
    let phases = [Phase::Before, Phase::During, Phase::After];
    let kinds = [FaultKind::Kill, FaultKind::Stall];
    phases.iter().flat_map(|phase| kinds.iter().map(|kind| Fault { phase: *phase, kind: *kind })).collect()
}

impl Fault {
    /// A stalled rank comes back when all survivors have their errors.
    fn hook(self, survivors: usize, told: Arc<Gate>) -> Hook {
        Arc::new(move |point: &Point<'_>| {
            if (point.rank, point.seq, point.phase) != (GlobalRank(1), 1, self.phase) {
                return Action::Go;
            }
            match (self.kind, self.phase) {
                (FaultKind::Kill, _) => Action::Kill,
                (FaultKind::Stall, Phase::During) => Action::Stall(PATIENCE),
                (FaultKind::Stall, _) => {
                    told.wait_for(survivors);
                    Action::Go
                }
            }
        })
    }

    /// The first call that can fail: the timeout of those before, and of kills, which are found without one, is long,
    /// so that a slow machine is not taken for a fault.
    fn first_to_fail(self) -> u64 {
        if self.phase == Phase::After { 2 } else { 1 }
    }
}

/// Calls until one fails: the error, and how long its call took. At most three, as a fault at the second shows in the
/// third at the latest.
fn until_it_fails(op: &str, rank: &LocalRank, group: &Group, fault: Fault) -> Option<(CommError, Duration)> {
    for number in 0..3 {
        let call = call(op, rank, group);
        let short = fault.kind == FaultKind::Stall && number >= fault.first_to_fail();
        let options = CallOptions::default().timeout(if short { TIMEOUT } else { PATIENCE });
        let start = Instant::now();
        if let Err(error) = rank.launch(group, call, &options).and_then(|work| work.wait(None)) {
            return Some((error, start.elapsed()));
        }
    }
    None
}

/// Runs one fault, checks what each survivor is told and when, and that the survivors go on without the rank.
fn survive(op: &str, size: usize, fault: Fault) {
    // A send is between two ranks; the others have nothing to do with it.
    let members = ranks(if op == "send" { 2 } else { size });
    let told = Arc::new(Gate::default());
    let options = LocalOptions { hook: Some(fault.hook(members.len() - 1, told.clone())), ..options() };
    let results = run(size as u32, options, |rank| {
        if !members.contains(&rank.rank()) {
            return Ok(());
        }
        let group = rank.new_group("G", &members).expect("nobody has left before the group is made");
        let failed = until_it_fails(op, &rank, &group, fault);
        if rank.rank() == GlobalRank(1) {
            return failed.map_or(Ok(()), |(error, _)| Err(error.to_string()));
        }
        told.add();
        let Some((error, time)) = failed else {
            return Err("nothing failed".to_owned());
        };
        check(op, fault, &error, time);
        let smaller = rank.shrink(&group, &[GlobalRank(1)]).map_err(|error| error.to_string())?;
        let patient = CallOptions::blocking().timeout(PATIENCE);
        rank.barrier(&smaller, &patient).map(drop).map_err(|error| error.to_string())
    })
    .expect("threads");
    for (place, result) in results.into_iter().enumerate() {
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if place != 1 {
            assert!(result.is_ok(), "{op} {fault:?} on rank {place}: {result:?}");
            continue;
        }
        // The rank itself is told that it is dead, or that the others have given up on it.
        let text = result.expect_err("the group is broken");
        assert!(fault.kind == FaultKind::Stall || text.contains("rank 1 was killed"), "{op} {fault:?}: {text}");
    }
}

/// What a survivor is told: which call of which group, who is at fault, and not too late.
fn check(op: &str, fault: Fault, error: &CommError, time: Duration) {
    let text = format!("{op} {fault:?}: {error}, after {time:?}");
    // Twice the timeout, and time for a machine that does other things.
    assert!(time < 2 * TIMEOUT + Duration::from_secs(2), "{text}");
    let site = error.site();
    assert_eq!(&*site.group, "G", "{text}");
    assert!(site.op == op || op == "send" && site.op == "recv", "{text}");
    assert_eq!(site.seq, Some(fault.first_to_fail()), "{text}");
    match (error, fault.kind) {
        (CommError::Remote { rank, fate, .. }, FaultKind::Kill) => {
            assert_eq!((*rank, *fate), (GlobalRank(1), Fate::Killed), "{text}");
        }
        // The transfer hangs after all have arrived, so no rank is to blame; unless some were slow to arrive.
        (CommError::Timeout { .. }, FaultKind::Stall) if fault.phase == Phase::During => {}
        (CommError::Timeout { missing, .. }, FaultKind::Stall) => assert!(missing.contains(&GlobalRank(1)), "{text}"),
        _ => panic!("{text}"),
    }
}

#[test]
fn each_collective_names_a_rank_that_dies_or_stalls_before_during_and_after() {
    for op in OPS {
        for size in [2, 3] {
            for fault in faults() {
                survive(op, size, fault);
            }
        }
    }
}

#[test]
#[ignore = "a thousand worlds; run with --release"]
fn a_thousand_faults_without_a_hang() {
    let (mut runs, start) = (0, Instant::now());
    while runs < 1000 {
        for op in OPS {
            for size in [2, 3, 4, 8] {
                for fault in faults() {
                    survive(op, size, fault);
                    runs += 1;
                }
            }
        }
    }
    println!("{runs} faults in {:?}", start.elapsed());
}

#[test]
fn a_rank_that_panics_is_named_at_once() {
    let results = run(3, options(), |rank| {
        let group = rank.new_group("G", &ranks(3)).unwrap();
        assert!(rank.rank() != GlobalRank(2), "planted");
        let error = rank.barrier(&group, &CallOptions::blocking()).unwrap_err();
        assert!(matches!(error, CommError::Remote { rank: GlobalRank(2), fate: Fate::Panicked, .. }), "{error}");
        error.to_string()
    })
    .unwrap();
    assert!(results[2].is_err());
    let text = results[0].as_ref().unwrap();
    assert_eq!(text, "group G, barrier #0: rank 2 panicked");
}

#[test]
fn a_rank_that_leaves_with_calls_in_flight_fails_them() {
    let results = run(3, options(), |rank| {
        let group = rank.new_group("G", &ranks(3)).unwrap();
        let work = rank.launch(&group, call("all_reduce", &rank, &group), &CallOptions::default());
        if rank.rank() == GlobalRank(0) {
            return None;
        }
        if rank.rank() == GlobalRank(1) {
            // The first may be done or not; the second cannot be.
            let second = call("all_reduce", &rank, &group);
            let second = rank.launch(&group, second, &CallOptions::default()).and_then(|work| work.wait(None));
            return Some(second.unwrap_err().to_string());
        }
        let error = rank.barrier(&group, &CallOptions::blocking()).and(work).err();
        error.map(|error| error.to_string())
    })
    .unwrap();
    for result in &results[1..] {
        let text = result.as_ref().unwrap().as_ref().unwrap();
        // Rank 2 calls a barrier where rank 1 reduces, which may be found first.
        assert!(text.contains("rank 0 dropped its handle") || text.contains("disagree on the op"), "{text}");
    }
}

#[test]
fn a_barrier_names_who_is_missing() {
    let (started, told) = (Gate::default(), Gate::default());
    let results = run(4, options(), |rank| {
        let group = rank.new_group("G", &ranks(4)).unwrap();
        started.add();
        started.wait_for(4);
        let impatient = CallOptions::blocking().timeout(Duration::from_millis(300));
        if rank.rank().0 % 2 == 1 {
            told.wait_for(2);
            // Too late: the group broke meanwhile. The call the others made has failed as for them.
            let error = rank.barrier(&group, &impatient).unwrap_err();
            assert_eq!(error.culprits(), [GlobalRank(1), GlobalRank(3)]);
            return error.to_string();
        }
        let error = rank.barrier(&group, &impatient).unwrap_err();
        assert!(matches!(&error, CommError::Timeout { .. }), "{error}");
        let error = rank.launch(&group, Call::barrier(), &CallOptions::default()).unwrap_err();
        assert!(matches!(&error, CommError::Comm { site, .. } if site.seq == Some(1)), "{error}");
        told.add();
        error.to_string()
    })
    .unwrap();
    let texts: Vec<String> = results.into_iter().map(Result::unwrap).collect();
    for (place, text) in texts.iter().enumerate() {
        let start = if place % 2 == 1 { "" } else { "group G, barrier #1: the group is broken: " };
        assert!(text.starts_with(&format!("{start}group G, barrier #0: not done after ")), "{text}");
        assert!(text.ends_with("; ranks 1 and 3 did not arrive, ranks 0 and 2 did"), "{text}");
    }
}

#[test]
fn a_wait_can_have_a_time_of_its_own() {
    let told = Gate::default();
    let results = run(2, options(), |rank| {
        let group = rank.new_group("G", &ranks(2)).unwrap();
        if rank.rank() == GlobalRank(1) {
            told.wait_for(1);
            return true;
        }
        let work = rank.barrier(&group, &CallOptions::default()).unwrap();
        assert!(!work.is_done());
        let error = work.wait(Some(Duration::from_millis(10))).unwrap_err();
        assert_eq!((error.culprits(), work.is_done()), (vec![GlobalRank(1)], true));
        told.add();
        work.wait(None) == Err(error)
    })
    .unwrap();
    assert!(results.into_iter().all(Result::unwrap));
}

#[test]
fn abort_releases_everybody_and_shrink_goes_on() {
    let results = run(4, options(), |rank| {
        let group = rank.new_group("G", &ranks(4)).unwrap();
        if rank.rank() == GlobalRank(3) {
            std::thread::sleep(Duration::from_millis(30));
            rank.abort(&group);
        } else {
            let error = rank.barrier(&group, &CallOptions::blocking()).unwrap_err();
            assert_eq!(error.to_string(), "group G, barrier #0: rank 3 aborted the group");
        }
        if rank.rank() == GlobalRank(1) {
            return 0;
        }
        let smaller = rank.shrink(&group, &[GlobalRank(1)]).unwrap();
        assert_eq!((smaller.name(), smaller.size()), ("G~1", 3));
        let buffer = rank.arena(1).unwrap().buffer(0, 1).unwrap();
        buffer.write().unwrap()[0] = 1 << rank.rank().0;
        let data = Operands::in_place(buffer.clone(), DType::U8);
        rank.all_reduce(&smaller, data, ReduceOp::Sum.into(), &CallOptions::blocking()).unwrap();
        let sum = buffer.read().unwrap()[0];
        let smallest = rank.shrink(&smaller, &[]).unwrap();
        assert_eq!(smallest.name(), "G~2");
        rank.barrier(&smallest, &CallOptions::blocking()).unwrap();
        sum
    })
    .unwrap();
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [13, 0, 13, 13]);
}

#[test]
fn survivors_must_agree_on_who_failed() {
    let done = Gate::default();
    let results = run(3, options(), |rank| {
        let group = rank.new_group("G", &ranks(3)).unwrap();
        rank.barrier(&group, &CallOptions::blocking()).unwrap();
        let stranger = rank.shrink(&group, &[GlobalRank(7)]).unwrap_err();
        assert_eq!(stranger.to_string(), "group G, shrink: rank 7 is to be left out, but is not a member");
        assert!(rank.shrink(&group, &[rank.rank()]).is_err());
        // Rank 0 leaves out 1, rank 2 leaves out nobody.
        let failed: &[GlobalRank] = if rank.rank() == GlobalRank(0) { &[GlobalRank(1)] } else { &[] };
        if rank.rank() == GlobalRank(1) {
            done.wait_for(2);
            return String::new();
        }
        let text = rank.shrink(&group, failed).err().map_or(String::new(), |error| error.to_string());
        done.add();
        text
    })
    .unwrap();
    let texts: Vec<String> = results.into_iter().map(Result::unwrap).collect();
    let (found, none) = if texts[0].is_empty() { (&texts[2], &texts[0]) } else { (&texts[0], &texts[2]) };
    assert!(none.is_empty(), "{none}");
    assert!(found.contains("[0, 2]") && found.contains("[0, 1, 2]"), "{found}");
}
