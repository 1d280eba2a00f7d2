//! Where each bucket is launched and waited for, and whether that can be.
//!
//! What stays has its place. Of a bucket, and of what floats, two places are found: behind all that stays and that it needs
//! (*ready*), and before all that stays and needs it (*due*). Both come from one pass over the program with each bucket as one
//! node, in an order in which everything comes after what it needs; if there is none, buckets need each other in a circle.
//!
//! Cost: linear in nodes and edges, for each circle that is found.

use super::super::problem::NONE;
use super::faults::{OwnFault, OwnFaultKind, OwnPosition};
use super::{AllChosen, Chosen, Gap, Part, Program};
use std::collections::VecDeque;

/// Most circles that are reported, and names of a path.
const MOST_CIRCLES: usize = 16;
const LONGEST_PATH: usize = 12;

/// Where a bucket stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    pub launch: Gap,
    pub wait: Gap,
}

/// A place in the program as it was, and the node that it comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub before: u32,
    pub by: u32,
}

/// The places of all buckets, and by place of the program what it is ready before.
#[derive(Default)]
pub(super) struct AllPlaced {
    pub buckets: Vec<Placed>,
    pub ready: Vec<u32>,
}

/// Finds the places of all buckets; what is wrong goes to the faults.
pub(super) fn place(program: &Program<'_>, all: &mut AllChosen, faults: &mut Vec<OwnFault>) -> AllPlaced {
    let mut circles = 0;
    let order = loop {
        let missing = match sorted(program, all) {
            Ok(order) => break order,
            Err(missing) => missing,
        };
        let (fault, buckets) = circle(program, all, &missing);
        faults.push(fault);
        circles += 1;
        if circles == MOST_CIRCLES {
            return AllPlaced::default();
        }
        for bucket in buckets {
            let Chosen { members, waits, .. } = &mut all.buckets[bucket as usize];
            for at in std::mem::take(members).into_iter().chain(std::mem::take(waits)) {
                all.loose[at as usize] = true;
                (all.launched_in[at as usize], all.waited_in[at as usize]) = (NONE, NONE);
            }
        }
    };
    let asked: Vec<Option<u32>> = all.buckets.iter().map(|bucket| bucket.launch.map(|gap| gap.before)).collect();
    let (_, first_due) = due(program, all, &order, &asked);
    let end = last(program);
    // Launches, as what comes before them has its place.
    let mut launches: Vec<Gap> = Vec::with_capacity(all.buckets.len());
    for (bucket, first_due) in all.buckets.iter().zip(&first_due) {
        let last = bucket.members.last().copied().unwrap_or(end);
        let stood = Gap { before: last.min(first_due.launch.before), part: Part::LaunchAfter };
        launches.push(bucket.launch.unwrap_or(stood));
    }
    let ready_before = ready(program, all, &order, &mut launches, None);
    let now: Vec<Option<u32>> = launches.iter().map(|gap| Some(gap.before)).collect();
    let (_, last_due) = due(program, all, &order, &now);
    let mut waits = Vec::with_capacity(all.buckets.len());
    for (number, bucket) in all.buckets.iter().enumerate() {
        let (launch, due) = (launches[number], last_due[number]);
        let before = bucket.wait.unwrap_or(due.wait.before).min(end);
        let on_the_spot = before == launch.before && launch.part == Part::LaunchBefore;
        waits.push(Gap { before, part: if on_the_spot { Part::WaitOnTheSpot } else { Part::Wait } });
        if !bucket.members.is_empty() {
            let ready = (ready_before.buckets[number], ready_before.waits[number]);
            faults.extend(wrong(program, bucket, launch.before, before, ready, due));
        }
    }
    let buckets = launches.iter().zip(&waits).map(|(&launch, &wait)| Placed { launch, wait }).collect();
    let ready = ready(program, all, &order, &mut launches, Some(&waits)).nodes;
    AllPlaced { buckets, ready: ready.into_iter().map(|limit| limit.before).collect() }
}

/// The place of the last node, which gives the outputs.
fn last(program: &Program<'_>) -> u32 {
    (program.count() as u32).saturating_sub(1)
}

/// What is wrong with where a bucket is launched and waited for.
fn wrong(
    program: &Program<'_>,
    bucket: &Chosen,
    launch: u32,
    wait: u32,
    (ready, wait_ready): (Limit, Limit),
    due: Due,
) -> Vec<OwnFault> {
    let at = OwnPosition::of(bucket.asked);
    let name = |limit: Limit| program.name(limit.by).to_owned();
    let mut faults = Vec::new();
    let launch_at = bucket
        .launch
        .map_or(at, |gap| at.field(if gap.part == Part::LaunchAfter { "launch_after" } else { "launch_before" }));
    let wait_at = if bucket.wait.is_some() { at.field("wait_before") } else { at };
    let mut fault = |at, what| faults.push(OwnFault { at, what });
    if ready.before > due.launch.before {
        fault(at, OwnFaultKind::Apart { needs: name(ready), reader: name(due.launch) });
        return faults;
    }
    if launch < ready.before {
        fault(launch_at, OwnFaultKind::LaunchedTooEarly { needs: name(ready) });
    }
    if launch > due.launch.before {
        fault(launch_at, OwnFaultKind::LaunchedTooLate { reader: name(due.launch) });
    }
    if wait < launch && bucket.wait.is_some() {
        fault(wait_at, OwnFaultKind::WaitedTooEarly);
    }
    if wait < wait_ready.before && bucket.wait.is_some() {
        fault(wait_at, OwnFaultKind::WaitedBefore { needs: name(wait_ready) });
    }
    if wait > due.wait.before {
        fault(wait_at, OwnFaultKind::WaitedTooLate { reader: name(due.wait) });
    }
    faults
}

/// Nodes, numbered by place, and buckets, numbered behind them: each after all it needs. Else those that have no place.
fn sorted(program: &Program<'_>, all: &AllChosen) -> Result<Vec<u32>, Vec<bool>> {
    let (count, buckets) = (program.count(), all.buckets.len());
    let unit = |place: u32| unit(all, count, place);
    let mut missing = vec![0u32; count + buckets];
    for place in 0..count as u32 {
        let own = unit(place);
        missing[own as usize] +=
            program.before.get(place as usize).iter().filter(|&&before| is_edge(all, before, place)).count() as u32;
    }
    let alone = |at: &u32| (*at as usize) >= count || all.launched_in[*at as usize] == NONE;
    let mut out: Vec<u32> =
        (0..(count + buckets) as u32).filter(|at| alone(at) && missing[*at as usize] == 0).collect();
    let mut next = 0;
    while let Some(&at) = out.get(next) {
        next += 1;
        for &place in members(all, count, &at) {
            for &after in program.after.get(place as usize).iter().filter(|&&after| is_edge(all, place, after)) {
                let after = unit(after);
                missing[after as usize] -= 1;
                if missing[after as usize] == 0 {
                    out.push(after);
                }
            }
        }
    }
    let all_units = (0..(count + buckets) as u32).filter(alone).count();
    if out.len() == all_units { Ok(out) } else { Err(missing.into_iter().map(|missing| missing > 0).collect()) }
}

/// The number of what a node belongs to: its bucket, or itself.
fn unit(all: &AllChosen, count: usize, place: u32) -> u32 {
    match all.launched_in[place as usize] {
        NONE => place,
        bucket => count as u32 + bucket,
    }
}

/// The nodes of a unit.
fn members<'b>(all: &'b AllChosen, count: usize, unit: &'b u32) -> &'b [u32] {
    match (*unit as usize).checked_sub(count) {
        None => std::slice::from_ref(unit),
        Some(bucket) => &all.buckets[bucket].members,
    }
}

/// Whether the order of two nodes matters: members of one bucket run at once.
fn is_edge(all: &AllChosen, before: u32, after: u32) -> bool {
    let bucket = all.launched_in[before as usize];
    bucket == NONE || bucket != all.launched_in[after as usize]
}

/// A short circle among what has no place, as a fault, and its buckets.
fn circle(program: &Program<'_>, all: &AllChosen, missing: &[bool]) -> (OwnFault, Vec<u32>) {
    let count = program.count();
    // What must come before a unit, and which of its nodes reads it, if that is missing, too.
    let before = |unit: u32| -> Vec<(u32, u32)> {
        let edges = |&after: &u32| program.before.get(after as usize).iter().map(move |&before| (before, after));
        let edges = members(all, count, &unit).iter().flat_map(edges);
        edges.filter(|&(from, to)| is_edge(all, from, to) && missing[self::unit(all, count, from) as usize]).collect()
    };
    // Going back among what is missing comes to a circle, which leads through a bucket.
    let mut seen = vec![false; missing.len()];
    let mut at = missing.iter().position(|&missing| missing).unwrap_or(0) as u32;
    let mut bucket = None;
    // Twice: to the circle, and then around it to one of its buckets.
    for _ in 0..2 {
        seen.fill(false);
        while !std::mem::replace(&mut seen[at as usize], true) {
            if at as usize >= count {
                bucket = Some(at);
            }
            let Some(&(from, _)) = before(at).first() else { break };
            at = unit(all, count, from);
        }
    }
    let goal = bucket.unwrap_or(at);
    // The shortest way back to the bucket: by unit, the edge that leads on from it, and the unit it leads to.
    let mut next: Vec<Option<(u32, u32)>> = vec![None; missing.len()];
    let mut queue = VecDeque::from([goal]);
    'search: while let Some(at) = queue.pop_front() {
        for (from, to) in before(at) {
            let found = unit(all, count, from);
            if next[found as usize].is_none() {
                next[found as usize] = Some((from, to));
                if found == goal {
                    break 'search;
                }
                queue.push_back(found);
            }
        }
    }
    // Forwards again: a path from a member of each bucket to one of the next.
    let (mut paths, mut buckets): (Vec<Vec<u32>>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut at = goal;
    while let Some((from, to)) = next[at as usize].take() {
        if at as usize >= count {
            buckets.push(at - count as u32);
            paths.push(vec![from]);
        }
        if let Some(path) = paths.last_mut() {
            path.push(to);
        }
        at = unit(all, count, to);
        if at == goal {
            break;
        }
    }
    let named = |path: &Vec<u32>| shortened(path.iter().map(|&place| program.name(place).to_owned()).collect());
    let mut paths: Vec<Vec<String>> = paths.iter().map(named).collect();
    let asked: Vec<usize> = buckets.iter().map(|&bucket| all.buckets[bucket as usize].asked).collect();
    let at = OwnPosition::of(asked.iter().copied().min().unwrap_or(0));
    let what = match (&mut paths[..], &asked[..]) {
        ([path], [_]) => OwnFaultKind::NeedsAnother { path: std::mem::take(path) },
        _ => OwnFaultKind::Circle { buckets: asked, paths },
    };
    (OwnFault { at, what }, buckets)
}

fn shortened(mut path: Vec<String>) -> Vec<String> {
    if path.len() > LONGEST_PATH {
        let tail = path.split_off(path.len() - LONGEST_PATH / 2);
        path.truncate(LONGEST_PATH / 2);
        path.push("...".to_owned());
        path.extend(tail);
    }
    path
}

/// Before what a bucket's launch, and its wait, have to stand.
#[derive(Clone, Copy, Debug)]
struct Due {
    launch: Limit,
    wait: Limit,
}

/// By place, and by bucket: before what it has to stand, where buckets are launched before these places, if that is known.
fn due(program: &Program<'_>, all: &AllChosen, order: &[u32], launches: &[Option<u32>]) -> (Vec<Limit>, Vec<Due>) {
    let count = program.count();
    // Nothing stands behind the outputs.
    let never = Limit { before: last(program), by: last(program) };
    let mut nodes = vec![never; count];
    let mut buckets = vec![Due { launch: never, wait: never }; all.buckets.len()];
    for unit in order.iter().rev() {
        for &place in members(all, count, unit) {
            let mut limit = never;
            for &after in program.after.get(place as usize).iter().filter(|&&after| is_edge(all, place, after)) {
                let found = match all.launched_in[after as usize] {
                    NONE => nodes[after as usize],
                    bucket => {
                        let last = buckets[bucket as usize].launch.before;
                        Limit { before: launches[bucket as usize].unwrap_or(last), by: after }
                    }
                };
                if found.before < limit.before {
                    limit = found;
                }
            }
            let bucket = all.launched_in[place as usize];
            let waited_in = all.waited_in[place as usize];
            if bucket != NONE {
                let due = &mut buckets[bucket as usize];
                if limit.before < due.launch.before {
                    due.launch = limit;
                }
            } else {
                if all.loose[place as usize] {
                    limit = never;
                } else if !program.floats[place as usize] && waited_in == NONE {
                    limit = Limit { before: place, by: place };
                }
                nodes[place as usize] = limit;
                if waited_in != NONE {
                    let due = &mut buckets[waited_in as usize];
                    if limit.before < due.wait.before {
                        due.wait = limit;
                    }
                }
            }
        }
    }
    (nodes, buckets)
}

/// Behind what nodes and buckets stand, at least.
struct Ready {
    nodes: Vec<Limit>,
    buckets: Vec<Limit>,
    /// By bucket: behind what its wait stands, beside its launch.
    waits: Vec<Limit>,
}

/// By place, and by bucket: behind what that stays it has to stand. Launches that have no place of their own move down to that. Where it
/// is not known where buckets are waited for, it is where they are launched.
fn ready(program: &Program<'_>, all: &AllChosen, order: &[u32], launches: &mut [Gap], waits: Option<&[Gap]>) -> Ready {
    let count = program.count();
    let (start, buckets) = (Limit { before: 0, by: 0 }, all.buckets.len());
    let mut found = Ready { nodes: vec![start; count], buckets: vec![start; buckets], waits: vec![start; buckets] };
    for unit in order {
        for &place in members(all, count, unit) {
            let own = all.launched_in[place as usize];
            let mut limit = start;
            for &by in program.before.get(place as usize).iter().filter(|&&before| is_edge(all, before, place)) {
                let (launched, waited) = (all.launched_in[by as usize], all.waited_in[by as usize]);
                let before = if launched != NONE {
                    if launched == all.waited_in[place as usize] && waits.is_none() {
                        continue;
                    }
                    launches[launched as usize].before
                } else if waited != NONE {
                    let launch = launches[waited as usize].before;
                    let asked = all.buckets[waited as usize].wait.unwrap_or(launch);
                    waits.map_or(asked, |waits| waits[waited as usize].before)
                } else if all.loose[by as usize] {
                    0
                } else if program.floats[by as usize] {
                    found.nodes[by as usize].before
                } else {
                    by + 1
                };
                if before > limit.before {
                    let through = program.floats[by as usize];
                    limit = Limit { before, by: if through { found.nodes[by as usize].by } else { by } };
                }
            }
            found.nodes[place as usize] = limit;
            let waited = all.waited_in[place as usize];
            for (bucket, limits) in [(own, &mut found.buckets), (waited, &mut found.waits)] {
                if bucket != NONE && limits[bucket as usize].before < limit.before {
                    limits[bucket as usize] = limit;
                }
            }
        }
        if let Some(bucket) = (*unit as usize).checked_sub(count)
            && all.buckets[bucket].launch.is_none()
            && launches[bucket].before < found.buckets[bucket].before
        {
            launches[bucket] = Gap { before: found.buckets[bucket].before, part: Part::LaunchAfter };
        }
    }
    found
}
