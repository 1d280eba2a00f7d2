//! Edited graphs, printed into the file they came from.

use bucketeer::ir::{Arg, Args, Collective, CollectiveKind, Graph, Meta, NodeId, Op, ReduceOp, Type, Variant};
use bucketeer_formats::fx::{FxPrintError, FxText, print_fresh};

const TEXT: &str = r#"class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[8, 4][4, 1]cuda:0", b: "f32[8, 4][4, 1]cuda:0"):
        # File: m.py:3 in forward, code: a
        ar: "f32[8, 4][4, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0');  a = None
        neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b)
        wait: "f32[8, 4][4, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ar);  ar = None
        add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(wait, b);  wait = b = None
        return (add, neg)
"#;

fn edited(text: &str, edit: impl FnOnce(&mut Graph)) -> String {
    let mut fx = FxText::parse(text.as_bytes().to_vec()).unwrap();
    edit(&mut fx.graphs_mut()[0]);
    let printed = String::from_utf8(fx.print()).unwrap();
    let again = FxText::parse(printed.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.graphs().len(), fx.graphs().len());
    let names = |graph: &Graph| graph.order().iter().map(|&id| graph.name_of(id).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&again.graphs()[0]), names(&fx.graphs()[0]));
    printed
}

fn node(graph: &Graph, name: &str) -> NodeId {
    graph.order().iter().copied().find(|&id| graph.name_of(id) == name).unwrap()
}

/// The lines that differ, as `- old` and `+ new`, in order.
fn changes(old: &str, new: &str) -> Vec<String> {
    let gone =
        old.lines().filter(|line| !new.lines().any(|other| other == *line)).map(|line| format!("- {}", line.trim()));
    let made =
        new.lines().filter(|line| !old.lines().any(|other| other == *line)).map(|line| format!("+ {}", line.trim()));
    gone.chain(made).collect()
}

#[test]
fn swapped_statements_move_their_comments_and_deletions() {
    let printed = edited(TEXT, |graph| {
        let mut order = graph.order().to_vec();
        order.swap(2, 3);
        graph.set_order(order);
    });
    let lines: Vec<&str> = TEXT.split_inclusive('\n').collect();
    let expected = [lines[0], lines[1], lines[4], lines[2], lines[3], lines[5], lines[6], lines[7]].concat();
    assert_eq!(printed, expected);

    let printed = edited(TEXT, |graph| {
        let mut order = graph.order().to_vec();
        let neg = order.remove(3);
        order.insert(5, neg);
        graph.set_order(order);
    });
    assert_eq!(
        changes(TEXT, &printed),
        [
            r#"- neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b)"#,
            r#"- add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(wait, b);  wait = b = None"#,
            r#"+ add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(wait, b);  wait = None"#,
            r#"+ neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b);  b = None"#,
        ]
    );
}

#[test]
fn a_renamed_value_is_renamed_where_it_is_used_and_deleted() {
    let printed = edited(TEXT, |graph| {
        let name = graph.intern("renamed");
        let id = node(graph, "wait");
        graph.node_mut(id).name = name;
    });
    assert_eq!(
        printed,
        TEXT.replace("wait:", "renamed:").replace("(wait,", "(renamed,").replace("  wait =", "  renamed =")
    );
}

#[test]
fn another_operand_is_put_in_the_place_of_the_old_one() {
    let printed = edited(TEXT, |graph| {
        let (add, neg) = (node(graph, "add"), node(graph, "neg"));
        graph.operands_mut(add)[1] = neg;
    });
    assert_eq!(
        changes(TEXT, &printed),
        [
            r#"- neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b)"#,
            r#"- add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(wait, b);  wait = b = None"#,
            r#"+ neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b);  b = None"#,
            r#"+ add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(wait, neg);  wait = None"#,
        ]
    );
}

#[test]
fn a_wait_that_became_a_view_is_printed_from_the_graph() {
    let printed = edited(TEXT, |graph| {
        let wait = node(graph, "wait");
        let sizes = Arg::List(vec![Arg::Int(8), Arg::Int(4)]);
        let args = graph.intern_args(Args::positional(vec![Arg::Operand(0), sizes]));
        let target = graph.intern("aten.view.default");
        let neg = node(graph, "neg");
        graph.node_mut(wait).op = Op::Call(target);
        graph.node_mut(wait).args = args;
        graph.set_operands(wait, &[neg]);
    });
    assert_eq!(
        changes(TEXT, &printed),
        [
            r#"- ar: "f32[8, 4][4, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0');  a = None"#,
            r#"- wait: "f32[8, 4][4, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ar);  ar = None"#,
            r#"+ ar: "f32[8, 4][4, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0');  a = ar = None"#,
            r#"+ wait: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.view.default(neg, [8, 4])"#,
        ]
    );
}

/// Puts a merged all-reduce and its wait in the place of the old ones.
fn merge(graph: &mut Graph) {
    let (ar, wait, add, neg) = (node(graph, "ar"), node(graph, "wait"), node(graph, "add"), node(graph, "neg"));
    let (a, b) = (node(graph, "a"), node(graph, "b"));
    let collective = Collective { coalesced: true, ..graph.collective(ar).unwrap() };
    let list = graph.intern_args(Args::positional(vec![Arg::List(vec![Arg::Operand(0), Arg::Operand(1)])]));
    let one = graph.intern_args(Args::positional(vec![Arg::Operand(0)]));
    let item = graph.intern_args(Args::positional(vec![Arg::Operand(0), Arg::Int(1)]));
    let tuple = graph.intern_type(Type::Tuple(vec![]));
    let ty = graph.intern_type(Type::parse("f32[8, 4]").unwrap());
    let (getitem, names) =
        (graph.intern("operator.getitem"), ["merged", "item", "done"].map(|name| graph.intern(name)));
    let merged = graph.create(Op::Collective(collective), names[0], tuple, list, &[a, b]);
    let sources = (0..10).map(|line| format!("m.py:{line} in f").into()).chain(["m.py:0 in f".into()]).collect();
    graph.set_meta(merged, Meta { members: vec!["ar".into(), "x".into()], sources, ..Meta::default() });
    let item = graph.create(Op::Call(getitem), names[1], ty, item, &[merged]);
    let done = graph.create(Op::Wait, names[2], ty, one, &[item]);
    graph.operands_mut(add)[0] = done;
    let output = *graph.order().last().unwrap();
    let _ = wait;
    graph.set_order(vec![a, b, neg, merged, item, done, add, output]);
}

#[test]
fn new_statements_look_like_those_around_them() {
    let printed = edited(TEXT, merge);
    let expected = r#"class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[8, 4][4, 1]cuda:0", b: "f32[8, 4][4, 1]cuda:0"):
        neg: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.neg.default(b)
        # File: m.py:0 in f
        # File: m.py:1 in f
        # File: m.py:2 in f
        # File: m.py:3 in f
        # File: m.py:4 in f
        # File: m.py:5 in f
        # File: m.py:6 in f
        # File: m.py:7 in f
        # ... and 2 more
        # bucketeer: merges ar, x
        merged = torch.ops._c10d_functional.all_reduce_coalesced.default([a, b], 'sum', '0');  a = None
        item: "f32[8, 4][4, 1]" = merged[1];  merged = None
        done: "f32[8, 4][4, 1]" = torch.ops._c10d_functional.wait_tensor.default(item);  item = None
        add: "f32[8, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(done, b);  done = b = None
        return (add, neg)
"#;
    assert_eq!(printed, expected);
}

#[test]
fn annotations_have_strides_only_where_the_class_has() {
    let printed = edited(&TEXT.replace("[4, 1]cuda:0", ""), |graph| {
        let wait = node(graph, "wait");
        let ty = graph.intern_type(Type::parse("f32[32][1]cuda:0").unwrap());
        graph.node_mut(wait).ty = ty;
    });
    assert!(
        printed
            .contains("        wait: \"f32[32]\" = torch.ops._c10d_functional.wait_tensor.default(ar);  ar = None\n")
    );
}

#[test]
fn a_file_without_deletions_gets_none() {
    let plain: String = TEXT.lines().map(|line| format!("{}\n", line.split(";  ").next().unwrap())).collect();
    assert!(!edited(&plain, merge).contains("= None"));
}

#[test]
fn changed_lines_of_a_log_keep_its_prefix_and_lose_their_colours() {
    let prefix = "V0101 12:00:00.000 1 a.py:4] [0/0] [__g] ";
    let coloured = TEXT.replace("f32", "\u{1b}[31mf32\u{1b}[0m");
    let log: String = coloured.lines().map(|line| format!("{prefix}{line}\r\n")).collect();
    let printed = edited(&log, |graph| {
        let name = graph.intern("renamed");
        let id = node(graph, "neg");
        graph.node_mut(id).name = name;
    });
    let expected: String = coloured
        .lines()
        .map(|line| match line.contains("neg") {
            true if line.contains("neg:") => TEXT.lines().nth(4).unwrap().replace("neg:", "renamed:"),
            true => line.replace("neg", "renamed"),
            false => line.to_owned(),
        })
        .map(|line| format!("{prefix}{line}\r\n"))
        .collect();
    assert_eq!(printed, expected);
    let merged = edited(&log, merge);
    assert!(merged.lines().all(|line| line.starts_with(prefix)));
    assert!(merged.contains(&format!("{prefix}        item: \"f32[8, 4][4, 1]\" = merged[1];  merged = None\r\n")));
}

#[test]
fn only_the_changed_class_of_a_file_changes() {
    let both = format!("# one\n{TEXT}\n\n# two\n{}# end", TEXT.replace("GraphModule", "Second"));
    let mut fx = FxText::parse(both.clone().into_bytes()).unwrap();
    let graph = &mut fx.graphs_mut()[1];
    let id = node(graph, "neg");
    let name = graph.intern("nega");
    graph.node_mut(id).name = name;
    let (first, second) = both.split_once("# two").unwrap();
    let expected = format!("{first}# two{}", second.replace("neg:", "nega:").replace(" neg)", " nega)"));
    assert_eq!(String::from_utf8(fx.print()).unwrap(), expected);
}

#[test]
fn returns_keep_their_form() {
    for (old, new) in [
        ("(add, neg)", "(add, neg, wait)"),
        ("[add, neg]", "(add, neg, wait)"),
        (
            "pytree.tree_unflatten([add, neg], self._out_spec)",
            "pytree.tree_unflatten([add, neg, wait], self._out_spec)",
        ),
    ] {
        let text = TEXT.replace("(add, neg)", old);
        let printed = edited(&text, |graph| {
            let output = *graph.order().last().unwrap();
            let operands = [node(graph, "add"), node(graph, "neg"), node(graph, "wait")];
            let args = graph.intern_args(Args::positional((0..3).map(Arg::Operand).collect()));
            graph.node_mut(output).args = args;
            graph.set_operands(output, &operands);
        });
        assert!(printed.ends_with(&format!("        return {new}\n")), "{printed}");
    }
}

#[test]
fn a_collective_that_became_another_is_printed_from_the_graph() {
    let printed = edited(TEXT, |graph| {
        let ar = node(graph, "ar");
        let group = graph.intern_group("0", Some(4));
        let kind = CollectiveKind::ReduceScatter { op: ReduceOp::Avg, dim: 0 };
        graph.node_mut(ar).op =
            Op::Collective(Collective { kind, group, variant: Variant::Functional, coalesced: false });
    });
    assert!(printed.contains(
        "        ar: \"f32[8, 4][4, 1]cuda:0\" = torch.ops._c10d_functional.reduce_scatter_tensor.default(a, 'avg', 4, '0');  a = None\n"
    ));
}

#[test]
fn what_fx_text_cannot_say_is_an_error() {
    let fresh = |edit: &dyn Fn(&mut Graph, NodeId)| {
        let mut graph = FxText::parse(TEXT.as_bytes().to_vec()).unwrap().graphs()[0].clone();
        let ar = node(&graph, "ar");
        edit(&mut graph, ar);
        print_fresh(&graph).unwrap_err()
    };
    let gather = |dim| {
        move |graph: &mut Graph, id: NodeId| {
            let collective = graph.collective(id).unwrap();
            graph.node_mut(id).op =
                Op::Collective(Collective { kind: CollectiveKind::AllGather { dim }, ..collective });
        }
    };
    assert_eq!(fresh(&gather(1)), FxPrintError::Dimension { node: "ar".into(), dim: 1 });
    assert_eq!(fresh(&gather(0)), FxPrintError::GroupSize { node: "ar".into(), group: "0".into() });
    let bad_name = fresh(&|graph, id| {
        let name = graph.intern("a.b");
        graph.node_mut(id).name = name;
    });
    assert_eq!(bad_name, FxPrintError::Name("a.b".into()));
    let keyword = fresh(&|graph, id| {
        let name = graph.intern("lambda");
        graph.node_mut(id).name = name;
    });
    assert_eq!(keyword, FxPrintError::Name("lambda".into()));
    assert_eq!(fresh(&|graph, id| graph.set_operands(id, &[])), FxPrintError::Arguments("ar".into()));
}
