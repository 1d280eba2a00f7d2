//! What fuzzing checks: functions that take any bytes and panic where the library breaks a promise.
//!
//! The targets in `fuzz/` and the tests `tests/check/fuzz_smoke.rs` and `tests/check/fuzz_prove.rs` call them. Each returns whether
//! the input was accepted, so that a test can tell whether it reaches past the reader.

mod choices;
mod damage;
pub mod grow;
mod pipelines;
pub mod prove;

use bucketeer::ir::json::{from_json, to_json};
use bucketeer::ir::{Graph, text, verify};
use bucketeer::passes::merge::MergeError;
use bucketeer::passes::select::Policy;
use bucketeer::passes::{Pass, Pipeline, PipelineError};
use bucketeer_formats::fx::{FxText, print_fresh};
use bucketeer_formats::hlo::HloText;

/// Pipelines that [`rewrite`] and [`fx_text`] choose from.
pub const PIPELINES: &[&str] = &[
    "dedupe-waits,fold-trivial,bucket-all-gather{cap=none},bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none}",
    "dedupe-collectives,bucket-all-reduce{cap=100B/1KiB,policy=adjacent},bucket-broadcast{cap=none,policy=adjacent}",
    "fold-trivial,bucket-all-gather{cap=none,mixed-dtype=bytes},bucket-reduce-scatter{cap=64B,unpack=views}",
    "bucket-all-gather{cap=none,mode=coalesced},bucket-reduce-scatter{cap=none,mode=coalesced},\
     bucket-all-reduce{cap=none,mode=coalesced,max-members=3}",
    "bucket-all-gather{policy=xla},bucket-all-reduce{policy=xla,cap=1KiB},bucket-reduce-scatter{policy=xla,max-members=3}",
    "bucket-all-gather{cap=1KiB,policy=adjacent,in-loops=off},bucket-all-reduce{cap=none,unpack=copies}",
];

/// FX text is refused or comes back byte for byte; so does what is printed from its graphs alone, and what a pipeline
/// makes of it can be read again.
///
/// # Panics
/// If not.
pub fn fx_text(bytes: &[u8]) -> bool {
    let Ok(mut module) = FxText::parse(bytes.to_vec()) else { return false };
    assert!(module.print() == bytes, "printed:\n{}", String::from_utf8_lossy(&module.print()));
    for graph in module.graphs() {
        if let Ok(fresh) = print_fresh(graph) {
            let again = FxText::parse(fresh.clone().into_bytes());
            let again = again.unwrap_or_else(|error| panic!("{error}\nprinted fresh:\n{fresh}"));
            assert!(again.graphs() == std::slice::from_ref(graph), "printed fresh:\n{fresh}");
        }
    }
    let mut rewritten = false;
    for graph in module.graphs_mut() {
        rewritten |= run(graph, &pipeline(bytes));
    }
    if rewritten {
        let printed = module.print();
        let again = FxText::parse(printed.clone());
        let again = again.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&printed)));
        assert!(again.print() == printed);
    }
    true
}

/// HLO text is refused, or comes back byte for byte; and what a pipeline makes of it can be read again.
///
/// # Panics
/// If not.
pub fn hlo_text(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(mut module) = HloText::parse(text.to_owned()) else { return false };
    assert!(module.print() == bytes, "printed:\n{}", String::from_utf8_lossy(&module.print()));
    if run(&mut module.graphs_mut()[0], &pipeline(bytes)) {
        let printed = String::from_utf8(module.print()).expect("HLO text is UTF-8");
        let again = HloText::parse(printed.clone()).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        verify(&again.graphs()[0]).unwrap_or_else(|errors| panic!("{errors}\n{printed}"));
    }
    true
}

/// Native text is refused, or what is printed of it is read as the same graph.
///
/// # Panics
/// If not.
pub fn native_text(bytes: &[u8]) -> bool {
    let Some(graph) = str::from_utf8(bytes).ok().and_then(|input| text::parse(input).ok()) else { return false };
    // Whatever it says, it does not panic.
    let _ = verify(&graph);
    check_text(&graph);
    true
}

/// JSON is refused, or what is written of it is read as the same graph.
///
/// # Panics
/// If not.
pub fn json(bytes: &[u8]) -> bool {
    let Some(graph) = str::from_utf8(bytes).ok().and_then(|input| from_json(input).ok()) else { return false };
    let _ = verify(&graph);
    let written = to_json(&graph);
    let again = from_json(&written).unwrap_or_else(|error| panic!("{error}\nwritten:\n{written}"));
    assert!(again == graph, "written:\n{written}");
    assert_eq!(to_json(&again), written);
    true
}

/// The text of a pipeline is refused, or what is printed of it is read as the same pipeline.
///
/// # Panics
/// If not.
pub fn pipeline_text(bytes: &[u8]) -> bool {
    let Some(pipeline) = str::from_utf8(bytes).ok().and_then(|input| input.parse::<Pipeline>().ok()) else {
        return false;
    };
    let printed = pipeline.to_string();
    assert_eq!(printed.parse().as_ref(), Ok(&pipeline), "printed: {printed}");
    assert_eq!(printed.parse::<Pipeline>().map(|again| again.to_string()), Ok(printed));
    true
}

/// A pipeline leaves a well-formed graph well-formed, its text is read as the same graph, and a second run of it
/// changes nothing; but for policy `adjacent`, where others become neighbours when a bucket without bytes is not
/// launched.
///
/// # Panics
/// If not.
pub fn rewrite(bytes: &[u8]) -> bool {
    let Some(mut graph) = str::from_utf8(bytes).ok().and_then(|input| text::parse(input).ok()) else { return false };
    let pipeline = pipeline(bytes);
    if !run(&mut graph, &pipeline) {
        return false;
    }
    text::normalize(&mut graph);
    let once = check_text(&graph);
    let adjacent = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.policy == Policy::Adjacent);
    if pipeline.passes.iter().any(adjacent) {
        return true;
    }
    run(&mut graph, &pipeline);
    text::normalize(&mut graph);
    let twice = check_text(&graph);
    assert!(once == twice, "{pipeline}\nafter one run:\n{once}\nafter two:\n{twice}");
    true
}

/// Whatever a stranger and a rank send to a store, another rank's requests are answered, and nothing is kept that was
/// not sent.
///
/// # Panics
/// If not.
pub fn store_frames(bytes: &[u8]) -> bool {
    bucketeer_comm::store::fuzz(bytes)
}

fn check_text(graph: &Graph) -> String {
    let printed = text::print(graph);
    let again = text::parse(&printed).unwrap_or_else(|error| panic!("{error}\nprinted:\n{printed}"));
    assert!(again == *graph, "printed:\n{printed}");
    assert_eq!(text::print(&again), printed);
    printed
}

/// One of [`PIPELINES`], by the input's length.
fn pipeline(bytes: &[u8]) -> Pipeline {
    PIPELINES[bytes.len() % PIPELINES.len()].parse().expect("the list holds pipelines")
}

/// Whether the graph is well-formed and was rewritten.
fn run(graph: &mut Graph, pipeline: &Pipeline) -> bool {
    match pipeline.run(graph) {
        Ok(_) => true,
        Err(PipelineError::Input(_) | PipelineError::Merge { error: MergeError::Size { .. }, .. }) => false,
        Err(error) => panic!("{error}\n{pipeline}\n{}", text::print(graph)),
    }
}
