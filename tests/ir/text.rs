//! The native text form and JSON: what they read, what they print, and what they refuse.

use bucketeer::ir::json::{from_json, to_json};
use bucketeer::ir::text::{normalize, parse, print};
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Graph, NodeId, Op, ReduceOp, Region, RegionId, RegionKind, Strength,
    Type, Variant, verify,
};
use proptest::prelude::*;

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

#[track_caller]
fn check_round_trip(graph: &Graph) {
    let printed = print(graph);
    let again = read(&printed);
    assert_eq!(&again, graph, "printed:\n{printed}");
    assert_eq!(print(&again), printed);
    let json = to_json(graph);
    let again = from_json(&json).unwrap_or_else(|error| panic!("{error}\nin:\n{json}"));
    assert_eq!(&again, graph, "JSON:\n{json}");
    assert_eq!(to_json(&again), json);
}

#[track_caller]
fn round_trip(text: &str) -> Graph {
    let graph = read(text);
    check_round_trip(&graph);
    graph
}

fn find(graph: &Graph, name: &str) -> NodeId {
    *graph.order().iter().find(|&&id| graph.name_of(id) == name).unwrap_or_else(|| panic!("no {name}"))
}

#[track_caller]
fn check_types(text: &str, expected: &[(&str, &str)]) {
    let graph = round_trip(text);
    for (name, ty) in expected {
        assert_eq!(graph.type_of(find(&graph, name)).to_string(), *ty, "{name}");
    }
}

#[test]
fn every_sketch_round_trips() {
    for path in kit::files::sketches() {
        round_trip(&std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn every_example_of_the_language_reference_is_well_formed_and_round_trips() {
    let document = include_str!("../../docs/ir.md");
    let examples: Vec<_> = document.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 5);
    for example in &examples {
        let graph = round_trip(example);
        assert_eq!(verify(&graph), Ok(()), "{example}");
    }
    assert_eq!(print(&read(examples[0])), examples[0], "the first example is canonical");
}

#[test]
fn the_canonical_form_is_one_statement_a_line() {
    let text = "graph step {
group G0:8 = [[0, 1, 2, 3, 4, 5, 6, 7]]
group D
hint u0 = 8
  u0 = input Sym(u0)
  a = input f32[8, 16][16, 1]cuda:0
  pend = input f32[8] pending
  g0 = all_gather(a, G0:8) : f32[64, 16][16, 1]cuda:0 key=\"L1\" src=\"a.py:10\" members=[x, y]
  w0 = wait(g0) : f32[64, 16][16, 1]cuda:0
  region loop(n=3) {
    t = slice(w0, 0, 8, dim=0) : f32[8, 16][16, 1]cuda:0
    s = all_reduce_(t, avg, D, impl=registered) : f32[8, 16][16, 1]cuda:0
  }
  after(t, w0)
  soft_after(w0, a)
  output(w0, t)
}
";
    assert_eq!(print(&round_trip(text)), text);
}

#[test]
fn nested_calls_get_fresh_names_that_the_text_does_not_use() {
    let graph = round_trip("a = input f32[4]\noutput(wait(neg(a)), wait(a), neg(neg(a)))\nwait_1 = wait(a)");
    let names: Vec<_> = graph.order().iter().map(|&id| graph.name_of(id)).collect();
    assert_eq!(names, ["a", "neg", "wait", "wait_2", "neg_1", "neg_2", "output", "wait_1"]);
}

#[test]
fn statements_without_a_name_and_spaced_targets_are_calls() {
    let graph = round_trip(
        "x = input f32[4]; peer_less = input f32[4]\nopaque_comm barrier(); opaque_comm send(x, peer)\nr = opaque_comm recv(peer)\nmul_(x, 0.5)\nacc = zeros f32[8]",
    );
    let target = |name| graph.target_of(find(&graph, name));
    assert_eq!(target("barrier"), "opaque_comm.barrier");
    assert_eq!(target("send"), "opaque_comm.send");
    assert_eq!(target("r"), "opaque_comm.recv");
    assert_eq!(target("acc"), "zeros");
    assert_eq!(graph.args_of(find(&graph, "send")).positional[1], Arg::Word("peer".into()));
    assert_eq!(graph.type_of(find(&graph, "mul_")).to_string(), "f32[4]");
    assert_eq!(graph.type_of(find(&graph, "acc")).to_string(), "f32[8]");
}

#[test]
fn arguments_keep_their_values() {
    let graph = round_trip(
        r#"x = input f32[4]
y = aten.full.default(k=1, [2, x], -3, 1e-05, 'it\'s', "it's", True, None, torch.float32, bf16, torch.strided, -inf, (x,), (), @device(type='cuda', index=0), @'float')"#,
    );
    let args = graph.args_of(find(&graph, "y"));
    assert_eq!(graph.target_of(find(&graph, "y")), "aten.full.default");
    assert_eq!(args.keyword, [("k".into(), Arg::Int(1))]);
    let device = Args {
        positional: vec![],
        keyword: vec![("type".into(), Arg::Str("cuda".into())), ("index".into(), Arg::Int(0))],
    };
    assert_eq!(
        args.positional,
        [
            Arg::List(vec![Arg::Int(2), Arg::Operand(0)]),
            Arg::Int(-3),
            Arg::Float("1e-05".into()),
            Arg::Str(r"it\'s".into()),
            Arg::Str("it's".into()),
            Arg::Bool(true),
            Arg::None,
            Arg::DType(DType::F32),
            Arg::DType(DType::Bf16),
            Arg::Word("torch.strided".into()),
            Arg::Word("-inf".into()),
            Arg::Tuple(vec![Arg::Operand(1)]),
            Arg::Tuple(vec![]),
            Arg::Apply("device".into(), device),
            Arg::Word("float".into()),
        ]
    );
}

#[test]
fn a_word_that_is_a_value_elsewhere_stays_a_word() {
    let mut graph = read("inf = input f32[4]; f32 = input f32[4]");
    let words = vec![Arg::Word("inf".into()), Arg::Word("two words".into()), Arg::Float("nan".into())];
    let args = graph.intern_args(Args::positional([words, vec![Arg::DType(DType::F32)]].concat()));
    let (target, name) = (graph.intern("weird target!"), graph.intern("y"));
    graph.push(Op::Call(target), name, bucketeer::ir::TypeId::UNKNOWN, args, &[]);
    check_round_trip(&graph);
}

#[test]
fn a_call_named_like_a_word_of_the_language_stays_a_call() {
    let graph =
        round_trip("x = input f32[4, 2]\nr = @reduce(x, 0)\np = permute(x, [1, 0])\ni = @input()\na = @after(x, x)");
    for name in ["r", "p", "i", "a"] {
        assert!(matches!(graph.node(find(&graph, name)).op, Op::Call(_)), "{name}");
    }
}

#[test]
fn collectives_of_every_kind_and_form_are_read() {
    let graph = round_trip(
        "x = input f32[4, 2]; buf = input f32[8, 2]
a = all_gather(x, G:2, dim=1)
b = reduce_scatter(x, avg, G)
c = all_reduce_(x, max, mine:4)
d = broadcast(x, 1, G:2)
e = reduce(x, sum, 0, G:2)
f = all_to_all(x, [2, 2], [2, 2], G:2)
g = permute(x, [[0, 1], [1, 0]], G:2)
h = all_gather_coalesced([x, x], G:2)
i = all_gather(x, out=buf, G:2)
j = all_gather_out(x, G:2, out=buf)
k = all_reduce(x, sum, '0':2) transport=bf16",
    );
    let of = |name| graph.collective(find(&graph, name)).unwrap();
    assert_eq!(of("a").kind, CollectiveKind::AllGather { dim: 1 });
    assert_eq!(of("b").kind, CollectiveKind::ReduceScatter { op: ReduceOp::Avg, dim: 0 });
    assert_eq!((of("c").variant, graph.group(of("c").group).size), (Variant::InPlace, Some(4)));
    assert_eq!(of("d").kind, CollectiveKind::Broadcast { root: 1 });
    assert_eq!(of("e").kind, CollectiveKind::Reduce { op: ReduceOp::Sum, root: 0 });
    assert_eq!(of("f").kind, CollectiveKind::AllToAll);
    assert_eq!(of("g").kind, CollectiveKind::Permute);
    assert!(of("h").coalesced);
    assert_eq!((of("i").variant, of("j").variant), (Variant::Out, Variant::Out));
    assert_eq!(&*graph.group(of("k").group).name, "0");
    assert_eq!(graph.args_of(find(&graph, "k")).get("transport"), Some(&Arg::DType(DType::Bf16)));
    assert_eq!(graph.group(of("b").group).size, Some(2), "the size that the first use states");
}

#[test]
fn types_that_are_not_stated_are_found() {
    check_types(
        "u0 = symbol hint=8
x = input f32[6,4]; s = input f32[u0]; c = input f32[4] on cpu; m = input f32[4, 6] strides [1, 4]; b = input bool[]
t = transpose(x); r = reshape(x, [2, -1]); k = cast(x, bf16); h = chunk(x, 4); h3 = item(h, 3)
n = add(x, x); l = slice(x, dim=0, 1, -1); p = matmul(x, t); q = matmul(x, x); a = add(x, c)
g = all_gather(s, G:2); v = reduce_scatter(x, sum, G:2); i = mul_(x, 2); z = all_gather(x, H); w = wait(g)
o = relu(x) : ?; d = relu(x) on cuda:1",
        &[
            ("u0", "Sym(u0)"),
            ("c", "f32[4]cpu"),
            ("m", "f32[4, 6][1, 4]"),
            ("b", "b8[]"),
            ("t", "f32[4, 6][1, 4]"),
            ("r", "f32[2, 12]"),
            ("k", "bf16[6, 4]"),
            ("h", "(f32[2, 4], f32[2, 4], f32[2, 4])"),
            ("h3", "?"),
            ("n", "f32[6, 4]"),
            ("l", "f32[4, 4]"),
            ("p", "f32[6, 6]"),
            ("q", "?"),
            ("a", "?"),
            ("g", "f32[2*u0]"),
            ("v", "f32[3, 4]"),
            ("i", "f32[6, 4]"),
            ("z", "?"),
            ("w", "f32[2*u0]"),
            ("o", "?"),
            ("d", "f32[6, 4]cuda:1"),
        ],
    );
}

#[test]
fn regions_keep_their_labels_and_kinds() {
    let graph = round_trip(
        "x = input f32[4]
region if(flag) { }
region loop(n=3) { a = neg(x); region body { b = neg(a) } ; region empty { region inner { } } }
region @branch \"odd { label\" { c = neg(x) }
region call f { }",
    );
    let of = |name| graph.node(find(&graph, name)).region;
    assert_eq!(graph.region(of("a")).kind, RegionKind::Loop);
    assert_eq!(graph.region(of("b")).parent, of("a"));
    let kinds: Vec<_> = graph.regions()[1..].iter().map(|region| (&*region.label, region.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("if(flag)", RegionKind::Branch),
            ("loop(n=3)", RegionKind::Loop),
            ("body", RegionKind::Called),
            ("empty", RegionKind::Called),
            ("inner", RegionKind::Called),
            ("odd { label", RegionKind::Branch),
            ("call f", RegionKind::Called),
        ]
    );
}

#[test]
fn normal_graphs_number_their_regions_in_order_of_appearance() {
    let mut graph = read("x = input f32[4]\nregion loop(a) { a = neg(x) }\nregion loop(b) { b = neg(x) }");
    let ids = graph.order().to_vec();
    graph.set_order(vec![ids[0], ids[2], ids[1]]);
    graph.add_region(Region { parent: RegionId::from_index(2), kind: RegionKind::Called, label: "empty".into() });
    normalize(&mut graph);
    check_round_trip(&graph);
}

#[test]
fn arguments_that_repeat_what_the_collective_says_are_normalised_away() {
    let mut graph = read("x = input f32[4]; group_object = input ?; y = input f32[8]");
    let group = graph.intern_group("0", Some(2));
    let collective =
        Collective { kind: CollectiveKind::AllGather { dim: 0 }, group, variant: Variant::Out, coalesced: false };
    let (x, object, y) = (find(&graph, "x"), find(&graph, "group_object"), find(&graph, "y"));
    let args = Args {
        positional: vec![Arg::Operand(0), Arg::Int(2), Arg::Operand(1)],
        keyword: vec![("group_name".into(), Arg::Str("0".into())), ("out".into(), Arg::Operand(2))],
    };
    let args = graph.intern_args(args);
    let (name, ty) = (graph.intern("g"), graph.intern_type(Type::parse("f32[8]").unwrap()));
    let g = graph.push(Op::Collective(collective), name, ty, args, &[x, object, y]);
    let text = print(&graph);
    assert!(text.contains("g = all_gather_out(x, \"0\":2, out=y) : f32[8]"), "{text}");
    let json = from_json(&to_json(&graph)).unwrap();
    assert_eq!(json, graph, "JSON keeps arguments as they are");
    normalize(&mut graph);
    assert_eq!(read(&text), graph);
    assert_eq!(graph.operands(g), [x, y]);
    check_round_trip(&graph);
}

#[test]
fn fresh_names_can_be_read_back_whatever_the_target_is() {
    let graph = round_trip("x = input f32[4]\nf.1(x)\n@'odd target'(x)\nf.True(x)");
    let names: Vec<_> = graph.order().iter().map(|&id| graph.name_of(id)).collect();
    assert_eq!(names, ["x", "call", "call_1", "call_2"]);
    check_error("x = -neg(1)", 1, 5, "`-neg`", "an operator");
}

#[test]
fn the_output_keeps_its_name_beside_a_keyword_of_that_name() {
    let graph = round_trip("x = input f32[4]\ny = f(x, output=1)\noutput(y)");
    assert_eq!(graph.name_of(find(&graph, "output")), "output");
}

#[test]
fn order_edges_may_name_nodes_in_any_order() {
    let graph = round_trip(
        "a = input f32[4]; b = neg(a); c = neg(a)\nafter(b, c)\nsoft_after(b, a)\nd = neg(c)\noutput(d)\nafter(output, b)",
    );
    let edges: Vec<_> =
        graph.control.iter().map(|e| (graph.name_of(e.before), graph.name_of(e.after), e.strength)).collect();
    assert_eq!(edges, [("c", "b", Strength::Hard), ("a", "b", Strength::Soft), ("b", "output", Strength::Hard)]);
}

/// Line, column, found and expected of the error in a text.
#[track_caller]
fn check_error(text: &str, line: usize, column: usize, found: &str, expected: &str) {
    let error = parse(text).expect_err(text);
    assert_eq!((error.line, error.column, &*error.found, &*error.expected), (line, column, found, expected), "{text}");
}

#[test]
fn mistakes_are_reported_where_they_stand() {
    check_error("a = input f32[4]\na = neg(a)", 2, 1, "`a`, which line 1 defines", "a new name");
    check_error("a = input f32[4]\nafter(a, b)", 2, 10, "`b`", "a value defined before");
    check_error("a = all_reduce(b, sum, G:2)", 1, 16, "`b`", "a value defined before");
    check_error("a = neg(99999999999999999999)", 1, 9, "`99999999999999999999`", "an integer of 64 bits");
    check_error(
        "x = input f32[4]; a = all_reduce(x, sum, G:2); b = all_reduce(a, sum, G:4)",
        1,
        71,
        "`G:4`",
        "`G:2`, as stated before",
    );
    check_error(
        "x = input f32[4]; a = all_reduce(x, oops, G:2)",
        1,
        37,
        "`oops`",
        "a reduction: sum, avg, product, min, max, band, bor or bxor",
    );
    check_error("x = input f32[4]; a = all_reduce(x, sum, G:0)", 1, 44, "`0`", "a group of one rank or more");
    check_error("x = input f32[4] y", 1, 18, "`y`", "the end of the statement");
    check_error(
        "x = input q32[4]",
        1,
        11,
        "`q32[4]`",
        "a type (unknown dtype `q32`; expected a short name such as f32, bf16, i64 or b8)",
    );
    check_error("x = neg(", 1, 9, "the end of the text", "an argument");
    check_error("x = neg('a", 1, 9, "a string without an end", "a closing quote on the same line");
    check_error("graph g {\n  x = input f32[4]\n", 3, 1, "the end of the text", "`}`");
    check_error("graph g {\n}\nx", 3, 1, "`x`", "nothing after the graph");
    check_error("a = neg(é)", 1, 9, "`é`", "an argument");
    check_error(
        "x = input f32[4]; a = all_reduce(x, sum, G:2, ranks=[0, 1])",
        1,
        23,
        "`ranks=` of `all_reduce`",
        "another attribute, or none",
    );
    check_error("group G:2; group G:2", 1, 18, "a second statement of group `G`", "one, before its first use");
    check_error("None = input f32[4]", 1, 1, "`None`", "a name: letters, digits and `_`");
    check_error(
        "x = input f32[4]; y = neg(x) oops=1",
        1,
        30,
        "`oops=`",
        "`key=`, `src=`, `members=` or the end of the statement",
    );
}

#[test]
fn an_error_shows_the_line_and_a_caret() {
    let error = parse("a = input f32[4]\n\tb = neg(a))").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2, column 12: found `)`, expected the end of the statement\n  2 | \tb = neg(a))\n    | \t          ^"
    );
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    for (open, close) in [("neg(", ")"), ("[", "]"), ("@f(", ")"), ("(", ")")] {
        let nest = |n: usize| format!("x = f({}1{})", open.repeat(n), close.repeat(n));
        round_trip(&nest(20));
        assert!(parse(&nest(100_000)).is_err(), "{open}");
    }
    assert!(parse(&"region a {\n".repeat(100_000)).is_err());
    round_trip(&format!("{}{}", "region a {\n".repeat(64), "}\n".repeat(64)));
}

#[test]
fn json_of_another_version_or_with_unknown_fields_is_refused() {
    let json = to_json(&read("x = input f32[4]; s = all_reduce(x, sum, G:2)"));
    let check = |from: &str, to: &str, expected: &str| {
        let error = from_json(&json.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("\"version\": 1", "\"version\": 2", "found version 2, expected 1");
    check("bucketeer-graph", "other", "found format `other`, expected `bucketeer-graph`");
    check("\"name\": \"x\"", "\"name\": \"x\", \"colour\": 1", "unknown field `colour`");
    check("\"group\": 0", "\"group\": 7", "s: found group 7, expected one below 1");
    check("\"name\": \"s\"", "\"name\": \"x\"", "two nodes are named `x`");
    check("\"name\": \"s\"", "\"name\": \"not a name\"", "found the name `not a name`");
    check("\"args\": \"x\"", "\"args\": \"neg(x)\"", "arguments without calls");
    check("f32[4]", "f32[", "`x`: `f32[` is not a type: expected `]` after the sizes");
}

proptest! {
    #[test]
    fn random_graphs_are_well_formed_and_round_trip(graph in kit::random::graph_strategy()) {
        if let Err(errors) = verify(&graph) {
            panic!("{errors}\n{}", print(&graph));
        }
        check_round_trip(&graph);
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "\\PC{0,80}") {
        let _ = parse(&text);
        let _ = from_json(&text);
    }

    #[test]
    fn a_damaged_text_is_read_or_refused_and_what_is_read_round_trips(
        graph in kit::random::graph_strategy(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[\\[\\](){}=:,@'\"#;\n .a0-]{0,2}"), 1..4),
    ) {
        let mut text = print(&graph);
        for (at, len, new) in cuts {
            let at = at.index(text.len());
            let end = (at + len.index(4)).min(text.len());
            text.replace_range(at..end, &new);
        }
        if let Ok(graph) = parse(&text) {
            let _ = verify(&graph);
            let printed = print(&graph);
            prop_assert_eq!(&read(&printed), &graph, "{}", printed);
        }
    }
}

#[test]
fn a_name_that_nothing_defines_is_an_error_in_any_call() {
    for text in ["y = relu(z)\noutput(y)", "y = add([z], 1)\noutput(y)", "y = relu(z); z = input f32[4]\noutput(y)"] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("`z`") && error.contains("a value defined before"), "{error}");
    }
    for text in ["y = relu(@'z')\noutput(y)", "y = opaque_comm recv(z)\noutput(y)", "y = f(1, mode=z)\noutput(y)"] {
        let graph = parse(text).unwrap();
        assert_eq!(parse(&print(&graph)).as_ref(), Ok(&graph), "{text}");
    }
}
