//! The page of JSON forms, `docs/json.md`: its examples are what the tool writes, and it names every field that there is.
//!
//! `BUCKETEER_UPDATE_DOCS=1 cargo test -p bucketeer-cli --test cli json` writes the examples.

use crate::support::Folder;
use serde_json::Value;
use std::collections::BTreeSet;

const GRAPH: &str = "\
graph step {
group world:4 = [[0, 1, 2, 3]]
hint s0 = 2
  a = input f32[8, s0]
  r0 = all_reduce(a, sum, world) : f32[8, s0]
  w0 = wait(r0) : f32[8, s0]
  b = input f32[8]
  r1 = all_reduce(b, sum, world) : f32[8]
  w1 = wait(r1) : f32[8]
  c = aten.neg.default(b) : f32[8]
  g = all_gather(c, world) : f32[32]
  w2 = wait(g) : f32[32]
  output(w0, w1, w2)
}
";

/// What the graph costs.
const COSTS: &str = r#"{"schema": "bucketeer-costs-1", "compute_ns": {"c": 5000},
"groups": {"world": {"size": 4, "costs": {
  "all_reduce": [{"alpha_ns": 2000, "ns_per_byte_num": 1, "ns_per_byte_den": 1}],
  "all_gather": [{"alpha_ns": 1000, "ns_per_byte_num": 1, "ns_per_byte_den": 2}]}}}}"#;

/// Each form: its heading, and the command that writes it.
const FORMS: &[(&str, &str)] = &[
    ("A graph", "convert g.txt - --to json"),
    ("What is in a graph", "inspect g.txt --json"),
    ("What a rewrite did", "rewrite g.txt --memory 80GB --json"),
    ("A proof", "verify g.txt g.txt --json"),
    ("Ranks held against one another", "check-ranks g.txt g.txt g.txt g.txt --json"),
    ("A plan", "plan g.txt --costs costs.json --json"),
    ("A timeline", "plan g.txt --costs costs.json --timeline out.json"),
    ("A program", "lower g.txt --emit json"),
    ("A launch plan", "lower g.txt --emit plan"),
];

fn written(command: &str) -> String {
    let folder = Folder::with("g.txt", GRAPH);
    folder.write("costs.json", COSTS);
    let ran = folder.run(command).expect(0, &[]);
    let file = command.ends_with("out.json").then(|| folder.read("out.json"));
    file.as_deref().unwrap_or(ran.out()).trim_end().to_owned()
}

/// The part of the page under a heading, up to the next of its kind.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start =
        page.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("docs/json.md has no part `{heading}`"));
    let rest = &page[start + 4..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                into.insert(key.clone());
                keys(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
        _ => {}
    }
}

#[test]
fn the_page_of_json_forms_holds_what_the_tool_writes() {
    let page = kit::files::page("json.md");
    let (mut made, mut shown_forms) = (page.clone(), 0);
    for (heading, command) in FORMS {
        let part = section(&page, heading);
        // Programs and launch plans are long; the page names their fields alone.
        let Some(shown) = part.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next()) else { continue };
        let new = part.replace(shown, &written(command));
        made = made.replace(part, &new);
        shown_forms += 1;
    }
    assert_eq!(shown_forms, 7);
    kit::files::hold_page("json.md", &made);
}

#[test]
fn the_page_of_json_forms_names_every_field() {
    let page = kit::files::page("json.md");
    for (heading, command) in FORMS {
        let part = section(&page, heading);
        let prose = part.split("```json\n").next().unwrap();
        let mut found = BTreeSet::new();
        keys(&serde_json::from_str(&written(command)).unwrap(), &mut found);
        assert!(found.len() > 3, "{heading}");
        // A symbol is named by the graph.
        found.remove("s0");
        let missing: Vec<_> = found.iter().filter(|key| !prose.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "{heading} does not name {missing:?}");
    }
}
