//! Plans of HLO modules: what is written, read again and proven, and how long instructions take by their shapes.

use super::{Effort, options, planned};
use bucketeer::check::{Options, prove_with};
use bucketeer::ir::{DType, Graph, Work};
use bucketeer::passes::schedule::costs::Map;
use bucketeer::passes::schedule::{
    Costs, OwnPlan, Planned, Profile, Timeline, plan, plan_own, plannable, waited_on_the_spot,
};
use bucketeer_eval::{EvalOptions, compare};
use bucketeer_formats::Document;

const SUM: &str = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n";

/// A module with these lines in its entry.
fn module(lines: &[&str]) -> String {
    format!("HloModule m, replica_count=2\n\n{SUM}ENTRY main {{\n  {}\n}}\n", lines.join("\n  "))
}

fn read(text: &str) -> Document {
    Document::read(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error} at {:?}\n{text}", error.place()))
}

/// Costs of nodes by name, with messages of 1000 ns and 1 ns a byte.
fn costs(document: &Document, compute: &[(&str, u64)]) -> Costs {
    let graph = &document.graphs()[0];
    let compute_ns: Map<u64> = compute.iter().map(|&(node, ns)| (node.into(), ns)).collect();
    let piece = r#"[{"alpha_ns": 1000, "ns_per_byte_num": 1, "ns_per_byte_den": 1}]"#;
    let kinds = ["all_gather", "reduce_scatter", "all_reduce", "permute"].map(|kind| format!("\"{kind}\": {piece}"));
    let groups: Vec<String> = graph
        .groups()
        .iter()
        .map(|group| {
            format!("{:?}: {{\"size\": {}, \"costs\": {{{}}}}}", group.name, group.size.unwrap(), kinds.join(", "))
        })
        .collect();
    let text = format!(r#"{{"schema": "bucketeer-costs-1", "compute_ns": {{}}, "groups": {{{}}}}}"#, groups.join(", "));
    Costs { compute_ns, ..Costs::from_json(&text).unwrap().0 }
}

/// Plans a module; what is written is read again, proven against the source, and evaluated to the same bits.
fn written(text: &str, compute: &[(&str, u64)]) -> (String, Planned) {
    let mut document = read(text);
    let source = document.graphs()[0].clone();
    let costs = costs(&document, compute);
    let (after, found) = planned(&source, &costs, &options(None, Effort::Default));
    document.graphs_mut()[0] = after;
    let printed = String::from_utf8(document.print()).unwrap();
    let again = read(&printed);
    let moves = Options { launches_may_move: true, ..Options::default() };
    let verdict = prove_with(&source, &again.graphs()[0], moves);
    assert!(verdict.is_equal(), "{verdict}\n{printed}");
    let same = compare(&source, &again.graphs()[0], &EvalOptions::default()).unwrap();
    assert!(same.is_equal(), "{same:?}\n{printed}");
    if source.scheduled {
        // What is written takes what was planned, in as much memory, and all but launches and waits stand where they stood.
        assert_eq!(again.graphs()[0].scheduled, source.scheduled);
        let run = Timeline::of(&again.graphs()[0], &costs).unwrap();
        assert_eq!((run.makespan_ns, run.peak_bytes), (found.after.makespan_ns, found.after.peak_bytes));
        assert_eq!(stays(&printed), stays(text));
    }
    (printed, found)
}

const TWO_LAYERS: &[&str] = &[
    "w0 = f32[4,8] parameter(0)",
    "w1 = f32[4,8] parameter(1)",
    "x = f32[8,8] parameter(2)",
    "g0 = f32[8,8] all-gather(w0), replica_groups={}, dimensions={0}",
    "d0 = f32[8,8] dot(x, g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "g1 = f32[8,8] all-gather(w1), replica_groups={}, dimensions={0}",
    "d1 = f32[8,8] dot(d0, g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "r0 = f32[8,8] all-reduce(d0), replica_groups={}, to_apply=sum",
    "r1 = f32[8,8] all-reduce(d1), replica_groups={}, to_apply=sum",
    "ROOT out = (f32[8,8], f32[8,8]) tuple(r0, r1)",
];

#[test]
fn buckets_of_a_module_without_a_schedule_are_written_as_tuples() {
    let (text, found) = written(&module(TWO_LAYERS), &[("d0", 100), ("d1", 100)]);
    insta::assert_snapshot!(text);
    // Two messages of 512 bytes each, and what they wait for.
    assert_eq!((found.after.launches.len(), found.before.launches.len()), (2, 4));
    assert_eq!(found.before.makespan_ns, 4 * 1256 + 200);
}

#[test]
fn what_hides_behind_computation_shows_in_the_plan_and_not_in_the_text() {
    let text = module(TWO_LAYERS);
    let (printed, found) = written(&text, &[("d0", 5000), ("d1", 5000)]);
    // The second gather runs behind the first product, and the first sum behind the second product.
    assert_eq!(found.after.exposed_ns(), 2 * 1256);
    let document = read(&printed);
    let spot = Timeline::of(&document.graphs()[0], &costs(&document, &[("d0", 5000), ("d1", 5000)])).unwrap();
    assert_eq!(spot.makespan_ns, found.before.makespan_ns);
}

#[test]
fn waits_stand_right_behind_what_they_wait_for_again() {
    let mut document = read(&module(TWO_LAYERS));
    let costs = costs(&document, &[("d0", 5000), ("d1", 5000)]);
    let (after, found) = planned(&document.graphs()[0].clone(), &costs, &options(None, Effort::Default));
    let spot = waited_on_the_spot(&after);
    bucketeer::ir::verify(&spot).unwrap();
    assert_eq!(Timeline::of(&spot, &costs).unwrap().makespan_ns, found.before.makespan_ns);
    document.graphs_mut()[0] = after;
    let planned = document.print();
    document.graphs_mut()[0] = spot;
    assert_eq!(document.print(), planned);
}

#[test]
fn a_module_with_one_collective_comes_back_byte_for_byte() {
    let lines = ["x = f32[4] parameter(0)", "ROOT r = f32[4] all-reduce(x), replica_groups={}, to_apply=sum"];
    let text = module(&lines);
    assert_eq!(written(&text, &[]).0, text);
}

#[test]
fn a_collective_whose_result_nobody_needs_is_kept() {
    let lines = [
        "x = f32[4] parameter(0)",
        "r = f32[4] all-reduce(x), replica_groups={}, to_apply=sum",
        "ROOT y = f32[4] negate(x)",
    ];
    let (text, found) = written(&module(&lines), &[("y", 3000)]);
    assert!(text.contains("all-reduce(x)"), "{text}");
    assert_eq!(found.after.makespan_ns, 3000);
}

#[test]
fn control_predecessors_hold_in_a_plan() {
    let lines = [
        "x = f32[4] parameter(0)",
        "y = f32[4] parameter(1)",
        "n = f32[4] negate(x)",
        "r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum, control-predecessors={n}",
        "s = f32[4] all-reduce(x), replica_groups={}, to_apply=sum",
        "ROOT t = (f32[4], f32[4], f32[4]) tuple(r, s, n)",
    ];
    let (text, found) = written(&module(&lines), &[("n", 3000)]);
    // Without the edge both would leave at once and hide behind `n`.
    assert_eq!(found.after.makespan_ns, 3000 + 1016);
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}\n{text}"));
    assert!(place("control-predecessors={n}") > place("n = "), "{text}");
}

fn work(lines: &[&str], node: &str) -> Option<Work> {
    let document = read(&module(lines));
    let graph: &Graph = &document.graphs()[0];
    let id = graph.order().iter().copied().find(|&id| graph.name_of(id) == node).unwrap();
    graph.hlo.as_ref().unwrap().work.get(&id).cloned()
}

#[test]
fn products_count_their_operations() {
    let flops = |flops| Some(Work::Flops(vec![(flops, DType::F32)]));
    let ab = ["a = f32[3,5,7] parameter(0)", "b = f32[3,7,11] parameter(1)"];
    let dot = "ROOT d = f32[3,5,11] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, \
               rhs_contracting_dims={1}";
    assert_eq!(work(&[ab[0], ab[1], dot], "d"), flops(2 * 3 * 5 * 7 * 11));
    let cublas = |config: &str| {
        format!(
            "ROOT d = f32[3,5,11] custom-call(a, b), custom_call_target=\"__cublas$gemm\", \
             backend_config={{\"gemm_backend_config\":{{{config}}}}}"
        )
    };
    let known = cublas("\"rhs_contracting_dimensions\":[\"1\"],\"rhs_batch_dimensions\":[\"0\"]");
    assert_eq!(work(&[ab[0], ab[1], &known], "d"), flops(2 * 3 * 5 * 7 * 11));
    assert_eq!(work(&[ab[0], ab[1], &cublas("")], "d"), Some(Work::Unknown("a custom-call of `__cublas$gemm`".into())));
    let filter = ["x = f32[2,9,9,4] parameter(0)", "k = f32[3,3,4,6] parameter(1)"];
    let conv = "ROOT d = f32[2,7,7,6] convolution(x, k), window={size=3x3}, dim_labels=b01f_01io->b01f";
    assert_eq!(work(&[filter[0], filter[1], conv], "d"), flops(2 * (2 * 7 * 7 * 6) * (3 * 3 * 4)));
    let holes = "ROOT d = f32[2,16,16,6] convolution(x, k), window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2}, \
                 dim_labels=b01f_01io->b01f";
    assert_eq!(work(&[filter[0], filter[1], holes], "d"), flops(2 * (2 * 16 * 16 * 6) * (3 * 3 * 4) / 4));
}

#[test]
fn a_fusion_takes_its_bytes_and_the_products_in_its_body() {
    let text = module(&[
        "a = f32[64,64] parameter(0)",
        "b = f32[64,64] parameter(1)",
        "f = f32[64,64] fusion(a, b), kind=kCustom, calls=body",
        "e = f32[64,64] fusion(a, b), kind=kLoop, calls=plain",
        "r = f32[64,64] all-reduce(f), replica_groups={}, to_apply=sum",
        "v = f32[4096] bitcast(e)",
        "ROOT t = (f32[64,64], f32[4096]) tuple(r, v)",
    ])
    .replace(
        "ENTRY",
        "body {\n  p = f32[64,64] parameter(0)\n  q = f32[64,64] parameter(1)\n  ROOT d = f32[64,64] dot(p, q), \
         lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n\nplain {\n  p = f32[64,64] parameter(0)\n  \
         q = f32[64,64] parameter(1)\n  ROOT d = f32[64,64] add(p, q)\n}\n\nENTRY",
    );
    let mut profile = Profile::named("h100").unwrap();
    let rates = profile.rates.as_mut().unwrap();
    (rates.memory_bytes_per_s, rates.f32_flops_per_s, rates.achieved_permille) = (1_000_000_000, 1_000_000_000, 1000);
    let times = profile.costs(&read(&text).graphs()[0]).unwrap().compute_ns;
    let times: Vec<(&str, u64)> = times.iter().map(|(name, &ns)| (&**name, ns)).collect();
    // Three matrices at a byte a nanosecond; 2 * 64^3 operations at one a nanosecond.
    assert_eq!(times, [("f", 524_288), ("e", 49_152)]);
}

#[test]
fn what_computes_nobody_knows_how_much_is_refused_by_name_and_takes_a_measured_time() {
    let text = module(&[
        "x = f32[4] parameter(0)",
        "c = f32[4] custom-call(x), custom_call_target=\"mine\"",
        "u = f32[4] brand-new(c)",
        "y = (f32[4], f32[4]) all-to-all(u, c), replica_groups={{0,1}}",
        "z = f32[4] get-tuple-element(y), index=0",
        "ROOT r = f32[4] all-reduce(z), replica_groups={}, to_apply=sum",
    ]);
    let document = read(&text);
    let profile = Profile::named("h100").unwrap();
    let error = profile.costs(&document.graphs()[0]).unwrap_err().to_string();
    assert_eq!(
        error,
        "how much these compute is not known, so shapes do not say how long they take: `c`, a custom-call of `mine`; `u`, \
         `brand-new`, which is not known; `y`, an all-to-all that the plan has no message for; state their times"
    );
    let measured: Map<u64> = ["c", "u", "y"].map(|node| (node.into(), 700)).into_iter().collect();
    let costs = profile.costs_with(&document.graphs()[0], &measured).unwrap();
    assert_eq!(costs.compute_ns, measured);
    let found = plan(&mut document.graphs()[0].clone(), &costs, &options(None, Effort::Low)).unwrap();
    assert_eq!(found.after.compute_ns, 2100);
}

/// A module in which `l` runs a loop over `x`, whose body has this line.
fn with_loop(line: &str) -> String {
    module(&[
        "x = f32[4] parameter(0)",
        "y = f32[4] parameter(1)",
        "l = f32[4] while(x), condition=until, body=once",
        "r = f32[4] all-reduce(l), replica_groups={}, to_apply=sum",
        "s = f32[4] all-reduce(y), replica_groups={}, to_apply=sum",
        "n = f32[4] negate(x)",
        "ROOT t = (f32[4], f32[4], f32[4]) tuple(r, s, n)",
    ])
    .replace(
        "ENTRY",
        &format!(
            "until {{\n  p = f32[4] parameter(0)\n  ROOT q = pred[] constant(false)\n}}\n\nonce {{\n  v = f32[4] parameter(0)\n  \
             ROOT {line}\n}}\n\nENTRY"
        ),
    )
}

#[test]
fn a_loop_without_messages_is_one_item_and_its_body_stays() {
    let text = with_loop("w = f32[4] negate(v)");
    let mut document = read(&text);
    let source = document.graphs()[0].clone();
    let costs = costs(&document, &[("l", 5000), ("n", 3000)]);
    let (after, found) = planned(&source, &costs, &options(None, Effort::Default));
    // One sum runs behind the loop, the other behind `n`.
    assert_eq!((found.before.makespan_ns, found.after.makespan_ns), (10_032, 8_000));
    document.graphs_mut()[0] = after;
    let printed = String::from_utf8(document.print()).unwrap();
    assert_eq!(printed.split("ENTRY").next(), text.split("ENTRY").next());
    let moves = Options { launches_may_move: true, ..Options::default() };
    assert!(prove_with(&source, &read(&printed).graphs()[0], moves).is_equal(), "{printed}");
}

#[test]
fn a_loop_needs_a_stated_time_and_its_body_none() {
    let document = read(&with_loop("w = f32[4] negate(v)"));
    let graph = &document.graphs()[0];
    let profile = Profile::named("h100").unwrap();
    let error = profile.costs(graph).unwrap_err().to_string();
    assert!(error.contains("`l`, a while; state their times"), "{error}");
    let measured: Map<u64> = [("l".into(), 9000)].into_iter().collect();
    let costs = profile.costs_with(graph, &measured).unwrap();
    assert!(!costs.compute_ns.contains_key("w") && costs.compute_ns["l"] == 9000, "{:?}", costs.compute_ns);
    let inside = Costs { compute_ns: [("w".into(), 7)].into_iter().collect(), ..costs };
    let error = plan(&mut graph.clone(), &inside, &options(None, Effort::Low)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the costs give a time to `w`, which is in `once`, the body of a loop, a branch or a call; give its whole time to what runs \
         it"
    );
}

#[test]
fn messages_in_a_loop_are_refused_by_name_and_body() {
    for (line, node) in [
        ("w = f32[4] all-reduce(v), replica_groups={}, to_apply=sum", "w"),
        ("w = f32[4] all-to-all(v), replica_groups={{0,1}}, dimensions={0}", "w"),
        ("w = f32[4] brand-new(v)", "w"),
    ] {
        let document = read(&with_loop(line));
        let error = plannable(&document.graphs()[0]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "`{node}` communicates in `once`, the body of a loop, a branch or a call, and how often that runs is not known; \
                 planning takes messages of the entry alone. Unroll or inline what runs it, or have its buckets from `rewrite`"
            )
        );
    }
}

#[test]
fn a_plan_of_ones_own_takes_no_loops_and_no_schedule() {
    for (text, found) in [
        (with_loop("w = f32[4] negate(v)"), "a loop, a branch or a called graph"),
        (scheduled(SCHEDULED_LAYERS), "a schedule that was chosen"),
    ] {
        let document = read(&text);
        let costs = costs(&document, &[]);
        let error =
            plan_own(&mut document.graphs()[0].clone(), &costs, &OwnPlan::default(), None).unwrap_err().to_string();
        let expected = format!(
            "a plan of your own takes programs of one body and without a schedule, and there is {found}; leave it to the plan"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_fusion_with_unknown_work_inside_is_refused_with_what_is_inside() {
    let text = module(&[
        "x = f32[4] parameter(0)",
        "f = f32[4] fusion(x), kind=kCustom, calls=outer",
        "ROOT r = f32[4] all-reduce(f), replica_groups={}, to_apply=sum",
    ])
    .replace(
        "ENTRY",
        "inner {\n  p = f32[4] parameter(0)\n  ROOT c = f32[4] custom-call(p), custom_call_target=\"mine\"\n}\n\nouter {\n  \
         q = f32[4] parameter(0)\n  ROOT g = f32[4] fusion(q), kind=kLoop, calls=inner\n}\n\nENTRY",
    );
    let error = Profile::named("h100").unwrap().costs(&read(&text).graphs()[0]).unwrap_err().to_string();
    assert!(error.ends_with("how long they take: `f`, a custom-call of `mine`; state their times"), "{error}");
}

/// The names of the instructions of the entry that neither start nor end anything, nor name what is there.
fn stays(text: &str) -> Vec<&str> {
    let lines = text.split("ENTRY").nth(1).unwrap().lines().filter_map(|line| line.trim().split_once(" = "));
    let moves = ["-start(", "-done(", "parameter(", "tuple(", "get-tuple-element(", "bitcast("];
    lines.filter(|(_, rest)| !moves.iter().any(|opcode| rest.contains(opcode))).map(|(name, _)| name).collect()
}

fn scheduled(lines: &[&str]) -> String {
    module(lines).replace("HloModule m,", "HloModule m, is_scheduled=true,")
}

/// The names of the entry, in order.
fn names(text: &str) -> Vec<&str> {
    let lines = text.split("ENTRY").nth(1).unwrap().lines().filter_map(|line| line.trim().split_once(" = "));
    lines
        .map(|(name, _)| name.trim_start_matches("ROOT "))
        .filter(|name| *name != "x" && !name.starts_with('w'))
        .collect()
}

const SCHEDULED_LAYERS: &[&str] = &[
    "w0 = f32[4,8] parameter(0)",
    "w1 = f32[4,8] parameter(1)",
    "x = f32[8,8] parameter(2)",
    "g0s = (f32[4,8], f32[8,8]) all-gather-start(w0), replica_groups={}, dimensions={0}",
    "g0 = f32[8,8] all-gather-done(g0s)",
    "d0 = f32[8,8] dot(x, g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "g1s = (f32[4,8], f32[8,8]) all-gather-start(w1), replica_groups={}, dimensions={0}",
    "g1 = f32[8,8] all-gather-done(g1s)",
    "d1 = f32[8,8] dot(d0, g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "r1s = f32[8,8] all-reduce-start(d1), replica_groups={}, to_apply=sum",
    "r1 = f32[8,8] all-reduce-done(r1s)",
    "n = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "ROOT out = (f32[8,8], f32[8,8]) tuple(r1, n)",
];

const LAYER_TIMES: &[(&str, u64)] = &[("d0", 5000), ("d1", 5000), ("n", 5000)];

#[test]
fn starts_and_dones_of_a_scheduled_module_move_and_its_order_is_written() {
    let (text, found) = written(&scheduled(SCHEDULED_LAYERS), LAYER_TIMES);
    insta::assert_snapshot!(text);
    // The first gather cannot hide; all else does.
    assert_eq!((found.before.exposed_ns(), found.after.exposed_ns()), (3 * 1256, 1256));
}

#[test]
fn a_wait_for_a_parameter_comes_no_later_and_one_for_what_is_read_again_comes_before_that() {
    // `r` is needed at the end alone; `u` may write over `d`, and `v` over the parameter.
    let lines = |reads: &str| {
        [
            "x = f32[8] parameter(0)".to_owned(),
            "w = f32[8] parameter(1)".to_owned(),
            "d = f32[8] negate(x)".to_owned(),
            format!("rs = f32[8] all-reduce-start({reads}), replica_groups={{}}, to_apply=sum"),
            "r = f32[8] all-reduce-done(rs)".to_owned(),
            "v = f32[8] negate(x)".to_owned(),
            "u = f32[8] negate(d)".to_owned(),
            "ROOT out = (f32[8], f32[8], f32[8]) tuple(r, u, v)".to_owned(),
        ]
    };
    let times = [("d", 5000), ("v", 5000), ("u", 5000)];
    let order = |reads: &str| {
        let lines = lines(reads);
        let text = scheduled(&lines.each_ref().map(String::as_str));
        let printed = written(&text, &times).0;
        names(&printed).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(order("d"), ["d", "rs", "v", "r", "u", "out"]);
    // Nothing below may run beside it that did not; nor may it leave earlier, for its result is an output.
    assert_eq!(order("w"), ["d", "rs", "r", "v", "u", "out"]);
}

#[test]
fn a_start_stays_behind_what_reads_its_operand_above_it() {
    let text = scheduled(&[
        "x = f32[8] parameter(0)",
        "d = f32[8] negate(x)",
        "u = f32[8] negate(d)",
        "v = f32[8] negate(x)",
        "rs = f32[8] all-reduce-start(d), replica_groups={}, to_apply=sum",
        "r = f32[8] all-reduce-done(rs)",
        "o = f32[8] negate(r)",
        "ROOT out = (f32[8], f32[8], f32[8]) tuple(o, u, v)",
    ]);
    // The start may write its result over `d`.
    let (printed, _) = written(&text, &[("d", 5000), ("u", 5000), ("v", 5000)]);
    assert_eq!(names(&printed), ["d", "u", "rs", "v", "r", "o", "out"]);
}

#[test]
fn collectives_that_block_stay_where_they_are() {
    let sync = "rs = f32[8] all-reduce-start(x), replica_groups={}, to_apply=sum, backend_config={\"is_sync\":true}";
    for lines in
        [&["r = f32[8] all-reduce(x), replica_groups={}, to_apply=sum"][..], &[sync, "r = f32[8] all-reduce-done(rs)"]]
    {
        let around = |lines: &[&str]| {
            let mut all = vec!["x = f32[8] parameter(0)", "d = f32[8] negate(x)"];
            all.extend(lines);
            all.extend(["v = f32[8] negate(x)", "ROOT out = (f32[8], f32[8], f32[8]) tuple(r, d, v)"]);
            scheduled(&all)
        };
        let text = around(lines);
        let (printed, found) = written(&text, &[("d", 5000), ("v", 5000)]);
        assert_eq!(printed, text);
        assert_eq!(found.after.exposed_ns(), 1032);
    }
}

#[test]
fn a_scheduled_module_is_planned_within_its_cap_on_memory() {
    // What is gathered is the most of what is alive.
    let mut text = scheduled(SCHEDULED_LAYERS);
    for name in ["x", "d0", "d1", "r1s", "r1", "n"] {
        text = text.replace(&format!("  {name} = f32[8,8]"), &format!("  {name} = f32[1,8]"));
    }
    let document = read(&text);
    let costs = costs(&document, LAYER_TIMES);
    let graph = &document.graphs()[0];
    let peak = Timeline::of(graph, &costs).unwrap().peak_bytes;
    let (_, free) = planned(graph, &costs, &options(None, Effort::Default));
    let (_, tight) = planned(graph, &costs, &options(Some(peak), Effort::Default));
    assert!(free.after.peak_bytes > peak && free.after.makespan_ns < tight.after.makespan_ns);
    assert!(tight.after.peak_bytes <= peak);
}

#[test]
fn a_collective_in_an_async_wrapper_moves() {
    let text = scheduled(&[
        "x = f32[8] parameter(0)",
        "d = f32[8] negate(x)",
        "s = ((f32[8]), f32[4]) async-start(d), calls=wrapped",
        "r = f32[4] async-done(s)",
        "v = f32[8] negate(x)",
        "ROOT out = (f32[4], f32[8]) tuple(r, v)",
    ])
    .replace(
        "ENTRY",
        "wrapped {\n  q = f32[8] parameter(0)\n  ROOT t = f32[4] reduce-scatter(q), replica_groups={}, dimensions={0}, \
         to_apply=sum\n}\n\nENTRY",
    );
    let (printed, found) = written(&text, &[("d", 5000), ("v", 5000)]);
    assert_eq!(names(&printed), ["d", "s", "v", "r", "out"]);
    assert_eq!(found.after.exposed_ns(), 0);
}
