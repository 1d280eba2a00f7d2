//! The header is what the sources say.
//!
//! `BUCKETEER_UPDATE_DOCS=1 cargo test -p bucketeer-reducer-c --test abi header` writes it.

use std::path::Path;

/// In the order in which they stand in the header.
const SOURCES: [&str; 5] = ["status", "rank", "options", "reducer", "gradients"];

fn written() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join("src").join(source).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/bucketeer_reducer.h");
    let written = written();
    if std::env::var_os("BUCKETEER_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == written, "include/bucketeer_reducer.h is out of date: run with BUCKETEER_UPDATE_DOCS=1");
}

#[test]
fn every_function_of_the_sources_is_in_the_header() {
    let header = written();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut functions = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.contains("extern \"C\" fn ")) {
            let (_, rest) = line.split_once("fn ").unwrap();
            let (name, _) = rest.split_once('(').unwrap();
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
            functions += 1;
        }
    }
    assert!(functions > 50, "{functions}");
}
