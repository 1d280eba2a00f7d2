use super::*;
use crate::ir::text;

/// 100 GFLOP/s reached, and a byte each nanosecond.
const RATES: Rates = Rates {
    f64_flops_per_s: 1_000_000_000,
    f32_flops_per_s: 200_000_000_000,
    f16_flops_per_s: 400_000_000_000,
    f8_flops_per_s: 800_000_000_000,
    int_flops_per_s: 100_000_000_000,
    achieved_permille: 500,
    memory_bytes_per_s: 1_000_000_000,
};

fn times(source: &str) -> Result<Vec<(String, u64)>, CostError> {
    let graph = text::parse(source).unwrap_or_else(|error| panic!("{error}\nin:\n{source}"));
    Ok(of_graph(&graph, &RATES)?.into_iter().map(|(name, ns)| (name.into(), ns)).collect())
}

#[track_caller]
fn hold(source: &str, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> = expected.iter().map(|&(name, ns)| (name.to_owned(), ns)).collect();
    assert_eq!(times(source), Ok(expected), "{source}");
}

#[test]
fn a_call_takes_the_longer_of_operations_and_bytes_rounded_up() {
    // 2 * 100^3 operations at 100 a nanosecond, and 3 * 100^2 values.
    let product =
        "a = input f32[100, 100]; b = input f32[100, 100]\nc = aten.mm.default(a, b) : f32[100, 100]\noutput(c)";
    hold(product, &[("c", 120_000)]);
    let tall = "a = input f32[8, 9999]; b = input f32[9999, 8]\nc = aten.mm.default(a, b) : f32[8, 8]\noutput(c)";
    hold(tall, &[("c", 4 * (2 * 8 * 9999 + 64))]);
    let fast = Rates { memory_bytes_per_s: 1_000_000_000_000, ..RATES };
    assert_eq!((fast.bytes_ns(1), fast.bytes_ns(1000), fast.bytes_ns(1001)), (1, 1, 2));
    assert_eq!((fast.flops_ns(1, DType::F32), fast.flops_ns(101, DType::F32)), (1, 2));
    assert_eq!(fast.flops_ns(2_000_000, DType::F64), 4_000_000);
    assert_eq!(fast.flops_ns(u64::MAX, DType::F64), u64::MAX);
}

#[test]
fn views_numbers_collectives_and_parts_take_nothing() {
    let source = "a = input f32[4, 8]\nt = aten.permute.default(a, [1, 0]) : f32[8, 4]\n\
                  n = aten.sym_size.int(a, 0) : Sym(4)\ng = all_reduce(a, sum, G0:2) : f32[4, 8]\n\
                  w = wait(g) : f32[4, 8]\ne = aten.empty.memory_format([4, 8]) : f32[4, 8]\n\
                  r = aten.relu.default(w) : f32[4, 8]\ns = aten.split.Tensor(r, 2) : (f32[2, 8], f32[2, 8])\n\
                  x = getitem(s, 0) : f32[2, 8]\noutput(t, e, x)";
    hold(source, &[("r", 256)]);
}

#[test]
fn what_is_written_over_is_written_once_and_read_where_the_operator_reads_it() {
    hold("a = input f32[4]; b = input f32[4]\nc = aten.add_.Tensor(a, b) : f32[4]\noutput(c)", &[("c", 48)]);
    hold("a = input f32[4]; b = input f32[4]\nc = aten.copy_.default(a, b) : f32[4]\noutput(c)", &[("c", 32)]);
    hold("a = input f32[4]\nc = aten.fill_.Scalar(a, 1.0) : f32[4]\noutput(c)", &[("c", 16)]);
    // Read once, however often it is given.
    hold("a = input f32[4]\nc = aten.mul.Tensor(a, a) : f32[4]\noutput(c)", &[("c", 32)]);
}

#[test]
fn look_ups_read_what_comes_out_and_repeated_values_are_read_once() {
    let look_up = "a = input f32[1000, 4]; i = input i64[2]\nc = aten.embedding.default(a, i) : f32[2, 4]\noutput(c)";
    hold(look_up, &[("c", 16 + 32 + 32)]);
    let expanded = "a = input f32[1, 4]\ne = aten.expand.default(a, [100, 4]) : f32[100, 4][0, 1]\n\
                    c = aten.clone.default(e) : f32[100, 4]\noutput(c)";
    hold(expanded, &[("c", 16 + 1600)]);
}

#[test]
fn a_result_without_a_type_is_as_large_as_its_parts() {
    let source = "a = input f32[4, 8]\nn = aten.native_layer_norm.default(a, [8], None, None, 1e-05)\n\
                  x = getitem(n, 0) : f32[4, 8]\ny = getitem(n, 1) : f32[4, 1]\noutput(x, y)";
    hold(source, &[("n", 128 + 128 + 16)]);
}

#[test]
fn symbols_have_the_values_of_their_hints() {
    let source = "hint s0 = 6\na = input f32[s0, 4]\nc = aten.relu.default(a) : f32[s0, 4]\noutput(c)";
    hold(source, &[("c", 192)]);
    let source = "a = input f32[s0, 4]\nc = aten.relu.default(a) : f32[s0, 4]\noutput(c)";
    assert_eq!(times(source), Err(CostError::Size { node: "c".to_owned() }));
    let source = "a = input f32[4]\nc = aten.relu.default(a)\nd = aten.relu.default(c)\noutput(d)";
    assert_eq!(times(source), Err(CostError::Size { node: "c".to_owned() }));
}

#[test]
fn measured_times_beat_those_by_shapes() {
    let source = "a = input f32[4]\nc = aten.relu.default(a) : f32[4]\nd = aten.relu.default(c) : f32[4]\noutput(d)";
    let graph = text::parse(source).unwrap();
    let mut costs = Costs { compute_ns: of_graph(&graph, &RATES).unwrap(), ..Costs::default() };
    let measured: Map<u64> = [("d".into(), 7)].into_iter().collect();
    override_times(&mut costs, &graph, &measured).unwrap();
    assert_eq!((costs.compute_ns["c"], costs.compute_ns["d"]), (32, 7));
    let measured: Map<u64> = [("c".into(), 1), ("e".into(), 7)].into_iter().collect();
    let error = override_times(&mut costs, &graph, &measured).unwrap_err();
    assert_eq!(error, CostError::NoNode { node: "e".to_owned() });
    assert_eq!(costs.compute_ns["c"], 32);
}
