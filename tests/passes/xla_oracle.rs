//! Policy `xla` against XLA's loop written out as it is: post order and reachability built anew for each bucket.

use bucketeer::passes::select::{Candidate, Caps, PlanGraph, Policy, select};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A node: what it depends on, in order, and its key and bytes if it is a candidate.
#[derive(Clone, Debug)]
struct Node {
    before: Vec<usize>,
    candidate: Option<(u8, u64)>,
}

#[derive(Clone, Debug)]
struct Dag(Vec<Node>);

impl PlanGraph for Dag {
    type Key = u8;

    fn node_count(&self) -> usize {
        self.0.len()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.0[node].before.iter().copied()
    }

    fn candidate(&self, node: usize) -> Option<Candidate<u8>> {
        self.0[node].candidate.map(|(key, bytes)| Candidate { key, bytes: Some(bytes), wait: node })
    }
}

/// The graph with merged nodes: each node is a list of members.
struct Merged<'a> {
    dag: &'a Dag,
    /// By node: the first member of what it is in.
    into: Vec<usize>,
    members: Vec<Vec<usize>>,
}

impl Merged<'_> {
    fn before(&self, node: usize) -> Vec<usize> {
        self.members[node].iter().flat_map(|&m| &self.dag.0[m].before).map(|&b| self.into[b]).collect()
    }

    fn nodes(&self) -> Vec<usize> {
        (0..self.into.len()).filter(|&node| self.into[node] == node).collect()
    }

    fn visit(&self, node: usize, seen: &mut BTreeSet<usize>, order: &mut Vec<usize>) {
        if seen.insert(node) {
            self.before(node).into_iter().for_each(|before| self.visit(before, seen, order));
            order.push(node);
        }
    }

    fn post_order(&self) -> Vec<usize> {
        let used: BTreeSet<usize> = self.nodes().into_iter().flat_map(|node| self.before(node)).collect();
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        self.nodes()
            .into_iter()
            .filter(|node| !used.contains(node))
            .for_each(|sink| self.visit(sink, &mut seen, &mut order));
        order
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let mut seen = BTreeSet::new();
        let mut stack = vec![to];
        while let Some(node) = stack.pop() {
            if node == from {
                return true;
            }
            if seen.insert(node) {
                stack.extend(self.before(node));
            }
        }
        false
    }
}

fn by_the_book(dag: &Dag, limit: Option<u64>, most: usize) -> Vec<Vec<usize>> {
    let count = dag.0.len();
    let mut merged = Merged { dag, into: (0..count).collect(), members: (0..count).map(|node| vec![node]).collect() };
    let mut keys: BTreeSet<usize> = (0..count).filter(|&node| dag.0[node].candidate.is_some()).collect();
    let mut buckets = Vec::new();
    while !keys.is_empty() {
        let (mut bucket, mut sum, mut active) = (Vec::<usize>::new(), 0, None);
        for node in merged.post_order() {
            if !keys.contains(&node) {
                continue;
            }
            let (key, bytes) = dag.0[node].candidate.unwrap();
            if bucket.is_empty() {
                active = Some(key);
            }
            if active != Some(key) {
                continue;
            }
            if limit.is_some_and(|limit| bytes > limit) {
                keys.remove(&node);
                continue;
            }
            if limit.is_some_and(|limit| sum + bytes > limit)
                || bucket.iter().any(|&member| merged.reaches(member, node))
            {
                break;
            }
            bucket.push(node);
            sum += bytes;
            keys.remove(&node);
            if bucket.len() >= most {
                break;
            }
        }
        if bucket.len() > 1 {
            bucket.iter().for_each(|&member| merged.into[member] = bucket[0]);
            merged.members[bucket[0]] = bucket.clone();
            buckets.push(bucket);
        }
    }
    buckets
}

fn dag() -> impl Strategy<Value = Dag> {
    let node = (prop::collection::vec(any::<u16>(), 0..3), prop::option::weighted(0.6, (0..3u8, 0..20u64)));
    prop::collection::vec(node, 1..40).prop_map(|nodes| {
        let node = |(at, (before, candidate)): (usize, (Vec<u16>, _))| Node {
            // Mostly near ones, so that there are long chains beside short ones.
            before: before.iter().filter(|_| at > 0).map(|&b| at - 1 - usize::from(b) % at.min(12)).collect(),
            candidate,
        };
        let mut nodes: Vec<Node> = nodes.into_iter().enumerate().map(node).collect();
        // XLA removes collectives that nothing uses long before.
        let used: BTreeSet<usize> = nodes.iter().flat_map(|node| node.before.clone()).collect();
        let unused = |at: &usize| nodes[*at].candidate.is_some() && !used.contains(at);
        let before = (0..nodes.len()).filter(unused).collect();
        nodes.push(Node { before, candidate: None });
        Dag(nodes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn buckets_are_those_of_the_plain_loop(dag in dag(), limit in prop::option::of(1..60u64), most in 1..6usize) {
        let caps = Caps { cap_bytes: limit.into_iter().collect(), max_members: Some(most) };
        let selection = select(&dag, Policy::Xla, &caps).unwrap();
        prop_assert_eq!(&selection.buckets, &by_the_book(&dag, limit, most));
        let members: usize = selection.buckets.iter().map(Vec::len).sum();
        let joined = selection.outcomes.iter().filter(|outcome| outcome.bucket.is_ok()).count();
        prop_assert_eq!(joined, members);
    }
}
