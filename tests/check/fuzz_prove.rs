//! Random graphs go through random pipelines; the checker proves each rewrite, the evaluator runs it, and both look
//! again after random damage. The same inputs each time.
//!
//! `BUCKETEER_FUZZ=20` makes the test run 20 times as many. To go on for a time, with other inputs each time:
//! `BUCKETEER_FUZZ_SECONDS=3600 BUCKETEER_FUZZ_SEED=7 cargo test --release --test check fuzz_prove -- --ignored --nocapture`.
//! `BUCKETEER_FUZZ_FIRST=66005` begins with that input, and with `BUCKETEER_FUZZ_SECONDS=0` it is the only one.

use bucketeer_fuzzing::prove::{ProofCounts, STEP_BYTES, prove_and_count, prove_and_run};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::time::{Duration, Instant};

/// A run ends when so many inputs have shown a fault.
const MOST_FOUND: usize = 50;

/// The bytes of input `number` of a run, by SplitMix64.
fn input(seed: u64, number: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    // The head, and a graph of up to 60 steps.
    let words = 12 + next() % 56;
    (0..words).flat_map(|_| next().to_le_bytes()).collect()
}

/// What is said of an input that shows a fault.
fn fault(bytes: &[u8], counts: &mut ProofCounts) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| prove_and_count(bytes, counts))).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}

/// Leaves out steps of the graph as long as the input shows a fault.
fn shrunk(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut length = STEP_BYTES * 32;
    while length >= STEP_BYTES {
        let mut end = bytes.len();
        while end >= length {
            let mut shorter = bytes.clone();
            shorter.drain(end - length..end);
            if fault(&shorter, &mut ProofCounts::default()).is_some() {
                bytes = shorter;
            }
            end -= length.min(end);
        }
        length /= 2;
        length -= length % STEP_BYTES;
    }
    bytes
}

/// The inputs of a run that show a fault, each made smaller, after what is said of it.
fn run(seed: u64, first: u64, mut go_on: impl FnMut(u64, &ProofCounts) -> bool) -> (ProofCounts, Vec<String>) {
    let mut counts = ProofCounts::default();
    let mut found = Vec::new();
    let mut number = first;
    while found.len() < MOST_FOUND && go_on(number, &counts) {
        let bytes = input(seed, number);
        if let Some(first) = fault(&bytes, &mut counts) {
            let bytes = shrunk(bytes);
            let least = fault(&bytes, &mut ProofCounts::default()).unwrap_or(first);
            let text = format!("input {number} of seed {seed}: {least}\nthe smallest such input: {bytes:?}");
            println!("{text}\n");
            found.push(text);
        }
        number += 1;
    }
    (counts, found)
}

/// As [`run`], without a word from the panics that it catches.
fn run_quietly(seed: u64, first: u64, go_on: impl FnMut(u64, &ProofCounts) -> bool) -> ProofCounts {
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let (counts, found) = run(seed, first, go_on);
    set_hook(hook);
    assert!(found.is_empty(), "{} inputs show a fault; {counts}\n{}", found.len(), found.join("\n\n"));
    counts
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is not a number")))
}

#[test]
fn checker_and_evaluator_agree_on_random_rewrites_and_on_damage() {
    let most = 150 * number("BUCKETEER_FUZZ", 1);
    let counts = run_quietly(0, 0, |number, _| number < most);
    println!("{counts}");
    // A test of graphs that nothing happens to would say nothing.
    assert!(counts.rewritten * 4 > counts.graphs && counts.proven > 2 * counts.undecided, "{counts}");
    assert!(counts.harmless * 20 > counts.damaged && counts.refused * 20 > counts.damaged, "{counts}");
}

#[test]
fn any_bytes_are_an_input() {
    for bytes in [&[][..], &[255; 3], &[255; 200], &[0; 200]] {
        assert!(prove_and_run(bytes));
    }
}

#[test]
#[ignore = "runs for BUCKETEER_FUZZ_SECONDS, a minute if not said"]
fn checker_and_evaluator_agree_for_a_time() {
    let (seconds, seed) = (number("BUCKETEER_FUZZ_SECONDS", 60), number("BUCKETEER_FUZZ_SEED", 1));
    let first = number("BUCKETEER_FUZZ_FIRST", 0);
    let start = Instant::now();
    let mut minutes = 0;
    let counts = run_quietly(seed, first, |number, counts| {
        let minutes_now = start.elapsed().as_secs() / 60;
        if minutes_now > minutes {
            minutes = minutes_now;
            println!("{minutes} min: {counts}");
        }
        number == first || start.elapsed() < Duration::from_secs(seconds)
    });
    println!("seed {seed}, {:.0} s: {counts}", start.elapsed().as_secs_f64());
}
