//! What a rewrite will have written, read again: the proof is of that, not of the graph in memory.

use anyhow::{Result, bail};
use bucketeer::ir::Graph;
use bucketeer_formats::Document;
use std::collections::HashMap;

/// The document as it is read from what is to be written, with what the command line said of it.
pub fn read_back(label: &str, document: &Document, printed: &[u8]) -> Result<Document> {
    let mut found = match document.read_back(printed) {
        Ok(found) => found,
        Err(error) => bail!("{label}: what would be written cannot be read again: {error}. {OUR_FAULT}"),
    };
    let (written, read) = (document.graphs().len(), found.graphs().len());
    if written != read {
        bail!("{label}: {written} graphs would be written, of which {read} are read again. {OUR_FAULT}");
    }
    for (graph, written) in found.graphs_mut().iter_mut().zip(document.graphs()) {
        take_facts(graph, written);
    }
    Ok(found)
}

const OUR_FAULT: &str =
    "That is a fault of bucketeer, please report it. Nothing is written; --verify=off writes it unproven";

/// Gives a graph what no text has: what the command line said, and which collectives are in which. The checker takes
/// the last as a hint where several would fit.
fn take_facts(graph: &mut Graph, written: &Graph) {
    graph.hints.clone_from(&written.hints);
    graph.operators.clone_from(&written.operators);
    for index in 0..graph.groups().len() {
        let name = graph.groups()[index].name.clone();
        let Some(known) = written.groups().iter().find(|known| known.name == name) else { continue };
        let id = graph.intern_group(&name, known.size);
        let group = graph.group_mut(id);
        if group.members.is_empty() {
            group.members.clone_from(&known.members);
        }
    }
    let merged = written.order().iter().filter(|&&id| !written.meta_of(id).members.is_empty());
    let merged: HashMap<&str, _> = merged.map(|&id| (written.name_of(id), id)).collect();
    for index in 0..graph.order().len() {
        let id = graph.order()[index];
        if let Some(&from) = merged.get(graph.name_of(id)) {
            let mut meta = graph.meta_of(id).clone();
            meta.members.clone_from(&written.meta_of(from).members);
            graph.set_meta(id, meta);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::check::prove;
    use bucketeer::passes::Pipeline;

    const TEXT: &str = "x = input f32[4]; y = input f32[4]\na = all_reduce(x, sum, G0:2); b = all_reduce(y, sum, G0:2)\n\
                        output(wait(a), wait(b))";

    fn rewritten() -> (Document, Graph) {
        let mut document = Document::read(TEXT.as_bytes().to_vec()).unwrap();
        let source = document.graphs()[0].clone();
        "bucket-all-reduce{cap=none}".parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
        (document, source)
    }

    #[test]
    fn what_is_printed_wrong_is_not_proven_though_the_graph_in_memory_is_right() {
        let (document, source) = rewritten();
        let text = String::from_utf8(document.print()).unwrap();
        let read = |text: &str| read_back("x", &document, text.as_bytes()).unwrap();
        assert!(prove(&source, &document.graphs()[0]).is_equal());
        assert!(prove(&source, &read(&text).graphs()[0]).is_equal());
        let wrong = text.replace("sum", "avg");
        assert!(wrong != text && !prove(&source, &read(&wrong).graphs()[0]).is_equal());
    }

    #[test]
    fn what_cannot_be_read_again_is_a_fault_of_ours() {
        let (document, _) = rewritten();
        for text in ["graph {", "a = input f32[2]\nb = nothing(c)"] {
            let error = read_back("x.bkt", &document, text.as_bytes()).unwrap_err().to_string();
            assert!(
                error.starts_with("x.bkt: what would be written cannot be read") && error.ends_with(OUR_FAULT),
                "{error}"
            );
        }
    }

    #[test]
    fn what_the_command_line_said_holds_for_what_is_read_again() {
        let (mut document, _) = rewritten();
        document.graphs_mut()[0].hints.insert("s0".into(), 7);
        let text = document.print();
        let found = read_back("x", &document, &text).unwrap();
        assert_eq!(found.graphs()[0].hints, document.graphs()[0].hints);
        let members = |graph: &Graph| -> Vec<Vec<Box<str>>> {
            graph
                .order()
                .iter()
                .map(|&id| graph.meta_of(id).members.clone())
                .filter(|members| !members.is_empty())
                .collect()
        };
        assert_eq!(members(&found.graphs()[0]), members(&document.graphs()[0]));
        assert_eq!(members(&found.graphs()[0]).len(), 1);
    }
}
