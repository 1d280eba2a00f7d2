//! Which ranks lie on which node, and the groups that are measured.

use anyhow::{Result, bail};
use bucketeer::ir::GlobalRank;
use bucketeer::passes::schedule::profile::Class;

/// Where a rank is, as far as its launcher says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankLocation {
    /// Which of the ranks on its node it is.
    pub local_rank: Option<u32>,
    /// Number of ranks on its node.
    pub per_node: Option<u32>,
}

/// How many ranks in a row are on a node, by what all ranks say in order; `None` if no launcher says it of all.
pub fn per_node(places: &[RankLocation]) -> Result<Option<u32>> {
    let Some(all) = places.iter().map(|place| place.per_node).collect::<Option<Vec<u32>>>() else { return Ok(None) };
    let expected = all.first().copied().unwrap_or(1).max(1);
    for (rank, place) in (0..).zip(places) {
        let found = (place.per_node.unwrap_or(expected), place.local_rank.unwrap_or(rank % expected));
        if found != (expected, rank % expected) || !places.len().is_multiple_of(expected as usize) {
            bail!(
                "rank {rank} is local rank {} of {} on its node, expected {} of {expected}: a profile needs equally many ranks on \
                 each node, numbered in a row; start them so (torchrun and srun do, mpirun with --map-by ppr:{expected}:node)",
                found.1,
                found.0,
                rank % expected
            );
        }
    }
    Ok(Some(expected))
}

/// A group that a rank measures in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    pub name: &'static str,
    pub class: Class,
    pub ranks: Vec<GlobalRank>,
}

/// The groups of a rank, the same classes in the same order on all ranks.
pub fn groups(ranks: u32, per_node: u32, own: u32) -> Vec<Members> {
    let nodes = ranks / per_node;
    let members = |name, ranks: Vec<u32>, nodes| Members {
        name,
        class: Class { ranks: ranks.len() as u32, nodes },
        ranks: ranks.into_iter().map(GlobalRank).collect(),
    };
    let mut groups = vec![members("all ranks", (0..ranks).collect(), nodes)];
    if nodes > 1 && per_node > 1 {
        let first = own - own % per_node;
        groups.push(members("a node", (first..first + per_node).collect(), 1));
        groups.push(members("across nodes", (own % per_node..ranks).step_by(per_node as usize).collect(), nodes));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(places: &[(u32, u32)]) -> Vec<RankLocation> {
        let place =
            |&(local, per_node): &(u32, u32)| RankLocation { local_rank: Some(local), per_node: Some(per_node) };
        places.iter().map(place).collect()
    }

    #[test]
    fn a_node_holds_so_many_ranks_in_a_row() {
        assert_eq!(per_node(&places(&[(0, 2), (1, 2), (0, 2), (1, 2)])).unwrap(), Some(2));
        assert_eq!(per_node(&places(&[(0, 3), (1, 3), (2, 3)])).unwrap(), Some(3));
        let mut unknown = places(&[(0, 2), (1, 2)]);
        unknown[0].local_rank = None;
        assert_eq!(per_node(&unknown).unwrap(), Some(2));
        unknown[1].per_node = None;
        assert_eq!(per_node(&unknown).unwrap(), None);
    }

    #[test]
    fn ranks_dealt_out_or_uneven_are_refused_by_rank() {
        for (dealt, expected) in [
            (&[(0, 2), (0, 2), (1, 2), (1, 2)][..], "rank 1 is local rank 0 of 2 on its node, expected 1 of 2"),
            (&[(0, 2), (1, 2), (0, 1)], "rank 0 is local rank 0 of 2"),
            (&[(0, 2), (1, 2), (0, 1), (0, 1)], "rank 2 is local rank 0 of 1 on its node, expected 0 of 2"),
        ] {
            let error = per_node(&places(dealt)).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("ppr:2:node"), "{error}");
        }
    }

    #[test]
    fn several_nodes_have_three_classes_and_one_has_one() {
        let seen = |ranks, per_node, own| -> Vec<(u32, u32, Vec<u32>)> {
            let groups = groups(ranks, per_node, own).into_iter();
            groups.map(|g| (g.class.ranks, g.class.nodes, g.ranks.iter().map(|rank| rank.0).collect())).collect()
        };
        let all = |ranks: u32| (0..ranks).collect::<Vec<_>>();
        assert_eq!(seen(4, 4, 3), [(4, 1, all(4))]);
        assert_eq!(seen(6, 2, 3), [(6, 3, all(6)), (2, 1, vec![2, 3]), (3, 3, vec![1, 3, 5])]);
        assert_eq!(seen(3, 1, 2), [(3, 3, all(3))]);
    }
}
