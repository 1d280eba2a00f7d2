//! Each launch of a plan in words.

use super::hiding::Hiding;
use super::pictures::{carries, what_is_sent};
use crate::units::time;
use bucketeer::ir::{Graph, Op};
use bucketeer::passes::schedule::Timeline;

/// By place of the program: the calls that take time before and after it.
struct Places {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
}

impl Places {
    fn of(graph: &Graph, run: &Timeline) -> Self {
        let order = graph.order();
        let takes_time = |at: usize| matches!(graph.node(order[at]).op, Op::Call(_)) && run.takes_time(at);
        let (mut before, mut after) = (vec![None; order.len()], vec![None; order.len()]);
        for at in 1..order.len() {
            before[at] = if takes_time(at - 1) { Some(at - 1) } else { before[at - 1] };
        }
        for at in (1..order.len()).rev() {
            after[at - 1] = if takes_time(at) { Some(at) } else { after[at] };
        }
        Self { before, after }
    }
}

/// For each launch, in program order: what travels in it, between which calls it is launched and waited for, what it hides
/// behind and what stays exposed.
pub fn explained(graph: &Graph, run: &Timeline) -> Vec<String> {
    let positions = graph.positions();
    let places = Places::of(graph, run);
    let mut lines = Vec::with_capacity(3 * run.launches.len());
    for (launch, hiding) in run.launches.iter().zip(Hiding::all(graph, run)) {
        let (node, at) = (launch.node, positions[launch.node.index()] as usize);
        lines.push(format!("  `{}`: {}", graph.name_of(node), what_is_sent(graph, launch)));
        lines.extend(carries(graph, launch).map(|words| format!("    {words}")));
        let named = |at: usize| format!("`{}`", graph.name_of(graph.order()[at]));
        let after = places.before[at].map_or("at the start".to_owned(), |at| format!("after {}", named(at)));
        let reader = launch.wait.and_then(|wait| places.after[positions[wait.index()] as usize]);
        let until = reader.map_or("at the end".to_owned(), |at| format!("before {}", named(at)));
        let queued = launch.start_ns.saturating_sub(run.at_ns[at]);
        let queued = if queued > 0 { format!(", begins {} later", time(queued)) } else { String::new() };
        lines.push(format!(
            "    launched {after}{queued}, takes {}, waited for {until}",
            time(launch.end_ns - launch.start_ns)
        ));
        lines.push(format!("    {}", hiding.in_words(graph, launch)));
    }
    lines
}
