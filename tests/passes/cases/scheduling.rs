//! Stage `schedule`: what of the order the bucketing passes themselves answer for.

use super::{rewrite, rewrite_shapes};
use bucketeer::ir::text::print;
use bucketeer::passes::bucketing::Reason;
use bucketeer::passes::liveness::peak_live;
use kit::rewrite::{ALL, depends, sketch};

#[test]
fn ctrl_1_fences_keep_their_order_and_nothing_communicates_across_them() {
    let done = rewrite(&sketch("ctrl-1"), ALL, &[]);
    assert_eq!(done.text(), print(&done.before));
    let text = "x = input f32[4]; y = input f32[4]\ng0 = all_gather(x, G0:2); w0 = wait(g0)\n\
                opaque_comm barrier()\ng1 = all_gather(y, G0:2); w1 = wait(g1)\noutput(w0, w1)";
    let done = rewrite(text, ALL, &[]);
    assert_eq!(done.count("all_gather"), 2);
    assert_eq!(done.reason("g1").label(), "fence");
}

#[test]
fn ctrl_2_a_reader_that_names_the_start_stays_below_the_wait() {
    let done = rewrite(&sketch("ctrl-2"), ALL, &[]);
    assert!(depends(&done.graph, "y", "w"));
    // Merged with another, it reads the unpacked result.
    let text = "x = input f32[4]; z = input f32[4]\ng = all_gather(x, G0:2); w = wait(g); y = add(g, 1.0)\n\
                h = all_gather(z, G0:2); v = wait(h)\noutput(y, w, v)";
    let done = rewrite(text, ALL, &[&["g", "h"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(depends(&done.graph, "y", "w"));
}

#[test]
fn use_1_each_use_depends_on_the_wait_of_its_own_bucket() {
    let done = rewrite(&sketch("use-1"), ALL, &[&["gA", "gB", "gC"]]);
    assert_eq!(done.count("all_gather"), 1);
    for (user, bucket) in [("y1", "wait"), ("y2", "wait_1"), ("y3", "wait_2")] {
        assert!(depends(&done.graph, user, bucket), "{user} {bucket}");
        assert!(depends(&done.graph, bucket, "bucketed_all_gather_wait"));
    }
    // Launch order A, B, C, use order A, C, B, and a cap that makes two buckets.
    let done = rewrite(&sketch("use-1"), "bucket-all-gather{cap=64}", &[&["gA", "gB"]]);
    assert!(depends(&done.graph, "y2", "gC") && done.place("gC") < done.place("y2"));
}

#[test]
fn rank_2_no_collective_is_added_dropped_or_doubled() {
    for pipeline in [ALL, "bucket-all-gather{cap=1}", "bucket-all-gather{cap=1TiB,policy=adjacent}"] {
        assert_eq!(rewrite(&sketch("rank-2"), pipeline, &[]).count("all_gather"), 1);
    }
}

#[test]
fn out_1_the_wait_of_a_result_that_is_used_stands_above_its_reader() {
    let done = rewrite(&sketch("out-1"), "bucket-reduce-scatter{cap=32}", &[]);
    assert_eq!(done.text(), print(&done.before));
    let done = rewrite(&sketch("out-1"), ALL, &[&["r0", "r1"]]);
    assert_eq!(done.count("reduce_scatter"), 1);
    assert!(done.place("w0") < done.place("n"));
}

#[test]
fn dl_1_launches_of_overlapping_groups_keep_their_order() {
    let groups = "group W:4 = [[0, 1, 2, 3]]\ngroup P:2 = [[0, 1], [2, 3]]\n";
    let done = rewrite(&(groups.to_owned() + &sketch("dl-1")), ALL, &[]);
    assert_eq!(done.count("all_reduce"), 2);
    assert!(done.place("s0") < done.place("s1"));
}

#[test]
fn mem_1_peak_bytes_are_known_before_and_after() {
    let done = rewrite_shapes(&sketch("mem-1"), ALL, &[&["g0", "g1", "g2", "g3"]]);
    let peak = |graph| peak_live(graph);
    let (before, after) = (peak(&done.before), peak(&done.graph));
    assert_eq!(before.bytes, 100 << 20);
    assert!(after.bytes > 400 << 20, "{after:?}");
    // A cap bounds what a bucket keeps alive.
    let done = rewrite_shapes(&sketch("mem-1"), "bucket-all-gather{cap=200MiB}", &[&["g0", "g1"], &["g2", "g3"]]);
    assert_eq!(done.count("all_gather"), 2);
    assert!(peak(&done.graph).bytes < after.bytes);
    // A cap on memory bounds what all of them keep alive.
    let capped = "bucket-all-gather{cap=none,memory=450MiB}";
    let done = rewrite_shapes(&sketch("mem-1"), capped, &[&["g0", "g1", "g2"]]);
    assert!(peak(&done.graph).bytes <= 450 << 20, "{:?}", peak(&done.graph));
}

#[test]
fn sched_1_collectives_of_different_kinds_keep_their_places() {
    let done = rewrite(&sketch("sched-1"), ALL, &[]);
    assert_eq!(done.text(), print(&done.before));
    assert_eq!(done.reason("ar"), &Reason::NoPartner);
}
