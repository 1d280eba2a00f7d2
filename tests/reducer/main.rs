//! The reducer on ranks that are threads, and processes of the fake GPU.

mod assignments;
mod device;
mod faults;
mod red;

use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_reducer::{Caps, FirstStep, Param, Reducer, ReducerOptions};
use bucketeer_types::DType;
use kit::collective::ranks;
use kit::{fakegpu, nccl_threads};
use reducer_suite::{Case, Rank};
use std::sync::Arc;
use std::time::Duration;

/// Runs a case on threads.
fn on_threads(case: &Case) {
    let options = LocalOptions { timeout: Duration::from_secs(20), ..LocalOptions::default() };
    let results = run(case.ranks as u32, options, |rank| {
        let group = rank.new_group("reducer", &ranks(case.ranks)).unwrap();
        (case.run)(&Rank { backend: Arc::new(rank), group });
    });
    let failed: Vec<String> = results.unwrap().into_iter().filter_map(|result| Some(words(&*result.err()?))).collect();
    assert!(failed.is_empty(), "{}:\n{}", case.name, failed.join("\n"));
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs all cases, and tells all that fail.
fn all(cases: &[Case], on: impl Fn(&Case)) {
    let run = |case: &Case| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on(case)));
    let failed: Vec<String> = cases.iter().filter_map(|case| Some(words(&*run(case).err()?))).collect();
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), cases.len(), failed.join("\n\n"));
}

#[test]
fn all_cases_hold_on_threads() {
    let cases = reducer_suite::cases();
    assert!(!cases.is_empty());
    all(&cases, on_threads);
}

#[test]
fn all_cases_hold_on_nccl_in_threads() {
    let cases = reducer_suite::cases();
    let options = nccl_threads::options(20_000);
    all(&cases, |case| {
        let session = fakegpu::session();
        let failed: Vec<String> = nccl_threads::run(&session, case.ranks as u32, &options, |rank, group, _| {
            let own = Arc::new(rank);
            let rank = Rank { backend: own.clone(), group: group.clone() };
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.run)(&rank)));
            drop(rank);
            // Others may still wait for what this rank has seen the end of.
            if let (Ok(()), Some(own)) = (&ran, Arc::into_inner(own)) {
                own.close().unwrap();
            }
            ran.err().map(|panic| words(&*panic))
        })
        .into_iter()
        .flatten()
        .collect();
        assert!(failed.is_empty(), "{}:\n{}", case.name, failed.join("\n"));
    });
}

#[test]
fn a_rank_whose_own_order_makes_fewer_buckets_takes_those_of_the_first_rank() {
    let results = run(2, LocalOptions::default(), |rank| {
        let place = rank.rank().0 as usize;
        let group = rank.new_group("reducer", &ranks(2)).unwrap();
        let params = vec![Param::new("a", &[30], DType::F32), Param::new("b", &[64], DType::F32)];
        let options =
            ReducerOptions { caps: Caps::List(vec![200]), first_step: FirstStep::Buckets, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(Arc::new(rank), &group, params, options).unwrap();
        let values = [vec![1; 120], vec![2; 256]];
        for _ in 0..2 {
            let step = reducer.step().unwrap();
            // The second alone is a bucket; behind the first it closes that one.
            for param in [[1, 0], [0, 1]][place] {
                step.ready(param, &values[param]).unwrap();
            }
            step.finish().unwrap();
        }
        reducer.buckets().iter().map(|bucket| (bucket.params.clone(), bucket.limit_bytes)).collect::<Vec<_>>()
    });
    for buckets in results.unwrap() {
        assert_eq!(buckets.unwrap(), [(vec![1], 200), (vec![0], 200)]);
    }
}
