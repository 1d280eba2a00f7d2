//! Small random graphs against all of their plans: each way to put collectives into buckets, in each order that what reads
//! what allows. Reckoned here by itself, on the recipe that the text is made from.

use super::{options, planned};
use bucketeer::Operators;
use bucketeer::ir::text::parse;
use bucketeer::passes::schedule::{CopyCost, Costs, Effort, GroupCosts, MessageCost, Piece};

/// Numbers from a seed.
struct Mix(u64);

impl Mix {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A node of a recipe: what it reads, by number; what others read of a message is its result.
#[derive(Clone, Debug)]
struct Step {
    reads: Vec<usize>,
    /// A time to compute, or elements and group of an all-reduce.
    does: Does,
}

#[derive(Clone, Copy, Debug)]
enum Does {
    Compute(u64),
    Send { elements: u64, group: usize },
}

const PIECES: [[(u64, u64, u64); 2]; 2] = [[(40, 3, 8), (120, 1, 8)], [(200, 1, 16), (200, 1, 16)]];

fn ns(group: usize, bytes: u64) -> u64 {
    PIECES[group].iter().map(|&(alpha, num, den)| alpha + (bytes * num).div_ceil(den)).min().unwrap()
}

fn recipe(mix: &mut Mix) -> Vec<Step> {
    let count = 4 + mix.below(4) as usize;
    let mut steps: Vec<Step> = Vec::new();
    for at in 0..count {
        let sends = steps.iter().filter(|step| matches!(step.does, Does::Send { .. })).count();
        let does = if sends < 3 && mix.below(2) == 0 {
            Does::Send { elements: 16 + 16 * mix.below(30), group: mix.below(2) as usize }
        } else {
            Does::Compute(20 + mix.below(400))
        };
        let mut reads: Vec<usize> = (0..at).filter(|_| mix.below(3) == 0).collect();
        reads.truncate(if matches!(does, Does::Send { .. }) { 1 } else { 2 });
        steps.push(Step { reads, does });
    }
    steps
}

/// The recipe as text: sizes differ, so what reads several takes their sums.
fn text(steps: &[Step]) -> (String, Costs) {
    let mut text = String::new();
    let mut costs = Costs { copy: CopyCost::default(), ..Costs::default() };
    let group = |index: usize| {
        let pieces = PIECES[index].iter().map(|&(alpha_ns, ns_per_byte_num, ns_per_byte_den)| Piece {
            alpha_ns,
            ns_per_byte_num,
            ns_per_byte_den,
        });
        let cost = MessageCost::new(pieces.collect()).unwrap();
        GroupCosts { label: "".into(), size: 2, costs: [("all_reduce".into(), cost)].into_iter().collect() }
    };
    for index in 0..2 {
        costs.groups.insert(format!("G{index}").into(), group(index));
    }
    for (at, step) in steps.iter().enumerate() {
        let name = |read: usize| match steps[read].does {
            Does::Compute(_) => format!("c{read}"),
            Does::Send { .. } => format!("w{read}"),
        };
        let reads: Vec<String> = step.reads.iter().map(|&read| name(read)).collect();
        match step.does {
            Does::Compute(ns) => {
                text += &format!("x{at} = input f32[8]\n");
                let mut of = vec![format!("x{at}")];
                of.extend(reads);
                text += &format!("c{at} = small.mix.default({}) : f32[8]\n", of.join(", "));
                costs.compute_ns.insert(format!("c{at}").into(), ns);
            }
            Does::Send { elements, group } => {
                text += &format!("x{at} = input f32[{elements}]\n");
                // A cast of no cost ties the message to what it reads.
                let given = match reads.first() {
                    Some(read) => {
                        text += &format!("y{at} = small.pick.default(x{at}, {read}) : f32[{elements}]\n");
                        format!("y{at}")
                    }
                    None => format!("x{at}"),
                };
                text += &format!("r{at} = all_reduce({given}, sum, G{group}:2)\nw{at} = wait(r{at})\n");
            }
        }
    }
    let outputs: Vec<String> = (0..steps.len())
        .map(|at| if matches!(steps[at].does, Does::Compute(_)) { format!("c{at}") } else { format!("w{at}") })
        .collect();
    (text + &format!("output({})", outputs.join(", ")), costs)
}

/// The least time over all plans, and over those that compute in the order of the recipe.
fn least(steps: &[Step]) -> [u64; 2] {
    let sends: Vec<usize> = (0..steps.len()).filter(|&at| matches!(steps[at].does, Does::Send { .. })).collect();
    let mut best = [u64::MAX; 2];
    partitions(steps, &sends, &mut Vec::new(), &mut best);
    best
}

/// Each way to put messages of one group into buckets.
fn partitions(steps: &[Step], left: &[usize], buckets: &mut Vec<Vec<usize>>, best: &mut [u64; 2]) {
    let group = |at: usize| match steps[at].does {
        Does::Send { group, .. } => group,
        Does::Compute(_) => usize::MAX,
    };
    let Some((&one, rest)) = left.split_first() else {
        let computes = (0..steps.len()).filter(|&at| matches!(steps[at].does, Does::Compute(_)));
        let mut units: Vec<Vec<usize>> = buckets.clone();
        units.extend(computes.map(|at| vec![at]));
        let clocks = Clocks { now: 0, groups: [0; 2], end: vec![0; steps.len()], computed: 0, in_order: true };
        orders(steps, &units, &mut vec![false; steps.len()], &clocks, best);
        return;
    };
    for at in 0..buckets.len() {
        if group(buckets[at][0]) == group(one) {
            buckets[at].push(one);
            partitions(steps, rest, buckets, best);
            buckets[at].pop();
        }
    }
    buckets.push(vec![one]);
    partitions(steps, rest, buckets, best);
    buckets.pop();
}

#[derive(Clone)]
struct Clocks {
    now: u64,
    groups: [u64; 2],
    end: Vec<u64>,
    /// One past the last call that computed, and whether all did in the order of the recipe.
    computed: usize,
    in_order: bool,
}

/// Each order of units in which all that is read is there.
fn orders(steps: &[Step], units: &[Vec<usize>], done: &mut Vec<bool>, clocks: &Clocks, best: &mut [u64; 2]) {
    let mut is_last = true;
    for unit in units.iter().filter(|unit| !done[unit[0]]).cloned().collect::<Vec<_>>() {
        is_last = false;
        if !unit.iter().all(|&at| steps[at].reads.iter().all(|&read| done[read])) {
            continue;
        }
        let mut next = clocks.clone();
        for &at in &unit {
            for &read in &steps[at].reads {
                next.now = next.now.max(clocks.end[read]);
            }
        }
        match steps[unit[0]].does {
            Does::Compute(ns) => {
                next.now += ns;
                next.in_order &= unit[0] >= next.computed;
                next.computed = unit[0] + 1;
            }
            Does::Send { group, .. } => {
                let bytes = |&at: &usize| match steps[at].does {
                    Does::Send { elements, .. } => 4 * elements,
                    Does::Compute(_) => 0,
                };
                let end = next.now.max(next.groups[group]) + ns(group, unit.iter().map(bytes).sum());
                next.groups[group] = end;
                unit.iter().for_each(|&at| next.end[at] = end);
            }
        }
        unit.iter().for_each(|&at| done[at] = true);
        orders(steps, units, done, &next, best);
        unit.iter().for_each(|&at| done[at] = false);
    }
    if is_last {
        let end = clocks.now.max(clocks.groups[0]).max(clocks.groups[1]);
        best[0] = best[0].min(end);
        best[1] = if clocks.in_order { best[1].min(end) } else { best[1] };
    }
}

#[test]
fn plans_of_small_graphs_are_never_shorter_than_the_shortest_and_seldom_longer() {
    let declared =
        "small::mix(Tensor x, Tensor? a=None, Tensor? b=None) -> Tensor\nsmall::pick(Tensor x, Tensor y) -> Tensor";
    let mut mix = Mix(7);
    let (mut longer, mut tight, rounds) = (0, 0, 150);
    for _ in 0..rounds {
        let steps = recipe(&mut mix);
        let (text, costs) = text(&steps);
        let mut graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        graph.operators = Operators::parse(declared).unwrap();
        let (_, found) = planned(&graph, &costs, &options(None, Effort::Work(1_000_000)));
        let [least, least_in_order] = least(&steps);
        assert!(
            found.after.makespan_ns >= least,
            "{steps:?}\n{} is less than can be: {least}",
            found.after.makespan_ns
        );
        let bound = &found.bounds[0];
        assert!(bound.ns <= least, "{steps:?}\n{bound:?} is above what can be: {least}");
        let in_order = &found.bounds_as_written[0];
        assert!(in_order.ns <= least_in_order, "{steps:?}\n{in_order:?} is above what can be: {least_in_order}");
        assert!(bound.ns <= in_order.ns, "{bound:?} {in_order:?}");
        tight += usize::from(bound.ns == least);
        longer += usize::from(found.after.makespan_ns > least);
    }
    assert!(longer * 50 <= rounds, "{longer} of {rounds} plans are longer than need be");
    assert!(tight * 2 >= rounds, "{tight} of {rounds} bounds are what can be");
}
