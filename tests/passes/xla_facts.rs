//! What XLA's own tests and probes of jaxlib 0.10.2 say of the combiners, scenario by scenario, on HLO text.
//!
//! Rows have the numbers of the table in which the scenarios were collected; those that begin with E, of probes, are
//! the golden lists of `xla_golden.rs`. Byte limits count results.

use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, Decision, plan};
use bucketeer::passes::{Pass, Pipeline};
use bucketeer_formats::Document;

const KIB: usize = 1024;

/// A module of eight replicas with the usual reductions and these lines in its entry.
fn module(lines: &[String]) -> Graph {
    let mut text = "HloModule m, replica_count=8\n".to_owned();
    for (name, opcode, dtype) in [
        ("sum", "add", "f32"),
        ("sum2", "add", "f32"),
        ("min", "minimum", "f32"),
        ("max", "maximum", "f32"),
        ("sumi", "add", "s32"),
    ] {
        text += &format!("{name} {{\n  x.{name} = {dtype}[] parameter(0)\n  y.{name} = {dtype}[] parameter(1)\n");
        text += &format!("  ROOT z.{name} = {dtype}[] {opcode}(y.{name}, x.{name})\n}}\n");
    }
    text += "wide {\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n  c = f32[] convert(a)\n  d = f32[] convert(b)\n";
    text += "  e = f32[] add(c, d)\n  ROOT f = bf16[] convert(e)\n}\n";
    text += &format!("ENTRY main {{\n  {}\n}}\n", lines.join("\n  "));
    let document = Document::read(text.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    bucketeer::ir::verify(&document.graphs()[0]).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    document.graphs()[0].clone()
}

fn lines<S: AsRef<str>>(lines: &[S]) -> Vec<String> {
    lines.iter().map(|line| line.as_ref().to_owned()).collect()
}

/// Parameters `p0`, `p1`, .. of these shapes, then the lines.
fn with_parameters(shapes: &[&str], rest: &[String]) -> Graph {
    let parameter = |(nth, shape): (usize, &&str)| format!("p{nth} = {shape} parameter({nth})");
    module(&[shapes.iter().enumerate().map(parameter).collect(), rest.to_vec()].concat())
}

fn options(kind: BucketKind, cap_bytes: usize) -> BucketOptions {
    let mut options = BucketOptions::xla(kind);
    options.caps.cap_bytes = vec![cap_bytes as u64];
    options.caps.max_members = Some(256);
    options
}

/// The names of the members, bucket by bucket, in the order in which XLA fills buckets, those of one member last.
fn buckets(graph: &Graph, options: &BucketOptions) -> String {
    let plan = plan(graph, &Dependencies::of(graph), options);
    let merged = plan.names(graph).into_iter().map(|names| names.join(" "));
    let alone = plan.remarks.iter().filter(|remark| matches!(remark.decision, Decision::Alone(_)));
    merged.chain(alone.map(|remark| remark.name.clone())).collect::<Vec<_>>().join(" | ")
}

fn all_reduce(name: &str, shape: &str, operand: &str, apply: &str, more: &str) -> String {
    format!("{name} = {shape} all-reduce({operand}), replica_groups={{}}, to_apply={apply}{more}")
}

/// All-reduces `r0`, `r1`, .. of parameters of so many KiB, with these reductions.
fn all_reduces(kib: &[usize], apply: &[&str]) -> Graph {
    let shapes: Vec<String> = kib.iter().map(|kib| format!("f32[{}]", kib * KIB / 4)).collect();
    let reduce = |(nth, shape): (usize, &String)| {
        all_reduce(&format!("r{nth}"), shape, &format!("p{nth}"), apply[nth % apply.len()], "")
    };
    let rest: Vec<String> = shapes.iter().enumerate().map(reduce).collect();
    with_parameters(&shapes.iter().map(String::as_str).collect::<Vec<_>>(), &rest)
}

#[test]
fn row_1_five_independent_sums_are_one_in_their_order() {
    let graph = all_reduces(&[1, 2, 10, 7, 6], &["sum"]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, 10 * KIB * KIB)), "r0 r1 r2 r3 r4");
}

#[test]
fn row_2_equal_reductions_are_one_key_whatever_they_are_called() {
    let apply = ["sum", "sum2", "min", "min", "min", "max", "max", "max", "sum", "sum2"];
    let graph = all_reduces(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &apply);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, usize::MAX >> 1)), "r0 r1 r8 r9 | r2 r3 r4 | r5 r6 r7");
}

#[test]
fn rows_3_and_4_a_sum_that_fits_exactly_is_merged() {
    let graph = all_reduces(&[8, 4], &["sum"]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, 12 * KIB - 1)), "r0 | r1");
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, 12 * KIB)), "r0 r1");
}

#[test]
fn row_5_an_all_reduce_of_an_all_reduce_stays_apart() {
    let rest = [all_reduce("r0", "f32[]", "p0", "sum", ""), all_reduce("r1", "f32[]", "r0", "sum", "")];
    assert_eq!(buckets(&with_parameters(&["f32[]"], &rest), &options(BucketKind::AllReduce, KIB)), "r0 | r1");
}

#[test]
fn row_6_other_groups_stay_apart() {
    let groups = |name: &str, operand: &str, groups: &str| {
        all_reduce(name, "f32[4]", operand, "sum", "").replace("replica_groups={}", &format!("replica_groups={groups}"))
    };
    let rest = [groups("r0", "p0", "{{0,1},{2,3}}"), groups("r1", "p1", "{{0,2},{1,3}}")];
    assert_eq!(buckets(&with_parameters(&["f32[4]"; 2], &rest), &options(BucketKind::AllReduce, KIB)), "r0 | r1");
}

/// `d{nth}` of `p{nth}` behind a domain, an all-reduce of it, and the way out of the domain.
fn in_domain(nth: usize, device: usize, more: &str) -> Vec<String> {
    let domain = |entry: usize, exit: usize| {
        format!("domain={{kind=\"sharding\", entry={{maximal device={entry}}}, exit={{maximal device={exit}}}}}")
    };
    vec![
        format!("d{nth} = f32[4] domain(p{nth}), {}", domain(device, 9)),
        all_reduce(&format!("r{nth}"), "f32[4]", &format!("d{nth}"), "sum", more),
        format!("e{nth} = f32[4] domain(r{nth}), {}", domain(9, device)),
    ]
}

#[test]
fn rows_7_and_8_all_reduces_are_merged_in_domains_of_equal_metadata() {
    let two = with_parameters(&["f32[4]"; 2], &[in_domain(0, 0, ""), in_domain(1, 1, "")].concat());
    assert_eq!(buckets(&two, &options(BucketKind::AllReduce, KIB)), "r0 | r1");
    let three = [in_domain(0, 0, ""), in_domain(1, 1, ""), in_domain(2, 0, "")].concat();
    assert_eq!(buckets(&with_parameters(&["f32[4]"; 3], &three), &options(BucketKind::AllReduce, KIB)), "r0 r2 | r1");
}

#[test]
fn row_9_one_with_a_channel_and_one_without_stay_apart() {
    let rest = [all_reduce("r0", "f32[4]", "p0", "sum", ""), all_reduce("r1", "f32[4]", "p1", "sum", ", channel_id=1")];
    assert_eq!(buckets(&with_parameters(&["f32[4]"; 2], &rest), &options(BucketKind::AllReduce, KIB)), "r0 | r1");
}

#[test]
fn rows_10_and_11_order_edges_keep_all_reduces_alone() {
    let edge = ", control-predecessors={lead}";
    for (operand, name) in [("lead", "row 10"), ("p1", "row 11")] {
        let rest = [
            all_reduce("lead", "f32[4]", "p0", "sum", ""),
            all_reduce("r1", "f32[4]", operand, "sum", edge),
            all_reduce("r2", "f32[4]", "p2", "sum", edge),
        ];
        let graph = with_parameters(&["f32[4]"; 3], &rest);
        assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "lead | r1 | r2", "{name}");
    }
}

#[test]
fn row_12_the_number_of_a_channel_does_not_matter() {
    let channels = [", channel_id=1", ", channel_id=1", ", channel_id=2", ", channel_id=2"];
    let rest: Vec<String> =
        channels.iter().enumerate().flat_map(|(nth, channel)| in_domain(nth, nth % 2, channel)).collect();
    let graph = with_parameters(&["f32[4]"; 4], &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "r0 r2 | r1 r3");
}

/// The line of the merged collective of a module with these lines in its entry.
fn merged_line(lines: &[&str], kind: &str) -> String {
    let text = format!(
        "HloModule m, replica_count=8\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
         ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n  p0 = f32[4] parameter(0)\n  p1 = f32[4] parameter(1)\n  {}\n}}\n",
        lines.join("\n  ")
    );
    let mut document = Document::read(text.into_bytes()).unwrap();
    let pipeline: Pipeline = format!("bucket-{kind}{{policy=xla}}").parse().unwrap();
    pipeline.run(&mut document.graphs_mut()[0]).unwrap();
    let printed = String::from_utf8(document.print()).unwrap();
    printed.lines().find(|line| line.contains(&format!(" {kind}(p0, p1)"))).unwrap().trim().to_owned()
}

#[test]
fn row_13_op_names_are_joined_as_jaxlib_0_10_2_joins_them() {
    let lines = [
        "r0 = f32[4] all-reduce(p0), replica_groups={}, to_apply=sum, metadata={op_name=\"a\"}",
        "r1 = f32[4] all-reduce(p1), replica_groups={}, to_apply=sum, metadata={op_name=\"b\"}",
        "ROOT t = (f32[4], f32[4]) tuple(r0, r1)",
    ];
    // Older releases kept that of the first.
    let line = merged_line(&lines, "all-reduce");
    assert!(line.contains("metadata={op_name=\"(a:b)\"}"), "{line}");
}

#[test]
fn row_14_chains_that_cross_close_no_loop() {
    let rest = [
        all_reduce("s0", "f32[4]", "p0", "sum", ""),
        all_reduce("m0", "f32[4]", "p1", "max", ""),
        all_reduce("m1", "f32[4]", "s0", "max", ""),
        all_reduce("s1", "f32[4]", "m0", "sum", ""),
        "t = (f32[4], f32[4]) tuple(m1, s1)".to_owned(),
    ];
    let graph = with_parameters(&["f32[4]"; 2], &rest);
    // Either pair alone is legal; both would be a loop.
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "s0 s1 | m0 | m1");
}

#[test]
fn row_15_four_chains_of_two_end_where_the_first_depends() {
    let chain = |nth: usize| {
        vec![
            all_reduce(&format!("a{nth}"), "f32[4]", &format!("p{nth}"), "sum", ""),
            all_reduce(&format!("b{nth}"), "f32[4]", &format!("a{nth}"), "sum", ""),
        ]
    };
    let mut rest: Vec<String> = (0..4).flat_map(chain).collect();
    rest.push("t = (f32[4], f32[4], f32[4], f32[4]) tuple(b0, b1, b2, b3)".to_owned());
    let graph = with_parameters(&["f32[4]"; 4], &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "b0 a1 | b1 a2 | b2 a3 | a0 | b3");
    let greedy = BucketOptions { policy: Default::default(), ..options(BucketKind::AllReduce, KIB) };
    assert_eq!(buckets(&graph, &greedy), "a0 a1 a2 a3 | b0 b1 b2 b3");
}

#[test]
fn row_16_without_limit_all_are_one() {
    let graph = all_reduces(&[1, 100_000, 2, 50_000, 3, 4, 5], &["sum"]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, i64::MAX as usize)), "r0 r1 r2 r3 r4 r5 r6");
}

/// `g{nth}` of `p{nth}`, over all eight, along a dimension.
fn all_gather(nth: usize, shape: &str, dim: usize) -> String {
    format!("g{nth} = {shape} all-gather(p{nth}), replica_groups={{}}, dimensions={{{dim}}}")
}

/// Gathers of these shapes, each with its result and dimension.
fn all_gathers(list: &[(&str, &str, usize)]) -> Graph {
    let rest: Vec<String> = list.iter().enumerate().map(|(nth, (_, to, dim))| all_gather(nth, to, *dim)).collect();
    with_parameters(&list.iter().map(|(from, ..)| *from).collect::<Vec<_>>(), &rest)
}

fn by_dim(kind: BucketKind, cap_bytes: usize) -> BucketOptions {
    BucketOptions { by_dim: Some(true), ..options(kind, cap_bytes) }
}

#[test]
fn row_17_two_equal_gathers_are_one() {
    let graph = all_gathers(&[("f32[4]", "f32[32]", 0), ("f32[4]", "f32[32]", 0)]);
    assert_eq!(buckets(&graph, &by_dim(BucketKind::AllGather, KIB)), "g0 g1");
}

#[test]
fn row_18_gathers_of_two_dtypes_are_apart_if_asked() {
    let graph = all_gathers(&[("f32[4]", "f32[32]", 0), ("s32[4]", "s32[32]", 0)]);
    let options = options(BucketKind::AllGather, KIB);
    assert_eq!(buckets(&graph, &BucketOptions { mixed_dtype: Default::default(), ..options.clone() }), "g0 | g1");
    assert_eq!(buckets(&graph, &options), "g0 g1");
}

const LOOP: &str = "HloModule m, replica_count=8\n\
    body {\n  b = (f32[4], f32[4], f32[32], f32[32]) parameter(0)\n  p0 = f32[4] get-tuple-element(b), index=0\n  \
    p1 = f32[4] get-tuple-element(b), index=1\n  g0 = f32[32] all-gather(p0), replica_groups={}, dimensions={0}\n  \
    g1 = f32[32] all-gather(p1), replica_groups={}, dimensions={0}\n  \
    ROOT r = (f32[4], f32[4], f32[32], f32[32]) tuple(p0, p1, g0, g1)\n}\n\
    cond {\n  c = (f32[4], f32[4], f32[32], f32[32]) parameter(0)\n  ROOT t = pred[] constant(true)\n}\n\
    ENTRY main {\n  a = (f32[4], f32[4], f32[32], f32[32]) parameter(0)\n  \
    ROOT w = (f32[4], f32[4], f32[32], f32[32]) while(a), condition=cond, body=body\n}\n";

#[test]
fn row_19_gathers_in_loops_are_merged_unless_loops_are_off() {
    let document = Document::read(LOOP.as_bytes().to_vec()).unwrap();
    let options = options(BucketKind::AllGather, KIB);
    assert_eq!(buckets(&document.graphs()[0], &options), "g0 g1");
    assert_eq!(buckets(&document.graphs()[0], &BucketOptions { in_loops: false, ..options }), "g0 | g1");
}

const ROWS: (&str, &str, usize) = ("f32[4,4]", "f32[32,4]", 0);
const COLUMNS: (&str, &str, usize) = ("f32[4,4]", "f32[4,32]", 1);

#[test]
fn row_20_with_the_dimension_in_the_key_each_has_its_bucket() {
    let graph = all_gathers(&[ROWS, ROWS, COLUMNS, COLUMNS, ROWS]);
    assert_eq!(buckets(&graph, &by_dim(BucketKind::AllGather, KIB * KIB)), "g0 g1 g4 | g2 g3");
}

#[test]
fn row_21_gathers_count_with_what_they_make() {
    let graph = all_gathers(&[("f32[4]", "f32[32]", 0), ("f32[4]", "f32[32]", 0)]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllGather, 255)), "g0 | g1");
    assert_eq!(buckets(&graph, &options(BucketKind::AllGather, 256)), "g0 g1");
}

#[test]
fn row_22_a_gather_of_a_gather_stays_apart() {
    let rest =
        [all_gather(0, "f32[32]", 0), "g1 = f32[256] all-gather(g0), replica_groups={}, dimensions={0}".to_owned()];
    assert_eq!(buckets(&with_parameters(&["f32[4]"], &rest), &options(BucketKind::AllGather, 4 * KIB)), "g0 | g1");
}

#[test]
fn row_23_gathers_of_other_groups_stay_apart() {
    let rest = [
        "g0 = f32[8] all-gather(p0), replica_groups={{0,1},{2,3}}, dimensions={0}",
        "g1 = f32[8] all-gather(p1), replica_groups={{0,2},{1,3}}, dimensions={0}",
    ];
    assert_eq!(
        buckets(&with_parameters(&["f32[4]"; 2], &lines(&rest)), &options(BucketKind::AllGather, KIB)),
        "g0 | g1"
    );
}

#[test]
fn row_24_gathers_are_merged_in_domains_of_equal_metadata() {
    let gather = |nth: usize, device: usize| {
        let in_domain = in_domain(nth, device, "").join("\n  ");
        in_domain
            .replace(&format!("r{nth} = f32[4] all-reduce"), &format!("r{nth} = f32[32] all-gather"))
            .replace("to_apply=sum", "dimensions={0}")
            .replace(&format!("e{nth} = f32[4]"), &format!("e{nth} = f32[32]"))
    };
    let graph = with_parameters(&["f32[4]"; 2], &[gather(0, 0), gather(1, 1)]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllGather, KIB)), "r0 | r1");
    let graph = with_parameters(&["f32[4]"; 3], &[gather(0, 0), gather(1, 1), gather(2, 0)]);
    assert_eq!(buckets(&graph, &options(BucketKind::AllGather, KIB)), "r0 r2 | r1");
}

#[test]
fn rows_25_to_27_gathers_of_several_dimensions_are_one() {
    for list in [
        &[ROWS, COLUMNS][..],
        &[ROWS, ROWS, COLUMNS, COLUMNS, ROWS],
        &[("f32[2,2,2,2]", "f32[16,2,2,2]", 0), ("f32[2,2,2,2]", "f32[2,2,16,2]", 2)],
        &[COLUMNS, COLUMNS, COLUMNS, COLUMNS, ("f32[4]", "f32[32]", 0)],
    ] {
        let all: Vec<String> = (0..list.len()).map(|nth| format!("g{nth}")).collect();
        assert_eq!(buckets(&all_gathers(list), &options(BucketKind::AllGather, KIB * KIB)), all.join(" "));
    }
}

#[test]
fn row_28_frontend_attributes_are_sorted_sets_and_op_names_share_their_path() {
    let gather = |nth: usize, color: &str| {
        format!(
            "{}, frontend_attributes={{color=\"{color}\",flag=\"on\"}}, metadata={{op_name=\"model/layer/ag_{nth}\"}}",
            all_gather(nth, "f32[32]", 0)
        )
    };
    let lines = [gather(0, "red"), gather(1, "blue"), "ROOT t = (f32[32], f32[32]) tuple(g0, g1)".to_owned()];
    let line = merged_line(&lines.each_ref().map(String::as_str), "all-gather");
    assert!(line.contains("frontend_attributes={color=\"blue,red\",flag=\"on\"}"), "{line}");
    assert!(line.contains("metadata={op_name=\"model/layer/(ag_0:ag_1)\"}"), "{line}");
}

/// `s{nth}` of `p{nth}`, over all eight, along a dimension.
fn reduce_scatter(nth: usize, shape: &str, dim: usize, more: &str) -> String {
    format!("s{nth} = {shape} reduce-scatter(p{nth}), replica_groups={{}}, dimensions={{{dim}}}, to_apply={more}")
}

fn reduce_scatters(list: &[(&str, &str, usize)]) -> Graph {
    let rest: Vec<String> =
        list.iter().enumerate().map(|(nth, (_, to, dim))| reduce_scatter(nth, to, *dim, "sum")).collect();
    with_parameters(&list.iter().map(|(from, ..)| *from).collect::<Vec<_>>(), &rest)
}

#[test]
fn rows_29_and_30_scatters_of_several_dimensions() {
    let (rows, columns) = (("f32[8,8]", "f32[1,8]", 0), ("f32[8,8]", "f32[8,1]", 1));
    let options = |by_dim| BucketOptions { by_dim: Some(by_dim), ..options(BucketKind::ReduceScatter, KIB) };
    assert_eq!(buckets(&reduce_scatters(&[rows, rows]), &options(true)), "s0 s1");
    let four = reduce_scatters(&[rows, rows, columns, columns]);
    assert_eq!(buckets(&four, &options(true)), "s0 s1 | s2 s3");
    assert_eq!(buckets(&four, &options(false)), "s0 s1 s2 s3");
    let ranks = reduce_scatters(&[columns, columns, ("f32[8]", "f32[1]", 0)]);
    assert_eq!(buckets(&ranks, &options(false)), "s0 s1 s2");
}

#[test]
fn row_31_a_scatter_of_a_scatter_stays_apart() {
    let second = "s1 = f32[1] reduce-scatter(s0), replica_groups={}, dimensions={0}, to_apply=sum".to_owned();
    let graph = with_parameters(&["f32[64]"], &[reduce_scatter(0, "f32[8]", 0, "sum"), second]);
    assert_eq!(buckets(&graph, &options(BucketKind::ReduceScatter, KIB)), "s0 | s1");
}

#[test]
fn row_32_the_order_of_members_counts() {
    let scatter = |nth: usize, groups: &str| {
        reduce_scatter(nth, "f32[4]", 0, "sum").replace("replica_groups={}", &format!("replica_groups={groups}"))
    };
    let graph = with_parameters(&["f32[8]"; 2], &[scatter(0, "{{0,1}}"), scatter(1, "{{1,0}}")]);
    assert_eq!(buckets(&graph, &options(BucketKind::ReduceScatter, KIB)), "s0 | s1");
}

#[test]
fn row_33_a_reduction_of_more_than_one_instruction_has_no_key() {
    let rest = [reduce_scatter(0, "bf16[1]", 0, "wide"), reduce_scatter(1, "bf16[1]", 0, "wide")];
    let graph = with_parameters(&["bf16[8]"; 2], &rest);
    // They are collectives all the same: each is listed by itself.
    assert_eq!(buckets(&graph, &options(BucketKind::ReduceScatter, KIB)), "s0 | s1");
}

#[test]
fn row_34_a_sum_of_results_that_fits_exactly_is_merged() {
    let mib = |mib: usize| (mib * KIB * KIB / 2, 8 * mib * KIB * KIB / 2);
    let list: Vec<(String, String)> = [64, 64, 48, 16]
        .into_iter()
        .map(mib)
        .map(|(to, from)| (format!("bf16[{from}]"), format!("bf16[{to}]")))
        .collect();
    let rest: Vec<String> = list.iter().enumerate().map(|(nth, (_, to))| reduce_scatter(nth, to, 0, "sum")).collect();
    let shapes: Vec<&str> = list.iter().map(|(from, _)| from.as_str()).collect();
    let graph = with_parameters(&shapes, &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::ReduceScatter, 192 * KIB * KIB)), "s0 s1 s2 s3");
    assert_eq!(buckets(&graph, &options(BucketKind::ReduceScatter, 192 * KIB * KIB - 1)), "s0 s1 s2 | s3");
}

/// `c{nth}` of `p{nth}`.
fn permute(nth: usize, shape: &str, pairs: &str, more: &str) -> String {
    format!("c{nth} = {shape} collective-permute(p{nth}), source_target_pairs={pairs}{more}")
}

fn permutes(kib: &[usize], pairs: &[&str], more: &[&str]) -> Graph {
    let shapes: Vec<String> = kib.iter().map(|kib| format!("f32[{}]", kib * KIB / 4)).collect();
    let permute =
        |(nth, shape): (usize, &String)| permute(nth, shape, pairs[nth % pairs.len()], more[nth % more.len()]);
    let rest: Vec<String> = shapes.iter().enumerate().map(permute).collect();
    with_parameters(&shapes.iter().map(String::as_str).collect::<Vec<_>>(), &rest)
}

const RIGHT: &str = "{{0,1},{1,2},{2,3},{3,0}}";
const LEFT: &str = "{{1,0},{2,1},{3,2},{0,3}}";

#[test]
fn rows_35_and_36_permutes_of_the_same_pairs_are_one() {
    let options = |cap| options(BucketKind::Permute, cap);
    assert_eq!(buckets(&permutes(&[1, 2, 10, 7, 6], &[RIGHT], &[""]), &options(10 * KIB * KIB)), "c0 c1 c2 c3 c4");
    let three = permutes(&[2, 10, 7], &[RIGHT], &[""]);
    assert_eq!(buckets(&three, &options(12 * KIB - 1)), "c0 | c1 | c2");
    assert_eq!(buckets(&three, &options(19 * KIB)), "c0 c1 c2");
}

#[test]
fn row_37_a_count_cuts_buckets() {
    let mut options = options(BucketKind::Permute, KIB * KIB);
    options.caps.max_members = Some(3);
    assert_eq!(buckets(&permutes(&[1; 5], &[RIGHT], &[""]), &options), "c0 c1 c2 | c3 c4");
}

#[test]
fn rows_38_and_39_pairs_are_the_key_and_channels_are_not() {
    let options = options(BucketKind::Permute, KIB * KIB);
    assert_eq!(buckets(&permutes(&[1; 5], &[RIGHT, LEFT], &[""]), &options), "c0 c2 c4 | c1 c3");
    let channels = [", channel_id=1", ", channel_id=1", ", channel_id=2", ", channel_id=2", ", channel_id=1"];
    // As later releases have it, which do not compare the number.
    let rest: Vec<String> = (0..5).map(|nth| permute(nth, "f32[4]", "{{0,0}}", channels[nth])).collect();
    assert_eq!(buckets(&with_parameters(&["f32[4]"; 5], &rest), &options), "c0 c1 c2 c3 c4");
}

#[test]
fn row_41_pipelined_ones_and_others_never_mix() {
    let pipelined = ", backend_config={\"collective_backend_config\":{\"is_pipelined\":true}}";
    let rest: Vec<String> = (0..6)
        .map(|nth| {
            all_reduce(&format!("r{nth}"), "f32[3072]", &format!("p{nth}"), "sum", if nth < 3 { pipelined } else { "" })
        })
        .collect();
    let graph = with_parameters(&["f32[3072]"; 6], &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, 24 * KIB)), "r0 r1 | r3 r4 | r2 | r5");
}

#[test]
fn row_42_six_that_are_not_pipelined_are_one_at_the_default_cap() {
    let graph = all_reduces(&[12; 6], &["sum"]);
    assert_eq!(buckets(&graph, &BucketOptions::xla(BucketKind::AllReduce)), "r0 r1 r2 r3 r4 r5");
}

/// Lists the members of the merged collectives of a graph after these passes.
fn merged(mut graph: Graph, options: BucketOptions) -> String {
    let before = graph.clone();
    let report = Pipeline { passes: vec![Pass::Bucket(options)] }.run(&mut graph).unwrap().remove(0);
    assert!(bucketeer::check::prove(&before, &graph).is_equal());
    let plan = report.plan.unwrap();
    let alone = plan.remarks.iter().filter(|remark| matches!(remark.decision, Decision::Alone(_)));
    let alone = alone.map(|remark| remark.name.clone());
    plan.names(&graph).into_iter().map(|names| names.join(" ")).chain(alone).collect::<Vec<_>>().join(" | ")
}

/// Members of 12 KiB each, these of them pipelined and these marked as synchronous.
fn marked(kind: BucketKind, count: usize, pipelined: std::ops::Range<usize>, sync: std::ops::Range<usize>) -> Graph {
    let mut shapes = Vec::new();
    let mut rest = Vec::new();
    for nth in 0..count {
        let mut more = String::new();
        if pipelined.contains(&nth) {
            more += ", backend_config={\"collective_backend_config\":{\"is_pipelined\":true}}";
        }
        if sync.contains(&nth) {
            more += ", frontend_attributes={sync_collective=\"true\"}";
        }
        let (from, line) = match kind {
            BucketKind::AllGather => ("f32[384]", all_gather(nth, "f32[3072]", 0) + &more),
            BucketKind::ReduceScatter => ("f32[24576]", reduce_scatter(nth, "f32[3072]", 0, "sum") + &more),
            _ => ("f32[3072]", all_reduce(&format!("r{nth}"), "f32[3072]", &format!("p{nth}"), "sum", &more)),
        };
        shapes.push(from);
        rest.push(line);
    }
    with_parameters(&shapes, &rest)
}

#[test]
fn row_40_pipelined_ones_are_merged_up_to_the_suggestion_and_others_up_to_the_default() {
    for (kind, expected) in [
        (BucketKind::AllReduce, "r0 r1 r2 | r3 r4 | r5"),
        (BucketKind::AllGather, "g0 g1 g2 | g3 g4 | g5"),
        (BucketKind::ReduceScatter, "s0 s1 s2 | s3 s4 | s5"),
    ] {
        let two = options(kind, 24 * KIB);
        let graph = marked(kind, 6, 0..3, 0..0);
        let suggested = BucketOptions { suggested_cap_bytes: Some(48 * KIB as u64), ..two.clone() };
        assert_eq!(merged(graph.clone(), suggested), expected);
        // Without it, three of them do not fit.
        let name = &expected[..1];
        assert_eq!(merged(graph, two), format!("{name}0 {name}1 | {name}3 {name}4 | {name}2 | {name}5"));
    }
}

#[test]
fn row_43_synchronous_ones_are_merged_up_to_the_suggestion() {
    // Members of 12 KiB for the 20 MB of the row, and a default that holds one.
    let one = options(BucketKind::AllReduce, 18 * KIB);
    let suggested = BucketOptions { suggested_cap_bytes: Some(10_000_000_000), ..one.clone() };
    let graph = marked(BucketKind::AllReduce, 2, 0..0, 0..2);
    assert_eq!(merged(graph.clone(), suggested.clone()), "r0 r1");
    assert_eq!(merged(graph, one), "r0 | r1");
    // What is not marked has the default.
    assert_eq!(merged(marked(BucketKind::AllReduce, 4, 0..0, 0..2), suggested), "r0 r1 | r2 | r3");
}

#[test]
fn row_44_of_two_synchronous_ones_a_pipelined_one_stays_apart() {
    let options =
        BucketOptions { suggested_cap_bytes: Some(10_000_000_000), ..options(BucketKind::AllReduce, 18 * KIB) };
    assert_eq!(merged(marked(BucketKind::AllReduce, 2, 1..2, 0..2), options), "r0 | r1");
}

#[test]
fn row_47_what_the_annotator_writes_is_read() {
    // That it marks one and suggests a size follows from a dry run of XLA's scheduler, which is no text.
    let text = "HloModule m, replica_count=8, frontend_attributes={fingerprint_before_lhs=\"x\",\
                suggested_combiner_threshold=\"6712\"}\n\nENTRY main {\n  p = f32[4] parameter(0)\n  \
                ROOT g = f32[32] all-gather(p), replica_groups={}, dimensions={0}, \
                frontend_attributes={sync_collective=\"true\"}\n}\n";
    let document = Document::read(text.as_bytes().to_vec()).unwrap();
    assert_eq!(document.suggested_cap_bytes(), Some(6712));
    let graph = &document.graphs()[0];
    let marked: Vec<&str> =
        graph.order().iter().filter(|&&id| graph.meta_of(id).sync).map(|&id| graph.name_of(id)).collect();
    assert_eq!(marked, ["g"]);
    assert_eq!(Document::read(LOOP.as_bytes().to_vec()).unwrap().suggested_cap_bytes(), None);
}

/// All-reduces with these frontend attributes.
fn with_attributes(list: &[&str]) -> Graph {
    let more = |attribute: &str| {
        if attribute.is_empty() { String::new() } else { format!(", frontend_attributes={{{attribute}}}") }
    };
    let reduce = |(nth, attribute): (usize, &&str)| {
        all_reduce(&format!("r{nth}"), "f32[4]", &format!("p{nth}"), "sum", &more(attribute))
    };
    let rest: Vec<String> = list.iter().enumerate().map(reduce).collect();
    with_parameters(&vec!["f32[4]"; list.len()], &rest)
}

#[test]
fn rows_45_and_46_boundaries_of_later_releases() {
    let options = BucketOptions { boundaries: true, ..options(BucketKind::AllReduce, KIB) };
    let (g0, g1) = ("collective_group_key=\"g0\"", "collective_group_key=\"g1\"");
    assert_eq!(buckets(&with_attributes(&[g0, g0, g1, "", g0]), &options), "r0 r1 r4 | r2 | r3");
    let layer = |nth: usize| format!("combiner_key=\"layer_{nth}\"");
    assert_eq!(buckets(&with_attributes(&[&layer(0), &layer(0), &layer(1)]), &options), "r0 r1 | r2");
    // The release that the golden lists are of does not look at them.
    assert_eq!(buckets(&with_attributes(&[g0, g1, ""]), &BucketOptions { boundaries: false, ..options }), "r0 r1 r2");
}

#[test]
fn a_pinned_layout_anywhere_stops_the_pass() {
    let rest = [
        all_reduce("r0", "f32[4]", "p0", "sum", ", constrain_layout=true"),
        all_reduce("r1", "f32[4]", "p1", "sum", ""),
        all_reduce("r2", "f32[4]", "p2", "sum", ""),
    ];
    let graph = with_parameters(&["f32[4]"; 3], &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "r0 | r1 | r2");
    // Our own policies keep it apart (case LAY-1).
    let greedy = BucketOptions { policy: Default::default(), ..options(BucketKind::AllReduce, KIB) };
    assert_eq!(buckets(&graph, &greedy), "r1 r2 | r0");
}

#[test]
fn a_late_member_moves_what_it_needs_before_the_first() {
    // Once r0 and r2 are one, m0 depends on m1. Looked at from m0 on, m1 would seem to be free.
    let rest = [
        all_reduce("r0", "f32[4]", "p0", "sum", ""),
        "n = f32[4] negate(r0)".to_owned(),
        all_reduce("m0", "f32[4]", "n", "max", ""),
        all_reduce("m1", "f32[4]", "p1", "max", ""),
        all_reduce("r2", "f32[4]", "m1", "sum", ""),
        all_reduce("m2", "f32[4]", "p2", "max", ""),
        "t = (f32[4], f32[4], f32[4]) tuple(m0, r2, m2)".to_owned(),
    ];
    let graph = with_parameters(&["f32[4]"; 3], &rest);
    assert_eq!(buckets(&graph, &options(BucketKind::AllReduce, KIB)), "r0 r2 | m0 m2 | m1");
}

#[test]
fn pipelines_in_text_form_reach_the_policy() {
    let mut graph = all_reduces(&[8, 4], &["sum"]);
    let pipeline: Pipeline = "bucket-all-reduce{policy=xla,cap=12KiB}".parse().unwrap();
    let before = graph.clone();
    pipeline.run(&mut graph).unwrap();
    assert!(bucketeer::check::prove(&before, &graph).is_equal());
    assert_eq!(graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count(), 1);
}
