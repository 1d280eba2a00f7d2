//! Who launches together.

use super::TogetherError;
use crate::ir::communication::{Launch, Launches};
use crate::ir::{GlobalRank, Graph, GroupId, Membership, NodeId, ProcessGroup};
use hashbrown::HashMap;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Ranks that launch together, in the order of the group's ranks.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ReplicaGroup {
    /// The group's name, with the ranks if other ranks use it by themselves.
    pub(super) name: String,
    pub(super) ranks: Vec<u32>,
}

/// Every replica group that launches anything, and each rank's.
pub(super) struct ReplicaGroups {
    pub(super) list: Vec<ReplicaGroup>,
    /// By rank and group, the replica group; `None` for groups in which the rank launches nothing.
    of: Vec<Vec<Option<usize>>>,
}

impl ReplicaGroups {
    pub(super) fn of(graphs: &[&Graph]) -> Result<Self, TogetherError> {
        let mut known: IndexMap<(Box<str>, Vec<u32>), (), FxBuildHasher> = IndexMap::default();
        let mut of = Vec::new();
        // Groups that are their members, as those of HLO are, are one however they are written.
        let mut listed: HashMap<&[Vec<GlobalRank>], &str, FxBuildHasher> = HashMap::default();
        for (rank, &graph) in graphs.iter().enumerate() {
            let mut replica_groups = vec![None; graph.groups().len()];
            for (group, first) in launched_in(graph, rank)? {
                let of = graph.group(group);
                let replica_group = replica_group(of, rank, graphs.len(), graph.name_of(first))?;
                let name = match of.is_listed() {
                    true => *listed.entry(&of.members).or_insert(&of.name),
                    false => &of.name,
                };
                let key = (name.into(), replica_group);
                replica_groups[group.index()] = Some(known.insert_full(key, ()).0);
            }
            of.push(replica_groups);
        }
        let alone = |name: &str| known.keys().filter(|(other, _)| &**other == name).count() == 1;
        let named = |(name, ranks): &(Box<str>, Vec<u32>)| {
            let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
            let name = if alone(name) { name.to_string() } else { format!("{name}{{{}}}", list.join(", ")) };
            ReplicaGroup { name, ranks: ranks.clone() }
        };
        Ok(Self { list: known.keys().map(named).collect(), of })
    }

    /// The replica group with which a rank launches in a group.
    pub(super) fn replica_group(&self, rank: usize, group: GroupId) -> Option<usize> {
        self.of[rank][group.index()]
    }
}

/// The groups that a graph launches in, each with its first launch.
fn launched_in(graph: &Graph, rank: usize) -> Result<Vec<(GroupId, NodeId)>, TogetherError> {
    let launches = Launches::of(graph);
    let mut first = vec![None; graph.groups().len()];
    for &id in graph.order() {
        match launches.get(id) {
            Some(Launch::In(group)) => {
                first[group.index()].get_or_insert(id);
            }
            Some(Launch::Unknown(communication)) => {
                let (node, kind) = (graph.name_of(id).to_owned(), communication.kind.to_owned());
                return Err(TogetherError::UnknownCommunication { rank, node, kind });
            }
            None => {}
        }
    }
    Ok(first.into_iter().enumerate().filter_map(|(at, id)| Some((GroupId::from_index(at), id?))).collect())
}

/// The list of the group that a rank is in.
fn replica_group(group: &ProcessGroup, rank: usize, ranks: usize, node: &str) -> Result<Vec<u32>, TogetherError> {
    let name = || group.name.to_string();
    if group.members.is_empty() {
        return match Membership::of_unlisted(group.size, Some(ranks as u32)) {
            Membership::Alone => Ok(vec![rank as u32]),
            Membership::World => Ok((0..ranks as u32).collect()),
            Membership::First(_) | Membership::Unknown => Err(TogetherError::UnknownMembers { rank, group: name() }),
        };
    }
    let list = group.members.iter().find(|list| list.iter().any(|member| member.0 as usize == rank));
    let Some(list) = list else {
        return Err(TogetherError::NotAMember { rank, node: node.to_owned(), group: name() });
    };
    match list.iter().find(|member| member.0 as usize >= ranks) {
        Some(member) => Err(TogetherError::NoGraphOfRank { group: name(), member: member.0, ranks }),
        None => Ok(list.iter().map(|member| member.0).collect()),
    }
}
