//! Pictures of collectives: what is drawn, and that the lines say what the graph says.

use bucketeer::ir::{Dependencies, Graph, NodeId, text};
use bucketeer::passes::Pipeline;
use bucketeer::passes::liveness::live_bytes;
use bucketeer_draw::buckets::{Buckets, Fate};
use bucketeer_draw::order::{Item, MOST_SOURCES, items};
use bucketeer_draw::{Drawing, Lanes, dot, lanes_svg, svg};
use bucketeer_formats::Document;
use kit::files;
use proptest::prelude::*;
use std::fmt::Write;

const SMALL: &str = "a = input f32[4]; b = input f32[4]; c = input f32[64]
g = all_gather(a, dp:2); w = wait(g)
h = all_gather(b, dp:2); v = wait(h)
s = reduce_scatter(relu(w), sum, dp:2); x = wait(s)
t = reduce_scatter(relu(v), sum, dp:2); y = wait(t)
r = all_reduce(c, max, world:4); z = wait(r)
output(x, y, z)";

fn drawing(graph: &Graph, pipeline: &Pipeline) -> Drawing {
    Drawing::of(graph, &Buckets::planned(graph, pipeline).unwrap())
}

fn fixture(name: &str) -> Vec<Drawing> {
    let document = Document::read(files::read(&files::fixtures().join("..").join(name))).unwrap();
    document.graphs().iter().map(|graph| drawing(graph, &Pipeline::default_rewrite())).collect()
}

#[test]
fn a_native_graph_as_text_for_graphviz_and_as_a_picture() {
    let drawing = drawing(&text::parse(SMALL).unwrap(), &Pipeline::default_rewrite());
    kit::assert_snapshot!("draw_native_dot", dot(std::slice::from_ref(&drawing)));
    kit::assert_snapshot!("draw_native_svg", svg(&[drawing]));
}

#[test]
fn an_hlo_module_and_an_fx_graph_as_text_for_graphviz() {
    kit::assert_snapshot!("draw_hlo_dot", dot(&fixture("hlo/gpu_ar_while_body.pre_combine.hlo")));
    kit::assert_snapshot!("draw_fx_dot", dot(&fixture("fx/tiny_ddp_bf16_arfp32.backward.txt")));
}

#[test]
fn several_graphs_have_a_frame_each() {
    let drawing = drawing(&text::parse(SMALL).unwrap(), &Pipeline::default());
    let text = dot(&[drawing.clone(), drawing.clone()]);
    assert_eq!(text.matches("subgraph cluster_graph_").count(), 2);
    assert_eq!(text.matches("digraph").count(), 1);
    assert_eq!(svg(&[drawing.clone(), drawing]).matches("5 collectives, 0 buckets").count(), 2);
}

#[test]
fn a_merged_graph_shows_the_buckets_that_stand_there() {
    let mut graph = text::parse(SMALL).unwrap();
    Pipeline::default_rewrite().run(&mut graph).unwrap();
    let buckets = Buckets::planned(&graph, &Pipeline::default_rewrite()).unwrap();
    assert_eq!(buckets.len(), 2);
    let collectives = graph.order().iter().copied().filter(|&id| graph.collective(id).is_some());
    let merged: Vec<NodeId> = collectives.filter(|&id| matches!(buckets.of(id), Fate::Merged { .. })).collect();
    assert_eq!(merged.len(), 2);
    assert_eq!((buckets.members(0), buckets.members(1)), (2, 2));
    let text = svg(&[Drawing::of(&graph, &buckets)]);
    assert_eq!(text.matches("stroke-width=\"2.5\"").count(), 2, "{text}");
}

#[test]
fn whoever_is_alone_is_told_why() {
    let text = svg(&[drawing(&text::parse(SMALL).unwrap(), &"bucket-all-gather{cap=8}".parse().unwrap())]);
    assert!(text.contains("alone: 32 bytes are more than the cap of 8"), "{text}");
    assert!(text.contains("alone: its kind is not merged"), "{text}");
}

#[test]
fn names_of_any_kind_are_escaped() {
    let mut graph = text::parse(SMALL).unwrap();
    let first = *graph.order().iter().find(|&&id| graph.collective(id).is_some()).unwrap();
    let name = graph.intern("q\"uo'te<b>&amp;\n\u{1}größe\\");
    graph.node_mut(first).name = name;
    graph.name = "]]><script>".to_owned();
    let drawing = drawing(&graph, &Pipeline::default());
    let picture = svg(std::slice::from_ref(&drawing));
    assert!(picture.contains("q\"uo'te&lt;b&gt;&amp;amp;\\n\\u{1}größe\\"), "{picture}");
    assert!(!picture.contains("<script"));
    assert!(picture.chars().all(|c| c == '\n' || !c.is_control()));
    // A picture of tags that all close; its texts hold no `<`.
    let opened = picture.matches('<').count() - picture.matches("</").count() - picture.matches("/>").count();
    assert_eq!(opened, picture.matches("</").count());
    let words = dot(&[drawing]);
    assert!(words.contains(r#"[label="q\"uo'te&lt;b&gt;&amp;amp;\\n\\u{1}größe\\\nall_gather"#), "{words}");
}

/// By collective: the collectives it depends on, over all paths, by the graph's own edges.
fn ancestors(graph: &Graph) -> Vec<(NodeId, Vec<NodeId>)> {
    let dependencies = Dependencies::of(graph);
    let mut above: Vec<Vec<NodeId>> = Vec::new();
    let mut found = Vec::new();
    for slot in 0..dependencies.slots().len() {
        let mut all: Vec<NodeId> = Vec::new();
        for &before in dependencies.before(slot) {
            all.extend(&above[before as usize]);
            all.extend(dependencies.node(before as usize).filter(|&id| graph.collective(id).is_some()));
        }
        all.sort();
        all.dedup();
        found.extend(dependencies.node(slot).filter(|&id| graph.collective(id).is_some()).map(|id| (id, all.clone())));
        above.push(all);
    }
    found
}

/// By item: the items above it, over all lines.
fn above(items: &[Item]) -> Vec<Vec<usize>> {
    let mut above: Vec<Vec<usize>> = Vec::new();
    for item in items {
        let mut all: Vec<usize> = item.sources.iter().flat_map(|&source| above[source as usize].clone()).collect();
        all.extend(item.sources.iter().map(|&source| source as usize));
        all.sort_unstable();
        all.dedup();
        above.push(all);
    }
    above
}

/// Lines lead from one collective to another exactly if the graph does, and none is there that others stand for.
fn says_what_the_graph_says(graph: &Graph) {
    let items = items(graph, &Dependencies::of(graph));
    let above = above(&items);
    let drawn: Vec<(NodeId, Vec<NodeId>)> = items
        .iter()
        .zip(&above)
        .filter_map(|(item, above)| {
            let mut nodes: Vec<NodeId> = above.iter().filter_map(|&at| items[at].node).collect();
            nodes.sort();
            Some((item.node?, nodes))
        })
        .collect();
    assert_eq!(drawn, ancestors(graph), "\n{}", text::print(graph));
    for item in &items {
        for &source in &item.sources {
            let implied = item.sources.iter().any(|&other| above[other as usize].contains(&(source as usize)));
            assert!(!implied, "a line of {item:?} goes without saying\n{}", text::print(graph));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lines_lead_where_the_graph_leads(graph in kit::random::graph_strategy()) {
        says_what_the_graph_says(&graph);
    }
}

#[test]
fn lines_lead_where_the_graph_leads_in_real_graphs() {
    for name in ["fx/fsdp_l2_ws8_bf16.backward.txt", "hlo/shardmap_all.pre_combine.hlo"] {
        let document = Document::read(files::read(&files::fixtures().join("..").join(name))).unwrap();
        says_what_the_graph_says(&document.graphs()[0]);
    }
}

/// A step in which each gather is used, and all that was gathered so far is used by each later scatter.
fn deep(layers: usize, others: usize) -> String {
    let mut text = "x0 = input f32[64]\n".to_owned();
    for nth in 0..layers {
        let _ = writeln!(text, "p{nth} = input f32[8]");
    }
    let mut last = "x0".to_owned();
    for nth in 0..layers {
        let _ = writeln!(text, "g{nth} = all_gather(p{nth}, dp:8); w{nth} = wait(g{nth})");
        let _ = writeln!(text, "y{nth}_0 = aten.add.Tensor({last}, w{nth}) : f32[64]");
        for other in 1..others {
            let _ = writeln!(text, "y{nth}_{other} = aten.relu.default(y{nth}_{}) : f32[64]", other - 1);
        }
        last = format!("y{nth}_{}", others - 1);
        let _ = writeln!(text, "s{nth} = reduce_scatter({last}, sum, dp:8); v{nth} = wait(s{nth})");
    }
    let outputs: Vec<String> = (0..layers).map(|nth| format!("v{nth}")).collect();
    let _ = writeln!(text, "output({})", outputs.join(", "));
    text
}

#[test]
fn lines_stay_few_where_each_collective_depends_on_all_before() {
    let graph = text::parse(&deep(60, 2)).unwrap();
    says_what_the_graph_says(&graph);
    let graph = text::parse(&deep(2000, 48)).unwrap();
    assert!(graph.order().len() > 100_000);
    let items = items(&graph, &Dependencies::of(&graph));
    let lines: usize = items.iter().map(|item| item.sources.len()).sum();
    // Each of 2,000 scatters depends on all gathers before it: two million pairs.
    assert!(lines <= 2 * MOST_SOURCES * 4000, "{lines} lines");
    assert!(items.len() <= 5000, "{} items", items.len());
}

#[test]
fn a_joint_stands_for_many_that_many_depend_on() {
    let each = |line: &dyn Fn(usize) -> String| (0..40).map(line).collect::<String>();
    let mut text = each(&|nth| format!("p{nth} = input f32[8]\n"));
    text += &each(&|nth| format!("r{nth} = all_reduce(p{nth}, sum, dp:8); w{nth} = wait(r{nth})\n"));
    let all: Vec<String> = (0..40).map(|nth| format!("w{nth}")).collect();
    let _ = writeln!(text, "n = aten.stack.default([{}]) : f32[40, 8]", all.join(", "));
    text += &each(&|nth| format!("g{nth} = all_gather(n, dp:8); v{nth} = wait(g{nth})\n"));
    let outputs: Vec<String> = (0..40).map(|nth| format!("v{nth}")).collect();
    let _ = writeln!(text, "output({})", outputs.join(", "));
    let graph = text::parse(&text).unwrap();
    let items = items(&graph, &Dependencies::of(&graph));
    assert_eq!(items.len(), 81);
    assert_eq!(items.iter().map(|item| item.sources.len()).sum::<usize>(), 80);
    says_what_the_graph_says(&graph);
}

fn lanes(graph: &Graph) -> String {
    bucketeer::ir::verify(graph).unwrap();
    let buckets = Buckets::planned(graph, &Pipeline::default_rewrite()).unwrap();
    let text = lanes_svg(&[Lanes::of(graph, &buckets)]);
    // Tags all close, and texts hold no `<`.
    let opened = text.matches('<').count() - text.matches("</").count() - text.matches("/>").count();
    assert_eq!(opened, text.matches("</").count());
    text
}

/// What is told about the mark that begins with this line.
fn told<'a>(picture: &'a str, first: &str) -> &'a str {
    let (_, rest) = picture.split_once(&format!("<title>{first}\n")).expect("there is such a mark");
    rest.split_once("</title>").unwrap().0
}

#[test]
fn a_native_graph_as_lanes() {
    kit::assert_snapshot!("draw_native_lanes", lanes(&text::parse(SMALL).unwrap()));
}

#[test]
fn lanes_of_every_form_are_drawn() {
    let names = [
        "fx/tiny_moe_bf16_rsfp32.backward.txt",
        "fx/tiny_tp_sp_dyn_bf16.backward.txt",
        "hlo/gpu_ar_while_body.pre_combine.hlo",
        "hlo/ag_dims.hlo",
        "export/cond.model.json",
        "export/tiny.pt2",
    ];
    for name in names {
        let document = Document::read(files::read(&files::fixtures().join("..").join(name))).unwrap();
        for graph in document.graphs() {
            let count = graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count();
            let nodes = graph.order().len();
            let text = lanes(graph);
            assert!(text.contains(&format!("{count} collective")) && text.contains(&format!("{nodes} node")), "{name}");
            assert_eq!(text.matches(", its last wait<").count() + text.matches("; no wait<").count(), count, "{name}");
        }
    }
}

#[test]
fn bytes_beyond_what_a_number_holds_are_the_most_that_it_holds() {
    let most = u64::MAX / 2;
    let text = format!(
        "a = input u8[4]\nb = aten.exp.default(a) : u8[{most}]\nc = aten.exp.default(a) : u8[{most}]\n\
         d = aten.exp.default(a) : u8[{most}]\ne = aten.add.Tensor(b, c) : u8[1]\nf = aten.exp.default(d) : u8[2]\noutput(f)"
    );
    let graph = text::parse(&text).unwrap();
    let live = live_bytes(&graph).bytes;
    assert_eq!(live[..4], [0, most, 2 * most, u64::MAX]);
    assert_eq!(live[live.len() - 2..], [most + 2, 2]);
    assert!(lanes(&graph).contains("live bytes: peak 16.0 EiB at node 3, d;"));
}

#[test]
fn lanes_of_a_large_graph_stay_small() {
    let graph = text::parse(&deep(8000, 2)).unwrap();
    assert!(graph.order().len() > 50_000);
    let text = lanes(&graph);
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
    assert!(text.contains("16000 collectives"), "{}", &text[..1000]);
    assert_eq!(text, lanes(&graph));
    // All are told of, one by one or together.
    let together = text.lines().filter_map(|line| line.strip_prefix("<g><title>")?.split_once(" collectives, "));
    let together: usize = together.map(|(count, _)| count.parse::<usize>().unwrap()).sum();
    assert_eq!(together + text.matches(", its last wait<").count(), 16_000);
}

#[test]
fn what_is_in_flight_at_once_has_rows_and_what_has_none_is_counted() {
    let each = |line: &dyn Fn(usize) -> String| (0..40).map(line).collect::<String>();
    let mut text = each(&|nth| format!("p{nth} = input f32[8]\n"));
    text += &each(&|nth| format!("r{nth} = all_reduce(p{nth}, sum, dp:8)\n"));
    text += &each(&|nth| format!("w{nth} = wait(r{nth})\n"));
    let outputs: Vec<String> = (0..40).map(|nth| format!("w{nth}")).collect();
    let picture = lanes(&text::parse(&(text + &format!("output({})", outputs.join(", ")))).unwrap());
    assert!(picture.contains(">and 28 more at once than there are rows for<"), "{picture}");
    assert_eq!(picture.matches(", its last wait<").count(), 12);
    assert!(told(&picture, "r11").contains("nodes 51 to 91, its last wait"), "{picture}");
}

#[test]
fn a_bar_reaches_to_the_last_wait() {
    let graph = "a = input f32[4]; b = input f32[8]\nc = all_gather_coalesced([a, b], dp:2)\n\
                 w = wait(getitem(c, 0))\nr = aten.relu.default(w) : f32[8]\nv = wait(getitem(c, 1))\noutput(r, v)";
    let picture = lanes(&text::parse(graph).unwrap());
    assert!(told(&picture, "c").contains("nodes 2 to 7, its last wait"), "{picture}");
}

#[test]
fn what_nobody_waits_for_ends_where_it_begins() {
    let graph = "a = input f32[4]\nr = all_reduce(a, sum, dp:2)\nx = aten.relu.default(a) : f32[4]\noutput(x)";
    let picture = lanes(&text::parse(graph).unwrap());
    assert!(told(&picture, "r").ends_with("node 1; no wait"), "{picture}");
}

#[test]
fn unknown_sizes_are_said_and_counted() {
    let graph = "a = input f32[s0]; b = input f32[s0]\nr = all_reduce(a, sum, dp); w = wait(r)\n\
                 t = all_reduce(b, sum, dp); v = wait(t)\nx = my.op(w)\noutput(x, v)";
    let picture = lanes(&text::parse(graph).unwrap());
    assert!(told(&picture, "r").starts_with("all_reduce sum, size not known"), "{picture}");
    let caption = ">live bytes: peak 0 B; inputs not counted; 2 values of unknown size not counted<";
    assert!(picture.contains(caption) && picture.contains(">? ranks<"), "{picture}");
    assert!(picture.contains(">0 B and more<"), "{picture}");
}

#[test]
fn graphs_without_collectives_or_nodes_have_lanes_of_nothing() {
    assert!(lanes(&text::parse("output()").unwrap()).contains("0 collectives, 0 buckets, 1 node"));
    assert!(lanes(&Graph::default()).contains("0 collectives, 0 buckets, 0 nodes"));
    assert!(lanes_svg(&[]).starts_with("<svg"));
}

#[test]
fn groups_beyond_the_lanes_are_counted() {
    let line = |nth: usize| format!("p{nth} = input f32[8]; w{nth} = wait(all_reduce(p{nth}, sum, g{nth}:2))\n");
    let picture = lanes(&text::parse(&(0..30).map(line).collect::<String>()).unwrap());
    assert!(picture.contains(">and 6 groups more, with 6 collectives<"), "{picture}");
}

#[test]
fn names_in_lanes_are_escaped() {
    let mut graph = text::parse(SMALL).unwrap();
    let first = *graph.order().iter().find(|&&id| graph.collective(id).is_some()).unwrap();
    let name = graph.intern("q\"uo'te<b>&amp;\n\u{1}größe\\");
    graph.node_mut(first).name = name;
    let group = graph.collective(first).unwrap().group;
    graph.group_mut(group).name = "<dp>".into();
    graph.name = "]]><script>".to_owned();
    let picture = lanes(&graph);
    assert!(told(&picture, "q\"uo'te&lt;b&gt;&amp;amp;\\n\\u{1}größe\\").contains("group &lt;dp&gt;"), "{picture}");
    assert!(!picture.contains("<script") && picture.chars().all(|c| c == '\n' || !c.is_control()), "{picture}");
}
