//! `plan`: what it says, what it writes, and what it refuses.

use crate::support::Folder;
use serde_json::Value;

const GRAPH: &str = "\
graph step {
group world:4 = [[0, 1, 2, 3]]
  a = input f32[64]
  b = input f32[64]
  c = aten.relu.default(a) : f32[64]
  r0 = all_reduce(c, sum, world) : f32[64]
  w0 = wait(r0) : f32[64]
  d = aten.neg.default(b) : f32[64]
  r1 = all_reduce(d, sum, world) : f32[64]
  w1 = wait(r1) : f32[64]
  output(w0, w1)
}
";

const COSTS: &str = r#"{"schema": "bucketeer-costs-1", "compute_ns": {"c": 5000, "d": 9000},
"groups": {"world": {"label": "a node", "size": 4, "costs": {"all_reduce": [
  {"alpha_ns": 2000, "ns_per_byte_num": 1, "ns_per_byte_den": 1}]}}}}"#;

fn folder() -> Folder {
    let folder = Folder::with("g.txt", GRAPH);
    folder.write("costs.json", COSTS);
    folder
}

#[test]
fn a_plan_says_what_it_is_worth_and_is_written_where_it_is_asked_for() {
    let folder = folder();
    let ran = folder.run("plan g.txt --costs costs.json -o planned.txt").expect(0, &["proven equal"]);
    let out = ran.out();
    // As it came, both messages of 2,256 ns are waited for on the spot; planned, the first hides behind the second node.
    for line in ["as it came  18.51 us  14.0 us  4.5 us", "planned     16.3 us"] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(
            out.lines().any(|found| found.split_whitespace().collect::<Vec<_>>().starts_with(&words[..3])),
            "{out}"
        );
    }
    assert!(out.contains("no plan is shorter than"), "{out}");
    let planned = folder.read("planned.txt");
    let place = |name: &str| planned.find(&format!("  {name} = ")).unwrap_or_else(|| panic!("{name}: {planned}"));
    assert!(place("r0") < place("d") && place("d") < place("w0"), "{planned}");
    folder.run("verify g.txt planned.txt").expect(0, &[]);
}

#[test]
fn a_plan_of_a_plan_changes_nothing() {
    let folder = folder();
    folder.run("plan g.txt --costs costs.json -o one.txt").expect(0, &[]);
    folder.run("plan one.txt --costs costs.json -o two.txt").expect(0, &[]);
    assert_eq!(folder.read("one.txt"), folder.read("two.txt"));
}

#[test]
fn buckets_are_kept_where_that_is_asked_for_or_made_by_passes_first() {
    let folder = folder();
    let row = |out: &str, name: &str| -> Vec<String> {
        let line =
            out.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {out}"));
        line.trim_start()[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    let alone = folder.run("plan g.txt --costs costs.json --buckets kept").expect(0, &["proven equal"]);
    assert_eq!(row(alone.out(), "planned")[8..10], ["2", "0"], "{}", alone.out());
    let bucketed = "plan g.txt --costs costs.json --pipeline bucket-all-reduce -o b.txt";
    let bucketed = folder.run(bucketed).expect(0, &["proven equal"]);
    for name in ["bucketed", "planned"] {
        assert_eq!(row(bucketed.out(), name)[8..10], ["1", "1"], "{}", bucketed.out());
    }
    folder.run("verify g.txt b.txt --launches-may-move").expect(0, &[]);
    let json = folder.run("plan g.txt --costs costs.json --pipeline bucket-all-reduce --json").expect(0, &[]);
    let json: Value = serde_json::from_str(json.out()).unwrap();
    assert_eq!(json["bucketed"]["buckets"], 1);
    folder.run("plan g.txt --costs costs.json --pipeline sort").expect(2, &["no pass is called `sort`"]);
    folder.run("plan g.txt --costs costs.json --pipeline bucket-all-reduce --buckets kept").expect(2, &["--buckets"]);
}

#[test]
fn each_launch_is_explained_and_drawn_where_it_runs() {
    let folder = folder();
    let ran = folder.run("plan g.txt --costs costs.json --explain --timeline t.html --trace t.json").expect(0, &[]);
    // The first message takes 2,256 ns and hides behind `d` whole; the second has nothing to hide behind.
    for part in [
        "`r0`: all_reduce, 256 B, group world",
        "launched after `c`, takes 2.3 us, waited for at the end",
        "hides 2.3 us behind 1 call, most of it `d`; computation never stands still for it",
        "hides behind nothing; computation stands still for it for 2.3 us",
    ] {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    let page = folder.read("t.html");
    let places = ["as it came", "planned"].map(|name| page.find(&format!("{{name:\"{name}\"")));
    assert!(places[0].is_some() && places[0] < places[1], "{page}");
    assert!(page.contains("[0,5000,\"c\",\"compute\",\"\"]"), "{page}");
    assert_eq!(page.matches("[5000,2256,\"r0\",\"comm\"").count(), 2, "{page}");
    let trace: Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let sent = |pid: u64| -> Vec<(String, f64)> {
        let comm = events.iter().filter(|event| event["cat"] == "comm" && event["pid"] == pid);
        comm.map(|event| (event["name"].as_str().unwrap().to_owned(), event["ts"].as_f64().unwrap())).collect()
    };
    assert_eq!(sent(0), [("r0".to_owned(), 5.0), ("r1".to_owned(), 16.256)]);
    assert_eq!(sent(1), [("r0".to_owned(), 5.0), ("r1".to_owned(), 14.0)]);
    folder.run("plan g.txt --costs costs.json --sweep --trace t.json").expect(2, &["--trace"]);
}

#[test]
fn a_timeline_is_a_picture_or_data_if_its_name_says_so() {
    let folder = folder();
    for name in ["t.svg", "T.SVG"] {
        folder.run(&format!("plan g.txt --costs costs.json --timeline {name}")).expect(0, &[]);
    }
    let picture = folder.read("t.svg");
    assert_eq!(picture, folder.read("T.SVG"));
    assert!(picture.starts_with("<svg xmlns") && !picture.contains("<script"), "{picture}");
    let places = ["as it came: 18.5 us", "planned: 16.3 us"].map(|name| picture.find(&format!(">{name}<")));
    assert!(places[0].is_some() && places[0] < places[1], "{picture}");
    let told = "<title>comm r0\n2.3 us, from 5.0 us to 7.3 us\nall_reduce, 256 B, group world\nhides 2.3 us behind 1 call, most of \
                it `d`; computation never stands still for it</title>";
    assert_eq!(picture.matches(told).count(), 1, "{picture}");
    assert_eq!(picture.matches("2.3 us, from 14.0 us to 16.3 us\nfor `r1`</title>").count(), 1, "{picture}");

    folder.run("plan g.txt --costs costs.json --timeline t.json").expect(0, &[]);
    let data: Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let spans = |run: &str| -> Vec<(String, String, u64, u64)> {
        let word = |span: &Value, name: &str| span[name].as_str().unwrap().to_owned();
        let number = |span: &Value, name: &str| span[name].as_u64().unwrap();
        let of = |span| (word(span, "node"), word(span, "doing"), number(span, "start_ns"), number(span, "end_ns"));
        data[run].as_array().unwrap().iter().map(of).collect()
    };
    let span = |node: &str, doing: &str, start, end| (node.to_owned(), doing.to_owned(), start, end);
    assert_eq!(
        spans("planned"),
        [
            span("c", "compute", 0, 5000),
            span("d", "compute", 5000, 14_000),
            span("w1", "wait", 14_000, 16_256),
            span("r0", "comm", 5000, 7256),
            span("r1", "comm", 14_000, 16_256),
        ]
    );
    assert_eq!(data["planned"][2]["awaits"], serde_json::json!(["r1"]));
    assert_eq!(data["planned"][3]["message"]["hidden_ns"], 2256);
    assert_eq!(spans("as_written").len(), 6);
    let as_written = folder.run("plan g.txt --costs costs.json --as-written --timeline t.json").expect(0, &[]);
    assert!(as_written.out().contains("as it came"));
    let data: Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    assert_eq!((&data["planned"], data.get("bucketed")), (&Value::Null, None));
}

#[test]
fn a_sweep_says_what_memory_and_caps_on_buckets_are_worth() {
    let folder = folder();
    let ran = folder.run("plan g.txt --costs costs.json --sweep --json").expect(0, &[]);
    let found: Value = serde_json::from_str(ran.out()).unwrap();
    let memory = found["memory"].as_array().unwrap();
    assert_eq!((memory.len(), found["caps"].as_array().unwrap().len()), (9, 9));
    let number = |point: &Value, name: &str| point["planned"][name].as_u64().unwrap();
    for pair in memory.windows(2) {
        assert!(number(&pair[0], "makespan_ns") >= number(&pair[1], "makespan_ns"), "{found}");
    }
    assert!(memory.iter().all(|point| number(point, "peak_bytes") <= point["cap_bytes"].as_u64().unwrap()), "{found}");
    assert_eq!(found["as_written"]["makespan_ns"], 18_512);
    assert_eq!(found["caps"][8]["cap_bytes"], Value::Null);
    assert_eq!(found["caps"][8]["bucketed"]["launches"], 1);
    let text = folder.run("plan g.txt --costs costs.json --sweep").expect(0, &[]);
    assert!(text.out().contains("alive at most") && text.out().contains("buckets of at most"), "{}", text.out());
}

#[test]
fn without_an_output_nothing_is_written_and_json_has_exact_numbers() {
    let folder = folder();
    let ran = folder.run("plan g.txt --costs costs.json --json").expect(0, &[]);
    let json: Value = serde_json::from_str(ran.out()).unwrap();
    assert_eq!(json["format"], "bucketeer-plan");
    assert_eq!(json["as_written"]["makespan_ns"], 18_512);
    assert_eq!(json["planned"]["exposed_ns"], 2_256);
    assert_eq!(json["bounds"][0]["ns"].as_u64().map(|ns| ns <= 16_256), Some(true));
    let ran = folder.run("plan g.txt --costs costs.json --json --as-written").expect(0, &[]);
    let json: Value = serde_json::from_str(ran.out()).unwrap();
    assert!(json["planned"].is_null() && json["waits"].as_array().is_some_and(|waits| waits.len() == 2));
}

#[test]
fn what_cannot_be_planned_is_refused_with_what_and_where() {
    let folder = folder();
    folder.write("wrong.json", COSTS.replace("\"d\"", "\"e\""));
    folder.run("plan g.txt --costs wrong.json").expect(1, &["`e`, which is not a node of the graph", "g.txt"]);
    folder.write("group.json", COSTS.replace("\"world\"", "\"other\""));
    folder.run("plan g.txt --costs group.json").expect(1, &["`r0`", "group `world`", "`other`"]);
    folder.run("plan g.txt --costs nowhere.json").expect(2, &["cannot read nowhere.json"]);
    folder.run("plan g.txt --costs costs.json --memory 10").expect(1, &["at most 10 bytes", "needs"]);
    folder.run("plan g.txt --costs costs.json --memory much").expect(2, &["expected normal, same, none"]);
    assert_eq!(folder.read("g.txt"), GRAPH);
}

#[test]
fn the_readme_and_the_page_show_what_the_tool_says() {
    let fixture = kit::root().join("fixtures/plan/llama8b_l4_n8_t2048");
    let (graph, costs) = (fixture.join("graph.txt"), fixture.join("costs.json"));
    let ran =
        folder().run(&format!("plan {} --costs {}", graph.display(), costs.display())).expect(0, &["proven equal"]);
    let readme = std::fs::read_to_string(kit::root().join("README.md")).unwrap();
    let page = kit::files::page("planning.md");
    assert_eq!(ran.out().lines().count(), 10);
    for line in ran.out().lines() {
        assert!(page.contains(line), "docs/planning.md lacks {line}");
    }
    for line in ran.out().lines().skip(1).take(3) {
        assert!(readme.contains(line), "README.md lacks {line}");
    }
}

#[test]
fn a_machine_stands_for_costs_and_measured_times_for_shapes() {
    let folder = folder();
    let exposed = |line: &str| {
        let ran = folder.run(line).expect(0, &["proven equal"]);
        let json: Value = serde_json::from_str(ran.out()).unwrap();
        let number = |of: &str| json["planned"][of].as_u64().unwrap();
        (number("compute_ns"), number("exposed_ns"))
    };
    let (compute, by_shapes) = exposed("plan g.txt --profile h100 --json");
    assert!(compute > 0 && by_shapes > 0);
    // Half a second each: the first message is hidden behind the second computation.
    folder.write("times.json", r#"{"schema": "bucketeer-times-1", "ns": {"c": 500000000, "d": 500000000}}"#);
    let (compute, measured) = exposed("plan g.txt --profile h100 --times times.json --json");
    assert_eq!(compute, 1_000_000_000);
    assert!(measured > 0 && measured <= by_shapes, "{measured} {by_shapes}");
    folder.run("plan g.txt --profile h101").expect(2, &["h101", "h100", "h100-ib"]);
    folder.run("plan g.txt --profile h100 --costs costs.json").expect(2, &["cannot be used with"]);
    folder.run("plan g.txt").expect(2, &["--costs"]);
}
