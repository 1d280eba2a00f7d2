//! Real graphs, as they came and rewritten by default, are lowered: the plan is within 5 % of its bound, the program is
//! proven, and both its forms are read back.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use kit::files;

/// What `rewrite` does without options.
const DEFAULT: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=256MiB},bucket-all-reduce{cap=25MiB},\
                       bucket-all-gather{cap=256MiB}";

/// Values for sizes that nobody gave.
fn options(graph: &Graph) -> LowerOptions {
    let mut options = LowerOptions::default();
    loop {
        match bucketeer::ir::concrete::with_sizes(graph, &options.symbols) {
            Err(bucketeer::ir::concrete::SizeError::Unknown { symbol, .. }) => {
                options.symbols.insert(symbol.into(), 64);
            }
            _ => return options,
        }
    }
}

fn check(graph: &Graph, label: &str) -> Program {
    let (program, _) = lower(graph, &options(graph)).unwrap_or_else(|error| panic!("{label}: {error}"));
    program.check_form().unwrap_or_else(|error| panic!("{label}: {error}"));
    for arena in &program.arenas {
        let within = arena.bytes as f64 <= arena.live_bytes as f64 * 1.05;
        assert!(within, "{label}: {arena:?} is not within 5 % of its largest live set");
    }
    match prove(graph, &program) {
        ProgramVerdict::Equal(_) => program,
        ProgramVerdict::Different(fault) | ProgramVerdict::CannotDecide(fault) => panic!("{label}: {fault}"),
    }
}

#[test]
fn committed_graphs_are_lowered_as_they_came_and_rewritten() {
    let pipeline: Pipeline = DEFAULT.parse().unwrap();
    let mut paths = files::fx();
    // Large graphs are slow to prove without optimisation.
    if cfg!(debug_assertions) {
        paths.retain(|path| path.to_string_lossy().contains("tiny_"));
        assert_eq!(paths.len(), 11);
    }
    for path in paths {
        for mut graph in files::graphs(&path) {
            let label = format!("{} {}", path.display(), graph.name);
            if graph.groups().iter().any(|group| group.size.is_none()) {
                for index in 0..graph.groups().len() {
                    let group = graph.group_mut(bucketeer::ir::GroupId::from_index(index));
                    group.size = group.size.or(Some(4));
                }
            }
            let program = check(&graph, &label);
            assert_eq!(Program::parse(&program.to_string()).unwrap().to_string(), program.to_string(), "{label}");
            assert_eq!(Program::from_json(&program.to_json()).unwrap(), program, "{label}");
            pipeline.run(&mut graph).unwrap();
            check(&graph, &format!("{label}, rewritten"));
        }
    }
}
