//! The builder of graphs: what it makes is what the text of the same graph makes.

use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{BuildArg, CollectiveKind, DType, GraphBuilder, ReduceOp, TensorType};

fn tensor(shape: &[u64]) -> TensorType {
    TensorType::dense(DType::F32, shape)
}

#[test]
fn a_built_graph_prints_as_the_text_it_would_be_read_from() {
    let mut build = GraphBuilder::new("step");
    let world = build.group("world", 4);
    let a = build.input("a", tensor(&[8, 2]));
    let b = build.input("b", tensor(&[2, 8]));
    let gathered = build.collective("s0", CollectiveKind::AllGather { dim: 0 }, world, a);
    let a_all = build.wait("w0", gathered);
    let product = build.call("mm", "aten.mm.default", vec![a_all.into(), b.into()], tensor(&[32, 8]));
    let joined =
        build.call("cat", "aten.cat.default", vec![vec![product, product].into(), 1.into()], tensor(&[32, 16]));
    let kind = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };
    let scattered = build.collective("s1", kind, world, joined);
    let share = build.wait("w1", scattered);
    let graph = build.finish(&[share]).unwrap();
    let text = print(&graph);
    assert_eq!(print(&parse(&text).unwrap()), text);
    let written = parse(
        "graph step {
         a = input f32[8, 2]
         b = input f32[2, 8]
         s0 = all_gather(a, world:4)
         w0 = wait(s0)
         mm = aten.mm.default(w0, b) : f32[32, 8]
         cat = aten.cat.default([mm, mm], 1) : f32[32, 16]
         s1 = reduce_scatter(cat, sum, world:4)
         w1 = wait(s1)
         output(w1)
         }",
    )
    .unwrap();
    assert_eq!(text, print(&written));
    assert_eq!(graph.tensor(share).unwrap(), &tensor(&[8, 16]));
}

#[test]
fn what_is_built_wrong_is_an_error_that_names_the_node() {
    let mut build = GraphBuilder::new("step");
    let world = build.group("world", 3);
    let a = build.input("a", tensor(&[8]));
    let started = build.collective("early", CollectiveKind::AllGather { dim: 0 }, world, a);
    let read = build.call("read", "aten.neg.default", vec![started.into()], tensor(&[24]));
    let error = build.finish(&[read]).unwrap_err().to_string();
    assert!(error.contains("`read` reads `early`"), "{error}");
    let kind = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };
    let mut build = GraphBuilder::new("step");
    let world = build.group("world", 3);
    let a = build.input("a", tensor(&[8]));
    let started = build.collective("s", kind, world, a);
    let share = build.wait("w", started);
    let error = build.finish(&[share]).unwrap_err().to_string();
    assert!(error.contains("`s`"), "{error}");
    let mut build = GraphBuilder::new("step");
    let a = build.input("a", tensor(&[8]));
    let again = build.call("a", "aten.neg.default", vec![BuildArg::from(a)], tensor(&[8]));
    let error = build.finish(&[again]).unwrap_err().to_string();
    assert!(error.contains("`a`"), "{error}");
}
