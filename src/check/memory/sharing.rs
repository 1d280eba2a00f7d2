//! Memory that may be shared, where nothing says whether it is.
//!
//! What an unknown operator makes may be the memory of what it was given. From then on these places are *joined*: a write
//! to one may be seen through all. A group of joined places keeps a log: which calls joined them, and each write, by the
//! place that it went to, relative to where that was joined, and the value. A place that others were written after, and not
//! it, holds `Later(value, log)`: what that value has become by then. Two graphs that log the same agree on all of these,
//! whatever the unknown operators do.
//!
//! A value without a place, of unknown type or of unknown view, can be joined, too: it is *loose*.

use super::{WrittenMemory, find};
use crate::check::flat::Piece;
use crate::check::int::Int;
use crate::check::layout::tensor_of;
use crate::check::terms::{Context, Event, Tensor, Term, Val, Value};
use crate::ir::NodeId;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What may be shared: a place or a loose value.
#[derive(Clone, Copy, Debug)]
struct Member {
    group: u32,
    /// Which it is, in both graphs.
    role: Val,
    /// What it held when it was last written or joined.
    value: Val,
    /// The version of the group then.
    since: u32,
}

/// A place in a storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    place: Val,
    member: Member,
    /// The log that the storage's content is of.
    shown: Val,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    log: Val,
    version: u32,
}

/// All groups of a walk.
#[derive(Default)]
pub(super) struct Sharing {
    groups: Vec<Group>,
    /// The group that each became part of, and the version that each is.
    group_parent: Vec<u32>,
    version_parent: Vec<u32>,
    loose: HashMap<NodeId, Member, FxBuildHasher>,
    /// How often each role was given: two places never have one.
    given: HashMap<Val, u32, FxBuildHasher>,
}

impl Sharing {
    fn group(&mut self, group: u32) -> Group {
        let root = find(&mut self.group_parent, group);
        self.groups[root as usize]
    }

    fn version(&mut self) -> u32 {
        self.version_parent.push(self.version_parent.len() as u32);
        self.version_parent.len() as u32 - 1
    }

    fn new_group(&mut self, log: Val) -> u32 {
        let version = self.version();
        self.groups.push(Group { log, version });
        self.group_parent.push(self.group_parent.len() as u32);
        self.group_parent.len() as u32 - 1
    }

    fn is_stale(&mut self, member: &Member) -> bool {
        let version = self.group(member.group).version;
        find(&mut self.version_parent, version) != find(&mut self.version_parent, member.since)
    }

    /// A role that no other place has.
    fn unique(&mut self, context: &mut Context<'_>, role: Val) -> Val {
        let count = self.given.entry(role).or_insert(0);
        *count += 1;
        let number = context.intern(Value::Int(Int::Known(i64::from(*count)).expr()));
        context.event(Event::Role, vec![role, number])
    }

    /// Makes groups one.
    fn merge(&mut self, context: &mut Context<'_>, key: Val, groups: &[u32]) -> u32 {
        let mut roots: Vec<u32> = Vec::new();
        for &group in groups {
            let root = find(&mut self.group_parent, group);
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let [first, rest @ ..] = roots.as_slice() else {
            let log = context.event(Event::Join, vec![key]);
            return self.new_group(log);
        };
        if rest.is_empty() {
            return *first;
        }
        let logs = roots.iter().map(|&root| self.groups[root as usize].log);
        let log = context.event(Event::Join, std::iter::once(key).chain(logs).collect());
        for &root in rest {
            let (a, b) = (self.groups[*first as usize].version, self.groups[root as usize].version);
            let (a, b) = (find(&mut self.version_parent, a), find(&mut self.version_parent, b));
            self.version_parent[b as usize] = a;
            self.group_parent[root as usize] = *first;
        }
        self.groups[*first as usize].log = log;
        *first
    }

    /// Logs a write to a member of a group.
    fn touch(&mut self, context: &mut Context<'_>, group: u32, what: Vec<Val>) {
        let version = self.version();
        let root = find(&mut self.group_parent, group) as usize;
        let what = std::iter::once(self.groups[root].log).chain(what).collect();
        self.groups[root] = Group { log: context.event(Event::Write, what), version };
    }
}

/// The first and the end of the bytes that a piece may be in, where they are known.
fn extent(piece: &Piece) -> Option<(i64, i64)> {
    let mut last = piece.offset.known()?;
    let first = last;
    for step in piece.outer.iter().chain(&piece.inner) {
        last += (step.count.known()? - 1) * step.stride.known()?;
    }
    Some((first, last + 1))
}

/// Whether two pieces may have bytes in common.
fn may_overlap(a: &Piece, b: &Piece) -> bool {
    a.leaf == b.leaf
        && match (extent(a), extent(b)) {
            (Some((a0, a1)), Some((b0, b1))) => a0 < b1 && b0 < a1,
            _ => {
                // Of symbolic sizes: one ends where the other begins, or before.
                let ends_before = |a: &Piece, b: &Piece| {
                    a.is_dense() && a.offset.add(&a.bytes).and_then(|end| end.at_most(&b.offset)) == Some(true)
                };
                !ends_before(a, b) && !ends_before(b, a)
            }
        }
}

impl WrittenMemory {
    /// Whether two places may have bytes in common.
    pub fn overlap(&self, context: &Context<'_>, a: Val, b: Val) -> bool {
        let (Some(a), Some(b)) = (context.tensor(a), context.tensor(b)) else { return true };
        a.flat.pieces.iter().any(|a| b.flat.pieces.iter().any(|b| may_overlap(a, b)))
    }

    /// Whether any of the first may have bytes in common with any of the second.
    pub fn any_overlap(&self, context: &Context<'_>, first: &[Option<Val>], second: &[Option<Val>]) -> bool {
        let storages = |places: &[Option<Val>]| -> Vec<(u32, Val)> {
            let places = places.iter().flatten();
            places.flat_map(|&place| self.storages_of(context, place).into_iter().map(move |at| (at, place))).collect()
        };
        let mut by_storage: HashMap<u32, Vec<Val>, FxBuildHasher> = HashMap::default();
        for (storage, place) in storages(first) {
            by_storage.entry(storage).or_default().push(place);
        }
        let beside = |storage: &u32| by_storage.get(storage).into_iter().flatten();
        storages(second)
            .iter()
            .any(|(storage, place)| beside(storage).any(|&other| self.overlap(context, other, *place)))
    }

    /// Which of these have bytes in common, or may, as values that are the same in both graphs.
    pub fn overlaps(&mut self, context: &mut Context<'_>, nodes: &[NodeId]) -> Option<Vec<Val>> {
        // Each place in a storage, by its first byte where that is known.
        let mut spans: Vec<(u32, i64, i64, usize, Val)> = Vec::new();
        let mut groups: HashMap<u32, (usize, Val), FxBuildHasher> = HashMap::default();
        let mut found: Vec<(usize, usize, Val, Val)> = Vec::new();
        for (index, &node) in nodes.iter().enumerate() {
            if let Some((group, role)) = self.group_of(context, node) {
                let (first, other) = *groups.entry(group).or_insert((index, role));
                if first != index {
                    found.push((first, index, other, role));
                }
            }
            let Some(place) = self.place(node) else { continue };
            for storage in self.storages_of(context, place) {
                let known = context.tensor(place).map(|tensor| tensor.flat.pieces.iter().map(extent).collect());
                let known: Option<Vec<(i64, i64)>> = known.flatten();
                let start = known.as_ref().and_then(|spans| spans.iter().map(|span| span.0).min());
                let end = known.as_ref().and_then(|spans| spans.iter().map(|span| span.1).max());
                spans.push((storage, start.unwrap_or(i64::MIN), end.unwrap_or(i64::MAX), index, place));
            }
        }
        spans.sort_unstable_by_key(|&(storage, start, _, index, _)| (storage, start, index));
        let mut before: Vec<(u32, i64, usize, Val)> = Vec::new();
        for (storage, start, end, index, place) in spans {
            // Of known extents, the furthest of those before is enough: what overlaps is then told in a chain.
            let known = start != i64::MIN && end != i64::MAX;
            before.retain(|&(of, until, ..)| of == storage && (!known || until > start));
            for &(_, _, first, from) in &before {
                if first != index && self.overlap(context, from, place) {
                    let relative = self.relative(context, place, from)?;
                    found.push((first, index, relative, relative));
                    if known {
                        break;
                    }
                }
            }
            before.push((storage, end, index, place));
        }
        found.sort_unstable();
        let mut events = Vec::with_capacity(found.len());
        for (first, second, a, b) in found {
            let number = |index: usize| Value::Int(Int::Known(index as i64).expr());
            let (first, second) = (context.intern(number(first)), context.intern(number(second)));
            events.push(context.event(Event::Overlap, vec![first, second, a, b]));
        }
        Some(events)
    }

    /// A place as seen from where another begins: the same in both graphs.
    pub fn relative(&self, context: &mut Context<'_>, place: Val, from: Val) -> Option<Val> {
        let start = tensor_of(context, from)?.flat.pieces.first()?.offset.clone();
        let tensor = tensor_of(context, place)?;
        let leaf = context.intern_leaf(Term::Storage(u32::MAX), None, None);
        let mut pieces = Vec::with_capacity(tensor.flat.pieces.len());
        for piece in tensor.flat.pieces.iter() {
            pieces.push(Piece { leaf, offset: piece.offset.sub(&start)?, ..piece.clone() });
        }
        let flat = crate::check::flat::Flat { pieces: pieces.into(), ..tensor.flat };
        Some(context.intern(Value::Tensor(Tensor { flat, ..tensor })))
    }

    /// Brings the joined places of a storage up to what was written to others.
    pub(super) fn refresh(&mut self, context: &mut Context<'_>, storage: u32) -> Option<()> {
        for index in 0..self.storages[storage as usize].joined.len() {
            let joined = self.storages[storage as usize].joined[index];
            let log = self.sharing.group(joined.member.group).log;
            if log == joined.shown {
                continue;
            }
            self.storages[storage as usize].joined[index].shown = log;
            if self.sharing.is_stale(&joined.member) {
                let value = context.later(joined.member.value, log);
                let value = tensor_of(context, value)?;
                self.put(context, joined.place, &value)?;
            }
        }
        Some(())
    }

    /// Puts a value where a place is, and logs it where that may be seen elsewhere. They have equally many bytes.
    pub fn write(&mut self, context: &mut Context<'_>, place: Val, value: &Tensor) -> Option<()> {
        let storages = self.storages_of(context, place);
        if storages.iter().all(|&storage| self.storages[storage as usize].joined.is_empty()) {
            return self.put(context, place, value);
        }
        for &storage in &storages {
            self.refresh(context, storage)?;
        }
        self.put(context, place, value)?;
        let value = context.intern(Value::Tensor(value.clone()));
        let mut touched = Vec::new();
        for &storage in &storages {
            for index in 0..self.storages[storage as usize].joined.len() {
                let joined = self.storages[storage as usize].joined[index];
                if self.overlap(context, place, joined.place) {
                    let relative = self.relative(context, place, joined.place)?;
                    self.sharing.touch(context, joined.member.group, vec![joined.member.role, relative, value]);
                    touched.push((storage, index));
                }
            }
        }
        for (storage, index) in touched {
            let joined = self.storages[storage as usize].joined[index];
            let Group { log, version } = self.sharing.group(joined.member.group);
            self.storages[storage as usize].joined[index].shown = log;
            let value = self.read(context, joined.place)?;
            let joined = &mut self.storages[storage as usize].joined[index];
            joined.member = Member { value, since: version, ..joined.member };
        }
        Some(())
    }

    /// The value of a loose node now.
    pub fn loose(&mut self, context: &mut Context<'_>, id: NodeId) -> Option<Val> {
        let member = *self.sharing.loose.get(&id)?;
        let log = self.sharing.group(member.group).log;
        Some(if self.sharing.is_stale(&member) { context.later(member.value, log) } else { member.value })
    }

    pub fn is_loose(&self, id: NodeId) -> bool {
        self.sharing.loose.contains_key(&id)
    }

    /// Writes to a loose node.
    pub fn write_loose(&mut self, context: &mut Context<'_>, id: NodeId, value: Val) {
        let Some(member) = self.sharing.loose.get(&id).copied() else { return };
        self.sharing.touch(context, member.group, vec![member.role, value]);
        let since = self.sharing.group(member.group).version;
        self.sharing.loose.insert(id, Member { value, since, ..member });
    }

    /// Gives a node a value in memory that is not followed: of a group, or of a new one.
    pub fn set_loose(&mut self, context: &mut Context<'_>, id: NodeId, value: Val, role: Val, group: Option<u32>) {
        self.places.remove(&id);
        let role = self.sharing.unique(context, role);
        let group = match group {
            Some(group) => group,
            None => self.sharing.merge(context, role, &[]),
        };
        let since = self.sharing.group(group).version;
        self.sharing.loose.insert(id, Member { group, role, value, since });
    }

    /// The group of a node, if its memory may be shared.
    pub fn group_of(&mut self, context: &Context<'_>, id: NodeId) -> Option<(u32, Val)> {
        if let Some(member) = self.sharing.loose.get(&id).copied() {
            return Some((find(&mut self.sharing.group_parent, member.group), member.role));
        }
        let place = self.place(id)?;
        for storage in self.storages_of(context, place) {
            for index in 0..self.storages[storage as usize].joined.len() {
                let joined = self.storages[storage as usize].joined[index];
                if self.overlap(context, joined.place, place) {
                    return Some((find(&mut self.sharing.group_parent, joined.member.group), joined.member.role));
                }
            }
        }
        None
    }

    /// Joins the memory of nodes: a call, `key`, may have made one of it.
    pub fn join(&mut self, context: &mut Context<'_>, key: Val, nodes: &[NodeId]) -> Option<u32> {
        let mut groups = Vec::new();
        for &node in nodes {
            groups.extend(self.group_of(context, node).map(|(group, _)| group));
        }
        let group = self.sharing.merge(context, key, &groups);
        for (index, &node) in nodes.iter().enumerate() {
            if let Some(place) = self.place(node) {
                let number = context.intern(Value::Int(Int::Known(index as i64).expr()));
                let role = context.event(Event::Role, vec![key, number]);
                self.join_place(context, place, role, group)?;
            }
        }
        Some(group)
    }

    /// Joins a place to a group.
    pub fn join_place(&mut self, context: &mut Context<'_>, place: Val, role: Val, group: u32) -> Option<()> {
        if let Value::Tuple(parts) = context.value(place).clone() {
            return parts.into_iter().try_for_each(|part| self.join_place(context, part, role, group));
        }
        let value = self.read(context, place)?;
        for storage in self.storages_of(context, place) {
            let joined = &self.storages[storage as usize].joined;
            if joined.iter().any(|joined| joined.place == place) {
                continue;
            }
            let role = self.sharing.unique(context, role);
            let Group { log, version } = self.sharing.group(group);
            let member = Member { group, role, value, since: version };
            self.storages[storage as usize].joined.push(Joined { place, member, shown: log });
        }
        Some(())
    }
}
