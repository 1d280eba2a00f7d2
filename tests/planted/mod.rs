//! Faults to plant into merged graphs: each is a way in which a rewrite could be wrong.

#![allow(dead_code, reason = "each test file uses a part")]

mod edit;
mod layout;
mod others;

use bucketeer::formats::fx::FxText;
use bucketeer::ir::{Graph, text};
use bucketeer::passes::Pipeline;
use layout::*;
use others::*;
use std::path::Path;

/// A source graph with a right rewrite of it.
pub struct Pair {
    pub name: String,
    pub before: Graph,
    pub after: Graph,
}

/// One kind of fault.
pub struct Fault {
    pub name: &'static str,
    /// Whether some output, or memory that is left, has another value on some input.
    pub changes_values: bool,
    /// Plants it; false where the graph has no place for it.
    pub plant: fn(&mut Graph) -> bool,
}

const CONCAT: &str = "bucket-reduce-scatter{cap=100MiB},bucket-all-reduce{cap=100MiB},bucket-all-gather{cap=100MiB}";
const COALESCED: &str = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}";
const NO_CAP: &str = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none},bucket-broadcast{cap=none}";

/// Effects of all kinds around collectives that merge.
const EFFECTS: &str = "graph effects {
  a = input f32[4]; b = input f32[4]; s = input f32[4]; t = input f32[4]
  c = input f32[4]; d = input f32[4]
  before = aten.add.Tensor(s, a) : f32[4]
  ga = all_gather(a, G0:2)
  wa = wait(ga)
  wrote = aten.copy_.default(s, b) : f32[4]
  late = aten.mul.Tensor(s, a) : f32[4]
  gb = all_gather(b, G0:2)
  wb = wait(gb)
  n = aten.neg.default(a) : f32[4]
  gn = all_gather(n, G0:2)
  wn = wait(gn)
  first = aten.rand_like.default(a) : f32[4]
  second = aten.rand_like.default(b) : f32[4]
  bc = broadcast(c, 0, G0:2)
  wbc = wait(bc)
  bd = broadcast(d, 0, G0:2)
  wbd = wait(bd)
  after(bc, wb)
  opaque_comm.barrier()
  gc = all_gather(c, H:2)
  wc = wait(gc)
  gs = all_gather(s, G0:2)
  ws = wait(gs)
  r = all_reduce(d, sum, H:2)
  wr = wait(r)
  cut = aten.sub.Tensor(wr, c) : f32[4]
  output(wa, wb, before, late, first, second, wbc, wbd, wc, ws, wr, cut, wn)
}";

/// Graphs with their rewrites.
pub fn pairs() -> Vec<Pair> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fx");
    let mut pairs = Vec::new();
    for (file, pipeline) in [
        ("fsdp_l2_ws8_bf16.backward.txt", CONCAT),
        ("tiny_hsdp_rsar_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_fsdp_tp_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_ddp_bf16_arfp32.backward.txt", CONCAT),
        ("live_dynamic.backward.txt", NO_CAP),
        ("live.joint.txt", COALESCED),
    ] {
        let module = FxText::parse(super::files::read(&folder.join(file))).unwrap();
        pairs.push(rewritten(file, &module.graphs()[0], pipeline));
    }
    pairs.push(rewritten("effects", &text::parse(EFFECTS).unwrap(), NO_CAP));
    let Some(shared) = super::files::shared() else { return pairs };
    for (case, file) in [
        ("fsdp_l2_ws8_bf16", "backward.all_gather.default.cap100"),
        ("fsdp_l2_ws8_bf16", "forward.all_gather.custom_ops.cap100"),
        ("fsdp_uneven_l2_ws8_bf16", "backward.reduce_scatter.default.cap100"),
        ("hsdp_rsar_l2_ws8_bf16_rsfp32", "backward.all_reduce.default.cap100"),
    ] {
        let folder = shared.join("torch/graphs").join(case);
        let graph = |name: &str| FxText::parse(super::files::read(&folder.join(name))).unwrap().graphs()[0].clone();
        let name = format!("PyTorch {case} {file}");
        let stem = file.split('.').next().unwrap();
        let before = graph(&format!("{stem}.full.txt"));
        pairs.push(Pair { name, before, after: graph(&format!("{file}.merged.txt")) });
    }
    pairs
}

fn rewritten(name: &str, before: &Graph, pipeline: &str) -> Pair {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    Pair { name: name.to_owned(), before: before.clone(), after }
}

/// All kinds.
pub const FAULTS: &[Fault] = &[
    Fault { name: "members swapped in the pack", changes_values: true, plant: swap_pack },
    Fault { name: "one member packed twice, another not", changes_values: true, plant: twice_in_pack },
    Fault { name: "members swapped in the unpack", changes_values: true, plant: swap_unpack },
    Fault { name: "member read one element late", changes_values: true, plant: off_by_one },
    Fault { name: "member read from another's start", changes_values: true, plant: wrong_start },
    Fault { name: "member of another bucket", changes_values: true, plant: other_buckets_member },
    Fault { name: "scatter packed member by member", changes_values: true, plant: member_major_scatter },
    Fault { name: "gather unpacked member by member", changes_values: true, plant: rank_order_of_gather },
    Fault { name: "gathered table transposed", changes_values: true, plant: transposed_gather },
    Fault { name: "wait dropped", changes_values: false, plant: drop_wait },
    Fault { name: "wait after a read", changes_values: false, plant: wait_after_read },
    Fault { name: "result written while in flight", changes_values: true, plant: write_in_flight },
    Fault { name: "group swapped", changes_values: false, plant: other_group },
    Fault { name: "reduction changed", changes_values: true, plant: other_reduction },
    Fault { name: "root of a broadcast changed", changes_values: true, plant: other_root },
    Fault { name: "rounding moved across a sum", changes_values: true, plant: cast_across_sum },
    Fault { name: "rounded twice", changes_values: true, plant: double_rounding },
    Fault { name: "stale read after an in-place write", changes_values: true, plant: stale_read },
    Fault { name: "in-place write dropped", changes_values: true, plant: dropped_write },
    Fault { name: "in-place write added", changes_values: true, plant: extra_write },
    Fault { name: "collective dropped, input in its place", changes_values: true, plant: drop_launch },
    Fault {
        name: "collective dropped, another's result in its place",
        changes_values: true,
        plant: launch_for_another,
    },
    Fault { name: "collective launched twice", changes_values: false, plant: second_launch },
    Fault { name: "collective that nobody asked for", changes_values: false, plant: foreign_launch },
    Fault { name: "pad leaking", changes_values: true, plant: leaking_pad },
    Fault { name: "view of a bucket escaping as an output", changes_values: false, plant: escaping_view },
    Fault { name: "order edge dropped", changes_values: false, plant: lost_edge },
    Fault { name: "order edge broken", changes_values: false, plant: broken_edge },
    Fault { name: "launches of a group swapped", changes_values: false, plant: swapped_launches },
    Fault { name: "collective moved across a fence", changes_values: false, plant: across_fence },
    Fault { name: "fence dropped", changes_values: false, plant: dropped_fence },
    Fault { name: "random draws swapped", changes_values: true, plant: swapped_draws },
    Fault { name: "outputs swapped", changes_values: true, plant: swapped_outputs },
    Fault { name: "output lost", changes_values: true, plant: lost_output },
    Fault { name: "input of a gather not at a rank's place", changes_values: true, plant: wrong_slot },
    Fault { name: "constant changed", changes_values: true, plant: other_constant },
    Fault { name: "operands swapped", changes_values: true, plant: swapped_operands },
    Fault { name: "run-time sizes in another order", changes_values: true, plant: wrong_run_time_size },
    Fault { name: "run-time size not divided", changes_values: true, plant: undivided_size },
    Fault { name: "member packed before its last step", changes_values: true, plant: stale_member },
    Fault { name: "memory that was never written", changes_values: true, plant: unwritten_buffer },
];
