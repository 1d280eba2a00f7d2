//! HLO text that is no HLO text: one error, with its place, and nothing is made before the check.

use bucketeer_formats::{Document, ReadError, SourceLocation};
use kit::files;
use proptest::prelude::*;

/// A module with these lines in its entry computation, which begin at line 9.
fn module(lines: &str) -> String {
    format!(
        "HloModule m, replica_count=4\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\
         ENTRY %main (x: f32[8]) -> f32[8] {{\n{lines}\n}}\n"
    )
}

/// The error's place, problem and what was expected.
fn fault(text: &str) -> (usize, usize, String, String) {
    let error = Document::read(text.as_bytes().to_vec()).map(|_| ()).expect_err("an error");
    assert!(matches!(error, ReadError::Hlo(_)), "{error:?}");
    let SourceLocation { line, column, .. } = error.place().expect("faults in HLO text have a place");
    (line, column, error.what(), error.expected().unwrap_or_default().to_owned())
}

/// One all-reduce of these groups, in line 10, where they begin in column 48.
fn groups(groups: &str) -> String {
    module(&format!(
        "  %x = f32[8] parameter(0)\n  ROOT %s = f32[8] all-reduce(%x), replica_groups={groups}, to_apply=%add"
    ))
}

#[test]
fn group_lists_that_do_not_multiply_out_are_refused() {
    let (line, column, problem, expected) = fault(&groups("[2,2]<=[16]"));
    assert_eq!((line, column), (10, 58));
    assert_eq!(problem, "2 groups of 2 are 4 devices, but these sizes multiply to 16");
    assert_eq!(expected, "sizes that multiply to 4");
}

#[test]
fn huge_group_lists_are_refused_before_they_are_made() {
    for text in ["[1000000,1000000]<=[1000000000000]", "mesh['a'=1000000,'b'=1000000] {'a'}", "{{4000000000}}"] {
        let (line, _, problem, expected) = fault(&groups(text));
        assert_eq!(line, 10, "{problem}");
        assert!(expected.contains("1048576"), "{problem}; {expected}");
    }
}

#[test]
fn many_spellings_of_large_groups_are_refused_together() {
    let mut lines = "  %x = f32[8] parameter(0)\n".to_owned();
    for nth in 0..20 {
        let (groups, size) = (1u32 << nth, 1u32 << (20 - nth));
        lines +=
            &format!("  %s{nth} = f32[8] all-reduce(%x), replica_groups=[{groups},{size}]<=[1048576], to_apply=%add\n");
    }
    let text = module(&lines).replace(", replica_count=4", "");
    let (line, _, problem, _) = fault(&text);
    assert_eq!((line, problem.as_str()), (26, "the module's groups name more than 16777216 devices in all"));
}

#[test]
fn unknown_mesh_axes_are_refused() {
    let (line, column, problem, expected) = fault(&groups("mesh['a'=2,'b'=2] {'zz'}"));
    assert_eq!((line, column), (10, 70));
    assert_eq!(problem, "the mesh has no axis `zz`");
    assert_eq!(expected, "one of `a`, `b`");
}

#[test]
fn overlapping_ids_are_refused() {
    let (line, column, problem, _) = fault(&groups("{{0,1},{1,2}}"));
    assert_eq!((line, column), (10, 51));
    assert_eq!(problem, "device 1 is in these groups twice");
}

#[test]
fn ids_beyond_the_modules_devices_are_refused() {
    let (line, column, problem, _) = fault(&groups("{{0,1,2,7}}"));
    assert_eq!((line, column), (10, 51));
    assert_eq!(problem, "7 is named here, but the module has 4 replicas");
}

#[test]
fn braces_inside_strings_do_not_count() {
    let text = groups("{{0,1}}, metadata={op_name=\"}{]\\\"[(\" source='}'}");
    let document = Document::read(text.clone().into_bytes()).unwrap();
    assert_eq!(document.print(), text.as_bytes());
    let (line, column, problem, _) = fault(&groups("{{0,1}}, metadata={op_name=\"a}"));
    assert_eq!((line, column, problem.as_str()), (10, 78, "the string does not end"));
}

#[test]
fn duplicate_names_are_refused() {
    let (line, column, problem, _) = fault(&module("  %x = f32[8] parameter(0)\n  %x = f32[8] negate(%x)"));
    assert_eq!((line, column, problem.as_str()), (10, 4, "`x` is defined above already"));
    let text = module("  ROOT %x = f32[8] parameter(0)").replace("%main", "%add");
    let (line, column, problem, _) = fault(&text);
    assert_eq!((line, column, problem.as_str()), (8, 8, "computation `add` is there already"));
    let (line, _, problem, _) = fault(&module("  %x = f32[8] parameter(0)\n  %y = f32[8] parameter(0)"));
    assert_eq!((line, problem.as_str()), (10, "parameter 0 is there twice"));
}

#[test]
fn without_an_entry_mark_the_last_computation_is_the_entry() {
    let text = module("  ROOT %x = f32[8] parameter(0)").replace("ENTRY ", "");
    let document = Document::read(text.into_bytes()).unwrap();
    assert_eq!(document.graphs()[0].name_of(document.graphs()[0].order()[0]), "x");
    let (line, _, problem, expected) = fault("HloModule empty\n");
    assert_eq!((line, problem.as_str()), (2, "found the end of the text"));
    assert!(expected.contains("ENTRY"), "{expected}");
    let twice = module("  ROOT %x = f32[8] parameter(0)") + "ENTRY other {\n  y = f32[] parameter(0)\n}\n";
    assert_eq!(fault(&twice).2, "there is a second ENTRY computation");
}

#[test]
fn cyclic_calls_are_refused() {
    let text = module("  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] call(%x), to_apply=%main");
    let (line, column, problem, expected) = fault(&text);
    assert_eq!((line, column, problem.as_str()), (10, 40, "computation `main` is not defined above"));
    assert!(expected.contains("cyclic"), "{expected}");
}

#[test]
fn truncated_text_is_refused_at_its_end() {
    let text = groups("{{0,1},{2,3}}");
    for end in (text.find("ENTRY").unwrap() + 6..text.len() - 2).step_by(3) {
        let (line, _, problem, _) = fault(&text[..end]);
        assert!((8..=10).contains(&line), "{end}: {problem} in line {line}");
    }
}

#[test]
fn uses_above_definitions_are_refused() {
    let (line, column, problem, _) = fault(&module("  %y = f32[8] negate(%x)\n  %x = f32[8] parameter(0)"));
    assert_eq!((line, column, problem.as_str()), (9, 23, "`x` is not defined"));
}

#[test]
fn deep_nesting_is_refused() {
    let deep = format!("  %x = f32[8] parameter(0), a={}{}", "{".repeat(10_000), "}".repeat(10_000));
    assert!(fault(&module(&deep)).2.contains("256 brackets"));
    let tuple = format!("  %x = {}f32[]{} parameter(0)", "(".repeat(100), ")".repeat(100));
    assert!(fault(&module(&tuple)).2.contains("64 tuples"));
}

#[test]
fn shapes_beyond_2_to_the_63_bytes_are_refused() {
    let (line, column, problem, _) = fault(&module("  %x = f32[9999999999,9999999999] parameter(0)"));
    assert_eq!((line, column, problem.as_str()), (9, 8, "`f32[9999999999,9999999999]` is larger than 2^63 bytes"));
}

fn texts() -> Vec<String> {
    let paths = files::hlo();
    paths.iter().map(|path| String::from_utf8(files::read(path)).unwrap()).filter(|text| text.len() < 4096).collect()
}

/// Words that mean something in HLO text.
const WORDS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    "=",
    "%",
    "\"",
    "'",
    "\n",
    "/*",
    "//",
    "ROOT ",
    "ENTRY ",
    "f32[8]",
    "<=[8]",
    "T(1,0)",
    "replica_groups=",
    "mesh['x'=2] {'x'}",
    "18446744073709551616",
    "0",
    "-1",
    "all-reduce",
    "-start",
    "-done",
    "while",
    "control-predecessors={",
    "to_apply=%",
    "\\",
    "\u{fffd}",
    "(f32[], f32[])",
    "index=1",
    "dimensions={7}",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn damaged_text_is_read_or_refused_with_a_place(
        file in 0..100usize,
        edits in prop::collection::vec((0..10_000usize, 0..40usize, 0..WORDS.len() + 1), 1..4),
    ) {
        let texts = texts();
        let mut text: Vec<char> = texts[file % texts.len()].chars().collect();
        for (at, length, word) in edits {
            let at = at % text.len();
            let end = (at + if word == WORDS.len() { length } else { length % 3 }).min(text.len());
            text.splice(at..end, WORDS.get(word).unwrap_or(&"").chars());
        }
        let text: String = text.into_iter().collect();
        match Document::read(text.clone().into_bytes()) {
            Ok(document) if document.format() == bucketeer_formats::Format::Hlo => {
                prop_assert_eq!(document.print(), text.as_bytes());
                // Well-formed or not, that it says so is enough.
                let _ = bucketeer::ir::verify(&document.graphs()[0]);
            }
            Ok(_) => {}
            Err(error) => {
                let place = error.place();
                prop_assert!(place.is_some() || matches!(error, ReadError::Empty), "{}", error);
                prop_assert!(!error.what().is_empty());
            }
        }
    }
}

#[test]
fn more_groups_than_any_module_has_are_refused() {
    let all_reduces = |count: u32| {
        let line = |nth: u32| {
            let (a, b) = (2 * nth, 2 * nth + 1);
            format!("  %s{nth} = f32[8] all-reduce(%x), replica_groups={{{{{a},{b}}}}}, to_apply=%add\n")
        };
        let lines: String = (0..count).map(line).collect();
        module(&format!("  %x = f32[8] parameter(0)\n{lines}")).replace(", replica_count=4", "")
    };
    assert!(Document::read(all_reduces(4096).into_bytes()).is_ok());
    assert_eq!(fault(&all_reduces(4097)).2, "the module has more than 4096 different groups");
}

#[test]
fn many_computations_may_use_the_same_names() {
    let mut text = "HloModule m\n".to_owned();
    let (mut calls, mut last) = (String::new(), "x".to_owned());
    for nth in 0..20_000 {
        text += &format!("f{nth} {{\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}}\n");
        calls += &format!("  c{nth} = f32[] call({last}), to_apply=f{nth}\n");
        last = format!("c{nth}");
    }
    text += &format!("ENTRY main {{\n  x = f32[] parameter(0)\n{calls}}}\n");
    let document = Document::read(text.into_bytes()).unwrap();
    assert_eq!(document.graphs()[0].regions().len(), 20_001);
}
