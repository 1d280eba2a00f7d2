//! Whether a result computes what its source did, held against each other before anything is written.

use super::args::Job;
use super::report::ProofReport;
use crate::buckets::SwitchWord;
use crate::fault::{InputFault, Refusal};
use crate::proof::{self, Source};
use anyhow::{Result, bail};
use bucketeer::check::{self, Difference, Options, Side, Verdict, What};
use bucketeer::ir::Graph;
use bucketeer::passes::Pass;
use bucketeer::passes::bucketing::Unpack;

/// Graphs of at most so many nodes are proven unasked: 300,000 nodes take 0.9 to 1.2 seconds, and time is linear.
const MOST_NODES: usize = 200_000;

/// Whether the result of this graph is to be proven.
pub fn wants(job: &Job, graph: &Graph) -> bool {
    match job.verify {
        Some(word) => word == SwitchWord::On,
        None => graph.order().len() <= MOST_NODES,
    }
}

/// Proves a rewritten graph against its source, if that was kept.
///
/// A refusal is a fault of the passes, or of the checker: never of the input, unless the checker finds one in it that the
/// verifier did not.
///
/// `before` is the source's text, if it has one, to point into. Of graphs that were rewritten together, what moves a launch may stand in another rank's graph.
pub fn prove(job: &Job, before: Option<Source<'_>>, source: Option<&Graph>, result: &Graph) -> Result<ProofReport> {
    let Some(source) = source else {
        let because = if job.verify.is_some() {
            "not asked for".to_owned()
        } else {
            format!("more than {MOST_NODES} nodes; --verify proves it all the same")
        };
        return Ok(ProofReport::NotTried { because });
    };
    let views = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.unpack == Unpack::Views);
    let options = Options {
        outputs_may_share: job.passes.pipeline.passes.iter().any(views),
        launches_may_move: job.graphs.len() > 1,
    };
    let name = &source.name;
    let named = proof::named(before, name);
    match check::prove_with(source, result, options) {
        Verdict::Equal(proof) => {
            Ok(ProofReport::Equal { assumptions: proof.assumptions.iter().map(ToString::to_string).collect() })
        }
        Verdict::Different(found) => match *found {
            Difference { what: What::IllFormed(Side::Before), before: term, .. } if job.verify.is_some() => {
                let place = term.node.as_deref().and_then(|node| before?.place_of(node));
                let file = before.map_or("<graph>", |before| before.file);
                Err(InputFault::of_place(file, place, format!("graph `{name}` is not well-formed: {term}")).into())
            }
            Difference { what: What::IllFormed(Side::Before), before: term, .. } => {
                Ok(ProofReport::CannotDecide { because: format!("the source is not well-formed: {term}") })
            }
            _ => bail!(Refusal(format!(
                "{named}: the result does not compute what the source does, or not provably. That is a fault of bucketeer, \
                 please report it. Nothing is written; --verify=off writes it unproven\n{}",
                proof::difference(&found, before, None)
            ))),
        },
        Verdict::CannotDecide(found) if job.verify.is_some() => {
            let why = proof::undecided(&found, before, None);
            bail!(Refusal(format!("{named} is not proven; nothing is written\n{why}")))
        }
        Verdict::CannotDecide(found) => Ok(ProofReport::CannotDecide { because: format!("cannot decide: {found}") }),
    }
}
