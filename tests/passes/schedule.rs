//! Plans: legal, proven, within the cap, and as short as what is known of each graph.
//!
//! Numbers of programs as they stand, and the best plans known, come from another program (`replay.py` of the shared tools)
//! and other planners; none was made by this project.

mod exhaustive;
mod hlo;
mod judged;
mod own;
mod refused;
mod small;

use bucketeer::Verdict;
use bucketeer::check::{Options, prove_with};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::schedule::{Buckets, CopyCost, Costs, Effort, Planned, ScheduleOptions, Timeline, plan};
use bucketeer_formats::Document;
use kit::files;
use std::path::{Path, PathBuf};

/// A graph with what was reckoned of it elsewhere.
struct Known {
    name: &'static str,
    as_written_ns: u64,
    as_written_peak_bytes: u64,
    /// The best plan known within the normal cap.
    best_ns: u64,
    /// PyTorch 2.15's own scheduler, in its best mode.
    torch_ns: u64,
    compute_ns: u64,
    /// Times that no plan ends before, in any order of the computation and in the one that it came in; reckoned elsewhere.
    bound_ns: u64,
    bound_as_written_ns: u64,
}

/// Those that lie in `fixtures/plan`.
const KNOWN: [Known; 4] = [
    Known {
        name: "llama8b_l4_n8_t2048",
        as_written_ns: 37_053_833,
        as_written_peak_bytes: 1_494_253_664,
        best_ns: 20_289_514,
        torch_ns: 20_620_416,
        compute_ns: 20_066_021,
        bound_ns: 20_232_513,
        bound_as_written_ns: 20_268_514,
    },
    Known {
        name: "llama70b_l3_hsdp512_t2048",
        as_written_ns: 113_174_736,
        as_written_peak_bytes: 2_836_947_016,
        best_ns: 57_401_205,
        torch_ns: 61_679_843,
        compute_ns: 56_124_684,
        bound_ns: 57_279_963,
        bound_as_written_ns: 57_297_964,
    },
    Known {
        name: "mixtral_l4_32_t1024",
        as_written_ns: 46_263_917,
        as_written_peak_bytes: 1_351_319_648,
        best_ns: 19_116_697,
        torch_ns: 19_710_629,
        compute_ns: 17_594_829,
        bound_ns: 18_601_336,
        bound_as_written_ns: 19_353_610,
    },
    Known {
        name: "rn50_ddp_10gbe16",
        as_written_ns: 328_570_380,
        as_written_peak_bytes: 2_755_808_672,
        best_ns: 116_707_749,
        torch_ns: 180_684_642,
        compute_ns: 106_733_487,
        bound_ns: 116_691_046,
        bound_as_written_ns: 116_707_749,
    },
];

fn folder(name: &str) -> PathBuf {
    kit::root().join("fixtures/plan").join(name)
}

fn read(folder: &Path) -> (Document, Costs) {
    let graph = files::read(&folder.join("graph.txt"));
    let costs = String::from_utf8(files::read(&folder.join("costs.json"))).unwrap();
    (Document::read(graph).unwrap(), Costs::from_json(&costs).unwrap().0)
}

/// The cap that leaves a little room: the peak as it stands, and a gibibyte or a twentieth.
fn normal_cap(peak_bytes: u64) -> u64 {
    peak_bytes + (peak_bytes / 20).max(1 << 30)
}

fn options(cap_bytes: Option<u64>, effort: Effort) -> ScheduleOptions {
    let mut options = ScheduleOptions::default();
    (options.cap_bytes, options.effort) = (cap_bytes, effort);
    options
}

/// Plans a graph, and holds the plan to what every plan has to keep to.
fn planned(graph: &Graph, costs: &Costs, how: &ScheduleOptions) -> (Graph, Planned) {
    let mut after = graph.clone();
    let found = plan(&mut after, costs, how).unwrap();
    let moves = Options { launches_may_move: true, ..Options::default() };
    let verdict = prove_with(graph, &after, moves);
    assert!(matches!(verdict, Verdict::Equal(_)), "{verdict}");
    assert_eq!(Timeline::of(&after, costs).unwrap(), found.after);
    assert!(found.after.makespan_ns <= found.before.makespan_ns);
    assert!(found.bounds.iter().all(|bound| bound.ns <= found.after.makespan_ns), "{:?}", found.bounds);
    if let Some(cap_bytes) = how.cap_bytes {
        assert!(found.after.peak_bytes <= cap_bytes, "{} above {cap_bytes}", found.after.peak_bytes);
    }
    (after, found)
}

#[test]
fn programs_as_they_stand_take_what_another_reckoning_says() {
    for known in KNOWN {
        let (document, costs) = read(&folder(known.name));
        let found = Timeline::of(&document.graphs()[0], &costs).unwrap();
        assert_eq!(
            (found.makespan_ns, found.peak_bytes, found.compute_ns),
            (known.as_written_ns, known.as_written_peak_bytes, known.compute_ns),
            "{}",
            known.name
        );
        // What computation stands still for is what is exposed, as everything is waited for.
        assert_eq!(found.launches.iter().map(|launch| launch.stalled_ns).sum::<u64>(), found.exposed_ns());
    }
}

#[test]
fn plans_are_proven_keep_the_cap_and_come_within_a_twentieth_of_the_best_known() {
    for known in KNOWN {
        let (document, costs) = read(&folder(known.name));
        let cap = normal_cap(known.as_written_peak_bytes);
        let (_, found) = planned(&document.graphs()[0], &costs, &options(Some(cap), Effort::Default));
        let (exposed, best) = (found.after.exposed_ns(), known.best_ns - known.compute_ns);
        assert!(exposed * 20 <= best * 21, "{}: {exposed} ns are exposed, best known {best}", known.name);
        assert!(found.after.makespan_ns < known.torch_ns, "{}", known.name);
        // What is rounded up here may be rounded down there.
        for (bounds, known_ns) in
            [(&found.bounds, known.bound_ns), (&found.bounds_as_written, known.bound_as_written_ns)]
        {
            assert!((known_ns..=known_ns + 2).contains(&bounds[0].ns), "{}: {:?}", known.name, bounds[0]);
        }
    }
}

#[test]
fn a_chain_is_planned_exactly_without_looking() {
    let known = &KNOWN[3];
    let (document, costs) = read(&folder(known.name));
    let (_, found) = planned(&document.graphs()[0], &costs, &options(None, Effort::Low));
    assert_eq!(found.after.makespan_ns, known.best_ns);
}

#[test]
fn buckets_that_are_kept_are_launched_and_waited_for_elsewhere_and_nothing_is_merged() {
    let (document, mut costs) = read(&folder(KNOWN[0].name));
    costs.copy = CopyCost { fixed_ns: 3_000, ns_per_byte_num: 2, ns_per_byte_den: 3_352 };
    let mut how = options(None, Effort::Work(5_000_000));
    how.buckets = Buckets::Kept;
    let graph = &document.graphs()[0];
    let (_, alone) = planned(graph, &costs, &how);
    assert_eq!((alone.after.launches.len(), alone.after.buckets()), (alone.before.launches.len(), 0));
    assert!(alone.after.exposed_ns() * 10 < alone.before.exposed_ns());
    // Buckets of another policy, which are copied in and out.
    let mut bucketed = graph.clone();
    Pipeline::default_rewrite().run(&mut bucketed).unwrap();
    let (_, moved) = planned(&bucketed, &costs.of_what_is_left(&bucketed), &how);
    assert!(moved.before.buckets() > 0);
    assert_eq!(
        (moved.after.launches.len(), moved.after.buckets()),
        (moved.before.launches.len(), moved.before.buckets())
    );
    assert!(
        moved.after.exposed_ns() * 2 < moved.before.exposed_ns(),
        "{} {}",
        moved.after.exposed_ns(),
        moved.before.exposed_ns()
    );
}

#[test]
fn what_does_not_fit_in_memory_together_counts_as_launches_of_its_own() {
    // Four gathers of 4 MiB, each read by one call, whose results are 4 MiB that nothing else keeps.
    let mut text = String::from("x = input f32[1048576]\n");
    let mut last = "x".to_owned();
    for at in 0..4 {
        text += &format!("s{at} = input f32[262144]\ng{at} = all_gather(s{at}, G:4)\nw{at} = wait(g{at})\n");
        text += &format!("c{at} = aten.add.Tensor({last}, w{at}) : f32[1048576]\n");
        last = format!("c{at}");
    }
    let graph = bucketeer::ir::text::parse(&(text + &format!("output({last})"))).unwrap();
    let costs = Costs::from_json(
        r#"{"schema": "bucketeer-costs-1", "compute_ns": {"c0": 1, "c1": 1, "c2": 1, "c3": 1}, "groups": {"G": {"size": 4,
            "costs": {"all_gather": [{"alpha_ns": 100000, "ns_per_byte_num": 1, "ns_per_byte_den": 1024}]}}}}"#,
    );
    let costs = costs.unwrap().0;
    let families = |cap_bytes: Option<u64>| {
        let (_, found) = planned(&graph, &costs, &options(cap_bytes, Effort::Work(200_000)));
        let families = found.bounds.iter().find(|bound| bound.bound.name() == "families").unwrap();
        (families.ns, found.after.launches.len(), families.bound.clone())
    };
    const MIB: u64 = 1 << 20;
    // All bytes take 16,384 ns, and the last call follows; the last gather has to end before it.
    let of = |launches: u64| 16_384 + 100_000 * launches + 1;
    assert_eq!(families(None).0, of(1));
    assert_eq!(families(Some(64 * MIB)).0, of(1));
    // Where the second call and those behind it run, what the one before made is alive beside the buffer. Of 16 MiB, 12 are left
    // for what travels with those, and 16 with the first: a quarter and three thirds are more than one launch.
    assert_eq!(families(Some(16 * MIB)).0, of(2));
    assert_eq!(families(Some(20 * MIB)).0, of(1));
    // With as much as the graph needs as it stands, none can travel with another; that they are two at least is what is known.
    let (ns, launches, bound) = families(Some(12 * MIB));
    assert_eq!((ns, launches), (of(2), 4), "{bound:?}");
}

#[test]
fn the_same_plan_comes_out_twice() {
    let (document, costs) = read(&folder(KNOWN[0].name));
    let text = || {
        let mut document = Document::read(document.print()).unwrap();
        plan(&mut document.graphs_mut()[0], &costs, &options(Some(2_567_995_488), Effort::Work(20_000_000))).unwrap();
        document.print()
    };
    assert!(text() == text());
}

#[test]
fn a_cap_of_what_the_graph_needs_as_it_stands_is_kept() {
    for known in &KNOWN[1..] {
        let (document, costs) = read(&folder(known.name));
        planned(&document.graphs()[0], &costs, &options(Some(known.as_written_peak_bytes), Effort::Low));
    }
    let (document, costs) = read(&folder(KNOWN[0].name));
    let how = options(Some(KNOWN[0].as_written_peak_bytes), Effort::Default);
    let (_, found) = planned(&document.graphs()[0], &costs, &how);
    // Without more memory it still hides nine tenths of what was exposed.
    assert!(found.after.exposed_ns() * 10 < found.before.exposed_ns());
}
