//! What to merge: the selection on our own graph, with a remark for every collective.
//!
//! [`plan`] reads a graph and returns a [`BucketPlan`], a plain value that can be printed, compared and tested;
//! [`merge`](super::merge) applies it. One engine serves all kinds; what differs is in [`BucketKey`].
//!
//! A collective is a candidate if its result is read only after exactly one wait in its own region. Two readers before
//! the wait are harmless, because they read the shape, which follows from the input: `sym_size` and `sym_numel`.

use super::filter::{Filter, Readers, XlaRules, only_wait, waited_elsewhere};
use super::memory::MemoryCap;
use super::memory::within::{Kept, Merged, Trial, within};
use super::merge::{MergeError, merging_at, place_of};
use super::order::{Place, stands_last};
use super::own::BucketPolicy;
use super::remarks::{Remarks, Scope};
use super::rounds::Round;
use super::select::{Candidate, PlanGraph, Policy, Selection, selected};
use crate::ir::{Arg, Args, CollectiveKind, Dependencies, Graph, GroupId, NodeId, ProcessGroup, Slot, Spacing, Type};
use indexmap::IndexSet;
use smallvec::{SmallVec, smallvec};

pub use super::filter::matches_pattern;
pub use super::options::{
    BucketKind, BucketOption, BucketOptions, Measure, MixedDtype, Mode, OPTIONS, OptionError, Unpack, Values, Word,
};
pub use super::plan::{Bucket, BucketKey, BucketPlan, Decision, Member, Reason, Remark};

/// Chooses the buckets of one kind. A pure function of graph and options; the graph must pass
/// [`verify`](crate::ir::verify()).
/// Where the options have a cap on memory, a copy of the graph is merged to see whether it is kept.
#[must_use]
pub fn plan(graph: &Graph, dependencies: &Dependencies, options: &BucketOptions) -> BucketPlan {
    plan_round(graph, dependencies, options, Round::Only).0
}

/// Chooses the buckets among the collectives that a round looks at; with the graph merged so, where that was made to see
/// whether a cap on memory is kept.
pub(super) fn plan_round(
    graph: &Graph,
    dependencies: &Dependencies,
    options: &BucketOptions,
    round: Round,
) -> (BucketPlan, Option<Merged>) {
    let view = View::new(graph, dependencies, options, round, None);
    let selection = selected(&view, options.policy, &options.caps);
    planned_within(&view, selection, options, None)
}

/// The plan that a selection stands for, or the part of it that is within the cap on memory. `own` says where launches go.
pub(super) fn planned_within(
    view: &View<'_>,
    selection: Selection,
    options: &BucketOptions,
    own: Option<&dyn BucketPolicy>,
) -> (BucketPlan, Option<Merged>) {
    let planned =
        |selection: &Selection, declined: &Declined| planned(view, selection, options, Scope::OneGraph, declined);
    if options.memory == MemoryCap::None {
        return (planned(&selection, &Declined::default()), None);
    }
    // What cannot be merged is found again, and said, where the plan is applied.
    match within(&OneGraph { view, options, own }, options, selection.clone(), None) {
        Err(_) => (planned(&selection, &Declined::default()), None),
        Ok(Kept { selection, declined, memory, merged }) => {
            let declined = declined.into_iter().next().unwrap_or_default();
            let plan = BucketPlan { memory: memory.into_iter().next(), ..planned(&selection, &declined) };
            (plan, merged.and_then(|merged| merged.into_iter().next()))
        }
    }
}

/// Why members were declined that would have passed a cap on memory.
pub(super) type Declined = hashbrown::HashMap<NodeId, Reason, rustc_hash::FxBuildHasher>;

/// The plan that a selection stands for.
pub(super) fn planned(
    view: &View<'_>,
    selection: &Selection,
    options: &BucketOptions,
    scope: Scope,
    declined: &Declined,
) -> BucketPlan {
    let remarks = Remarks::new(view, selection, scope, declined).all();
    BucketPlan { remarks, ..without_remarks(view, selection, options) }
}

/// The plan that a selection stands for, without a word on why.
pub(super) fn without_remarks(view: &View<'_>, selection: &Selection, options: &BucketOptions) -> BucketPlan {
    let bucket = |slots: &Vec<usize>| Bucket {
        key: view.entry(slots[0]).key,
        members: slots.iter().map(|&slot| view.member(slot)).collect(),
    };
    let buckets = selection.buckets.iter().map(bucket).collect();
    BucketPlan { buckets, ..BucketPlan::empty(options.clone()) }
}

/// One graph, merged on trial.
struct OneGraph<'a> {
    view: &'a View<'a>,
    options: &'a BucketOptions,
    own: Option<&'a dyn BucketPolicy>,
}

impl OneGraph<'_> {
    /// The plan of a selection, and where a rule of one's own has its launches go.
    fn plan(&self, selection: &Selection) -> (BucketPlan, Option<Place>) {
        let plan = match self.own {
            None => without_remarks(self.view, selection, self.options),
            Some(_) => planned(self.view, selection, self.options, Scope::OneGraph, &Declined::default()),
        };
        let place = self.own.and_then(|own| own.place(&plan));
        (plan, place)
    }
}

impl Trial for OneGraph<'_> {
    type Error = MergeError;

    fn graphs(&self) -> Vec<(&Graph, &Dependencies)> {
        vec![(self.view.graph, self.view.dependencies)]
    }

    fn members(&self, node: usize) -> SmallVec<[(usize, Member); 2]> {
        smallvec![(0, self.view.member(node))]
    }

    fn stands_last(&self, selection: &Selection) -> Vec<bool> {
        let (plan, place) = self.plan(selection);
        let dependencies = self.view.dependencies;
        stands_last(dependencies, &selection.buckets, place_of(dependencies, &plan, place))
    }

    fn merge(&self, selection: &Selection) -> Result<Vec<Merged>, MergeError> {
        let (plan, place) = self.plan(selection);
        let mut graph = self.view.graph.clone();
        let merging = merging_at(&mut graph, self.view.dependencies, &plan, place)?;
        Ok(vec![Merged { graph, merging }])
    }
}

/// Bytes a collective is counted with: the larger of input and output. `None` when a size is symbolic without a hint.
#[must_use]
pub fn collective_bytes(graph: &Graph, id: NodeId) -> Option<u64> {
    fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
        match ty {
            Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
            // What a coalesced collective makes.
            Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
            Type::SymInt(_) | Type::SymOther(_) | Type::Token | Type::Unknown => None,
        }
    }
    let value = |id: NodeId| bytes(graph, graph.type_of(id));
    let input = graph.collective_inputs(id).iter().try_fold(0u64, |sum, &input| sum.checked_add(value(input)?))?;
    Some(input.max(value(id)?))
}

/// Bytes a collective counts with against the caps. XLA knows no sizes but numbers.
fn counted_bytes(graph: &Graph, id: NodeId, options: &BucketOptions) -> Option<u64> {
    let result = || graph.tensor(id)?.bytes();
    match (options.policy, options.measure) {
        (Policy::Xla, Measure::Result) => result()?.as_const(),
        (_, Measure::Result) => graph.likely_value(&result()?),
        (_, Measure::Larger) => collective_bytes(graph, id),
    }
}

/// A candidate as the selection sees it.
pub(super) struct Entry {
    pub(super) key: BucketKey,
    pub(super) bytes: Option<u64>,
    /// Slot of the wait.
    wait: usize,
}

/// Our graph as a [`PlanGraph`].
pub(super) struct View<'a> {
    pub(super) graph: &'a Graph,
    pub(super) dependencies: &'a Dependencies,
    /// By slot: index into `entries`, or `u32::MAX`.
    index: Vec<u32>,
    entries: Vec<Entry>,
    /// Collectives of the kind, in issue order, with the reason if they are not candidates.
    pub(super) seen: Vec<(NodeId, Option<Reason>)>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        dependencies: &'a Dependencies,
        options: &BucketOptions,
        round: Round,
        own: Option<&dyn BucketPolicy>,
    ) -> Self {
        let readers = Readers::of(graph, options.kind);
        let filter = Filter::of(graph, options);
        let elsewhere = waited_elsewhere(graph, dependencies);
        let xla = (options.policy == Policy::Xla).then(|| XlaRules::of(graph, options.kind));
        let mut traits = Traits::default();
        let mut view = Self {
            graph,
            dependencies,
            index: vec![u32::MAX; dependencies.slots().len()],
            entries: Vec::new(),
            seen: Vec::new(),
        };
        for &id in graph.order() {
            let Some(collective) = graph.collective(id) else { continue };
            if BucketKind::of(collective.kind) != Some(options.kind) {
                continue;
            }
            let bytes = counted_bytes(graph, id, options);
            let bytes = own.map_or(bytes, |own| own.cost_bytes(graph, id, bytes));
            let checked = filter.check(graph, id).and_then(|()| only_wait(graph, &readers, id));
            let checked = checked.and_then(|wait| round.check(graph, id).map(|()| wait));
            let checked = checked.and_then(|wait| match graph.group(collective.group).size {
                // XLA does not look at that.
                Some(1) if options.policy != Policy::Xla => Err(Reason::OneRank),
                _ => options.allows_member(bytes).map(|()| wait),
            });
            // What is not known cannot be kept within a cap on memory.
            let checked = checked.and_then(|wait| match collective_bytes(graph, id) {
                None if options.memory != MemoryCap::None => Err(Reason::SizeUnknown),
                _ => Ok(wait),
            });
            let checked = checked.and_then(|wait| {
                let mut values = graph.collective_inputs(id).iter().chain([&id, &wait]);
                if values.any(|&id| dependencies.is_restated(id)) { Err(Reason::Restated) } else { Ok(wait) }
            });
            let checked = checked.and_then(|wait| match elsewhere.get(&id) {
                Some(&by) => Err(Reason::ReadBeforeWait { by: graph.name_of(by).to_owned() }),
                None => Ok(wait),
            });
            let checked =
                checked.and_then(|wait| xla.as_ref().map_or(Ok(()), |xla| xla.check(id, wait)).map(|()| wait));
            let reason = match checked {
                Ok(wait) => {
                    let slot = dependencies.slot_of(id);
                    view.index[slot] = view.entries.len() as u32;
                    view.entries.push(Entry {
                        key: BucketKey {
                            own: own.map_or(0, |own| own.key(graph, id)),
                            ..traits.key(graph, id, options)
                        },
                        bytes,
                        wait: dependencies.slot_of(wait),
                    });
                    None
                }
                Err(reason) => Some(reason),
            };
            view.seen.push((id, reason));
        }
        let merged_before = view.seen.iter().any(|(_, reason)| *reason == Some(Reason::AlreadyMerged));
        if merged_before && options.looks_once() && round == Round::Only {
            view.entries.clear();
            view.seen.iter_mut().for_each(|(_, reason)| *reason = reason.take().or(Some(Reason::LookedAt)));
        }
        view
    }

    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[self.index[slot] as usize]
    }

    /// The candidate in a slot, as a member of a bucket.
    pub(super) fn member(&self, slot: usize) -> Member {
        let entry = self.entry(slot);
        Member { collective: self.node(slot), wait: self.node(entry.wait), bytes: entry.bytes }
    }

    /// What there is to know of the slot's collective, if it is a candidate.
    pub(super) fn candidate_at(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(self.index[slot] as usize)
    }

    /// Why the slot's collective is not a candidate, if it is one of the kind.
    pub(super) fn excluded(&self, slot: usize) -> Option<&Reason> {
        let nth = self.seen_at(slot)?;
        self.seen[nth].1.as_ref()
    }

    /// Makes the slot's collective none of the candidates.
    pub(super) fn exclude(&mut self, slot: usize, reason: Reason) {
        if let Some(nth) = self.seen_at(slot) {
            self.index[slot] = u32::MAX;
            self.seen[nth].1.get_or_insert(reason);
        }
    }

    /// The place of a slot among those that were seen, which stand in the order of the slots.
    fn seen_at(&self, slot: usize) -> Option<usize> {
        self.seen.binary_search_by_key(&slot, |(id, _)| self.dependencies.slot_of(*id)).ok()
    }

    pub(super) fn node(&self, slot: usize) -> NodeId {
        self.dependencies.node(slot).expect("a candidate's slot holds a node")
    }
}

impl PlanGraph for View<'_> {
    type Key = BucketKey;

    fn node_count(&self) -> usize {
        self.dependencies.slots().len()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.dependencies.before(node).iter().map(|&slot| slot as usize)
    }

    fn candidate(&self, node: usize) -> Option<Candidate<BucketKey>> {
        let entry = self.candidate_at(node)?;
        Some(Candidate { key: entry.key, bytes: entry.bytes, wait: entry.wait })
    }

    fn body(&self, node: usize) -> usize {
        let region = match self.dependencies.slots()[node] {
            Slot::Node(id) => self.graph.node(id).region,
            Slot::Enter(region) | Slot::Exit(region) => self.graph.region(region).parent,
        };
        region.index()
    }
}

/// Devices, user boundaries and further options, each numbered in order of first appearance. Nothing stated is 0.
#[derive(Default)]
struct Traits {
    devices: IndexSet<Box<str>>,
    boundaries: IndexSet<Box<str>>,
    extras: IndexSet<Box<str>>,
}

/// The number of a text, a new one if it was not seen before.
fn number(seen: &mut IndexSet<Box<str>>, text: Option<&str>) -> u32 {
    let Some(text) = text else { return 0 };
    let index = seen.get_index_of(text).unwrap_or_else(|| seen.insert_full(text.into()).0);
    index as u32 + 1
}

impl Traits {
    fn key(&mut self, graph: &Graph, id: NodeId, options: &BucketOptions) -> BucketKey {
        let collective = graph.collective(id).expect("keys are made for collectives");
        let tensor = graph.tensor(id);
        let xla = options.policy == Policy::Xla;
        let kind = match collective.kind {
            other if options.by_dim.unwrap_or(options.mode == Mode::Coalesced) => other,
            CollectiveKind::AllGather { .. } => CollectiveKind::AllGather { dim: 0 },
            CollectiveKind::ReduceScatter { op, .. } => CollectiveKind::ReduceScatter { op, dim: 0 },
            other => other,
        };
        // Padding between members of sizes known only at run time cannot be written down: those keep their dtype.
        let known_size = graph.collective_inputs(id).iter().all(|&input| {
            graph.tensor(input).and_then(crate::ir::TensorType::bytes).is_some_and(|bytes| bytes.as_const().is_some())
        });
        let bytes_travel =
            options.mixed_dtype == MixedDtype::Bytes && options.kind == BucketKind::AllGather && known_size;
        // Permutes are not packed.
        let permutes = options.mixed_dtype == MixedDtype::Bytes && options.kind == BucketKind::Permute;
        let extras = further_options(graph, id, xla);
        let boundary =
            graph.meta_of(id).key.as_deref().and_then(|key| match (options.boundaries, options.combiner_keys) {
                (true, _) => Some(key),
                (false, true) => combiner_key(key),
                (false, false) => None,
            });
        BucketKey {
            kind,
            variant: collective.variant,
            group: same_ranks(graph, collective.group),
            dtype: if bytes_travel || permutes { None } else { tensor.map(|t| t.dtype) },
            region: graph.node(id).region,
            device: number(&mut self.devices, tensor.and_then(|t| t.device.as_deref())),
            boundary: number(&mut self.boundaries, boundary),
            extras: number(&mut self.extras, extras.as_deref()),
            own: 0,
        }
    }
}

/// The `combiner_key` among the boundaries of HLO text, which stands first.
fn combiner_key(boundaries: &str) -> Option<&str> {
    let first = boundaries.split(", collective_group_key=").next()?;
    first.starts_with("combiner_key=").then_some(first)
}

/// What is stated on a collective beside its tensors, kind and group, as text; operands by the names of their nodes. Of
/// a permute also its pairs. That HLO text writes all devices as `{}` matters to XLA only.
fn further_options(graph: &Graph, id: NodeId, xla: bool) -> Option<String> {
    let known = |name: &str| {
        matches!(
            name,
            "out" | "group_size" | "group_name" | "reduce_op" | "op" | "src" | "root" | "self" | "input" | "dim"
        ) || (name == "replica_groups" && !xla)
    };
    let args = graph.args_of(id);
    let further = args.keyword.iter().filter(|(name, _)| !known(name)).cloned();
    let permutes = graph.collective(id).is_some_and(|c| c.kind == CollectiveKind::Permute);
    let pairs = args.positional.iter().skip(1).filter(|arg| permutes && matches!(arg, Arg::List(_))).cloned();
    let further = Args { positional: pairs.collect(), keyword: further.collect() };
    // The sign keeps a node apart from a word.
    let operand = |index: u32| format!("%{}", graph.name_of(graph.operands(id)[index as usize]));
    let mut text = String::new();
    further.write(&mut text, Spacing::Tight, &operand).expect("text can be written to a string");
    (!text.is_empty()).then_some(text)
}

/// The group itself; for one that is known by its ranks alone (`tag:[0, 1]`, as older operators name groups), the first
/// group that is known to have just these ranks.
fn same_ranks(graph: &Graph, id: GroupId) -> GroupId {
    let by_ranks = |group: &ProcessGroup| group.name.contains(":[") && group.members.len() == 1;
    let group = graph.group(id);
    if !by_ranks(group) {
        return id;
    }
    let found = graph.groups().iter().position(|other| other.members == group.members && !by_ranks(other));
    found.map_or(id, GroupId::from_index)
}
