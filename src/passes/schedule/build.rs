//! The first plan: one pass over the computation, with the stream of each group kept busy.
//!
//! Whenever a group's stream is idle, or something is needed now, the next launch is chosen: what is needed soonest, or, if
//! there is time before that, what only has to leave. A launch takes along messages of its class in the order in which they are
//! needed, as long as it arrives before the first of them is, and what is gathered ahead of its use stays within a window. Some
//! windows are tried; the best plan within the cap is taken.
//!
//! Cost: for each window linear in items and edges, with a logarithm for the order in which messages are needed.

use super::chain;
use super::problem::{NONE, Problem};
use super::state::{PlanMemory, Run, State};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Most first plans that are kept.
const MOST_PLANS: usize = 4;

/// Items up to which more than one is looked for.
const MOST_ITEMS: usize = 16_384;

/// First plans: the best within a cap first, or the program as it stands where there is none; then some above it, from which a
/// search may come back. Who wants one alone gets the best, for a ninth of the work; in large graphs that is all there is.
pub(super) fn first_plans(problem: &Problem, cap_bytes: Option<u64>, one: bool) -> Vec<State> {
    let thorough = !one && problem.item_count() <= MOST_ITEMS;
    let (mut run, mut memory) = (Run::default(), PlanMemory::default());
    let written = State::as_written(problem);
    run.time(problem, &written, u64::MAX, None);
    let as_written_ns = run.makespan_ns;
    let mut found: Vec<(u64, u64, State)> = Vec::new();
    let mut consider = |state: State| {
        if run.time(problem, &state, as_written_ns, None) {
            let above = cap_bytes.map_or(0, |cap| memory.above(problem, &state, &run, cap));
            // Plans of large graphs are large: one is enough where nothing begins at the others.
            if !thorough
                && found.pop_if(|best| (best.0, best.1) > (above, run.makespan_ns)).is_none()
                && !found.is_empty()
            {
                return;
            }
            if found.iter().all(|(_, ns, _)| *ns != run.makespan_ns) {
                found.push((above, run.makespan_ns, state));
            }
        }
    };
    let times = Times::of(problem);
    if let Some(state) = times.chain(problem) {
        consider(state);
    }
    let all: u64 = problem.messages.iter().map(|message| message.result_bytes).fold(0, u64::saturating_add);
    let mut window = all.max(1);
    // Windows down to this make the plan that was made last.
    let mut same_to = u64::MAX;
    for _ in 0..14 {
        if window < same_to {
            let (state, ahead_bytes) = times.plan(problem, window, 0);
            same_to = ahead_bytes;
            consider(state);
        }
        let mut consider = |window, least_bytes| consider(times.plan(problem, window, least_bytes).0);
        if thorough {
            // Fewer launches, some of which arrive late: where the stream is never idle that is what counts.
            [8, 4, 2, 1].iter().for_each(|part| consider(window, window / part));
            let between = window - window / 4;
            [6, 4, 3, 2].iter().for_each(|part| consider(between, between / part));
        }
        window /= 2;
        if window < 1 << 20 {
            break;
        }
    }
    found.sort_by_key(|&(above, ns, _)| (above, ns));
    if found.first().is_none_or(|&(above, ..)| above > 0) {
        found.insert(0, (0, as_written_ns, written));
    }
    // Of those above the cap, some of the ones that are shorter than all with less above it.
    let kept_to = found.partition_point(|&(above, ..)| above == 0);
    let mut shorter = found.split_off(kept_to);
    found.truncate(MOST_PLANS / 2);
    let mut least_ns = u64::MAX;
    shorter.retain(|&(_, ns, _)| {
        let is_shorter = ns < least_ns;
        least_ns = least_ns.min(ns);
        is_shorter
    });
    let (count, room) = (shorter.len(), MOST_PLANS - found.len());
    let is_kept = |at: usize| at * room / count != (at + 1) * room / count;
    found.extend(shorter.into_iter().enumerate().filter(|&(at, _)| is_kept(at)).map(|(_, plan)| plan));
    found.into_iter().map(|(.., state)| state).collect()
}

/// When messages can leave and are needed, while computation keeps its order.
struct Times {
    /// Items that compute, in program order, and when each begins if it never stands still.
    starts_ns: Vec<u64>,
    end_ns: u64,
    /// By message: how many items that compute come before it, and the first that needs it.
    release: Vec<u32>,
    deadline: Vec<u32>,
}

impl Times {
    fn of(problem: &Problem) -> Self {
        let computes = problem.compute.len() as u32;
        let (mut starts_ns, mut end_ns) = (Vec::with_capacity(problem.compute.len()), 0u64);
        for &ns in &problem.compute_ns {
            starts_ns.push(end_ns);
            end_ns = end_ns.saturating_add(ns);
        }
        let count = problem.messages.len();
        let (mut release, mut deadline) = (vec![0u32; count], vec![computes; count]);
        for message in 0..count {
            for &before in problem.before.get(computes as usize + message) {
                let at = before.checked_sub(computes).map_or(before + 1, |other| release[other as usize]);
                release[message] = release[message].max(at);
            }
        }
        for message in (0..count).rev() {
            for &after in problem.after.get(computes as usize + message) {
                let at = after.checked_sub(computes).map_or(after, |other| deadline[other as usize]);
                deadline[message] = deadline[message].min(at);
            }
        }
        Self { starts_ns, end_ns, release, deadline }
    }

    fn start(&self, item: u32) -> u64 {
        self.starts_ns.get(item as usize).copied().unwrap_or(self.end_ns)
    }

    /// The exact plan, where all messages are of one class, need nothing but computation, and nothing needs them.
    fn chain(&self, problem: &Problem) -> Option<State> {
        let computes = problem.compute.len() as u32;
        let first = problem.messages.first()?;
        let simple = |(index, message): (usize, &super::problem::Message)| {
            let item = computes as usize + index;
            message.class == first.class
                && message.cost == first.cost
                && problem.after.get(item).is_empty()
                && problem.before.get(item).iter().all(|&before| before < computes)
        };
        if first.class == NONE || !problem.messages.iter().enumerate().all(simple) {
            return None;
        }
        let mut by_release: Vec<u32> = (0..problem.messages.len() as u32).collect();
        by_release.sort_by_key(|&message| self.release[message as usize]);
        let release_ns: Vec<u64> = by_release.iter().map(|&m| self.start(self.release[m as usize])).collect();
        let bytes: Vec<u64> = by_release.iter().map(|&m| problem.messages[m as usize].bytes).collect();
        let (_, starts) = chain::releases(&release_ns, &bytes, &problem.costs[first.cost as usize]);
        let mut launches = Launches::default();
        for (at, &start) in starts.iter().enumerate() {
            let stop = starts.get(at + 1).copied().unwrap_or(by_release.len());
            let members = by_release[start..stop].to_vec();
            let place = members.iter().map(|&m| self.release[m as usize]).max().unwrap_or(0);
            launches.push(place, members);
        }
        Some(launches.state(problem))
    }

    /// A plan that gathers at most so many bytes ahead of their use, and how many it came to, or looked at and could have: with any
    /// window between the two it would be the same.
    fn plan(&self, problem: &Problem, window_bytes: u64, least_bytes: u64) -> (State, u64) {
        let mut streams = Streams::new(problem, self, window_bytes, least_bytes);
        for at in 0..=problem.compute.len() as u32 {
            streams.reach(at);
        }
        let most_ahead = streams.most_ahead.get();
        (streams.launches.state(problem), most_ahead)
    }
}

/// Launches, each before an item that computes.
#[derive(Default)]
struct Launches(Vec<(u32, Vec<u32>)>);

impl Launches {
    fn push(&mut self, before: u32, mut members: Vec<u32>) {
        members.sort_unstable();
        self.0.push((before, members));
    }

    /// The plan they make, with computation in program order.
    fn state(self, problem: &Problem) -> State {
        let mut state = State::as_written(problem);
        let computes = problem.compute.len() as u32;
        state.order.clear();
        state.place.fill(NONE);
        state.head.fill(NONE);
        state.count.fill(0);
        state.prompt.fill(false);
        let mut launches = self.0.into_iter().peekable();
        let mut bucket = 0;
        for at in 0..=computes {
            while let Some((_, members)) = launches.next_if(|(before, _)| *before <= at) {
                state.fill(problem, bucket, &members);
                state.order.push(computes + bucket);
                bucket += 1;
            }
            if at < computes {
                state.order.push(at);
            }
        }
        state.free = (bucket..problem.messages.len() as u32).rev().collect();
        state.number(0, state.order.len());
        state
    }
}

/// The pass over the computation.
struct Streams<'a> {
    problem: &'a Problem,
    times: &'a Times,
    window_bytes: u64,
    /// Bytes that a launch takes along even where it then arrives too late.
    least_bytes: u64,
    launches: Launches,
    now: u64,
    clocks: Vec<u64>,
    /// By message: when it arrives; `None` before its launch.
    end_ns: Vec<Option<u64>>,
    /// By group: messages that can leave, by when they are needed.
    ready: Vec<BTreeSet<(u32, u32)>>,
    /// Messages by when they can leave.
    later: BinaryHeap<Reverse<(u32, u32)>>,
    /// Bytes that are gathered and not read yet, and when they are read.
    ahead: BinaryHeap<Reverse<(u32, u64)>>,
    ahead_bytes: u64,
    /// The most bytes ahead that were let pass.
    most_ahead: Cell<u64>,
}

impl<'a> Streams<'a> {
    fn new(problem: &'a Problem, times: &'a Times, window_bytes: u64, least_bytes: u64) -> Self {
        let later = times.release.iter().enumerate().map(|(message, &at)| Reverse((at, message as u32))).collect();
        Self {
            problem,
            times,
            window_bytes,
            least_bytes,
            launches: Launches::default(),
            now: 0,
            clocks: vec![0; problem.groups],
            end_ns: vec![None; problem.messages.len()],
            ready: vec![BTreeSet::new(); problem.groups],
            later,
            ahead: BinaryHeap::new(),
            ahead_bytes: 0,
            most_ahead: Cell::new(0),
        }
    }

    /// Whether so many bytes may be gathered ahead of their use.
    fn is_within(&self, bytes: u64) -> bool {
        let is_within = bytes <= self.window_bytes;
        if is_within {
            self.most_ahead.set(self.most_ahead.get().max(bytes));
        }
        is_within
    }

    /// Comes to an item that computes, or to the end.
    fn reach(&mut self, at: u32) {
        let computes = self.problem.compute.len() as u32;
        while let Some(&Reverse((used, bytes))) = self.ahead.peek().filter(|Reverse((used, _))| *used < at) {
            debug_assert!(used < at);
            self.ahead_bytes -= bytes;
            self.ahead.pop();
        }
        // Messages that wait for others come after them, as they are numbered.
        while let Some(&Reverse((_, message))) = self.later.peek().filter(|Reverse((release, _))| *release <= at) {
            self.later.pop();
            let group = self.problem.messages[message as usize].group as usize;
            self.ready[group].insert((self.times.deadline[message as usize], message));
        }
        loop {
            let mut launched = false;
            for group in 0..self.ready.len() {
                launched |= self.next(group, at, computes);
            }
            if !launched {
                break;
            }
        }
        if at < computes {
            for &message in self.problem.waits.get(at as usize) {
                self.now = self.now.max(self.end_ns[message as usize].unwrap_or(0));
            }
            self.now = self.now.saturating_add(self.problem.compute_ns[at as usize]);
        }
    }

    /// Whether what a message waits for has been launched, and has arrived or cannot be put off.
    fn can_leave(&self, message: u32, due: bool) -> bool {
        let item = self.problem.compute.len() + message as usize;
        let launched = |&before: &u32| match before.checked_sub(self.problem.compute.len() as u32) {
            Some(other) => self.end_ns[other as usize].is_some_and(|end| due || end <= self.now),
            None => true,
        };
        self.problem.before.get(item).iter().all(launched)
    }

    /// Launches the next bucket of a group, if there is one to launch now.
    fn next(&mut self, group: usize, at: u32, computes: u32) -> bool {
        let is_last = at == computes;
        let is_due = |deadline: u32| deadline <= at || is_last;
        let Some(&(deadline, first)) =
            self.ready[group].iter().find(|&&(deadline, message)| self.can_leave(message, is_due(deadline)))
        else {
            return false;
        };
        let due = is_due(deadline);
        if !due && self.clocks[group] > self.now {
            return false;
        }
        let message = &self.problem.messages[first as usize];
        let cost = &self.problem.costs[message.cost as usize];
        // How long until it is needed, if nothing stands still.
        let left = self.times.start(deadline) - self.times.start(at.min(computes));
        if !due && deadline < computes {
            // What only has to leave goes first, if there is time for it.
            let leaving = self.ready[group].range((computes, 0)..).map(|&(_, m)| m).find(|&m| self.can_leave(m, false));
            if let Some(one) = leaving {
                let members = self.gather_up(group, one, computes, u64::MAX);
                let ns = self.time_of(&members);
                if ns.saturating_add(cost.ns(message.bytes)) <= left {
                    self.launch(group, at, members);
                    return true;
                }
            }
            if !self.is_within(self.ahead_bytes.saturating_add(message.result_bytes)) {
                return false;
            }
        }
        let within = if deadline == computes { u64::MAX } else { left };
        let members = self.gather_up(group, first, deadline, within);
        self.launch(group, at, members);
        true
    }

    fn time_of(&self, members: &[u32]) -> u64 {
        let bytes = members.iter().map(|&m| self.problem.messages[m as usize].bytes).fold(0, u64::saturating_add);
        self.problem.costs[self.problem.messages[members[0] as usize].cost as usize].ns(bytes)
    }

    /// A message with those of its class that can travel with it and arrive within a time.
    fn gather_up(&self, group: usize, first: u32, deadline: u32, within_ns: u64) -> Vec<u32> {
        let (mut members, message) = (vec![first], &self.problem.messages[first as usize]);
        if message.class == NONE {
            return members;
        }
        let cost = &self.problem.costs[message.cost as usize];
        let (mut bytes, mut ahead) = (message.bytes, self.ahead_bytes.saturating_add(message.result_bytes));
        let mut skipped = 0;
        for &(needed, other) in self.ready[group].range((deadline, 0)..) {
            let candidate = &self.problem.messages[other as usize];
            if other == first {
                continue;
            }
            if candidate.class != message.class || !self.can_leave(other, false) {
                skipped += 1;
                if skipped > 64 {
                    break;
                }
                continue;
            }
            let together = bytes.saturating_add(candidate.bytes);
            // What would come too late alone may as well bring along what costs little more than its start.
            let cheap = cost.bytes_ns(together) <= cost.alpha_ns();
            let fits = self.is_within(ahead.saturating_add(candidate.result_bytes)) || needed == deadline;
            if !(cost.ns(together) <= within_ns || cheap || needed == deadline || together <= self.least_bytes) || !fits
            {
                break;
            }
            members.push(other);
            bytes = together;
            ahead = ahead.saturating_add(candidate.result_bytes);
        }
        members
    }

    fn launch(&mut self, group: usize, at: u32, members: Vec<u32>) {
        let computes = self.problem.compute.len() as u32;
        for &member in &members {
            for &before in self.problem.waits.get(computes as usize + member as usize) {
                self.now = self.now.max(self.end_ns[before as usize].unwrap_or(0));
            }
        }
        let end = self.now.max(self.clocks[group]).saturating_add(self.time_of(&members));
        self.clocks[group] = end;
        for &member in &members {
            self.end_ns[member as usize] = Some(end);
            let deadline = self.times.deadline[member as usize];
            self.ready[group].remove(&(deadline, member));
            if deadline < computes {
                let bytes = self.problem.messages[member as usize].result_bytes;
                self.ahead.push(Reverse((deadline, bytes)));
                self.ahead_bytes = self.ahead_bytes.saturating_add(bytes);
            }
        }
        self.launches.push(at, members);
    }
}
