//! Graphs of many all-reduces.

#![allow(dead_code, reason = "each bench uses a part")]

use bucketeer::ir::text::parse;
use bucketeer::ir::{DType, Graph};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use std::fmt::Write as _;

/// Sizes of 200 tensors from 1 KiB to 1 MiB, 29 MiB in all, by a fixed rule.
pub fn mixed_bytes() -> Vec<u64> {
    (0..200u64).map(|index| 1024 + (index * 7919 % 200) * (index * 104_729 % 200) * 15 * 1024 / 1000 / 4 * 4).collect()
}

/// Who holds what is reduced, and what it becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owner {
    /// The caller: inputs are reduced to outputs.
    Caller,
    /// The graph: a step makes what is reduced, another reads the sum.
    Graph,
}

/// Sums over 2 ranks, of f32 cast to `sent`; all are launched before the first is waited for.
pub fn graph(bytes: &[u64], sent: DType, owner: Owner) -> Graph {
    let mut lines = [const { String::new() }; 3];
    let [inputs, launches, waits] = &mut lines;
    let mut outputs = Vec::new();
    for (index, bytes) in bytes.iter().enumerate() {
        let elements = bytes / 4;
        let ty = format!("{}[{elements}]", sent.short_name());
        let _ = writeln!(inputs, "x{index} = input f32[{elements}]");
        let mut reduced = format!("x{index}");
        if owner == Owner::Graph {
            let _ = writeln!(launches, "g{index} = aten.neg.default({reduced}) : f32[{elements}]");
            reduced = format!("g{index}");
        }
        if sent != DType::F32 {
            let target = "prims.convert_element_type.default";
            let _ = writeln!(launches, "c{index} = {target}({reduced}, torch.{}) : {ty}", sent.torch_name());
            reduced = format!("c{index}");
        }
        let _ = writeln!(launches, "r{index} = all_reduce({reduced}, sum, G:2) : {ty}");
        let _ = writeln!(waits, "w{index} = wait(r{index}) : {ty}");
        if owner == Owner::Graph {
            let _ = writeln!(waits, "u{index} = aten.neg.default(w{index}) : {ty}");
        }
        outputs.push(if owner == Owner::Graph { format!("u{index}") } else { format!("w{index}") });
    }
    let text = format!("{}output({})", lines.concat(), outputs.join(", "));
    parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// In one bucket, if all are of one dtype.
pub fn bucketed(graph: &Graph) -> Graph {
    bucketed_with(graph, "cap=none")
}

/// In buckets, with options of the pass `bucket-all-reduce`.
pub fn bucketed_with(graph: &Graph, options: &str) -> Graph {
    let mut after = graph.clone();
    let pipeline: Pipeline = format!("bucket-all-reduce{{{options}}}").parse().expect("a pipeline");
    pipeline.run(&mut after).expect("buckets");
    after
}

pub fn lowered(graph: &Graph) -> Program {
    lower(graph, &LowerOptions::default()).expect("it is lowered").0
}
