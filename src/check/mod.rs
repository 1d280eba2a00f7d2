//! Proves that a rewritten graph computes what its source does. Shares no code with the passes.
//!
//! # Values
//!
//! Both graphs are walked once, in program order, and each node gets a value. Equal values have equal numbers, in both
//! graphs, so a node that did not change costs one look-up. The lattice:
//!
//! ```text
//! Value   = Tensor(dtype, shape, bytes) | Int(size) | Tuple(values) | Opaque(leaf)
//! bytes   = a table of rows; each range of columns is a run of bytes of one leaf         (flat.rs)
//! run     = offset + nested loops of (count, stride) over the leaf                       (pattern.rs)
//! leaf    = Input(n) | Call(target, arguments, operands, states) | Part(call, k)         (terms.rs)
//!         | Const(element) | Unset(name)
//!         | Cast(dtype, leaf) | Bits(dtype, leaf) | Moved(device, leaf)
//!         | Later(value, log)             what a value in memory has become that others may have written    (memory/sharing.rs)
//!         | Ranks(group, leaf)            all ranks' bytes of the leaf, in rank order
//!         | Merged(op, group, leaf)       element by element over the ranks
//!         | Shard(op, group, leaf, rows)  the same from this rank's row of a table on
//!         | Turned(group, leaf, rows)         this rank's rows of all ranks' tables, in rank order
//!         | Exchange(kind, group, value) | Whole(value)       not followed further
//! ```
//!
//! Sizes and offsets are polynomials over the graph's symbols, so what is proven holds for all sizes. Symbols are taken
//! as not negative.
//!
//! # Transfer
//!
//! An operator is followed if its namespace, name and overload are in the table of `signature.rs`, and each of its
//! arguments is a parameter there; one that is not looked at must have its default. Else the call is a value of its own.
//!
//! ```text
//! view, reshape, flatten, unsqueeze, squeeze, clone, alias, detach, contiguous   the same bytes, another shape
//! view(dtype)            the same bytes, another dtype; where elements count, Bits around each leaf
//! cat, stack, pad        ranges side by side, in the dtype that PyTorch promotes to; pad is a Const leaf
//! slice, select, split, chunk, unbind, narrow, getitem     a range of columns; bounds of unknown sign are not followed
//! permute, transpose, t, movedim, expand        the loops in another order, or of stride 0; one run only
//! cast                   Cast around each leaf: it passes cat, slice and gather, never a sum
//! all_gather             range of leaf L  ->  the same range of Ranks(L), a row for each rank; any dimension
//! all_reduce, broadcast  range of leaf L  ->  the same range of Merged(L)
//! reduce_scatter         column range of the table of chunks  ->  the same range of Shard(L); any dimension
//! all_to_all             column range of the table of equal parts  ->  the same range of Turned(L)
//! coalesced forms        each input by itself
//! wait                   the value itself
//! over one rank, or of no bytes        the input
//! bucketing._pre_bucket_all_gather, _pre_bucket_reduce_scatter, _chunk_cat, full, zeros, ones, empty   by meaning
//! sym_size, sym_numel, *, +, -, //     polynomials
//! any other call         Call(..), equal only to the same call of equal values
//! random operators       read and write one state, in order; fences another
//! operators that nothing describes    draw, write each tensor that they are given, and may hand it on     (effects.rs)
//! strides, offsets, as_strided        also read how their operand lies                                 (walk/lies.rs)
//! x.op_(..), out=        write a range of a storage's bytes; later reads of its views see it   (memory.rs)
//! ```
//!
//! Groups are told apart by value, name and ranks, not by spelling, and by what a collective is asked for beside its
//! kind: see `groups.rs`.
//!
//! # What is checked
//!
//! 1. Inputs have equal names and types; outputs are equal values, and so is what is left in the inputs' memory.
//! 2. **Launches** (launches.rs): each source collective is found in exactly one launch of the result, and launches send
//!    nothing else but fill. Two that send the same may become one; what moves nothing may go.
//! 3. **Waits**: no element of a result in flight is read, also not through views; what was waited for still is; what
//!    is being sent is not written.
//! 4. **Order** (order.rs): of launches in each group, around fences, of random draws, by hard control edges.
//! 5. **Aliases** (outputs.rs): outputs share no memory, with each other or with inputs, that they did not share.
//!
//! # What is not understood
//!
//! Operators outside the table that only move elements (`flip`, `as_strided`, `unfold`, ..) are values of their own;
//! that is exact where both graphs have them on equal values. A permutation of a tensor of several runs, and tables that
//! fall into more than 65,536 pieces, are taken as wholes. Writes inside regions, and writes through views that are not
//! followed, give [`Verdict::CannotDecide`]. A cast is not moved across the gather of a launch: what is sent has to stay
//! what was sent. A difference that rests on what is not followed, and is in one graph alone, is
//! [`Verdict::CannotDecide`] too (gaps.rs). Two launches that differ only by the order of summation inside a reduction are equal.
//!
//! PyTorch's merged gathers hold the rank they were made for (their input is the slot of that rank in the buffer that
//! they write). Such a graph is proven for that rank; [`Proof::ranks`] says which.
//!
//! Cost: linear in nodes, operands and pieces.

pub mod effects;
mod exchange;
mod flat;
mod gaps;
mod groups;
mod int;
mod launches;
mod layout;
mod meaning;
mod memory;
mod order;
mod outputs;
mod pattern;
pub mod program;
pub mod ranks;
mod show;
mod signature;
mod terms;
mod verdict;
mod walk;

pub use verdict::{Assumption, Difference, Options, Proof, RankNote, Side, Stats, Term, Undecided, Verdict, What};

use crate::ir::{GlobalRank, Graph, NodeId, Operators};
use effects::Unknown;
use hashbrown::{HashMap, HashSet};
use launches::{Assignment, Mismatch};
use order::Disorder;
use rustc_hash::FxBuildHasher;
use show::Show;
use terms::{Context, Val};
use walk::{Stop, Walked};

/// Decides whether `after` computes what `before` does; see the module docs.
#[must_use]
pub fn prove(before: &Graph, after: &Graph) -> Verdict {
    prove_with(before, after, Options::default())
}

/// As [`prove`], with options.
#[must_use]
pub fn prove_with(before: &Graph, after: &Graph, options: Options) -> Verdict {
    let mut declared = before.operators.clone();
    declared.extend(&after.operators);
    let verdict = match compare(&mut Context::new(), before, after, &declared, options, Unknown::May) {
        Ok(proof) => return Verdict::Equal(proof),
        Err(verdict) => verdict,
    };
    // What nothing describes may be all that stands between the two.
    let graphs = [(Side::Before, before), (Side::After, after)];
    let unknown: Vec<(Side, &Graph, NodeId)> = graphs
        .into_iter()
        .flat_map(|(side, graph)| effects::unknown(graph, &declared).into_iter().map(move |id| (side, graph, id)))
        .collect();
    let Some(&(side, graph, id)) = unknown.first() else { return *verdict };
    if compare(&mut Context::new(), before, after, &declared, options, Unknown::Pure).is_err() {
        return *verdict;
    }
    let mut names: Vec<String> = Vec::new();
    for (_, graph, id) in unknown {
        let name = format!("`{}`", effects::operator_name(graph, id));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let reason = match names.as_slice() {
        [one] => format!(
            "equal if {one} writes nothing, shares no memory with what it is given and draws no random numbers; declare it"
        ),
        all => format!(
            "equal if {} write nothing, share no memory with what they are given and draw no random numbers; declare them",
            all.join(", ")
        ),
    };
    Verdict::CannotDecide(Box::new(Undecided { side, node: graph.name_of(id).to_owned(), reason }))
}

type Check<T = ()> = Result<T, Box<Verdict>>;

fn different(what: What, before: Term, after: Term) -> Box<Verdict> {
    Box::new(Verdict::Different(Box::new(Difference { what, before, after })))
}

fn compare<'g>(
    context: &mut Context<'g>,
    before: &'g Graph,
    after: &'g Graph,
    declared: &Operators,
    options: Options,
    unknown: Unknown,
) -> Check<Proof> {
    signatures(before, after)?;
    called_graphs(before, after, options)?;
    let source = walk::walk(context, before, Side::Before, (declared, unknown))
        .map_err(|stop| stopped(before, Side::Before, stop))?;
    let result = walk::walk(context, after, Side::After, (declared, unknown))
        .map_err(|stop| stopped(after, Side::After, stop))?;
    values(context, &source, &result)?;
    let assignment = launches::assign(context, &source, &result)
        .map_err(|mismatch| unmatched(context, &source, &result, &mismatch))?;
    order::check(&source, &result, &assignment, options.launches_may_move)
        .map_err(|disorder| disordered(&source, &result, &assignment, &disorder))?;
    readiness(&source, &result)?;
    let shared = outputs::shared(&source, &result);
    if let Some(node) = result.foreign {
        let reason =
            format!("the source does not call `{}` so, and it is not followed or not as stated", after.target_of(node));
        return Err(stopped(after, Side::After, Stop::Undecided { node, reason }));
    }
    let name = |id: NodeId| after.name_of(id).to_owned();
    if let (Some(first), false) = (shared.first(), options.outputs_may_share) {
        let term = format!("shares memory with `{}`", name(first.with));
        return Err(different(
            What::SharedOutput,
            Term { node: None, text: "memory of its own".to_owned() },
            Term { node: Some(name(first.output)), text: term },
        ));
    }
    let ranks = result.ranks.iter().map(|&(group, rank, node)| RankNote {
        group: context.groups.name(group).to_owned(),
        rank: u32::try_from(rank).unwrap_or(0),
        node: name(node),
    });
    Ok(Proof {
        stats: Stats {
            nodes: before.order().len() + after.order().len(),
            values: context.value_count(),
            pieces: source.pieces + result.pieces,
            launches_before: source.launches.len(),
            launches_after: result.launches.len(),
        },
        ranks: ranks.collect(),
        assumptions: assumptions(&source, &result),
        shared_outputs: shared.iter().map(|shared| (name(shared.output), name(shared.with))).collect(),
    })
}

/// What the proof rests on beside the graphs: that what nothing describes does not communicate, where collectives could
/// then be out of step with it.
fn assumptions(source: &Walked<'_>, result: &Walked<'_>) -> Vec<Assumption> {
    let mut found: Vec<Assumption> = Vec::new();
    if source.launches.is_empty() {
        return found;
    }
    for walked in [source, result] {
        let graph = walked.graph;
        let unknown = |id: &NodeId| {
            let effects = walked.effects.get(*id);
            effects.may && effects.fence != effects::Fence::Full
        };
        for id in graph.order().iter().copied().filter(unknown) {
            let operator = effects::operator_name(graph, id);
            if !found.iter().any(|known| known.operator == operator) {
                found.push(Assumption { operator, assumed: "does not communicate".to_owned() });
            }
        }
    }
    found
}

/// Whether the graphs belong together at all.
fn signatures(before: &Graph, after: &Graph) -> Check {
    let inputs = |graph: &Graph| -> Vec<NodeId> {
        graph.order().iter().copied().filter(|&id| graph.node(id).op == crate::ir::Op::Input).collect()
    };
    let (old, new) = (inputs(before), inputs(after));
    let term = |graph: &Graph, id: Option<&NodeId>| match id {
        Some(&id) => Term {
            node: Some(graph.name_of(id).to_owned()),
            text: match graph.args_of(id).get("shape").and_then(crate::ir::Arg::as_str) {
                Some(shape) => format!("{} {shape}", graph.name_of(id)),
                None => format!("{} {}", graph.name_of(id), graph.type_of(id)),
            },
        },
        None => Term { node: None, text: "no input".to_owned() },
    };
    for index in 0..old.len().max(new.len()) {
        let (a, b) = (old.get(index), new.get(index));
        let same = a.zip(b).is_some_and(|(&a, &b)| {
            before.name_of(a) == after.name_of(b)
                && before.type_of(a) == after.type_of(b)
                && before.meta_of(a).pending == after.meta_of(b).pending
                && before.args_of(a) == after.args_of(b)
        });
        if !same {
            return Err(different(What::Inputs, term(before, a), term(after, b)));
        }
    }
    // A group may be spelled in many ways; of other ranks under one name, one is another group.
    let ranks: HashSet<&Vec<Vec<GlobalRank>>, FxBuildHasher> =
        after.groups().iter().map(|group| &group.members).collect();
    for old in before.groups().iter().filter(|old| !old.members.is_empty() && !ranks.contains(&old.members)) {
        let new = after.groups().iter().find(|new| new.name == old.name && new.size == old.size);
        if let Some(new) = new.filter(|new| !new.members.is_empty()) {
            let term = |members| Term { node: None, text: format!("group {} is {members:?}", old.name) };
            return Err(different(What::Groups, term(&old.members), term(&new.members)));
        }
    }
    if before.regions() != after.regions() {
        let term = |graph: &Graph| Term { node: None, text: format!("{} regions", graph.regions().len() - 1) };
        return Err(different(What::Regions, term(before), term(after)));
    }
    Ok(())
}

/// Graphs that are called compute what they did: each by a proof of its own.
fn called_graphs(before: &Graph, after: &Graph, options: Options) -> Check {
    if before.bodies.is_empty() && after.bodies.is_empty() {
        return Ok(());
    }
    let mut seen: HashSet<&str, FxBuildHasher> = HashSet::default();
    for &id in before.order() {
        for target in crate::ir::bodies::called_graphs(before, id).unwrap_or_default() {
            let (Some(old), Some(new)) = (before.bodies.get(target), after.bodies.get(target)) else { continue };
            if !seen.insert(target) || old == new {
                continue;
            }
            let verdict = prove_with(old, new, options);
            if !verdict.is_equal() {
                let reason = format!("the graph `{target}` that it calls: {verdict}");
                return Err(stopped(before, Side::Before, Stop::Undecided { node: id, reason }));
            }
        }
    }
    Ok(())
}

fn stopped(graph: &Graph, side: Side, stop: Stop) -> Box<Verdict> {
    match stop {
        Stop::Undecided { node, reason } => {
            Box::new(Verdict::CannotDecide(Box::new(Undecided { side, node: graph.name_of(node).to_owned(), reason })))
        }
        Stop::Fault { node, reason } => {
            let broken = Term { node: Some(graph.name_of(node).to_owned()), text: reason };
            let other = Term { node: None, text: "a well-formed graph".to_owned() };
            let (before, after) = if side == Side::Before { (broken, other) } else { (other, broken) };
            different(What::IllFormed(side), before, after)
        }
    }
}

/// Outputs, what is left in inputs, and the states.
fn values<'g>(context: &Context<'g>, source: &Walked<'g>, result: &Walked<'g>) -> Check {
    let outputs = |walked: &Walked<'g>| walked.output.map(|id| walked.graph.args_of(id).clone());
    if outputs(source) != outputs(result) {
        let term = |walked: &Walked<'g>| {
            let mut text = String::new();
            if let Some(args) = outputs(walked) {
                let _ = args.write(&mut text, crate::ir::Spacing::Tight, &|index| format!("#{index}"));
            }
            Term { node: walked.output.map(|id| walked.graph.name_of(id).to_owned()), text }
        };
        return Err(different(What::Structure, term(source), term(result)));
    }
    for (index, (&a, &b)) in source.outputs.iter().zip(&result.outputs).enumerate() {
        if a != b {
            let names = [source, result].map(|walked| {
                let output = walked.output.map(|id| walked.graph.operands(id)[index]);
                output.map_or_else(String::new, |id| walked.graph.name_of(id).to_owned())
            });
            return Err(value_difference(context, source, result, What::Output { index, names }, a, b));
        }
    }
    output_devices(source, result)?;
    for (&(id, a), &(_, b)) in source.inputs.iter().zip(&result.inputs) {
        if a != b {
            let name = source.graph.name_of(id).to_owned();
            return Err(value_difference(context, source, result, What::InputMemory { name }, a, b));
        }
    }
    attributes(context, source, result)?;
    for (what, index) in [(What::RandomState, 0), (What::Fences, 1), (What::CalledLaunches, 2)] {
        let (a, b) = (source.states[index], result.states[index]);
        if a != b {
            return Err(value_difference(context, source, result, what, a, b));
        }
    }
    Ok(())
}

/// What is left in attributes of the module: an attribute that one graph does not read, it does not change.
fn attributes<'g>(context: &Context<'g>, source: &Walked<'g>, result: &Walked<'g>) -> Check {
    let left_in = |walked: &Walked<'g>| -> HashMap<&'g str, Val, FxBuildHasher> {
        walked.attributes.iter().map(|&(id, _, last)| (walked.graph.target_of(id), last)).collect()
    };
    let of_target = [left_in(source), left_in(result)];
    for (side, walked) in [(0, source), (1, result)] {
        for &(id, initial, last) in &walked.attributes {
            let target = walked.graph.target_of(id);
            let of_other = of_target[1 - side].get(target).copied();
            let left = of_other.unwrap_or(initial);
            if left != last {
                let (a, b) = if side == 0 { (last, left) } else { (left, last) };
                return Err(value_difference(
                    context,
                    source,
                    result,
                    What::Attribute { name: target.to_owned() },
                    a,
                    b,
                ));
            }
        }
    }
    Ok(())
}

/// Outputs are where they were, as far as it is stated.
fn output_devices(source: &Walked<'_>, result: &Walked<'_>) -> Check {
    let (Some(old), Some(new)) = (source.output, result.output) else { return Ok(()) };
    for (index, (&a, &b)) in source.graph.operands(old).iter().zip(result.graph.operands(new)).enumerate() {
        let device = |graph: &Graph, id| graph.tensor(id).and_then(|tensor| tensor.device.clone());
        if let (Some(x), Some(y)) = (device(source.graph, a), device(result.graph, b))
            && x != y
        {
            let names = [source.graph.name_of(a), result.graph.name_of(b)].map(str::to_owned);
            let term = |node: &String, device: &str| Term { node: Some(node.clone()), text: format!("is on {device}") };
            let (before, after) = (term(&names[0], &x), term(&names[1], &y));
            return Err(different(What::Output { index, names }, before, after));
        }
    }
    Ok(())
}

/// An output that was waited for still is.
fn readiness(source: &Walked<'_>, result: &Walked<'_>) -> Check {
    let pairs = source.unready.iter().zip(&result.unready).enumerate();
    let lost = pairs.filter_map(|(index, (old, new))| new.filter(|_| old.is_none()).map(|new| (index, new))).next();
    let (Some((index, launch)), Some(old), Some(new)) = (lost, source.output, result.output) else { return Ok(()) };
    let name = |walked: &Walked<'_>, output| walked.graph.name_of(walked.graph.operands(output)[index]).to_owned();
    Err(different(
        What::Wait,
        Term { node: Some(name(source, old)), text: format!("output {index} is waited for") },
        Term {
            node: Some(name(result, new)),
            text: format!("is the result of `{}`, which is not waited for", result.graph.name_of(launch)),
        },
    ))
}

fn value_difference<'g>(
    context: &Context<'g>,
    source: &Walked<'g>,
    result: &Walked<'g>,
    what: What,
    before: Val,
    after: Val,
) -> Box<Verdict> {
    let show = Show { context, graphs: [source.graph, result.graph] };
    let (a, b) = show.first_difference(before, after);
    if let Some(verdict) = rests_on_gap(context, source, result, &[a], &[b]) {
        return verdict;
    }
    let mut texts = [show.term(a), show.term(b)];
    if texts[0] == texts[1] {
        for (text, val) in texts.iter_mut().zip([a, b]) {
            if let Some(details) = show.details(val) {
                *text = format!("{text}, {details}");
            }
        }
    }
    let [old, new] = texts;
    let term = |val: Val, side: usize, text: String| Term { node: show.node_name(val, side), text };
    different(what, term(a, 0, old), term(b, 1, new))
}

/// The verdict on a difference between values of which some was not followed: it may be none.
fn rests_on_gap(
    context: &Context<'_>,
    source: &Walked<'_>,
    result: &Walked<'_>,
    before: &[Val],
    after: &[Val],
) -> Option<Box<Verdict>> {
    let (old, new) = (gaps::of(context, before.iter().copied()), gaps::of(context, after.iter().copied()));
    if let Some((side, node)) = old.call.or(new.call) {
        let graph = [source.graph, result.graph][side as usize];
        let reason = format!("`{}` is not followed here, and the other graph has no such call", graph.target_of(node));
        return Some(stopped(graph, side, Stop::Undecided { node, reason }));
    }
    let (side, graph, vals, index) = match (old.differs(&new), old.is_empty()) {
        (false, _) => return None,
        (true, false) => (Side::Before, source.graph, before, 0),
        (true, true) => (Side::After, result.graph, after, 1),
    };
    let show = Show { context, graphs: [source.graph, result.graph] };
    let node = vals.iter().find_map(|&val| show.origin(val, index))?;
    let reason = "it is made of parts of elements, which are not followed".to_owned();
    Some(stopped(graph, side, Stop::Undecided { node, reason }))
}

/// What launches of a graph send.
fn sent(walked: &Walked<'_>) -> Vec<Val> {
    walked.launches.iter().flat_map(|launch| launch.inputs.iter().copied()).collect()
}

fn launch_term<'g>(context: &Context<'g>, source: &Walked<'g>, result: &Walked<'g>, side: usize, index: usize) -> Term {
    let show = Show { context, graphs: [source.graph, result.graph] };
    let walked = [source, result][side];
    let launch = &walked.launches[index];
    let sent: Vec<String> = launch.inputs.iter().map(|&val| show.term(val)).collect();
    Term {
        node: Some(walked.graph.name_of(launch.node).to_owned()),
        text: format!("{} of {}", launch.kind.name(), sent.join(", ")),
    }
}

fn unmatched<'g>(context: &Context<'g>, source: &Walked<'g>, result: &Walked<'g>, mismatch: &Mismatch) -> Box<Verdict> {
    let none = |text: &str| Term { node: None, text: text.to_owned() };
    // What is sent may be what the other graph sends, where one of the two is not followed.
    let (old, new) = match *mismatch {
        Mismatch::Dropped(index) | Mismatch::Apart(index) => (source.launches[index].inputs.clone(), sent(result)),
        Mismatch::Extra(index, _) => (sent(source), result.launches[index].inputs.clone()),
    };
    if let Some((side, node)) = gaps::of(context, old.into_iter().chain(new)).call {
        let graph = [source.graph, result.graph][side as usize];
        let reason = format!("`{}` is not followed here, and a collective sends what it makes", graph.target_of(node));
        return stopped(graph, side, Stop::Undecided { node, reason });
    }
    match *mismatch {
        Mismatch::Dropped(index) => {
            let term = launch_term(context, source, result, 0, index);
            different(What::Dropped, term, none("no launch sends it"))
        }
        Mismatch::Extra(index, leaf) => {
            let term = launch_term(context, source, result, 1, index);
            let show = Show { context, graphs: [source.graph, result.graph] };
            let sent = leaf.map_or_else(|| "it".to_owned(), |leaf| show.leaf_term(leaf));
            different(What::Extra, none(&format!("no collective sends {sent}, or not once more")), term)
        }
        Mismatch::Apart(index) => {
            let term = launch_term(context, source, result, 0, index);
            different(What::Apart, term, none("several launches send its inputs"))
        }
    }
}

fn disordered(source: &Walked<'_>, result: &Walked<'_>, assignment: &Assignment, disorder: &Disorder) -> Box<Verdict> {
    let old = |index: usize| source.graph.name_of(source.launches[index].node).to_owned();
    let new = |index: usize| result.graph.name_of(result.launches[index].node).to_owned();
    let image = |index: usize| assignment.of[index].iter().flatten().next().map(|place| new(place.0));
    let term = |node: Option<String>, text: String| Term { node, text };
    match *disorder {
        Disorder::Swapped(first, second) => different(
            What::Order,
            term(Some(old(first)), format!("`{}` is launched before `{}`", old(first), old(second))),
            term(image(first), "is launched after it, and no merge asks for that".to_owned()),
        ),
        Disorder::Called(from, call) => different(
            What::CalledLaunches,
            term(Some(old(from)), "keeps its side of a call of a graph that launches".to_owned()),
            term(
                Some(result.graph.name_of(call).to_owned()),
                "is on its other side, and no merge asks for that".to_owned(),
            ),
        ),
        Disorder::Fence(from, to) => different(
            What::Fences,
            term(Some(old(from)), "keeps its side of each fence".to_owned()),
            term(Some(new(to)), "is on another side of a fence".to_owned()),
        ),
        Disorder::Wait(from, to) => different(
            What::Wait,
            term(Some(old(from)), "is waited for".to_owned()),
            term(Some(new(to)), "is not waited for".to_owned()),
        ),
        Disorder::Race(launch, writer) => different(
            What::Race,
            term(None, "nothing writes what is being sent".to_owned()),
            term(
                Some(result.graph.name_of(writer).to_owned()),
                format!("writes what `{}` sends before it is waited for", new(launch)),
            ),
        ),
        Disorder::Control(from, to, why) => {
            let (from, to) = (source.graph.name_of(from).to_owned(), source.graph.name_of(to).to_owned());
            let text = format!("`{to}` runs after `{from}`");
            different(What::Control, term(Some(to), text), term(None, why.to_owned()))
        }
    }
}
