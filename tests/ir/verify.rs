//! What the verifier accepts and refuses. Each rule has a text that keeps it and one that breaks it.

use bucketeer::ir::text::parse;
use bucketeer::ir::{Args, ControlEdge, Graph, NodeId, Op, Region, RegionId, RegionKind, Strength, verify};

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn node(graph: &Graph, name: &str) -> NodeId {
    *graph.order().iter().find(|&&id| graph.name_of(id) == name).unwrap()
}

#[track_caller]
fn accepts(text: &str) {
    if let Err(errors) = verify(&read(text)) {
        panic!("{errors}");
    }
}

#[track_caller]
fn refuses(graph: &Graph, expected: &str) {
    assert_eq!(verify(graph).map_err(|errors| errors.to_string()), Err(expected.to_owned()));
}

/// Refuses a text, whose lines with a fault end in `# error: message`.
#[track_caller]
fn refuses_text(text: &str) {
    let expected: Vec<_> = text.lines().filter_map(|line| line.split_once("# error: ")).map(|(_, e)| e).collect();
    refuses(&read(text), &expected.join("\n"));
}

#[test]
fn every_sketch_is_well_formed_but_those_that_read_pending_data_or_break_an_edge() {
    for path in kit::files::sketches() {
        let graph = read(&std::fs::read_to_string(&path).unwrap());
        let expected = match path.file_stem().unwrap().to_str().unwrap() {
            "nowait-1" => "`c0` reads `g`, whose result is pending; expected a wait on `g` before",
            _ => "",
        };
        let found = verify(&graph).map_err(|errors| errors.to_string()).err().unwrap_or_default();
        assert_eq!(found, expected, "{}", path.display());
    }
}

#[test]
fn operands_stand_before_their_users_and_in_the_graph() {
    let mut graph = read("a = input f32[4]; b = neg(a); c = neg(b)");
    let ids = graph.order().to_vec();
    graph.set_order(vec![ids[0], ids[2], ids[1]]);
    refuses(&graph, "`c` uses `b`, which stands after it; expected it before");
    graph.set_order(vec![ids[0], ids[2]]);
    refuses(&graph, "`c` uses `b`, which is not in the program order");
    graph.set_order(vec![ids[0], ids[1], ids[2], ids[1]]);
    refuses(&graph, "`b` stands in the program order twice; expected once");
    graph.set_order(vec![NodeId::from_index(77)]);
    refuses(&graph, "the program order names node 77, which does not exist");
}

#[test]
fn all_faults_are_reported() {
    let mut graph = read("a = input f32[4]; b = neg(a); c = neg(a)");
    let ids = graph.order().to_vec();
    graph.set_order(ids[1..].to_vec());
    refuses(&graph, "`b` uses `a`, which is not in the program order\n`c` uses `a`, which is not in the program order");
}

#[test]
fn names_are_unique() {
    let mut graph = read("a = input f32[4]; b = neg(a)");
    let (a, b) = (node(&graph, "a"), node(&graph, "b"));
    graph.node_mut(b).name = graph.node(a).name;
    refuses(&graph, "two nodes are named `a`; expected a name for each");
}

#[test]
fn the_output_stands_last_and_alone() {
    accepts("a = input f32[4]; output(a)");
    accepts("a = input f32[4]");
    refuses(
        &read("a = input f32[4]; output(a); b = neg(a)"),
        "output `output` is not the last node; expected nothing after it",
    );
    let two = read("a = input f32[4]; output(a); output(a)");
    refuses(
        &two,
        "output `output` is not the last node; expected nothing after it\n`output_1` is a second output; expected one at most",
    );
}

#[test]
fn arguments_have_a_hole_for_each_operand_in_order() {
    let mut graph = read("a = input f32[4]; b = add(a, a); w = wait(a)");
    let b = node(&graph, "b");
    graph.node_mut(b).args = graph.intern_args(Args::default());
    let w = node(&graph, "w");
    graph.node_mut(w).args = graph.intern_args(Args::default());
    graph.set_operands(w, &[]);
    refuses(
        &graph,
        "the arguments of `b` have 0 holes, but it has 2 operands; expected as many\nwait `w` has no operand; expected the result of a collective",
    );
    let swapped = vec![bucketeer::ir::Arg::Operand(1), bucketeer::ir::Arg::Operand(0)];
    let mut graph = read("a = input f32[4]; b = add(a, a)");
    let b = node(&graph, "b");
    graph.node_mut(b).args = graph.intern_args(Args::positional(swapped));
    refuses(&graph, "the holes in the arguments of `b` are not numbered in order of appearance");
}

#[test]
fn the_nodes_of_a_region_stand_together() {
    let text = "a = input f32[4]\nregion loop(n=2) { b = neg(a); region if(c) { d = neg(b) }; e = neg(d) }\noutput(e)";
    accepts(text);
    let mut graph = read(text);
    let ids = graph.order().to_vec();
    let last = *ids.last().unwrap();
    let loop_region = graph.node(node(&graph, "b")).region;
    graph.node_mut(node(&graph, "d")).region = RegionId::ROOT;
    refuses(&graph, "`e` stands in region `loop(n=2)`, which was left before; expected its nodes together");
    graph.node_mut(last).region = RegionId::from_index(9);
    refuses(&graph, "`output` is in a region that does not exist");
    let mut graph = read(text);
    graph.add_region(Region { parent: RegionId::from_index(8), kind: RegionKind::Loop, label: "x".into() });
    refuses(&graph, "region 3 `x` has a parent that does not stand before it");
    assert_ne!(loop_region, RegionId::ROOT);
    let mut graph = Graph::new("deep");
    let mut parent = RegionId::ROOT;
    for _ in 0..64 {
        parent = graph.add_region(Region { parent, kind: RegionKind::Loop, label: "x".into() });
    }
    assert_eq!(verify(&graph), Ok(()));
    graph.add_region(Region { parent, kind: RegionKind::Loop, label: "x".into() });
    refuses(&graph, "region `x` lies inside more than 64 others");
}

#[test]
fn groups_list_as_many_ranks_as_they_have_each_once() {
    accepts("group G:2 = [[0, 1], [2, 3]]");
    refuses(&read("group G:2 = [[0, 1], [2]]"), "group `G` lists 1 ranks; expected 2, its size");
    refuses(&read("group G:2 = [[0, 1], [1, 2]]"), "group `G` holds rank 1 twice; expected once");
    refuses(&read("group G:2 = [[0, 0]]"), "group `G` holds rank 0 twice; expected once");
    let mut graph = read("group G:2 = [[0, 1]]");
    let group = graph.intern_group("G", None);
    graph.group_mut(group).size = None;
    refuses(&graph, "group `G` lists members but no size");
    graph.group_mut(group).size = Some(0);
    graph.group_mut(group).members.clear();
    refuses(&graph, "group `G` has no ranks; expected one or more");
}

#[test]
fn a_collective_makes_what_its_kind_says() {
    accepts(
        "a = input f32[4, 6]\ng = all_gather(a, G:2, dim=1) : f32[4, 12]\nr = reduce_scatter(a, sum, G:2) : f32[2, 6]",
    );
    accepts("a = input f32[s0, 6]\ng = all_gather(a, G:2) : f32[s1, 6]\nh = all_gather(a, H) : f32[s1, 6]");
    accepts("a = input f32[]\ng = all_gather(a, G:2) : f32[2]");
    accepts("a = input f32[0]\nr = reduce_scatter(a, sum, G:2) : f32[0]");
    refuses_text(
        "a = input f32[4, 6]
g = all_gather(a, G:2) : f32[4, 6]  # error: `g` makes f32[4, 6] of `a`, which is f32[4, 6]; expected f32[8, 6]
h = all_gather(a, G:2) : bf16[8, 6]  # error: `h` makes bf16[8, 6] of `a`, which is f32[4, 6]; expected f32[8, 6]
r = reduce_scatter(a, sum, G:2) : f32[4, 6]  # error: `r` makes f32[4, 6] of `a`, which is f32[4, 6]; expected f32[2, 6]
u = reduce_scatter(a, sum, G3:3) : f32[1, 6]  # error: `u` scatters `a`, which is f32[4, 6], to 3 ranks; expected a multiple of 3 along dimension 0
s = all_reduce(a, sum, G:2) : f32[24]  # error: `s` makes f32[24] of `a`, which is f32[4, 6]; expected f32[4, 6]
d = all_gather(a, G:2, dim=2)  # error: `d` works along dimension 2 of `a`, which is f32[4, 6]; expected a smaller dimension
t = all_to_all(a, G:2) : i64[4, 6]  # error: `t` makes i64[4, 6] of `a`, which is f32[4, 6]; expected dtype f32
c = all_gather_coalesced([a, a], G:2) : (f32[8, 6])  # error: `c` makes 1 results of 2 inputs; expected as many
e = all_gather_coalesced([a, a], G:2) : (f32[8, 6], f32[8])  # error: `e` makes f32[8] of `a`, which is f32[4, 6]; expected f32[8, 6]
",
    );
}

#[test]
fn a_collective_has_inputs_a_group_and_out_only_where_it_writes_one() {
    accepts("a = input f32[4]; b = input f32[8]\ng = all_gather(a, G:2, out=b)");
    refuses(
        &read("a = input f32[4]\ng = all_gather_out(a, G:2)"),
        "collective `g` has no `out`; expected the tensor it writes",
    );
    refuses(
        &read("a = input f32[4]\ng = all_gather_coalesced([], G:2)"),
        "collective `g` has no input; expected a tensor, or a list for a coalesced form",
    );
    let mut graph = read("a = input f32[4]; b = input f32[8]\ng = all_gather(a, G:2, out=b)");
    let g = node(&graph, "g");
    let mut collective = graph.collective(g).unwrap();
    collective.variant = bucketeer::ir::Variant::Functional;
    graph.node_mut(g).op = Op::Collective(collective);
    refuses(&graph, "collective `g` has an `out`, but is not the form that writes one");
    collective.group = bucketeer::ir::GroupId::from_index(5);
    graph.node_mut(g).op = Op::Collective(collective);
    refuses(&graph, "`g` uses a group that does not exist");
}

#[test]
fn pending_data_is_not_read() {
    refuses_text(
        "x = input f32[4]; p = input f32[4] pending
s = all_reduce(x, sum, G:2)
v = reshape(s, [2, 2])
c = add(v, v)  # error: `c` reads `s`, whose result is pending; expected a wait on `s` before
q = neg(p)  # error: `q` reads `p`, whose result is pending; expected a wait on `p` before
t = all_gather(v, G:2)  # error: `t` reads `s`, whose result is pending; expected a wait on `s` before
mul_(v, 2.0)  # error: `mul_` reads `s`, whose result is pending; expected a wait on `s` before
",
    );
}

#[test]
fn views_shape_readers_and_the_output_may_take_pending_data() {
    accepts("x = input f32[4]\ns = all_reduce(x, sum, G:2)\nv = reshape(s, [2, 2])\nz = zeros_like(v)\noutput(v, z)");
}

#[test]
fn a_wait_on_a_view_makes_every_view_and_the_collective_valid() {
    accepts(
        "x = input f32[4]\ns = all_reduce(x, sum, G:2)\nv = reshape(s, [2, 2])\nw = wait(v)\na = neg(s)\nb = neg(v)",
    );
    accepts("x = input f32[4]; p = input f32[4] pending\nw = wait(x); wait(w); wait(p); y = neg(p)");
}

#[test]
fn what_an_in_place_collective_writes_is_pending() {
    accepts("x = input f32[4]\ns = all_reduce_(x, sum, G:2)\nw = wait(s)\ny = neg(x)");
    refuses_text(
        "x = input f32[4]; o = input f32[8]
s = all_reduce_(x, sum, G:2)
y = neg(x)  # error: `y` reads `s`, whose result is pending; expected a wait on `s` before
w = wait(x)
g = all_gather(x, G:2, out=o)
z = neg(o)  # error: `z` reads `g`, whose result is pending; expected a wait on `g` before
",
    );
}

#[test]
fn d_f47_parts_of_one_buffer_are_pending_by_their_bytes() {
    let inputs = "x = input f32[4]; b = input f32[16, 2]";
    // By what the second gather writes: whether it may while the first is in flight in rows 4 to 8.
    for (part, is_free) in [
        ("aten.slice.Tensor(b, 0, 0, 4) : f32[4, 2]", true),
        ("aten.slice.Tensor(b, 0, 8, None) : f32[8, 2]", true),
        ("aten.slice.Tensor(b, 0, -8, -4) : f32[4, 2]", true),
        ("aten.narrow.default(b, 0, 8, 4) : f32[4, 2]", true),
        ("aten.select.int(b, 0, 8) : f32[2]", true),
        ("aten.slice.Tensor(b, 0, 0, 5) : f32[5, 2]", false),
        ("aten.slice.Tensor(b, 0, 7, 12) : f32[5, 2]", false),
        ("aten.slice.Tensor(b, 0, -12, -8) : f32[4, 2]", false),
        ("aten.slice.Tensor(b, 1, 0, 1) : f32[16, 1][2, 1]", false),
        ("aten.select.int(b, 0, 7) : f32[2]", false),
        ("aten.as_strided.default(b, [4, 2], [2, 1], 16) : f32[4, 2]", false),
        ("aten.slice.Tensor(b, 0, 5, 5) : f32[0, 2]", false),
    ] {
        let text = format!(
            "{inputs}
p = aten.slice.Tensor(b, 0, 4, 8) : f32[4, 2]
q = {part}
g = all_gather(x, G:2, out=p)
h = all_gather(x, G:2, out=q)"
        );
        let said = verify(&read(&text)).map_or_else(|errors| errors.to_string(), |()| String::new());
        assert_eq!(!said.contains("`h` reads `g`, whose result is pending"), is_free, "{part}: {said}");
        assert!(!said.contains("`g` reads"), "{part}: {said}");
    }
    refuses_text(
        "x = input f32[4]; b = input f32[16]
p = aten.slice.Tensor(b, 0, 0, 8) : f32[8]
q = aten.slice.Tensor(p, 0, 4, 8) : f32[4]
r = aten.slice.Tensor(b, 0, 8, 16) : f32[8]
g = all_gather(x, G:2, out=p)
s = neg(q)  # error: `s` reads `g`, whose result is pending; expected a wait on `g` before
t = neg(r)
v = neg(b)  # error: `v` reads `g`, whose result is pending; expected a wait on `g` before
h = all_gather(x, G:2, out=r)
w = wait(h)
u = neg(q)  # error: `u` reads `g`, whose result is pending; expected a wait on `g` before
z = neg(r)
y = wait(q)
o = neg(b)
",
    );
    // A turned matrix has other rows than it was stated to have.
    refuses_text(
        "x = input f32[1, 1]; b = input f32[2, 2]
p = aten.slice.Tensor(b, 0, 0, 1) : f32[1, 2]
t = aten.t_.default(b) : f32[2, 2]
q = aten.slice.Tensor(b, 0, 1, 2) : f32[1, 2]
g = all_gather(x, G:2, dim=1, out=p)
s = neg(q)  # error: `s` reads `g`, whose result is pending; expected a wait on `g` before
",
    );
}

#[test]
fn elements_of_a_coalesced_result_are_waited_for_one_by_one() {
    refuses_text(
        "x = input f32[4]; y = input f32[4]
g = all_gather_coalesced([x, y], G:2)
a = getitem(g, 0)
b = getitem(g, 1)
wa = wait(a)
na = neg(a)
nb = neg(b)  # error: `nb` reads `g`, whose result is pending; expected a wait on `g` before
s = all_reduce_coalesced_([x, y], sum, G:2)
wx = wait(getitem(s, 0))
nx = neg(x)
ny = neg(y)  # error: `ny` reads `s`, whose result is pending; expected a wait on `s` before
",
    );
}

#[test]
fn hard_edges_hold_in_the_listing_and_edges_name_nodes_of_the_graph() {
    accepts("a = input f32[4]; b = neg(a); c = neg(a)\nafter(c, b); soft_after(b, c)");
    refuses(
        &read("a = input f32[4]; b = neg(a); c = neg(a)\nafter(b, c)"),
        "`b` has to run after `c` but stands before it",
    );
    let mut graph = read("a = input f32[4]; b = neg(a); c = neg(a)");
    let ids = graph.order().to_vec();
    graph.control.push(ControlEdge { before: ids[1], after: ids[2], strength: Strength::Soft });
    graph.set_order(ids[..2].to_vec());
    refuses(&graph, "order edge `b` to `c`: `c` is not in the program order");
}

#[test]
fn a_reshape_that_has_to_copy_reads_and_is_no_view() {
    // The copy is made before the in-place reduce, so it is not in flight.
    let copy = "x = input f32[4, 2]; t = transpose(x); y = reshape(t, [8]); s = all_reduce_(x, sum, G0:2)\n";
    assert!(verify(&read(&format!("{copy}z = neg(y); w = wait(s); output(z, w)"))).is_ok());
    // A view of it is.
    let view = copy.replace("reshape(t, [8])", "reshape(t, [2, 2, 2])");
    let error = verify(&read(&format!("{view}z = neg(y); w = wait(s); output(z, w)"))).unwrap_err().to_string();
    assert!(error.contains("`z`") && error.contains("`s`"), "{error}");
    // And a copy reads what is in flight.
    let late = "x = input f32[4, 2]; t = transpose(x); s = all_reduce_(x, sum, G0:2); y = reshape(t, [8])\n";
    assert!(verify(&read(&format!("{late}w = wait(s); output(y, w)"))).is_err());
}

#[test]
fn d_f47_a_part_of_every_other_row_may_be_any_of_them() {
    let text = "x = input f32[4]; b = input f32[16, 2]
even = aten.slice.Tensor(b, 0, 0, 16, 2) : f32[8, 2]
p = aten.slice.Tensor(b, 0, 4, 8) : f32[4, 2]
q = aten.slice.Tensor(even, 0, 0, 4) : f32[4, 2]
g = all_gather(x, G:2, out=p)
h = relu(q)";
    let said = verify(&read(text)).map_or_else(|errors| errors.to_string(), |()| String::new());
    assert!(said.contains("`h` reads `g`, whose result is pending"), "{said}");
}
