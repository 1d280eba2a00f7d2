//! The faults found in PyTorch 2.15's bucketing, `W1` to `W18` and `M1` to `M8`: for each, what is right.
//!
//! The harness computes every graph before and after on all ranks, so a test that only rewrites still checks values.

use bucketeer::ir::Graph;
use bucketeer::passes::bucketing::Reason;
use bucketeer_eval::EvalOptions;
use bucketeer_formats::fx::FxText;
use kit::rewrite::{ALL, Rewritten, evaluate, read, read_fx, rewrite, rewrite_graph, rewrite_shapes, with_symbols};

const ADJACENT: &str = "bucket-all-gather{cap=none,policy=adjacent},bucket-all-reduce{cap=none,policy=adjacent}";
const COALESCED: &str = "bucket-all-gather{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced}";
const BYTES: &str = "bucket-all-gather{cap=none,mixed-dtype=bytes}";

/// Under every policy and mode.
fn everywhere(text: &str) -> Vec<Rewritten> {
    [ALL, ADJACENT, COALESCED].map(|pipeline| rewrite(text, pipeline)).into()
}

fn fx(signature: &str, body: &[&str]) -> String {
    let body: String = body.iter().map(|line| format!("        {line}\n")).collect();
    format!("class GraphModule(torch.nn.Module):\n    def forward(self, {signature}):\n{body}")
}

#[test]
fn w1_an_input_written_after_its_gather_is_sent_as_it_was() {
    for kind in ["all_gather(X, G0:2)", "all_reduce(X, sum, G0:2)"] {
        let text = format!(
            "p = input f32[4]; q = input f32[4]\ng = {}; mul_(p, 10.0); h = {}\nw = wait(g); v = wait(h)\noutput(w, v)",
            kind.replace('X', "p"),
            kind.replace('X', "q"),
        );
        for done in everywhere(&text) {
            assert_eq!(done.buckets(), [["g", "h"]]);
        }
    }
}

#[test]
fn w1_an_input_written_between_through_a_view_is_sent_as_it_was() {
    let text = "p = input f32[4]; q = input f32[4]\nh0 = reshape(p, [2, 2]); g = all_gather(p, G0:2)\n\
                mul_(h0, 10.0); n = add(p, q); h = all_gather(n, G0:2)\nw = wait(g); v = wait(h)\noutput(w, v, h0)";
    for done in everywhere(text) {
        assert!(done.buckets().is_empty(), "h needs the written p, which g must not see");
    }
    let done = rewrite(text, ALL);
    assert_eq!(done.reason("h").label(), "written between");
}

#[test]
fn w2_a_dependency_through_a_written_buffer_keeps_members_apart() {
    let text = "p = input f32[4]; q = input f32[8]\ng = all_gather(p, G0:2); w = wait(g)\n\
                copy_(q, w); h = all_gather(q, G0:2); v = wait(h)\noutput(w, v)";
    for done in everywhere(text) {
        assert_eq!(done.count("all_gather"), 2);
        assert_eq!(done.reason("h").label(), "written between");
    }
}

#[test]
fn w3_reads_stay_below_the_write_they_see() {
    let text = "p = input f32[4]; q = input f32[4]; s = input f32[8]\ng = all_gather(p, G0:2); w = wait(g)\n\
                copy_(s, w); r = add(s, 1.0)\nh = all_gather(q, G0:2); v = wait(h)\noutput(r, v)";
    for done in everywhere(text) {
        assert_eq!(done.buckets(), [["g", "h"]]);
        assert!(done.place("copy_") < done.place("r"));
    }
}

#[test]
fn w4_members_are_converted_before_they_are_packed() {
    let text = "p = input i64[4]; q = input f32[4]\nc = cast(p, i32); d = cast(q, i32)\n\
                g = all_gather(c, G0:2); h = all_gather(d, G0:2)\nw = wait(g); v = wait(h)\noutput(w, v)";
    for done in everywhere(text) {
        assert_eq!(done.buckets(), [["g", "h"]]);
        assert!(!done.text().contains("cat.default([p"), "{}", done.text());
    }
}

#[test]
fn w5_a_gather_into_a_tensor_that_others_read_is_left_alone() {
    let text = "p = input f32[4]; q = input f32[4]\na = alloc f32[8]; b = alloc f32[8]\n\
                g = all_gather(p, out=a, G0:2); w = wait(g); h = all_gather(q, out=b, G0:2); v = wait(h)\n\
                output(a, b, add(a, b))";
    for done in everywhere(text) {
        assert_eq!(done.count("all_gather"), 2);
        assert_eq!(done.reason("g"), &Reason::WritesOut);
    }
}

#[test]
fn w6_a_conversion_that_moves_devices_stays_where_it_is() {
    let text = fx(
        r#"x: "f32[4][1]cpu", y: "f32[4][1]cpu""#,
        &[
            r#"a: "bf16[4][1]cuda:0" = torch.ops.aten._to_copy.default(x, dtype = torch.bfloat16, device = device(type='cuda', index=0))"#,
            r#"b: "bf16[4][1]cuda:0" = torch.ops.aten._to_copy.default(y, dtype = torch.bfloat16, device = device(type='cuda', index=0))"#,
            r#"g: "bf16[8][1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0')"#,
            r#"w: "bf16[8][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(g)"#,
            r#"h: "bf16[8][1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(b, 2, '0')"#,
            r#"v: "bf16[8][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(h)"#,
            "return (w, v)",
        ],
    );
    let done = rewrite_graph(read_fx(&text), ALL, &[EvalOptions::default()]);
    assert_eq!(done.buckets(), [["g", "h"]]);
    let launch = done.graph.order().iter().find(|&&id| done.graph.collective(id).is_some()).unwrap();
    assert_eq!(done.graph.tensor(*launch).unwrap().device.as_deref(), Some("cuda:0"));
}

#[test]
fn w7_a_merge_of_one_kind_leaves_no_loop_for_the_next() {
    // A scatter, a gather that depends on it, an independent gather that feeds a second scatter.
    let text = "a = input f32[8]; b = input f32[4]\nr0 = reduce_scatter(a, sum, G0:2); u0 = wait(r0)\n\
                g0 = all_gather(u0, G0:2); w0 = wait(g0)\ng1 = all_gather(b, G0:2); w1 = wait(g1)\n\
                r1 = reduce_scatter(w1, sum, G0:2); u1 = wait(r1)\noutput(w0, u1)";
    for policy in ["greedy", "adjacent"] {
        let kinds = ["reduce-scatter", "all-reduce", "all-gather"];
        let pass = |kind: &&str| format!("bucket-{kind}{{cap=none,policy={policy}}}");
        let order: Vec<String> = kinds.iter().map(pass).collect();
        let done = rewrite(text, &order.join(","));
        // Once the scatters travel together, the gathers depend on one another.
        assert_eq!((done.count("reduce_scatter"), done.count("all_gather")), (1, 2));
        let order: Vec<String> = kinds.iter().rev().map(pass).collect();
        let done = rewrite(text, &order.join(","));
        assert_eq!((done.count("reduce_scatter"), done.count("all_gather")), (2, 1));
    }
}

#[test]
fn w8_a_reader_of_a_members_shape_reads_it_from_the_input() {
    let text = "s = symbol hint=4; p = input f32[s, 3]; q = input f32[4]\ng = all_gather(p, G0:2)\n\
                n = aten.sym_size.int(g, 0) : Sym(2*s); m = aten.sym_numel.default(g) : Sym(6*s)\n\
                k = aten.sym_size.int(g, -1) : Sym(3); l = aten.sym_size.int(g, -2) : Sym(2*s)\nw = wait(g)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, v, n, m, k, l)";
    let options = [4, 5, 0].map(|s| with_symbols([("s", s)]));
    for pipeline in [ALL, ADJACENT, COALESCED] {
        let done = rewrite_graph(read(text), pipeline, &options);
        assert_eq!(done.buckets(), [["g", "h"]]);
    }
    let scatter = text.replace("all_gather(p, G0:2)", "reduce_scatter(p, sum, G0:2)");
    let scatter = scatter.replace("all_gather(q, G0:2)", "reduce_scatter(q, sum, G0:2)");
    let scatter = scatter.replace("f32[s, 3]", "f32[2*s, 3]").replace("Sym(2*s)", "Sym(s)").replace("6*s", "3*s");
    for mode in ["concat", "coalesced"] {
        let pipeline = format!("bucket-reduce-scatter{{cap=none,mode={mode}}}");
        let done = rewrite_graph(read(&scatter), &pipeline, &options);
        assert_eq!(done.buckets(), [["g", "h"]]);
    }
}

#[test]
fn w8_a_reader_of_the_value_before_the_wait_is_refused_by_name() {
    let text = "p = input f32[4]; q = input f32[4]\ng = all_gather(p, G0:2); x = reshape(g, [2, 4]); w = wait(g)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, v, x)";
    for done in everywhere(text) {
        assert_eq!(done.reason("g"), &Reason::ReadBeforeWait { by: "x".to_owned() });
    }
}

#[test]
fn w9_a_collective_waited_for_twice_is_no_member_twice() {
    let text = "p = input f32[4]; q = input f32[4]\ng = all_gather(p, G0:2); w = wait(g); x = wait(g)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, x, v)";
    for policy in ["greedy", "adjacent"] {
        let done = rewrite(text, &format!("bucket-all-gather{{cap=none,policy={policy}}}"));
        assert_eq!(done.reason("g"), &Reason::WaitedTwice { waits: 2 });
        assert!(done.buckets().is_empty());
        let done = rewrite(text, &format!("dedupe-waits,bucket-all-gather{{cap=none,policy={policy}}}"));
        assert_eq!(done.buckets(), [["g", "h"]]);
    }
}

#[test]
fn w10_arguments_by_keyword_are_read() {
    let text = fx(
        r#"x: "f32[4][1]cpu", y: "f32[4][1]cpu""#,
        &[
            r#"g: "f32[8][1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(x, group_size = 2, group_name = '0')"#,
            r#"w: "f32[8][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(g)"#,
            r#"h: "f32[8][1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(input = y, group_size = 2, group_name = '0')"#,
            r#"v: "f32[8][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(tensor = h)"#,
            "return (w, v)",
        ],
    );
    for pipeline in [ALL, ADJACENT, COALESCED] {
        let mut file = FxText::parse(text.clone().into_bytes()).unwrap();
        let done = rewrite_graph(file.graphs()[0].clone(), pipeline, &[EvalOptions::default()]);
        assert_eq!(done.buckets(), [["g", "h"]]);
        // What is printed reads back as the same graph.
        pipeline.parse::<bucketeer::passes::Pipeline>().unwrap().run(&mut file.graphs_mut()[0]).unwrap();
        let printed = file.print();
        let again = FxText::parse(printed.clone()).unwrap();
        let (mut a, mut b) = (again.graphs()[0].clone(), file.graphs()[0].clone());
        for graph in [&mut a, &mut b] {
            bucketeer::ir::text::normalize(graph);
        }
        let run = |graph: &Graph| evaluate(graph, &EvalOptions::default());
        assert_eq!(run(&a), run(&b), "{}", String::from_utf8_lossy(&printed));
    }
}

#[test]
fn w11_the_device_is_part_of_the_key() {
    let text = "p = input f32[4] on cuda:0; q = input f32[4] on cpu\ng = all_gather(p, G0:2); w = wait(g)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, v)";
    for done in everywhere(text) {
        assert!(done.buckets().is_empty());
    }
}

#[test]
fn w12_one_name_with_two_sizes_is_two_groups() {
    let text = fx(
        r#"x: "f32[4][1]cpu", y: "f32[4][1]cpu""#,
        &[
            r#"g: "f32[8][1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 2, '0')"#,
            r#"w: "f32[8][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(g)"#,
            r#"h: "f32[16][1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(y, 4, '0')"#,
            r#"v: "f32[16][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(h)"#,
            "return (w, v)",
        ],
    );
    for pipeline in [ALL, ADJACENT] {
        let done = rewrite_graph(read_fx(&text), pipeline, &[EvalOptions::default()]);
        assert!(done.buckets().is_empty());
    }
}

#[test]
fn w13_single_elements_are_gathered_to_one_element_a_rank() {
    let text = "p = input f32[]; q = input f32[]\ng = all_gather(p, G0:2) : f32[2]; w = wait(g)\n\
                h = all_gather(q, G0:2) : f32[2]; v = wait(h)\noutput(w, v)";
    for pipeline in [ALL, ADJACENT, COALESCED, BYTES] {
        assert_eq!(rewrite(text, pipeline).buckets(), [["g", "h"]]);
    }
    let reduced = text.replace("all_gather(p, G0:2) : f32[2]", "all_reduce(p, sum, G0:2)");
    let reduced = reduced.replace("all_gather(q, G0:2) : f32[2]", "all_reduce(q, sum, G0:2)");
    assert_eq!(rewrite(&reduced, ALL).buckets(), [["g", "h"]]);
}

#[test]
fn w14_members_of_several_dtypes_are_aligned() {
    let text = "p = input bf16[3]; q = input f32[4]; r = input u8[1]; s = input i64[1]\n\
                g = all_gather(p, G0:2); h = all_gather(q, G0:2); i = all_gather(r, G0:2); j = all_gather(s, G0:2)\n\
                output(wait(g), wait(h), wait(i), wait(j))";
    let raw = EvalOptions { raw_inputs: true, ..EvalOptions::default() };
    let done = rewrite_graph(read(text), BYTES, &[raw]);
    assert_eq!(done.count("all_gather"), 1);
    // The evaluator refuses a view whose offset or strides its dtype does not divide, as PyTorch does.
    assert!(done.text().contains("[6, 2, 16, 1, 7, 8], 1)"), "{}", done.text());
}

#[test]
fn w14_strided_members_of_several_dtypes_are_made_dense_first() {
    // Columns: flattened they would be views with a stride, which cannot change their dtype.
    let text = "p = input f32[4,2]; q = input bf16[4,2]; a = slice(p, 0, 1, dim=1); b = slice(q, 1, 2, dim=1)\n\
                g = all_gather(a, G0:2); h = all_gather(b, G0:2)\noutput(wait(g), wait(h))";
    assert_eq!(rewrite(text, BYTES).buckets(), [["g", "h"]]);
}

#[test]
fn w15_no_conversion_is_left_to_promotion() {
    let text = "p = input f8e4m3[4]; q = input f32[4]; c = cast(q, f8e4m3)\n\
                g = all_gather(p, G0:2); w = wait(g); h = all_gather(c, G0:2); v = wait(h)\noutput(w, v)";
    for done in everywhere(text) {
        assert_eq!(done.buckets(), [["g", "h"]]);
    }
}

#[test]
fn w16_there_is_a_way_to_say_no_limit() {
    let text = "p = input f32[1000000000000]; q = input f32[1000000000000]\ng = all_gather(p, G0:2); w = wait(g)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, v)";
    assert_eq!(rewrite_shapes(text, "bucket-all-gather{cap=none}").buckets(), [["g", "h"]]);
    assert_eq!(rewrite_shapes(text, "bucket-all-gather{cap=none,policy=adjacent}").buckets(), [["g", "h"]]);
}

#[test]
fn w17_the_order_of_real_graphs_is_without_circles_and_their_values_stay() {
    for file in kit::files::fx() {
        let text = std::fs::read_to_string(&file).unwrap();
        let graph = read_fx(&text);
        let name = file.file_name().unwrap().to_string_lossy();
        // Interpreting takes a while, so of the larger graphs a few are computed, once.
        let small = name.starts_with("live_");
        let some = name.starts_with("tiny_") && text.len() < 65_000;
        for pipeline in [ALL, ADJACENT, COALESCED, BYTES] {
            let compute = small || (some && pipeline == ALL);
            let options = if compute { vec![EvalOptions::default()] } else { Vec::new() };
            rewrite_graph(graph.clone(), pipeline, &options);
        }
    }
}

#[test]
fn w18_the_order_is_valid_after_a_merge_without_a_sort() {
    // The first wait has a reader before the last member.
    let text = "p = input f32[4]; q = input f32[4]\ng = all_gather(p, G0:2); w = wait(g); y = relu(w)\n\
                h = all_gather(q, G0:2); v = wait(h); z = relu(v)\noutput(y, z)";
    for done in everywhere(text) {
        assert_eq!(done.buckets(), [["g", "h"]]);
    }
}

#[test]
fn m1_members_that_depend_on_the_open_bucket_go_to_the_next() {
    let text = "a = input f32[4]; x = input f32[8]; y = input f32[8]\ng = all_gather(a, G0:2); w = wait(g)\n\
                b = all_gather(add(w, x), G0:2); c = all_gather(add(w, y), G0:2); d = all_gather(w, G0:2)\n\
                output(wait(b), wait(c), wait(d))";
    assert_eq!(rewrite(text, ALL).buckets(), [["b", "c", "d"]]);
}

/// `count` gathers of 1 KiB results, with the dtype or group that `pick` says.
fn gathers(count: usize, pick: impl Fn(usize) -> (&'static str, &'static str)) -> String {
    let mut text = String::new();
    let mut waits = Vec::new();
    for at in 0..count {
        let (ty, group) = pick(at);
        text += &format!("p{at} = input {ty}; g{at} = all_gather(p{at}, {group}); w{at} = wait(g{at})\n");
        waits.push(format!("w{at}"));
    }
    format!("{text}output({})", waits.join(", "))
}

#[test]
fn m2_other_dtypes_and_groups_between_members_do_not_part_them() {
    let dtypes = gathers(6, |at| (if at % 2 == 0 { "f32[128]" } else { "bf16[128]" }, "G0:2"));
    assert_eq!(rewrite(&dtypes, ALL).count("all_gather"), 2);
    assert!(rewrite(&dtypes, ADJACENT).buckets().is_empty());
    let groups = gathers(3, |at| ("f32[128]", if at == 1 { "G1:2" } else { "G0:2" }));
    assert_eq!(rewrite(&groups, ALL).buckets(), [["g0", "g2"]]);
}

#[test]
fn m3_a_collective_above_the_cap_does_not_close_the_open_bucket() {
    let text = gathers(5, |at| (if at % 2 == 0 { "f32[128]" } else { "f32[4096]" }, "G0:2"));
    assert_eq!(rewrite(&text, "bucket-all-gather{cap=4KiB}").buckets(), [["g0", "g2", "g4"]]);
}

#[test]
fn m4_a_list_of_caps_counts_buckets_within_one_key() {
    let text = gathers(6, |_| ("f32[128]", "G0:2"));
    let sizes = |caps: &str, policy: &str| -> Vec<usize> {
        let done = rewrite(&text, &format!("bucket-all-gather{{cap={caps},policy={policy}}}"));
        done.buckets().iter().map(Vec::len).collect()
    };
    for policy in ["greedy", "adjacent"] {
        assert_eq!(sizes("2KiB/4KiB", policy), [2, 4]);
        assert_eq!(sizes("3KiB/2KiB", policy), [3, 2]);
        assert_eq!(sizes("1KiB/5KiB", policy), [5]);
    }
}

#[test]
fn m5_the_fsdp_filter_and_bytes_work_together() {
    let text = gathers(6, |at| (if at % 2 == 0 { "f32[128]" } else { "bf16[128]" }, "G0:2"));
    let done = rewrite(&text, "bucket-all-gather{cap=none,mixed-dtype=bytes,fsdp-only=on}");
    assert_eq!(done.count("all_gather"), 1);
}

#[test]
fn m6_a_parameter_gathered_twice_is_sent_once_on_request() {
    let text = "p = input f32[4]\ng = all_gather(p, G0:2); w = wait(g); h = all_gather(p, G0:2); v = wait(h)\n\
                output(add(w, 1.0), add(v, 2.0))";
    let done = rewrite(text, &format!("dedupe-collectives,{ALL}"));
    assert_eq!(done.count("all_gather"), 1);
    assert_eq!(done.reports[0].duplicates.map(|d| d.folded), Some(1));
    // Written results are not one.
    let written = text.replace("output", "mul_(w, 2.0)\noutput");
    assert_eq!(rewrite(&written, "dedupe-collectives").count("all_gather"), 2);
}

#[test]
fn m7_in_place_reduces_and_broadcasts_are_merged() {
    let reduce = "p = input f32[4]; q = input f32[6]\ng = all_reduce_(p, sum, G0:2); w = wait(g)\n\
                  h = all_reduce_(q, sum, G0:2); v = wait(h)\noutput(add(p, 1.0), v)";
    let broadcast = "p = input f32[4]; q = input f32[2,3]\ng = broadcast(p, 1, G0:2); w = wait(g)\n\
                     h = broadcast(q, 1, G0:2); v = wait(h)\noutput(w, v)";
    for text in [reduce.to_owned(), broadcast.to_owned(), broadcast.replace("broadcast(", "broadcast_(")] {
        assert_eq!(rewrite(&text, ALL).buckets(), [["g", "h"]], "{text}");
    }
    assert_eq!(rewrite(reduce, COALESCED).buckets(), [["g", "h"]]);
}

#[test]
fn m7_all_to_alls_that_exchange_evenly_are_merged() {
    let text = "p = input f32[4,3]; q = input f32[6]; r = input f32[6]
        g = all_to_all(p, [2,2], [2,2], G0:2) : f32[4,3]; w = wait(g)
        h = all_to_all(q, [], [], G0:2) : f32[6]; v = wait(h)
        i = all_to_all(r, [3,3], [3,3], G0:2) : f32[6]; u = wait(i)
        output(w, v, u)";
    assert_eq!(rewrite(text, "bucket-all-to-all{cap=none}").buckets(), [["g", "h", "i"]]);
    let uneven = text.replace("[3,3], [3,3]", "[2,4], [2,4]");
    // Not computed: ranks that all send 4 rows to the second would have it receive more than they do.
    let plans = rewrite_shapes(&uneven, "bucket-all-to-all{cap=none}");
    assert_eq!(plans.buckets(), [["g", "h"]]);
}

#[test]
fn m8_an_activation_that_is_an_input_is_no_parameter() {
    let text = |first: &str| {
        format!(
            "{first} = input f32[4]; primals_2 = input f32[4]; primals_3 = input f32[4]\n\
             g = all_gather({first}, G0:2); h = all_gather(primals_2, G0:2); i = all_gather(primals_3, G0:2)\n\
             output(wait(g), wait(h), wait(i))"
        )
    };
    let pipeline = "bucket-all-gather{cap=none,fsdp-only=on}";
    assert_eq!(rewrite(&text("tangents_1"), pipeline).buckets(), [["h", "i"]]);
    assert_eq!(rewrite(&text("primals_1"), pipeline).buckets(), [["g", "h", "i"]]);
}
