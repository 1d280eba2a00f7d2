//! A plan while it is looked for: an order of items and buckets, and what it costs.
//!
//! The order holds *units*: items that compute, and buckets of one message or more where they are launched. A bucket is
//! waited for where something first needs it; one that is not a gather earlier, where it has arrived by itself, so that what
//! it holds is free sooner at no cost in time. Plumbing goes where it is needed.

use super::problem::{Maker, NONE, Problem};

/// An order of units, and which messages travel together.
#[derive(Debug)]
pub(super) struct State {
    /// Items that compute as they are numbered; bucket `b` as their number plus `b`.
    pub order: Vec<u32>,
    /// By unit: its place in the order; [`NONE`] for a bucket that is not in use.
    pub place: Vec<u32>,
    /// By message: its bucket.
    pub bucket_of: Vec<u32>,
    /// By bucket: its first message, messages being in program order; [`NONE`] if it is not in use.
    pub head: Vec<u32>,
    /// By message: the next one of its bucket, or [`NONE`].
    pub next: Vec<u32>,
    /// By bucket: how many messages it carries.
    pub count: Vec<u32>,
    /// By bucket: its time.
    pub ns: Vec<u64>,
    /// By bucket: whether it is waited for where it is launched, so that what it holds is free at once. No gather is.
    pub prompt: Vec<bool>,
    /// Buckets that are not in use.
    pub free: Vec<u32>,
    /// The first place at which it differs from the plan that it was cloned from.
    pub changed_from: u32,
}

impl Clone for State {
    fn clone(&self) -> Self {
        Self {
            order: self.order.clone(),
            place: self.place.clone(),
            bucket_of: self.bucket_of.clone(),
            head: self.head.clone(),
            next: self.next.clone(),
            count: self.count.clone(),
            ns: self.ns.clone(),
            prompt: self.prompt.clone(),
            free: self.free.clone(),
            changed_from: NONE,
        }
    }

    fn clone_from(&mut self, source: &Self) {
        self.order.clone_from(&source.order);
        self.place.clone_from(&source.place);
        self.bucket_of.clone_from(&source.bucket_of);
        self.head.clone_from(&source.head);
        self.next.clone_from(&source.next);
        self.count.clone_from(&source.count);
        self.ns.clone_from(&source.ns);
        self.prompt.clone_from(&source.prompt);
        self.free.clone_from(&source.free);
        self.changed_from = NONE;
    }
}

impl State {
    /// The program as it stands: each message by itself.
    pub fn as_written(problem: &Problem) -> Self {
        let mut order: Vec<u32> = (0..problem.item_count() as u32).collect();
        order.sort_unstable_by_key(|&item| problem.as_written[item as usize]);
        let count = problem.messages.len() as u32;
        let mut state = Self {
            place: vec![NONE; problem.item_count()],
            order,
            bucket_of: (0..count).collect(),
            head: (0..count).collect(),
            next: vec![NONE; count as usize],
            count: vec![1; count as usize],
            ns: problem.messages.iter().map(|message| problem.alone_ns(message)).collect(),
            prompt: problem.messages.iter().map(|message| !message.gathers).collect(),
            free: Vec::new(),
            changed_from: 0,
        };
        state.number(0, state.order.len());
        state
    }

    /// Units that compute.
    pub fn computes(&self) -> u32 {
        (self.place.len() - self.bucket_of.len()) as u32
    }

    /// Sets the places of the units in a stretch of the order.
    pub fn number(&mut self, from: usize, to: usize) {
        self.changed_from = self.changed_from.min(from as u32);
        for at in from..to {
            self.place[self.order[at] as usize] = at as u32;
        }
    }

    /// The place of an item.
    pub fn place_of(&self, item: u32) -> u32 {
        match item.checked_sub(self.computes()) {
            None => self.place[item as usize],
            Some(message) => self.place[(self.computes() + self.bucket_of[message as usize]) as usize],
        }
    }

    /// Whether what a bucket carries is packed and unpacked.
    pub fn is_packed(&self, problem: &Problem, bucket: u32) -> bool {
        self.count[bucket as usize] > 1 || problem.messages[self.head[bucket as usize] as usize].is_bucket
    }

    /// Messages of a bucket, in program order.
    pub fn members(&self, bucket: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |message: u32| (message != NONE).then_some(message);
        std::iter::successors(some(self.head[bucket as usize]), move |&at| some(self.next[at as usize]))
    }

    /// Items of a unit.
    fn items(&self, unit: u32) -> impl Iterator<Item = u32> + '_ {
        let computes = self.computes();
        let bucket = unit.checked_sub(computes);
        let alone = bucket.is_none().then_some(unit);
        alone.into_iter().chain(bucket.into_iter().flat_map(move |b| self.members(b).map(move |m| m + computes)))
    }

    /// The first and the last place that a unit can be moved to while all others keep their order; the first is after the
    /// last where there is none.
    pub fn range(&self, problem: &Problem, unit: u32) -> (u32, u32) {
        let own = self.place[unit as usize];
        // Without the unit, what stands behind it moves up.
        let without = |place: u32| place - u32::from(place > own);
        let (mut low, mut high) = (0, self.order.len() as u32 - 1);
        for item in self.items(unit) {
            for &before in problem.before.get(item as usize) {
                low = low.max(without(self.place_of(before)) + 1);
            }
            for &after in problem.after.get(item as usize) {
                high = high.min(without(self.place_of(after)));
            }
        }
        (low, high)
    }

    /// Moves a unit so that it stands at place `to`.
    pub fn shift(&mut self, from: usize, to: usize) {
        if from < to {
            self.order[from..=to].rotate_left(1);
            self.number(from, to + 1);
        } else {
            self.order[to..=from].rotate_right(1);
            self.number(to, from + 1);
        }
    }

    /// Sets a bucket's members, which are in program order, and its time.
    pub fn fill(&mut self, problem: &Problem, bucket: u32, members: &[u32]) {
        self.changed_from = self.changed_from.min(self.place[(self.computes() + bucket) as usize]);
        self.head[bucket as usize] = members.first().copied().unwrap_or(NONE);
        for (at, &message) in members.iter().enumerate() {
            self.next[message as usize] = members.get(at + 1).copied().unwrap_or(NONE);
            self.bucket_of[message as usize] = bucket;
        }
        self.count[bucket as usize] = members.len() as u32;
        let bytes = members.iter().fold(0u64, |sum, &m| sum.saturating_add(problem.messages[m as usize].bytes));
        self.ns[bucket as usize] =
            members.first().map_or(0, |&m| problem.costs[problem.messages[m as usize].cost as usize].ns(bytes));
    }

    /// Takes a bucket out of the order.
    pub fn remove(&mut self, bucket: u32) {
        let unit = self.computes() + bucket;
        let at = self.place[unit as usize] as usize;
        self.order.remove(at);
        self.place[unit as usize] = NONE;
        self.number(at, self.order.len());
        (self.head[bucket as usize], self.count[bucket as usize]) = (NONE, 0);
        self.free.push(bucket);
    }

    /// Puts a new bucket into the order.
    pub fn insert(&mut self, problem: &Problem, at: usize, members: &[u32]) -> Option<u32> {
        let bucket = self.free.pop()?;
        self.prompt[bucket as usize] = false;
        self.fill(problem, bucket, members);
        self.order.insert(at, self.computes() + bucket);
        self.number(at, self.order.len());
        Some(bucket)
    }

    /// Sets whether a bucket is waited for where it is launched.
    pub fn set_prompt(&mut self, bucket: u32, prompt: bool) {
        self.prompt[bucket as usize] = prompt;
        self.changed_from = self.changed_from.min(self.place[(self.computes() + bucket) as usize]);
    }

    /// The buckets in the order of their launches.
    pub fn buckets(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().filter_map(|unit| unit.checked_sub(self.computes()))
    }
}

/// What a plan costs, and where.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// When the step ends.
    pub makespan_ns: u64,
    /// By bucket: when it has arrived.
    pub end_ns: Vec<u64>,
    /// By bucket: place of the first unit that needs it; the end of the order if none does.
    pub needed_at: Vec<u32>,
    /// Places where computation stands still, for how long, and the bucket it stands still for.
    pub stalls: Vec<(u32, u64, u32)>,
    /// By place: the compute clock before its unit, computation that is still to come, and the clocks of all groups.
    now_ns: Vec<u64>,
    rest_ns: Vec<u64>,
    clocks_ns: Vec<u64>,
}

impl Run {
    /// Runs a plan; false, and nothing worth reading, where it ends later than `limit_ns`. `base` is the run of the plan that
    /// it was cloned from, if it was: what stands before the first change is not run again.
    pub fn time(&mut self, problem: &Problem, state: &State, limit_ns: u64, base: Option<&Self>) -> bool {
        let (places, buckets, groups) = (state.order.len(), state.head.len(), problem.groups);
        let end = places as u32;
        let start = base.map_or(0, |base| (state.changed_from as usize).min(base.now_ns.len() - 1).min(places));
        match base {
            Some(base) if start > 0 => {
                self.end_ns.clone_from(&base.end_ns);
                self.needed_at.clear();
                let needed = |&at: &u32| if (at as usize) < start { at } else { end };
                self.needed_at.extend(base.needed_at.iter().map(needed));
                self.stalls.clear();
                self.stalls.extend(base.stalls.iter().take_while(|&&(at, ..)| (at as usize) < start));
                for (own, other, each) in [
                    (&mut self.now_ns, &base.now_ns, 1),
                    (&mut self.rest_ns, &base.rest_ns, 1),
                    (&mut self.clocks_ns, &base.clocks_ns, groups),
                ] {
                    own.clear();
                    own.extend_from_slice(&other[..(start + 1) * each]);
                }
            }
            _ => {
                self.end_ns.clear();
                self.end_ns.resize(buckets, 0);
                self.needed_at.clear();
                self.needed_at.resize(buckets, end);
                self.stalls.clear();
                let all = problem.compute_ns.iter().fold(0u64, |sum, &ns| sum.saturating_add(ns));
                for (own, value, each) in
                    [(&mut self.now_ns, 0, 1), (&mut self.rest_ns, all, 1), (&mut self.clocks_ns, 0, groups)]
                {
                    own.clear();
                    own.resize(each, value);
                }
            }
        }
        let computes = state.computes();
        let copies = problem.copy != super::costs::CopyCost::default();
        let (mut now, mut rest) = (self.now_ns[start], self.rest_ns[start]);
        for at in start..places {
            let unit = state.order[at];
            let mut launched = None;
            match unit.checked_sub(computes) {
                None => {
                    now = self.wait(problem, state, unit, now, at as u32, copies);
                    let ns = problem.compute_ns[unit as usize];
                    now = now.saturating_add(ns);
                    rest -= ns;
                }
                Some(bucket) => {
                    for message in state.members(bucket) {
                        now = self.wait(problem, state, computes + message, now, at as u32, copies);
                    }
                    let group = problem.messages[state.head[bucket as usize] as usize].group as usize;
                    if copies && state.is_packed(problem, bucket) {
                        let bytes = state.members(bucket).map(|m| problem.messages[m as usize].operand_bytes).sum();
                        now = now.saturating_add(problem.copy.ns(bytes));
                    }
                    let clock = self.clocks_ns[at * groups + group];
                    let arrives = now.max(clock).saturating_add(state.ns[bucket as usize]);
                    self.end_ns[bucket as usize] = arrives;
                    launched = Some((group, arrives));
                    if state.prompt[bucket as usize] {
                        self.stalls.push((at as u32, arrives - now, bucket));
                        now = arrives;
                        self.needed_at[bucket as usize] = at as u32 + 1;
                    }
                }
            }
            if now.saturating_add(rest) > limit_ns {
                return false;
            }
            self.now_ns.push(now);
            self.rest_ns.push(rest);
            self.clocks_ns.extend_from_within(at * groups..(at + 1) * groups);
            if let Some((group, arrives)) = launched {
                self.clocks_ns[(at + 1) * groups + group] = arrives;
            }
        }
        // What nothing needs is waited for at the end.
        let last = self.clocks_ns[places * groups..].iter().copied().max().unwrap_or(0);
        if last > now {
            let bucket = state.buckets().max_by_key(|&bucket| (self.end_ns[bucket as usize], bucket)).unwrap_or(0);
            self.stalls.push((end, last - now, bucket));
            now = last;
        }
        self.makespan_ns = now;
        now <= limit_ns
    }

    /// Waits for what an item needs.
    fn wait(&mut self, problem: &Problem, state: &State, item: u32, mut now: u64, at: u32, copies: bool) -> u64 {
        for &message in problem.waits.get(item as usize) {
            let bucket = state.bucket_of[message as usize] as usize;
            let end = self.end_ns[bucket];
            if end > now {
                self.stalls.push((at, end - now, bucket as u32));
                now = end;
            }
            if self.needed_at[bucket] > at {
                self.needed_at[bucket] = at;
                let first = &problem.messages[state.head[bucket] as usize];
                if copies && first.gathers && state.is_packed(problem, bucket as u32) {
                    let bytes = state.members(bucket as u32).map(|m| problem.messages[m as usize].result_bytes).sum();
                    now = now.saturating_add(problem.copy.ns(bytes));
                }
            }
        }
        now
    }

    /// How many units the last run went over.
    pub fn units_run(&self, state: &State) -> u64 {
        (self.now_ns.len() as u64).saturating_sub(u64::from(state.changed_from.min(state.order.len() as u32)))
    }

    /// The place before which a bucket is waited for: where it is needed, or, if it is not a gather, where it has arrived by
    /// itself.
    pub fn waited_at(&self, problem: &Problem, state: &State, bucket: u32) -> u32 {
        let needed = self.needed_at[bucket as usize];
        if problem.messages[state.head[bucket as usize] as usize].gathers {
            return needed;
        }
        let end = self.end_ns[bucket as usize];
        let launched = state.place[(state.computes() + bucket) as usize];
        let arrived = self.now_ns.partition_point(|&now| now < end) as u32;
        needed.min(arrived.max(launched + 1))
    }
}

/// Bytes alive over a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanMemory {
    /// By storage: the place where it is made.
    made_at: Vec<u32>,
    /// By bucket: the last place that its buffer is needed at.
    held_to: Vec<u32>,
    change: Vec<i64>,
}

impl PlanMemory {
    /// Bytes above a cap, summed over the places of a plan that was just run: 0 where the cap holds. It falls with each
    /// change that helps at one of the places, where a peak might stay what it is.
    pub fn above(&mut self, problem: &Problem, state: &State, run: &Run, cap_bytes: u64) -> u64 {
        self.follow(problem, state, run);
        let cap = i64::try_from(cap_bytes).unwrap_or(i64::MAX);
        let (mut alive, mut above) = (0i64, 0u64);
        for &change in &self.change {
            alive = alive.saturating_add(change);
            above = above.saturating_add(u64::try_from(alive.saturating_sub(cap)).unwrap_or(0));
        }
        above
    }

    /// What comes alive and dies at each place.
    fn follow(&mut self, problem: &Problem, state: &State, run: &Run) {
        let places = state.order.len() as u32;
        let Self { made_at, held_to, change } = self;
        made_at.clear();
        made_at.resize(problem.storages.len(), NONE);
        held_to.clear();
        held_to.resize(state.head.len(), 0);
        change.clear();
        change.resize(places as usize + 2, 0);
        let mut hold = |from: u32, to: u32, bytes: u64| {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 4);
            change[from as usize] = change[from as usize].saturating_add(bytes);
            change[to as usize + 1] = change[to as usize + 1].saturating_sub(bytes);
        };
        let bucket_of = |message: u32| state.bucket_of[message as usize];
        let waited = |message: u32| run.waited_at(problem, state, bucket_of(message));
        let alone = |message: u32| state.count[bucket_of(message) as usize] == 1;
        for (at, storage) in problem.storages.iter().enumerate() {
            if let Maker::Early(_) = storage.maker {
                let items = problem.sources.get(at).iter().map(|&item| state.place_of(item));
                let arrived = problem.arrivals.get(at).iter().map(|&message| waited(message));
                made_at[at] = items.chain(arrived).max().unwrap_or(places).min(places);
            }
        }
        for (at, storage) in problem.storages.iter().enumerate().rev() {
            let users = problem.item_uses.get(at).iter().map(|&item| state.place_of(item));
            let first = users.chain(problem.copy_uses.get(at).iter().map(|&copy| made_at[copy as usize])).min();
            made_at[at] = match storage.maker {
                Maker::Compute(item) => state.place_of(item),
                Maker::Early(_) => made_at[at],
                Maker::Late(_) => first.unwrap_or(places),
                Maker::Message(message) if alone(message) => state.place_of(problem.item_of_message(message)),
                // Members of a gather are copied out where they are first read.
                Maker::Message(message) if problem.messages[message as usize].gathers => first.unwrap_or(places),
                Maker::Message(message) => waited(message),
            };
        }
        let computes = state.computes();
        for (at, storage) in problem.storages.iter().enumerate() {
            let until = |item: u32| match item.checked_sub(computes) {
                Some(message) if alone(message) => waited(message),
                _ => state.place_of(item),
            };
            let items = problem.item_uses.get(at).iter().map(|&item| until(item));
            let copies = problem.copy_uses.get(at).iter().map(|&copy| made_at[copy as usize]);
            let mut last = items.chain(copies).max().unwrap_or(0).max(made_at[at]);
            if storage.is_returned {
                last = places;
            }
            let last = last.min(places);
            let Maker::Message(message) = storage.maker else {
                hold(made_at[at], last, storage.bytes);
                continue;
            };
            let bucket = bucket_of(message) as usize;
            if alone(message) {
                hold(made_at[at], last.max(waited(message)), storage.bytes);
            } else if problem.messages[message as usize].gathers || problem.messages[message as usize].is_copied {
                hold(made_at[at], last, storage.bytes);
                held_to[bucket] = held_to[bucket].max(made_at[at]);
            } else {
                held_to[bucket] = held_to[bucket].max(last);
            }
        }
        for bucket in state.buckets().filter(|&bucket| state.count[bucket as usize] > 1) {
            let start = state.place[(computes + bucket) as usize];
            let (mut packed, mut made) = (0u64, 0u64);
            for message in state.members(bucket) {
                packed = packed.saturating_add(problem.messages[message as usize].operand_bytes);
                made = made.saturating_add(problem.messages[message as usize].result_bytes);
            }
            let waited = run.waited_at(problem, state, bucket);
            hold(start, waited.max(start), packed);
            hold(start, held_to[bucket as usize].max(waited).max(start), made);
        }
    }
}
