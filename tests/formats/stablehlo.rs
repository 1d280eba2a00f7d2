//! StableHLO of real steps.

use bucketeer_formats::stablehlo::{collectives, is_stablehlo};
use kit::files;

/// Files, with how many collectives `grep` finds in each.
const EXPECTED: [(&str, usize); 4] =
    [("dp_mlp.mlir", 0), ("fsdp_mlp_shardmap.mlir", 13), ("fsdp_scan.mlir", 24), ("shardmap_all.mlir", 22)];

#[test]
fn every_collective_of_real_modules_is_listed_with_its_bytes() {
    for (name, expected) in EXPECTED {
        let text = String::from_utf8(files::read(&files::xla().join("stablehlo").join(name))).unwrap();
        assert!(is_stablehlo(text.as_bytes()), "{name}");
        let found = collectives(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.len(), expected, "{name}");
        for one in &found {
            assert!(one.bytes.is_some() && one.dtype.is_some() && !one.groups.is_empty(), "{name}: {one:?}");
            let line = text.lines().nth(one.line - 1).unwrap();
            assert!(line.trim_start().starts_with(&one.name) && line.contains(one.kind), "{name}: {line}");
            assert_eq!(one.reduction.is_some(), matches!(one.kind, "all_reduce" | "reduce_scatter"), "{name}: {one:?}");
        }
    }
}
