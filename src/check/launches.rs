//! Which collective of the source travels in which launch of the result.
//!
//! What a launch sends is a list of pieces. A source collective is found where its own list stands in that of a launch
//! of the same kind, group, reduction and region. Each must be found once; a launch may hold nothing else but fill of
//! one constant. Where several would fit, the names of the launch and of the members that it claims decide.
//! Two source collectives that send the same value may be one in the result. What moves nothing (a group
//! of one rank, no bytes) may go.

use super::exchange::scatter_table;
use super::flat::{Leaf, Piece};
use super::int::{Int, ONE, ZERO};
use super::layout::{elements_of_leaves, tensor_of};
use super::pattern::{self, Pattern};
use super::terms::{Context, GroupKey, Term, Val};
use super::walk::{Launch, Walked};
use crate::ir::{CollectiveKind, DType, ReduceOp, RegionId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::rc::Rc;

/// Most launches of the result that are looked at for one that is gone.
const MOST_TWINS: usize = 8;

/// What launches must share to send each other's data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Class {
    kind: Transfer,
    group: GroupKey,
    region: RegionId,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Transfer {
    Gather,
    Scatter(ReduceOp, DType),
    Reduce(ReduceOp, DType),
    ReduceTo(ReduceOp, u32, DType),
    Broadcast(u32),
    AllToAll,
    /// Not followed: only the whole is compared.
    Other(CollectiveKind, u32),
}

/// One input of one source collective.
struct Member {
    launch: usize,
    part: usize,
    class: Class,
    val: Val,
    pieces: Rc<[Piece]>,
    taken: bool,
}

/// Where source collectives went.
pub(super) struct Assignment {
    /// For each source launch and input: launch of the result and input there; `None` if it is gone for a good reason.
    pub of: Vec<Vec<Option<(usize, usize)>>>,
    /// For each launch of the result: the source launches in it.
    pub members: Vec<Vec<usize>>,
    /// For a source launch that is gone because others send the same: those launches of the result.
    pub twins: HashMap<usize, Vec<usize>, FxBuildHasher>,
}

/// Why the launches of the result are not those of the source.
pub(super) enum Mismatch {
    /// A source launch is in no launch of the result.
    Dropped(usize),
    /// A launch of the result sends something that no source collective sends, or once more.
    Extra(usize, Option<Leaf>),
    /// The inputs of one source launch went to different launches.
    Apart(usize),
}

fn class(context: &Context<'_>, walked: &Walked<'_>, launch: &Launch, val: Val) -> Class {
    let dtype = context.tensor(val).map(|tensor| tensor.dtype);
    let kind = match (launch.kind, dtype) {
        (CollectiveKind::AllGather { .. }, Some(_)) => Transfer::Gather,
        (CollectiveKind::ReduceScatter { op, .. }, Some(dtype)) => Transfer::Scatter(op, dtype),
        (CollectiveKind::AllReduce { op }, Some(dtype)) => Transfer::Reduce(op, dtype),
        (CollectiveKind::Reduce { op, root }, Some(dtype)) => Transfer::ReduceTo(op, root, dtype),
        (CollectiveKind::Broadcast { root }, Some(_)) => Transfer::Broadcast(root),
        (CollectiveKind::AllToAll, Some(_)) if launch.even => Transfer::AllToAll,
        (kind, _) if launch.pairs.is_some() => Transfer::Other(kind, launch.pairs.unwrap_or(u32::MAX)),
        (kind, _) => Transfer::Other(kind, exchange_call(context, walked, launch)),
    };
    Class { kind, group: launch.requested, region: walked.graph.node(launch.node).region }
}

/// The call of a collective that is not followed: its arguments count.
fn exchange_call(context: &Context<'_>, walked: &Walked<'_>, launch: &Launch) -> u32 {
    let val = walked.vals[launch.node.index()];
    let leaf = match context.value(val) {
        super::terms::Value::Tensor(tensor) => tensor.flat.single().map(|piece| piece.leaf),
        super::terms::Value::Opaque(leaf) => Some(*leaf),
        _ => None,
    };
    match leaf.map(|leaf| &context.leaf(leaf).term) {
        Some(Term::Exchange(_, call, ..)) => *call,
        _ => u32::MAX,
    }
}

/// What an input of a launch sends, in order.
fn pieces(context: &mut Context<'_>, launch: &Launch, val: Val) -> Rc<[Piece]> {
    let found = tensor_of(context, val).and_then(|tensor| {
        if tensor.flat.pieces.is_empty() {
            return Some(Rc::default());
        }
        let table = match launch.kind {
            CollectiveKind::AllGather { .. } => context.with_rows(&tensor.flat, &ONE)?,
            CollectiveKind::ReduceScatter { dim, .. } => {
                let size = context.groups.size(launch.group)?;
                scatter_table(context, i64::from(size), dim as usize, &tensor)?
            }
            CollectiveKind::AllToAll if launch.even => {
                let size = context.groups.size(launch.group)?;
                context.with_rows(&tensor.flat, &Int::Known(i64::from(size)))?
            }
            CollectiveKind::AllToAll | CollectiveKind::Permute => return None,
            _ => {
                let tensor = elements_of_leaves(context, &tensor)?;
                context.with_rows(&tensor.flat, &ONE)?
            }
        };
        Some(table.pieces)
    });
    found.unwrap_or_else(|| {
        let leaf = context.intern_leaf(Term::Whole(val), None, None);
        let piece = Piece { start: ZERO, bytes: ONE, leaf, offset: ZERO, outer: Pattern::new(), inner: Pattern::new() };
        Rc::new([piece])
    })
}

/// Finds each source collective in the result.
pub(super) fn assign(
    context: &mut Context<'_>,
    before: &Walked<'_>,
    after: &Walked<'_>,
) -> Result<Assignment, Mismatch> {
    let mut members = members(context, before);
    let Index { mut hinted, mut free, mut all } = Index::of(before, after, &members);
    let mut by_name: HashMap<&str, usize, FxBuildHasher> = HashMap::default();
    for (index, launch) in before.launches.iter().enumerate().filter(|(_, launch)| launch.trivial) {
        by_name.insert(before.graph.name_of(launch.node), index);
    }
    let mut assignment = Assignment {
        of: before.launches.iter().map(|launch| vec![None; launch.inputs.len()]).collect(),
        members: vec![Vec::new(); after.launches.len()],
        twins: HashMap::default(),
    };
    for (index, launch) in after.launches.iter().enumerate() {
        for (part, &val) in launch.inputs.iter().enumerate() {
            let class = class(context, after, launch, val);
            let stream = pieces(context, launch, val);
            let mut cursor = Cursor { stream: &stream, piece: 0, done: ZERO };
            while let Some((leaf, offset)) = cursor.here() {
                let start = (class, leaf, offset);
                let mut look = |list: Option<&mut Vec<u32>>| take(&mut members, list?, &mut cursor);
                let found = look(hinted.get_mut(&(number(index), start.clone())))
                    .or_else(|| look(free.get_mut(&start)))
                    .or_else(|| look(all.get_mut(&start)));
                if let Some(member) = found {
                    let member = &members[member];
                    assignment.of[member.launch][member.part] = Some((index, part));
                    assignment.members[index].push(member.launch);
                } else if matches!(context.leaf(leaf).term, Term::Const(..)) {
                    cursor.skip();
                } else {
                    return Err(Mismatch::Extra(index, Some(leaf)));
                }
            }
        }
        claim_empty(before, after, launch, &mut assignment.members[index], &by_name);
        assignment.members[index].sort_unstable();
        assignment.members[index].dedup();
        if assignment.members[index].is_empty() && !launch.trivial {
            return Err(Mismatch::Extra(index, None));
        }
    }
    check_all(before, &members, &mut assignment)?;
    Ok(assignment)
}

/// Members of no bytes are in no list of pieces: where a launch claims them, they count among those that it merges.
fn claim_empty(
    before: &Walked<'_>,
    after: &Walked<'_>,
    launch: &Launch,
    members: &mut Vec<usize>,
    by_name: &HashMap<&str, usize, FxBuildHasher>,
) {
    if by_name.is_empty() {
        return;
    }
    for name in &after.graph.meta_of(launch.node).members {
        let claimed = by_name.get(&**name).copied();
        members.extend(claimed.filter(|&index| before.launches[index].group == launch.group));
    }
}

/// The kind of a member and its first byte.
type Start = (Class, Leaf, Int);

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Members by where they start; the last of a list is taken first.
struct Index {
    /// Those that a launch of the result claims by name.
    hinted: HashMap<(u32, Start), Vec<u32>, FxBuildHasher>,
    /// Those that none claims.
    free: HashMap<Start, Vec<u32>, FxBuildHasher>,
    all: HashMap<Start, Vec<u32>, FxBuildHasher>,
}

impl Index {
    fn of(before: &Walked<'_>, after: &Walked<'_>, members: &[Member]) -> Self {
        let mut claims: HashMap<&str, u32, FxBuildHasher> = HashMap::default();
        for (index, launch) in after.launches.iter().enumerate() {
            claims.insert(after.graph.name_of(launch.node), number(index));
            for member in &after.graph.meta_of(launch.node).members {
                claims.entry(member).or_insert(number(index));
            }
        }
        let mut found = Self { hinted: HashMap::default(), free: HashMap::default(), all: HashMap::default() };
        for (index, member) in members.iter().enumerate().rev() {
            let Some(first) = member.pieces.first() else { continue };
            let start = (member.class, first.leaf, first.offset.clone());
            found.all.entry(start.clone()).or_default().push(number(index));
            match claims.get(before.graph.name_of(before.launches[member.launch].node)) {
                Some(&launch) => found.hinted.entry((launch, start)).or_default().push(number(index)),
                None => found.free.entry(start).or_default().push(number(index)),
            }
        }
        found
    }
}

fn members(context: &mut Context<'_>, before: &Walked<'_>) -> Vec<Member> {
    let mut members = Vec::with_capacity(before.launches.len());
    for (launch_index, launch) in before.launches.iter().enumerate() {
        for (part, &val) in launch.inputs.iter().enumerate() {
            let class = class(context, before, launch, val);
            let pieces = pieces(context, launch, val);
            members.push(Member { launch: launch_index, part, class, val, pieces, taken: false });
        }
    }
    members
}

/// Takes the longest member of `list` that stands at the cursor.
fn take(members: &mut [Member], list: &mut Vec<u32>, cursor: &mut Cursor<'_>) -> Option<usize> {
    while list.last().is_some_and(|&index| members[index as usize].taken) {
        list.pop();
    }
    // In order of launches, for equal ones.
    let mut best: Option<(usize, Cursor<'_>)> = None;
    for (at, &index) in list.iter().enumerate().rev() {
        if members[index as usize].taken {
            continue;
        }
        let mut moved = cursor.clone();
        if moved.pass(&members[index as usize].pieces).is_none() {
            continue;
        }
        let longer = best.as_ref().is_none_or(|(_, best)| moved.is_past(best));
        if longer {
            best = Some((at, moved));
        }
        // Equal members are common, longer ones with the same start are not: one look further will do.
        if list.len() - at > 8 {
            break;
        }
    }
    let (at, moved) = best?;
    *cursor = moved;
    let index = list.remove(at) as usize;
    members[index].taken = true;
    Some(index)
}

fn check_all(before: &Walked<'_>, members: &[Member], assignment: &mut Assignment) -> Result<(), Mismatch> {
    let mut taken: HashMap<(Class, Val), Vec<usize>, FxBuildHasher> = HashMap::default();
    for (index, member) in members.iter().enumerate().filter(|(_, member)| member.taken) {
        taken.entry((member.class, member.val)).or_default().push(index);
    }
    let lost = |member: &&Member| !member.taken && !before.launches[member.launch].trivial;
    for member in members.iter().filter(lost) {
        if let Some(twins) = taken.get(&(member.class, member.val)) {
            let places = twins
                .iter()
                .take(MOST_TWINS)
                .filter_map(|&twin| assignment.of[members[twin].launch][members[twin].part]);
            let places: Vec<(usize, usize)> = places.collect();
            assignment.of[member.launch][member.part] = places.first().copied();
            assignment.twins.insert(member.launch, places.iter().map(|place| place.0).collect());
        } else if !member.pieces.is_empty() {
            return Err(Mismatch::Dropped(member.launch));
        }
    }
    for (launch, places) in assignment.of.iter().enumerate() {
        let mut launches = places.iter().flatten().map(|place| place.0);
        let first = launches.next();
        if launches.any(|other| Some(other) != first) {
            return Err(Mismatch::Apart(launch));
        }
    }
    Ok(())
}

/// A place in what a launch sends.
#[derive(Clone)]
struct Cursor<'a> {
    stream: &'a [Piece],
    piece: usize,
    /// Bytes of the piece that are behind.
    done: Int,
}

impl Cursor<'_> {
    /// The leaf and offset of the next byte.
    fn here(&self) -> Option<(Leaf, Int)> {
        let piece = self.stream.get(self.piece)?;
        if self.done.is(0) {
            return Some((piece.leaf, piece.offset.clone()));
        }
        let mut first = None;
        let (from, to) = (&self.done, &piece.bytes);
        pattern::slice(&piece.inner, from, to, &mut |at, _, _| {
            first = first.take().or(Some(at));
            Some(())
        });
        Some((piece.leaf, piece.offset.add(&first?)?))
    }

    fn skip(&mut self) {
        self.piece += 1;
        self.done = ZERO;
    }

    /// Goes past these pieces, if they stand here.
    fn pass(&mut self, pieces: &[Piece]) -> Option<()> {
        for wanted in pieces {
            let piece = self.stream.get(self.piece)?;
            if piece.leaf != wanted.leaf || piece.outer != wanted.outer {
                return None;
            }
            if self.done.is(0) && piece.bytes == wanted.bytes {
                if piece.offset != wanted.offset || piece.inner != wanted.inner {
                    return None;
                }
                self.skip();
                continue;
            }
            let end = self.done.add(&wanted.bytes)?;
            if !end.at_most(&piece.bytes)? {
                return None;
            }
            let mut same = 0;
            pattern::slice(&piece.inner, &self.done, &end, &mut |at, inner, _| {
                let whole = piece.offset.add(&at)? == wanted.offset && inner == wanted.inner;
                same += if whole { 1 } else { 2 };
                Some(())
            })?;
            if same != 1 {
                return None;
            }
            if end == piece.bytes {
                self.skip();
            } else {
                self.done = end;
            }
        }
        Some(())
    }

    /// Whether it is further on in the same stream.
    fn is_past(&self, other: &Self) -> bool {
        self.piece > other.piece
            || (self.piece == other.piece && self.done != other.done && other.done.at_most(&self.done) == Some(true))
    }
}
