//! What writes memory, draws random numbers or sees how a tensor lies keeps its place against all that could tell, also
//! where PyTorch's names and schemas do not say what an operator does.
//!
//! The inputs in `tests/found` were run under PyTorch: each gave other values after a rewrite that took an operator for one
//! without effects.

use bucketeer::ir::{Graph, NodeId, Operators, verify};
use bucketeer::passes::Pipeline;
use bucketeer::passes::bucketing::Decision;
use bucketeer_formats::Document;

const ALL: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter,bucket-all-reduce,bucket-all-gather";

fn read(file: &str) -> Graph {
    let path = format!("{}/tests/found/{file}", kit::root().display());
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let document = Document::read(bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    document.graphs()[0].clone()
}

/// A graph after all three kinds were bucketed, and what was said of each collective.
fn rewritten(before: &Graph) -> (Graph, Vec<(String, String)>) {
    let mut graph = before.clone();
    let pipeline: Pipeline = ALL.parse().unwrap();
    let reports = pipeline.run(&mut graph).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&graph), Ok(()));
    let remarks = reports.iter().filter_map(|report| report.plan.as_ref()).flat_map(|plan| &plan.remarks);
    let said = remarks.map(|remark| {
        let said = match &remark.decision {
            Decision::Merged { .. } => "merged".to_owned(),
            Decision::Alone(reason) => reason.to_string(),
        };
        (remark.name.clone(), said)
    });
    let said = said.collect();
    (graph, said)
}

fn named(graph: &Graph, name: &str) -> NodeId {
    let found = graph.order().iter().copied().find(|&id| graph.name_of(id) == name);
    found.unwrap_or_else(|| panic!("no `{name}`"))
}

fn launches(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count()
}

/// Whatever reads `value` below `writer` in the source does so below it in the result, under whatever name.
#[track_caller]
fn stays_below(before: &Graph, after: &Graph, writer: &str, value: &str) {
    let place = |graph: &Graph, id: NodeId| graph.order().iter().position(|&at| at == id).unwrap();
    let (old, new) = (place(before, named(before, writer)), place(after, named(after, writer)));
    let above: Vec<&str> = before.order()[..old].iter().map(|&id| before.name_of(id)).collect();
    let readers = after.order()[..new].iter().filter(|&&id| after.operands(id).contains(&named(after, value)));
    let early: Vec<&str> = readers.map(|&id| after.name_of(id)).filter(|name| !above.contains(name)).collect();
    assert!(early.is_empty(), "{early:?} read `{value}` above `{writer}`");
}

/// One test for each input: after its rewrite, each of these values is read below what writes it.
macro_rules! readers_stay_below {
    ($($name:ident: $file:literal, $pairs:expr;)*) => {
        $(#[test]
        fn $name() {
            let before = read($file);
            let (after, said) = rewritten(&before);
            println!("{said:?}");
            for (writer, value) in $pairs {
                stays_below(&before, &after, writer, value);
            }
        })*
    };
}

readers_stay_below! {
    g_native_batch_norm_readers_stay_below_the_write: "G-native_batch_norm.txt", [("z", "b")];
    g_fused_adam_readers_stay_below_the_write: "G-fused_adam.txt", [("z", "b")];
    g_sort_values_out_readers_stay_below_the_write: "G-sort_values_out.txt", [("z", "b")];
    g_nn_relu_inplace_readers_stay_below_the_write: "G-nn_relu_inplace.txt", [("z", "b")];
    g_x_hardtanh_readers_stay_below_the_write: "G-x_hardtanh.txt", [("z", "b")];
    g_view_data_attr_readers_stay_below_the_write: "G-view_data_attr.txt", [("z", "b")];
    g_view_atleast_2d_readers_stay_below_the_write: "G-view_atleast_2d.txt", [("z", "b")];
    g_view_method_type_readers_stay_below_the_write: "G-view_method_type.txt", [("z", "b")];
    g_x_unsafe_readers_stay_below_the_write: "G-x_unsafe.txt", [("z", "b")];
    g_set_source_readers_stay_below_the_write: "G-set_source.txt", [("z", "b"), ("z2", "b")];
    g_unsqueeze_inplace_readers_stay_below_the_write: "G-unsqueeze_inplace.txt", [("z", "b")];
    g_operator_setitem_readers_stay_below_the_write: "G-operator_setitem.txt", [("setitem", "b")];
    g_operator_iadd_readers_stay_below_the_write: "G-operator_iadd.txt", [("iadd", "b")];
    g_custom_mutates_readers_stay_below_the_write: "G-custom_mutates.txt", [("z", "b")];
    h_mut2_readers_stay_below_the_write: "H-mut2.txt", [("scale_by_default", "mul")];
    d_f40_readers_stay_below_the_write: "D-F40.fx.txt", [("u0", "fi0"), ("u1", "fi1")];
    d_f42_readers_stay_below_the_write: "D-F42.fx.txt", [("c", "p")];
    d_f43_readers_stay_below_the_write: "D-F43.fx.txt", [("m", "x")];
    d_f44_readers_stay_below_the_write: "D-F44.fx.txt", [("m", "v")];
    d_f44c_readers_stay_below_the_write: "D-F44c.fx.txt", [("m", "v")];
    g_get_attr_twice_readers_stay_below_the_write: "G-get_attr_twice.txt", [("z", "q")];
}

#[test]
fn d_f42_d_f43_d_f44_and_d_f44c_collectives_of_one_value_before_and_after_a_write_stay_apart() {
    for file in ["D-F42.fx.txt", "D-F43.fx.txt", "D-F44.fx.txt", "D-F44c.fx.txt"] {
        let before = read(file);
        assert_eq!(launches(&rewritten(&before).0), 2, "{file}");
    }
}

#[test]
fn g_bn_export_running_statistics_are_reduced_after_batch_norm_has_written_them() {
    let before = read("G-bn_export.model.json");
    let (after, _) = rewritten(&before);
    let norm = before.order().iter().copied().find(|&id| before.target_of(id).contains("batch_norm")).unwrap();
    let statistics: Vec<&str> = before.operands(norm).iter().map(|&id| before.name_of(id)).collect();
    for value in statistics.iter().filter(|name| name.contains("running") || name.starts_with("b_")) {
        stays_below(&before, &after, before.name_of(norm), value);
    }
    assert!(statistics.iter().any(|name| name.contains("running")), "{statistics:?}");
}

#[test]
fn g_random_order_and_g_nn_dropout_order_random_draws_keep_their_order() {
    for file in ["G-random_order.txt", "G-nn_dropout_order.txt"] {
        let before = read(file);
        let (after, _) = rewritten(&before);
        let place = |name| after.order().iter().position(|&id| id == named(&after, name)).unwrap();
        assert!(place("n1") < place("n2"), "{file}");
    }
}

#[test]
fn g_as_strided_reduce_and_g_sym_storage_offset_get_a_copy_out_of_the_bucket() {
    for file in ["G-as_strided_reduce.txt", "G-sym_storage_offset.txt"] {
        let before = read(file);
        let (after, said) = rewritten(&before);
        assert_eq!(launches(&after), 1, "{file}: {said:?}");
        // What `as_strided` or `sym_storage_offset` is given is not a view of the bucket.
        for &id in after.order() {
            let target = after.target_of(id);
            if target.contains("as_strided") || target.contains("storage_offset") {
                let given = after.operands(id)[0];
                assert!(after.target_of(given).contains("clone"), "{file}: {}", after.target_of(given));
            }
        }
    }
}

#[test]
fn g_unsqueeze_inplace_a_collective_whose_input_changes_its_shape_in_place_is_left_alone() {
    let (after, said) = rewritten(&read("G-unsqueeze_inplace.txt"));
    assert_eq!(launches(&after), 2);
    assert!(said.iter().any(|(name, said)| name == "g1" && said.contains("changed in place")), "{said:?}");
}

#[test]
fn h_muth_h_custom2_and_h_custom4_a_custom_operator_is_no_wall() {
    for (file, launched) in [("H-muth.txt", 1), ("H-custom2.fx.txt", 1), ("H-custom4.fx.txt", 1)] {
        let (after, said) = rewritten(&read(file));
        assert_eq!(launches(&after), launched, "{file}: {said:?}");
    }
}

#[test]
fn h_mut2_an_unknown_operator_that_keeps_collectives_apart_is_named_and_a_declaration_frees_them() {
    let text = "x = input f32[4]; y = input f32[4]
        a = all_reduce(x, sum, G0:2)
        v = wait(a)
        two = mylib.two(v, y)
        b = all_reduce(y, sum, G0:2)
        w = wait(b)
        output(v, w, two)";
    let before = bucketeer::ir::text::parse(text).unwrap();
    let (after, said) = rewritten(&before);
    assert_eq!(launches(&after), 2);
    let reason = &said.iter().find(|(name, _)| name == "b").unwrap().1;
    assert!(reason.contains("written between") && reason.contains("`mylib.two` is not known; declare it"), "{reason}");
    for (schema, launched) in [
        ("mylib::two(Tensor a, Tensor b) -> Tensor", 1),
        ("mylib::two(Tensor(a!) a, Tensor b) -> Tensor", 1),
        ("mylib::two(Tensor a, Tensor(a!) b) -> Tensor", 2),
    ] {
        let mut declared = before.clone();
        declared.operators = Operators::parse(schema).unwrap();
        assert_eq!(launches(&rewritten(&declared).0), launched, "{schema}");
    }
}

#[test]
fn nothing_moves_past_what_changes_how_the_rest_computes() {
    let text = "x = input f32[4]; y = input f32[4]
        g0 = all_reduce(x, sum, G0:2)
        w0 = wait(g0)
        mode = torch.amp.autocast_mode._enter_autocast('cpu')
        b = relu(y)
        off = torch.amp.autocast_mode._exit_autocast(mode)
        g1 = all_reduce(b, sum, G0:2)
        w1 = wait(g1)
        output(w0, w1)";
    let before = bucketeer::ir::text::parse(text).unwrap();
    let (after, said) = rewritten(&before);
    assert_eq!(launches(&after), 2, "{said:?}");
    // The checker sees it by a reading of its own.
    let moved = bucketeer::ir::text::parse(
        &text
            .replace("        b = relu(y)\n", "")
            .replace("        mode = torch", "        b = relu(y)\n        mode = torch"),
    );
    assert!(matches!(bucketeer::check::prove(&before, &before), bucketeer::check::Verdict::Equal(_)));
    assert!(!matches!(bucketeer::check::prove(&before, &moved.unwrap()), bucketeer::check::Verdict::Equal(_)));
}
