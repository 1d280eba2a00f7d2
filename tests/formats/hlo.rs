//! HLO text: read, and printed back byte for byte.

use bucketeer::ir::{Graph, Op, RegionKind, text, verify};
use bucketeer_formats::{Document, Format};
use kit::files;
use std::path::Path;

fn document(name: &str) -> Document {
    let path = files::fixtures().join("../hlo").join(name);
    Document::read(files::read(&path)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// As native text, whose names have no dots.
fn native(document: &Document) -> String {
    let plain = document.clone().convert(Format::Native).unwrap();
    text::print(&plain.graphs()[0])
}

fn prints_back(path: &Path) {
    let bytes = files::read(path);
    let document = Document::read(bytes.clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(document.format(), Format::Hlo);
    assert!(document.print() == bytes, "{}", path.display());
    verify(&document.graphs()[0]).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    // The other forms can say it, too.
    let native = native(&document);
    let again = text::parse(&native).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text::print(&again) == native, "{}", path.display());
}

#[test]
fn every_fixture_prints_back_byte_for_byte_and_is_well_formed() {
    files::hlo().iter().for_each(|path| prints_back(path));
}

#[test]
fn every_module_of_xla_prints_back_byte_for_byte_and_is_well_formed() {
    let paths = files::with_ending(&files::xla(), ".hlo");
    assert_eq!(paths.len(), 56);
    paths.iter().for_each(|path| prints_back(path));
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn every_shared_fixture_prints_back_byte_for_byte_and_is_well_formed() {
    let paths = files::with_ending(&files::shared().join("hlo"), ".hlo");
    assert!(paths.len() > 100, "{} fixtures", paths.len());
    paths.iter().for_each(|path| prints_back(path));
}

#[test]
fn graphs_of_hlo_look_like_this() {
    for name in [
        "ar_groups_same_other_form",
        "ag_dims",
        "cp_pairs",
        "ar_start_done",
        "rs_async_wrapped",
        "ar_control_dep",
        "ar_frontend_metadata",
        "gpu_ar_while_body.pre_combine",
    ] {
        kit::assert_snapshot!(format!("hlo_{name}"), native(&document(&format!("{name}.hlo"))));
    }
}

#[test]
fn all_spellings_of_the_same_groups_are_one_group() {
    let document = document("ar_groups_same_other_form.hlo");
    let groups = document.graphs()[0].groups();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].size, Some(4));
}

#[test]
fn a_collective_that_is_no_start_is_followed_by_its_wait() {
    let document = document("ar_five_sizes.hlo");
    let graph = &document.graphs()[0];
    let order = graph.order();
    let starts: Vec<usize> = (0..order.len()).filter(|&at| graph.collective(order[at]).is_some()).collect();
    assert_eq!(starts.len(), 5);
    for at in starts {
        assert_eq!(graph.node(order[at + 1]).op, Op::Wait);
        assert_eq!(graph.operands(order[at + 1]), [order[at]]);
    }
}

fn graph(text: &str) -> Graph {
    Document::read(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error}")).graphs()[0].clone()
}

#[test]
fn a_result_that_leaves_sight_in_flight_is_no_collective() {
    let text = "HloModule m, replica_count=2\nENTRY main {\n  a = f32[4] parameter(0)\n  s = (f32[4], f32[8]) all-gather-start(a), \
                replica_groups={{0,1}}, dimensions={0}\n  t = ((f32[4], f32[8])) tuple(s)\n  g = (f32[4], f32[8]) \
                get-tuple-element(t), index=0\n  ROOT d = f32[8] all-gather-done(g)\n}\n";
    let graph = graph(text);
    verify(&graph).unwrap();
    assert!(graph.order().iter().all(|&id| graph.collective(id).is_none()));
}

#[test]
fn bodies_of_loops_branches_and_calls_are_regions_and_those_of_fusions_are_not() {
    let text = "HloModule m\nf { p = f32[] parameter(0)\n ROOT n = f32[] negate(p) }\n\
                one { p = f32[] parameter(0)\n ROOT f = f32[] fusion(p), kind=kLoop, calls=f }\n\
                two { p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=one }\n\
                ENTRY main { i = s32[] parameter(0)\n x = f32[] parameter(1)\n\
                ROOT r = f32[] conditional(i, x, x), branch_computations={one, two} }\n";
    let graph = graph(text);
    verify(&graph).unwrap();
    let regions: Vec<(&str, RegionKind)> = graph.regions()[1..].iter().map(|r| (&*r.label, r.kind)).collect();
    assert_eq!(regions, [("one", RegionKind::Called), ("two", RegionKind::Branch)]);
    let other = text.replace("negate", "abs");
    let names = |graph: &Graph| graph.order().iter().map(|&id| graph.args_of(id).clone()).collect::<Vec<_>>();
    assert_ne!(names(&graph), names(&self::graph(&other)), "what a fusion calls is part of it");
}

#[test]
fn what_acts_on_the_world_outside_cannot_go_unnoticed() {
    let text = "HloModule m, replica_count=2\nbody { p = f32[4] parameter(0)\n\
                c = f32[4] custom-call(p), custom_call_target=\"log\", custom_call_has_side_effect=true\n\
                ROOT r = f32[4] negate(p) }\n\
                ENTRY main { x = f32[4] parameter(0)\n k = token[] after-all()\n\
                o = token[] outfeed(x, k), outfeed_shape=f32[4]\n ROOT y = f32[4] call(x), to_apply=body }\n";
    let before = graph(text);
    verify(&before).unwrap();
    let custom = "c = f32[4] custom-call(p), custom_call_target=\"log\", custom_call_has_side_effect=true\n";
    let outfeed = "o = token[] outfeed(x, k), outfeed_shape=f32[4]\n";
    for gone in [custom, outfeed] {
        let after = graph(&text.replace(gone, ""));
        assert!(!bucketeer::check::prove(&before, &after).is_equal(), "without {gone}");
    }
    // What has no effect and no reader may go.
    let dead = text.replace(" k = token", " d = f32[4] negate(x)\n k = token");
    assert!(bucketeer::check::prove(&graph(&dead), &before).is_equal());
}

#[test]
fn a_reduction_whose_root_is_a_parameter_is_none() {
    let text = "HloModule m, replica_count=2\nfirst { a = f32[] parameter(0)\n ROOT b = f32[] parameter(1)\n\
                c = f32[] add(a, b) }\nENTRY main { x = f32[4] parameter(0)\n\
                ROOT s = f32[4] all-reduce(x), replica_groups={}, to_apply=first }\n";
    assert!(graph(text).order().iter().all(|&id| graph(text).collective(id).is_none()));
}
