//! Inputs that were read wrongly, or not at all, when they were found; each test begins with the id of its input.

use bucketeer::ir::operators::{self, Alias, Fence};
use bucketeer::ir::{Graph, NodeId, verify};
use bucketeer_formats::fx::{FxText, print_fresh};

fn found(name: &str) -> Vec<u8> {
    let path = kit::root().join("tests/found").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a file of one well-formed graph, and sees that it is written back byte for byte.
fn read(name: &str) -> FxText {
    let bytes = found(name);
    let text = FxText::parse(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    for graph in text.graphs() {
        verify(graph).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    }
    assert!(text.print() == bytes, "{name} is not written back byte for byte");
    text
}

fn node(graph: &Graph, name: &str) -> NodeId {
    let found = graph.order().iter().find(|&&id| graph.name_of(id) == name);
    *found.unwrap_or_else(|| panic!("no node `{name}`"))
}

/// Target and operands of a node: `operator.iadd(b, a)`.
fn call(graph: &Graph, name: &str) -> String {
    let id = node(graph, name);
    let operands: Vec<&str> = graph.operands(id).iter().map(|&operand| graph.name_of(operand)).collect();
    format!("{}({})", graph.target_of(id), operands.join(", "))
}

/// The statement of a node in the text that the file is written as once `edit` has changed its graph.
fn lines_after(name: &str, edit: impl FnOnce(&mut Graph)) -> String {
    let mut text = read(name);
    edit(&mut text.graphs_mut()[0]);
    let printed = String::from_utf8(text.print()).unwrap();
    let again = FxText::parse(printed.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.graphs(), text.graphs(), "{printed}");
    printed
}

#[test]
fn d_f46_statements_that_change_a_value_are_calls_that_say_what_they_change() {
    let text = read("D-F46.fx.txt");
    let graph = &text.graphs()[0];
    assert_eq!(call(graph, "p"), "operator.iadd(l_p_, l_q_)");
    assert_eq!(call(graph, "setitem"), "operator.setitem(l_x_)");
    assert_eq!(call(graph, "setitem_1"), "operator.setitem(l_x_, getitem)");
    assert_eq!(call(graph, "tensor_1"), "all_reduce(p)");
    assert_eq!(call(graph, "tensor_2"), "all_reduce(l_x_)");
    assert_eq!(graph.args_of(node(graph, "setitem")).positional.len(), 3);
    for name in ["p", "l_p_", "l_x_"] {
        assert_eq!(graph.type_of(node(graph, name)).to_string(), "f32[4][1]cpu", "{name}");
    }
}

#[test]
fn g_setitem_statement_and_g_operator_setitem_are_the_same_call() {
    for name in ["G-setitem_statement.txt", "G-operator_setitem.txt"] {
        let text = read(name);
        assert_eq!(call(&text.graphs()[0], "setitem"), "operator.setitem(b)", "{name}");
        assert_eq!(call(&text.graphs()[0], "g1"), "all_gather_into_tensor(b)", "{name}");
    }
}

#[test]
fn g_iadd_statement_makes_the_name_of_what_it_changed_stand_for_the_result() {
    let text = read("G-iadd_statement.txt");
    assert_eq!(call(&text.graphs()[0], "iadd"), "operator.iadd(b, a)");
    assert_eq!(text.graphs()[0].type_of(node(&text.graphs()[0], "iadd")).to_string(), "f32[4][1]cpu");
    assert_eq!(call(&text.graphs()[0], "g1"), "all_gather_into_tensor(iadd)");
    // A call of the function binds no name but its own.
    let text = read("G-operator_iadd.txt");
    assert_eq!(call(&text.graphs()[0], "iadd"), "operator.iadd(b, a)");
    assert_eq!(call(&text.graphs()[0], "g1"), "all_gather_into_tensor(b)");
}

#[test]
fn g_iadd_statement_is_written_with_names_that_are_still_bound_when_the_graph_changes() {
    let printed = lines_after("G-iadd_statement.txt", |graph| {
        let (w0, output) = (node(graph, "w0"), *graph.order().last().unwrap());
        graph.set_operands(output, &[w0, w0]);
    });
    assert!(
        printed.contains("\n        b += a;  iadd = b;  b = a = None\n") || printed.contains("iadd = b;  b = None\n"),
        "{printed}"
    );
    assert!(printed.contains("all_gather_into_tensor.default(iadd, 2, '0');  iadd = None\n"), "{printed}");
}

#[test]
fn d_f46_statements_are_written_as_statements_with_other_operands() {
    let printed = lines_after("D-F46.fx.txt", |graph| {
        let (w0, q) = (node(graph, "w0"), node(graph, "l_q_"));
        let (w1, getitem, output) = (node(graph, "w1"), node(graph, "getitem"), *graph.order().last().unwrap());
        graph.set_operands(node(graph, "p"), &[w0, q]);
        graph.set_operands(node(graph, "setitem_1"), &[q, getitem]);
        graph.set_operands(output, &[w1, w1, w1]);
    });
    assert!(printed.contains("\n        w0 += l_q_;  p: \"f32[4][1]cpu\" = w0"), "{printed}");
    assert!(printed.contains("\n        l_q_[slice(1, 3, None)] = getitem;  setitem_1 = l_q_"), "{printed}");
}

#[test]
fn d_f46_statements_that_change_a_value_need_a_value_and_a_name() {
    for (statement, part) in [
        ("y += x;  iadd = y", "use of `y`, which is not defined before this line"),
        ("x += x", "expected `;  name = x`"),
        ("x[0] = 7;  x = None", "expected `;  name = x`"),
        ("x[0] = 7;  y = z", "expected `;  name = x`"),
        ("x[] = 7;  y = x", "expected a value"),
        ("x[0] += 7;  y = x", "expected `=`"),
        ("x[0 = 7;  y = x", "expected a closing bracket before `;`"),
        ("x +=;  y = x", "expected a value"),
        ("x **= 2;  x = x", "`x` is defined a second time"),
    ] {
        let text = format!(
            "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n        {statement}\n        return (x,)\n"
        );
        let error = FxText::parse(text.into_bytes()).unwrap_err();
        assert!(error.to_string().contains(part), "{statement}: {error}");
        assert_eq!(error.line, 3, "{statement}: {error}");
    }
}

#[test]
fn g_iadd_statement_every_augmented_assignment_is_the_function_that_python_calls() {
    for (sign, name) in [
        ("+=", "iadd"),
        ("-=", "isub"),
        ("*=", "imul"),
        ("/=", "itruediv"),
        ("//=", "ifloordiv"),
        ("%=", "imod"),
        ("**=", "ipow"),
        ("@=", "imatmul"),
        ("&=", "iand"),
        ("|=", "ior"),
        ("^=", "ixor"),
        ("<<=", "ilshift"),
        (">>=", "irshift"),
    ] {
        let text = format!(
            "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\", y):\n        x {sign} y;  z: \"f32[4]\" = x;  y = None\n        x {sign} 2;  w = x\n        return (x, z, w)\n"
        );
        let read = FxText::parse(text.clone().into_bytes()).unwrap();
        assert_eq!(read.print(), text.as_bytes());
        let graph = &read.graphs()[0];
        assert_eq!(call(graph, "z"), format!("operator.{name}(x, y)"));
        assert_eq!(call(graph, "w"), format!("operator.{name}(z)"));
        assert_eq!(call(graph, "output"), "output(w, z, w)");
        let fresh = print_fresh(graph).unwrap();
        assert!(fresh.contains(&format!("z: \"f32[4]\" = operator.{name}(x, y)")), "{fresh}");
    }
}

#[test]
fn g_view_data_attr_attributes_of_values_keep_their_name_as_target() {
    let text = "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4, 4]\"):\n        y = x.data\n        z = y.T\n        return (y, z)\n";
    let read = FxText::parse(text.into()).unwrap();
    assert_eq!(call(&read.graphs()[0], "y"), "getattr.data(x)");
    assert_eq!(call(&read.graphs()[0], "z"), "getattr.T(y)");
}

#[test]
fn g_get_attr_twice_has_one_target_for_both_reads_of_an_attribute() {
    let text = read("G-get_attr_twice.txt");
    assert_eq!(call(&text.graphs()[0], "p"), "self.buf()");
    assert_eq!(call(&text.graphs()[0], "q"), "self.buf()");
}

/// The groups of the collectives of a graph, in order.
fn groups(graph: &Graph) -> Vec<&str> {
    let group = |&id: &NodeId| graph.collective(id).map(|collective| &*graph.group(collective.group).name);
    graph.order().iter().filter_map(group).collect()
}

#[test]
fn b_mesh_groups_that_the_same_call_makes_are_one_group() {
    let text = read("B-mesh_groups.txt");
    assert_eq!(groups(&text.graphs()[0]), ["%g0", "%g0"]);
    assert_eq!(text.graphs()[0].groups().len(), 1);
}

#[test]
fn b_mesh_groups_that_other_calls_make_are_other_groups() {
    let body = |second: &str| {
        format!(
            "class G(torch.nn.Module):\n    def forward(self, m, n, a: \"f32[4]\"):\n        g0 = torch.ops._dtensor.mesh_get_process_group.default(m, 0)\n        r0: \"f32[4]\" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', g0)\n        g = {second}\n        r1: \"f32[4]\" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', g)\n        return (r0, r1)\n"
        )
    };
    for (second, expected) in [
        // The name does not depend on which is used first, for a rewrite may change that.
        ("torch.ops._dtensor.mesh_get_process_group.default(m, 0)", ["%g", "%g"]),
        ("torch.ops._dtensor.mesh_get_process_group.default(m, 1)", ["%g0", "%g"]),
        ("torch.ops._dtensor.mesh_get_process_group.default(n, 0)", ["%g0", "%g"]),
        ("torch.ops.mylib.new_group.default(m, 0)", ["%g0", "%g"]),
        ("self.group", ["%g0", "%g"]),
    ] {
        let text = FxText::parse(body(second).into_bytes()).unwrap();
        assert_eq!(groups(&text.graphs()[0]), expected, "{second}");
    }
    // What makes a new group each time makes two.
    let both = body("torch.ops.mylib.new_group.default(m)")
        .replace("_dtensor.mesh_get_process_group.default(m, 0)", "mylib.new_group.default(m)");
    let text = FxText::parse(both.into_bytes()).unwrap();
    assert_eq!(groups(&text.graphs()[0]), ["%g0", "%g"]);
}

#[test]
fn g_v_pg2_two_attributes_are_two_groups() {
    for name in ["G-v_pg2.a.txt", "G-v_pg2.b.txt"] {
        let text = read(name);
        assert_eq!(groups(&text.graphs()[0]), ["%p1"], "{name}");
    }
}

/// Effects of a call, by a graph of the tree.
fn fixture(name: &str) -> FxText {
    let path = kit::root().join("fixtures/fresh").join(name);
    FxText::parse(std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn invoke_subgraph_a_call_of_graphs_that_the_file_holds_does_what_they_do() {
    let text = fixture("regional_fsdp.txt");
    let graph = &text.graphs()[0];
    assert!(graph.bodies.get("self.repeated_subgraph0").is_some() && text.graphs()[1].bodies.is_empty());
    // Its body gathers, waits for what it gathers, and always runs.
    let effects = operators::effects(graph, node(graph, "invoke_subgraph_2"));
    assert_eq!((effects.fence, effects.launches), (Fence::Free, true));
    let text = fixture("cond_collectives.txt");
    let graph = &text.graphs()[0];
    assert_eq!(operators::effects(graph, node(graph, "cond_1")).fence, Fence::Full);
    // With the branch that only computes for both, nothing is left that keeps others in their place.
    let printed = String::from_utf8(text.print()).unwrap();
    let computes = FxText::parse(printed.replace("self.true_graph_1", "self.false_graph_0").into_bytes()).unwrap();
    let graph = &computes.graphs()[0];
    let effects = operators::effects(graph, node(graph, "cond_1"));
    assert_eq!((effects.fence, effects.alias, effects.writes.len()), (Fence::Free, Alias::Fresh, 0));
    // A graph that is not in the file may do anything.
    let cut = printed.split("    class true_graph_1").next().unwrap();
    let cut = FxText::parse(cut.as_bytes().to_vec()).unwrap();
    assert_eq!(operators::effects(&cut.graphs()[0], node(&cut.graphs()[0], "cond_1")).fence, Fence::Full);
}

#[test]
fn invoke_subgraph_graphs_of_one_name_belong_to_the_graph_that_they_stand_below() {
    let outer = |body: &str| {
        format!(
            "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n        b = self.body\n        c = torch.ops.higher_order.invoke_subgraph(b, 's', x)\n        r: \"f32[4]\" = c[0]\n        return (r,)\n    class body(torch.nn.Module):\n        def forward(self, x: \"f32[4]\"):\n            y: \"f32[4]\" = torch.ops.{body}\n            return (y,)\n"
        )
    };
    let file = outer("aten.neg.default(x)") + &outer("_c10d_functional.all_reduce.default(x, 'sum', '0')");
    let text = FxText::parse(file.into_bytes()).unwrap();
    let fence = |index: usize| operators::effects(&text.graphs()[index], node(&text.graphs()[index], "c")).fence;
    assert_eq!((fence(0), fence(2)), (Fence::Free, Fence::Full));
}

#[test]
fn h_trunc_a_cut_log_is_refused_with_the_place_of_the_cut() {
    let error = FxText::parse(found("H-trunc.log")).unwrap_err();
    assert_eq!(error.problem.as_deref(), Some("graph `after_post_grad` has no `return`; is the file cut off?"));
    assert_eq!(error.line, 141);
}

#[test]
fn h_inter_logs_that_two_ranks_wrote_at_once_are_split_by_rank() {
    let text = read("H-inter.log");
    let of: Vec<(Option<u32>, &str)> =
        (0..4).map(|index| (text.rank_of(index), text.graphs()[index].name.as_str())).collect();
    let name = "after_post_grad";
    assert_eq!(of, [(Some(0), name), (Some(0), name), (Some(1), name), (Some(1), name)]);
    assert_eq!(text.graphs().len(), 4);
    assert!(text.unread().is_empty());
    for (left, right) in [(0, 2), (1, 3)] {
        assert!(text.graphs()[left] == text.graphs()[right], "{left} and {right} are the same graph");
    }
}

#[test]
fn h_inter_a_changed_log_has_the_lines_of_each_rank_together() {
    let mut text = read("H-inter.log");
    let graph = &mut text.graphs_mut()[2];
    let dead = node(graph, "permute_7");
    let target = graph.intern("aten.t.default");
    graph.node_mut(dead).op = bucketeer::ir::Op::Call(target);
    let printed = String::from_utf8(text.print()).unwrap();
    let again = FxText::parse(printed.clone().into_bytes()).unwrap();
    assert_eq!(again.graphs(), text.graphs());
    let ranks: Vec<&str> = printed.lines().filter(|line| line.starts_with('[')).map(|line| &line[..8]).collect();
    assert!(ranks.is_sorted(), "rank 0 comes before rank 1");
    let edited: Vec<&str> = printed.lines().filter(|line| line.contains("aten.t.default")).collect();
    assert!(matches!(edited[..], [line] if line.starts_with("[rank1]:V1128 ")), "{edited:?}");
}

#[test]
fn h_dynamo_dtensor_a_value_of_another_class_has_no_tensor_type() {
    let text = read("H-dynamo_dtensor.txt");
    let graph = &text.graphs()[0];
    assert_eq!(graph.type_of(node(graph, "redistribute")).to_string(), "?");
    assert_eq!(graph.type_of(node(graph, "x")).to_string(), "f32[64][1]cpu");
    assert_eq!(operators::effects(graph, node(graph, "redistribute")).fence, Fence::Full);
    // What looks like a tensor has to be one.
    let bad = String::from_utf8(found("H-dynamo_dtensor.txt")).unwrap().replacen("\"f32[64]", "\"f33[64]", 1);
    assert!(FxText::parse(bad.into_bytes()).unwrap_err().to_string().contains("unknown dtype `f33`"));
}

#[test]
fn h_joint_expanded_declarations_stand_one_a_line_with_comments() {
    let text = read("H-joint_expanded.txt");
    let graph = &text.graphs()[0];
    assert_eq!(graph.order().iter().filter(|&&id| graph.target_of(id) == "input").count(), 54);
    assert_eq!(graph.type_of(node(graph, "primals_52")).to_string(), "f32[16][1]cpu");
    assert_eq!(graph.type_of(node(graph, "primals_2")).to_string(), "?");
    assert_eq!(graph.type_of(node(graph, "tangents_1")).to_string(), "f32[8, 32][32, 1]cpu");
    let output = *graph.order().last().unwrap();
    assert_eq!(graph.name_of(graph.operands(output)[0]), "addmm_8");
}

#[test]
fn h_mut2_a_log_and_its_graph_hold_the_same() {
    let (log, text) = (read("H-mut2.log"), read("H-mut2.txt"));
    assert_eq!(log.graphs()[0].name, "after_post_grad");
    assert_eq!(call(&log.graphs()[0], "scale_by_default"), "mylib.scale_by.default(mul, wait_tensor)");
    assert_eq!(log.graphs()[0].order().len(), text.graphs()[0].order().len());
}

fn graph_with(statement: &str) -> String {
    format!(
        "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n        {statement}\n        return (x,)\n"
    )
}

#[test]
fn h_trunc_a_graph_that_cannot_be_read_does_not_keep_others_from_being_read() {
    let good = graph_with("y: \"f32[4]\" = torch.ops.aten.neg.default(x)");
    let cut = &good[..good.find("        return").unwrap()];
    for (bad, line, part) in [
        (graph_with("y = torch.ops.aten.neg.default(z)"), 7, "use of `z`"),
        (graph_with("y = torch.ops.aten.neg.default(x"), 7, "is not closed"),
        (good.replace("f32[4]\"):", "f32[4]):"), 6, "the closing quote"),
        (good.replace("\"f32[4]\"):", "\"g32[4]\"):"), 6, "unknown dtype"),
        (cut.to_owned(), 8, "has no `return`"),
        (
            cut.replace("class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n", ""),
            5,
            "outside of any graph",
        ),
    ] {
        let file = format!("{good}{bad}{good}");
        let text = FxText::parse(file.clone().into_bytes()).unwrap();
        assert_eq!(text.graphs().len(), 2, "{bad}");
        let [error] = text.unread() else { panic!("{bad}: {:?}", text.unread()) };
        assert!(error.to_string().contains(part) && error.line == line, "{bad}: {error}");
        assert!(text.print() == file.as_bytes());
        let mut changed = text.clone();
        let last = &mut changed.graphs_mut()[1];
        let (x, output) = (node(last, "x"), *last.order().last().unwrap());
        last.set_operands(node(last, "y"), &[x]);
        let y = node(last, "y");
        last.set_operands(output, &[y]);
        let printed = String::from_utf8(changed.print()).unwrap();
        assert_eq!(printed, format!("{good}{bad}{}", good.replace("return (x,)", "return (y,)")));
    }
}

#[test]
fn h_trunc_graphs_inside_of_one_that_cannot_be_read_are_not_those_of_another() {
    let outer = "class G(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n        b = self.body\n        c = torch.ops.higher_order.invoke_subgraph(b, 's', x)\n        return (c,)\n";
    let body = "    class body(torch.nn.Module):\n        def forward(self, x: \"f32[4]\"):\n            return (x,)\n";
    let file = format!("{outer}{}{body}", outer.replace("', x)", "', y)"));
    let text = FxText::parse(file.into_bytes()).unwrap();
    assert_eq!((text.graphs().len(), text.unread().len()), (2, 1));
    assert!(text.graphs()[0].bodies.is_empty());
}

#[test]
fn c_gloo_mixed_gathers_of_several_dtypes_are_not_written_as_one_list() {
    let text = |second: &str| {
        format!(
            "x = input f32[8]\ny = input {second}[8]\ng = all_gather_coalesced([x, y], G:2) : (f32[16], {second}[16])\na = getitem(g, 0) : f32[16]\nb = getitem(g, 1) : {second}[16]\nv = wait(a)\nw = wait(b)\noutput(v, w)\n"
        )
    };
    let graph = bucketeer::ir::text::parse(&text("f32")).unwrap();
    assert!(print_fresh(&graph).unwrap().contains("all_gather_into_tensor_coalesced.default([x, y], 2, 'G')"));
    let graph = bucketeer::ir::text::parse(&text("bf16")).unwrap();
    let error = print_fresh(&graph).unwrap_err().to_string();
    assert_eq!(
        error,
        "`g` gathers tensors of several dtypes in one launch, which PyTorch's gloo backend computes wrongly"
    );
}

/// Files with a byte changed, a line doubled, left out or cut off are read or refused, and come back as they are.
#[test]
fn h_trunc_damaged_inputs_are_refused_or_come_back_byte_for_byte() {
    let names = ["D-F46.fx.txt", "G-iadd_statement.txt", "B-mesh_groups.txt", "H-mut2.log", "H-inter.log"];
    let (mut state, mut accepted) = (7u64, 0);
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for name in names {
        let whole = found(name);
        let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
        for round in 0..if whole.len() > 100_000 { 40 } else { 400 } {
            let mut lines = lines.clone();
            let (line, other) = (next(lines.len()), next(lines.len()));
            match round % 4 {
                0 => drop(lines.remove(line)),
                1 => lines.insert(other, lines[line]),
                _ => lines.truncate(line + 1),
            }
            let mut bytes = if round % 4 == 3 { whole.clone() } else { lines.concat() };
            let at = next(bytes.len());
            match round % 3 {
                0 => bytes[at] = b"[]()+=;:\n {x0#"[next(14)],
                1 => bytes.truncate(at),
                _ => {}
            }
            let Ok(mut text) = FxText::parse(bytes.clone()) else { continue };
            accepted += 1;
            assert!(text.print() == bytes, "{name}, round {round}");
            // What is written after a change can be read again.
            for graph in text.graphs_mut() {
                let last = *graph.order().last().unwrap();
                let first = graph.order()[0];
                let operands = vec![first; graph.operands(last).len()];
                graph.set_operands(last, &operands);
            }
            let printed = text.print();
            let again = FxText::parse(printed.clone()).unwrap_or_else(|error| {
                panic!("{name}, round {round}: {error}\n{}", String::from_utf8_lossy(&printed))
            });
            assert_eq!(again.graphs().len(), text.graphs().len(), "{name}, round {round}");
        }
    }
    assert!(accepted > 300, "{accepted}");
}
