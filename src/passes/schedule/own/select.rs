//! Which collectives a plan of one's own means, and which places.

use super::super::problem::{KINDS, NONE, bucket_options};
use super::faults::{OwnFault, OwnFaultKind, OwnPosition, SomeNames};
use super::glob::Glob;
use super::{AllChosen, Chosen, Gap, OwnBucket, OwnMembers, OwnPlan, Part, Program};
use crate::ir::{NodeId, Op};
use crate::passes::bucketing::{BucketKind, View};
use crate::passes::plan::Reason;
use crate::passes::rounds::Round;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// The buckets of a plan whose members are known and may travel together.
pub(super) fn chosen(program: &Program<'_>, own: &OwnPlan, faults: &mut Vec<OwnFault>) -> AllChosen {
    let count = program.count();
    let names = Names::of(program);
    let views = Views::of(program);
    let mut all = AllChosen {
        buckets: Vec::new(),
        launched_in: vec![NONE; count],
        waited_in: vec![NONE; count],
        loose: vec![false; count],
    };
    // By place of a collective: the bucket of the file that claims it.
    let mut claimed = Map::<u32, usize>::default();
    for (asked, bucket) in own.buckets.iter().enumerate() {
        let known = faults.len();
        let members = names.members(asked, bucket, &mut claimed, faults);
        let groups: Vec<Vec<u32>> = match (members.is_empty(), bucket.separate) {
            (true, _) => Vec::new(),
            (_, true) => members.iter().map(|&member| vec![member]).collect(),
            (_, false) => vec![members.clone()],
        };
        let mut waits = Vec::new();
        for members in &groups {
            waits.push(views.check(program, &names, asked, members, faults));
        }
        if faults.len() > known {
            let of = |member: &u32| names.waits_of.get(member).into_iter().flatten().chain([member]).copied().collect();
            members.iter().flat_map(|member| -> Vec<u32> { of(member) }).for_each(|at| all.loose[at as usize] = true);
            continue;
        }
        for (members, waits) in groups.into_iter().zip(waits) {
            let number = all.buckets.len() as u32;
            members.iter().for_each(|&at| all.launched_in[at as usize] = number);
            waits.iter().for_each(|&at| all.waited_in[at as usize] = number);
            all.buckets.push(Chosen { asked, members, waits, launch: None, wait: None });
        }
    }
    // Places, now that it is known what moves.
    let mut places = Vec::with_capacity(own.buckets.len());
    for (asked, bucket) in own.buckets.iter().enumerate() {
        let mut place = |field: &'static str, pattern: &Option<String>| {
            let pattern = pattern.as_deref()?;
            let at = OwnPosition::of(asked).field(field);
            let found = names.place(pattern).and_then(|place| {
                let by = claimed.get(&place).or_else(|| claimed.get(names.collective_of.get(&place)?));
                let moved = |&by: &usize| OwnFaultKind::PlaceMoves { place: program.name(place).to_owned(), by };
                by.map_or(Ok(place), |by| Err(moved(by)))
            });
            found.map_err(|what| faults.push(OwnFault { at, what })).ok()
        };
        let after = place("launch_after", &bucket.launch_after);
        let before = place("launch_before", &bucket.launch_before);
        let wait = place("wait_before", &bucket.wait_before);
        let after = after.map(|node| Gap { before: node + 1, part: Part::LaunchAfter });
        let before = before.map(|node| Gap { before: node, part: Part::LaunchBefore });
        if bucket.launch_after.is_some() && bucket.launch_before.is_some() {
            faults.push(OwnFault { at: OwnPosition::of(asked), what: OwnFaultKind::TwoLaunches });
        }
        places.push((after.or(before), wait));
    }
    for bucket in &mut all.buckets {
        (bucket.launch, bucket.wait) = places[bucket.asked];
    }
    all
}

/// What there is by name.
struct Names<'a> {
    program: &'a Program<'a>,
    by_name: Map<&'a str, u32>,
    collectives: Vec<u32>,
    /// By place of a collective: the nodes that wait for it; and the way back.
    waits_of: Map<u32, Vec<u32>>,
    collective_of: Map<u32, u32>,
}

impl<'a> Names<'a> {
    fn of(program: &'a Program<'a>) -> Self {
        let graph = program.graph;
        let mut names = Self {
            program,
            by_name: Map::default(),
            collectives: Vec::new(),
            waits_of: Map::default(),
            collective_of: Map::default(),
        };
        for (place, &id) in graph.order().iter().enumerate() {
            let place = place as u32;
            names.by_name.insert(graph.name_of(id), place);
            match graph.node(id).op {
                Op::Collective(_) => names.collectives.push(place),
                Op::Wait => {
                    for &operand in graph.operands(id).iter().filter(|&&operand| graph.collective(operand).is_some()) {
                        let collective = program.dependencies.slot_of(operand) as u32;
                        names.waits_of.entry(collective).or_default().push(place);
                        names.collective_of.insert(place, collective);
                    }
                }
                Op::Input | Op::Output | Op::Call(_) => {}
            }
        }
        names
    }

    /// All that match one of a bucket's patterns and that no bucket before it claims, in program order.
    fn members(
        &self,
        asked: usize,
        bucket: &OwnBucket,
        claimed: &mut Map<u32, usize>,
        faults: &mut Vec<OwnFault>,
    ) -> Vec<u32> {
        let at = OwnPosition::of(asked).field("members");
        if bucket.members.is_empty() {
            faults.push(OwnFault { at, what: OwnFaultKind::NoMembers });
        }
        let mut members = Vec::new();
        for (index, wanted) in bucket.members.iter().enumerate() {
            let at = OwnPosition { index: Some(index), ..at };
            let found = match self.matching(wanted) {
                Ok(found) => found,
                Err(what) => {
                    faults.push(OwnFault { at, what });
                    continue;
                }
            };
            for place in found {
                match *claimed.entry(place).or_insert(asked) {
                    other if other != asked => {
                        let member = self.program.name(place).to_owned();
                        faults.push(OwnFault { at, what: OwnFaultKind::Claimed { member, other } });
                    }
                    _ => members.push(place),
                }
            }
        }
        members.sort_unstable();
        members.dedup();
        members
    }

    /// The collectives that match all that is stated.
    fn matching(&self, wanted: &OwnMembers) -> Result<Vec<u32>, OwnFaultKind> {
        let graph = self.program.graph;
        let mut patterns = Vec::new();
        let (mut above, mut below) = (NONE, None);
        for (field, pattern) in wanted.fields() {
            match field {
                "above" => above = self.place(pattern)?,
                "below" => below = Some(self.place(pattern)?),
                _ => patterns.push((field, read(pattern)?)),
            }
        }
        if wanted.fields().next().is_none() {
            return Err(OwnFaultKind::NoMembers);
        }
        let holds = |place: u32, field: &str, pattern: &Glob| {
            let id = self.program.node(place);
            let collective = graph.collective(id);
            match field {
                "name" => pattern.matches(graph.name_of(id)),
                "source" => graph.meta_of(id).sources.iter().any(|line| pattern.matches(line)),
                "kind" => collective.is_some_and(|found| pattern.matches(found.kind.name())),
                "group" => collective.is_some_and(|found| pattern.matches(&graph.group(found.group).name)),
                _ => graph.collective_inputs(id).iter().any(|&sent| self.is_from(sent, pattern)),
            }
        };
        let all = |place: &u32| {
            *place < above
                && below.is_none_or(|below| *place > below)
                && patterns.iter().all(|(field, pattern)| holds(*place, field, pattern))
        };
        let literal = patterns.iter().find(|(field, _)| *field == "name").and_then(|(_, pattern)| pattern.literal());
        let found: Vec<u32> = match literal {
            Some(name) => {
                let named = self.by_name.get(&*name).copied();
                named
                    .filter(|&place| graph.collective(self.program.node(place)).is_some())
                    .filter(all)
                    .into_iter()
                    .collect()
            }
            None => self.collectives.iter().copied().filter(all).collect(),
        };
        if !found.is_empty() {
            return Ok(found);
        }
        let pattern = wanted.fields().map(|(field, pattern)| match field {
            "name" => format!("`{pattern}`"),
            other => format!("{other} `{pattern}`"),
        });
        let pattern = pattern.collect::<Vec<_>>().join(" with ");
        if let ([("name", glob)], 1) = (&patterns[..], wanted.fields().count()) {
            let others = self.named(glob);
            if others.count > 0 {
                return Err(OwnFaultKind::NoCollective { pattern, found: others });
            }
        }
        // What there is of that which was asked for.
        let there_are = match &patterns[..] {
            [("input", _)] => {
                let sent = self.collectives.iter().flat_map(|&place| graph.collective_inputs(self.program.node(place)));
                let inputs = sent.filter_map(|&sent| self.input_of(sent)).map(|input| self.program.name(input));
                SomeNames::of(inputs.collect::<indexmap::IndexSet<_>>().into_iter())
            }
            [("source", _)] => {
                let metas = self.collectives.iter().map(|&place| graph.meta_of(self.program.node(place)));
                let lines = metas.flat_map(|meta| &meta.sources).map(|line| &**line);
                SomeNames::of(lines.collect::<indexmap::IndexSet<_>>().into_iter())
            }
            _ => SomeNames::of(self.collectives.iter().map(|&place| self.program.name(place))),
        };
        Err(OwnFaultKind::NoMatch { pattern, there_are })
    }

    fn input_of(&self, sent: NodeId) -> Option<u32> {
        Some(self.program.from_input[self.program.dependencies.slot_of(sent)]).filter(|&input| input != NONE)
    }

    fn is_from(&self, sent: NodeId, pattern: &Glob) -> bool {
        self.input_of(sent).is_some_and(|input| pattern.matches(self.program.name(input)))
    }

    /// All nodes whose names match.
    fn named(&self, pattern: &Glob) -> SomeNames {
        let places = 0..self.program.count() as u32;
        SomeNames::of(places.map(|place| self.program.name(place)).filter(|name| pattern.matches(name)))
    }

    /// The one node that a place names.
    fn place(&self, pattern: &str) -> Result<u32, OwnFaultKind> {
        let glob = read(pattern)?;
        if let Some(place) = glob.literal().and_then(|name| self.by_name.get(&*name)) {
            return Ok(*place);
        }
        let found = self.named(&glob);
        match (found.count, found.names.first()) {
            (1, Some(name)) => Ok(self.by_name[&**name]),
            (0, _) => {
                // Those that begin alike, or the first there are.
                let stem = pattern.trim_end_matches(|end: char| !end.is_alphabetic());
                let names = (0..self.program.count() as u32).map(|place| self.program.name(place));
                let near = SomeNames::of(names.clone().filter(|name| !stem.is_empty() && name.starts_with(stem)));
                let there_are = if near.count > 0 { near } else { SomeNames::of(names) };
                Err(OwnFaultKind::NoPlace { pattern: pattern.to_owned(), there_are })
            }
            _ => Err(OwnFaultKind::SeveralPlaces { pattern: pattern.to_owned(), found }),
        }
    }
}

fn read(pattern: &str) -> Result<Glob, OwnFaultKind> {
    Glob::new(pattern).map_err(|why| OwnFaultKind::Pattern { pattern: pattern.to_owned(), why })
}

/// What may be merged, by kind.
struct Views<'a>(Vec<(BucketKind, View<'a>)>);

impl<'a> Views<'a> {
    fn of(program: &Program<'a>) -> Self {
        let view = |kind| {
            let options = bucket_options(program.graph, kind);
            (kind, View::new(program.graph, program.dependencies, &options, Round::Only, None))
        };
        Self(
            KINDS
                .into_iter()
                .filter(|&kind| bucket_options(program.graph, kind).applies_to(program.graph))
                .map(view)
                .collect(),
        )
    }

    /// Finds what keeps members from travelling together, and their waits.
    fn check(
        &self,
        program: &Program<'_>,
        names: &Names<'_>,
        asked: usize,
        members: &[u32],
        faults: &mut Vec<OwnFault>,
    ) -> Vec<u32> {
        let graph = program.graph;
        let name = |place: u32| program.name(place).to_owned();
        let at = OwnPosition::of(asked).field("members");
        let mut waits = Vec::with_capacity(members.len());
        let mut first: Option<(u32, usize)> = None;
        for &member in members {
            let mut fault = |what| faults.push(OwnFault { at, what });
            let Some(collective) = graph.collective(program.node(member)) else { continue };
            let kind = BucketKind::of(collective.kind);
            let view = self.0.iter().position(|(of, _)| Some(*of) == kind);
            if members.len() > 1 {
                let Some(view) = view else {
                    fault(OwnFaultKind::NeverMerged { member: name(member), kind: collective.kind.name() });
                    continue;
                };
                let this = &self.0[view].1;
                if let Some(because) = this.excluded(member as usize) {
                    fault(OwnFaultKind::CannotTravel { member: name(member), because: Box::new(because.clone()) });
                    continue;
                }
                match first {
                    None => first = Some((member, view)),
                    Some((one, of)) => {
                        let fields = if of == view {
                            this.entry(one as usize).key.differences(&this.entry(member as usize).key)
                        } else {
                            vec!["kind"]
                        };
                        if !fields.is_empty() {
                            fault(OwnFaultKind::Differ { one: name(one), other: name(member), fields });
                        }
                    }
                }
            }
            let found = names.waits_of.get(&member).map_or(&[][..], |waits| waits);
            let because = match *found {
                [] => Reason::NoWait,
                [wait] if graph.operands(program.node(wait)).len() == 1 => {
                    waits.push(wait);
                    continue;
                }
                [wait] => Reason::WaitedInList { wait: name(wait) },
                _ => Reason::WaitedTwice { waits: found.len() },
            };
            fault(OwnFaultKind::CannotMove { member: name(member), because: Box::new(because) });
        }
        waits
    }
}
