//! The collection of cases from public reports, `docs/cases.md`: a test for each, named by its id.
//!
//! Every test goes through [`kit::rewrite`], which checks what holds for every case: the result is well-formed, all
//! ranks compute the same bits, nothing is launched or dropped that was not asked for, each start has one wait, and a
//! second run changes nothing. To each call the test says which buckets there have to be, by the names of their members, so
//! that a graph in which nothing was merged never passes for one that was merged rightly. What else a test asserts is the
//! case's own check.

mod config;
mod execute;
mod grouping;
mod lowering;
mod ordering;
mod program;
mod reading;
mod scheduling;

use bucketeer::ir::Graph;
use bucketeer_eval::EvalOptions;
use kit::rewrite::Rewritten;

/// The members of all buckets, by name and in order.
type Buckets<'a> = &'a [&'a [&'a str]];

#[track_caller]
fn expect(done: Rewritten, buckets: Buckets<'_>) -> Rewritten {
    assert_eq!(done.buckets(), buckets, "buckets of\n{}", done.text());
    done
}

/// [`kit::rewrite::rewrite`], which has to make these buckets.
#[track_caller]
fn rewrite(text: &str, pipeline: &str, buckets: Buckets<'_>) -> Rewritten {
    expect(kit::rewrite::rewrite(text, pipeline), buckets)
}

/// [`kit::rewrite::rewrite_shapes`], which has to make these buckets.
#[track_caller]
fn rewrite_shapes(text: &str, pipeline: &str, buckets: Buckets<'_>) -> Rewritten {
    expect(kit::rewrite::rewrite_shapes(text, pipeline), buckets)
}

/// [`kit::rewrite::rewrite_graph`], which has to make these buckets.
#[track_caller]
fn rewrite_graph(graph: Graph, pipeline: &str, options: &[EvalOptions], buckets: Buckets<'_>) -> Rewritten {
    expect(kit::rewrite::rewrite_graph(graph, pipeline, options), buckets)
}

/// A graph with its buckets, which have to be these; not evaluated.
#[track_caller]
fn bucketed(text: &str, buckets: Buckets<'_>) -> Graph {
    expect(kit::rewrite::rewrite_shapes(text, kit::rewrite::ALL), buckets).graph
}

/// A sketch with one more collective `h`, of an input of its own, to be merged with those that the sketch has.
fn beside(id: &str, collective: &str) -> String {
    let more = format!("extra = input f32[3]\nh = {collective}; v = wait(h)\noutput(v, ");
    kit::rewrite::sketch(id).replace("output(", &more)
}

const GATHER: &str = "all_gather(extra, G0:2)";
