//! Whether ranks agree: sequences of each replica group, and launches that wait for one another.

use bucketeer::check::ranks::{RankFault, RankOptions, RanksError, check_ranks, rewrite_risk};
use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer::passes::Pipeline;

fn graphs(texts: &[&str]) -> Vec<Graph> {
    texts.iter().map(|text| parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))).collect()
}

fn faults(texts: &[&str]) -> Vec<String> {
    check_ranks(&graphs(texts), &RankOptions::default()).unwrap().iter().map(ToString::to_string).collect()
}

const WP: &str = "group W:4 = [[0, 1, 2, 3]]\ngroup P:2 = [[0, 1], [2, 3]]\na = input f32[8]; b = input f32[8]\n";

/// The two launches of DL-1, in one order or the other.
fn dl_1(swapped: bool) -> String {
    let (w, p) = ("s0 = all_reduce(a, sum, W:4)\n", "s1 = all_reduce(b, sum, P:2)\n");
    let launches = if swapped { format!("{p}{w}") } else { format!("{w}{p}") };
    format!("{WP}{launches}output(wait(s0), wait(s1))")
}

#[test]
fn ranks_that_send_different_counts_are_named_with_both_counts() {
    // XRANK-1
    let of = |n: u32| format!("x = input f32[{n}]; s = all_reduce(x, sum, G0:2)\noutput(wait(s))");
    let found = faults(&[&of(8), &of(12)]);
    assert_eq!(found, ["G0 #0: rank 0 f32 x 8, rank 1 f32 x 12 (rank 0: `s`, rank 1: `s`)"]);
    assert_eq!(faults(&[&of(8), &of(8)]), Vec::<String>::new());
}

#[test]
fn every_part_of_a_launch_must_agree() {
    let base = "x = input f32[8]; y = input f32[8]; b = input f32[8]\n";
    let of = |launch: &str| format!("{base}s = {launch}\noutput(wait(s))");
    for (left, right, expected) in [
        (
            "all_reduce(x, sum, G:2)",
            "all_reduce(x, max, G:2)",
            "rank 0 all_reduce sum f32 x 8, rank 1 all_reduce max f32 x 8",
        ),
        (
            "all_reduce(x, sum, G:2)",
            "all_gather(x, G:2)",
            "rank 0 all_reduce sum f32 x 8, rank 1 all_gather dim 0 f32 x 8",
        ),
        (
            "broadcast(x, 0, G:2)",
            "broadcast(x, 1, G:2)",
            "rank 0 broadcast from 0 f32 x 8, rank 1 broadcast from 1 f32 x 8",
        ),
        (
            "all_reduce(x, sum, G:2)",
            "all_reduce_(x, sum, G:2)",
            "rank 0 all_reduce sum f32 x 8, rank 1 all_reduce sum in place f32 x 8",
        ),
        ("all_reduce(x, sum, G:2)", "all_reduce(cast(x, bf16), sum, G:2)", "rank 0 f32 x 8, rank 1 bf16 x 8"),
    ] {
        let found = faults(&[&of(left), &of(right)]);
        assert!(found[0].starts_with(&format!("G #0: {expected}")), "{found:?}");
    }
}

#[test]
fn a_rank_that_launches_less_is_named() {
    // RANK-2
    let once = "p = input f32[4]\ng = all_gather(p, G0:2); w = wait(g)\noutput(w)";
    let twice =
        "p = input f32[4]\ng = all_gather(p, G0:2); w = wait(g)\nh = all_gather(p, G0:2); v = wait(h)\noutput(v)";
    let found = faults(&[twice, once]);
    assert_eq!(found, ["G0 #1: rank 0 all_gather dim 0 f32 x 4, rank 1 no launch (rank 0: `h`, rank 1: nothing)"]);
}

#[test]
fn launches_in_opposite_order_on_two_groups_are_a_ring_with_its_ranks_groups_and_nodes() {
    // DL-1
    let (one, other) = (dl_1(false), dl_1(true));
    assert_eq!(faults(&[&one, &one, &one, &one]), Vec::<String>::new());
    let found = faults(&[&one, &other, &one, &one]);
    assert_eq!(
        found,
        ["deadlock: rank 0 is in `s0` (W) and waits for rank 1; \
          rank 1 is in `s1` (P{0, 1}) and waits for rank 0"]
    );
}

#[test]
fn a_ring_over_three_ranks_is_followed_to_its_end() {
    let groups = "group A:2 = [[0, 1]]\ngroup B:2 = [[1, 2]]\ngroup C:2 = [[2, 0]]\nx = input f32[2]\n";
    let of = |first: &str, second: &str| {
        format!(
            "{groups}s = all_reduce(x, sum, {first}:2); t = all_reduce(x, sum, {second}:2)\noutput(wait(s), wait(t))"
        )
    };
    let found = check_ranks(&graphs(&[&of("A", "C"), &of("B", "A"), &of("C", "B")]), &RankOptions::default()).unwrap();
    let [RankFault::Ring(ring)] = &found[..] else { panic!("{found:?}") };
    let steps: Vec<_> = ring.iter().map(|stuck| (stuck.rank, &*stuck.replica_group, stuck.missing)).collect();
    assert_eq!(steps, [(0, "A", 1), (1, "B", 2), (2, "C", 0)]);
}

#[test]
fn two_teams_of_one_name_go_on_by_themselves() {
    // PG-2
    let text =
        "group mine:2 = [[0, 1], [2, 3]]\nx = input f32[4]\ns = all_reduce(x, sum, mine:2); w = wait(s)\noutput(w)";
    assert_eq!(faults(&[text; 4]), Vec::<String>::new());
    assert_eq!(faults(&[text]), Vec::<String>::new());
}

#[test]
fn one_graph_for_all_ranks_needs_every_rank_in_every_group() {
    let text = "group W:3 = [[0, 1, 2]]\ngroup P:2 = [[0, 1]]\nx = input f32[4]\n\
                s = all_reduce(x, sum, W:3); t = all_reduce(x, sum, P:2)\noutput(wait(s), wait(t))";
    assert_eq!(faults(&[text]), ["rank 2 launches `t` in group `P`, but is in none of its replica_groups"]);
}

#[test]
fn groups_of_unknown_members_are_errors_that_name_them() {
    let text = "x = input f32[4]\ns = all_reduce(x, sum, A:2); t = all_reduce(x, sum, B:2)\noutput(wait(s), wait(t))";
    let unknown = check_ranks(&graphs(&[text]), &RankOptions::default());
    assert_eq!(unknown, Err(RanksError::UnknownMembers { group: "A".into() }));
    let mut options = RankOptions::default();
    options.groups.insert("A".into(), vec![vec![0, 1]]);
    options.groups.insert("B".into(), vec![vec![0, 5]]);
    let outside = check_ranks(&graphs(&[text, text]), &options);
    assert_eq!(outside, Err(RanksError::NoGraphOfRank { group: "B".into(), rank: 5, graphs: 2 }));
    assert_eq!(check_ranks::<Graph>(&[], &options), Err(RanksError::NoGraph));
}

#[test]
fn plans_of_ten_sizes_are_the_same_on_every_rank() {
    // RANK-1
    let mut text = String::new();
    for k in 0..10 {
        text += &format!("x{k} = input f32[{}]\n", k + 1);
    }
    for k in 0..10 {
        text += &format!("s{k} = all_reduce(x{k}, sum, G0:4); w{k} = wait(s{k})\n");
    }
    text += "output(w0, w1, w2, w3, w4, w5, w6, w7, w8, w9)";
    let before = graphs(&[&*text; 4]);
    let pipeline: Pipeline = "bucket-all-reduce{cap=64}".parse().unwrap();
    let mut after = before.clone();
    for graph in &mut after {
        pipeline.run(graph).unwrap();
    }
    assert_eq!(rewrite_risk(&before, &after, &RankOptions::default()), Ok(Vec::new()));
}

#[test]
fn ranks_that_are_rewritten_each_by_itself_can_get_a_ring_that_was_not_there() {
    let (one, other) = (dl_1(false), dl_1(true));
    let before = graphs(&[&*one; 4]);
    let after = graphs(&[&one, &one, &other, &one]);
    let found = rewrite_risk(&before, &after, &RankOptions::default()).unwrap();
    assert!(matches!(&found[..], [RankFault::Ring(ring)] if ring.len() == 2), "{found:?}");
    // What was wrong already is not the rewrite's doing.
    assert_eq!(rewrite_risk(&after, &after, &RankOptions::default()), Ok(Vec::new()));
}

#[test]
fn many_launches_are_played() {
    let mut text = String::from("group W:2 = [[0, 1]]\nx = input f32[4]\n");
    for k in 0..20_000 {
        text += &format!("s{k} = all_reduce(x, sum, W:2)\n");
    }
    text += "output(x)";
    assert_eq!(faults(&[&text, &text]), Vec::<String>::new());
}
