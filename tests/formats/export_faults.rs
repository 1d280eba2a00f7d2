//! Programs of torch.export that are damaged, or mean harm: one error with its place, no panic, nothing held in memory
//! before it is checked.

use crate::zip;
use crate::zip::Method::{Deflated, Stored};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer_formats::{Document, Format, ReadError};
use kit::files;
use proptest::prelude::*;

fn fixture(name: &str) -> Vec<u8> {
    files::read(&files::fixtures().join("../export").join(name))
}

fn json(name: &str) -> String {
    String::from_utf8(fixture(name)).unwrap()
}

fn error(bytes: Vec<u8>) -> ReadError {
    Document::read(bytes).map(|_| ()).expect_err("an error")
}

/// Line, column and words of a fault of JSON.
fn fault(text: &str) -> (usize, usize, String) {
    let error = error(text.as_bytes().to_vec());
    let place = error.place().unwrap_or_else(|| panic!("{error}"));
    (place.line, place.column, error.what())
}

/// The fixture with one part replaced, and where that part stands.
fn replaced(old: &str, new: &str) -> (String, usize) {
    let text = json("small_ws4.model.json");
    let at = text.find(old).unwrap_or_else(|| panic!("{old}"));
    (text.replacen(old, new, 1), at + 1)
}

#[test]
fn other_schema_versions_are_refused_with_what_is_supported() {
    for (new, what) in [
        ("{\"major\": 9, \"minor\": 1}", "schema version 9.1 is not supported; version 8 is, with any minor version"),
        ("{\"major\": 7, \"minor\": 3}", "schema version 7.3 is not supported; version 8 is, with any minor version"),
    ] {
        let (text, column) = replaced("{\"major\": 8, \"minor\": 20}", new);
        assert_eq!(fault(&text), (1, column, what.to_owned()));
    }
    for minor in ["0", "20", "99"] {
        let (text, _) = replaced("\"minor\": 20", &format!("\"minor\": {minor}"));
        assert_eq!(Document::read(text.into_bytes()).unwrap().format(), Format::Export);
    }
    let (text, _) = replaced("\"schema_version\"", "\"schema\"");
    assert_eq!(fault(&text).2, "the program does not state its schema_version");
}

#[test]
fn faults_of_the_json_have_line_and_column() {
    for (old, new, what) in [
        ("{\"as_int\": 4}", "{\"as_int\": 4.5}", "invalid type: floating point `4.5`, expected i64"),
        ("{\"as_int\": 4}", "{\"as_number\": 4}", "`as_number` is not a kind of argument that schema 8 has"),
        ("{\"as_int\": 4}", "{}", "an argument has one field, its kind"),
        ("{\"as_scalar_type\": 13}", "{\"as_scalar_type\": 99}", "`99` is not a code of this kind"),
        (
            "{\"as_tensor\": {\"name\": \"to\"}}, \"kind\"",
            "{\"as_tensor\": {\"name\": \"unborn\"}}, \"kind\"",
            "use of `unborn`, which is not defined before this node",
        ),
        ("{\"as_int\": 16}", "{\"as_int\": -16}", "a size is negative"),
        ("\"target\": \"torch.ops.aten.to.dtype\"", "\"target\": \"\"", "a node has an empty target"),
    ] {
        let (text, column) = replaced(old, new);
        let found = fault(&text);
        assert_eq!(found.2, what, "{old} -> {new}");
        assert!(found.0 == 1 && found.1 + 400 > column && found.1 < column + 40, "{found:?} for {column}");
    }
    let lines =
        json("small_ws4.model.json").replace(", \"", ",\n\"").replace("\"as_string\": \"avg\"", "\"as_string\": avg");
    let line = lines.lines().position(|line| line.contains("as_string\": avg")).unwrap() + 1;
    assert_eq!(fault(&lines).0, line);
    assert_eq!(fault(&lines).2, "expected value");
}

#[test]
fn names_are_defined_and_described_once() {
    let (text, _) = replaced("[{\"as_tensor\": {\"name\": \"matmul\"}}]", "[{\"as_tensor\": {\"name\": \"to\"}}]");
    assert_eq!(fault(&text).2, "`to` is defined a second time in graph `model`");
    let (text, _) = replaced(
        "\"inputs\": [{\"as_tensor\": {\"name\": \"p_ws_0\"}}, ",
        "\"inputs\": [{\"as_tensor\": {\"name\": \"x\"}}, ",
    );
    assert_eq!(fault(&text).2, "`x` is defined a second time in graph `model`");
    let (text, _) = replaced("\"tensor_values\": {\"all_gather_into_tensor\":", "\"tensor_values\": {\"matmul\":");
    assert_eq!(fault(&text).2, "`matmul` is described a second time");
    let (text, _) = replaced("{\"graph_module\": ", "{\"graph_module\": 0, \"graph_module\": ");
    assert!(!fault(&text).2.is_empty());
}

#[test]
fn tensors_that_no_memory_holds_are_refused() {
    let (text, _) = replaced("{\"as_int\": 64}]", "{\"as_int\": 9223372036854775807}]");
    assert!(fault(&text).2.ends_with("has more than 2^63 bytes"), "{:?}", fault(&text));
    let (text, _) = replaced("{\"as_int\": 64}]", "{\"as_int\": 99999999999999999999}]");
    assert_eq!(fault(&text).0, 1);
}

#[test]
fn deep_nesting_is_refused() {
    let nest = |open: &str, close: &str, inner: &str| open.repeat(100_000) + inner + &close.repeat(100_000);
    let tensor = "{\"as_tensor\": {\"name\": \"to\"}}, \"kind\"";
    for deep in [
        nest("{\"as_optional_tensor\": ", "}", "{\"as_none\": true}"),
        nest("{\"as_string_to_argument\": {\"a\": ", "}}", "{\"as_none\": true}"),
        nest("[", "]", ""),
    ] {
        let (text, _) = replaced(tensor, &format!("{deep}, \"kind\""));
        assert_eq!(fault(&text).0, 1);
        let (text, _) = replaced("[{\"as_tensor\": {\"name\": \"to\"}}]", &format!("[{deep}]"));
        let _ = Document::read(text.into_bytes());
    }
}

/// A graph in a graph in a graph.
fn nested(levels: usize) -> String {
    let graph = |nodes: &str| {
        format!(
            "{{\"inputs\": [], \"outputs\": [], \"nodes\": [{nodes}], \"tensor_values\": {{}}, \"sym_int_values\": {{}}, \
             \"sym_bool_values\": {{}}}}"
        )
    };
    let mut text = graph("");
    for _ in 0..levels {
        text = graph(&format!(
            "{{\"target\": \"torch.ops.higher_order.wrap\", \"inputs\": [{{\"name\": \"\", \"arg\": {{\"as_graph\": \
             {{\"name\": \"body\", \"graph\": {text}}}}}, \"kind\": 1}}], \"outputs\": [], \"metadata\": {{}}}}"
        ));
    }
    format!(
        "{{\"graph_module\": {{\"graph\": {text}, \"signature\": {{\"input_specs\": [], \"output_specs\": []}}}}, \
         \"schema_version\": {{\"major\": 8, \"minor\": 2}}}}"
    )
}

#[test]
fn graphs_nest_sixteen_levels_deep() {
    assert_eq!(Document::read(nested(16).into_bytes()).unwrap().graphs().len(), 17);
    assert_eq!(fault(&nested(17)).2, "graphs nest more than 16 levels deep");
}

#[test]
fn archives_that_lie_are_refused() {
    let text = fixture("small_ws4.model.json");
    let model = ("m/models/model.json", &text[..], Stored);
    let what = |bytes: Vec<u8>| {
        let error = error(bytes);
        assert!(matches!(error, ReadError::Export(_)), "{error}");
        error.to_string()
    };
    let good = zip::archive(&[model]);
    assert!(Document::read(good.clone()).is_ok());
    assert!(what(zip::archive(&[model, model])).contains("two members named `m/models/model.json`"));
    assert!(what(zip::archive(&[("data.pkl", b"", Stored)])).contains("no member `models/NAME.json`"));
    assert!(what(zip::archive(&[])).contains("no member `models/NAME.json`"));

    let entry = good.len() - 22 - 46 - model.0.len();
    assert!(good[entry..].starts_with(b"PK\x01\x02"));
    let with = |at: usize, bytes: &[u8]| {
        let mut archive = good.clone();
        archive[at..at + bytes.len()].copy_from_slice(bytes);
        archive
    };
    assert!(what(with(entry + 16, b"1234")).contains("it is damaged"));
    assert!(what(with(entry + 8, &[1, 0])).contains("it is encrypted"));
    assert!(what(with(entry + 10, &[12, 0])).contains("compressed by method 12; stored and deflate are read"));
    assert!(what(with(entry + 20, &[0xff; 4])).contains("its data does not fit"));
    assert!(what(with(entry + 24, &[0xfe; 4])).contains("more than the"));
    assert!(what(with(entry + 42, &[0xf0; 4])).contains("its header is not where the table of members says"));
    assert!(what(with(30, b"x")).contains("its own header has another name"));
    let end = good.len() - 22;
    assert!(what(with(end + 8, &[0xff; 4])).contains("table of members does not fit"));
    assert!(what(with(end + 16, &[0xff; 4])).contains("table of members does not fit"));
    assert!(what(with(entry, b"PK\x01\x03")).contains("table of members is damaged"));
}

#[test]
fn a_json_that_expands_without_end_is_not_expanded() {
    let bomb = vec![b' '; 90 << 20];
    let error = error(zip::archive(&[("models/model.json", &bomb, Deflated)])).to_string();
    assert!(error.contains("are to expand to 94371840, more than the"), "{error}");
    // One that states less than it holds is cut off at what it states.
    let mut archive = zip::archive(&[("models/model.json", &bomb, Deflated)]);
    let entry = archive.len() - 22 - 46 - "models/model.json".len();
    archive[entry + 24..entry + 28].copy_from_slice(&1000u32.to_le_bytes());
    let error = error_text(archive);
    assert!(error.contains("it is damaged"), "{error}");
}

fn error_text(bytes: Vec<u8>) -> String {
    error(bytes).to_string()
}

#[test]
fn archives_that_are_cut_off_are_refused() {
    let archive = fixture("tiny.pt2");
    for end in (4..archive.len()).step_by(37) {
        assert!(matches!(error(archive[..end].to_vec()), ReadError::Export(_)), "{end}");
    }
    let text = json("small_ws4.model.json");
    for end in (1..text.len()).step_by(101) {
        assert!(error(text.as_bytes()[..end].to_vec()).place().is_some(), "{end}");
    }
}

#[test]
fn an_output_that_becomes_another_value_is_renamed_in_the_signature() {
    let text = json("small_dynamic_ws4.model.json");
    let mut document = Document::read(text.clone().into_bytes()).unwrap();
    let graph = &mut document.graphs_mut()[0];
    let find = |graph: &Graph, name: &str| graph.order().iter().copied().find(|&id| graph.name_of(id) == name).unwrap();
    let (output, other) = (*graph.order().last().unwrap(), find(graph, "wait_tensor_3"));
    graph.operands_mut(output)[1] = other;
    let gone = ["mul", "all_gather_into_tensor_4", "wait_tensor_4"].map(|name| find(graph, name));
    let order = graph.order().iter().copied().filter(|id| !gone.contains(id)).collect();
    graph.set_order(order);
    let printed = String::from_utf8(document.print()).unwrap();
    let named = |text: &str, name: &str| text.matches(&format!("{{\"as_tensor\": {{\"name\": \"{name}\"}}}}")).count();
    // Once where it is defined, then each time it is an output of the graph, and of the signature.
    assert_eq!((named(&text, "wait_tensor_3"), named(&text, "wait_tensor_4")), (3, 3));
    assert_eq!((named(&printed, "wait_tensor_3"), named(&printed, "wait_tensor_4")), (5, 0));
    assert!(!printed.contains("\"mul\"") && !printed.contains("wait_tensor_4"), "{printed}");
    assert!(*document.graphs() == *Document::read(printed.into_bytes()).unwrap().graphs());
}

const WORDS: &[&str] = &[
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "18446744073709551616",
    "\\",
    "\\u0000",
    "\"name\": \"x\"",
    "{\"as_tensor\": {\"name\": \"x\"}}",
    "{\"as_tensors\": []}",
    "{\"as_none\": true}",
    "{\"as_sym_int\": {\"as_name\": \"x\"}}",
    "{\"as_ints\": [1, -1]}",
    "Mul(Integer(4), ",
    "\u{fffd}",
    "as_float",
    "as_graph",
    "getitem",
    "_c10d_functional.wait_tensor",
    "\"as_int\"",
    "[{\"as_tensors\": [{\"name\": \"to\"}]}]",
];

/// Reads what damage left, and where that is a program, rewrites and writes it.
fn read_and_write(bytes: &[u8]) -> Result<(), TestCaseError> {
    match Document::read(bytes.to_vec()) {
        Ok(mut document) if document.format() == Format::Export => {
            prop_assert!(document.print() == bytes);
            let pipeline: Pipeline =
                "fold-trivial,bucket-all-gather{cap=none},bucket-all-reduce{cap=none,mode=coalesced}".parse().unwrap();
            for graph in document.graphs_mut() {
                let _ = pipeline.run(graph);
            }
            let _ = document.print();
        }
        Ok(_) => {}
        Err(error) => prop_assert!(!error.what().is_empty()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn damaged_json_is_read_or_refused(
        file in 0..3usize,
        edits in prop::collection::vec((0..30_000usize, 0..40usize, 0..WORDS.len() + 1), 1..4),
    ) {
        let name = ["small_ws4", "small_dynamic_ws4", "cond"][file];
        let mut text = json(&format!("{name}.model.json"));
        for (at, length, word) in edits {
            let at = at % text.len();
            let end = (at + if word == WORDS.len() { length } else { length % 3 }).min(text.len());
            let (at, end) = (text.floor_char_boundary(at), text.floor_char_boundary(end));
            text.replace_range(at..end, WORDS.get(word).unwrap_or(&""));
        }
        read_and_write(text.as_bytes())?;
    }

    #[test]
    fn damaged_archives_are_read_or_refused(
        edits in prop::collection::vec((0..20_000usize, any::<u8>(), any::<bool>()), 1..6),
        cut in 0..400usize,
    ) {
        let mut bytes = fixture("tiny.pt2");
        for (at, byte, near_the_end) in edits {
            let at = if near_the_end { bytes.len() - 1 - at % 1200 } else { at % bytes.len() };
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut.saturating_sub(350));
        read_and_write(&bytes)?;
    }
}
