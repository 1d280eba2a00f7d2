//! The table of `docs/memory.md` is what the code does: this test makes it anew and compares.
//!
//! `BUCKETEER_UPDATE_DOCS=1 cargo test --test lowering memory_table` writes the file.

use bucketeer::ir::concrete::{SizeError, with_sizes};
use bucketeer::ir::{Graph, GroupId};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_formats::Document;
use kit::files;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "\
# Planned memory, before and after bucketing

For each graph in `fixtures/fx`: launches and planned peak of its program as it came, and after the default rewrite (gathers
and scatters up to 256 MiB, all-reduces up to 25 MiB). The peak is the sum of the arenas: what the program allocates, inputs
not counted; `comm` is the part in comm arenas. `over` is how far the arenas are above the largest set of buffers in use at
once, which no plan can go below. Sizes known only at run time are 64 where nothing hints them, groups of unknown size have
4 ranks. A test makes this table anew and compares.

Reading: bucketing costs memory, since all of a bucket is there at once: its pack, its result, and, where it is unpacked at
once, its members. In graphs this small the default caps put everything into one bucket of each kind. A lower cap bounds it.

| graph | launches | peak KiB before | after | of that comm | over before | after |
|---|---|---|---|---|---|---|
";

fn program(graph: &Graph) -> Program {
    let mut options = LowerOptions::default();
    while let Err(SizeError::Unknown { symbol, .. }) = with_sizes(graph, &options.symbols) {
        options.symbols.insert(symbol.into(), 64);
    }
    lower(graph, &options).unwrap().0
}

const REAL_SIZE: &str = "
Graphs of real size, in `fixtures/torch/graphs`.

| graph | launches | peak KiB before | after | of that comm | over before | after |
|---|---|---|---|---|---|---|
";

fn default_rewrite() -> Pipeline {
    let pipeline = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=256MiB},bucket-all-reduce{cap=25MiB},\
                    bucket-all-gather{cap=256MiB}";
    pipeline.parse().unwrap()
}

/// How far a program's arenas are above the largest set of buffers in use at once, in percent.
fn over(program: &Program) -> f64 {
    100.0 * (program.peak_bytes() as f64 / program.live_bytes().max(1) as f64 - 1.0).max(0.0)
}

/// A line of the table for each graph of a file.
fn rows(table: &mut String, name: &str, graphs: Vec<Graph>) {
    for mut graph in graphs {
        for index in 0..graph.groups().len() {
            let group = graph.group_mut(GroupId::from_index(index));
            group.size = group.size.or(Some(4));
        }
        let before = program(&graph);
        default_rewrite().run(&mut graph).unwrap();
        let after = program(&graph);
        let kib = |bytes: u64| bytes.div_ceil(1024);
        assert!(over(&before) <= 5.0 && over(&after) <= 5.0, "{name}: {:.1} %, {:.1} %", over(&before), over(&after));
        let _ = writeln!(
            table,
            "| {name} | {} → {} | {} | {} | {} | {:.1} % | {:.1} % |",
            before.launches(),
            after.launches(),
            kib(before.peak_bytes()),
            kib(after.peak_bytes()),
            kib(after.comm_bytes()),
            over(&before),
            over(&after)
        );
    }
}

#[test]
fn the_tables_of_planned_memory_are_up_to_date_and_no_plan_is_far_above_its_live_set() {
    let mut page = String::from(HEAD);
    for path in files::fx() {
        let name = path.file_name().unwrap().to_string_lossy().trim_end_matches(".txt").to_owned();
        rows(&mut page, &name, files::graphs(&path));
    }
    page.push_str(REAL_SIZE);
    real_size(&mut page, &files::torch_graphs());
    files::hold_page("memory.md", &page);
}

/// The graphs as PyTorch had them before it merged anything.
fn real_size(page: &mut String, folder: &Path) {
    for path in files::texts(folder) {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if let Some((pass, "full.txt" | "full.txt.gz")) = file.split_once('.') {
            let case = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            rows(page, &format!("{case}.{pass}"), Document::read(files::read(&path)).unwrap().graphs().to_vec());
        }
    }
}
