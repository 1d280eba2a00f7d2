//! Which collectives may be merged at all: those that a single wait makes valid, less those that options keep out.

use super::bucketing::{BucketKind, BucketOptions};
use super::plan::Reason;
use crate::ir::operators::{OperatorId, SizeKind};
use crate::ir::{Arg, CollectiveKind, Dependencies, Dim, Graph, NodeId, Op, RegionId, RegionKind, Strength, Variant};

/// Who reads the collectives of one kind.
pub(super) struct Readers {
    /// By arena index: index into `lists`, or `u32::MAX`.
    index: Vec<u32>,
    lists: Vec<Vec<NodeId>>,
}

impl Readers {
    pub(super) fn of(graph: &Graph, kind: BucketKind) -> Self {
        let mut readers = Self { index: vec![u32::MAX; graph.arena_len()], lists: Vec::new() };
        for &id in graph.order() {
            if graph.collective(id).is_some_and(|c| BucketKind::of(c.kind) == Some(kind)) {
                readers.index[id.index()] = readers.lists.len() as u32;
                readers.lists.push(Vec::new());
            }
            for &operand in graph.operands(id) {
                if let Some(list) = readers.lists.get_mut(readers.index[operand.index()] as usize)
                    && list.last() != Some(&id)
                {
                    list.push(id);
                }
            }
        }
        readers
    }

    pub(super) fn get(&self, id: NodeId) -> &[NodeId] {
        self.lists.get(self.index[id.index()] as usize).map_or(&[], Vec::as_slice)
    }
}

/// Whether a node reads nothing of its operand but a size that follows from the input of the collective it names.
#[must_use]
pub(super) fn reads_size_only(graph: &Graph, id: NodeId) -> bool {
    let Op::Call(target) = graph.node(id).op else { return false };
    match graph.operator(target).id() {
        OperatorId::SymSize(SizeKind::Elements) => true,
        OperatorId::SymSize(SizeKind::Sizes) => graph.args_of(id).positional.get(1).and_then(Arg::as_int).is_some(),
        _ => false,
    }
}

/// Collectives that write a given tensor and are waited for under another name of its memory, with that wait; or whose
/// memory another collective writes before their own wait, with that one.
pub(super) fn waited_elsewhere(
    graph: &Graph,
    dependencies: &Dependencies,
) -> hashbrown::HashMap<NodeId, NodeId, rustc_hash::FxBuildHasher> {
    let mut in_flight = hashbrown::HashMap::<u32, NodeId, rustc_hash::FxBuildHasher>::default();
    let mut elsewhere = hashbrown::HashMap::default();
    for &id in graph.order() {
        let class = dependencies.alias_class(id);
        match graph.node(id).op {
            Op::Collective(collective) if collective.variant != Variant::Functional => {
                if let Some(other) = in_flight.insert(class, id) {
                    elsewhere.insert(other, id);
                }
            }
            Op::Wait => {
                if let Some(started) = in_flight.remove(&class)
                    && graph.operands(id).first() != Some(&started)
                {
                    elsewhere.insert(started, id);
                }
            }
            _ => {}
        }
    }
    elsewhere
}

/// The one wait of a collective that may be merged.
pub(super) fn only_wait(graph: &Graph, readers: &Readers, id: NodeId) -> Result<NodeId, Reason> {
    let collective = graph.collective(id).expect("asked of collectives only");
    if !graph.meta_of(id).members.is_empty() {
        return Err(Reason::AlreadyMerged);
    }
    if collective.coalesced {
        return Err(Reason::Coalesced);
    }
    if graph.args_of(id).get("split").is_some() {
        return Err(Reason::StartAndDone);
    }
    if graph.args_of(id).get("autograd").is_some() {
        return Err(Reason::Filtered { by: "its gradient: a merged launch would have none" });
    }
    if collective.variant == Variant::Out {
        return Err(Reason::WritesOut);
    }
    let list = readers.get(id);
    let mut waits = list.iter().copied().filter(|&reader| graph.node(reader).op == Op::Wait);
    let Some(wait) = waits.next() else { return Err(Reason::NoWait) };
    let more = waits.count();
    if more > 0 {
        return Err(Reason::WaitedTwice { waits: more + 1 });
    }
    // Readers stand in program order, so those before the wait come first in the list.
    let early =
        list.iter().copied().take_while(|&reader| reader != wait).find(|&reader| !reads_size_only(graph, reader));
    if let Some(by) = early {
        return Err(Reason::ReadBeforeWait { by: graph.name_of(by).to_owned() });
    }
    if graph.waits_for_list(wait) {
        return Err(Reason::WaitedInList { wait: graph.name_of(wait).to_owned() });
    }
    if graph.node(wait).region != graph.node(id).region {
        return Err(Reason::RegionBorder);
    }
    let tensor = |&id: &NodeId| graph.tensor(id).is_some();
    // The wait's type is what its readers will be given.
    if !tensor(&id) || !tensor(&wait) || !graph.collective_inputs(id).iter().all(tensor) {
        return Err(Reason::SizeUnknown);
    }
    if collective.kind == CollectiveKind::AllToAll && !exchanges_evenly(graph, id) {
        return Err(Reason::UnevenSplits);
    }
    Ok(wait)
}

/// Whether an all-to-all sends as many rows to each rank as it gets from each, all known. Its arguments are the tensor,
/// the rows from each rank and the rows for each rank; an empty list means equal parts.
fn exchanges_evenly(graph: &Graph, id: NodeId) -> bool {
    let args = graph.args_of(id);
    let input = graph.collective_inputs(id).first().and_then(|&input| graph.tensor(input));
    let ranks = graph.collective(id).and_then(|c| graph.group(c.group).size).map(u64::from);
    let (Some(ranks), Some(input)) = (ranks, input) else { return false };
    let rows = input.shape.first().and_then(Dim::as_const).filter(|rows| rows % ranks == 0).map(|rows| rows / ranks);
    let Some(rows) = rows.and_then(|rows| i64::try_from(rows).ok()) else { return false };
    let even = |list: Option<&Arg>| match list {
        Some(Arg::List(splits)) => {
            splits.is_empty() || (splits.len() as u64 == ranks && splits.iter().all(|split| *split == Arg::Int(rows)))
        }
        _ => false,
    };
    let sizes_known = input.elements().is_some_and(|elements| elements.as_const().is_some());
    let same = graph.tensor(id).is_some_and(|output| output.shape == input.shape);
    sizes_known && same && args.positional.len() == 3 && even(args.positional.get(1)) && even(args.positional.get(2))
}

/// The options that keep collectives out.
pub(super) struct Filter<'a> {
    options: &'a BucketOptions,
    /// For the FSDP filter: whether each node passes, by arena index.
    fsdp: Option<Vec<bool>>,
}

impl<'a> Filter<'a> {
    pub(super) fn of(graph: &Graph, options: &'a BucketOptions) -> Self {
        let fsdp = match options.kind {
            BucketKind::AllGather if options.fsdp_only => Some(from_one_parameter(graph)),
            BucketKind::ReduceScatter if options.fsdp_only => Some(only_to_outputs(graph)),
            _ => None,
        };
        Self { options, fsdp }
    }

    pub(super) fn check(&self, graph: &Graph, id: NodeId) -> Result<(), Reason> {
        let name = graph.name_of(id);
        let group = graph.collective(id).map_or("", |c| &graph.group(c.group).name);
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches_pattern(pattern, name));
        if !self.options.groups.is_empty() && !self.options.groups.iter().any(|wanted| wanted == group) {
            return Err(Reason::Filtered { by: "the group filter" });
        }
        if (!self.options.names.is_empty() && !any(&self.options.names)) || any(&self.options.except) {
            return Err(Reason::Filtered { by: "the name filter" });
        }
        if !self.options.in_loops && in_loop(graph, graph.node(id).region) {
            return Err(Reason::InLoop);
        }
        match &self.fsdp {
            Some(passes) if !passes[id.index()] => Err(Reason::Filtered { by: "the FSDP filter" }),
            _ => Ok(()),
        }
    }
}

/// What XLA's combiners leave alone, beside what no merge takes.
pub(super) struct XlaRules {
    /// Whether any collective of the kind pins its layout.
    pinned: bool,
    /// By arena index: whether an order edge begins or ends there; empty if there are none.
    tied: Vec<bool>,
    /// Collectives whose reducer is more than one instruction, sorted.
    wrapped: Vec<NodeId>,
}

impl XlaRules {
    pub(super) fn of(graph: &Graph, kind: BucketKind) -> Self {
        let of_kind = |id: NodeId| graph.collective(id).is_some_and(|c| BucketKind::of(c.kind) == Some(kind));
        let pins = |id: NodeId| graph.args_of(id).get("constrain_layout").is_some();
        let mut tied = vec![false; if graph.control.is_empty() { 0 } else { graph.arena_len() }];
        for edge in graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
            tied[edge.before.index()] = true;
            tied[edge.after.index()] = true;
        }
        let wraps =
            |id: NodeId| graph.args_of(id).get("reducer").and_then(Arg::as_str).is_some_and(|r| r.contains("by "));
        let mut wrapped: Vec<NodeId> = graph.order().iter().copied().filter(|&id| of_kind(id) && wraps(id)).collect();
        wrapped.sort_unstable();
        Self { pinned: graph.order().iter().any(|&id| of_kind(id) && pins(id)), tied, wrapped }
    }

    pub(super) fn check(&self, collective: NodeId, wait: NodeId) -> Result<(), Reason> {
        let tied = |id: NodeId| self.tied.get(id.index()) == Some(&true);
        if self.pinned {
            return Err(Reason::Filtered { by: "policy xla: one of its kind pins its layout" });
        }
        if self.wrapped.binary_search(&collective).is_ok() {
            return Err(Reason::Filtered { by: "policy xla: its reducer is more than one instruction" });
        }
        if tied(collective) || tied(wait) {
            return Err(Reason::Filtered { by: "policy xla: it has order edges" });
        }
        Ok(())
    }
}

fn in_loop(graph: &Graph, region: RegionId) -> bool {
    graph.regions_around(region).any(|region| graph.region(region).kind == RegionKind::Loop)
}

/// Names under which tracers pass data and gradients rather than parameters.
const NOT_PARAMETERS: &[&str] =
    &["tangents", "activation", "input", "hidden", "grad", "batch", "token", "target", "label"];

/// Nodes that depend on exactly one input, and that one may be a parameter.
fn from_one_parameter(graph: &Graph) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum From {
        None,
        One(NodeId),
        Many,
    }
    let mut from = vec![From::None; graph.arena_len()];
    for &id in graph.order() {
        from[id.index()] = if graph.node(id).op == Op::Input {
            From::One(id)
        } else {
            graph.operands(id).iter().fold(From::None, |sum, operand| match (sum, from[operand.index()]) {
                (From::None, other) | (other, From::None) => other,
                (a, b) if a == b => a,
                _ => From::Many,
            })
        };
    }
    let parameter = |id: NodeId| !NOT_PARAMETERS.iter().any(|prefix| graph.name_of(id).starts_with(prefix));
    from.into_iter().map(|from| matches!(from, From::One(id) if parameter(id))).collect()
}

/// Nodes whose value reaches nothing but outputs, through operators of one operand.
fn only_to_outputs(graph: &Graph) -> Vec<bool> {
    let mut passes = vec![true; graph.arena_len()];
    for &id in graph.order().iter().rev() {
        let operands = graph.operands(id);
        let is_output = graph.node(id).op == Op::Output;
        let unary = operands.windows(2).all(|pair| pair[0] == pair[1]);
        let passes_on = is_output || (unary && passes[id.index()]);
        if !passes_on {
            for operand in operands {
                passes[operand.index()] = false;
            }
        }
    }
    passes
}

/// Whether `text` matches `pattern`, in which `*` is any text and `?` any character.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut restart: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                restart = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match restart {
                Some((star, at)) => {
                    restart = Some((star, at + 1));
                    p = star + 1;
                    t = at + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("all_gather*", "all_gather_into_tensor_3", true),
            ("*_3", "all_gather_33", false),
            ("a?c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b", "axxc", false),
            ("", "a", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }
}
