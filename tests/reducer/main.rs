//! The reducer on ranks that are threads, and processes of the fake GPU.

use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use kit::collective::ranks;
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

#[test]
fn recorded_runs_of_ddp_are_reproduced_on_threads() {
    let cases = reducer_suite::recorded::cases();
    assert!(cases.len() >= 80, "{} recordings", cases.len());
    let mut failed = Vec::new();
    for case in &cases {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_threads(case))) {
            failed.push(words(&*panic));
        }
    }
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), cases.len(), failed.join("\n\n"));
}
