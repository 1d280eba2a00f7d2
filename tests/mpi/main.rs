//! Ranks as processes of MPI. Each test starts itself again under `mpirun`; every process is one rank.
//!
//! `BUCKETEER_MPIRUN` names another `mpirun` than the one in the path.

mod faults;
mod launcher;
mod values;

use bucketeer_comm::Backend;
use bucketeer_comm::mpi::{MpiOptions, MpiRank};
use launcher::under_mpirun;
use std::sync::Arc;
use std::time::Duration;

fn start(message_bytes: u64, leave_timeout: Duration) -> MpiRank {
    let timeout = Duration::from_secs(60);
    MpiRank::init(MpiOptions { timeout, leave_timeout, message_bytes }).unwrap_or_else(|error| panic!("{error}"))
}

/// Not a test of its own: what a rank does.
#[test]
#[ignore = "the other tests start it"]
fn rank() {
    let task = launcher::task().expect("another test starts this one, and says what to do");
    // Small, so that there are calls of several messages.
    let message_bytes = if task == "values" { 64 << 10 } else { 1 << 30 };
    let leave_timeout = Duration::from_secs(if task == "stuck" { 1 } else { 20 });
    let rank = start(message_bytes, leave_timeout);
    match &*task {
        "values" => values::all(&rank),
        "groups" => values::groups(&rank),
        "large" => values::large(&rank),
        "programs" => values::programs(&rank),
        "faults" => faults::broken_groups(&rank),
        "leaves" => return faults::leaves(rank),
        "stuck" => return faults::stuck(rank),
        "panics" => faults::panics(&rank),
        "once" => faults::starts_once(&rank),
        "reducer" => return reducer(rank),
        _ => panic!("there is no task {task}"),
    }
    rank.finish().unwrap_or_else(|error| panic!("{error}"));
}

/// All cases of the reducer.
fn reducer(rank: MpiRank) {
    let rank = Arc::new(rank);
    let backend: Arc<dyn Backend> = rank.clone();
    let ran = reducer_suite::run_all(&backend);
    assert!(ran > 0);
    drop(backend);
    let rank = Arc::into_inner(rank).expect("no case keeps its backend");
    rank.finish().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn reducers_do_on_processes_what_they_do_on_threads() {
    for ranks in [2, 4] {
        under_mpirun("reducer", ranks).assert_success();
    }
}

#[test]
fn processes_compute_what_the_reference_does_for_all_kinds_ops_and_dtypes() {
    for ranks in [1, 2, 4] {
        under_mpirun("values", ranks).assert_success();
    }
}

#[test]
#[ignore = "takes 7 GiB of memory"]
fn calls_may_have_more_bytes_than_mpi_can_count() {
    under_mpirun("large", 2).assert_success();
}

#[test]
fn groups_overlap_and_sends_meet_receives() {
    for ranks in [2, 3, 4] {
        under_mpirun("groups", ranks).assert_success();
    }
}

#[test]
fn programs_make_what_they_make_on_local_ranks() {
    for ranks in [2, 4] {
        under_mpirun("programs", ranks).assert_success();
    }
}

#[test]
fn faults_are_named_on_all_ranks_and_groups_go_on_without_the_culprits() {
    for ranks in [2, 4] {
        under_mpirun("faults", ranks).assert_success();
    }
}

#[test]
fn a_rank_that_leaves_is_named_and_all_end_well() {
    for ranks in [2, 4] {
        under_mpirun("leaves", ranks).assert_success();
    }
}

#[test]
fn ranks_do_not_wait_for_one_that_is_stuck_after_a_fault() {
    let run = under_mpirun("stuck", 2);
    assert!(run.text.contains("group world, finish: not done after"), "{}", run.text);
    assert!(run.text.contains("rank 1 did not arrive"), "{}", run.text);
}

#[test]
fn a_rank_that_panics_is_named() {
    let run = under_mpirun("panics", 2);
    assert!(!run.success, "{}", run.text);
    assert!(run.text.contains("seen: group world, barrier #0: rank 1 panicked"), "{}", run.text);
}

#[test]
fn mpi_starts_once_in_a_process_and_runs_without_mpirun() {
    under_mpirun("once", 2).assert_success();
    launcher::alone("once").assert_success();
}
