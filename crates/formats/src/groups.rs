//! The ranks of process groups, from a JSON file.
//!
//! Either `{"0": [[0, 1], [2, 3]], "dp": [0, 1, 2, 3]}`, or an object with such a one under `groups`. A group is one
//! list of global ranks, or the lists of all groups that bear the name, of which each rank is in one.

use bucketeer::ir::{GlobalRank, Graph};
use indexmap::IndexMap;
use serde_json::Value;

/// Groups and their ranks, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupsFile {
    groups: IndexMap<String, Vec<Vec<GlobalRank>>>,
}

/// Why a file does not say which ranks are in which group.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum GroupsError {
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("found {found}, expected an object such as {{\"0\": [[0, 1], [2, 3]]}}, alone or under `groups`")]
    Shape { found: String },
    #[error("group `{group}`: found {found}, expected a list of ranks or a list of such lists")]
    List { group: String, found: String },
    #[error("group `{group}`: found {found}, expected a rank: a whole number from 0 to 4294967295")]
    Rank { group: String, found: String },
    #[error("group `{group}` has no ranks")]
    Empty { group: String },
    #[error("group `{group}` holds rank {rank} twice")]
    RankTwice { group: String, rank: u32 },
    #[error("group `{group}`: one list has {first} ranks and another {other}; expected as many in each")]
    Lengths { group: String, first: usize, other: usize },
    #[error("group `{group}` has {found} ranks, but operators of graph `{graph}` state {expected}")]
    Size { group: String, graph: String, found: usize, expected: u32 },
}

impl GroupsFile {
    /// Reads the file's text.
    ///
    /// # Errors
    /// [`GroupsError`] at the first fault.
    pub fn parse(text: &[u8]) -> Result<Self, GroupsError> {
        let value: Value = serde_json::from_slice(text)?;
        let map = value.get("groups").unwrap_or(&value);
        let map = map.as_object().ok_or_else(|| GroupsError::Shape { found: describe(map) })?;
        if let Some((name, other)) = map.iter().find(|(_, lists)| !lists.is_array()) {
            let found = format!("`{name}`: {}", describe(other));
            return Err(GroupsError::Shape { found });
        }
        let groups = map.iter().map(|(name, lists)| Ok((name.clone(), read_lists(name, lists)?)));
        Ok(Self { groups: groups.collect::<Result<_, GroupsError>>()? })
    }

    /// The ranks of a group: one list, or one for each group of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[Vec<GlobalRank>]> {
        self.groups.get(name).map(Vec::as_slice)
    }

    /// Gives the groups of a graph their sizes and members; returns the names of those the file lacks.
    ///
    /// # Errors
    /// [`GroupsError::Size`] if operators state another size; the graph is unchanged then.
    pub fn apply(&self, graph: &mut Graph) -> Result<Vec<String>, GroupsError> {
        let mut missing = Vec::new();
        let mut changes = Vec::new();
        for (index, group) in graph.groups().iter().enumerate() {
            let Some(lists) = self.get(&group.name) else {
                missing.push(group.name.to_string());
                continue;
            };
            let found = lists.first().map_or(0, Vec::len);
            match group.size {
                Some(expected) if expected as usize != found => {
                    let (group, graph) = (group.name.to_string(), graph.name.clone());
                    return Err(GroupsError::Size { group, graph, found, expected });
                }
                _ => changes.push((bucketeer::ir::GroupId::from_index(index), found)),
            }
        }
        // Graphs that it calls name groups, too.
        let (mut bodies, mut first) = (graph.bodies.clone(), Ok(()));
        bodies.for_each_mut(&mut |body| match self.apply(body) {
            Ok(names) => missing.extend(names),
            Err(error) if first.is_ok() => first = Err(error),
            Err(_) => {}
        });
        first?;
        missing.sort_unstable();
        missing.dedup();
        for (id, size) in changes {
            let members = self.get(&graph.group(id).name).unwrap_or_default().to_vec();
            let group = graph.group_mut(id);
            group.size = u32::try_from(size).ok();
            group.members = members;
        }
        graph.bodies = bodies;
        Ok(missing)
    }
}

fn read_lists(group: &str, value: &Value) -> Result<Vec<Vec<GlobalRank>>, GroupsError> {
    let name = || group.to_owned();
    let wrong = |found: &Value| GroupsError::List { group: name(), found: describe(found) };
    let items = value.as_array().ok_or_else(|| wrong(value))?;
    let lists: Vec<Vec<GlobalRank>> = if items.iter().any(Value::is_array) {
        let list = |item: &Value| read_ranks(group, item.as_array().ok_or_else(|| wrong(item))?);
        items.iter().map(list).collect::<Result<_, _>>()?
    } else {
        vec![read_ranks(group, items)?]
    };
    let first = lists.first().map_or(0, Vec::len);
    if let Some(other) = lists.iter().map(Vec::len).find(|&length| length != first) {
        return Err(GroupsError::Lengths { group: name(), first, other });
    }
    if first == 0 {
        return Err(GroupsError::Empty { group: name() });
    }
    let mut seen = hashbrown::HashSet::with_hasher(rustc_hash::FxBuildHasher);
    match lists.iter().flatten().find(|rank| !seen.insert(**rank)) {
        Some(rank) => Err(GroupsError::RankTwice { group: name(), rank: rank.0 }),
        None => Ok(lists),
    }
}

fn read_ranks(group: &str, items: &[Value]) -> Result<Vec<GlobalRank>, GroupsError> {
    let rank = |item: &Value| {
        let number = item.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(GlobalRank).ok_or_else(|| GroupsError::Rank { group: group.to_owned(), found: describe(item) })
    };
    items.iter().map(rank).collect()
}

/// A value in a few words.
fn describe(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) if text.chars().count() > 40 => "a long string".to_owned(),
        other => format!("`{other}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        bucketeer::ir::text::parse("x = input f32[8]\ng = all_gather(x, G:2)\ns = all_reduce(x, sum, H:?)\n").unwrap()
    }

    #[test]
    fn ranks_are_given_to_the_groups_of_a_graph() {
        for text in [r#"{"G": [[0, 1], [2, 3]], "x": [7]}"#, r#"{"world": 4, "groups": {"G": [[0, 1], [2, 3]]}}"#] {
            let mut graph = graph();
            let missing = GroupsFile::parse(text.as_bytes()).unwrap().apply(&mut graph).unwrap();
            assert_eq!(missing, ["H"], "{text}");
            assert_eq!(graph.groups()[0].members, [[0, 1].map(GlobalRank), [2, 3].map(GlobalRank)]);
            assert!(bucketeer::ir::verify(&graph).is_ok());
        }
        let mut graph = graph();
        GroupsFile::parse(br#"{"H": [4, 5, 6]}"#).unwrap().apply(&mut graph).unwrap();
        assert_eq!(graph.groups()[1].size, Some(3));
    }

    #[test]
    fn faulty_files_name_the_group_and_the_fault() {
        for (text, part) in [
            ("", "not JSON"),
            ("{\"G\": [0, 1]", "not JSON"),
            ("[]", "found a list, expected an object"),
            (r#"{"groups": 3}"#, "found `3`, expected an object"),
            (r#"{"G": 3}"#, "found `G`: `3`, expected an object"),
            (r#"{"G": [0, [1]]}"#, "group `G`: found `0`"),
            (r#"{"G": [0, -1]}"#, "found `-1`, expected a rank"),
            (r#"{"G": [0, 1.5]}"#, "found `1.5`, expected a rank"),
            (r#"{"G": [4294967296]}"#, "found `4294967296`, expected a rank"),
            (r#"{"G": []}"#, "has no ranks"),
            (r#"{"G": [[]]}"#, "has no ranks"),
            (r#"{"G": [[0, 1], [1, 2]]}"#, "holds rank 1 twice"),
            (r#"{"G": [[0, 1], [2]]}"#, "one list has 2 ranks and another 1"),
        ] {
            let error = GroupsFile::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = GroupsFile::parse(br#"{"G": [0, 1, 2]}"#).unwrap().apply(&mut graph()).unwrap_err().to_string();
        assert!(error.contains("group `G` has 3 ranks") && error.contains("state 2"), "{error}");
    }
}
