//! Two gradients travel in one all-reduce.

use bucketeer::ir::text;
use bucketeer::passes::Pipeline;

fn main() {
    let mut graph = text::parse(
        "a = input f32[1024]; b = input f32[64, 8]
         s0 = all_reduce(a, sum, world:8); w0 = wait(s0)
         s1 = all_reduce(b, sum, world:8); w1 = wait(s1)
         output(w0, w1)",
    )
    .unwrap();

    let pipeline: Pipeline = "bucket-all-reduce{cap=25MiB}".parse().unwrap();
    let reports = pipeline.run(&mut graph).unwrap();

    let plan = reports[0].plan.as_ref().unwrap();
    assert_eq!(plan.names(&graph), [["s0", "s1"]]);
    assert!(text::print(&graph).contains("bucketed_all_reduce = all_reduce(cat, sum, world:8) : f32[1536]"));
}
