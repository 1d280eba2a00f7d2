//! Bucketing for a compiler that has its own graph: here a plain petgraph `DiGraph` of enum nodes.
//!
//! Nothing is converted. The compiler implements `PlanGraph`, asks `select` which collectives may travel together, and
//! merges them in its own way; it is told why the others were left alone. Run it with
//! `cargo run --example petgraph_plan`.

use bucketeer::passes::order::Place;
use bucketeer::passes::select::{Candidate, Caps, PlanGraph, Policy, Refusal, Selection, launch_order, select};
use petgraph::Direction::{Incoming, Outgoing};
use petgraph::graph::{DiGraph, NodeIndex};

/// A node of the compiler's graph.
#[derive(Clone, Copy)]
enum Op {
    Compute(&'static str),
    AllReduce { name: &'static str, bytes: u64, group: u8 },
    Wait,
}

/// A compiler's graph. Its nodes are added in the order in which they run, so their indices are in topological order.
struct Step(DiGraph<Op, ()>);

impl PlanGraph for Step {
    /// Two all-reduces may travel together if they are of one group.
    type Key = u8;

    fn node_count(&self) -> usize {
        self.0.node_count()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.0.neighbors_directed(NodeIndex::new(node), Incoming).map(NodeIndex::index)
    }

    fn candidate(&self, node: usize) -> Option<Candidate<u8>> {
        let node = NodeIndex::new(node);
        let Op::AllReduce { bytes, group, .. } = self.0[node] else { return None };
        let wait = self.0.neighbors_directed(node, Outgoing).next()?;
        Some(Candidate { key: group, bytes: Some(bytes), wait: wait.index() })
    }
}

impl Step {
    /// A backward pass of four layers. Each layer's gradient needs the one before and is reduced over group 0, but for
    /// one that only the ranks of group 1 share. At the end, the norm of all gradients is reduced too.
    fn backward() -> Self {
        let mut step = Self(DiGraph::new());
        let mut last = step.add(Op::Compute("loss"), &[]);
        let mut gradients = Vec::new();
        for (name, bytes, group) in [("grad3", 600, 0), ("grad2", 300, 0), ("grad1", 300, 1), ("grad0", 400, 0)] {
            last = step.add(Op::Compute("layer"), &[last]);
            let reduce = step.add(Op::AllReduce { name, bytes, group }, &[last]);
            gradients.push(step.add(Op::Wait, &[reduce]));
        }
        let norm = step.add(Op::Compute("norm"), &gradients);
        let total = step.add(Op::AllReduce { name: "total", bytes: 4, group: 0 }, &[norm]);
        step.add(Op::Wait, &[total]);
        step
    }

    fn add(&mut self, op: Op, reads: &[NodeIndex]) -> NodeIndex {
        let node = self.0.add_node(op);
        for &read in reads {
            self.0.add_edge(read, node, ());
        }
        node
    }

    fn name(&self, node: usize) -> &'static str {
        match self.0[NodeIndex::new(node)] {
            Op::Compute(name) | Op::AllReduce { name, .. } => name,
            Op::Wait => "wait",
        }
    }
}

/// One line for each bucket, and one for each collective left alone.
fn report(step: &Step, selection: &Selection) -> Vec<String> {
    let names = |members: &[usize]| members.iter().map(|&node| step.name(node)).collect::<Vec<_>>().join(" + ");
    let mut lines: Vec<String> = selection.buckets.iter().map(|members| format!("merge {}", names(members))).collect();
    for outcome in &selection.outcomes {
        let reason = match outcome.bucket {
            Ok(_) => continue,
            Err(Refusal::Oversize { cap_bytes }) => format!("it is larger than {cap_bytes} bytes"),
            Err(Refusal::SizeUnknown) => "its size is not known".to_owned(),
            Err(Refusal::CapReached { other }) => format!("the bucket of {} is full", step.name(other)),
            Err(Refusal::Dependent { other }) => format!("it and {} depend on one another", step.name(other)),
            Err(Refusal::NotAdjacent) => "its neighbours are of other groups".to_owned(),
            Err(Refusal::NoPartner) => "nothing else is of its group".to_owned(),
            // Reasons that later versions may have say themselves.
            Err(other) => other.to_string(),
        };
        lines.push(format!("leave {} alone: {reason}", step.name(outcome.node)));
    }
    lines
}

/// Plans the backward pass with buckets of at most 1000 bytes.
pub fn run() -> Vec<String> {
    let step = Step::backward();
    // A graph whose nodes are numbered otherwise is an error that names the node.
    let selection = select(&step, Policy::Greedy, &Caps::bytes(1000)).expect("nodes are added in order");
    let mut lines = report(&step, &selection);
    // Where the launches go: of each bucket its first member stands for all.
    let order = launch_order(&step, &selection, Place::BestOrLast).expect("what was selected closes no loop");
    let names: Vec<&str> = order.slots.iter().map(|&node| step.name(node)).collect();
    lines.push(format!("run {}", names.join(", ")));
    lines
}

#[cfg_attr(test, allow(dead_code, reason = "the tests include this file"))]
fn main() {
    for line in run() {
        println!("{line}");
    }
}
