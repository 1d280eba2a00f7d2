//! Which ranks there are, and who is in whose group.

use super::{EvalError, EvalOptions};
use bucketeer::ir::bodies;
use bucketeer::ir::{Graph, GroupId, Membership, ProcessGroup};
use indexmap::IndexSet;

/// The ranks of a run and the groups they form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Global ranks, ascending.
    pub ranks: Vec<u32>,
    /// By [`GroupId`]: the teams of that name, each as indexes into `ranks`, in the order of the group's ranks.
    pub teams: Vec<Vec<Vec<usize>>>,
}

fn used_groups(graph: &Graph) -> Vec<GroupId> {
    let mut used: Vec<GroupId> =
        graph.order().iter().filter_map(|&id| graph.collective(id)).map(|collective| collective.group).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// The lists of ranks that a name stands for: as the options say, else as the graph does.
fn members(group: &ProcessGroup, options: &EvalOptions) -> Result<Vec<Vec<u32>>, EvalError> {
    let fault = |reason: String| EvalError::Group { group: group.name.to_string(), reason };
    let Some(given) = options.groups.get(&*group.name) else {
        return Ok(group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect());
    };
    let mut all: Vec<u32> = given.iter().flatten().copied().collect();
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(fault(format!("rank {} is in it twice", pair[0])));
    }
    match given.iter().find(|list| list.is_empty() || group.size.is_some_and(|size| list.len() != size as usize)) {
        Some(list) => {
            let size = group.size.map_or_else(|| "at least 1".to_owned(), |size| size.to_string());
            Err(fault(format!("the groups file lists {} ranks, the graph says {size}", list.len())))
        }
        None => Ok(given.clone()),
    }
}

/// Most ranks of one run.
const MAX_RANKS: u32 = 4096;

/// The graphs with launches that a graph calls, each once.
fn called(graph: &Graph) -> impl Iterator<Item = &Graph> {
    let targets: IndexSet<&str> = graph.order().iter().filter_map(|&id| bodies::communicating(graph, id)).collect();
    targets.into_iter().filter_map(|target| graph.bodies.get(target))
}

/// The groups of a graph and of those that it calls.
#[derive(Default)]
struct Named<'g> {
    /// Whether the members of any are known.
    listed: bool,
    /// Names of the others.
    unlisted: IndexSet<&'g str>,
}

impl<'g> Named<'g> {
    fn add(&mut self, graph: &'g Graph, options: &EvalOptions) {
        for group in used_groups(graph).into_iter().map(|id| graph.group(id)) {
            if group.members.is_empty() && !options.groups.contains_key(&*group.name) {
                self.unlisted.insert(&group.name);
            } else {
                self.listed = true;
            }
        }
        called(graph).for_each(|body| self.add(body, options));
    }
}

impl World {
    /// The world that a graph needs.
    ///
    /// # Errors
    /// When the members of a group are not known, naming the group.
    pub fn of(graph: &Graph, options: &EvalOptions) -> Result<Self, EvalError> {
        let used = used_groups(graph);
        let mut lists: Vec<Vec<Vec<u32>>> = vec![Vec::new(); graph.groups().len()];
        for &id in &used {
            lists[id.index()] = members(graph.group(id), options)?;
        }
        let mut ranks: Vec<u32> = lists.iter().flatten().flatten().copied().collect();
        ranks.extend(0..options.ranks.unwrap_or(0).min(MAX_RANKS));
        let unlisted: Vec<GroupId> = used.iter().copied().filter(|id| lists[id.index()].is_empty()).collect();
        let mut named = Named::default();
        named.add(graph, options);
        let alone = ranks.is_empty() && !named.listed && named.unlisted.len() <= 1;
        for body in called(graph) {
            ranks.extend(Self::of(body, options)?.ranks);
        }
        for &id in &unlisted {
            let group = graph.group(id);
            lists[id.index()] = assumed(group, alone, options)?;
            ranks.extend(lists[id.index()].iter().flatten());
        }
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.is_empty() {
            ranks.push(0);
        }
        if ranks.len() > MAX_RANKS as usize {
            return Err(EvalError::TooManyRanks { ranks: ranks.len(), most: MAX_RANKS });
        }
        for id in unlisted {
            // A group of one needs no list: every rank is in its own.
            if graph.group(id).size == Some(1) {
                lists[id.index()] = ranks.iter().map(|&rank| vec![rank]).collect();
            }
        }
        let place = |rank: &u32| ranks.binary_search(rank).unwrap_or(0);
        let team = |list: &Vec<u32>| list.iter().map(place).collect();
        let teams = lists.iter().map(|lists| lists.iter().map(team).collect()).collect();
        Ok(Self { ranks, teams })
    }
}

impl World {
    /// The teams of a graph that graphs of this world call, on these of its ranks; `None` if it needs others.
    ///
    /// # Errors
    /// As of [`Self::of`].
    pub fn of_called(&self, body: &Graph, on: &[usize], options: &EvalOptions) -> Result<Option<Self>, EvalError> {
        let ranks: Vec<u32> = on.iter().map(|&place| self.ranks[place]).collect();
        let everyone = (0..).zip(&self.ranks).all(|(number, &rank)| number == rank);
        let count = everyone.then_some(self.ranks.len() as u32);
        let own = Self::of(body, &EvalOptions { ranks: options.ranks.or(count), ..options.clone() })?;
        let place = |&of: &usize| ranks.binary_search(&own.ranks[of]).ok();
        let teams: Option<Vec<Vec<Vec<usize>>>> =
            own.teams.iter().map(|teams| teams.iter().map(|team| team.iter().map(place).collect()).collect()).collect();
        Ok(teams.map(|teams| Self { ranks, teams }))
    }
}

/// The members of a group that nobody lists: the first ranks, when it is the only group there is.
fn assumed(group: &ProcessGroup, alone: bool, options: &EvalOptions) -> Result<Vec<Vec<u32>>, EvalError> {
    let fault = |reason: &str| EvalError::Group { group: group.name.to_string(), reason: reason.to_owned() };
    let too_many = || Err(fault("it has too many ranks to evaluate"));
    match Membership::of_unlisted(group.size, options.ranks) {
        Membership::Alone => Ok(Vec::new()),
        Membership::First(size) if size > MAX_RANKS => too_many(),
        Membership::First(size) if alone => Ok(vec![(0..size).collect()]),
        Membership::First(_) => Err(fault("its members are not known, and it is not the only group; list them")),
        Membership::World if group.size.is_some_and(|size| size > MAX_RANKS) => too_many(),
        Membership::World => Ok(vec![(0..options.ranks.unwrap_or(0).min(MAX_RANKS)).collect()]),
        Membership::Unknown => match options.ranks {
            None => Err(fault("its size is not known; list its members")),
            Some(_) if group.size.is_some_and(|size| size > MAX_RANKS) => too_many(),
            Some(world) => Err(fault(&format!("its members are not known, and not all {world} ranks; list them"))),
        },
    }
}
