//! Proofs of graphs with thousands of views, writes and joins of one tensor take what the graph takes, not its square.

use bucketeer::check::{Verdict, program, prove};
use bucketeer::ir::text::parse;
use bucketeer::passes::lowering::{LowerOptions, lower};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Most time for one proof: a hundred times what it takes, and a fraction of what its square would take.
const LIMIT: Duration = Duration::from_secs(90);

/// Slices of one buffer, each written and read. A buffer of PyTorch's FSDP or of an optimizer is taken apart so.
fn slices(count: u64) -> String {
    let mut text = format!("buf = input f32[{}]; a = input f32[4]\n", 4 * count);
    for at in 0..count {
        let (start, end) = (4 * at, 4 * at + 4);
        writeln!(text, "s{at} = slice(buf, {start}, {end})\ncopy_(s{at}, a)\nr{at} = neg(s{at})").unwrap();
    }
    text + "output(buf)"
}

/// A list that grows by one tensor at a time.
fn joins(count: u64) -> String {
    let mut text = "a = input f32[1]\nx0 = alias(a)\n".to_owned();
    for at in 1..count {
        writeln!(text, "x{at} = aten.cat.default([x{}, a]) : f32[{}]", at - 1, at + 1).unwrap();
    }
    text + &format!("output(x{})", count - 1)
}

#[test]
fn g_slices_gen_the_proof_is_linear_in_slices_and_writes_of_one_buffer() {
    let graph = parse(&slices(4000)).unwrap();
    let start = Instant::now();
    assert!(matches!(prove(&graph, &graph), Verdict::Equal(_)));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    let (lowered, _) = lower(&graph, &LowerOptions::default()).unwrap();
    let start = Instant::now();
    assert!(matches!(program::prove(&graph, &lowered), program::ProgramVerdict::Equal(_)));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn g_slices_gen_the_proof_is_linear_in_a_chain_of_joins_of_one_tensor() {
    let graph = parse(&joins(8000)).unwrap();
    let start = Instant::now();
    assert!(matches!(prove(&graph, &graph), Verdict::Equal(_)));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn g_slices_gen_a_part_of_a_buffer_is_what_was_written_to_it_last() {
    let text = |last: &str| {
        format!(
            "buf = input f32[16]; a = input f32[8]; b = input f32[4]\ns = slice(buf, 2, 10); copy_(s, a)\n\
             t = slice(buf, 4, 8); copy_(t, b)\nu = slice(buf, 3, 9)\nr = neg(u) : f32[6]\n{last}\noutput(r, buf)"
        )
    };
    let plain = parse(&text("")).unwrap();
    assert!(matches!(prove(&plain, &plain), Verdict::Equal(_)));
    // The same value, put together.
    let joined = "buf = input f32[16]; a = input f32[8]; b = input f32[4]\ns = slice(buf, 2, 10); copy_(s, a)\n\
                  t = slice(buf, 4, 8); copy_(t, b)\nx = slice(a, 1, 2); y = slice(a, 6, 7)\n\
                  u = cat([x, b, y]) : f32[6]\nr = neg(u) : f32[6]\noutput(r, buf)";
    let verdict = prove(&plain, &parse(joined).unwrap());
    assert!(matches!(verdict, Verdict::Equal(_)), "{verdict}");
    let other = joined.replace("slice(a, 6, 7)", "slice(a, 5, 6)");
    assert!(!matches!(prove(&plain, &parse(&other).unwrap()), Verdict::Equal(_)));
    // A write behind the reading changes the buffer and not what was read.
    let later = parse(&text("v = slice(buf, 0, 1); neg_(v)")).unwrap();
    assert!(!matches!(prove(&plain, &later), Verdict::Equal(_)));
}
