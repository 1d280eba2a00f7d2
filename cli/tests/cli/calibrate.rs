//! `calibrate`: what it measures, writes and refuses. Nothing here asserts that anything is fast.

use crate::support::{Folder, Ran};
use bucketeer::passes::schedule::Profile;
use bucketeer::passes::schedule::profile::Class;

const KINDS: [&str; 7] = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "permute"];

/// One that computes nothing, and one that does.
const MOVES: &str = "a = input f32[4096]; r = all_reduce(a, sum, G:2) : f32[4096]; w = wait(r) : f32[4096]\noutput(w)";
const COMPUTES: &str = "a = input f32[4096]; c = aten.relu.default(a) : f32[4096]\n\
                        r = all_reduce(c, sum, G:2) : f32[4096]; w = wait(r) : f32[4096]\noutput(w)";

fn profile(folder: &Folder, name: &str) -> Profile {
    Profile::from_json(&folder.read(name)).unwrap()
}

/// The classes of a profile.
fn classes(profile: &Profile) -> Vec<(u32, u32)> {
    profile.classes.iter().map(|row| (row.class.ranks, row.class.nodes)).collect()
}

#[test]
fn ranks_at_hand_become_a_profile_that_plan_reads() {
    let folder = Folder::with("moves.txt", MOVES);
    folder.write("computes.txt", COMPUTES);
    let ran = folder.run("calibrate --ranks 2 --max-bytes 64KiB --repeat 2 -o p.json").expect(0, &["note: how fast"]);
    let written = profile(&folder, "p.json");
    assert_eq!(&*written.name, "local-2");
    assert_eq!((written.gpus_per_node, written.rates, classes(&written)), (2, None, vec![(2, 1)]));
    for kind in KINDS {
        let row =
            ran.out().lines().find(|line| line.contains(&format!(" {kind} "))).unwrap_or_else(|| panic!("{kind}"));
        assert!(row.contains("2 ranks on 1 node") && row.split_whitespace().any(|word| word == "9"), "{row}");
        let cost = &written.classes[0].costs[kind];
        assert!(cost.alpha_ns() > 0 && cost.bytes_ns(1 << 30) > 0, "{kind}: {cost:?}");
    }
    assert!(ran.out().contains("copy") && ran.out().contains("worst error"), "{}", ran.out());
    assert!(written.copy.ns(1 << 20) > 0);
    folder.run("plan moves.txt --profile p.json").expect(0, &["proven equal"]);
    let asks = ["`c` takes time, found neither a measured one nor rates in profile `local-2`", "--times FILE"];
    folder.run("plan computes.txt --profile p.json").expect(1, &asks);
    folder.write("times.json", r#"{"schema": "bucketeer-times-1", "ns": {"c": 5000}}"#);
    folder.run("plan computes.txt --profile p.json --times times.json").expect(0, &["proven equal"]);
}

#[test]
fn rates_may_come_from_a_profile_that_has_them() {
    let folder = Folder::with("computes.txt", COMPUTES);
    let line = "calibrate --ranks 2 --max-bytes 16KiB --repeat 1 --kind all_reduce,all_reduce";
    let ran = folder.run(&format!("{line} --rates h100 -o p.json")).expect(0, &[]);
    assert!(!ran.talk().contains("how fast"), "{}", ran.talk());
    let written = profile(&folder, "p.json");
    assert_eq!(written.rates, Profile::named("h100").unwrap().rates);
    assert_eq!(written.classes[0].costs.keys().map(|kind| &**kind).collect::<Vec<_>>(), ["all_reduce"]);
    folder.run("plan computes.txt --profile p.json").expect(0, &["proven equal"]);
    folder.run(&format!("{line} -o none.json")).expect(0, &[]);
    folder.run(&format!("{line} --rates none.json")).expect(2, &["--rates none.json: this profile has no rates"]);
}

#[test]
fn a_network_that_is_played_is_what_is_measured() {
    let folder = Folder::new();
    // A curve begins at 85 % of the shortest time at least.
    let line = "calibrate --ranks 3 --max-bytes 16KiB --repeat 1 --link alpha=2400us,beta=1GB/s -o p.json";
    let ran = folder.run(line).expect(0, &[]);
    assert!(ran.out().starts_with("profile `local-3`: 3 ranks as threads, 3 on a node; f32, 4.0 KiB to 16.0 KiB\n"));
    let written = profile(&folder, "p.json");
    assert!(written.label.contains("playing alpha=2400us,beta=1GB/s"), "{}", written.label);
    for (kind, cost) in &written.classes[0].costs {
        assert!(cost.alpha_ns() >= 2_000_000, "{kind}: {cost:?}");
    }
    assert_eq!(written.classes[0].costs.len(), KINDS.len());
}

#[test]
fn the_profile_goes_where_it_is_asked_for_and_the_report_gives_way() {
    let folder = Folder::new();
    let line = "calibrate --ranks 2 --max-bytes 16KiB --repeat 1 --kind broadcast";
    folder.run(line).expect(0, &["nothing is written; -o FILE writes the profile"]);
    assert!(folder.files().is_empty());
    let ran = folder.run(&format!("{line} -o -")).expect(0, &["2 ranks on 1 node  broadcast", "median error"]);
    assert_eq!(classes(&Profile::from_json(ran.out()).unwrap()), [(2, 1)]);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line_before_anything_is_measured() {
    let folder = Folder::new();
    for (options, expected) in [
        ("", "--backend local: say how many ranks to start, such as --ranks 4"),
        ("--ranks 0", "--ranks 0: expected 2 to 4096; messages need at least two ranks"),
        ("--ranks 1", "--ranks 1: expected 2 to 4096"),
        ("--ranks 5000", "--ranks 5000: expected 2 to 4096"),
        ("--ranks 2 --max-bytes 4KiB", "--max-bytes `4KiB`: expected at least 16.0 KiB, as sizes begin at 4.0 KiB"),
        ("--ranks 2 --max-bytes much", "--max-bytes `much`: expected a number with a unit"),
        ("--ranks 2 --repeat 0", "--repeat and --timeout: expected a whole number of at least 1"),
        ("--ranks 2 --link fast", "--link `fast`"),
        ("--ranks 2 --rates h101", "--rates h101: found neither a file nor a machine of that name"),
        ("--ranks 2 -o nowhere/p.json", "cannot write nowhere/p.json"),
        ("--backend nccl --ranks 2", "--ranks: the launcher says how many ranks there are"),
        ("--backend nccl --link alpha=1ms", "--link: ranks that are processes have a network of their own"),
    ] {
        let ran = folder.run_in([], &format!("calibrate {options}")).expect(2, &[expected]);
        assert_eq!((ran.out(), ran.talk().lines().count()), ("", 1), "{}", ran.talk());
    }
    folder.run("calibrate --ranks 2 --kind gather").expect(2, &["invalid value 'gather'", "all_gather"]);
    let alone = folder.run_in([], "calibrate --backend nccl");
    alone.expect(2, &["no launcher says which rank this is", "bucketeer launch --nproc N -- calibrate --backend nccl"]);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_the_build_that_has_it_is_named() {
    Folder::new().run("calibrate --backend mpi").expect(2, &["built without MPI", "--features mpi", "docs/mpi.md"]);
}

#[cfg(target_os = "linux")]
mod on_nccl {
    use super::*;
    use crate::run_nccl::fake;
    use std::path::PathBuf;

    #[test]
    fn processes_of_a_launcher_measure_together_and_one_writes() {
        let folder = Folder::new();
        let line = "launch --nproc 2 -- calibrate --backend nccl --max-bytes 16KiB --repeat 1 -o p.json";
        let ran = folder.run_in(fake(), line).expect(0, &[]);
        assert_eq!(ran.out().matches("profile `nccl-2`").count(), 1, "{}", ran.out());
        assert_eq!(folder.files(), ["p.json"]);
        let written = profile(&folder, "p.json");
        assert_eq!((classes(&written), written.classes[0].costs.len()), (vec![(2, 1)], KINDS.len()));
    }

    /// Four processes by hand, as on two nodes; `local` is the local rank of each.
    fn two_nodes(folder: &Folder, local: [u32; 4]) -> Vec<Ran> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let start = |(rank, local): (usize, u32)| {
            let said = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "4".to_owned()),
                ("LOCAL_RANK", local.to_string()),
                ("LOCAL_WORLD_SIZE", "2".to_owned()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
            ]
            .map(|(name, value)| (name, PathBuf::from(value)));
            let variables = fake().into_iter().chain(said.iter().map(|(name, value)| (*name, value.as_path())));
            folder
                .run_in(variables, "calibrate --backend nccl --kind all_gather --max-bytes 16KiB --repeat 1 -o p.json")
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = local.into_iter().enumerate().map(|rank| scope.spawn(move || start(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn on_several_nodes_a_node_and_one_rank_of_each_are_measured_too() {
        let folder = Folder::new();
        let mut ran = two_nodes(&folder, [0, 1, 0, 1]).into_iter();
        let first = ran.next().unwrap().expect(0, &[]);
        assert!(first.out().contains("2 ranks on 2 nodes"), "{}", first.out());
        assert!(ran.all(|rank| rank.code() == 0 && rank.out().is_empty()));
        let written = profile(&folder, "p.json");
        assert_eq!((written.gpus_per_node, classes(&written)), (2, vec![(4, 2), (2, 1), (2, 2)]));
        for class in [(4, 2), (2, 1), (2, 2)].map(|(ranks, nodes)| Class { ranks, nodes }) {
            let gather = bucketeer::ir::CollectiveKind::AllGather { dim: 0 };
            assert!(written.message(class, gather).is_some(), "{class}");
        }
    }

    #[test]
    fn ranks_that_are_dealt_out_to_nodes_are_refused_by_all() {
        let folder = Folder::new();
        for rank in two_nodes(&folder, [0, 0, 1, 1]) {
            rank.expect(2, &["rank 1 is local rank 0 of 2 on its node, expected 1 of 2", "--map-by ppr:2:node"]);
        }
        assert!(folder.files().is_empty());
    }
}
