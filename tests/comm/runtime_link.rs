//! A link with latency and bandwidth: how long calls take at least.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::local::{Link, LocalOptions, LocalRank, run};
use bucketeer_comm::{Backend, CallOptions, CommError, Group, Operands, Work};
use std::time::{Duration, Instant};

const ALPHA: Duration = Duration::from_millis(10);

fn on_two(link: &str, timeout: Duration, body: impl Fn(&LocalRank, &[Group; 2]) -> Result<(), CommError> + Sync) {
    let options = LocalOptions { link: Some(link.parse().unwrap()), timeout, pin: false, ..LocalOptions::default() };
    let members = [GlobalRank(0), GlobalRank(1)];
    let results = run(2, options, |rank| {
        let groups = ["A", "B"].map(|name| rank.new_group(name, &members).unwrap());
        let result = body(&rank, &groups);
        // Not before the other is done.
        let end = rank.new_group("end", &members).unwrap();
        let _ = rank.barrier(&end, &CallOptions::blocking().timeout(Duration::from_secs(60)));
        result
    });
    for result in results.unwrap() {
        result.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    }
}

fn sum(rank: &LocalRank, group: &Group, bytes: u64) -> Result<Work, CommError> {
    let data = Operands::in_place(rank.arena(bytes).unwrap().buffer(0, bytes).unwrap(), DType::U8);
    rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_call_takes_latency_and_bytes_over_bandwidth() {
    on_two("alpha=10ms, beta=10MB/s", LONG, |rank, [group, _]| {
        let start = Instant::now();
        let work = sum(rank, group, 200_000)?;
        assert!(!work.is_done());
        work.wait(None)?;
        assert!(work.is_done() && start.elapsed() >= Duration::from_millis(30));
        Ok(())
    });
}

#[test]
fn calls_on_a_group_follow_one_another_and_groups_do_not_wait() {
    on_two("alpha=10ms", LONG, |rank, [a, b]| {
        let start = Instant::now();
        let works = (0..4).map(|_| sum(rank, a, 8)).collect::<Result<Vec<_>, _>>()?;
        // Far ahead of the fourth call on the other group.
        sum(rank, b, 8)?.wait(None)?;
        let other = start.elapsed();
        assert!(!works[3].is_done() || other >= 4 * ALPHA);
        works[3].wait(None)?;
        assert!(other >= ALPHA && start.elapsed() >= 4 * ALPHA);
        Ok(())
    });
}

#[test]
fn a_block_pays_the_latency_once() {
    on_two("alpha=1s", LONG, |rank, [group, _]| {
        let start = Instant::now();
        rank.start_coalescing(group)?;
        for _ in 0..20 {
            sum(rank, group, 8)?;
        }
        rank.end_coalescing(group, &CallOptions::blocking())?;
        let time = start.elapsed();
        // Twenty seconds one by one.
        assert!(time >= Duration::from_secs(1) && time < Duration::from_secs(10), "{time:?}");
        Ok(())
    });
}

#[test]
fn a_link_slower_than_the_timeout_fails_the_call_and_blames_no_rank() {
    on_two("alpha=1s", Duration::from_millis(20), |rank, [group, _]| {
        let error = sum(rank, group, 8).and_then(|work| work.wait(None)).unwrap_err();
        let CommError::Timeout { arrived, missing, .. } = &error else { panic!("{error}") };
        assert_eq!((arrived.len(), missing.len()), (2, 0));
        assert!(error.to_string().ends_with("all ranks arrived, but the transfer did not end"), "{error}");
        Ok(())
    });
}

#[test]
fn links_are_read_in_the_units_of_the_trade_and_refused_by_part() {
    let read = |text: &str| text.parse::<Link>().map_err(|error| error.to_string());
    let link = read("beta=1.5GiB/s,alpha=1.5ms").unwrap();
    assert_eq!(link, Link { alpha: Duration::from_micros(1500), beta_bytes_per_s: 1.5 * 1_073_741_824.0 });
    assert_eq!(read("alpha=0s").unwrap().duration(u64::MAX), Duration::ZERO);
    assert_eq!(read("beta=1B/s").unwrap().duration(u64::MAX), Duration::from_secs(1 << 32));
    for (text, part) in [
        ("", ""),
        ("alpha", "alpha"),
        ("alpha=20", "alpha=20"),
        ("alpha=-1us", "alpha=-1us"),
        ("alpha=2h", "alpha=2h"),
        ("alpha=nans", "alpha=nans"),
        ("alpha=1us,alpha=1us", "alpha=1us"),
        ("alpha=3601s", "alpha=3601s"),
        ("beta=0GB/s", "beta=0GB/s"),
        ("beta=infGB/s", "beta=infGB/s"),
        ("beta=10", "beta=10"),
        ("gamma=1us", "gamma=1us"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(&format!("`{part}` is not part of a link: ")), "{text}: {error}");
    }
}
