//! Faults to plant into merged graphs: each is a way in which a rewrite could be wrong.

mod edit;
mod layout;
mod others;
pub mod small;

use bucketeer::ir::{Graph, text};
use bucketeer::passes::Pipeline;
use bucketeer_eval::EvalOptions;
use bucketeer_formats::fx::FxText;
use layout::*;
use others::*;
use std::path::Path;

/// A source graph with a right rewrite of it.
pub struct Pair {
    /// Of the graph, or of its file.
    pub name: String,
    /// The source.
    pub before: Graph,
    /// What a pipeline made of it.
    pub after: Graph,
    /// What to run them with; none where the graphs are too large to run.
    pub eval: Option<EvalOptions>,
}

/// What a fault does to outputs and to the memory of inputs, on some input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// One has another value, or there is none: the graph cannot be run.
    Change,
    /// None does, and why.
    Stay(&'static str),
}

/// One kind of fault.
pub struct PlantedFault {
    /// What is wrong, in a few words.
    pub name: &'static str,
    /// What becomes of values.
    pub values: Values,
    /// Plants it; false where the graph has no place for it.
    pub plant: fn(&mut Graph) -> bool,
}

const CONCAT: &str = "bucket-reduce-scatter{cap=100MiB},bucket-all-reduce{cap=100MiB},bucket-all-gather{cap=100MiB}";
const COALESCED: &str = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}";
const NO_CAP: &str = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none},bucket-broadcast{cap=none}";

/// All kinds that merge, each twice, and two groups of the same ranks.
const SMALL: &str = "graph small {
  group G:2 = [[0, 1]]
  group H:2 = [[1, 0]]
  a = input f32[4, 2]; b = input f32[6]; c = input bf16[2, 2]; d = input bf16[2]; h = input f32[2]
  e = input f32[3]; f = input f32[3]; wide = input f32[64]
  ga = all_gather(a, G:2); wa = wait(ga)
  gb = all_gather(b, G:2); wb = wait(gb)
  ra = reduce_scatter(a, sum, G:2); va = wait(ra)
  rb = reduce_scatter(b, sum, G:2); vb = wait(rb)
  sc = all_reduce(c, sum, G:2); uc = wait(sc)
  sd = all_reduce(d, sum, G:2); ud = wait(sd)
  se = all_reduce(e, sum, G:2); ue = wait(se)
  sf = all_reduce(f, sum, G:2); uf = wait(sf)
  narrow = prims.convert_element_type.default(wide, bf16) : bf16[64]
  gn = all_gather(narrow, G:2); wn = wait(gn)
  gh = all_gather(h, H:2); wh = wait(gh)
  y = aten.add.Tensor(wa, 1) : f32[8, 2]
  k = aten.clone.default(h) : f32[2]
  output(y, wb, va, vb, uc, ud, ue, uf, wn, wh, k)
}";

/// Effects of all kinds around collectives that merge.
const EFFECTS: &str = "graph effects {
  group G0:2 = [[0, 1], [2, 3]]
  group H:2 = [[0, 2], [1, 3]]
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
    let folder = crate::root().join("fixtures/fx");
    let mut pairs = Vec::new();
    for (file, pipeline) in [
        ("fsdp_l2_ws8_bf16.backward.txt", CONCAT),
        ("tiny_hsdp_rsar_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_fsdp_tp_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_ddp_bf16_arfp32.backward.txt", CONCAT),
        ("live_dynamic.backward.txt", NO_CAP),
        ("live_static.backward.txt", NO_CAP),
        ("live.joint.txt", NO_CAP),
        ("live.joint.txt", COALESCED),
    ] {
        let module = FxText::parse(crate::files::read(&folder.join(file))).unwrap();
        let eval = (!file.contains("_l2_")).then(|| options(&folder, file));
        let name = if pipeline == COALESCED { format!("{file}, coalesced") } else { file.to_owned() };
        pairs.push(rewritten(&name, &module.graphs()[0], pipeline, eval));
    }
    for (name, text) in [("small", SMALL), ("effects", EFFECTS)] {
        pairs.push(rewritten(name, &text::parse(text).unwrap(), NO_CAP, Some(EvalOptions::default())));
    }
    for (case, file) in [
        ("fsdp_l2_ws8_bf16", "backward.all_gather.default.cap100"),
        ("fsdp_l2_ws8_bf16", "forward.all_gather.custom_ops.cap100"),
        ("fsdp_uneven_l2_ws8_bf16", "backward.reduce_scatter.default.cap100"),
        ("hsdp_rsar_l2_ws8_bf16_rsfp32", "backward.all_reduce.default.cap100"),
    ] {
        let folder = crate::files::torch_graphs().join(case);
        let graph = |name: &str| FxText::parse(crate::files::read(&folder.join(name))).unwrap().graphs()[0].clone();
        let name = format!("PyTorch {case} {file}");
        let stem = file.split('.').next().unwrap();
        let before = graph(&format!("{stem}.full.txt"));
        pairs.push(Pair { name, before, after: graph(&format!("{file}.merged.txt")), eval: None });
    }
    pairs
}

fn rewritten(name: &str, before: &Graph, pipeline: &str, eval: Option<EvalOptions>) -> Pair {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    Pair { name: name.to_owned(), before: before.clone(), after, eval }
}

/// The groups that stand beside a graph.
fn options(folder: &Path, file: &str) -> EvalOptions {
    let stem = file.split('.').next().unwrap();
    // Of live_dynamic: run-time sizes that differ, so that a swap of two shows.
    let symbols = [("s48", 4), ("s66", 8), ("s77", 16)].map(|(name, size)| (name.to_owned(), size));
    let mut options = EvalOptions { symbols: symbols.into_iter().collect(), ..EvalOptions::default() };
    let Ok(text) = std::fs::read(folder.join(format!("{stem}.groups.json"))) else { return options };
    let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    for (name, lists) in value["groups"].as_object().unwrap() {
        options.groups.insert(name.clone(), serde_json::from_value(lists.clone()).unwrap());
    }
    options
}

/// All kinds.
pub const FAULTS: &[PlantedFault] = &[
    PlantedFault { name: "members swapped in the pack", values: Values::Change, plant: swap_pack },
    PlantedFault { name: "one member packed twice, another not", values: Values::Change, plant: twice_in_pack },
    PlantedFault { name: "members swapped in the unpack", values: Values::Change, plant: swap_unpack },
    PlantedFault { name: "member read one element late", values: Values::Change, plant: off_by_one },
    PlantedFault { name: "member read from another's start", values: Values::Change, plant: wrong_start },
    PlantedFault { name: "member of another bucket", values: Values::Change, plant: other_buckets_member },
    PlantedFault { name: "scatter packed member by member", values: Values::Change, plant: member_major_scatter },
    PlantedFault { name: "gather unpacked member by member", values: Values::Change, plant: rank_order_of_gather },
    PlantedFault { name: "gathered table transposed", values: Values::Change, plant: transposed_gather },
    PlantedFault { name: "wait dropped", values: Values::Change, plant: drop_wait },
    PlantedFault { name: "wait after a read", values: Values::Change, plant: wait_after_read },
    PlantedFault { name: "result written while in flight", values: Values::Change, plant: write_in_flight },
    PlantedFault { name: "ranks of a group in another order", values: Values::Change, plant: other_rank_order },
    PlantedFault { name: "result reduced once more", values: Values::Change, plant: reduced_twice },
    PlantedFault { name: "group swapped", values: Values::Change, plant: other_group },
    PlantedFault { name: "reduction changed", values: Values::Change, plant: other_reduction },
    PlantedFault { name: "root of a broadcast changed", values: Values::Change, plant: other_root },
    PlantedFault { name: "rounding moved across a sum", values: Values::Change, plant: cast_across_sum },
    PlantedFault { name: "rounded twice", values: Values::Change, plant: double_rounding },
    PlantedFault { name: "stale read after an in-place write", values: Values::Change, plant: stale_read },
    PlantedFault { name: "in-place write dropped", values: Values::Change, plant: dropped_write },
    PlantedFault { name: "in-place write added", values: Values::Change, plant: extra_write },
    PlantedFault { name: "collective dropped, input in its place", values: Values::Change, plant: drop_launch },
    PlantedFault {
        name: "collective dropped, another's result in its place",
        values: Values::Change,
        plant: launch_for_another,
    },
    PlantedFault {
        name: "collective launched twice",
        values: Values::Stay("the second result is not read"),
        plant: second_launch,
    },
    PlantedFault {
        name: "collective that nobody asked for",
        values: Values::Stay("its result is not read"),
        plant: foreign_launch,
    },
    PlantedFault { name: "pad leaking", values: Values::Change, plant: leaking_pad },
    PlantedFault { name: "view of a bucket escaping as an output", values: Values::Change, plant: escaping_view },
    PlantedFault { name: "input handed out for its copy", values: Values::Change, plant: input_as_output },
    PlantedFault {
        name: "order edge dropped",
        values: Values::Stay("an edge says when a node runs, not what it makes"),
        plant: lost_edge,
    },
    PlantedFault {
        name: "order edge broken",
        values: Values::Stay("an edge says when a node runs, not what it makes"),
        plant: broken_edge,
    },
    PlantedFault {
        name: "launches of a group swapped",
        values: Values::Stay("all ranks of a run launch in the same order, whichever it is"),
        plant: swapped_launches,
    },
    PlantedFault {
        name: "collective moved across a fence",
        values: Values::Stay("a fence makes nothing that is read"),
        plant: across_fence,
    },
    PlantedFault {
        name: "fence dropped",
        values: Values::Stay("a fence makes nothing that is read"),
        plant: dropped_fence,
    },
    PlantedFault { name: "random draws swapped", values: Values::Change, plant: swapped_draws },
    PlantedFault { name: "outputs swapped", values: Values::Change, plant: swapped_outputs },
    PlantedFault { name: "output lost", values: Values::Change, plant: lost_output },
    PlantedFault { name: "input of a gather not at a rank's place", values: Values::Change, plant: wrong_slot },
    PlantedFault { name: "constant changed", values: Values::Change, plant: other_constant },
    PlantedFault { name: "operands swapped", values: Values::Change, plant: swapped_operands },
    PlantedFault { name: "run-time sizes in another order", values: Values::Change, plant: wrong_run_time_size },
    PlantedFault { name: "run-time size not divided", values: Values::Change, plant: undivided_size },
    PlantedFault { name: "member packed before its last step", values: Values::Change, plant: stale_member },
    PlantedFault { name: "memory that was never written", values: Values::Change, plant: unwritten_buffer },
];

/// The group that a fault made up has the ranks of another one, in another order.
pub fn with_planted(options: &EvalOptions, graph: &Graph) -> EvalOptions {
    let mut options = options.clone();
    let planted = graph.groups().iter().find(|group| &*group.name == "planted");
    if let Some(planted) = planted.filter(|group| group.members.is_empty()) {
        let alike = |lists: &&Vec<Vec<u32>>| {
            planted.size.is_none() || lists.first().is_some_and(|list| Some(list.len() as u32) == planted.size)
        };
        let known = options.groups.values().find(alike).cloned();
        let mut lists = known.unwrap_or_else(|| vec![(0..planted.size.unwrap_or(1)).collect()]);
        lists.iter_mut().for_each(|list| list.reverse());
        options.groups.insert("planted".to_owned(), lists);
    }
    options
}
