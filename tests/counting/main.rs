//! What starts and ends leaves nothing behind: counted in descriptors, threads and memory of a process.
//!
//! So each test runs in a process that does nothing else: this program, started again for that test alone.
#![cfg(target_os = "linux")]

mod nccl_cycles;
mod reducer_memory;
mod store_cycles;

use std::fs;
use std::sync::{Mutex, PoisonError};

/// Set in a process that does nothing but one test.
const ALONE: &str = "BUCKETEER_COUNTING_ALONE";

/// Runs the body of a test in a process of its own, one at a time.
fn alone(module: &str, test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = kit::again(module, test).env(ALONE, "1").output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{test} failed in its process");
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
