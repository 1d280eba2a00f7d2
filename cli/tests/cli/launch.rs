//! `launch` and `doctor`: ranks as processes, their output, and how they end.
#![cfg(target_os = "linux")]

use crate::support::{FX, Folder, LAUNCHER_VARIABLES, REDUCES};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

fn bucketeer(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bucketeer"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in LAUNCHER_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// A launch that holds, and the processes of its ranks.
struct Held {
    launcher: Child,
    pids: Vec<u32>,
}

fn hold(processes: usize) -> Held {
    let mut launcher = bucketeer(&format!("launch --nproc {processes} -- doctor --hold 600")).spawn().unwrap();
    let rows = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap).skip(4);
    let pids = rows.take(processes).map(|row| row.split_whitespace().last().unwrap().parse().unwrap()).collect();
    Held { launcher, pids }
}

impl Held {
    /// What the launcher says until its end, and its exit code; none of the ranks' processes is left.
    fn end(mut self) -> (Option<i32>, String) {
        let mut talk = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut talk).unwrap();
        let code = self.launcher.wait().unwrap().code();
        let start = Instant::now();
        while let Some(pid) = self.pids.iter().find(|&&pid| runs(pid)) {
            assert!(start.elapsed() < LIMIT, "process {pid} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
        (code, talk)
    }
}

/// Whether a process is there, and not one that only waits to be counted.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap().success());
}

#[test]
fn each_process_is_a_rank_and_finds_the_others() {
    let ran = Folder::new().run("launch --nproc 4 -- doctor").expect(0, &[]);
    let lines: Vec<&str> = ran.out().lines().collect();
    assert_eq!(lines[0], "4 ranks from bucketeer launch");
    assert!(lines[1].starts_with("store at 127.0.0.1:"), "{}", lines[1]);
    assert!(lines[2].starts_with("barrier over the store: median "), "{}", lines[2]);
    for (rank, row) in lines[4..].iter().enumerate() {
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[0], rank.to_string());
        assert_eq!(cells[2..5], [&rank.to_string(), "of", "4"]);
    }
    assert_eq!((lines.len(), ran.talk()), (8, ""));
}

#[test]
fn sixty_four_processes_find_one_another() {
    let start = Instant::now();
    let ran = Folder::new().run("launch --nproc 64 -- doctor").expect(0, &[]);
    println!("64 processes in {:?}: {}", start.elapsed(), ran.out().lines().nth(1).unwrap());
    assert_eq!(ran.out().lines().count(), 68);
}

#[test]
fn rank_0_s_output_is_as_it_is_and_other_lines_come_whole_behind_their_rank() {
    let mut graph = String::from("x0 = input f32[64]\n");
    (0..3000).for_each(|i| graph.push_str(&format!("x{} = add(x{i}, x{i})\n", i + 1)));
    graph.push_str("output(x3000)\n");
    let folder = Folder::with("g.txt", &graph);
    let alone = folder.run("convert g.txt - --to native").expect(0, &[]);
    let ran = folder.run("launch --nproc 3 -- convert g.txt - --to native").expect(0, &[]);
    assert!(ran.out() == alone.out());
    let mut lines = 0;
    for rank in [1, 2] {
        let prefix = format!("[rank {rank}] ");
        let of_rank = ran.talk().lines().filter_map(|line| line.strip_prefix(&*prefix));
        assert!(of_rank.eq(alone.out().lines()), "rank {rank}");
        lines += alone.out().lines().count();
    }
    assert!(lines > 6000);
    assert_eq!(ran.talk().lines().count(), lines);
}

#[test]
fn a_program_of_ones_own_is_a_rank_with_all_of_its_words() {
    let folder = Folder::with("rank.sh", "echo $RANK of $WORLD_SIZE, $LOCAL_RANK: $*; exit ${RANK}0\n");
    let ran = folder.run("launch --nproc 1 -- exec sh rank.sh --color x -- -y").expect(0, &[]);
    assert_eq!(ran.out(), "0 of 1, 0: --color x -- -y\n");
    let ran = folder.run("launch --nproc 2 -- exec sh rank.sh").expect(2, &["rank 1 failed first: exit code 10"]);
    assert!(ran.talk().contains("[rank 1] 1 of 2, 1:"), "{}", ran.talk());
    folder.run("launch --nproc 1 -- exec ./missing").expect(2, &["`./missing` cannot be run: No such file"]);
    folder.run("exec").expect(2, &["<PROGRAM>"]);
}

#[test]
fn only_rank_0_gets_the_standard_input() {
    let folder = Folder::new();
    let ran = folder.run_with("launch --nproc 1 -- inspect -", REDUCES.as_bytes()).expect(0, &[]);
    assert!(ran.out().contains("5 collectives"), "{}", ran.out());
    let ran = folder.run_with("launch --nproc 2 -- inspect -", REDUCES.as_bytes()).expect(1, &["[rank 1] error: "]);
    assert!(ran.out().contains("5 collectives"), "{}", ran.out());
}

#[test]
fn exit_codes_of_ranks_become_one() {
    let folder = Folder::with("a.txt", FX);
    folder.write("b.txt", FX.replace("wait_tensor.default(h)", "wait_tensor.default(g)"));
    folder.run("launch --nproc 2 -- verify a.txt a.txt").expect(0, &[]);
    folder.run("launch --nproc 2 -- verify a.txt b.txt").expect(1, &[]);
    folder.run("launch --nproc 2 -- inspect nothing.txt").expect(2, &["error: rank ", " failed first: exit code 2"]);
    folder.run("launch --nproc 2 -- nonsense").expect(2, &["unrecognized subcommand", " failed first: exit code 2"]);
}

#[test]
fn if_a_rank_is_killed_the_others_are_ended_and_it_is_named() {
    let held = hold(3);
    signal("KILL", held.pids[1]);
    let (code, talk) = held.end();
    assert_eq!(code, Some(2), "{talk}");
    let said = "error: rank 1 failed first: ended by SIGKILL; 2 others that still ran were ended\n";
    assert!(talk.ends_with(said), "{talk}");
}

#[test]
fn if_the_launcher_is_killed_no_process_stays() {
    let mut held = hold(3);
    held.launcher.kill().unwrap();
    assert_eq!(held.end().0, None);
}

#[test]
fn signals_to_the_launcher_end_all_processes() {
    for (name, said) in [("TERM", "SIGTERM"), ("INT", "SIGINT")] {
        let held = hold(2);
        signal(name, held.launcher.id());
        let (code, talk) = held.end();
        assert_eq!(code, Some(2));
        assert!(talk.ends_with(&format!("error: stopped by {said}; all processes were ended\n")), "{talk}");
    }
}

#[test]
fn a_process_that_does_not_heed_the_request_to_end_is_made_to() {
    let held = hold(2);
    signal("STOP", held.pids[0]);
    signal("TERM", held.launcher.id());
    assert_eq!(held.end().0, Some(2));
}

#[test]
fn processes_that_are_not_done_in_time_are_ended() {
    let ran = Folder::new().run("launch --nproc 2 --timeout 1 -- doctor --hold 600");
    ran.expect(2, &["error: 2 ranks not done after 1s were ended"]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = Folder::new();
    folder.run("launch --nproc 0 -- doctor").expect(2, &["1..=1024"]);
    folder.run("launch --nproc 1025 -- doctor").expect(2, &["1..=1024"]);
    folder.run("launch --nproc 2").expect(2, &["<COMMAND>"]);
    folder.run("launch --nproc 2 -- launch --nproc 2 -- doctor").expect(2, &["launch cannot be launched"]);
    folder.run("launch --nproc 1 --master-addr 0.0.0.0 -- doctor").expect(2, &["is not an address to connect to"]);
    folder.run("launch --nproc 1 --master-addr 192.0.2.1 -- doctor").expect(2, &["does not have the address"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ran = folder.run(&format!("launch --nproc 1 --master-port {port} -- doctor"));
    ran.expect(2, &["no store can be opened at 127.0.0.1", "another process listens there"]);
}

#[test]
fn a_process_whose_launcher_is_gone_ends_at_once() {
    let ran = bucketeer("doctor").env("BUCKETEER_LAUNCHER", "1").output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("process 1, is not this process's parent"));
    let ran = bucketeer("doctor").env("BUCKETEER_LAUNCHER", "x").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "error: BUCKETEER_LAUNCHER: `x` is not a process id\n");
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A rank of two that is started by hand.
fn by_hand(rank: u32, port: u16, line: &str) -> Command {
    let mut command = bucketeer(line);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

#[test]
fn ranks_that_are_started_by_hand_meet_and_name_the_one_that_held_the_store() {
    let port = free_port();
    let mut holder = by_hand(0, port, "doctor --hold 600").spawn().unwrap();
    let other = by_hand(1, port, "doctor --hold 600").spawn().unwrap();
    let mut line = String::new();
    let mut report = BufReader::new(holder.stdout.take().unwrap());
    report.read_line(&mut line).unwrap();
    assert_eq!(line, "2 ranks from RANK and WORLD_SIZE, as torchrun sets them\n");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let other = other.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&other.stderr).into_owned();
    // It may have been in its last barrier still, which is 2, or hold already.
    assert!(matches!(other.status.code(), Some(1 | 2)), "{talk}");
    assert!(talk.ends_with("cannot be reached: the connection ended (rank 0 held it)\n"), "{talk}");
}

#[test]
fn a_rank_that_is_not_let_in_says_why_and_so_does_the_other() {
    let port = free_port();
    let waiting = by_hand(0, port, "doctor --timeout 5").env("BUCKETEER_SECRET", "a").spawn().unwrap();
    let refused = by_hand(1, port, "doctor").env("BUCKETEER_SECRET", "b").output().unwrap();
    let talk = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{talk}");
    assert!(talk.ends_with("refuses: rank 1 has another secret than the store\n"), "{talk}");
    let waited = waiting.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert_eq!(waited.status.code(), Some(2), "{talk}");
    assert_eq!(
        talk,
        "error: after 5s not all of 2 ranks are there; missing: rank 1; \
         refused: 127.0.0.1: rank 1 has another secret than the store\n"
    );
}

#[test]
fn without_a_launcher_there_is_one_rank_and_half_of_one_is_an_error() {
    let alone = bucketeer("doctor").output().unwrap();
    assert_eq!(alone.stdout, b"no launcher says which rank this is: a world of one\n");
    let half = bucketeer("doctor").env("RANK", "0").output().unwrap();
    assert_eq!(half.status.code(), Some(2));
    assert_eq!(half.stderr, b"error: WORLD_SIZE: is not set, but RANK is; set both or none\n");
}
