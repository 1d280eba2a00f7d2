//! Whether a result computes what its source did, held against each other before anything is written.

use super::args::Job;
use super::report::ProofReport;
use crate::buckets::SwitchWord;
use crate::fault::InputFault;
use crate::proof::{self, Source};
use anyhow::{Result, bail};
use bucketeer::check::{self, Difference, Options, Side, Verdict, What};
use bucketeer::ir::Graph;
use bucketeer::passes::Pass;
use bucketeer::passes::bucketing::Unpack;
use bucketeer_formats::Document;

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
/// The document is the source's, to point into its text. Of graphs that were rewritten together, what moves a launch may stand in another rank's graph.
pub fn prove(
    job: &Job,
    label: &str,
    document: &Document,
    index: usize,
    source: Option<&Graph>,
    result: &Graph,
) -> Result<ProofReport> {
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
    let before = Some(Source { file: label, document, graph: index });
    let name = &source.name;
    match check::prove_with(source, result, options) {
        Verdict::Equal(proof) => {
            Ok(ProofReport::Equal { assumptions: proof.assumptions.iter().map(ToString::to_string).collect() })
        }
        Verdict::Different(found) => match *found {
            Difference { what: What::IllFormed(Side::Before), before: term, .. } if job.verify.is_some() => {
                let place = term.node.as_deref().and_then(|node| before?.point_at(node));
                let place = place.unwrap_or_else(|| format!("  {label}"));
                Err(InputFault::of_place(&place, format!("graph `{name}` is not well-formed: {term}")).into())
            }
            Difference { what: What::IllFormed(Side::Before), before: term, .. } => {
                Ok(ProofReport::CannotDecide { because: format!("the source is not well-formed: {term}") })
            }
            _ => bail!(
                "{label}: graph `{name}`: the result does not compute what the source does, or not provably. That is a \
                 fault of bucketeer, please report it. Nothing is written; --verify=off writes it unproven\n{}",
                proof::difference(&found, before, None)
            ),
        },
        Verdict::CannotDecide(found) if job.verify.is_some() => {
            bail!(
                "{label}: graph `{name}` is not proven; nothing is written\n{}",
                proof::undecided(&found, before, None)
            )
        }
        Verdict::CannotDecide(found) => Ok(ProofReport::CannotDecide { because: format!("cannot decide: {found}") }),
    }
}
