//! Scheduled HLO text: merged only where that moves no other instruction.

use bucketeer::check::prove;
use bucketeer::passes::Pipeline;
use bucketeer_formats::Document;
use kit::files;
use std::path::Path;

const PIPELINE: &str = "dedupe-waits,bucket-all-gather{cap=none,mode=coalesced,unpack=views},\
                        bucket-reduce-scatter{cap=none,mode=coalesced,unpack=views},\
                        bucket-all-reduce{cap=none,mode=coalesced,unpack=views},bucket-permute{cap=none}";

fn rewritten(bytes: &[u8], pipeline: &str) -> String {
    let mut document = Document::read(bytes.to_vec()).unwrap();
    let before = document.graphs()[0].clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
    let verdict = prove(&before, &document.graphs()[0]);
    assert!(verdict.is_equal(), "{verdict}");
    let text = String::from_utf8(document.print()).unwrap();
    Document::read(text.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    text
}

/// A module with these lines in its entry, which stand in this order.
fn module(lines: &[&str]) -> String {
    format!(
        "HloModule m, is_scheduled=true, replica_count=2\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
         ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n  {}\n}}\n",
        lines.join("\n  ")
    )
}

fn entry(text: &str) -> Vec<&str> {
    let lines = text.split("ENTRY").nth(1).unwrap().lines().skip(3).map(str::trim);
    lines.map(|line| line.split(" = ").next().unwrap()).filter(|name| *name != "}").collect()
}

const R: &str = "r = f32[4] all-reduce(x), replica_groups={}, to_apply=sum";
const S: &str = "s = f32[4] all-reduce(z), replica_groups={}, to_apply=sum";

#[test]
fn a_member_that_nothing_between_reads_joins_the_last_one() {
    let lines = [R, "z = f32[4] negate(y)", S, "u = f32[4] negate(x)", "ROOT t = f32[4] add(r, s)"];
    let text = rewritten(module(&lines).as_bytes(), PIPELINE);
    assert!(text.contains("all-reduce(x, z)"), "{text}");
    // The tuple stands where `s` stood; its elements come before their readers; all else is where it was.
    let names = entry(&text);
    let place = |name: &str| names.iter().position(|other| *other == name).unwrap_or_else(|| panic!("{name}\n{text}"));
    assert!(place("z") < place("r") && place("r") < place("ROOT t") && place("s") < place("ROOT t"), "{text}");
    let kept: Vec<&str> = names.iter().copied().filter(|name| ["z", "u", "ROOT t"].contains(name)).collect();
    assert_eq!(kept, ["z", "u", "ROOT t"]);
    assert_eq!(place("z"), 0, "{text}");
}

#[test]
fn a_member_that_something_between_reads_stays() {
    // Without the schedule, `v` would move.
    let lines = [R, "v = f32[4] negate(r)", "z = f32[4] negate(y)", S, "ROOT t = f32[4] add(v, s)"];
    let scheduled = module(&lines);
    assert_eq!(rewritten(scheduled.as_bytes(), PIPELINE), scheduled);
    let free = scheduled.replace("is_scheduled=true, ", "");
    assert!(rewritten(free.as_bytes(), PIPELINE).contains("all-reduce(x, z)"));
}

#[test]
fn a_collective_that_reads_another_keeps_its_place() {
    let g = "g = f32[8] all-gather(r), replica_groups={}, dimensions={0}";
    let lines = [R, g, "z = f32[4] negate(y)", S, "ROOT t = (f32[4], f32[4], f32[8]) tuple(r, s, g)"];
    let scheduled = module(&lines);
    assert_eq!(rewritten(scheduled.as_bytes(), PIPELINE), scheduled);
}

#[test]
fn what_runs_beside_a_split_collective_that_reads_another_keeps_its_place() {
    // Were `d` not behind `n`, nothing would keep `s` behind it, and `r` could join `s`.
    let lines = [
        R,
        "q = f32[8] all-gather(y), replica_groups={}, dimensions={0}",
        "b = f32[8] all-reduce-start(q), replica_groups={}, to_apply=sum",
        "n = f32[4] negate(r)",
        "d = f32[8] all-reduce-done(b)",
        "k = f32[4] negate(y)",
        "z = f32[4] negate(k)",
        S,
        "ROOT t = (f32[4], f32[8], f32[4]) tuple(n, d, s)",
    ];
    let scheduled = module(&lines);
    assert_eq!(rewritten(scheduled.as_bytes(), PIPELINE), scheduled);
}

/// Names of the instructions of all computations that are neither collectives nor elements of tuples; parameters, which
/// run nothing, aside.
fn sequence(text: &str) -> Vec<String> {
    let words = ["all-reduce", "all-gather", "reduce-scatter", "collective-permute", "get-tuple-element", "parameter"];
    let line = |line: &str| {
        let (name, rest) = line.trim_start().split_once(" = ")?;
        (!words.iter().any(|word| rest.contains(&format!(" {word}(")))).then(|| name.to_owned())
    };
    text.lines().filter_map(line).collect()
}

/// Merges in all modules of a folder; how many were looked at and how many changed.
fn schedules_are_kept(folder: &Path) -> (usize, usize) {
    let (mut seen, mut merged) = (0, 0);
    for path in files::with_ending(folder, ".hlo") {
        let bytes = files::read(&path);
        let mut document = Document::read(bytes.clone()).unwrap();
        if !document.is_scheduled() {
            // As if it were.
            document.graphs_mut()[0].scheduled = true;
        }
        // Half a megabyte takes this test seconds without optimisation.
        if bytes.len() > 500_000 {
            continue;
        }
        seen += 1;
        let before = document.graphs()[0].clone();
        PIPELINE.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
        let verdict = prove(&before, &document.graphs()[0]);
        assert!(verdict.is_equal(), "{}: {verdict}", path.display());
        let printed = String::from_utf8(document.print()).unwrap();
        merged += usize::from(printed.as_bytes() != bytes);
        let source = String::from_utf8(bytes).unwrap();
        assert_eq!(sequence(&printed), sequence(&source), "{}", path.display());
    }
    (seen, merged)
}

#[test]
fn no_other_instruction_of_xlas_modules_changes_its_place() {
    assert_eq!(schedules_are_kept(&files::xla()), (55, 40));
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn no_other_instruction_of_shared_schedules_changes_its_place() {
    let (seen, merged) = schedules_are_kept(&files::shared().join("hlo"));
    assert!(seen > 100 && merged > 50, "{merged} of {seen}");
}
