//! What runs when, for pictures and traces.

use super::timeline::Timeline;
use crate::ir::{Graph, GroupId, NodeId, Op};

/// Whose time a span is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// The compute stream.
    Compute,
    /// The stream of a group.
    Group(GroupId),
}

/// What a lane does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Doing {
    /// Computing a node.
    Computing,
    /// Packing a bucket before its launch.
    Packing,
    /// Standing still for a launch, whose wait the node is.
    Waiting,
    /// Copying members out of a bucket.
    Unpacking,
    /// Sending a message, whose launch the node is.
    Sending,
}

impl Doing {
    /// One word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Computing => "compute",
            Self::Packing => "pack",
            Self::Waiting => "wait",
            Self::Unpacking => "unpack",
            Self::Sending => "comm",
        }
    }
}

/// A stretch of time of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Whose time it is.
    pub lane: Lane,
    /// What is done.
    pub doing: Doing,
    /// For which node.
    pub node: NodeId,
    /// From the start of the step, in nanoseconds.
    pub start_ns: u64,
    /// How long, in nanoseconds; never 0.
    pub ns: u64,
    /// Of [`Doing::Sending`]: its index among [`Timeline::launches`].
    pub launch: Option<usize>,
}

impl Timeline {
    /// Whether the compute stream spends time at a place of the program.
    #[must_use]
    pub fn takes_time(&self, place: usize) -> bool {
        self.at_ns.get(place + 1).is_some_and(|&next| next > self.at_ns[place])
    }

    /// All that takes time, lane by lane, each in order of time; the timeline must be this graph's. Lanes never overlap
    /// themselves.
    #[must_use]
    pub fn spans(&self, graph: &Graph) -> Vec<Span> {
        let order = graph.order();
        let mut stalls = vec![0u64; graph.arena_len()];
        for launch in &self.launches {
            if let Some(wait) = launch.wait {
                stalls[wait.index()] = stalls[wait.index()].saturating_add(launch.stalled_ns);
            }
        }
        let mut spans = Vec::new();
        for (at, &node) in order.iter().enumerate() {
            let start = self.at_ns[at];
            let all = self.at_ns.get(at + 1).map_or(0, |&next| next - start);
            let (first, then) = match graph.node(node).op {
                Op::Call(_) => ((Doing::Computing, all), None),
                Op::Collective(_) => ((Doing::Packing, all), None),
                Op::Wait => {
                    let stalled = stalls[node.index()].min(all);
                    ((Doing::Waiting, stalled), Some((Doing::Unpacking, all - stalled)))
                }
                Op::Input | Op::Output => continue,
            };
            let mut from = start;
            for (doing, ns) in std::iter::once(first).chain(then) {
                if ns > 0 {
                    spans.push(Span { lane: Lane::Compute, doing, node, start_ns: from, ns, launch: None });
                }
                from += ns;
            }
        }
        let from = spans.len();
        spans.extend(self.launches.iter().enumerate().filter_map(|(index, launch)| {
            let ns = launch.end_ns - launch.start_ns;
            let lane = Lane::Group(launch.group);
            (ns > 0).then_some(Span {
                lane,
                doing: Doing::Sending,
                node: launch.node,
                start_ns: launch.start_ns,
                ns,
                launch: Some(index),
            })
        }));
        spans[from..].sort_by_key(|span| (span.lane, span.start_ns));
        spans
    }
}
