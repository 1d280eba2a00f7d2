//! What the ranks of a run do, and which of them does something else: all of it follows from a seed.

use kit::collective::Random;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Nothing,
    /// The culprit is there, and calls nothing.
    NeverJoins,
    /// It goes without a word: SIGKILL.
    Dies,
    /// It does nothing more: SIGSTOP, or a long sleep.
    Stalls,
    Leaves,
    Panics,
    OtherCount,
    OtherOp,
    OtherDtype,
    OtherReduction,
    /// Two launches change places, also in what is announced.
    OtherOrder,
    Aborts,
    /// A call of the driver's or of NCCL's goes wrong, as the fake takes it.
    Call(&'static str),
    /// The culprit ends the store.
    StoreLost,
    WrongWorldSize,
    /// It says that it is the rank after it.
    DuplicateRank,
    OtherVersion,
    NoLibrary,
}

const FAULTS: [Fault; 24] = [
    Fault::Nothing,
    Fault::NeverJoins,
    Fault::Dies,
    Fault::Stalls,
    Fault::Leaves,
    Fault::Panics,
    Fault::OtherCount,
    Fault::OtherOp,
    Fault::OtherDtype,
    Fault::OtherReduction,
    Fault::OtherOrder,
    Fault::Aborts,
    Fault::Call("ncclAllReduce:1=2"),
    Fault::Call("ncclAllReduce:1=late:3"),
    Fault::Call("ncclAllReduce:1=hang"),
    Fault::Call("cuEventCreate:1=2"),
    Fault::Call("cuMemcpyHtoDAsync_v2:1=1"),
    Fault::Call("cuMemcpyHtoDAsync_v2:1=late:719"),
    Fault::StoreLost,
    Fault::WrongWorldSize,
    Fault::DuplicateRank,
    Fault::OtherVersion,
    Fault::NoLibrary,
    Fault::Dies,
];

impl Fault {
    /// Another call in one place.
    pub fn is_other_call(self) -> bool {
        matches!(self, Self::OtherCount | Self::OtherOp | Self::OtherDtype | Self::OtherReduction)
    }

    /// Nothing is wrong with a rank, but the transfer does not end.
    pub fn is_hang(self) -> bool {
        matches!(self, Self::Call(fault) if fault.ends_with("=hang"))
    }

    /// Ranks do not even meet.
    pub fn is_of_store(self) -> bool {
        matches!(self, Self::WrongWorldSize | Self::DuplicateRank)
    }
}

/// One call; ranks are places in the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Sum { elements: u64 },
    Gather { elements: u64 },
    Broadcast { elements: u64, root: u32 },
    Barrier,
    Message { bytes: u64, from: u32, to: u32 },
}

/// One launch: a call, or a block of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub group: usize,
    pub calls: Vec<What>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub size: u32,
    /// The members of each; the first is all.
    pub groups: Vec<Vec<u32>>,
    pub steps: Vec<Step>,
    pub fault: Fault,
    pub culprit: u32,
    /// The step in whose place the fault is.
    pub at: usize,
    /// Whether all say before what they launch.
    pub announced: bool,
    /// Whether each launch is waited for before the next.
    pub waits: bool,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        for _ in 0..4 {
            random.below(2);
        }
        let fault = FAULTS[(seed % FAULTS.len() as u64) as usize];
        let size = 2 + random.below(3) as u32;
        let mut groups: Vec<Vec<u32>> = vec![(0..size).collect()];
        for _ in 0..random.below(3) {
            let mut members: Vec<u32> = (0..size).filter(|_| random.below(3) > 0).collect();
            if members.len() < 2 {
                members = vec![0, size - 1];
            }
            groups.push(members);
        }
        let count = 2 + random.below(5) as usize;
        // A group connects when all of its members launch something, which a message of two others is not.
        let first = (0..groups.len()).map(|group| Step { group, calls: vec![What::Barrier] });
        let steps = first.chain((0..count).map(|nth| step(&mut random, &groups, nth))).collect();
        let culprit = random.below(u64::from(size)) as u32;
        let (announced, waits) = (random.below(3) == 0, random.below(2) == 0);
        let mut plan = Self { seed, size, groups, steps, fault, culprit, at: 0, announced, waits };
        plan.place(&mut random);
        plan
    }

    /// Makes room for the fault.
    fn place(&mut self, random: &mut Random) {
        let own: Vec<usize> = (0..self.groups.len()).filter(|at| self.groups[*at].contains(&self.culprit)).collect();
        let (first, all) = (self.groups.len(), self.steps.len());
        self.at = random.below(all as u64) as usize;
        let group = if self.at < first { self.at } else { own[random.below(own.len() as u64) as usize] };
        if !own.contains(&group) {
            // What all members do first stays so.
            return self.place(random);
        }
        // Of a kind that every fault can strike, and that the culprit takes part in.
        self.steps[self.at] = Step { group, calls: vec![What::Sum { elements: 1000 }] };
        match self.fault {
            // A strike is aimed at one rank's launch; no other thing may be in the way.
            Fault::Call(_) => self.announced = true,
            Fault::NeverJoins => self.at = 0,
            Fault::OtherOrder => {
                self.announced = true;
                self.at = self.at.min(self.steps.len() - 2);
            }
            _ => {}
        }
    }

    /// What a rank launches, with the fault where it is one of the launches.
    pub fn steps_of(&self, rank: u32) -> Vec<(usize, Step)> {
        let mut steps: Vec<(usize, Step)> = self.steps.iter().cloned().enumerate().collect();
        if rank == self.culprit && self.fault == Fault::OtherOrder {
            steps.swap(self.at, self.at + 1);
        }
        steps.retain(|(_, step)| self.takes_part(rank, step));
        steps
    }

    fn takes_part(&self, rank: u32, step: &Step) -> bool {
        let place = self.groups[step.group].iter().position(|member| *member == rank);
        place.is_some_and(|place| step.calls.iter().any(|call| call.is_of(place as u32)))
    }

    /// The ranks that cannot end the steps from [`at`](Self::at) on without the culprit.
    pub fn hindered(&self) -> Vec<u32> {
        let needed = self.steps[self.at..].iter().filter(|step| self.takes_part(self.culprit, step));
        let mut ranks: Vec<u32> = needed
            .flat_map(|step| {
                let members = self.groups[step.group].iter().copied();
                members.filter(|rank| {
                    let place = |rank: u32| self.groups[step.group].iter().position(|it| *it == rank).unwrap() as u32;
                    let both = [place(*rank), place(self.culprit)];
                    step.calls.iter().any(|call| both.iter().all(|place| call.is_of(*place)))
                })
            })
            .filter(|rank| *rank != self.culprit)
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Whether another rank has to do with both launches that change places, and so can see it.
    pub fn order_is_seen(&self) -> bool {
        let (a, b) = (&self.steps[self.at], &self.steps[self.at + 1]);
        let seen = |rank: u32| self.takes_part(rank, a) && self.takes_part(rank, b);
        a != b && seen(self.culprit) && (0..self.size).any(|rank| rank != self.culprit && seen(rank))
    }
}

impl What {
    /// Whether a place in the group has to do with it.
    pub fn is_of(self, place: u32) -> bool {
        match self {
            Self::Message { from, to, .. } => [from, to].contains(&place),
            _ => true,
        }
    }
}

fn step(random: &mut Random, groups: &[Vec<u32>], nth: usize) -> Step {
    let group = random.below(groups.len() as u64) as usize;
    let size = groups[group].len() as u64;
    let blocked = if random.below(4) == 0 { 2 + random.below(2) } else { 1 };
    // No two launches are alike, so that another order is another thing.
    let calls = (0..blocked).map(|call| what(random, size, 1 + 10 * nth as u64 + call)).collect();
    Step { group, calls }
}

fn what(random: &mut Random, size: u64, elements: u64) -> What {
    match random.below(6) {
        0 => What::Gather { elements },
        1 => What::Broadcast { elements, root: random.below(size) as u32 },
        2 => What::Barrier,
        3 => {
            let from = random.below(size);
            let to = (from + 1 + random.below(size - 1)) % size;
            What::Message { bytes: elements, from: from as u32, to: to as u32 }
        }
        _ => What::Sum { elements },
    }
}
