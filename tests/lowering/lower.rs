//! Lowering: each rule with both sides of its boundary. Every program here is proven, and read back from its text.

use bucketeer::check::program::{Verdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerError, LowerOptions, LowerReport, all_reduce_path, lower};
use bucketeer::program::{BufferKind, CommOp, Path, Program, StepKind};

fn graph(text: &str) -> Graph {
    bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn bucketed(text: &str) -> Graph {
    let mut graph = graph(text);
    let pipeline = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    graph
}

fn checked(graph: &Graph, options: &LowerOptions) -> (Program, LowerReport) {
    let (program, report) = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    match prove(graph, &program) {
        Verdict::Equal(_) => {}
        other => panic!("{other:?}\n{program}"),
    }
    let again = Program::parse(&program.to_string()).unwrap_or_else(|error| panic!("{error}\n{program}"));
    assert_eq!(again.to_string(), program.to_string());
    assert_eq!(Program::from_json(&program.to_json()).unwrap(), program);
    (program, report)
}

fn lowered(text: &str) -> (Program, LowerReport) {
    checked(&graph(text), &LowerOptions::default())
}

fn refused(text: &str) -> String {
    lower(&graph(text), &LowerOptions::default()).expect_err("it is refused").to_string()
}

fn ops(program: &Program) -> Vec<&'static str> {
    let op = |kind: &StepKind| match kind {
        StepKind::Collective(collective) => Some(collective.op.name()),
        _ => None,
    };
    program.steps.iter().filter_map(|step| op(&step.kind)).collect()
}

fn steps(program: &Program, wanted: fn(&StepKind) -> bool) -> usize {
    program.steps.iter().filter(|step| wanted(&step.kind)).count()
}

#[test]
fn a_bucket_of_gathers_is_written_by_its_producers_and_unpacked_at_once() {
    let text = "x = input bf16[5]; y = input bf16[3]\na = relu(x); b = neg(y)\n\
                g = all_gather(a, G0:2); h = all_gather(b, G0:2)\nw = wait(g); v = wait(h)\noutput(w, v)";
    let (program, report) = checked(&bucketed(text), &LowerOptions::default());
    assert_eq!((report.packed, report.realised, report.padding_bytes), (0, 2, 16));
    kit::assert_snapshot!(program);
    let plain = LowerOptions { realise: false, ..LowerOptions::default() };
    assert_eq!(checked(&bucketed(text), &plain).1.packed, 2);
    let apart = LowerOptions { unpack_at_once: false, ..LowerOptions::default() };
    let unpacks = |program: &Program| steps(program, |kind| matches!(kind, StepKind::Unpack(_)));
    assert_eq!((unpacks(&program), unpacks(&checked(&bucketed(text), &apart).0)), (1, 2));
}

#[test]
fn a_bucket_of_scatters_is_packed_rank_major_and_one_of_reduces_works_in_place() {
    let scatter = "a = input f32[4,2]; b = input f32[2,3]\nr = reduce_scatter(a, sum, G0:2)\n\
                   q = reduce_scatter(b, sum, G0:2)\nw = wait(r); v = wait(q)\noutput(w, v)";
    kit::assert_snapshot!("scatters", checked(&bucketed(scatter), &LowerOptions::default()).0);
    let reduce = "a = input f32[3]; b = input f32[5]\ns = all_reduce(a, sum, G0:2); t = all_reduce(b, sum, G0:2)\n\
                  w = wait(s); v = wait(t)\noutput(neg(w), neg(v))";
    kit::assert_snapshot!("reduces", checked(&bucketed(reduce), &LowerOptions::default()).0);
}

#[test]
fn a_value_is_written_into_its_slot_only_where_nobody_can_tell() {
    let base = |more: &str, outputs: &str| {
        format!(
            "x = input f32[4]; y = input f32[4]\na = relu(x); b = relu(y)\n{more}\n\
             s = all_reduce(a, sum, G0:2); t = all_reduce(b, sum, G0:2)\nw = wait(s); v = wait(t)\noutput(neg(w), neg(v){outputs})"
        )
    };
    let realised = |text: &str| checked(&bucketed(text), &LowerOptions::default()).1.realised;
    assert_eq!(realised(&base("", "")), 2);
    assert_eq!(realised(&base("early = neg(a)", ", early")), 2, "a reader above the launch");
    assert_eq!(realised(&base("", ", neg(a)")), 1, "a reader below the launch");
    assert_eq!(realised(&base("", ", a")), 1, "it leaves the graph");
    let input = "x = input f32[4]; y = input f32[4]\ns = all_reduce(x, sum, G0:2); t = all_reduce(y, sum, G0:2)\n\
                 w = wait(s); v = wait(t)\noutput(neg(w), neg(v))";
    assert_eq!(realised(input), 0, "inputs are the caller's");
    assert_eq!(realised(&base("mul_(a, 2)", "")), 1, "it is written later");
    assert_eq!(realised(&base("", "").replace("t = all_reduce(b", "t = all_reduce(a")), 0, "it is packed twice");
}

#[test]
fn a_cast_that_only_a_pack_reads_is_part_of_it() {
    let text = |more: &str| {
        format!(
            "x = input f32[4]; y = input f32[4]\na = cast(x, bf16); b = cast(y, bf16)\n\
             g = all_gather(a, G0:2); h = all_gather(b, G0:2)\nw = wait(g); v = wait(h)\noutput(w, v{more})"
        )
    };
    let (program, report) = checked(&bucketed(&text("")), &LowerOptions::default());
    assert_eq!((report.absorbed, report.packed), (2, 2));
    assert_eq!(steps(&program, |kind| matches!(kind, StepKind::Compute(_))), 0);
    assert_eq!(checked(&bucketed(&text(", neg(a)")), &LowerOptions::default()).1.absorbed, 1);
    let integers = text("").replace("bf16", "i64");
    assert_eq!(checked(&bucketed(&integers), &LowerOptions::default()).1.absorbed, 0);
}

#[test]
fn a_reduce_works_in_place_only_on_private_storage_without_a_later_reader() {
    let text = |sent: &str, more: &str| {
        format!("x = input f32[4]\ny = relu(x)\ns = all_reduce({sent}, sum, G0:2); w = wait(s)\noutput(neg(w){more})")
    };
    let in_place = |text: &str| lowered(text).1.in_place;
    assert_eq!(in_place(&text("y", "")), 1);
    assert_eq!(in_place(&text("x", "")), 0, "an input");
    assert_eq!(in_place(&text("y", ", neg(y)")), 0, "a later reader");
    assert_eq!(in_place(&text("y", ", y")), 0, "it leaves the graph");
    assert_eq!(in_place(&text("reshape(y, [2, 2])", "")), 1, "a view of private storage");
    assert_eq!(in_place("x = input f32[4]\ny = relu(x)\ns = broadcast(y, 0, G0:2); w = wait(s)\noutput(neg(w))"), 1);
}

#[test]
fn a_value_and_a_view_of_it_in_one_bucket_are_both_packed() {
    let text = "x = input f32[4]; r = relu(x); s = slice(r, 0, 2); cat = aten.cat.default([s, r]) : f32[6]\n\
                h = all_gather(cat, G1:4); w = wait(h); output(w)";
    assert_eq!(checked(&graph(text), &LowerOptions::default()).1.realised, 0);
    // Read by nobody else, the same value is made in its slot.
    let apart = text.replace("s = slice(r, 0, 2)", "s = slice(neg(x), 0, 2)");
    assert_eq!(checked(&graph(&apart), &LowerOptions::default()).1.realised, 1);
}

#[test]
fn every_collective_has_its_lowering() {
    let text = "x = input f32[4,2]; y = input f32[4,2]; buf = input f32[8,2]; part = input f32[2,2]\n\
                a = all_gather(x, G0:2); b = all_gather(x, G0:2, dim=1); c = reduce_scatter(x, avg, G0:2)\n\
                d = reduce_scatter(x, max, G0:2, dim=1); e = all_reduce(x, sum, G0:2); f = broadcast(x, 1, G0:2)\n\
                g = reduce(x, sum, 1, G0:2); h = all_to_all(x, [2, 2], [2, 2], G0:2) : f32[4,2]\n\
                i = permute(x, [[0, 1], [1, 0]], G0:2); j = all_gather(x, out=buf, G0:2)\n\
                k = all_reduce_(y, sum, G0:2)\nl = all_gather_coalesced([x, part], G0:2)\n\
                m = all_reduce_coalesced([x, part], sum, G0:2)\n\
                wa = wait(a); wb = wait(b); wc = wait(c); wd = wait(d); we = wait(e); wf = wait(f); wg = wait(g)\n\
                wh = wait(h); wi = wait(i); wj = wait(j); wk = wait(k); l0 = wait(getitem(l, 0)); l1 = wait(getitem(l, 1))\n\
                m0 = wait(getitem(m, 0)); m1 = wait(getitem(m, 1))\n\
                output(wa, wb, wc, wd, we, wf, wg, wh, wi, neg(wj), neg(wk), l0, l1, m0, m1)";
    let (program, report) = lowered(text);
    let wanted = [
        "all_gather",
        "all_gather",
        "reduce_scatter",
        "reduce_scatter",
        "all_reduce",
        "broadcast",
        "reduce",
        "all_to_all",
        "permute",
        "all_gather",
        "all_reduce",
        "all_gather",
        "all_reduce",
    ];
    assert_eq!(ops(&program), wanted);
    assert_eq!(report.waits_dropped, 2, "one wait for a coalesced launch is enough");
    kit::assert_snapshot!(program);
}

#[test]
fn barriers_and_exchanges_that_are_calls_are_launches() {
    let text = "x = input f32[4,6]\ng = all_reduce(x, sum, G0:2)\n_dtensor.barrier('G0')\n\
                s = _dtensor.shard_dim_alltoall.default(x, 0, 1, 'G0') : f32[8,3]\nw = wait(g)\noutput(w, s)";
    assert_eq!(ops(&lowered(text).0), ["all_reduce", "barrier", "all_to_all"]);
    let sends =
        "x = input f32[4]; y = relu(x)\ng = all_reduce(x, sum, G0:2); w = wait(g)\nisend(y, 1, 0, 'G0')\noutput(w)";
    let (program, _) = lower(&graph(sends), &LowerOptions::default()).unwrap();
    assert_eq!(ops(&program), ["all_reduce", "send"]);
    assert!(refused(&sends.replace("'G0'", "'other'")).contains("names no group"));
}

#[test]
fn what_moves_nothing_is_not_launched_and_its_wait_is_dropped() {
    let text = "x = input f32[4]; e = input f32[0]\ns = all_reduce(x, sum, G1:1); t = all_gather(e, G0:2)\n\
                w = wait(s); v = wait(t)\noutput(w, v)";
    let (program, report) = lowered(text);
    assert_eq!((program.launches(), report.waits_dropped), (0, 2));
}

#[test]
fn each_size_of_an_all_reduce_has_one_path() {
    for max in [0, 1, 1024] {
        for bytes in 0..4097 {
            let wanted = match bytes {
                0 => None,
                _ if bytes <= max => Some(Path::OneShot),
                _ => Some(Path::Normal),
            };
            assert_eq!(all_reduce_path(bytes, max), wanted, "{bytes} of {max}");
        }
    }
    let path = |bytes: u64| {
        let text = format!("x = input u8[{bytes}]\ns = all_reduce(x, sum, G0:2); w = wait(s)\noutput(neg(w))");
        let options = LowerOptions { one_shot_max_bytes: 1024, ..LowerOptions::default() };
        let (program, _) = checked(&graph(&text), &options);
        program.steps.iter().find_map(|step| match &step.kind {
            StepKind::Collective(collective) => Some(collective.path),
            _ => None,
        })
    };
    let found = [0, 1, 1000, 1023, 1024, 1025, 1040].map(path);
    let (one, normal) = (Some(Path::OneShot), Some(Path::Normal));
    assert_eq!(found, [None, one, one, one, one, normal, normal]);
}

#[test]
fn an_in_place_reduction_that_goes_in_one_shot_is_put_back_where_it_lies() {
    // The view is packed, so that what is reduced lies elsewhere than what is read.
    let text = "x = input f32[8, 3]; y = mul_(x, 3) : f32[8, 3]; t = transpose(y) : f32[3, 8][1, 3]\n\
                s = all_reduce_(t, sum, G0:2) : f32[3, 8][1, 3]; w = wait(s) : f32[3, 8][1, 3]\noutput(neg(w))";
    for one_shot_max_bytes in [95, 96] {
        let (program, _) = checked(&graph(text), &LowerOptions { one_shot_max_bytes, ..LowerOptions::default() });
        let unpacks = program.steps.iter().filter(|step| matches!(step.kind, StepKind::Unpack(_))).count();
        assert_eq!(unpacks, 1, "{program}");
    }
}

#[test]
fn writes_go_where_the_graph_writes() {
    lowered(
        "p = input f32[4]; grad = input f32[8]\nacc = zeros_like(grad)\ng = all_gather(p, G0:2); w = wait(g)\n\
             q = copy(w)\nadd_(acc, grad)\noutput(q, acc)",
    );
    lowered("x = input f32[4,4]\nr = slice(x, 0, 2)\nmul_(r, 2)\noutput(neg(x))");
    lowered("x = input f32[4,4]; y = input f32[2,4]\nr = slice(x, 0, 2)\ncopy_(r, y)\noutput(neg(x))");
}

#[test]
fn symbolic_sizes_take_given_values_before_hinted_ones() {
    let text = "hint s = 4\nx = input f32[s]\ng = all_gather(x, G0:2); w = wait(g)\noutput(w)";
    let bytes = |options: &LowerOptions| checked(&graph(text), options).0.buffers[0].bytes;
    assert_eq!(bytes(&LowerOptions::default()), 16);
    let given = LowerOptions { symbols: [("s".into(), 6)].into_iter().collect(), ..LowerOptions::default() };
    assert_eq!(bytes(&given), 24);
    let error = refused(&text.replace("hint s = 4\n", ""));
    assert!(error.contains("`x`") && error.contains("`s`"), "{error}");
}

#[test]
fn what_cannot_be_lowered_is_refused_with_the_node_and_the_reason() {
    let error = refused("x = input f32[4]\ns = all_reduce(x, sum, G0); w = wait(s)\noutput(w)");
    assert!(error.contains("`s`") && error.contains("group `G0`"), "{error}");
    let error = refused("x = input f32[4]\nregion loop(n=3) { y = neg(x) }\noutput(x)");
    assert!(error.contains("region `loop(n=3)`"), "{error}");
    let error = refused("m = input b8[4]\ns = all_reduce(m, avg, G0:2); w = wait(s)\noutput(w)");
    assert!(error.contains("no average"), "{error}");
    let error = refused("x = input f32[4] pending\nw = wait(x)\noutput(w)");
    assert!(error.contains("in flight when the program starts"), "{error}");
    let error =
        lower(&graph("x = input f32[4]\noutput(x)"), &LowerOptions { align_bytes: 24, ..LowerOptions::default() });
    assert!(matches!(error, Err(LowerError::Align(24))));
}

#[test]
fn two_buckets_in_flight_lie_apart_and_a_third_takes_the_place_of_the_first() {
    let mut text = String::new();
    for k in 0..3 {
        text += &format!("x{k} = input f32[256]\ny{k} = relu(x{k})\n");
    }
    text += "s0 = all_reduce(y0, sum, G0:2) impl=registered\ns1 = all_reduce(y1, sum, G0:2) impl=registered\n\
             w0 = wait(s0); z0 = neg(w0)\ns2 = all_reduce(relu(y2), sum, G0:2) impl=registered\n\
             w1 = wait(s1); z1 = neg(w1); w2 = wait(s2)\noutput(z0, z1, neg(w2))";
    let (program, _) = lowered(&text);
    let places: Vec<u64> = program
        .buffers
        .iter()
        .filter(|buffer| buffer.kind == BufferKind::Comm)
        .map(|buffer| buffer.place.unwrap().offset)
        .collect();
    assert_eq!(places, [0, 1024, 0]);
}

#[test]
fn programs_that_are_out_of_shape_are_refused_with_their_place() {
    let (program, _) = lowered("x = input f32[4]\ns = all_reduce(relu(x), sum, G0:2); w = wait(s)\noutput(neg(w))");
    let text = program.to_string();
    for (from, to, wanted) in [
        ("wait s1", "wait s9", "not before it"),
        ("4 relu for 16", "5 relu for 16", "count"),
        ("f32[4] relu", "f32[40] relu", "beyond its buffer"),
        ("f32[4] relu", "f32[2, 3][1, 1] relu", "it writes a place twice"),
        ("at 0:0", "at 7:0", "arena"),
        ("all_reduce sum", "all_reduce most", "a reduce op"),
        ("relu($0)", "relu($3)", "operand that is not there"),
        ("program graph align", "program align", "`align`"),
        ("group G0: 2", "group G0: 0", "no ranks"),
    ] {
        assert!(text.contains(from), "{from}\n{text}");
        let error = Program::parse(&text.replace(from, to)).expect_err(to).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    for end in 0..text.len() {
        let _ = Program::parse(&text[..end]);
    }
    assert!(Program::from_json("{}").is_err());
}

#[test]
fn a_sum_of_bools_is_their_maximum() {
    let (program, _) = lowered("m = input b8[16]\ns = all_reduce(m, sum, G0:2); w = wait(s)\noutput(w)");
    let op = program.steps.iter().find_map(|step| match &step.kind {
        StepKind::Collective(collective) => Some(collective.op.clone()),
        _ => None,
    });
    assert_eq!(op, Some(CommOp::AllReduce(bucketeer::ir::ReduceOp::Max)));
}

#[test]
fn the_example_of_the_manual_is_a_program_and_is_what_its_graph_becomes() {
    let page = include_str!("../../docs/program.md");
    let example = page.split("```program\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let program = Program::parse(example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(program.to_string(), example);
}

#[test]
fn what_a_later_launch_makes_of_a_bucket_in_place_is_copied_behind_that_launch() {
    let text = "x = input f32[4]; y = input f32[4]\ng = all_gather(x, G0:2); h = all_gather(y, G0:2)\n\
                w = wait(g); v = wait(h)\nc = clone(w)\noutput(c, neg(v))";
    lowered(text);
    let text = "x = input f32[8]\np = cat([relu(x), neg(x)])\ns = all_reduce(p, sum, G0:2); w = wait(s)\n\
                a = slice(w, 0, 8); b = slice(w, 8, 16)\nc = clone(a)\nt = all_reduce(b, max, G0:2); u = wait(t)\n\
                d = clone(u)\noutput(c, d)";
    let text = text.replace("p = cat([relu(x), neg(x)])", "p = cat([relu(x), neg(x)]) : f32[16]");
    let (program, report) = lowered(&text);
    assert_eq!(report.in_place, 1);
    assert_eq!(steps(&program, |kind| matches!(kind, StepKind::Unpack(_))), 2);
}

#[test]
fn parts_that_autograd_does_not_track_are_placements_and_evaluated() {
    for (split, parts) in [
        ("aten.unsafe_split.Tensor(y, 3, 0)", [3, 3, 2]),
        ("aten.unsafe_split_with_sizes.default(y, [3, 3, 2], 0)", [3, 3, 2]),
        ("aten.unsafe_chunk.default(y, 3, 0)", [3, 3, 2]),
    ] {
        let part = |at: usize| format!("p{at} = operator.getitem(s, {at}) : f32[{}]", parts[at]);
        let text = format!(
            "x = input f32[8]\ny = neg(x) : f32[8]\ns = {split}\n{}\n{}\n{}\n\
             r = all_reduce(p2, sum, G:2) : f32[2]\nw = wait(r) : f32[2]\nz = relu(p1) : f32[3]\noutput(w, z, p0)",
            part(0),
            part(1),
            part(2)
        );
        let (program, _) = lowered(&text);
        assert_eq!(steps(&program, |kind| matches!(kind, StepKind::Compute(_))), 2, "{split}\n{program}");
        let whole = text.replace(split, "aten.split_with_sizes.default(y, [3, 3, 2], 0)");
        let outputs = |text: &str| bucketeer_eval::evaluate(&graph(text), &Default::default()).unwrap();
        assert_eq!(outputs(&text), outputs(&whole), "{split}");
    }
}
