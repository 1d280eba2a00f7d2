//! Which groups of two graphs are one.
//!
//! A group that is a value of the graph is that value, whatever its node is called. Others are known by name; where a
//! graph has a name that the other has not, or other ranks under it, by their ranks: one group may be spelled in many
//! ways. A collective may be asked for more than its kind says (how it sums, who carries it out): what is not known to
//! change nothing makes a key of its own, so such collectives are equal only to those that are asked for the same.

use super::terms::{GroupKey, Val};
use crate::ir::{Arg, Args, GlobalRank, Graph, NodeId, ProcessGroup, Spacing};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// Arguments of collectives that are operands, are in the collective's kind, or say only how HLO spells it.
const SAYS_NOTHING: &[&str] =
    &["group_name", "out", "replica_groups", "pipelined", "constrain_layout", "split", "domain", "scheduling_group"];

/// How HLO counts the ranks of a group: known, where the members are.
const COUNTS: &[&str] = &["channel", "global_ids"];

type Members<'g> = Vec<&'g [GlobalRank]>;

/// Groups of both graphs.
#[derive(Default)]
pub(super) struct Groups<'g> {
    known: Vec<Known<'g>>,
    by_name: HashMap<&'g str, Vec<GroupKey>, FxBuildHasher>,
    by_members: HashMap<Members<'g>, Vec<GroupKey>, FxBuildHasher>,
    by_value: HashMap<Val, Vec<GroupKey>, FxBuildHasher>,
    by_request: HashMap<(GroupKey, String), GroupKey, FxBuildHasher>,
}

struct Known<'g> {
    name: &'g str,
    size: Option<u32>,
    /// In order of their first ranks; empty where they are not known.
    members: Members<'g>,
    /// What its collectives are asked for beside their kind.
    request: String,
    value: Option<Val>,
}

impl<'g> Groups<'g> {
    pub fn size(&self, key: GroupKey) -> Option<u32> {
        self.known[key.0 as usize].size
    }

    pub fn name(&self, key: GroupKey) -> &'g str {
        self.known[key.0 as usize].name
    }

    /// What its collectives are asked for beside their kind.
    pub fn request(&self, key: GroupKey) -> &str {
        &self.known[key.0 as usize].request
    }

    /// The value that it is, of a group that is one.
    pub fn value(&self, key: GroupKey) -> Option<Val> {
        self.known[key.0 as usize].value
    }

    /// The groups of a graph, by index.
    pub fn of(&mut self, graph: &'g Graph) -> Vec<GroupKey> {
        let members: Vec<Members<'g>> = graph.groups().iter().map(members).collect();
        let mut found: Vec<Option<GroupKey>> = vec![None; members.len()];
        for (index, group) in graph.groups().iter().enumerate() {
            let named = self.by_name.get(&*group.name).into_iter().flatten();
            found[index] = named.copied().find(|&key| self.agrees(key, group.size, &members[index]));
        }
        let mut taken: HashSet<GroupKey, FxBuildHasher> = found.iter().flatten().copied().collect();
        let each = graph.groups().iter().zip(members).zip(found);
        each.map(|((group, members), found)| {
            let spelled_otherwise = || self.by_members.get(&members)?.iter().copied().find(|key| !taken.contains(key));
            let key = match found.or_else(spelled_otherwise) {
                Some(key) => key,
                None => self.add(Known {
                    name: &group.name,
                    size: None,
                    members: Vec::new(),
                    request: String::new(),
                    value: None,
                }),
            };
            taken.insert(key);
            self.learn(key, &group.name, group.size, members);
            key
        })
        .collect()
    }

    /// Whether a group of this size and these ranks may be a known one. What is not stated agrees with all.
    fn agrees(&self, key: GroupKey, size: Option<u32>, members: &Members<'g>) -> bool {
        let known = &self.known[key.0 as usize];
        (known.size.is_none() || size.is_none() || known.size == size)
            && (known.members.is_empty() || members.is_empty() || known.members == *members)
    }

    fn add(&mut self, known: Known<'g>) -> GroupKey {
        self.known.push(known);
        GroupKey(u32::try_from(self.known.len() - 1).unwrap_or(u32::MAX))
    }

    fn learn(&mut self, key: GroupKey, name: &'g str, size: Option<u32>, members: Members<'g>) {
        let named = self.by_name.entry(name).or_default();
        if !named.contains(&key) {
            named.push(key);
        }
        let known = &mut self.known[key.0 as usize];
        known.size = known.size.or(size);
        if known.members.is_empty() && !members.is_empty() {
            self.by_members.entry(members.clone()).or_default().push(key);
            known.members = members;
        }
    }

    /// The group that a value is; `named` is what the graph calls it.
    pub fn of_value(&mut self, val: Val, named: GroupKey) -> GroupKey {
        let (name, size) = (self.name(named), self.size(named));
        let known = self.by_value.get(&val).into_iter().flatten().copied();
        let agrees = known.into_iter().find(|&key| self.agrees(key, size, &Vec::new()));
        let key = agrees.unwrap_or_else(|| {
            let key = self.add(Known { name, size, members: Vec::new(), request: String::new(), value: Some(val) });
            self.by_value.entry(val).or_default().push(key);
            key
        });
        let known = &mut self.known[key.0 as usize];
        known.size = known.size.or(size);
        key
    }

    /// The group with what a collective is asked for; `vals` are the values of its operands.
    pub fn with_request(&mut self, group: GroupKey, args: &Args, vals: &[Val]) -> GroupKey {
        let known = &self.known[group.0 as usize];
        let says = |key: &str| !(SAYS_NOTHING.contains(&key) || COUNTS.contains(&key) && !known.members.is_empty());
        if !args.keyword.iter().any(|(key, _)| says(key)) {
            return group;
        }
        let mut asked: Vec<(Box<str>, Arg)> = args.keyword.iter().filter(|(key, _)| says(key)).cloned().collect();
        asked.sort_by(|a, b| a.0.cmp(&b.0));
        let asked = Args { positional: Vec::new(), keyword: asked };
        let mut request = String::new();
        let value =
            |index: u32| vals.get(index as usize).map_or_else(|| "?".to_owned(), |val| format!("value {}", val.0));
        // Writing to a string cannot fail.
        let _ = asked.write(&mut request, Spacing::Tight, &value);
        if let Some(&known) = self.by_request.get(&(group, request.clone())) {
            return known;
        }
        let known = Known {
            name: known.name,
            size: known.size,
            members: known.members.clone(),
            request: request.clone(),
            value: known.value,
        };
        let key = self.add(known);
        self.by_request.insert((group, request), key);
        key
    }
}

fn members(group: &ProcessGroup) -> Members<'_> {
    let mut members: Members<'_> = group.members.iter().map(Vec::as_slice).collect();
    members.sort_unstable();
    members
}

/// The operand that is a collective's group, if it is a value of the graph.
pub(super) fn group_operand(graph: &Graph, id: NodeId) -> Option<usize> {
    match graph.args_of(id).get("group_name") {
        Some(Arg::Operand(index)) => Some(*index as usize),
        _ => None,
    }
}
