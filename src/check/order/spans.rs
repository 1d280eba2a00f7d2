//! Which launches of the result stand in another order than the merges ask for.
//!
//! Each region is looked at by itself, its inner regions as one node each: these move as a whole, so whatever one of
//! their nodes needs, or leads to, counts for all of them.

use super::Disorder;
use super::source::InSource;
use crate::check::effects::Fence;
use crate::check::launches::Assignment;
use crate::check::walk::Walked;
use crate::ir::{Graph, NodeId, Op, RegionId, Strength};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// Checks the order of the launches of each group.
pub(super) fn launches(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    let mut beside = Beside::of(after);
    beside.add_followers(before, assignment);
    let spans = Spans {
        after,
        assignment,
        beside,
        source: InSource::of(before, after, assignment),
        launch_of: after.launches.iter().enumerate().map(|(index, launch)| (launch.node, index)).collect(),
        // The states hold these calls to the source's order.
        called: after.launching.iter().zip(&before.launching).map(|(call, was)| (call.0, was.1)).collect(),
        positions: after.graph.positions(),
    };
    spans.region(RegionId::ROOT, 0..after.graph.order().len())
}

/// A node of a region, or all nodes of a region inside it: places in program order.
type Unit = Range<usize>;

/// The first and last source launch that a launch of the result may count as.
type Span = (usize, usize);

/// By channel: the best of what reads it, and of what writes it.
pub(super) type Channels = HashMap<usize, [usize; 2], FxBuildHasher>;

struct Spans<'a, 'g> {
    after: &'a Walked<'g>,
    assignment: &'a Assignment,
    beside: Beside<'a, 'g>,
    /// What nodes lead to and follow by what stands between them in the source only.
    source: InSource,
    launch_of: HashMap<NodeId, usize, FxBuildHasher>,
    /// By call of a graph that launches: the launches above it in the source.
    called: HashMap<NodeId, usize, FxBuildHasher>,
    positions: Vec<u32>,
}

impl Spans<'_, '_> {
    /// Checks the nodes of a region, which stand at these places, and then each region inside it.
    fn region(&self, region: RegionId, places: Range<usize>) -> Result<(), Disorder> {
        let units = units(self.after.graph, region, places.clone());
        let mut unit_of = vec![0; places.len()];
        for (index, unit) in units.iter().enumerate() {
            unit_of[unit.start - places.start..unit.end - places.start].fill(index);
        }
        let level = Level { spans: self, units: &units, unit_of: &unit_of, places };
        level.check()?;
        for unit in units {
            let inner = self.after.graph.node(self.after.graph.order()[unit.start]).region;
            if inner != region {
                let inner = self.after.graph.regions_around(inner).take_while(|&outer| outer != region).last();
                self.region(inner.unwrap_or(region), unit)?;
            }
        }
        Ok(())
    }
}

/// The nodes at these places, with those of each inner region together.
fn units(graph: &Graph, region: RegionId, places: Range<usize>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::with_capacity(places.len());
    let mut last = region;
    for place in places {
        let of = graph.node(graph.order()[place]).region;
        let inner = if of == region {
            region
        } else {
            graph.regions_around(of).take_while(|&outer| outer != region).last().unwrap_or(region)
        };
        match units.last_mut().filter(|_| inner != region && inner == last) {
            Some(unit) => unit.end = place + 1,
            None => units.push(place..place + 1),
        }
        last = inner;
    }
    units
}

/// A call of a graph that launches.
struct Called {
    node: NodeId,
    /// How many launches of the result stand above it.
    at: usize,
    /// How many launches of the source may count as standing above it: at least, and at most.
    lowest: usize,
    highest: usize,
}

/// One region.
struct Level<'s, 'a, 'g> {
    spans: &'s Spans<'a, 'g>,
    units: &'s [Unit],
    /// By place, from the first of `places` on.
    unit_of: &'s [usize],
    places: Range<usize>,
}

impl Level<'_, '_, '_> {
    fn check(&self) -> Result<(), Disorder> {
        let Spans { after, assignment, .. } = self.spans;
        // By group: the launch whose span begins last, of those so far, and that place.
        let mut latest: HashMap<u32, (usize, usize), FxBuildHasher> = HashMap::default();
        let (launches, calls) = self.launches();
        self.around(&launches, &calls)?;
        for (index, span) in launches {
            let Some(&first) = assignment.members[index].first() else { continue };
            let seen = latest.entry(after.launches[index].group.0).or_insert((index, span.0));
            if span.1 < seen.1 {
                return Err(Disorder::Swapped(first, assignment.members[seen.0].first().copied().unwrap_or(0)));
            }
            if span.0 > seen.1 {
                *seen = (index, span.0);
            }
        }
        Ok(())
    }

    /// Whether launches stand on the side of each call of a graph that launches on which they, or what they were merged
    /// with, stood in the source. A call counts as standing between two launches.
    fn around(&self, launches: &[(usize, Span)], calls: &[Called]) -> Result<(), Disorder> {
        if calls.is_empty() {
            return Ok(());
        }
        // By launches above: the greatest first source launch of those, and the least last one of those below.
        let mut above = vec![(0, 0); launches.len() + 1];
        for (at, &(index, (from, _))) in launches.iter().enumerate() {
            above[at + 1] = above[at].max((from.saturating_add(1), index));
        }
        let mut below = vec![(usize::MAX, 0); launches.len() + 1];
        for (at, &(index, (_, to))) in launches.iter().enumerate().rev() {
            below[at] = below[at + 1].min((to, index));
        }
        let member = |index: usize| self.spans.assignment.members[index].first().copied().unwrap_or(0);
        for call in calls {
            let ((from, upper), (to, lower)) = (above[call.at], below[call.at]);
            // All above have to be able to count as one of the source's launches above the call, and so below.
            if from > call.highest {
                return Err(Disorder::Called(member(upper), call.node));
            }
            if to < call.lowest {
                return Err(Disorder::Called(member(lower), call.node));
            }
        }
        Ok(())
    }

    /// The launches of the region and those inside it, in order, with their spans; and the calls of graphs that launch.
    fn launches(&self) -> (Vec<(usize, Span)>, Vec<Called>) {
        let (first, last) = (self.first(), self.last());
        let mut launches = Vec::new();
        let mut calls = Vec::new();
        for (unit, places) in self.units.iter().enumerate() {
            let start = launches.len();
            for id in self.nodes(places) {
                if let Some(&above) = self.spans.called.get(&id) {
                    // A merged launch has two members at least, so that its last is not the first of all.
                    let follows = if last[unit] > 0 { last[unit].saturating_add(1) } else { 0 };
                    let (lowest, highest) = (above.min(first[unit]), above.max(follows));
                    calls.push(Called { node: id, at: launches.len(), lowest, highest });
                }
                if let Some(&index) = self.spans.launch_of.get(&id) {
                    let members = &self.spans.assignment.members[index];
                    let (from, to) =
                        (members.first().copied().unwrap_or(0), members.last().copied().unwrap_or(usize::MAX));
                    launches.push((index, (from.min(first[unit]), to.max(last[unit]))));
                }
            }
            // Of an inner region all are one here.
            let of_unit = &mut launches[start..];
            let from = of_unit.iter().map(|(_, span)| span.0).min().unwrap_or(0);
            let to = of_unit.iter().map(|(_, span)| span.1).max().unwrap_or(0);
            of_unit.iter_mut().for_each(|(_, span)| *span = (from, to));
        }
        (launches, calls)
    }

    fn nodes(&self, unit: &Unit) -> impl DoubleEndedIterator<Item = NodeId> + '_ {
        self.spans.after.graph.order()[unit.clone()].iter().copied()
    }

    /// The unit of this region that a node is in.
    fn unit(&self, id: NodeId) -> Option<usize> {
        let place = self.spans.positions[id.index()] as usize;
        self.places.contains(&place).then(|| self.unit_of[place - self.places.start])
    }

    /// The members of a node that is a merged launch: the first and the last.
    fn merged(&self, id: NodeId) -> Option<Span> {
        let members = &self.spans.assignment.members[*self.spans.launch_of.get(&id)?];
        (members.len() > 1).then(|| (members[0], members[members.len() - 1]))
    }

    fn needs(&self, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        let operands = self.spans.after.graph.operands(id).iter();
        operands.chain(self.spans.beside.edges_into(id)).filter_map(|&operand| self.unit(operand))
    }

    /// By unit: the least first member of a merged launch that it leads to.
    fn first(&self) -> Vec<usize> {
        let beside = &self.spans.beside;
        let mut up = vec![usize::MAX; self.units.len()];
        let mut through = Channels::default();
        for (unit, places) in self.units.iter().enumerate().rev() {
            let mut first = up[unit];
            for id in self.nodes(places).rev() {
                beside.receive(id, &through, usize::min, usize::MAX, &mut first);
                first = first.min(self.spans.source.leads_to(id));
                first = first.min(self.merged(id).map_or(usize::MAX, |members| members.0));
            }
            up[unit] = first;
            if first == usize::MAX {
                continue;
            }
            for id in self.nodes(places) {
                beside.send(id, &mut through, usize::min, usize::MAX, first);
                for needed in self.needs(id) {
                    up[needed] = up[needed].min(first);
                }
            }
        }
        up
    }

    /// By unit: the greatest last member of a merged launch that it follows.
    fn last(&self) -> Vec<usize> {
        let beside = &self.spans.beside;
        let mut down = vec![0; self.units.len()];
        let mut through = Channels::default();
        for (unit, places) in self.units.iter().enumerate() {
            let mut last = 0;
            for id in self.nodes(places) {
                last = self.needs(id).map(|needed| down[needed]).fold(last, usize::max);
                beside.receive(id, &through, usize::max, 0, &mut last);
                last = last.max(self.merged(id).map_or(0, |members| members.1)).max(self.spans.source.follows(id));
            }
            down[unit] = last;
            if last == 0 {
                continue;
            }
            for id in self.nodes(places) {
                beside.send(id, &mut through, usize::max, 0, last);
            }
        }
        down
    }
}

/// What leads from node to node beside data: memory that is written, one channel each, the state of random numbers,
/// and hard order edges. A channel leads from each write to what is after it, and from all that is before it to it.
pub(super) struct Beside<'a, 'g> {
    walked: &'a Walked<'g>,
    edges: HashMap<NodeId, Vec<NodeId>, FxBuildHasher>,
}

impl<'a, 'g> Beside<'a, 'g> {
    pub(super) fn of(walked: &'a Walked<'g>) -> Self {
        let mut edges: HashMap<NodeId, Vec<NodeId>, FxBuildHasher> = HashMap::default();
        for edge in walked.graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
            edges.entry(edge.after).or_default().push(edge.before);
        }
        for &(wait, node) in &walked.below_lists {
            edges.entry(node).or_default().push(wait);
        }
        Self { walked, edges }
    }

    /// What wrote or waited for what a launch of the source sends still follows it, though the launch may send a copy
    /// now.
    fn add_followers(&mut self, before: &Walked<'_>, assignment: &Assignment) {
        if before.followers.is_empty() {
            return;
        }
        let after = self.walked;
        let mut images: HashMap<&str, NodeId, FxBuildHasher> = HashMap::default();
        images.extend(after.graph.order().iter().map(|&id| (after.graph.name_of(id), id)));
        for (launch, places) in before.launches.iter().zip(&assignment.of) {
            if let Some((to, _)) = places[0] {
                images.insert(before.graph.name_of(launch.node), after.launches[to].node);
            }
        }
        let image = |id: NodeId| images.get(before.graph.name_of(id)).copied();
        for &(launch, writer) in &before.followers {
            if let (Some(launch), Some(writer)) = (image(before.launches[launch].node), image(writer)) {
                self.edges.entry(writer).or_default().push(launch);
            }
        }
    }

    pub(super) fn add_edge(&mut self, from: NodeId, to: NodeId) {
        self.edges.entry(to).or_default().push(from);
    }

    pub(super) fn edges_into(&self, id: NodeId) -> &[NodeId] {
        self.edges.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The channels of a node, and whether it writes them.
    fn visit(&self, id: NodeId, visit: &mut dyn FnMut(usize, bool)) {
        let effects = self.walked.effects.get(id);
        if effects.fence == Fence::Random {
            visit(self.walked.written.len(), true);
        }
        if self.walked.written.is_empty() {
            return;
        }
        // What stands above a wait stays above it, as with a write.
        let waits = self.walked.graph.node(id).op == Op::Wait;
        for (index, node) in self.walked.graph.operands(id).iter().enumerate() {
            let class = self.walked.written[node.index()];
            if class != u32::MAX {
                visit(class as usize, waits || effects.writes.contains(&(index as u32)));
            }
        }
    }

    /// What comes to a node through its channels, the best of it.
    pub(super) fn receive(
        &self,
        id: NodeId,
        through: &Channels,
        best: fn(usize, usize) -> usize,
        none: usize,
        value: &mut usize,
    ) {
        self.visit(id, &mut |channel, writes| {
            let [reads, written] = through.get(&channel).copied().unwrap_or([none; 2]);
            *value = best(*value, if writes { best(reads, written) } else { written });
        });
    }

    /// What a node hands on.
    pub(super) fn send(
        &self,
        id: NodeId,
        through: &mut Channels,
        best: fn(usize, usize) -> usize,
        none: usize,
        value: usize,
    ) {
        self.visit(id, &mut |channel, writes| {
            let place = &mut through.entry(channel).or_insert([none; 2])[usize::from(writes)];
            *place = best(*place, value);
        });
    }
}
