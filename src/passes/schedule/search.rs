//! Looks for a plan.
//!
//! A chain of messages that only have to be launched after something is planned exactly ([`chain`](super::chain)). Any other graph
//! gets a first plan by one pass over its computation, with the stream of each group kept busy with what is needed soonest; then
//! changes of one unit, bucket or place are tried and run exactly. A change that makes the step a little longer is kept at
//! first and not later on. Numbers are drawn from a fixed seed and tries are counted, so that every rank and machine finds the
//! same plan.

use super::build::first_plans;
use super::problem::{NONE, Problem};
use super::state::{PlanMemory, Run, State};

/// How long to look, in work that is counted, not in time: the same answer on every rank and machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Effort {
    /// What is built at once.
    Low,
    /// About two seconds.
    #[default]
    Default,
    /// About a minute.
    High,
    /// So many units run over, for those who know what they want.
    Work(u64),
}

impl Effort {
    /// How many units may be run over.
    const fn work(self) -> u64 {
        match self {
            Self::Low => 0,
            Self::Default => 280_000_000,
            Self::High => 8_000_000_000,
            Self::Work(units) => units,
        }
    }
}

/// Descents that begin at the first plans, and those that begin at the best so far.
const STARTS: u64 = 4;
const ROUNDS: u64 = 8;

/// Of so many descents the last is more daring.
const BOLD_EACH: u64 = 4;

/// At first a step may be longer than the shortest of the last stretch by what is exposed divided by this. Measured on training
/// steps of 600 to 7,000 nodes; most descents wander at a seventh of it, and a few find what the others do not.
const DARING: u64 = 200;
const BOLD: u64 = 30;

/// A descent is so many stretches.
const STRETCHES: u64 = 64;

/// A byte above the cap, for one place of the program, counts as the time of a byte of the messages shifted up by this; in
/// every other descent it counts less at first, by a shift down of up to the other.
const PRICE_UP: u32 = 14;
const PRICE_DOWN: u64 = 20;

/// Looks for a plan that ends early and holds the cap; from one on that was found with another cap, with a quarter of the
/// work.
pub(super) fn search(problem: &Problem, cap_bytes: Option<u64>, effort: Effort, from: Option<State>) -> State {
    let quarter = if from.is_some() { 4 } else { 1 };
    let mut plans = first_plans(problem, cap_bytes, effort == Effort::Low);
    if let Some(from) = from {
        plans.insert(0, from);
    }
    let best = plans[0].clone();
    if effort == Effort::Low || problem.messages.is_empty() {
        return best;
    }
    let mut search = Search::new(problem, cap_bytes, best);
    // Who looks longer begins with what who looks less long finds.
    let least = Effort::Default.work().min(effort.work());
    for work in [least, effort.work() - least].into_iter().filter(|&work| work > 0) {
        // Several descents from the first plans, each of its own, then some from the best of them.
        let share = work / quarter / (STARTS + ROUNDS);
        for round in 0..STARTS + ROUNDS {
            let from = if round < STARTS { plans[round as usize % plans.len()].clone() } else { search.best.clone() };
            let daring = if round % BOLD_EACH == BOLD_EACH - 1 { BOLD } else { DARING };
            search.descend(share, from, daring, round % 2 == 0);
        }
    }
    search.best
}

/// Numbers from a fixed seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// How far to go: mostly a little, seldom far.
    fn distance(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.max(1).ilog2()) + 2);
        self.below((1 << bits).min(most) + 1)
    }
}

/// What bytes above the cap count as, in nanoseconds.
#[derive(Clone, Copy)]
struct Price {
    /// What all messages take, and their bytes, of which there are some.
    message_ns: u64,
    bytes: u64,
    down: u32,
}

impl Price {
    fn ns(self, above: u64) -> u64 {
        let ns = u128::from(above) * u128::from(self.message_ns) / u128::from(self.bytes);
        u64::try_from((ns << PRICE_UP) >> self.down).unwrap_or(u64::MAX)
    }
}

struct Search<'a> {
    problem: &'a Problem,
    cap_bytes: Option<u64>,
    compute_ns: u64,
    draw: Draw,
    best: State,
    /// Bytes above the cap, and when it ends.
    best_is: (u64, u64),
    run: Run,
    trial_run: Run,
    memory: PlanMemory,
    price: Price,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, cap_bytes: Option<u64>, start: State) -> Self {
        let compute_ns = problem.compute_ns.iter().sum();
        let (mut run, mut memory) = (Run::default(), PlanMemory::default());
        run.time(problem, &start, u64::MAX, None);
        let above = cap_bytes.map_or(0, |cap| memory.above(problem, &start, &run, cap));
        let best_is = (above, run.makespan_ns);
        Self {
            problem,
            cap_bytes,
            compute_ns,
            draw: Draw(1),
            best: start,
            best_is,
            run,
            trial_run: Run::default(),
            memory,
            price: Price {
                message_ns: problem
                    .messages
                    .iter()
                    .map(|message| problem.alone_ns(message))
                    .fold(0, u64::saturating_add),
                bytes: problem.messages.iter().map(|message| message.bytes).fold(1, u64::saturating_add),
                down: 0,
            },
        }
    }

    /// Tries changes from a plan on, for so much work.
    fn descend(&mut self, work: u64, from: State, daring: u64, soft: bool) {
        let problem = self.problem;
        let mut current = from;
        self.run.time(problem, &current, u64::MAX, None);
        let mut current_ns = self.run.makespan_ns;
        let mut trial = current.clone();
        let mut above = self.cap_bytes.map_or(0, |cap| self.memory.above(problem, &current, &self.run, cap));
        let daring = ((current_ns - self.compute_ns) / daring).max(200);
        let (mut done, mut shortest, mut stretch) = (0, 0, u64::MAX);
        while done < work {
            trial.clone_from(&current);
            // A copy of a plan, and what it takes to find a change, beside what is run.
            done += 64 + trial.order.len() as u64 / 4;
            if !self.change(&mut trial) {
                continue;
            }
            let left = work.saturating_sub(done);
            let slack = (u128::from(daring) * u128::from(left) / u128::from(work)) as u64;
            // As a better plan may lie behind one above the cap.
            let far = u128::from(if soft { PRICE_DOWN } else { 0 });
            let price = Price { down: (u128::from(left) * far / u128::from(work)) as u32, ..self.price };
            let now = current_ns.saturating_add(price.ns(above));
            let begins = std::mem::replace(&mut stretch, left / (work / STRETCHES).max(1)) != stretch;
            shortest = if begins { now } else { shortest.min(now) };
            let limit = now.max(shortest.saturating_add(slack));
            let ends = self.trial_run.time(problem, &trial, limit, Some(&self.run));
            done += self.trial_run.units_run(&trial);
            if !ends {
                continue;
            }
            if let Some(cap) = self.cap_bytes {
                let found = self.memory.above(problem, &trial, &self.trial_run, cap);
                done += 2 * problem.storages.len() as u64;
                if self.trial_run.makespan_ns.saturating_add(price.ns(found)) > limit {
                    continue;
                }
                above = found;
            }
            std::mem::swap(&mut current, &mut trial);
            std::mem::swap(&mut self.run, &mut self.trial_run);
            current_ns = self.run.makespan_ns;
            if (above, current_ns) < self.best_is {
                self.best_is = (above, current_ns);
                self.best.clone_from(&current);
                if self.best_is == (0, self.compute_ns) {
                    return;
                }
            }
        }
    }

    /// Changes a plan at one place; false where that cannot be done.
    fn change(&mut self, state: &mut State) -> bool {
        let kind = self.draw.below(if self.cap_bytes.is_some() { 15 } else { 14 });
        if (10..14).contains(&kind) {
            return self.move_compute(state);
        }
        let bucket = self.pick(state);
        if kind == 14 {
            let gathers = self.problem.messages[state.head[bucket as usize] as usize].gathers;
            state.set_prompt(bucket, !gathers && !state.prompt[bucket as usize]);
            return !gathers;
        }
        match kind {
            0..=3 => self.move_bucket(state, bucket),
            4 | 5 => self.merge(state, bucket),
            6 | 7 => self.hand_over(state, bucket),
            _ => self.split(state, bucket),
        }
    }

    /// A bucket: mostly one that computation stands still for, or one of those launched shortly before it.
    fn pick(&mut self, state: &State) -> u32 {
        let computes = state.computes();
        if !self.run.stalls.is_empty() && self.draw.below(10) < 7 {
            let one = self.draw.below(self.run.stalls.len() as u64) as usize;
            let other = self.draw.below(self.run.stalls.len() as u64) as usize;
            let (_, _, bucket) =
                self.run.stalls[if self.run.stalls[one].1 > self.run.stalls[other].1 { one } else { other }];
            if state.head[bucket as usize] != NONE {
                let back = self.draw.distance(6);
                return self.neighbour(state, bucket, -(back as i64), false).unwrap_or(bucket);
            }
        }
        loop {
            let unit = state.order[self.draw.below(state.order.len() as u64) as usize];
            if let Some(bucket) = unit.checked_sub(computes) {
                return bucket;
            }
            let message = self.draw.below(self.problem.messages.len() as u64) as usize;
            if self.draw.below(2) == 0 {
                return state.bucket_of[message];
            }
        }
    }

    /// The bucket so many launches of the same group, or class, before or after one; `None` where there are fewer.
    fn neighbour(&self, state: &State, bucket: u32, steps: i64, of_class: bool) -> Option<u32> {
        let computes = state.computes();
        let first = |bucket: u32| &self.problem.messages[state.head[bucket as usize] as usize];
        let like = first(bucket);
        let mut left = steps.unsigned_abs();
        let mut at = state.place[(computes + bucket) as usize] as usize;
        let mut found = bucket;
        while left > 0 {
            at = if steps < 0 { at.checked_sub(1)? } else { at + 1 };
            let unit = *state.order.get(at)?;
            let Some(other) = unit.checked_sub(computes) else { continue };
            let other_first = first(other);
            if if of_class { other_first.class == like.class } else { other_first.group == like.group } {
                left -= 1;
                found = other;
            }
        }
        Some(found)
    }

    fn move_to(&mut self, state: &mut State, unit: u32, aim: impl FnOnce(&mut Draw, u32, u32, u32) -> u32) -> bool {
        let (low, high) = state.range(self.problem, unit);
        if low > high {
            return false;
        }
        let from = state.place[unit as usize];
        let to = aim(&mut self.draw, low, high, from).clamp(low, high);
        state.shift(from as usize, to as usize);
        from != to
    }

    /// Launches a bucket earlier or later.
    fn move_bucket(&mut self, state: &mut State, bucket: u32) -> bool {
        let unit = state.computes() + bucket;
        let steps = if self.draw.below(2) == 0 { -1 } else { 1 };
        let behind = self.neighbour(state, bucket, steps, false);
        let behind = behind.map(|other| state.place[(state.computes() + other) as usize]);
        self.move_to(state, unit, |draw, low, high, from| match draw.below(8) {
            0 => low,
            1 => high,
            // Past the launch before it, or the one after.
            2 | 3 => behind.unwrap_or(from),
            _ if draw.below(2) == 0 => {
                from.saturating_sub(1 + draw.distance(u64::from(from.saturating_sub(low))) as u32)
            }
            _ => from + 1 + draw.distance(u64::from(high.saturating_sub(from))) as u32,
        })
    }

    /// Moves an item that computes.
    fn move_compute(&mut self, state: &mut State) -> bool {
        let computes = state.computes();
        let near = match self.run.stalls.len() as u64 {
            0 => self.draw.below(state.order.len() as u64) as u32,
            count => self.run.stalls[self.draw.below(count) as usize].0,
        };
        // A little before or after where computation stands still.
        let off = self.draw.distance(state.order.len() as u64 / 2) as u32;
        let at = if self.draw.below(2) == 0 { near.saturating_sub(off) } else { near + off };
        let at = at.min(state.order.len() as u32 - 1);
        let unit = state.order[at as usize];
        if unit >= computes {
            return false;
        }
        self.move_to(state, unit, |draw, low, high, from| match draw.below(6) {
            0 => low,
            1 => high,
            2..=3 => near,
            _ if draw.below(2) == 0 => {
                from.saturating_sub(1 + draw.distance(u64::from(from.saturating_sub(low))) as u32)
            }
            _ => from + 1 + draw.distance(u64::from(high.saturating_sub(from))) as u32,
        })
    }

    /// Puts another bucket's messages into one.
    fn merge(&mut self, state: &mut State, bucket: u32) -> bool {
        let class = self.problem.messages[state.head[bucket as usize] as usize].class;
        if class == NONE {
            return false;
        }
        let steps = if self.draw.below(2) == 0 { -1 } else { 1 };
        let Some(other) = self.neighbour(state, bucket, steps, true) else { return false };
        self.join(state, bucket, other)
    }

    fn join(&mut self, state: &mut State, bucket: u32, other: u32) -> bool {
        let computes = state.computes();
        let there = state.place[(computes + other) as usize];
        let mut members: Vec<u32> = state.members(bucket).chain(state.members(other)).collect();
        members.sort_unstable();
        state.remove(other);
        state.fill(self.problem, bucket, &members);
        let unit = computes + bucket;
        let (low, high) = state.range(self.problem, unit);
        if low > high {
            return false;
        }
        let from = state.place[unit as usize];
        let to = match self.draw.below(4) {
            0 => there,
            1 => low,
            _ => from,
        };
        state.shift(from as usize, to.clamp(low, high) as usize);
        true
    }

    /// Parts a bucket in two.
    fn split(&mut self, state: &mut State, bucket: u32) -> bool {
        let members: Vec<u32> = state.members(bucket).collect();
        if members.len() < 2 {
            return false;
        }
        let cut = 1 + self.draw.below(members.len() as u64 - 1) as usize;
        let (one, other) = if self.draw.below(2) == 0 {
            members.split_at(cut)
        } else {
            let (a, b) = members.split_at(cut);
            (b, a)
        };
        let at = state.place[(state.computes() + bucket) as usize] as usize;
        state.fill(self.problem, bucket, one);
        let after = usize::from(self.draw.below(2) == 0);
        let Some(made) = state.insert(self.problem, at + after, other) else { return false };
        if self.draw.below(2) == 0 {
            let moved = if self.draw.below(2) == 0 { made } else { bucket };
            self.move_bucket(state, moved);
        }
        true
    }

    /// Hands some messages of a bucket over to the one of its class before or after it.
    fn hand_over(&mut self, state: &mut State, bucket: u32) -> bool {
        let members: Vec<u32> = state.members(bucket).collect();
        if self.problem.messages[members[0] as usize].class == NONE {
            return false;
        }
        let steps = if self.draw.below(2) == 0 { -1 } else { 1 };
        let Some(other) = self.neighbour(state, bucket, steps, true) else { return false };
        if members.len() < 2 {
            return self.join(state, other, bucket);
        }
        let many = 1 + self.draw.distance(members.len() as u64 - 2) as usize;
        let (kept, given) = if self.draw.below(2) == 0 {
            let (a, b) = members.split_at(members.len() - many);
            (a, b)
        } else {
            let (a, b) = members.split_at(many);
            (b, a)
        };
        let mut joined: Vec<u32> = state.members(other).chain(given.iter().copied()).collect();
        joined.sort_unstable();
        state.fill(self.problem, bucket, kept);
        state.fill(self.problem, other, &joined);
        let unit = state.computes() + other;
        let (low, high) = state.range(self.problem, unit);
        if low > high {
            return false;
        }
        let from = state.place[unit as usize];
        state.shift(from as usize, from.clamp(low, high) as usize);
        true
    }
}
