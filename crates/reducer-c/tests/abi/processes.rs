//! Ranks as processes on NCCL, which meet as a launcher's environment variables say: this test's own program, started again.

#![expect(unsafe_code, reason = "functions of C are called; each pointer leads to what this file holds meanwhile")]

use crate::misuse::{assert_ok, param};
use bucketeer_comm::store::{ServerOptions, StoreServer};
use bucketeer_reducer_c as c;
use kit::fakegpu;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::ptr::{null, null_mut};

/// Set in the processes that the test below starts.
const CHILD: &str = "REDUCER_C_TEST_CHILD";

/// Far longer than any of it takes.
const LONG_NS: u64 = 100_000_000_000;

/// Not a test of its own: what a rank does.
#[test]
#[ignore = "the other test starts it"]
fn child() {
    assert!(std::env::var_os(CHILD).is_some(), "another test starts this one");
    let (mut rank, mut group, mut reducer, mut number) = (null_mut(), null_mut(), null_mut(), 0);
    let params = [param(c"a"), param(c"b")];
    // SAFETY: see the head of this file.
    unsafe {
        assert_ok(c::bucketeer_rank_nccl(LONG_NS, null(), &mut rank));
        assert_ok(c::bucketeer_rank_number(rank, &mut number));
        assert_ok(c::bucketeer_group_world(rank, c"world".as_ptr(), &mut group));
        assert_ok(c::bucketeer_reducer_new(rank, group, params.as_ptr(), 2, null(), &mut reducer));
        for step in 0..3 {
            let mine = [number as f32, step as f32];
            assert_ok(c::bucketeer_reducer_begin(reducer, null_mut()));
            for param in [1, 0] {
                assert_ok(c::bucketeer_reducer_ready(reducer, param, mine.as_ptr().cast(), 8));
            }
            assert_ok(c::bucketeer_reducer_finish(reducer));
            let mut mean = [0f32; 2];
            assert_ok(c::bucketeer_reducer_copy_out(reducer, 0, mean.as_mut_ptr().cast(), 8, null_mut()));
            assert_eq!(mean, [0.5, step as f32]);
        }
    }
    assert_ok(c::bucketeer_group_free(group));
    assert_ok(c::bucketeer_reducer_free(reducer));
    assert_ok(c::bucketeer_rank_close(rank));
    println!("\nright");
}

/// Starts a rank as `bucketeer launch` does.
fn start(rank: u32, server: &StoreServer, shared: &Path) -> Child {
    let address = server.address();
    let mut command = kit::again(module_path!(), "child");
    command.envs(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB"].map(|name| (name, fakegpu::path())));
    command.envs(["RANK", "LOCAL_RANK"].map(|name| (name, rank.to_string())));
    command.envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|name| (name, "2")));
    command.env("MASTER_ADDR", address.ip().to_string()).env("MASTER_PORT", address.port().to_string());
    command.env("BUCKETEER_LAUNCHER", std::process::id().to_string()).env("FAKEGPU_NCCL_DIR", shared);
    command.env(CHILD, "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn ranks_that_are_processes_reduce_as_their_launcher_says() {
    let shared = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("processes-{}", std::process::id()));
    std::fs::create_dir_all(&shared).unwrap();
    let server = StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(2)).unwrap();
    let ranks: Vec<Child> = (0..2).map(|rank| start(rank, &server, &shared)).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("\nright\n"), "rank {rank}: {text}");
    }
    std::fs::remove_dir_all(shared).unwrap();
}
