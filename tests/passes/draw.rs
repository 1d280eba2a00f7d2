//! Pictures of collectives: what is drawn, and that the lines say what the graph says.

use bucketeer::ir::{Dependencies, Graph, NodeId, text};
use bucketeer::passes::Pipeline;
use bucketeer_draw::buckets::{Buckets, Fate};
use bucketeer_draw::order::{Item, MOST_SOURCES, items};
use bucketeer_draw::{Drawing, dot, svg};
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
