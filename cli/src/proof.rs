//! What the checker says, as text and as data.

use crate::fault;
use crate::units::count;
use bucketeer::check::{Assumption, Difference, Proof, Side, Term, Undecided, Verdict};
use bucketeer_formats::{Document, SourceLocation};
use serde::Serialize;

/// A graph of a file, to point at its nodes.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub file: &'a str,
    pub document: &'a Document,
    pub graph: usize,
}

impl Source<'_> {
    /// Where a node is defined.
    pub fn place_of(&self, node: &str) -> Option<SourceLocation> {
        fault::place_of(self.document, self.graph, node)
    }

    /// The line of a node.
    pub fn point_at(&self, node: &str) -> Option<String> {
        fault::point_at(self.file, self.document, self.graph, node)
    }
}

/// A graph with its file, if it is of one.
pub fn named(source: Option<Source<'_>>, graph: &str) -> String {
    source.map_or_else(|| format!("graph `{graph}`"), |source| format!("{}: graph `{graph}`", source.file))
}

/// A difference: what differs, both terms, and the lines of both nodes. Of a graph that was never text there are none.
pub fn difference(found: &Difference, before: Option<Source<'_>>, after: Option<Source<'_>>) -> String {
    let mut text = format!("different: {}", clean(found));
    for (term, source) in [(&found.before, before), (&found.after, after)] {
        text.extend(lines(term.node.as_deref(), source));
    }
    text
}

/// What could not be followed, and its line.
pub fn undecided(found: &Undecided, before: Option<Source<'_>>, after: Option<Source<'_>>) -> String {
    let source = if found.side == Side::Before { before } else { after };
    let mut text = format!("cannot decide: {}", clean(found));
    text.extend(lines(Some(&found.node), source));
    text
}

fn lines(node: Option<&str>, source: Option<Source<'_>>) -> Option<String> {
    Some(format!("\n{}", source?.point_at(node?)?))
}

fn clean(what: &impl ToString) -> String {
    let lines: Vec<String> = what.to_string().lines().map(fault::clean).collect();
    lines.join("\n")
}

/// What a proof leaves open: ranks that the result is made for, and memory that outputs newly share.
pub fn conditions(proof: &Proof) -> Vec<String> {
    let mut lines: Vec<String> = proof.assumptions.iter().map(|assumption| format!("if {assumption}")).collect();
    let mut groups: Vec<(&str, u32)> = proof.ranks.iter().map(|note| (&*note.group, note.rank)).collect();
    groups.sort_unstable();
    groups.dedup();
    for (group, rank) in groups {
        let nodes: Vec<&str> = (proof.ranks.iter())
            .filter(|note| note.group == group && note.rank == rank)
            .map(|note| &*note.node)
            .collect();
        let first = nodes.first().copied().unwrap_or_default();
        lines.push(format!("on rank {rank} of group `{group}` only: `{first}`{} hold that rank", others(nodes.len())));
    }
    if let Some((output, with)) = proof.shared_outputs.first() {
        let others = others(proof.shared_outputs.len());
        lines.push(format!("memory newly shared: output `{output}`{others}, with `{with}`"));
    }
    lines
}

fn others(all: usize) -> String {
    if all > 1 { format!(" and {}", count(all - 1, "other")) } else { String::new() }
}

/// A verdict as JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum VerdictReport {
    Equal {
        nodes: usize,
        collectives_before: usize,
        collectives_after: usize,
        /// Ranks that the result is made for.
        ranks: Vec<RankReport>,
        /// What has to hold of operators that nothing describes.
        assumptions: Vec<AssumptionReport>,
        shared_outputs: Vec<(String, String)>,
    },
    Different {
        what: String,
        before: TermReport,
        after: TermReport,
    },
    CannotDecide {
        side: String,
        node: String,
        reason: String,
    },
}

#[derive(Debug, Serialize)]
pub struct AssumptionReport {
    operator: String,
    assumed: String,
}

impl From<&Assumption> for AssumptionReport {
    fn from(assumption: &Assumption) -> Self {
        Self { operator: assumption.operator.clone(), assumed: assumption.assumed.clone() }
    }
}

#[derive(Debug, Serialize)]
pub struct RankReport {
    group: String,
    rank: u32,
    node: String,
}

#[derive(Debug, Serialize)]
pub struct TermReport {
    node: Option<String>,
    term: String,
}

impl From<&Verdict> for VerdictReport {
    fn from(verdict: &Verdict) -> Self {
        let term = |term: &Term| TermReport { node: term.node.clone(), term: term.text.clone() };
        match verdict {
            Verdict::Equal(proof) => Self::Equal {
                nodes: proof.stats.nodes,
                collectives_before: proof.stats.launches_before,
                collectives_after: proof.stats.launches_after,
                ranks: (proof.ranks.iter())
                    .map(|note| RankReport { group: note.group.clone(), rank: note.rank, node: note.node.clone() })
                    .collect(),
                assumptions: proof.assumptions.iter().map(AssumptionReport::from).collect(),
                shared_outputs: proof.shared_outputs.clone(),
            },
            Verdict::Different(found) => {
                Self::Different { what: found.what.to_string(), before: term(&found.before), after: term(&found.after) }
            }
            Verdict::CannotDecide(found) => Self::CannotDecide {
                side: found.side.to_string(),
                node: found.node.clone(),
                reason: found.reason.clone(),
            },
        }
    }
}
