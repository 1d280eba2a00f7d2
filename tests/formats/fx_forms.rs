//! The forms of FX text, each with the graph it means, and the faults, each with its place.

use bucketeer::ir::{Arg, CollectiveKind, Graph, NodeId, Op, ReduceOp, Type, Variant};
use bucketeer_formats::fx::{FxError, FxText, print_fresh};

/// Reads a file, checks that it prints back, and that its graphs do.
fn parse(text: &str) -> FxText {
    let fx = FxText::parse(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(String::from_utf8(fx.print()).unwrap(), text);
    for graph in fx.graphs() {
        let fresh = print_fresh(graph).unwrap();
        let again = FxText::parse(fresh.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{fresh}"));
        assert!(again.graphs() == [graph.clone()], "{fresh}");
    }
    fx
}

fn graph(text: &str) -> Graph {
    parse(text).graphs()[0].clone()
}

/// A graph with inputs `x`, `y`, `pg` and these lines.
fn body(lines: &str) -> Graph {
    graph(&in_class(lines))
}

fn in_class(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "class GraphModule(torch.nn.Module):\n    def forward(self, x: \"f32[8, 4]\", y: \"f32[4]\", pg):\n{lines}        return (x,)\n"
    )
}

fn node(graph: &Graph, name: &str) -> NodeId {
    let found = graph.order().iter().copied().find(|&id| graph.name_of(id) == name);
    found.unwrap_or_else(|| panic!("no node `{name}`"))
}

fn inputs(graph: &Graph) -> Vec<String> {
    let inputs = graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input);
    inputs.map(|&id| format!("{}: {}", graph.name_of(id), graph.type_of(id))).collect()
}

fn error(text: &str) -> FxError {
    FxText::parse(text.as_bytes().to_vec()).expect_err(text)
}

fn in_body(lines: &str) -> FxError {
    error(&in_class(lines))
}

#[test]
fn statements_are_nodes_in_order() {
    let graph = body(
        "mm: \"f32[8, 4]\" = torch.ops.aten.mm.default(x, y);  y = None\nfoo = torch.ops.a.b.c(mm);  mm = foo = None",
    );
    let names: Vec<&str> = graph.order().iter().map(|&id| graph.name_of(id)).collect();
    assert_eq!(names, ["x", "y", "pg", "mm", "foo", "output"]);
    let mm = node(&graph, "mm");
    assert_eq!(graph.target_of(mm), "aten.mm.default");
    assert_eq!(graph.type_of(mm).to_string(), "f32[8, 4]");
    assert_eq!(graph.operands(mm), [node(&graph, "x"), node(&graph, "y")]);
    assert_eq!(graph.type_of(node(&graph, "foo")), &Type::Unknown);
    assert_eq!(graph.name, "GraphModule");
}

#[test]
fn names_may_look_like_operators_or_python() {
    let graph = body(
        "copy_ = torch.ops.aten.copy_.default(x, y)\n_unsafe_view_3 = torch.ops.aten._unsafe_view.default(x, [4])\nsum_4 = torch.ops.aten.sum.default(copy_)\nreturn_1 = sum_4[0]\nclass_1 = return_1 + 1\nNone_1 = torch.ops.aten.neg.default(class_1)",
    );
    assert_eq!(graph.operands(node(&graph, "None_1")), [node(&graph, "class_1")]);
}

#[test]
fn a_node_may_be_called_output() {
    let graph = body("output = torch.ops.aten.neg.default(x)");
    assert_eq!(graph.name_of(*graph.order().last().unwrap()), "output_1");
}

#[test]
fn collectives_keep_what_the_operator_says() {
    let graph = body(concat!(
        "ag = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 8, 'g')\n",
        "ago = torch.ops._c10d_functional.all_gather_into_tensor_out.default(x, 8, 'g', out = y)\n",
        "agc = torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default([x, y], 8, 'g')\n",
        "rs = torch.ops._c10d_functional.reduce_scatter_tensor.default(x, 'avg', 8, 'g')\n",
        "ar = torch.ops._c10d_functional.all_reduce_.default(x, 'max', 'h')\n",
        "bc = torch.ops._c10d_functional.broadcast.default(x, 3, 'h')\n",
        "a2a = torch.ops._c10d_functional.all_to_all_single.default(x, [4, 4], [2, 6], 'h')\n",
        "pt = torch.ops._c10d_functional.permute_tensor.default(x, [1, 0], 'h')\n",
        "w = torch.ops._c10d_functional.wait_tensor.default(ag)",
    ));
    let of = |name: &str| graph.collective(node(&graph, name)).unwrap();
    assert_eq!((of("ag").kind, of("ag").variant), (CollectiveKind::AllGather { dim: 0 }, Variant::Functional));
    assert_eq!(of("ago").variant, Variant::Out);
    assert!(of("agc").coalesced);
    assert_eq!(of("rs").kind, CollectiveKind::ReduceScatter { op: ReduceOp::Avg, dim: 0 });
    assert_eq!((of("ar").kind, of("ar").variant), (CollectiveKind::AllReduce { op: ReduceOp::Max }, Variant::InPlace));
    assert_eq!(of("bc").kind, CollectiveKind::Broadcast { root: 3 });
    assert_eq!((of("a2a").kind, of("pt").kind), (CollectiveKind::AllToAll, CollectiveKind::Permute));
    assert_eq!(graph.args_of(node(&graph, "a2a")).positional.len(), 3);
    assert_eq!(graph.node(node(&graph, "w")).op, Op::Wait);
    let group = |name: &str| (&*graph.group(of(name).group).name, graph.group(of(name).group).size);
    assert_eq!((group("ag"), group("ar")), (("g", Some(8)), ("h", Some(2))));
    assert_eq!(graph.collective_inputs(node(&graph, "agc")).len(), 2);
}

#[test]
fn collectives_may_have_keywords() {
    let graph = body(concat!(
        "ag = torch.ops._c10d_functional.all_gather_into_tensor.default(input = x, group_name = 'g', group_size = 2)\n",
        "ar = torch.ops._c10d_functional.all_reduce.default(x, reduce_op = 'sum', group_name = 'g')\n",
        "bc = torch.ops._c10d_functional.broadcast.default(x, src = 1, group_name = 'g')",
    ));
    for name in ["ag", "ar", "bc"] {
        let collective = graph.collective(node(&graph, name)).unwrap();
        assert_eq!(&*graph.group(collective.group).name, "g");
    }
}

#[test]
fn an_opaque_group_is_named_after_its_node() {
    let graph = body(concat!(
        "ar = torch.ops._c10d_functional.all_reduce.default(x, 'sum', pg)\n",
        "ar_1 = torch.ops._c10d_functional.all_reduce.default(x, 'sum', y)",
    ));
    let group = |name: &str| &*graph.group(graph.collective(node(&graph, name)).unwrap().group).name;
    assert_eq!((group("ar"), group("ar_1")), ("%pg", "%y"));
    assert_eq!(graph.operands(node(&graph, "ar")), [node(&graph, "x"), node(&graph, "pg")]);
    assert_eq!(graph.collective_inputs(node(&graph, "ar")), [node(&graph, "x")]);
}

#[test]
fn the_older_collectives_name_their_group_by_tag_and_ranks() {
    let graph = body(concat!(
        "ar = torch.ops.c10d_functional.all_reduce.default(x, 'sum', 'tag0', [0, 1], 2)\n",
        "w = torch.ops.c10d_functional.wait_tensor.default(ar)",
    ));
    let group = graph.group(graph.collective(node(&graph, "ar")).unwrap().group);
    assert_eq!((&*group.name, group.size), ("tag0:[0, 1]", Some(2)));
    assert_eq!(group.members[0].iter().map(|rank| rank.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(graph.node(node(&graph, "w")).op, Op::Wait);
    assert!(print_fresh(&graph).unwrap().contains("c10d_functional.all_reduce.default(x, 'sum', 'tag0', [0, 1], 2)"));
}

#[test]
fn collectives_that_do_not_fit_stay_calls() {
    for call in [
        "_c10d_functional.all_reduce.default(x, 'premul_sum', 'g')",
        "_c10d_functional.all_reduce.default(x, 'sum')",
        "_c10d_functional.all_reduce.default([x], 'sum', 'g')",
        "_c10d_functional.all_gather_into_tensor.default(x, y, 'g')",
        "_c10d_functional.all_gather_into_tensor.default(x, 0, 'g')",
        "_c10d_functional.all_gather_into_tensor_out.default(x, 2, 'g')",
        "_c10d_functional.all_reduce.default(x, 'sum', 'g', odd = 1)",
        "_c10d_functional.brand_new.default(x, 'g')",
        "_c10d_functional.wait_tensor.default(x, 1)",
    ] {
        let graph = body(&format!("z = torch.ops.{call}"));
        let target = call.split('(').next().unwrap();
        assert_eq!(graph.target_of(node(&graph, "z")), target);
        assert!(matches!(graph.node(node(&graph, "z")).op, Op::Call(_)));
    }
}

#[test]
fn right_sides_other_than_operators_are_calls_too() {
    for (right, target) in [
        ("x[3]", "operator.getitem"),
        ("x[(slice(None, None, None), 0)]", "operator.getitem"),
        ("x + 8", "operator.add"),
        ("2048 * x", "operator.mul"),
        ("x // y", "operator.floordiv"),
        ("-x", "operator.neg"),
        ("x == y", "operator.eq"),
        ("x", "alias"),
        ("torch.sym_max(x, 1)", "torch.sym_max"),
        ("self._tensor_constant0", "self._tensor_constant0"),
        ("self.layer(x)", "self.layer"),
        ("self.layer()", "self.layer.__call__"),
        ("getattr(self.layers, \"0\").weight", "self.layers.0.weight"),
        ("x.view(1, -1)", "method.view"),
        ("x.shape", "getattr.shape"),
        ("math_trunc(x)", "math_trunc"),
        ("torch.ops.higher_order.cond(x, self.true_0, [y])", "higher_order.cond"),
    ] {
        let graph = body(&format!("z = {right}"));
        assert_eq!(graph.target_of(node(&graph, "z")), target, "{right}");
        assert!(print_fresh(&graph).unwrap().contains(&format!("z = {right};")), "{right}");
    }
}

#[test]
fn a_slice_in_a_subscript_is_a_slice_call() {
    let graph = body("z = x[1:, None]");
    let index = &graph.args_of(node(&graph, "z")).positional[1];
    let Arg::Tuple(items) = index else { panic!("{index:?}") };
    assert!(matches!(&items[0], Arg::Apply(name, args) if &**name == "slice" && args.positional.len() == 3));
}

#[test]
fn headers_may_have_anything_python_has() {
    let graph = graph(concat!(
        "class <lambda>(torch.nn.Module):\n",
        "    def forward(self, a: \"f32[2]\", b, c : torch.Tensor, d = None, e: \"i64[]\"=None, *args, f: Tuple[int, int] = (1, 2), **kw) -> \"f32[2]\":\n",
        "        # a comment\n",
        "        \"\"\"A docstring\n        of two lines.\"\"\"\n",
        "        return a\n",
    ));
    assert_eq!(inputs(&graph), ["a: f32[2]", "b: ?", "c: ?", "d: ?", "e: i64[]", "args: ?", "f: ?", "kw: ?"]);
    assert_eq!(graph.name, "<lambda>");
}

#[test]
fn a_header_may_take_several_lines() {
    let graph = graph(concat!(
        "class G(torch.nn.Module):\n    def forward(\n        self,\n        a: \"f32[2]\",  # PlainAOTInput(idx=0)\n",
        "        b: \"Sym(s0)\",\n    ):\n        return (a, b)\n",
    ));
    assert_eq!(inputs(&graph), ["a: f32[2]", "b: Sym(s0)"]);
}

#[test]
fn code_without_a_class_is_a_graph() {
    let graph = graph(concat!(
        "import torch\nfrom torch import device, fx_pytree\n\n\n\ndef forward(self, arg0_1, arg1_1):\n",
        "    mm = torch.ops.aten.mm.default(arg0_1, arg1_1);  arg0_1 = arg1_1 = None\n    return (mm,)\n    ",
    ));
    assert_eq!((graph.name.as_str(), graph.order().len()), ("forward", 4));
}

#[test]
fn joint_headers_give_the_flat_inputs() {
    let graph = graph(concat!(
        "class joint_fn(torch.nn.Module):\n    def forward(self, primals, tangents):\n",
        "        primals_1: \"f32[4, 8]\"; tangents_1: \"f32[8]\"; \n    \n",
        "        primals_1, primals_2, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)\n",
        "        mul = torch.ops.aten.mul.Tensor(primals_1, tangents_1)\n",
        "        return pytree.tree_unflatten([mul, None, [primals_2]], self._out_spec)\n",
    ));
    assert_eq!(inputs(&graph), ["primals_1: f32[4, 8]", "primals_2: ?", "tangents_1: f32[8]"]);
    let output = *graph.order().last().unwrap();
    assert_eq!(graph.args_of(output).positional.len(), 3);
    assert_eq!(graph.operands(output).len(), 2);
}

#[test]
fn an_export_header_flattens_inputs_of_the_same_names() {
    let graph = graph(concat!(
        "def forward(self, x, y):\n    x, y, = fx_pytree.tree_flatten_spec(([x, y], {}), self._in_spec)\n",
        "    return pytree.tree_unflatten((x, y), self._out_spec)\n",
    ));
    assert_eq!(inputs(&graph), ["x: ?", "y: ?"]);
}

#[test]
fn returns_of_all_kinds_are_read() {
    for (form, positional, operands) in [
        ("(x, x, y)", 3, 3),
        ("(x,)", 1, 1),
        ("x", 1, 1),
        ("None", 1, 0),
        ("[]", 1, 0),
        ("()", 0, 0),
        ("(None, [x, (y, 1)], None)", 3, 2),
        ("[x, y]", 1, 2),
    ] {
        let graph = graph(&format!("class G(M):\n    def forward(self, x, y):\n        return {form}"));
        let output = *graph.order().last().unwrap();
        let found = (graph.args_of(output).positional.len(), graph.operands(output).len());
        assert_eq!(found, (positional, operands), "{form}");
    }
}

#[test]
fn several_classes_are_several_graphs() {
    let fx = parse(concat!(
        "class GraphModule(torch.nn.Module):\n    def forward(self, x):\n        true_graph_0 = self.true_graph_0\n",
        "        cond = torch.ops.higher_order.cond(x, true_graph_0, [x]);  true_graph_0 = None\n        return (cond,)\n",
        "        \n    class true_graph_0(torch.nn.Module):\n        def forward(self, x: \"f32[3]\"):\n",
        "            sin: \"f32[3]\" = torch.ops.aten.sin.default(x);  x = None\n            return (sin,)\n\n\n",
        "class Other(torch.nn.Module):\n    def forward(self):\n        return ()\n",
    ));
    let names: Vec<&str> = fx.graphs().iter().map(|graph| graph.name.as_str()).collect();
    assert_eq!(names, ["GraphModule", "true_graph_0", "Other"]);
}

const LOG: &str = "I0101 11:59:59.000 123 torch/a.py:12] Step 3: 100% done\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs] TRACED GRAPH\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]  ===== AFTER POST GRAD =====\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]  /usr/lib/torch/fx/_lazy_graph_module.py class <lambda>(torch.nn.Module):\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]     def forward(self, x: \"f32[4]\"):\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]          # File: a.py:3 in f, code: x.sum()\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]         neg: \"f32[4]\" = torch.ops.aten.neg.default(x);  x = None\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]         return (neg,)\n\
V0101 12:00:00.000 123 torch/_inductor/compile_fx.py:45] [0/0] [__post_grad_graphs]\n\
Some other text = here\n";

#[test]
fn graphs_are_found_in_logs() {
    let graph = graph(LOG);
    assert_eq!(graph.order().len(), 3);
    let ranks: String = LOG.lines().map(|line| format!("[rank0]:{line}\n")).collect();
    let bare: String = in_class("z = x[0]").lines().map(|line| format!("[rank12]: {line}\n")).collect();
    for text in [ranks.replace('\n', "\r\n"), ranks, bare] {
        assert!(parse(&text).graphs().len() == 1);
    }
}

#[test]
fn colours_are_taken_off_anywhere() {
    let graph = graph(concat!(
        "class G(torch.nn.Module):\n    def forward(self, x: \"\x1b[31mf32\x1b[0m\x1b[34m[4, 2]\x1b[0m\x1b[2m\x1b[34m[2, 1]\x1b[0m\x1b[2m\x1b[32mcuda:0\x1b[0m\"):\n",
        "        \x1b[2m# File: a.py:3\x1b[0m\n        neg: \"\x1b[31mf32\x1b[0m[4, 2]\" = torch.ops.aten.\x1b[1mneg\x1b[0m.default(x);  x = None\n        return (neg,)\n\x1b[0m",
    ));
    assert_eq!(inputs(&graph), ["x: f32[4, 2][2, 1]cuda:0"]);
    assert_eq!(graph.target_of(node(&graph, "neg")), "aten.neg.default");
}

#[test]
fn comments_blank_lines_and_wrapped_statements_are_passed_over() {
    let graph = body(concat!(
        "# File: a.py:3 in f, code: y\n\nz = torch.ops.aten.cat.default([\n    x,  # first\n    y,\n], 0)  # trailing\n",
        "   \n# No stacktrace found for following nodes\nw: \"f32[4]\" = z[0];  z = None  # gone\nv = w + 1;",
    ));
    assert_eq!(graph.operands(node(&graph, "z")).len(), 2);
    assert_eq!(graph.operands(node(&graph, "v")), [node(&graph, "w")]);
}

#[test]
fn line_ends_of_windows_and_a_missing_last_one_are_kept() {
    let text = in_class("z = torch.ops.aten.neg.default(x)").replace('\n', "\r\n");
    assert_eq!(graph(&text).order().len(), 5);
    assert_eq!(graph(text.trim_end()).order().len(), 5);
    assert_eq!(graph(&format!("\u{feff}{text}")).order().len(), 5);
}

#[test]
fn comments_of_merged_nodes_are_facts_about_them() {
    let graph = body(concat!(
        "# File: a.py:1 in f, code: a\n# File: b.py:2 in g, code: b\n# bucketeer: merges ar, ar_1\n",
        "m = torch.ops._c10d_functional.all_reduce.default(x, 'sum', 'g')\n",
        "n = torch.ops._c10d_functional.all_reduce.default(m, 'sum', 'g')\n",
        "# No stacktrace found for following nodes\n",
        "o = torch.ops._c10d_functional.all_reduce.default(n, 'sum', 'g')",
    ));
    let meta = |name: &str| graph.meta_of(node(&graph, name));
    assert_eq!(meta("m").members, ["ar".into(), "ar_1".into()]);
    assert_eq!(meta("m").sources, ["a.py:1 in f, code: a".into(), "b.py:2 in g, code: b".into()]);
    assert_eq!((meta("n").members.len(), meta("n").sources.len()), (0, 2));
    assert_eq!(meta("o").sources.len(), 0);
}

#[test]
fn faults_have_a_place() {
    for (lines, expected) in [
        ("z = torch.ops.a.b(q)", "line 3, column 27: use of `q`, which is not defined before this line"),
        ("z = x + z", "line 3, column 17: use of `z`, which is not defined before this line"),
        ("z = torch.ops.a.b(x, y, w, x)", "line 3, column 33: use of `w`, which is not defined before this line"),
        (
            "z = x[0]\nz = x[1]",
            "line 4, column 9: `z` is defined a second time on line 4; its first definition is on line 3",
        ),
        ("x = y[0]", "line 3, column 9: `x` is defined a second time on line 3; its first definition is on line 2"),
        (
            "z = torch.ops.a.b(x, 99999999999999999999)",
            "line 3, column 30: found `99999999999999999999`, expected an integer that fits in 64 bits",
        ),
        ("z = torch.ops.a.b(x", "line 3, column 26: this bracket is not closed"),
        ("z = torch.ops.a.b(x))", "line 3, column 29: found `)`, expected an opening bracket before this one"),
        ("z = torch.ops.a.b('x)", "line 3, column 30: found `end of line`, expected the closing quote of a string"),
        ("z == x", "line 3, column 11: found `=`, expected `=`"),
        ("None = x[0]", "line 3, column 9: found `None`, expected a name, which Python's keywords are not"),
        ("with x:", "line 3, column 14: found `x`, expected `=`"),
        ("z x", "line 3, column 11: found `x`, expected `=`"),
        ("z: \"f32[4\" = x[0]", "line 3, column 13: `f32[4` is not a type: expected `]` after the sizes"),
        (
            "z: \"q9[4]\" = x[0]",
            "line 3, column 13: unknown dtype `q9`; expected a short name such as f32, bf16, i64 or b8",
        ),
        ("z = x[0];  y", "line 3, column 21: found `end of line`, expected deletions, such as `;  x = None`"),
        ("z = x[0];  w = y", "line 3, column 25: found `end of line`, expected deletions, such as `;  x = None`"),
        ("z = 5", "line 3, column 14: found `end of line`, expected an operator such as `+`, a call, or a subscript"),
        ("z = ", "line 3, column 13: found `end of line`, expected an expression"),
        ("z = x + y + x", "line 3, column 19: found `+`, expected the end of the statement"),
        ("@x", "line 3, column 9: found `@`, expected a statement, such as `name = torch.ops.aten.mm.default(a, b)`"),
        (
            "z = torch.ops.a.b(x)\nclass B(M):",
            "line 4, column 9: graph `GraphModule` has no `return`; is the file cut off?",
        ),
        ("z = torch.ops.a.b(\u{1}x)", "line 3, column 27: found `\u{1}`, expected code"),
    ] {
        assert_eq!(in_body(lines).to_string(), expected, "{lines}");
    }
}

#[test]
fn files_without_a_whole_graph_are_errors() {
    let expected = "`class GraphModule(torch.nn.Module):` or `def forward(self, ..):`";
    assert_eq!(error("").to_string(), format!("line 1, column 1: the file is empty; expected {expected}"));
    assert_eq!(
        error("hello\n").to_string(),
        format!("line 1, column 1: there is no graph in this file; expected {expected}")
    );
    let cut = "class G(M):\n    def forward(self, x):\n        y = x[0]\n";
    assert_eq!(error(cut).to_string(), "line 4, column 1: graph `G` has no `return`; is the file cut off?");
    assert_eq!(
        error("class G(M):\n    def forward(self, x: \"f32[4]\", y").to_string(),
        "line 2, column 37: found `end of file`, expected `,` or `)` after a parameter"
    );
    assert_eq!(
        error("    y = torch.ops.aten.neg.default(x)\n").to_string(),
        "line 1, column 5: a statement outside of any graph; is the start of the file missing?"
    );
    assert_eq!(
        error("class G(M):\n    def forward(self, a, a):\n        return a").to_string(),
        "line 2, column 26: `a` is defined a second time on line 2; its first definition is on line 2"
    );
}

#[test]
fn text_that_is_not_utf8_is_an_error_with_its_place() {
    let error = FxText::parse(b"class G(M):\n    d\xff".to_vec()).unwrap_err();
    assert_eq!((error.line, error.column, error.found.as_str()), (2, 6, "\\xff"));
}

#[test]
fn columns_count_the_log_prefix_and_long_lines_are_cut() {
    let text = LOG.replace("neg.default(x)", "neg.default(q)");
    let found = error(&text);
    let line = text.lines().nth(found.line - 1).unwrap();
    assert_eq!(line[found.column - 1..].chars().next(), Some('q'));
    let long = in_body(&format!("z = torch.ops.a.b({}q)", "x, ".repeat(20_000)));
    assert_eq!((long.line, long.column), (3, 60_027));
    assert!(long.source_line.chars().count() <= 200);
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    for open in ["[", "(", "f(", "{1: ", "x["] {
        let lines = format!("z = torch.ops.a.b({}", open.repeat(100_000));
        in_body(&lines);
        let close: String = open.chars().rev().filter_map(|c| "([{".find(c).map(|i| [')', ']', '}'][i])).collect();
        in_body(&format!("z = torch.ops.a.b({}{})", open.repeat(100_000), close.repeat(100_000)));
    }
    for open in ["(", "Sym((", "f32[(", "f32[-", "f32[Max("] {
        let annotation = open.repeat(100_000);
        let _ = FxText::parse(in_class(&format!("z: \"{annotation}\" = x[0]")).into_bytes());
    }
    error(&format!("class G(M):\n    def forward(self, {}", "[".repeat(100_000)));
}

#[test]
fn every_cut_and_every_flipped_byte_of_a_file_is_read_or_refused() {
    let text = format!(
        "{LOG}{}",
        in_class("z: \"f32[2*s0]\" = torch.ops.a.b(x, [1, 'ä'], k = device(type='cuda'));  x = None")
    );
    for at in 0..text.len() {
        let _ = FxText::parse(text.as_bytes()[..at].to_vec());
        for byte in *b"\"'([{)]};:,=\n\x1b#<x0 .-" {
            let mut changed = text.clone().into_bytes();
            changed[at] = byte;
            if let Ok(fx) = FxText::parse(changed.clone()) {
                assert!(fx.print() == changed);
            }
        }
    }
}
