//! What a plan says of a graph: keys, sizes, defaults, and when a graph is not looked at again.

use bucketeer::passes::Pipeline;
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, Decision, Reason};
use kit::rewrite::{ALL, read, rewrite};

#[test]
fn each_kind_has_its_name_and_its_cap() {
    let found = BucketKind::ALL.map(|kind| (kind.name(), kind.default_cap_bytes()));
    let (mib_25, mib_256) = (26_214_400, 268_435_456);
    let expected = [
        ("reduce_scatter", mib_256),
        ("all_reduce", mib_25),
        ("all_gather", mib_256),
        ("broadcast", mib_25),
        ("all_to_all", mib_256),
        ("permute", mib_25),
    ];
    assert_eq!(found, expected);
    let pipeline: Pipeline = "bucket-all-gather,bucket-all-reduce".parse().unwrap();
    assert_eq!(pipeline.to_string(), "bucket-all-gather{cap=256MiB},bucket-all-reduce{cap=25MiB}");
}

#[test]
fn options_apply_to_graphs_that_have_their_kind() {
    let graph = read("p = input f32[4]; g = all_gather(p, G0:2); w = wait(g)\noutput(w)");
    let applies = BucketKind::ALL.map(|kind| BucketOptions::new(kind).applies_to(&graph));
    assert_eq!(applies, BucketKind::ALL.map(|kind| kind == BucketKind::AllGather));
}

#[test]
fn a_graph_with_merged_collectives_is_looked_at_again_where_that_finds_no_more_than_once() {
    let text = "a0 = input f32[4]; a1 = input f32[4]; b0 = input f32[4]; b1 = input f32[4]\n\
                g0 = all_gather(a0, G0:2); g1 = all_gather(a1, G0:2); h0 = all_gather(b0, G0:2)\n\
                h1 = all_gather(b1, G0:2)\noutput(wait(g0), wait(g1), wait(h0), wait(h1))";
    for (options, again) in [
        ("cap=none", true),
        ("cap=64", true),
        ("cap=64/64", true),
        ("cap=64/128", false),
        ("cap=none,policy=adjacent", false),
        ("cap=64/128,policy=adjacent", false),
    ] {
        let done = rewrite(text, &format!("bucket-all-gather{{cap=none,names=g*}},bucket-all-gather{{{options}}}"));
        let second = done.plans().nth(1).unwrap();
        assert_eq!(!second.buckets.is_empty(), again, "{options}");
        let reason = |name: &str| second.remarks.iter().find(|remark| remark.name == name).unwrap().decision.clone();
        let looked_at = Decision::Alone(Reason::LookedAt);
        assert_eq!(reason("h0") == looked_at, !again, "{options}");
    }
}

#[test]
fn a_device_that_is_not_stated_is_another_than_each_that_is() {
    let text = "a = input f32[4]; b = input f32[4] on cpu; c = input f32[4] on cuda:0; d = input f32[4] on cuda:1\n\
                g = all_reduce(a, sum, G0:2); h = all_reduce(b, sum, G0:2); i = all_reduce(c, sum, G0:2)\n\
                j = all_reduce(d, sum, G0:2)\noutput(wait(g), wait(h), wait(i), wait(j))";
    let done = rewrite(text, ALL);
    assert!(done.buckets().is_empty());
    for (name, from) in [("h", "g"), ("i", "h"), ("j", "i")] {
        assert_eq!(done.reason(name), &Reason::KeyDiffers { from: from.to_owned(), fields: vec!["device"] });
    }
}
