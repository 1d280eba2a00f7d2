//! The selection held against petgraph: whatever the graph, merging the buckets closes no loop, and the buckets are
//! those of a slow reading of the rules in the docs of `passes::select`.
//!
//! The graphs are plain adjacency lists with random collectives; nothing here shares code with the selection.

use bucketeer::passes::order::Place;
use bucketeer::passes::select::{
    Candidate, Caps, Outcome, PlanGraph, Policy, Refusal, Selection, launch_order, select,
};
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt;

/// By node: what must run before it, and what it is.
#[derive(Clone, Default)]
struct Dag {
    before: Vec<Vec<usize>>,
    candidates: Vec<Option<Candidate<u16>>>,
}

/// As the arguments of [`dag`].
impl fmt::Debug for Dag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let collectives = self.issued().into_iter().map(|(node, c)| (node, c.key, c.bytes, c.wait));
        write!(f, "dag(&{:?}, &{:?})", self.before, collectives.collect::<Vec<_>>())
    }
}

impl PlanGraph for Dag {
    type Key = u16;

    fn node_count(&self) -> usize {
        self.before.len()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.before[node].iter().copied()
    }

    fn candidate(&self, node: usize) -> Option<Candidate<u16>> {
        self.candidates[node]
    }
}

/// What may be in a random graph.
#[derive(Clone, Copy, Debug)]
struct Shape {
    steps: (usize, usize),
    keys: u16,
    /// Most dependencies of a node.
    fan_in: usize,
    /// Whether a node may depend on a collective that has not been waited for, and a wait on other things.
    loose: bool,
    /// Whether a collective may block: it is its own wait.
    blocking: bool,
    /// Whether one node may wait for two collectives.
    shared_waits: bool,
}

const SMALL: Shape = Shape { steps: (4, 36), keys: 3, fan_in: 3, loose: true, blocking: true, shared_waits: true };
const TAME: Shape = Shape { loose: false, ..SMALL };
/// More open buckets than the sets of the sweep have places.
const LARGE: Shape =
    Shape { steps: (700, 1200), keys: 450, fan_in: 2, loose: true, blocking: true, shared_waits: true };

type Step = (u8, Vec<u16>, u16, Option<u64>);

impl Dag {
    fn grow(steps: &[Step], shape: Shape) -> Self {
        let mut dag = Self::default();
        let mut pending: Vec<usize> = Vec::new();
        // What depends on a node that is a collective depends on its wait, if it was waited for.
        let mut stands_for: Vec<Option<usize>> = Vec::new();
        for (kind, reads, choice, bytes) in steps {
            let node = dag.before.len();
            let mut before: Vec<usize> = Vec::new();
            for &read in reads {
                let target = usize::from(read) % (node + 1);
                if target < node {
                    let seen = if shape.loose { Some(target) } else { stands_for[target] };
                    before.extend(seen);
                }
            }
            match kind % 8 {
                0..=2 => {
                    let wait = usize::MAX;
                    dag.push(before, Some(Candidate { key: choice % shape.keys, bytes: *bytes, wait }));
                    stands_for.push(None);
                    pending.push(node);
                }
                3 if shape.blocking => {
                    dag.push(before, Some(Candidate { key: choice % shape.keys, bytes: *bytes, wait: node }));
                    stands_for.push(Some(node));
                }
                4..=5 if !pending.is_empty() => {
                    let collective = pending.remove(usize::from(*choice) % pending.len());
                    dag.wait(collective, if shape.loose { before } else { Vec::new() });
                    stands_for[collective] = Some(node);
                    if shape.shared_waits && choice % 3 == 0 && !pending.is_empty() {
                        let also = pending.remove(0);
                        dag.before[node].push(also);
                        dag.candidates[also].as_mut().unwrap().wait = node;
                        stands_for[also] = Some(node);
                    }
                    stands_for.push(Some(node));
                }
                _ => {
                    dag.push(before, None);
                    stands_for.push(Some(node));
                }
            }
        }
        for collective in pending {
            dag.wait(collective, Vec::new());
        }
        dag
    }

    fn push(&mut self, before: Vec<usize>, candidate: Option<Candidate<u16>>) {
        self.before.push(before);
        self.candidates.push(candidate);
    }

    fn wait(&mut self, collective: usize, mut before: Vec<usize>) {
        let wait = self.before.len();
        before.push(collective);
        self.push(before, None);
        if let Some(candidate) = &mut self.candidates[collective] {
            candidate.wait = wait;
        }
    }

    /// Candidates in issue order.
    fn issued(&self) -> Vec<(usize, Candidate<u16>)> {
        self.candidates.iter().enumerate().filter_map(|(node, candidate)| Some((node, (*candidate)?))).collect()
    }

    /// Whether the graph has no cycle when each bucket is one node.
    fn is_acyclic_with(&self, buckets: &[Vec<usize>]) -> bool {
        let mut name: Vec<usize> = (0..self.before.len()).collect();
        for bucket in buckets {
            bucket.iter().for_each(|&member| name[member] = bucket[0]);
        }
        let edges = self.before.iter().enumerate().flat_map(|(node, before)| before.iter().map(move |&b| (b, node)));
        let merged = edges.map(|(from, to)| (name[from] as u32, name[to] as u32));
        !is_cyclic_directed(&DiGraph::<(), ()>::from_edges(merged))
    }

    /// Whether each node depends on `root`.
    fn descendants(&self, root: usize) -> Vec<bool> {
        let mut below = vec![false; self.before.len()];
        for node in root + 1..self.before.len() {
            below[node] = self.before[node].iter().any(|&before| before == root || below[before]);
        }
        below
    }
}

fn dags(shape: Shape) -> impl Strategy<Value = Dag> {
    let bytes = prop_oneof![12 => (0..12u64).prop_map(Some), 1 => Just(None), 1 => Just(Some(u64::MAX))];
    let reads = prop::collection::vec(any::<u16>(), 0..=shape.fan_in);
    let step = (any::<u8>(), reads, any::<u16>(), bytes);
    prop::collection::vec(step, shape.steps.0..=shape.steps.1).prop_map(move |steps| Dag::grow(&steps, shape))
}

fn caps() -> impl Strategy<Value = Caps> {
    let cap_bytes = prop_oneof![
        2 => Just(Vec::new()),
        4 => prop::collection::vec(1..40u64, 1..=3),
        1 => Just(vec![u64::MAX]),
    ];
    (cap_bytes, prop::option::weighted(0.3, 1..5usize))
        .prop_map(|(cap_bytes, max_members)| Caps { cap_bytes, max_members })
}

/// What holds for every selection.
fn check_laws(dag: &Dag, caps: &Caps, selection: &Selection) -> Result<(), TestCaseError> {
    let issued = dag.issued();
    prop_assert!(dag.is_acyclic_with(&selection.buckets), "the buckets close a loop");
    prop_assert_eq!(
        selection.outcomes.iter().map(|o| o.node).collect::<Vec<_>>(),
        issued.iter().map(|c| c.0).collect::<Vec<_>>()
    );
    let mut bucket_of = BTreeMap::new();
    for (index, bucket) in selection.buckets.iter().enumerate() {
        prop_assert!(bucket.len() > 1);
        prop_assert!(caps.max_members.is_none_or(|most| bucket.len() <= most));
        for &member in bucket {
            prop_assert_eq!(bucket_of.insert(member, index), None, "a member of two buckets");
            prop_assert_eq!(dag.candidates[member].unwrap().key, dag.candidates[bucket[0]].unwrap().key);
        }
        let sizes: Option<Vec<u64>> = bucket.iter().map(|&member| dag.candidates[member].unwrap().bytes).collect();
        if let Some(largest) = caps.cap_bytes.iter().max() {
            let sum = sizes.expect("a cap is given, so sizes are known").iter().fold(0u64, |a, &b| a.saturating_add(b));
            prop_assert!(sum <= *largest);
        }
    }
    for &Outcome { node, bucket } in &selection.outcomes {
        prop_assert_eq!(bucket_of.get(&node).copied(), bucket.ok());
        if let Err(Refusal::CapReached { other } | Refusal::Dependent { other }) = bucket {
            prop_assert_ne!(other, node);
            prop_assert_eq!(dag.candidates[node].unwrap().key, dag.candidates[other].unwrap().key);
        }
    }
    Ok(())
}

/// A bucket of the references.
struct Filling {
    key: u16,
    members: Vec<usize>,
    bytes: u64,
    limit: Option<u64>,
}

impl Filling {
    fn has_room(&self, bytes: u64, caps: &Caps) -> bool {
        let sum = self.bytes.checked_add(bytes);
        let most = self.limit.unwrap_or(i64::MAX as u64);
        sum.is_some_and(|sum| sum <= most) && caps.max_members.is_none_or(|count| self.members.len() < count)
    }
}

/// First fit, as the docs say it: each collective joins the first bucket of its key that has room and with which the
/// merged graph has no cycle. One whose own bucket would be too small for it stays alone, and the index is used up.
fn first_fit(dag: &Dag, caps: &Caps) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Filling> = Vec::new();
    let mut opened = BTreeMap::<u16, usize>::new();
    for (node, candidate) in dag.issued() {
        if candidate.bytes.is_none() && !caps.cap_bytes.is_empty() {
            continue;
        }
        let bytes = candidate.bytes.unwrap_or(0);
        let legal = |at: usize| {
            let mut members: Vec<Vec<usize>> = buckets.iter().map(|bucket| bucket.members.clone()).collect();
            members[at].push(node);
            dag.is_acyclic_with(&members)
        };
        let fits = |&at: &usize| buckets[at].key == candidate.key && buckets[at].has_room(bytes, caps) && legal(at);
        if let Some(at) = (0..buckets.len()).find(fits) {
            buckets[at].members.push(node);
            buckets[at].bytes += bytes;
            continue;
        }
        let index = opened.entry(candidate.key).or_default();
        let limit = caps.limit(*index);
        *index += 1;
        if limit.is_none_or(|limit| bytes <= limit) {
            buckets.push(Filling { key: candidate.key, members: vec![node], bytes, limit });
        }
    }
    buckets.into_iter().map(|bucket| bucket.members).filter(|members| members.len() > 1).collect()
}

/// PyTorch's rule, word for word: waits in program order; a run of equal keys is cut at the cap; a member that depends
/// on the bucket being filled is dropped.
fn neighbours(dag: &Dag, caps: &Caps) -> Vec<Vec<usize>> {
    let mut waited = dag.issued();
    waited.sort_by_key(|(_, candidate)| candidate.wait); // Stable: those of one wait stay in issue order.
    let mut opened = BTreeMap::<u16, usize>::new();
    let mut buckets = Vec::new();
    for run in waited.chunk_by(|(_, a), (_, b)| a.key == b.key) {
        let mut filling = Filling { key: run[0].1.key, members: Vec::new(), bytes: 0, limit: None };
        let mut below = vec![false; dag.before.len()];
        for &(node, candidate) in run {
            if below[node] || (candidate.bytes.is_none() && !caps.cap_bytes.is_empty()) {
                continue;
            }
            let bytes = candidate.bytes.unwrap_or(0);
            if !filling.members.is_empty() && !filling.has_room(bytes, caps) {
                buckets.push(std::mem::take(&mut filling.members));
                filling.bytes = 0;
                below.fill(false);
            }
            if filling.members.is_empty() {
                let index = opened.entry(filling.key).or_default();
                filling.limit = caps.limit(*index);
                *index += 1;
            }
            filling.members.push(node);
            filling.bytes = filling.bytes.saturating_add(bytes);
            below.iter_mut().zip(dag.descendants(node)).for_each(|(below, new)| *below |= new);
        }
        buckets.push(filling.members);
    }
    buckets.retain(|members| members.len() > 1);
    buckets
}

/// Every order of launches runs each node once, after all that it depends on, with a bucket as one node.
fn check_orders(dag: &Dag, selection: &Selection) -> Result<(), TestCaseError> {
    let mut name: Vec<usize> = (0..dag.before.len()).collect();
    for members in &selection.buckets {
        members.iter().for_each(|&member| name[member] = members[0]);
    }
    for place in [Place::BestOrFirst, Place::BestOrLast, Place::Last] {
        let order = launch_order(dag, selection, place).unwrap().slots;
        let mut at = vec![None; dag.before.len()];
        for (place, &node) in order.iter().enumerate() {
            prop_assert_eq!(name[node], node, "members but the first have no place");
            prop_assert_eq!(at[node].replace(place), None);
        }
        for (node, before) in dag.before.iter().enumerate() {
            for &on in before {
                let (first, second) = (at[name[on]], at[name[node]]);
                prop_assert!(first.is_some() && second.is_some());
                prop_assert!(name[on] == name[node] || first < second, "{} runs after {}", on, node);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn launches_take_an_order_that_keeps_all_dependencies(dag in dags(SMALL), caps in caps()) {
        for policy in [Policy::Greedy, Policy::Adjacent] {
            let selection = select(&dag, policy, &caps).unwrap();
            check_orders(&dag, &selection)?;
        }
    }

    #[test]
    fn greedy_is_first_fit_in_the_merged_graph(dag in dags(SMALL), caps in caps()) {
        let selection = select(&dag, Policy::Greedy, &caps).unwrap();
        check_laws(&dag, &caps, &selection)?;
        prop_assert_eq!(&selection.buckets, &first_fit(&dag, &caps));
        prop_assert_eq!(select(&dag, Policy::Greedy, &caps).unwrap(), selection);
    }

    #[test]
    fn adjacent_is_the_rule_of_pytorch(dag in dags(TAME), caps in caps()) {
        let selection = select(&dag, Policy::Adjacent, &caps).unwrap();
        check_laws(&dag, &caps, &selection)?;
        prop_assert_eq!(&selection.buckets, &neighbours(&dag, &caps));
        prop_assert_eq!(select(&dag, Policy::Adjacent, &caps).unwrap(), selection);
    }

    #[test]
    fn adjacent_closes_no_loop_when_collectives_are_read_before_their_waits(dag in dags(SMALL), caps in caps()) {
        check_laws(&dag, &caps, &select(&dag, Policy::Adjacent, &caps).unwrap())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn more_open_buckets_than_places_lose_merges_but_close_no_loop(dag in dags(LARGE), caps in caps()) {
        for policy in [Policy::Greedy, Policy::Adjacent] {
            let selection = select(&dag, policy, &caps).unwrap();
            check_laws(&dag, &caps, &selection)?;
            prop_assert_eq!(select(&dag, policy, &caps).unwrap(), selection);
        }
    }
}

/// A graph of the given dependencies, and for each collective its node, key, bytes and wait.
fn dag(before: &[&[usize]], collectives: &[(usize, u16, Option<u64>, usize)]) -> Dag {
    let mut dag =
        Dag { before: before.iter().map(|list| list.to_vec()).collect(), candidates: vec![None; before.len()] };
    for &(node, key, bytes, wait) in collectives {
        dag.candidates[node] = Some(Candidate { key, bytes, wait });
    }
    dag
}

#[test]
fn adjacent_drops_a_member_that_an_earlier_one_needs_before_its_wait() {
    // 0 is issued first and waited for last, and 1 depends on 0 itself.
    let dag = dag(&[&[], &[0], &[1], &[0]], &[(0, 0, Some(1), 3), (1, 0, Some(1), 2)]);
    let selection = select(&dag, Policy::Adjacent, &Caps::default()).unwrap();
    assert_eq!(selection.buckets, [[0usize; 0]; 0]);
    assert_eq!(selection.outcomes[1].bucket, Err(Refusal::Dependent { other: 0 }));
}

#[test]
fn adjacent_closes_no_loop_over_two_keys() {
    // 0 and 2 have one key, 1 and 3 the other; 3 depends on 0, and 2 on 1.
    let before: &[&[usize]] = &[&[], &[], &[1], &[0], &[0], &[2], &[1], &[3]];
    let dag = dag(before, &[(0, 0, Some(1), 4), (2, 0, Some(1), 5), (1, 1, Some(1), 6), (3, 1, Some(1), 7)]);
    assert!(!dag.is_acyclic_with(&[vec![0, 2], vec![1, 3]]));
    for policy in [Policy::Greedy, Policy::Adjacent] {
        assert_eq!(select(&dag, policy, &Caps::default()).unwrap().buckets, [[0, 2]], "{policy:?}");
    }
}

#[test]
fn one_node_may_wait_for_several_and_a_collective_for_itself() {
    let dag = dag(&[&[], &[], &[], &[0, 1]], &[(0, 0, Some(1), 3), (1, 0, Some(1), 3), (2, 0, Some(1), 2)]);
    assert_eq!(select(&dag, Policy::Greedy, &Caps::default()).unwrap().buckets, [[0, 1, 2]]);
    assert_eq!(select(&dag, Policy::Adjacent, &Caps::default()).unwrap().buckets, [[2, 0, 1]]);
}

#[test]
fn a_graph_that_is_numbered_in_no_order_is_an_error_that_names_the_node() {
    let collective = |wait| Some(Candidate { key: 0, bytes: Some(4), wait });
    let cases = [
        (
            vec![vec![3], vec![], vec![], vec![]],
            vec![None; 4],
            "node 0 depends on node 3, which does not stand before it",
        ),
        (vec![vec![], vec![1]], vec![None; 2], "node 1 depends on node 1, which"),
        (vec![vec![], vec![0]], vec![None, collective(0)], "node 1 is waited for by node 0"),
        (
            vec![vec![]],
            vec![collective(1)],
            "node 0 is waited for by node 1; expected itself, or a node behind it, of 1",
        ),
    ];
    for (before, candidates, expected) in cases {
        let dag = Dag { before, candidates };
        for policy in [Policy::Greedy, Policy::Adjacent, Policy::Xla] {
            let error = select(&dag, policy, &Caps::default()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
