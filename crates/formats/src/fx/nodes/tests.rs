//! Graphs as lists: what is pushed is what text says, and edits make the list what the graph is.

use super::*;
use crate::fx::FxText;
use bucketeer::ir::{Meta, text};
use bucketeer::passes::Pipeline;
use std::path::{Path, PathBuf};

/// A node of a list, as a holder has it.
#[derive(Clone, Debug)]
struct Listed {
    name: String,
    op: Own,
    args: Args,
    /// Places in the list.
    operands: Vec<usize>,
    ty: Type,
}

#[derive(Clone, Debug)]
enum Own {
    Placeholder,
    Call(String),
    Output,
}

/// The nodes of a graph, one by one.
fn listed(graph: &Graph) -> Vec<Listed> {
    let mut places = HashMap::new();
    let mut list = Vec::new();
    for &id in graph.order() {
        let args = graph.args_of(id).clone();
        let (op, args) = match graph.node(id).op {
            Op::Input => (Own::Placeholder, args),
            Op::Output => (Own::Output, args),
            Op::Call(target) => (Own::Call(graph.text(target).to_owned()), args),
            Op::Wait | Op::Collective(_) => {
                let (target, args) = functional_call(graph, id).unwrap();
                (Own::Call(target), args)
            }
        };
        places.insert(id, list.len());
        let operands = graph.operands(id).iter().map(|of| places[of]).collect();
        list.push(Listed { name: graph.name_of(id).to_owned(), op, args, operands, ty: graph.type_of(id).clone() });
    }
    list
}

/// The graph of a list.
fn pushed(graph: &Graph, list: &[Listed]) -> Graph {
    let mut reader = NodeReader::new(&graph.name);
    let mut ids: Vec<NodeId> = Vec::new();
    for node in list {
        let operands: Vec<NodeId> = node.operands.iter().map(|&place| ids[place]).collect();
        let op = match &node.op {
            Own::Placeholder => Opcode::Placeholder,
            Own::Call(target) => Opcode::Call(target),
            Own::Output => Opcode::Output,
        };
        let ty = reader.intern_type(node.ty.clone());
        ids.push(reader.push(op, &node.name, node.args.clone(), &operands, ty));
    }
    for body in graph.bodies.graphs() {
        reader.body(&body.name, body.clone());
    }
    reader.finish()
}

/// What a holder does with edits.
fn edited(list: &[Listed], edits: &[Edit<'_>]) -> Vec<Listed> {
    let mut places: HashMap<NodeId, usize> = HashMap::new();
    let mut made = Vec::new();
    for edit in edits {
        let (id, mut node, operands) = match edit {
            Edit::Kept(place) => {
                let operands = list[*place].operands.iter().map(|&of| NodeId::from_index(of)).collect();
                (NodeId::from_index(*place), list[*place].clone(), operands)
            }
            Edit::Rewired(place, operands) => (NodeId::from_index(*place), list[*place].clone(), operands.to_vec()),
            Edit::New(new) => {
                let op = Own::Call(new.target.clone());
                let node = Listed {
                    name: new.name.to_owned(),
                    op,
                    args: new.args.clone(),
                    operands: vec![],
                    ty: Type::Unknown,
                };
                (new.id, node, new.operands.to_vec())
            }
        };
        node.operands = operands.iter().map(|of| places[of]).collect();
        places.insert(id, made.len());
        made.push(node);
    }
    made
}

/// A graph without what lists do not hold: sources, members, and types, which a holder finds itself.
fn bare(graph: &Graph) -> String {
    let mut graph = graph.clone();
    for index in 0..graph.arena_len() {
        let id = NodeId::from_index(index);
        graph.set_meta(id, Meta::default());
        graph.node_mut(id).ty = TypeId::UNKNOWN;
    }
    text::print(&graph)
}

fn texts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fx");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    assert!(paths.len() > 15, "{paths:?}");
    paths
}

#[test]
fn what_is_pushed_node_by_node_is_what_text_says() {
    for path in texts() {
        for graph in FxText::parse(std::fs::read(&path).unwrap()).unwrap().graphs() {
            let again = pushed(graph, &listed(graph));
            assert_eq!(bare(&again), bare(graph), "{}", path.display());
            assert!(edits(&again).unwrap().iter().enumerate().all(|(place, edit)| *edit == Edit::Kept(place)));
        }
    }
}

#[test]
fn edits_make_the_list_what_the_graph_became() {
    let mut changed = 0;
    for path in texts() {
        for graph in FxText::parse(std::fs::read(&path).unwrap()).unwrap().graphs() {
            let list = listed(graph);
            let mut rewritten = pushed(graph, &list);
            Pipeline::default_rewrite().run(&mut rewritten).unwrap();
            let edits = edits(&rewritten).unwrap();
            changed += usize::from(edits.iter().any(|edit| matches!(edit, Edit::New(_))));
            assert_eq!(bare(&pushed(graph, &edited(&list, &edits))), bare(&rewritten), "{}", path.display());
        }
    }
    assert!(changed > 10, "{changed}");
}

#[test]
fn readers_of_a_node_that_does_something_else_now_are_rewired() {
    let source = "class g(torch.nn.Module):\n    def forward(self, a: \"f32[4]\"):\n        \
                  b: \"f32[4]\" = torch.ops.aten.neg.default(a)\n        \
                  c: \"f32[4]\" = torch.ops.aten.neg.default(b)\n        return (c,)\n";
    let text = FxText::parse(source.into()).unwrap();
    let graph = &text.graphs()[0];
    let list = listed(graph);
    let mut graph = pushed(graph, &list);
    let b = graph.order()[1];
    let abs = graph.intern("aten.abs.default");
    graph.node_mut(b).op = Op::Call(abs);
    let edits = edits(&graph).unwrap();
    assert_eq!(edits[0], Edit::Kept(0));
    assert!(matches!(&edits[1], Edit::New(new) if new.id == b && new.target == "aten.abs.default"));
    assert_eq!(edits[2], Edit::Rewired(2, &[b]));
    assert_eq!(edits[3], Edit::Kept(3));
}

#[test]
fn ranks_of_the_older_operators_are_numbers_again_in_new_nodes() {
    let gather = |name: &str, of: &str| {
        let call = format!("torch.ops.c10d_functional.all_gather_into_tensor.default({of}, '', [0, 1], 2)");
        format!(
            "        {name}: \"f32[8]\" = {call}\n        {name}_w: \"f32[8]\" = \
             torch.ops.c10d_functional.wait_tensor.default({name})\n"
        )
    };
    let source = format!(
        "class g(torch.nn.Module):\n    def forward(self, a: \"f32[4]\", b: \"f32[4]\"):\n{}{}        return (x_w, y_w)\n",
        gather("x", "a"),
        gather("y", "b")
    );
    let text = FxText::parse(source.into()).unwrap();
    let mut graph = pushed(&text.graphs()[0], &listed(&text.graphs()[0]));
    Pipeline::default_rewrite().run(&mut graph).unwrap();
    let edits = edits(&graph).unwrap();
    let launch = edits.iter().find_map(|edit| match edit {
        Edit::New(new) if new.target.contains("all_gather") => Some(new),
        _ => None,
    });
    let ranks = Arg::List(vec![Arg::Int(0), Arg::Int(1)]);
    assert_eq!(launch.unwrap().args.positional[1..], [Arg::Str("".into()), ranks, Arg::Int(2)]);
}

#[test]
fn an_output_has_its_results_one_by_one() {
    assert_eq!(results(Arg::Tuple(vec![Arg::Operand(0), Arg::None])).positional, [Arg::Operand(0), Arg::None]);
    assert_eq!(results(Arg::List(vec![])).positional, []);
    assert_eq!(results(Arg::Operand(0)).positional, [Arg::Operand(0)]);
}
