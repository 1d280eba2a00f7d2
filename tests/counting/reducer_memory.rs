//! What reducers hold and leave behind.

use crate::{alone, entries, resident_kib};
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_reducer::{Caps, Param, Reducer, ReducerOptions, Unused};
use bucketeer_types::DType;
use kit::collective::ranks;
use std::sync::Arc;

/// The most that was ever resident, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Two ranks with 64 MiB of gradients each, in slots that are kept from step to step, through a rebuild.
#[test]
fn red_17_memory_is_one_set_of_gradients() {
    alone(module_path!(), "red_17_memory_is_one_set_of_gradients", || {
        const EACH: u64 = 1 << 20;
        let before = peak_kib();
        let results = run(2, LocalOptions::default(), |rank| {
            let group = rank.new_group("gradients", &ranks(2)).unwrap();
            let params: Vec<Param> = (0..64).map(|at| Param::new(format!("p{at}"), &[EACH / 4], DType::F32)).collect();
            let options = ReducerOptions { caps: Caps::bytes(4 << 20), ..ReducerOptions::default() };
            let mut reducer = Reducer::new(Arc::new(rank), &group, params, options).unwrap();
            for _ in 0..3 {
                let step = reducer.step().unwrap();
                // Not the order of definition, so that all slots move.
                for param in (0..64).map(|at| at * 37 % 64) {
                    step.slot(param).unwrap().write().unwrap().fill(1);
                    step.ready_in_place(param).unwrap();
                }
                step.finish().unwrap();
            }
            assert_eq!(reducer.buckets().len(), 16);
        });
        assert!(results.unwrap().into_iter().all(|rank| rank.is_ok()));
        let more = peak_kib() - before;
        // One set each, one bucket, and what the threads and the pool take.
        let most = 2 * (64 + 4) * 1024 + 8 * 1024;
        assert!(more <= most, "{more} KiB, of {most}");
        assert!(more >= 2 * 64 * 1024, "{more} KiB are less than the gradients");
    });
}

/// Memory in KiB, threads and descriptors of this process.
fn counted() -> (u64, usize, usize) {
    (resident_kib(), entries("/proc/self/task"), entries("/proc/self/fd"))
}

/// Steps of a small model with unused and sparse parameters, given up ones and local ones.
fn steps(count: u64) {
    let results = run(2, LocalOptions::default(), |rank| {
        let place = rank.rank().0;
        let group = rank.new_group("gradients", &ranks(2)).unwrap();
        let param = |name: &str| Param::new(name, &[4, 2], DType::F32);
        let params = vec![param("a"), param("b"), param("rows").sparse()];
        let options = ReducerOptions { unused: Unused::Average, caps: Caps::bytes(32), ..ReducerOptions::default() };
        let mut reducer = Reducer::new(Arc::new(rank), &group, params, options).unwrap();
        let gradient = [place as u8; 32];
        let mut settled = (0, 0, 0);
        for number in 0..count {
            if number % 7 == 0 {
                reducer.local_step().unwrap().ready(1, &gradient).unwrap();
                drop(reducer.step().unwrap());
            }
            let step = reducer.step().unwrap();
            if number % 5 > 0 {
                step.ready_sparse(2, &[number % 4], &gradient[..8]).unwrap();
            }
            step.ready(0, &gradient).unwrap();
            step.finish().unwrap();
            // One rank counts, as to look takes a descriptor.
            if place == 0 && number == count / 4 {
                settled = counted();
            }
        }
        (place == 0).then(|| (settled, counted()))
    });
    let counted: Vec<_> = results.unwrap().into_iter().filter_map(|rank| rank.unwrap()).collect();
    let ((memory, threads, files), (memory_now, threads_now, files_now)) = counted[0];
    assert!(memory_now <= memory + 1024, "{memory} KiB, then {memory_now}");
    // The other rank may have ended.
    assert!(threads_now <= threads && files_now <= files, "{threads} {files}, then {threads_now} {files_now}");
}

#[test]
fn thirty_thousand_steps_leave_nothing_behind() {
    alone(module_path!(), "thirty_thousand_steps_leave_nothing_behind", || steps(30_000));
}

#[test]
#[ignore = "takes minutes"]
fn a_million_steps_leave_nothing_behind() {
    alone(module_path!(), "a_million_steps_leave_nothing_behind", || steps(1_000_000));
}
