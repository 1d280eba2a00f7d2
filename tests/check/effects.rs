//! Two readings of what operators do, each from a source of its own, held against each other: the passes' table
//! (`src/ir/operators`), and the checker's schemas (`src/check/effects`). Where one has a fault, the other sees it.

use bucketeer::check::effects::{self as checker, Reading, read_line, schema_lines};
use bucketeer::check::prove;
use bucketeer::ir::operators::{self, Effects, call_effects};
use bucketeer::ir::operators::{read_row, table_rows};
use bucketeer::ir::{Arg, Args, Graph, Operators};
use bucketeer::passes::Pipeline;
use bucketeer_formats::fx::FxText;
use std::collections::{BTreeMap, BTreeSet};

/// Differences that stay, with a reason each: `namespace.operator`, and what differs.
const EXPLAINED: &[(&str, &str, &str)] = &[
    ("_c10d_functional", "write alias fence", "read as collectives; the checker takes a mere call of one at the worst"),
    ("aten.set_data", "write random", "gives its argument another storage; the checker takes it at the worst"),
    ("aten.shallow_copy_data_", "write random", "as above"),
    ("aten._cudnn_rnn_flatten_weight", "write alias random", "moves weights; the checker takes it at the worst"),
    ("aten._batch_norm_with_update_functional", "write", "hands the statistics back; the passes go by their names"),
];

/// A call that gives each parameter of a schema an operand, in order.
fn call(line: &str) -> Args {
    let schema = line.split('\t').next().unwrap_or_default();
    let open = schema.find('(').unwrap();
    let mut depth = 0;
    let mut items = vec![String::new()];
    for c in schema[open + 1..].chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
        items.last_mut().unwrap().push(c);
    }
    let mut args = Args::default();
    let mut named = false;
    for item in items.iter().map(|item| item.trim()).filter(|item| !item.is_empty() && *item != "...") {
        if item == "*" {
            named = true;
            continue;
        }
        let before = item.split('=').next().unwrap();
        let name = before.trim().rsplit(' ').next().unwrap();
        let operand = Arg::Operand((args.positional.len() + args.keyword.len()) as u32);
        if named {
            args.keyword.push((name.into(), operand));
        } else {
            args.positional.push(operand);
        }
    }
    args
}

/// `aten.add_.Tensor`
fn target(line: &str) -> String {
    let name = line.split('(').next().unwrap().replace("::", ".");
    if name.split('.').count() == 2 { format!("{name}.default") } else { name }
}

/// By columns: what the two say.
fn differences(passes: &Effects, checker: &Reading) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut writes = passes.writes.to_vec();
    writes.sort_unstable();
    writes.dedup();
    // A fence may write all that it is given.
    let fences = passes.fence == operators::Fence::Full && checker.fence == checker::Fence::Full;
    if writes != checker.writes && !fences {
        found.push("write");
    }
    let alias = fences
        || match (passes.alias, checker.alias) {
            (operators::Alias::Fresh, checker::Alias::Fresh) | (operators::Alias::Written, checker::Alias::Written) => {
                true
            }
            // One of them says less, not otherwise.
            (operators::Alias::Any, other) => other != checker::Alias::Fresh,
            (other, checker::Alias::Any) => other != operators::Alias::Fresh,
            (operators::Alias::Of(a), checker::Alias::Of(b)) => a == b,
            _ => false,
        };
    if !alias {
        found.push("alias");
    }
    let draws = (passes.fence == operators::Fence::Random, checker.fence == checker::Fence::Random);
    if draws.0 != draws.1 {
        found.push("random");
    }
    if (passes.fence == operators::Fence::Full) != (checker.fence == checker::Fence::Full) {
        found.push("fence");
    }
    found
}

#[test]
fn both_readings_agree_on_every_overload() {
    let (mut count, mut unexplained, mut used) = (0, Vec::new(), BTreeSet::new());
    // What takes anything says nothing of it; only TorchScript has such operators.
    for line in schema_lines().filter(|line| !["(...", ", ...", "-> ..."].iter().any(|open| line.contains(open))) {
        let (args, target) = (call(line), target(line));
        let passes = call_effects(&Operators::default(), &target, &args);
        let Some(checker) = read_line(line, &args) else {
            unexplained.push(format!("not read: {line}"));
            continue;
        };
        count += 1;
        let operator = target.rsplit_once('.').unwrap().0;
        let space = operator.split('.').next().unwrap();
        for what in differences(&passes, &checker) {
            let known = EXPLAINED.iter().find(|known| [operator, space].contains(&known.0) && known.1.contains(what));
            if let Some(known) = known {
                used.insert(known.0);
            } else {
                unexplained.push(format!("{what}: {passes:?} and {checker:?}\n  {line}"));
            }
        }
    }
    println!("{count} overloads, {} explained differences", used.len());
    let idle: Vec<_> = EXPLAINED.iter().filter(|known| !used.contains(known.0)).collect();
    assert!(idle.is_empty(), "explained, and the same: {idle:?}");
    assert!(unexplained.is_empty(), "{} differ\n{}", unexplained.len(), unexplained.join("\n"));
    assert!(count > 4000);
}

/// One fault for each column, in the schemas and in the table: (column, operator, what stands there, what is put there).
const IN_SCHEMAS: &[(&str, &str, &str, &str)] = &[
    ("write", "aten::_fused_adam_(", "Tensor(c!)[] exp_avgs", "Tensor[] exp_avgs"),
    ("alias", "aten::select.int(", "-> Tensor(a)", "-> Tensor"),
    ("random", "aten::dropout(", "nondeterministic_seeded", ""),
    ("fence", "c10d::barrier(", "c10d::barrier", "aten::barrier_of_none"),
];
const IN_TABLE: &[(&str, &str, &str, &str)] = &[
    ("write", "aten.copy_.default", "!a", ""),
    ("alias", "aten.select.int", "=a", ""),
    ("random", "aten.native_dropout.default", "random", ""),
];

fn passes_of(line: &str) -> Effects {
    call_effects(&Operators::default(), &target(line), &call(line))
}

#[test]
fn a_fault_in_the_schemas_is_seen_by_the_table() {
    for (column, begins, from, to) in IN_SCHEMAS {
        let line = schema_lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("{begins}"));
        let damaged = line.replace(from, to);
        assert_ne!(line, damaged, "{column}");
        let passes = passes_of(line);
        let reading = |line: &str| read_line(line, &call(line)).unwrap();
        assert_eq!(differences(&passes, &reading(line)), Vec::<&str>::new(), "{column}");
        assert!(differences(&passes, &reading(&damaged)).contains(column), "{column}: {damaged}");
    }
}

#[test]
fn a_fault_in_the_table_is_seen_by_the_schemas() {
    let lines: BTreeMap<String, &str> = schema_lines().map(|line| (target(line), line)).collect();
    for (column, name, from, to) in IN_TABLE {
        let row = table_rows().find(|row| row.split('\t').next() == Some(name)).unwrap_or_else(|| panic!("{name}"));
        let damaged = row.replace(from, to);
        assert_ne!(row, damaged, "{column}");
        let line = lines[*name];
        let checker = read_line(line, &call(line)).unwrap();
        let reading = |row: &str| read_row(row, &call(line)).unwrap();
        assert_eq!(differences(&reading(row), &checker), Vec::<&str>::new(), "{column}");
        assert!(differences(&reading(&damaged), &checker).contains(column), "{column}: {damaged}");
    }
}

/// What the passes make of a graph if their table has a fault in one column: there, `operator` does what `harmless` does.
fn rewritten_with_a_fault(text: &str, operator: &str, harmless: &str) -> (Graph, Graph) {
    let read = |text: String| -> FxText { FxText::parse(text.into_bytes()).unwrap_or_else(|error| panic!("{error}")) };
    let before = read(text.to_owned()).graphs()[0].clone();
    let mut misread = read(text.replace(operator, harmless));
    let pipeline: Pipeline = "bucket-all-gather{cap=none},bucket-all-reduce{cap=none}".parse().unwrap();
    pipeline.run(&mut misread.graphs_mut()[0]).unwrap();
    assert!(pipeline_merged(&misread.graphs()[0]), "the fault has to lead to a merge\n{text}");
    let after = String::from_utf8(misread.print()).unwrap().replace(harmless, operator);
    (before, read(after).graphs()[0].clone())
}

fn pipeline_merged(graph: &Graph) -> bool {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count() == 1
}

#[test]
fn what_passes_with_a_fault_in_their_table_make_is_refused() {
    let graph = |body: &str| {
        let input = |name: &str| format!("{name}: \"f32[4][1]cpu\"");
        format!(
            "class GraphModule(torch.nn.Module):\n    def forward(self, {}, {}):\n{}\n",
            input("a"),
            input("b"),
            body.lines().map(|line| format!("        {}", line.trim())).collect::<Vec<_>>().join("\n")
        )
    };
    let reduce = |n: u32, of: &str| {
        format!(
            "g{n}: \"f32[4][1]cpu\" = torch.ops._c10d_functional.all_reduce.default({of}, 'sum', '0')
             w{n}: \"f32[4][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(g{n})"
        )
    };
    let (first, second) = (reduce(0, "a"), reduce(1, "b"));
    // A written input of the second reduce.
    let write = format!("{first}\nz: \"f32[4][1]cpu\" = torch.ops.aten.neg_.default(b)\n{second}\nreturn (w0, w1)");
    // A view of it is written.
    let alias = format!(
        "{first}\ny: \"f32[4][1]cpu\" = torch.ops.aten.detach.default(b)\nz: \"f32[4][1]cpu\" = torch.ops.aten.neg_.default(y)\n{second}\nreturn (w0, w1)"
    );
    // One draw reads the first result, one makes what the second sends.
    let random = format!(
        "{first}\nn1: \"f32[4][1]cpu\" = torch.ops.aten.rand_like.default(w0)\nn2: \"f32[4][1]cpu\" = torch.ops.aten.rand_like.default(b)\n{}\nreturn (n1, w1)",
        reduce(1, "n2")
    );
    let fence = format!("{first}\nz = torch.ops.c10d.barrier.default(a)\n{second}\nreturn (w0, w1)");
    for (column, body, operator, harmless) in [
        ("write", &write, "aten.neg_.default", "aten.neg.default"),
        ("alias", &alias, "aten.detach.default", "aten.abs.default"),
        ("random", &random, "aten.rand_like.default", "aten.abs.default"),
        ("fence", &fence, "c10d.barrier.default", "aten.abs.default"),
    ] {
        let (before, after) = rewritten_with_a_fault(&graph(body), operator, harmless);
        assert!(prove(&before, &before).is_equal(), "{column}");
        let verdict = prove(&before, &after);
        assert!(!verdict.is_equal(), "{column}: {verdict}");
    }
}

/// Quoted words of a line: names, and what is said of them.
fn quoted(text: &str) -> Vec<&str> {
    text.split('\'').skip(1).step_by(2).collect()
}

#[test]
fn g_optable_gaps_writes_views_and_draws_that_a_list_by_hand_lacked_are_known() {
    let schemas: BTreeMap<String, &str> = schema_lines().map(|line| (target(line), line)).collect();
    let overload = |base: &str, overload: &str| {
        let target = format!("{base}.{}", if overload.is_empty() { "default" } else { overload });
        let line = schemas.get(&target).unwrap_or_else(|| panic!("no {target}"));
        passes_of(line)
    };
    let path = kit::root().join("tests/found/G-optable_gaps.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut part, mut counts, mut lacking) = ("", BTreeMap::new(), Vec::new());
    for line in text.lines() {
        if let Some(head) = ["MUT", "VIEW", "RANDOM"].into_iter().find(|head| line.starts_with(head)) {
            part = head;
            continue;
        }
        *counts.entry(part).or_insert(0) += 1;
        match part {
            "MUT" => {
                let (base, rest) = line.trim().split_once(' ').unwrap();
                for entry in rest.split("), (") {
                    let at: u32 = entry.split(", ").nth(1).unwrap().parse().unwrap();
                    let effects = overload(base, quoted(entry)[0]);
                    // What sets a generator keeps its place among draws.
                    if !effects.writes.contains(&at) && effects.fence == operators::Fence::Free {
                        lacking.push(base.to_owned());
                    }
                }
            }
            "VIEW" => {
                for base in quoted(line) {
                    let of_base = schemas.iter().filter(|(name, _)| name.rsplit_once('.').unwrap().0 == base);
                    if !of_base.map(|(_, line)| passes_of(line)).any(|effects| effects.alias != operators::Alias::Fresh)
                    {
                        lacking.push(base.to_owned());
                    }
                }
            }
            _ => {
                for entry in line.split("], ") {
                    let words = quoted(entry);
                    for name in &words[1..] {
                        if overload(words[0], name).fence == operators::Fence::Free {
                            lacking.push(format!("{} {name}", words[0]));
                        }
                    }
                }
            }
        }
    }
    assert_eq!(counts, BTreeMap::from([("MUT", 170), ("RANDOM", 1), ("VIEW", 1)]));
    // `remove` changes lists of numbers, and `prims.as_strided` is a view that writes nothing, whatever its schema says.
    assert_eq!(lacking, ["aten.remove", "aten.remove", "aten.remove", "prims.as_strided"]);
}
