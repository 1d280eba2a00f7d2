//! Programs of torch.export: what is read of them, and that it is written back byte for byte.

use crate::zip;
use bucketeer::check::{Options, prove_with};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer_formats::{ConvertError, Document, Format};
use kit::files;
use std::collections::BTreeMap;
use std::path::PathBuf;

const CONCAT: &str = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";
const COALESCED: &str = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
                         bucket-all-gather{cap=none,mode=coalesced}";
const BYTES: &str = "fold-trivial,dedupe-collectives,bucket-all-gather{cap=none,mixed-dtype=bytes},\
                     bucket-all-reduce{cap=none}";
const PIPELINES: [&str; 3] = [CONCAT, COALESCED, BYTES];

fn fixture(name: &str) -> Vec<u8> {
    files::read(&files::fixtures().join("../export").join(name))
}

/// The JSONs in the tree.
fn jsons() -> Vec<PathBuf> {
    let paths = files::with_ending(&files::fixtures().join("../export"), ".json");
    assert_eq!(paths.len(), 3, "{paths:?}");
    paths
}

fn shared_jsons() -> Vec<PathBuf> {
    let paths = files::with_ending(&files::shared().join("torch/export"), ".graph.json");
    assert!(paths.len() >= 5, "{paths:?}");
    paths
}

fn read(bytes: Vec<u8>) -> Document {
    Document::read(bytes).unwrap_or_else(|error| panic!("{error} at {:?}", error.place()))
}

/// Runs the passes over all graphs of a file, and proves what is then printed against what was read.
fn rewritten(bytes: Vec<u8>, pipeline: &str) -> Vec<u8> {
    let mut document = read(bytes);
    let before: Vec<Graph> = document.graphs().to_vec();
    let pipeline: Pipeline = pipeline.parse().unwrap();
    document.graphs_mut().iter_mut().for_each(|graph| drop(pipeline.run(graph).unwrap()));
    let printed = document.print();
    let again = read(printed.clone());
    assert_eq!(before.len(), again.graphs().len());
    for ((before, after), now) in before.iter().zip(again.graphs()).zip(document.graphs()) {
        bucketeer::ir::verify(after).unwrap_or_else(|errors| panic!("{errors}"));
        let verdict = prove_with(before, after, Options::default());
        assert!(verdict.is_equal(), "{verdict}\n{}", bucketeer::ir::text::print(after));
        assert_eq!(launches(now), launches(after));
        assert_eq!(types(now), types(after));
    }
    printed
}

fn launches(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count()
}

/// Types of all values, by name.
fn types(graph: &Graph) -> BTreeMap<&str, String> {
    graph.order().iter().map(|&id| (graph.name_of(id), graph.type_of(id).to_string())).collect()
}

fn come_back(paths: Vec<PathBuf>) {
    for path in paths {
        let bytes = files::read(&path);
        let document = read(bytes.clone());
        assert_eq!(document.format(), Format::Export);
        assert!(document.print() == bytes, "{}", path.display());
    }
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_programs_are_written_back_byte_for_byte() {
    come_back(shared_jsons());
}

#[test]
fn programs_are_written_back_byte_for_byte() {
    come_back(jsons());
    let archive = fixture("tiny.pt2");
    assert!(read(archive.clone()).print() == archive);
}

fn rewrites_are_proven(paths: Vec<PathBuf>) {
    for path in paths {
        for pipeline in PIPELINES {
            rewritten(files::read(&path), pipeline);
        }
    }
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn rewritten_shared_programs_are_proven_equal() {
    rewrites_are_proven(shared_jsons());
}

#[test]
fn rewritten_programs_are_proven_equal() {
    rewrites_are_proven(jsons());
    for pipeline in PIPELINES {
        rewritten(fixture("tiny.pt2"), pipeline);
    }
}

#[test]
fn graphs_show_inputs_sizes_and_collectives() {
    for name in ["small_ws4.model.json", "small_dynamic_ws4.model.json", "cond.model.json", "tiny.pt2"] {
        let document = read(fixture(name));
        let texts: Vec<String> = document.graphs().iter().map(bucketeer::ir::text::print).collect();
        kit::assert_snapshot!(name.split('.').next().unwrap(), texts.join("\n"));
    }
}

/// One line for each node and each value that is described.
fn parts(json: &[u8]) -> String {
    let json: serde_json::Value = serde_json::from_slice(json).unwrap();
    let graph = &json["graph_module"]["graph"];
    let mut lines: Vec<String> = graph["nodes"].as_array().unwrap().iter().map(ToString::to_string).collect();
    for table in ["tensor_values", "sym_int_values"] {
        lines.extend(graph[table].as_object().unwrap().iter().map(|(name, value)| format!("{name}: {value}")));
    }
    lines.push(json["graph_module"]["signature"].to_string());
    lines.join("\n")
}

#[test]
fn a_rewritten_program_has_new_nodes_and_values() {
    let json = rewritten(fixture("small_dynamic_ws4.model.json"), CONCAT);
    kit::assert_snapshot!("small_dynamic_ws4_concat", parts(&json));
    let json = rewritten(fixture("cond.model.json"), COALESCED);
    kit::assert_snapshot!("cond_coalesced", String::from_utf8(json).unwrap());
}

#[test]
fn nodes_that_stay_keep_their_text() {
    let (before, after) = (fixture("small_ws4.model.json"), rewritten(fixture("small_ws4.model.json"), CONCAT));
    let (before, after) = (parts(&before), parts(&after));
    let kept: std::collections::HashSet<&str> = after.lines().collect();
    let gone = before.lines().filter(|line| !kept.contains(line));
    for line in gone {
        assert!(
            line.contains("wait_tensor")
                || line.starts_with("all_gather")
                || line.starts_with("reduce_scatter")
                || line.contains("_c10d_functional"),
            "{line}"
        );
    }
    assert_eq!(before.lines().last(), after.lines().last(), "the signature");
}

#[test]
fn a_second_run_changes_nothing() {
    for name in ["small_ws4.model.json", "tiny.pt2", "cond.model.json"] {
        let once = rewritten(fixture(name), CONCAT);
        assert!(rewritten(once.clone(), CONCAT) == once, "{name}");
    }
}

#[test]
fn an_archive_keeps_all_its_other_members() {
    let before = zip::members(&fixture("tiny.pt2"));
    let after = zip::members(&rewritten(fixture("tiny.pt2"), CONCAT));
    assert_eq!(before.len(), after.len());
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.name, new.name);
        assert_eq!(old.data == new.data, !old.name.ends_with("models/model.json"), "{}", old.name);
        assert_eq!(old.start % 64, new.start % 64, "{}", old.name);
        assert_eq!(new.crc, zip::crc(&new.data), "{}", new.name);
    }
}

#[test]
fn an_archive_is_read_from_its_file_piece_by_piece() {
    let path = files::fixtures().join("../export/tiny.pt2");
    let mut document = Document::open(&path).unwrap().unwrap();
    let mut copy = Vec::new();
    document.write(&mut copy).unwrap();
    assert!(copy == fixture("tiny.pt2"));
    CONCAT.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
    let mut written = Vec::new();
    document.write(&mut written).unwrap();
    assert!(written == rewritten(fixture("tiny.pt2"), CONCAT));
}

#[test]
fn several_programs_in_one_archive_are_several_graphs() {
    let (one, two) = (fixture("small_ws4.model.json"), fixture("cond.model.json"));
    for method in [zip::Method::Stored, zip::Method::Deflated] {
        let files = [
            ("m/models/first.json", &one[..], method),
            ("m/data/weights/weight_0", b"weights", zip::Method::Stored),
            ("m/models/second.json", &two, method),
            ("../../outside", b"a name is only a name", zip::Method::Deflated),
        ];
        let archive = zip::archive(&files);
        let document = read(archive.clone());
        let names: Vec<&str> = document.graphs().iter().map(|graph| &*graph.name).collect();
        assert_eq!(names, ["first", "second", "true_graph_0", "false_graph_0"]);
        assert!(document.print() == archive);
        let after = zip::members(&rewritten(archive, CONCAT));
        assert!(after[0].data == rewritten(one.clone(), CONCAT));
        assert_eq!(after[1].data, b"weights");
        assert!(after[2].data == rewritten(two.clone(), CONCAT));
        assert_eq!(after[3].data, b"a name is only a name");
    }
}

#[test]
fn programs_become_the_other_forms_but_not_the_other_way() {
    let program = read(fixture("small_dynamic_ws4.model.json"));
    assert!(!program.losses(Format::Native).is_empty());
    for format in [Format::Native, Format::Json, Format::Fx] {
        let other = read(program.clone().convert(format).unwrap().print());
        assert_eq!(other.format(), format);
        let (before, after) = (&program.graphs()[0], &other.graphs()[0]);
        let verdict = prove_with(before, after, Options::default());
        assert!(verdict.is_equal(), "{verdict}");
        let error = other.convert(Format::Export).unwrap_err();
        assert_eq!(error, ConvertError::IntoExport { from: format });
    }
    let error = read(fixture("cond.model.json")).convert(Format::Native).unwrap_err();
    assert!(error.to_string().starts_with("it holds 3 graphs (model, true_graph_0, false_graph_0)"), "{error}");
}
