//! `plan --own`: a plan of the user's own, from a file.

use crate::support::Folder;
use bucketeer::passes::schedule::OwnPlan;
use serde_json::Value;
use std::collections::BTreeSet;

const GRAPH: &str = "\
graph step {
group world:4 = [[0, 1, 2, 3]]
  x = input f32[64]
  a = input f32[16]
  b = input f32[16]
  c0 = aten.add.Tensor(x, x) : f32[64]
  g0 = all_gather(a, world) : f32[64]
  w0 = wait(g0) : f32[64]
  c1 = aten.mul.Tensor(c0, w0) : f32[64]
  g1 = all_gather(b, world) : f32[64]
  w1 = wait(g1) : f32[64]
  c2 = aten.mul.Tensor(c1, w1) : f32[64]
  output(c2)
}
";

const COSTS: &str = r#"{"schema": "bucketeer-costs-1", "compute_ns": {"c0": 5000, "c1": 9000, "c2": 1000},
"groups": {"world": {"size": 4, "costs": {"all_gather": [
  {"alpha_ns": 2000, "ns_per_byte_num": 1, "ns_per_byte_den": 1}]}}}}"#;

fn folder(buckets: &str) -> Folder {
    let folder = Folder::with("g.txt", GRAPH);
    folder.write("costs.json", COSTS);
    folder.write("own.json", format!(r#"{{"format": "bucketeer-own-plan", "version": 1, "buckets": [{buckets}]}}"#));
    folder
}

#[test]
fn a_plan_of_ones_own_is_put_into_the_graph_proven_explained_and_written() {
    let folder = folder(r#"{"members": [{"input": "?", "kind": "all_gather"}], "launch_before": "c0"}"#);
    let ran = folder.run("plan g.txt --costs costs.json --own own.json --explain -o planned.txt");
    let ran = ran.expect(0, &["proven equal"]);
    // Both messages of 2,256 ns travel in one of 2,512 ns, behind `c0`.
    for part in ["19.5 us", "15.0 us", "no plan is shorter than", "carries g0, g1", "waited for before `c1`"] {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    let planned = folder.read("planned.txt");
    let place = |name: &str| planned.find(&format!("  {name} = ")).unwrap_or_else(|| panic!("{name}: {planned}"));
    assert!(place("bucketed_all_gather") < place("c0") && place("c0") < place("c1"), "{planned}");
    folder.run("verify g.txt planned.txt --launches-may-move").expect(0, &[]);
    let json = folder.run("plan g.txt --costs costs.json --own own.json --json").expect(0, &[]);
    let json: Value = serde_json::from_str(json.out()).unwrap();
    assert_eq!((&json["planned"]["launches"], &json["planned"]["exposed_ns"]), (&1.into(), &0.into()));
}

#[test]
fn all_faults_of_a_plan_are_named_and_nothing_is_written() {
    let folder = folder(
        r#"{"members": ["g7"]}, {"members": ["g0"], "wait_before": "c2"},
           {"members": ["g1"], "launch_after": "c9", "launch_before": "c0"}"#,
    );
    folder.run("plan g.txt --costs costs.json --own own.json -o planned.txt").expect(
        1,
        &[
            "the plan does not fit graph `step`, 4 faults:",
            "buckets[0].members[0]: `g7` matches no collective; there are `g0`, `g1`",
            "buckets[1].wait_before: it is waited for behind `c1`, which needs its result",
            "buckets[2]: found `launch_after` and `launch_before`, expected one of them",
            "buckets[2].launch_after: `c9` matches no node; there are `c0`, `c1`, `c2`",
            "own.json",
        ],
    );
    assert!(!folder.files().contains(&"planned.txt".to_owned()));
    let many = r#"{"members": ["none"]}, "#.repeat(30);
    folder.write(
        "own.json",
        format!(r#"{{"format": "bucketeer-own-plan", "version": 1, "buckets": [{many}{{"members": ["g0"]}}]}}"#),
    );
    let ran = folder.run("plan g.txt --costs costs.json --own own.json").expect(1, &["30 faults", "... and 10 more"]);
    assert_eq!(ran.talk().matches("matches no collective").count(), 20);
}

#[test]
fn texts_that_hold_no_plan_are_refused_with_line_and_column() {
    let folder = folder("{\"members\": [\"g0\"],\n\"launch\": \"c0\"}");
    let run = || folder.run("plan g.txt --costs costs.json --own own.json");
    run().expect(1, &["unknown field `launch`", "line 2 column 8", "own.json"]);
    folder.write("own.json", r#"{"format": "bucketeer-own-plan", "version": 2}"#);
    run().expect(1, &["found version 2 of `bucketeer-own-plan`, expected 1", "own.json"]);
    folder.write("own.json", [0xff, 0xfe]);
    run().expect(1, &["not UTF-8", "own.json"]);
    folder.run("plan g.txt --costs costs.json --own nowhere.json").expect(2, &["cannot read nowhere.json"]);
}

#[test]
fn a_plan_above_the_cap_is_refused_with_peak_place_and_cap_and_what_allows_it() {
    let folder = folder(r#"{"members": ["g?"], "launch_before": "c0"}"#);
    let above = ["are alive at `", "above the cap of 768 B; --memory none, or a size, allows more", "own.json"];
    folder.run("plan g.txt --costs costs.json --own own.json --memory same -o p.txt").expect(1, &above);
    assert!(!folder.files().contains(&"p.txt".to_owned()));
    folder.run("plan g.txt --costs costs.json --own own.json --memory none").expect(0, &["proven equal"]);
}

#[test]
fn a_plan_of_ones_own_stands_in_place_of_one_that_is_looked_for() {
    let folder = folder(r#"{"members": ["g?"]}"#);
    for other in ["--pipeline bucket-all-reduce", "--buckets kept", "--effort high", "--sweep", "--as-written"] {
        let line = format!("plan g.txt --costs costs.json --own own.json {other}");
        folder.run(&line).expect(2, &["--own", "cannot be used with"]);
    }
    folder.run("plan g.txt --costs costs.json --own own.json --memory none --timeline t.html").expect(0, &[]);
    assert!(folder.read("t.html").contains("bucketed_all_gather"));
}

#[test]
fn the_page_shows_what_the_tool_says_of_the_plan_in_the_tree() {
    let fixture = kit::root().join("fixtures/plan/llama8b_l4_n8_t2048");
    let file = |name: &str| fixture.join(name).display().to_string();
    let line = format!("plan {} --costs {} --own {}", file("graph.txt"), file("costs.json"), file("own.json"));
    let ran = Folder::new().run(&line).expect(0, &["proven equal"]);
    let page = kit::files::page("planning.md");
    for line in ran.out().lines().take(4) {
        assert!(page.contains(line), "docs/planning.md lacks {line}");
    }
}

#[test]
fn the_page_of_json_forms_names_every_field_of_a_plan_of_ones_own_and_no_other() {
    let page = kit::files::page("json.md");
    let part = page.split("\n## A plan of your own\n").nth(1).unwrap();
    let part = part.split("\n## ").next().unwrap();
    let (prose, rest) = part.split_once("```json\n").unwrap();
    let example = rest.split("\n```").next().unwrap();
    let plan = OwnPlan::from_json(example).unwrap();
    assert_eq!(plan.to_json().trim_end(), example);
    // The example has every field, but for the one that excludes another.
    fn keys(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                into.insert(key.clone());
                keys(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    keys(&serde_json::from_str(example).unwrap(), &mut found);
    let rows = prose.lines().filter(|line| line.starts_with("| `"));
    let first = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(',').map(str::trim));
    let named: BTreeSet<String> = first.map(|name| name.trim_matches('`').to_owned()).collect();
    assert_eq!(found, named);
    // A text with one more field is refused, and the fault lists all that there are.
    let wrong = |from: &str, to: &str| OwnPlan::from_json(&example.replacen(from, to, 1)).unwrap_err().to_string();
    for (error, names) in [
        (wrong("\"separate\"", "\"other\""), 5),
        (wrong("\"input\"", "\"other\""), 7),
        (wrong("\"buckets\"", "\"other\""), 3),
    ] {
        let listed = error.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{error}"));
        let listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed.len(), names, "{error}");
        assert!(listed.iter().all(|name| named.contains(*name)), "{error}");
    }
}
