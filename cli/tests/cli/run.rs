//! `run` end to end.

use crate::support::{FX, Folder};
use serde_json::json;

/// Four small all-reduces and what reads them.
const GRAPH: &str = "\
a = input f32[64]; b = input f32[32]; c = input f32[16]; d = input f32[8]
s = all_reduce(a, avg, G:2) : f32[64]; t = all_reduce(b, avg, G:2) : f32[32]
u = all_reduce(c, avg, G:2) : f32[16]; v = all_reduce(d, avg, G:2) : f32[8]
w = wait(s) : f32[64]; x = wait(t) : f32[32]; y = wait(u) : f32[16]; z = wait(v) : f32[8]
output(relu(w), x, y, z)
";

#[test]
fn a_graph_runs_before_and_after_bucketing_with_equal_outputs() {
    let folder = Folder::with("g.bkt", GRAPH);
    let ran = folder.run("run g.bkt --repeat 2 --trace t.json").expect(0, &[]);
    for part in [
        "graph `graph` on 2 ranks",
        "as it came      4",
        "bucketed        1",
        "4 outputs on each rank, equal bit for bit",
    ] {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    let trace: serde_json::Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let processes = events.iter().filter(|event| event["name"] == "process_name").count();
    assert_eq!(processes, 4);
    let comm = events.iter().filter(|event| event["cat"] == "comm").count();
    assert_eq!(comm, 2 * (4 + 1));
}

#[test]
fn a_graph_runs_planned_by_what_its_calls_took_with_equal_outputs() {
    let folder = Folder::with("g.bkt", GRAPH);
    // A call takes 20 ms, computing far less: it pays to make one call.
    let ran = folder.run("run g.bkt --planned --link alpha=20ms --trace t.json").expect(0, &[]);
    for part in ["as it came      4", "planned         1", "as it came over planned: comm", "equal bit for bit"] {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    let trace: serde_json::Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.iter().filter(|event| event["name"] == "process_name").count(), 6);
    folder.run("run g.bkt --planned").expect(2, &["--link"]);
}

/// Two kinds of collectives between pairs of four ranks.
const PAIRS: &str = "\
group G:2 = [[0, 1], [2, 3]]
a = input f32[64]; b = input f32[32]; c = input bf16[8]; d = input bf16[4]
s = all_reduce(a, avg, G:2) : f32[64]; t = all_reduce(b, avg, G:2) : f32[32]
g = all_gather(c, G:2) : bf16[16]; h = all_gather(d, G:2) : bf16[8]
w = wait(s) : f32[64]; x = wait(t) : f32[32]; y = wait(g) : bf16[16]; z = wait(h) : bf16[8]
output(relu(w), relu(x), y, z)
";

#[test]
fn a_trace_says_what_was_moved_and_between_whom() {
    let folder = Folder::with("g.bkt", PAIRS);
    folder.run("run g.bkt --trace t.json").expect(0, &[]);
    let trace: serde_json::Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..4 {
        // Of a process, what its events of a kind say, by name.
        let said = |process: usize, kind: &str| {
            let of_kind = events.iter().filter(|event| event["pid"] == process && event["cat"] == kind);
            let mut said: Vec<_> = of_kind.map(|event| json!([event["name"], event["args"]])).collect();
            said.sort_by_key(ToString::to_string);
            serde_json::Value::from(said)
        };
        let ranks = if rank < 2 { [0, 1] } else { [2, 3] };
        let moved = |bytes: u64, dtype: &str| json!({"bytes": bytes, "dtype": dtype, "group": "G", "ranks": ranks});
        let alone = json!([
            ["g", moved(32, "bfloat16")],
            ["h", moved(16, "bfloat16")],
            ["s", moved(256, "float32")],
            ["t", moved(128, "float32")],
        ]);
        assert_eq!(said(rank, "comm"), alone, "rank {rank}");
        assert_eq!(said(rank, "copy"), json!([["s", {"bytes": 256}], ["t", {"bytes": 128}]]), "rank {rank}");
        let merged = |mut moved: serde_json::Value| {
            moved["merged"] = 2.into();
            moved
        };
        // The smaller gather travels with padding, which packs and unpacks do not count.
        let together = json!([
            ["bucketed_all_gather", merged(moved(64, "bfloat16"))],
            ["bucketed_all_reduce", merged(moved(384, "float32"))],
        ]);
        assert_eq!(said(4 + rank, "comm"), together, "rank {rank}");
        assert_eq!(said(4 + rank, "pack"), json!([["cat", {"bytes": 384}], ["cat_1", {"bytes": 24}]]), "rank {rank}");
        assert_eq!(said(4 + rank, "unpack"), json!([["clone", {"bytes": 48}]]), "rank {rank}");
        for process in [rank, 4 + rank] {
            let others = events.iter().filter(|event| event["pid"] == process);
            let mut others = others.filter(|event| event["cat"] == "compute" || event["cat"] == "wait");
            assert!(others.all(|event| event["args"].is_null()), "rank {rank}");
        }
    }
}

#[test]
fn a_network_that_is_played_takes_its_time() {
    let folder = Folder::with("g.bkt", GRAPH);
    let ran = folder.run("run g.bkt --link alpha=20ms,beta=1GB/s").expect(0, &[]);
    let line = ran.out().lines().find(|line| line.contains("as it came  ")).unwrap().to_owned();
    let comm: f64 = line.split_whitespace().nth(8).unwrap().parse().unwrap();
    assert!(comm >= 20.0, "{line}");
    folder.run("run g.bkt --link alpha=fast").expect(2, &["--link `alpha=fast`"]);
    folder.run("run g.bkt --link alpha=1us,beta=1GB/s --backend fake").expect(2, &["fake"]);
}

#[test]
fn what_is_not_worth_copying_between_threads_is_left_alone_and_said() {
    let folder = Folder::with("g.bkt", GRAPH.replace("f32[64]", "f32[8192]").replace("f32[32]", "f32[8193]"));
    let ran = folder.run("run g.bkt").expect(0, &[]);
    for part in ["as it came      4", "bucketed        2", "left alone: 1 collective of more than 32.0 KiB"] {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    for all in ["--link alpha=1ms", "--shrink", "--pipeline bucket-all-reduce", "--backend fake"] {
        let ran = folder.run(&format!("run g.bkt {all}")).expect(0, &[]);
        assert!(ran.out().contains("bucketed        1"), "{all}\n{}", ran.out());
        assert!(!ran.out().contains("left alone"), "{all}\n{}", ran.out());
    }
}

#[test]
fn a_fake_backend_moves_and_compares_nothing() {
    let folder = Folder::with("g.bkt", GRAPH);
    let ran = folder.run("run g.bkt --backend fake").expect(0, &[]);
    assert!(ran.out().contains("not compared"), "{}", ran.out());
}

#[test]
fn a_graph_that_does_not_fit_is_refused_or_scaled_down() {
    let folder = Folder::with("g.bkt", GRAPH.replace("f32[64]", "f32[4000000000]"));
    folder.run("run g.bkt").expect(2, &["on 2 ranks, more than the 4.0 GiB of --max-memory; --shrink"]);
    let ran = folder.run("run g.bkt --shrink").expect(0, &[]);
    assert!(ran.out().contains("of the bytes") && ran.out().contains("equal bit for bit"), "{}", ran.out());
    folder.run("run g.bkt --max-memory lots").expect(2, &["--max-memory `lots`"]);
}

#[test]
fn what_cannot_be_run_is_said() {
    let folder = Folder::with("g.bkt", GRAPH.replace("all_reduce(b, avg, G:2)", "all_reduce(b, avg, H:2)"));
    folder.run("run g.bkt").expect(2, &["group `H`", "--groups"]);
    folder.write("s.bkt", "x = input f32[n]\ns = all_reduce(x, sum, G:2) : f32[n]\noutput(wait(s))\n");
    folder.run("run s.bkt").expect(2, &["--hint", "`n`"]);
    folder.run("run s.bkt --hint n=6").expect(0, &[]);
    folder.write("two.txt", format!("{}\n{}", FX, FX));
    folder.run("run two.txt").expect(1, &["it holds 2 graphs"]);
    folder.run("run g.bkt --repeat 0").expect(2, &["--repeat"]);
    folder.run("run g.bkt --pipeline sort").expect(2, &["no pass is called `sort`"]);
}
