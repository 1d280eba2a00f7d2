//! Pairs of graphs as files, each with what the checker says of it: `tests/filetests/check`.
//!
//! A file with one graph holds it against itself, or with `passes=PIPELINE` against what the passes make of it.

use bucketeer::check::{Options, Verdict, prove_with};
use kit::filetests::{Case, Run, hold};
use std::fmt::Write;

fn said(case: &Case, run: &Run) -> String {
    let before = &case.graphs[0];
    let rewritten = run.rewritten(before);
    let after = rewritten.as_ref().or(case.graphs.get(1)).unwrap_or(before);
    let options =
        Options { outputs_may_share: run.has("outputs-may-share"), launches_may_move: run.has("launches-may-move") };
    let verdict = prove_with(before, after, options);
    let mut said = verdict.to_string();
    if let Verdict::Equal(proof) = verdict {
        for note in proof.ranks {
            write!(said, "\n  `{}` is made for rank {} of {}", note.node, note.rank, note.group).unwrap();
        }
        for (output, other) in proof.shared_outputs {
            write!(said, "\n  `{output}` shares memory with {other}").unwrap();
        }
    }
    said
}

#[test]
fn files_of_graphs_get_the_verdicts_that_stand_below_them() {
    hold("check", 59, &["passes=", "outputs-may-share", "launches-may-move"], said);
}
