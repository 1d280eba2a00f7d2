//! Whether ranks agree: each replica group launches one sequence, and no launches wait for one another in a ring.
//!
//! **Sequences.** Per replica group, all ranks launch the same collectives: kind, reduction, root, dimension, variant, and dtype
//! and element count of each operand. The first difference of a replica group is reported. What an all-to-all sends may differ
//! in size; instead what each rank sends to another is held against what that one takes from it, where both are known.
//! Calls that communicate and are not collectives (an exchange of DTensor, an all-reduce of HLO with a reducer of its own)
//! are launches, too, and are compared by operator and arguments.
//!
//! **Rings.** All ranks' launches are played in program order. A launch blocks its rank until every rank of its replica group has
//! arrived, as on one ordered stream; what cannot go on then is reported as a ring of ranks, replica groups and nodes. This is
//! stricter than any one machine: a ring that is found may run where streams are many, and hang where they are not.
//!
//! One graph for all ranks launches one order everywhere, so only membership is checked. Where it is not known who takes
//! part in a call that may communicate (send, receive, a group that no argument names), several graphs are never said to
//! agree: the check ends without an answer, unless something else is wrong. Time is linear in the launches of all ranks
//! and in the tables of what all-to-alls exchange.

mod splits;

use crate::ir::communication::{self, Launch as Communicates, Launches};
use crate::ir::{Collective, CollectiveKind, Graph, GroupId, Membership, NodeId, ProcessGroup};
use hashbrown::HashMap;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt;

/// What is known of groups beside the graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankOptions {
    /// Members of groups, by name: lists of global ranks. They go before what the graphs say.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
}

/// Why ranks cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// There is nothing to check.
    #[error("no graph was given")]
    NoGraph,
    /// Nobody says who is in a group.
    #[error("group `{group}`: its members are not known; list them")]
    UnknownMembers {
        /// The group.
        group: String,
    },
    /// A group has more ranks than are listed one by one.
    #[error("group `{group}`: it has {ranks} ranks; at most {MOST_RANKS} can be compared")]
    TooManyRanks {
        /// The group.
        group: String,
        /// Its size.
        ranks: u32,
    },
    /// A group has ranks that have no graph.
    #[error("group `{group}` has rank {rank}, but there are graphs for {graphs} ranks")]
    NoGraphOfRank {
        /// The group.
        group: String,
        /// The rank.
        rank: u32,
        /// How many graphs there are.
        graphs: usize,
    },
    /// A rank is in a group twice.
    #[error("group `{group}` has rank {rank} twice")]
    RankTwice {
        /// The group.
        group: String,
        /// The rank.
        rank: u32,
    },
    /// A call may communicate, and nothing says with whom.
    #[error(
        "rank {rank}: `{node}` ({kind}) may communicate with any rank, so whether the ranks agree cannot be decided; all \
         else agrees"
    )]
    Undecided {
        /// The rank.
        rank: u32,
        /// The call.
        node: String,
        /// What it is.
        kind: String,
    },
    /// Two ranks' calls run bodies whose texts differ, such as reducers of their own.
    #[error(
        "rank {rank}: `{node}` runs a body that is written otherwise than that of `{other}` on rank {other_rank}; bodies are \
         compared by their texts, so whether the ranks agree cannot be decided"
    )]
    Bodies {
        /// The rank.
        rank: u32,
        /// Its call.
        node: String,
        /// The rank that it is held against.
        other_rank: u32,
        /// That one's call.
        other: String,
    },
    /// Two ranks' graphs say different things of a group.
    #[error("group `{group}`: rank {rank}'s graph lists other members or another size than those before it")]
    Disagree {
        /// The group.
        group: String,
        /// The later rank.
        rank: u32,
    },
}

/// One launch as a rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank.
    pub rank: u32,
    /// The node that launches; `None` where the rank's sequence has ended.
    pub node: Option<String>,
    /// What is launched, as far as it differs from the other.
    pub what: String,
}

/// One rank of a ring: it is at `node`, and waits for the next rank of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: u32,
    /// The launch it blocks in.
    pub node: String,
    /// The replica group, as `W{0, 1}`.
    pub replica_group: String,
    /// The member that has not arrived.
    pub missing: u32,
}

/// How ranks disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankFault {
    /// Two ranks of a replica group launch different things.
    Mismatch {
        /// The replica group.
        replica_group: String,
        /// Which launch of the replica group.
        position: usize,
        /// The replica group's first rank.
        left: Launch,
        /// The first rank that differs.
        right: Launch,
    },
    /// Ranks wait for one another.
    Ring(Vec<Stuck>),
    /// A rank launches in a group it is not in.
    NotAMember {
        /// The rank.
        rank: u32,
        /// The launch.
        node: String,
        /// The group.
        group: String,
    },
}

impl RankFault {
    /// What two graphs' faults are compared by: kind and place.
    fn key(&self) -> String {
        match self {
            Self::Mismatch { replica_group, .. } => format!("mismatch {replica_group}"),
            Self::Ring(ring) => {
                let mut replica_groups: Vec<&str> = ring.iter().map(|stuck| &*stuck.replica_group).collect();
                replica_groups.sort_unstable();
                format!("ring {}", replica_groups.join(" "))
            }
            Self::NotAMember { rank, group, .. } => format!("member {rank} {group}"),
        }
    }
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { replica_group, position, left, right } => {
                let (a, b) = (left.rank, right.rank);
                write!(f, "{replica_group} #{position}: rank {a} {}, rank {b} {}", left.what, right.what)?;
                let node = |launch: &Launch| launch.node.as_ref().map_or("nothing".into(), |node| format!("`{node}`"));
                write!(f, " (rank {a}: {}, rank {b}: {})", node(left), node(right))
            }
            Self::Ring(ring) => {
                f.write_str("deadlock: ")?;
                for (nth, stuck) in ring.iter().enumerate() {
                    let Stuck { rank, node, replica_group, missing } = stuck;
                    let then = if nth > 0 { "; " } else { "" };
                    write!(f, "{then}rank {rank} is in `{node}` ({replica_group}) and waits for rank {missing}")?;
                }
                Ok(())
            }
            Self::NotAMember { rank, node, group } => {
                write!(f, "rank {rank} launches `{node}` in group `{group}`, but is in none of its replica_groups")
            }
        }
    }
}

/// Checks one graph for all ranks, or one graph for each rank from 0.
///
/// # Errors
/// [`RanksError`] when it is not known who is in a group, or who takes part in a call.
pub fn check_ranks<G: Borrow<Graph>>(graphs: &[G], options: &RankOptions) -> Result<Vec<RankFault>, RanksError> {
    let graphs: &[&Graph] = &graphs.iter().map(Borrow::borrow).collect::<Vec<_>>();
    let mut game = Game::new(graphs, options)?;
    if let [graph] = graphs
        && game.shared
    {
        return Ok(game.membership(graph));
    }
    let unknown = game.read(graphs);
    let unknown = game.compare(graphs).or(unknown);
    // A replica group whose ranks launch different things does not meet, so rings say nothing more.
    if game.faults.is_empty() {
        game.play(graphs);
    }
    match unknown {
        Some(unknown) if game.faults.is_empty() => Err(unknown),
        _ => Ok(game.faults),
    }
}

/// What the graphs of all ranks do wrong after a rewrite that they did not before: where each rank was rewritten by
/// itself, its launches may have changed their order in another way than its peers'.
///
/// # Errors
/// [`RanksError`], as in [`check_ranks`].
pub fn rewrite_risk<G: Borrow<Graph>>(
    before: &[G],
    after: &[G],
    options: &RankOptions,
) -> Result<Vec<RankFault>, RanksError> {
    let old: Vec<String> = check_ranks(before, options)?.iter().map(RankFault::key).collect();
    Ok(check_ranks(after, options)?.into_iter().filter(|fault| !old.contains(&fault.key())).collect())
}

/// Ranks that launch together, in the order of the group's ranks.
struct ReplicaGroup {
    name: String,
    ranks: Vec<u32>,
}

/// A launch: the node, and its replica group by index.
#[derive(Clone, Copy)]
struct GroupLaunch {
    node: NodeId,
    replica_group: usize,
}

struct Game {
    replica_groups: Vec<ReplicaGroup>,
    /// Names of groups that are their members, as those of HLO are, by the first name of the same members.
    spelled: HashMap<Box<str>, Box<str>, FxBuildHasher>,
    /// By rank, the replica group of each group name and stated size.
    team_of: HashMap<(Box<str>, u32), usize, FxBuildHasher>,
    /// Launches of each rank, in order.
    steps: Vec<Vec<GroupLaunch>>,
    /// Whether the one graph is every rank's.
    shared: bool,
    faults: Vec<RankFault>,
}

fn used(graph: &Graph) -> Vec<GroupId> {
    let (mut seen, launches) = (vec![false; graph.groups().len()], Launches::of(graph));
    for launch in graph.order().iter().filter_map(|&id| launches.get(id)) {
        if let Communicates::In(group) = launch {
            seen[group.index()] = true;
        }
    }
    (0..seen.len()).filter(|&at| seen[at]).map(GroupId::from_index).collect()
}

/// Groups whose members are not given are listed up to this size.
const MOST_RANKS: u32 = 1 << 20;

/// The replica groups that a name stands for.
fn listed(group: &ProcessGroup, options: &RankOptions, ranks: Option<u32>) -> Result<Vec<Vec<u32>>, RanksError> {
    if let Some(given) = options.groups.get(&*group.name) {
        return Ok(given.clone());
    }
    if !group.members.is_empty() {
        return Ok(group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect());
    }
    match Membership::of_unlisted(group.size, ranks) {
        Membership::Alone => Ok((0..ranks.unwrap_or(1)).map(|rank| vec![rank]).collect()),
        Membership::World => Ok(vec![(0..ranks.unwrap_or(0)).collect()]),
        Membership::First(size) if size > MOST_RANKS => {
            Err(RanksError::TooManyRanks { group: group.name.to_string(), ranks: size })
        }
        Membership::First(size) => Ok(vec![(0..size).collect()]),
        Membership::Unknown => Err(RanksError::UnknownMembers { group: group.name.to_string() }),
    }
}

impl Game {
    fn new(graphs: &[&Graph], options: &RankOptions) -> Result<Self, RanksError> {
        let shared = graphs.len() == 1;
        if graphs.is_empty() {
            return Err(RanksError::NoGraph);
        }
        let count = (!shared).then_some(graphs.len() as u32);
        let mut lists: IndexMap<Box<str>, Vec<Vec<u32>>, FxBuildHasher> = IndexMap::default();
        let mut spelled: HashMap<Box<str>, Box<str>, FxBuildHasher> = HashMap::default();
        let mut by_members: HashMap<Vec<Vec<u32>>, Box<str>, FxBuildHasher> = HashMap::default();
        for (rank, graph) in graphs.iter().enumerate() {
            let groups = used(graph);
            for &id in &groups {
                let group = graph.group(id);
                // One graph and one group that lists nobody: the first ranks. With more groups, that is a guess.
                let unlisted = group.members.is_empty() && !options.groups.contains_key(&*group.name);
                if unlisted && shared && groups.len() > 1 {
                    return Err(RanksError::UnknownMembers { group: group.name.to_string() });
                }
                let list = listed(group, options, count)?;
                if group.is_listed() {
                    let first = by_members.entry(list.clone()).or_insert_with(|| group.name.clone());
                    if *first != group.name {
                        spelled.insert(group.name.clone(), first.clone());
                        continue;
                    }
                }
                match lists.get(&group.name) {
                    Some(known) if *known != list => {
                        return Err(RanksError::Disagree { group: group.name.to_string(), rank: rank as u32 });
                    }
                    Some(_) => {}
                    None => {
                        lists.insert(group.name.clone(), list);
                    }
                }
            }
        }
        let (replica_groups, team_of, steps, faults) = (Vec::new(), HashMap::default(), Vec::new(), Vec::new());
        let mut game = Self { replica_groups, spelled, team_of, steps, shared, faults };
        for (name, list) in lists {
            game.add_teams(&name, list, count)?;
        }
        Ok(game)
    }

    /// The replica group of a rank in a group.
    fn replica_group(&self, group: &ProcessGroup, rank: u32) -> Option<usize> {
        let name = self.spelled.get(&group.name).unwrap_or(&group.name);
        self.team_of.get(&(name.clone(), rank)).copied()
    }

    fn add_teams(&mut self, group: &str, list: Vec<Vec<u32>>, count: Option<u32>) -> Result<(), RanksError> {
        let alone = list.len() == 1;
        for ranks in list {
            let at = self.replica_groups.len();
            for &rank in &ranks {
                if let Some(count) = count.filter(|&count| rank >= count) {
                    return Err(RanksError::NoGraphOfRank { group: group.to_owned(), rank, graphs: count as usize });
                }
                if self.team_of.insert((group.into(), rank), at).is_some() {
                    return Err(RanksError::RankTwice { group: group.to_owned(), rank });
                }
            }
            let name = if alone { group.to_owned() } else { format!("{group}{{{}}}", list_of(&ranks)) };
            self.replica_groups.push(ReplicaGroup { name, ranks });
        }
        Ok(())
    }

    /// For one graph: every rank must be in a replica group of every group that it launches in.
    fn membership(self, graph: &Graph) -> Vec<RankFault> {
        let mut ranks: Vec<u32> =
            self.replica_groups.iter().flat_map(|replica_group| replica_group.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let mut faults = Vec::new();
        let (mut seen, launches) = (vec![false; graph.groups().len()], Launches::of(graph));
        for &id in graph.order() {
            let Some(Communicates::In(group)) = launches.get(id) else { continue };
            if std::mem::replace(&mut seen[group.index()], true) {
                continue;
            }
            let group = graph.group(group);
            let outside = ranks.iter().find(|&&rank| self.replica_group(group, rank).is_none());
            faults.extend(outside.map(|&rank| RankFault::NotAMember {
                rank,
                node: graph.name_of(id).to_owned(),
                group: group.name.to_string(),
            }));
        }
        faults
    }

    /// Lists each rank's launches. Gives the first call of which it is not known who takes part.
    fn read(&mut self, graphs: &[&Graph]) -> Option<RanksError> {
        let mut unknown = None;
        for (rank, graph) in graphs.iter().enumerate() {
            // Group to replica group, once a graph.
            let replica_groups: Vec<Option<usize>> =
                graph.groups().iter().map(|group| self.replica_group(group, rank as u32)).collect();
            let (mut steps, launches) = (Vec::new(), Launches::of(graph));
            for &node in graph.order() {
                let (rank, name) = (rank as u32, || graph.name_of(node).to_owned());
                match launches.get(node) {
                    None => {}
                    Some(Communicates::Unknown(found)) => {
                        let undecided = || RanksError::Undecided { rank, node: name(), kind: found.kind.to_owned() };
                        unknown.get_or_insert_with(undecided);
                    }
                    Some(Communicates::In(group)) => match replica_groups[group.index()] {
                        Some(replica_group) => steps.push(GroupLaunch { node, replica_group }),
                        None => {
                            let group = graph.group(group).name.to_string();
                            self.faults.push(RankFault::NotAMember { rank, node: name(), group });
                        }
                    },
                }
            }
            self.steps.push(steps);
        }
        unknown
    }

    /// Holds each replica group's sequences against its first rank's. Gives the first two calls of which only the bodies differ.
    fn compare(&mut self, graphs: &[&Graph]) -> Option<RanksError> {
        let mut unknown = None;
        let mut sequences: Vec<Vec<Vec<NodeId>>> =
            self.replica_groups.iter().map(|replica_group| vec![Vec::new(); replica_group.ranks.len()]).collect();
        let mut places: HashMap<(usize, u32), usize, FxBuildHasher> = HashMap::default();
        for (at, replica_group) in self.replica_groups.iter().enumerate() {
            places.extend(replica_group.ranks.iter().enumerate().map(|(place, &rank)| ((at, rank), place)));
        }
        for (rank, steps) in self.steps.iter().enumerate() {
            for step in steps {
                if let Some(&place) = places.get(&(step.replica_group, rank as u32)) {
                    sequences[step.replica_group][place].push(step.node);
                }
            }
        }
        for (replica_group, sequences) in self.replica_groups.iter().zip(&sequences) {
            let fault = first_mismatch(graphs, replica_group, sequences);
            let fault = fault.or_else(|| splits::first_mismatch(graphs, replica_group, sequences));
            if fault.is_none() {
                unknown = unknown.or_else(|| other_bodies(graphs, replica_group, sequences));
            }
            self.faults.extend(fault);
        }
        unknown
    }

    /// Plays all launches. What is left when nothing can go on is a ring.
    fn play(&mut self, graphs: &[&Graph]) {
        let mut at = vec![0usize; self.steps.len()];
        let mut arrived: Vec<Vec<usize>> = vec![Vec::new(); self.replica_groups.len()];
        let mut ready: VecDeque<usize> = (0..self.steps.len()).collect();
        while let Some(rank) = ready.pop_front() {
            let Some(step) = self.steps[rank].get(at[rank]) else { continue };
            arrived[step.replica_group].push(rank);
            if arrived[step.replica_group].len() == self.replica_groups[step.replica_group].ranks.len() {
                for rank in arrived[step.replica_group].drain(..) {
                    at[rank] += 1;
                    ready.push_back(rank);
                }
            }
        }
        let Some(start) = (0..self.steps.len()).find(|&rank| at[rank] < self.steps[rank].len()) else { return };
        let fault = RankFault::Ring(self.ring(graphs, &at, &arrived, start));
        self.faults.push(fault);
    }

    /// Follows from a stuck rank to one it waits for, until a rank comes again. All sequences are equal, so whoever is
    /// waited for is stuck, too.
    fn ring(&self, graphs: &[&Graph], at: &[usize], arrived: &[Vec<usize>], start: usize) -> Vec<Stuck> {
        let mut here = vec![false; at.len()];
        let mut path: Vec<(usize, Stuck)> = Vec::new();
        let mut rank = start;
        while let Some(step) = self.steps[rank].get(at[rank]) {
            if let Some(from) = path.iter().position(|(known, _)| *known == rank) {
                return path.drain(from..).map(|(_, stuck)| stuck).collect();
            }
            let replica_group = &self.replica_groups[step.replica_group];
            arrived[step.replica_group].iter().for_each(|&rank| here[rank] = true);
            let missing = replica_group.ranks.iter().copied().find(|&rank| !here[rank as usize]);
            arrived[step.replica_group].iter().for_each(|&rank| here[rank] = false);
            let Some(missing) = missing else { break };
            let node = graphs[rank].name_of(step.node).to_owned();
            path.push((rank, Stuck { rank: rank as u32, node, replica_group: replica_group.name.clone(), missing }));
            rank = missing as usize;
        }
        path.into_iter().map(|(_, stuck)| stuck).collect()
    }
}

fn list_of(ranks: &[u32]) -> String {
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    ranks.join(", ")
}

/// What ranks must agree on: how, and how much.
fn describe(graph: &Graph, id: NodeId, collective: Collective) -> (String, String) {
    let one = |&input: &NodeId| match graph.tensor(input) {
        Some(tensor) if collective.kind == CollectiveKind::AllToAll => tensor.dtype.short_name().to_owned(),
        _ => communication::amount(graph, input),
    };
    let much: Vec<String> = graph.collective_inputs(id).iter().map(one).collect();
    let mut how = collective.described();
    if let Some(reducer) = graph.args_of(id).get("reducer").and_then(crate::ir::Arg::as_str) {
        how += &format!(" in {reducer}");
    }
    (how, much.join(", "))
}

/// A description without what stands for the texts of bodies.
fn without_digests(text: &str) -> String {
    let mut parts = text.split('#');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "#" + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
}

/// The first call of a replica group that is another rank's but for the text of a body.
fn other_bodies(graphs: &[&Graph], replica_group: &ReplicaGroup, sequences: &[Vec<NodeId>]) -> Option<RanksError> {
    let (&other_rank, first) = (replica_group.ranks.first()?, sequences.first()?);
    let of = |rank: u32, id: NodeId| communication::describe(graphs[rank as usize], id);
    let name = |rank: u32, id: NodeId| graphs[rank as usize].name_of(id).to_owned();
    let calls = |id: NodeId| graphs[other_rank as usize].collective(id).is_none();
    let known: Vec<(usize, String)> =
        first.iter().enumerate().filter(|&(_, &id)| calls(id)).map(|(at, &id)| (at, of(other_rank, id))).collect();
    sequences.iter().zip(&replica_group.ranks).skip(1).find_map(|(sequence, &rank)| {
        let (at, _) = known.iter().find(|(at, known)| of(rank, sequence[*at]) != *known)?;
        let (node, other) = (name(rank, sequence[*at]), name(other_rank, first[*at]));
        Some(RanksError::Bodies { rank, node, other_rank, other })
    })
}

fn first_mismatch(graphs: &[&Graph], replica_group: &ReplicaGroup, sequences: &[Vec<NodeId>]) -> Option<RankFault> {
    let (&first_rank, first) = (replica_group.ranks.first()?, sequences.first()?);
    let say = |rank: u32, id: NodeId| {
        let graph = graphs[rank as usize];
        let call = || (without_digests(&communication::describe(graph, id)), String::new());
        graph.collective(id).map_or_else(call, |collective| describe(graph, id, collective))
    };
    let ended = || ("no launch".to_owned(), String::new());
    let mut found: Option<(usize, usize)> = None;
    let known: Vec<(String, String)> = first.iter().map(|&id| say(first_rank, id)).collect();
    for (place, sequence) in sequences.iter().enumerate().skip(1) {
        let rank = replica_group.ranks[place];
        let until = found.map_or(usize::MAX, |(position, _)| position);
        let differs = sequence.iter().zip(&known).take(until).position(|(&id, known)| say(rank, id) != *known);
        let shorter = sequence.len().min(known.len());
        let position = differs.or((sequence.len() != known.len() && shorter < until).then_some(shorter));
        found = position.map(|position| (position, place)).or(found);
    }
    let (position, place) = found?;
    let launch = |place: usize| {
        let (rank, id) = (replica_group.ranks[place], sequences[place].get(position).copied());
        let node = id.map(|id| graphs[rank as usize].name_of(id).to_owned());
        (rank, node, id.map_or_else(ended, |id| say(rank, id)))
    };
    let ((a, a_node, (a_how, a_much)), (b, b_node, (b_how, b_much))) = (launch(0), launch(place));
    let same = a_how == b_how;
    let what = |how: &str, much: &str| if same { much.to_owned() } else { format!("{how} {much}").trim().to_owned() };
    Some(RankFault::Mismatch {
        replica_group: replica_group.name.clone(),
        position,
        left: Launch { rank: a, node: a_node, what: what(&a_how, &a_much) },
        right: Launch { rank: b, node: b_node, what: what(&b_how, &b_much) },
    })
}
