//! Where tests find graphs: in `fixtures/`, and, for tests that are ignored as a rule, in a folder beside the project.

use bucketeer::ir::Graph;
use bucketeer_formats::{Document, GroupsFile};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// More graphs than the tree holds: the folder `fixtures` in the one that `BUCKETEER_SHARED` names, or in `../shared`.
///
/// Only for tests that are ignored as a rule: they fail where the folder is not there. `shared` is in their names, by which
/// `.ci/run` finds them.
#[track_caller]
pub fn shared() -> PathBuf {
    let beside = crate::root().join("../shared");
    let root = std::env::var_os("BUCKETEER_SHARED").map_or(beside, PathBuf::from);
    let fixtures = root.join("fixtures");
    assert!(fixtures.is_dir(), "{} is not there: name its parent in BUCKETEER_SHARED", fixtures.display());
    fixtures
}

/// Graphs of real size, a folder for each case: `PASS.full.txt`, and PyTorch's buckets in `PASS.golden.json`; both packed.
pub fn torch_graphs() -> PathBuf {
    crate::root().join("fixtures/torch/graphs")
}

/// HLO modules as XLA had them right before its combiners, with XLA's buckets in `golden.json`, packed.
pub fn xla() -> PathBuf {
    crate::root().join("fixtures/xla")
}

/// Whether a file is there, or packed.
pub fn exists(path: &Path) -> bool {
    path.exists() || PathBuf::from(format!("{}.gz", path.display())).exists()
}

/// The graphs in the tree.
pub fn fixtures() -> PathBuf {
    crate::root().join("fixtures/fx")
}

/// The FX graphs of [`fixtures`], all of them.
pub fn fx() -> Vec<PathBuf> {
    exactly(18, texts(&fixtures()))
}

/// The small HLO modules, all of them.
pub fn hlo() -> Vec<PathBuf> {
    exactly(11, with_ending(&crate::root().join("fixtures/hlo"), ".hlo"))
}

/// The sketches of the case collection, all of them.
pub fn sketches() -> Vec<PathBuf> {
    exactly(58, texts(&crate::root().join("tests/sketches")))
}

/// A test that goes over fixtures has to see them: one that sees none passes.
#[track_caller]
fn exactly(count: usize, paths: Vec<PathBuf>) -> Vec<PathBuf> {
    assert_eq!(paths.len(), count, "fixtures were added or are missing: {paths:?}");
    paths
}

/// A graph on four ranks with a collective of every kind.
pub fn every_kind() -> Graph {
    let path = crate::root().join("fixtures/native/every_kind.bkt");
    bucketeer::ir::text::parse(&String::from_utf8(read(&path)).unwrap()).unwrap()
}

/// The bytes of a file, or of the same file with `.gz` behind its name, unpacked.
pub fn read(path: &Path) -> Vec<u8> {
    let zipped = PathBuf::from(format!("{}.gz", path.display()));
    let path = if path.exists() { path } else { &zipped };
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
    text
}

/// The graphs of a file, with the groups that lie beside it: in `NAME.groups.json`, or in the `case.json` of its folder.
pub fn graphs(path: &Path) -> Vec<Graph> {
    let mut document = Document::read(read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let beside = path.with_file_name(format!("{}.groups.json", name.split('.').next().unwrap()));
    if let Some(file) = [beside, path.with_file_name("case.json")].into_iter().find(|file| file.exists()) {
        let groups = GroupsFile::parse(&read(&file)).unwrap();
        document.graphs_mut().iter_mut().for_each(|graph| drop(groups.apply(graph).unwrap()));
    }
    document.graphs().to_vec()
}

/// All files below a folder whose names end in `.txt` or `.txt.gz`, sorted.
pub fn texts(folder: &Path) -> Vec<PathBuf> {
    with_ending(folder, ".txt")
}

/// All files below a folder whose names have this ending, perhaps with `.gz` behind it, sorted.
pub fn with_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.trim_end_matches(".gz").ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The groups of a graph of real size, whose texts do not list them: by the name of its case, as its mesh has them.
pub fn groups(case: &str) -> Vec<(String, Vec<Vec<u32>>)> {
    let inner = |size: u32, count: u32| (0..count).map(|at| (at * size..(at + 1) * size).collect()).collect();
    let outer = |size: u32, step: u32| (0..step).map(|at| (0..size).map(|nth| at + nth * step).collect()).collect();
    match case {
        _ if case.contains("hsdp") => vec![("5".to_owned(), inner(4, 2)), ("1".to_owned(), outer(2, 4))],
        _ if case.contains("fsdp_tp") => vec![("9".to_owned(), inner(8, 8)), ("1".to_owned(), outer(8, 8))],
        _ if case.contains("ddp") => vec![("0".to_owned(), inner(8, 1))],
        _ => Vec::new(),
    }
}

/// A page of `docs/` as it is; empty if there is none.
pub fn page(name: &str) -> String {
    let path = crate::root().join("docs").join(name);
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Holds a page of `docs/` against what the code makes of it; with `BUCKETEER_UPDATE_DOCS` set, writes it.
pub fn hold_page(name: &str, text: &str) {
    let path = crate::root().join("docs").join(name);
    if std::env::var_os("BUCKETEER_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(page(name) == text, "docs/{name} is out of date: run with BUCKETEER_UPDATE_DOCS=1");
}
