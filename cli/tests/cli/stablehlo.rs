//! StableHLO is listed, and refused elsewhere with what to do.

use crate::support::Folder;

const TEXT: &str = r#"module @jit_step attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%arg0: tensor<16xf32>) -> tensor<128xf32> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> : (tensor<16xf32>) -> tensor<128xf32>
    return %0 : tensor<128xf32>
  }
}
"#;

#[test]
fn collectives_of_a_module_are_listed_and_it_is_said_where_to_rewrite() {
    let folder = Folder::with("m.mlir", TEXT);
    let ran = folder.run("inspect m.mlir").expect(0, &["rewriting happens on HLO text"]);
    for part in
        ["StableHLO: 1 collective", "%0", "all_gather", "main", "[[0, 1, 2, 3, 4, 5, 6, 7]]", "float32", "512 B"]
    {
        assert!(ran.out().contains(part), "{part}\n{}", ran.out());
    }
    let json: serde_json::Value =
        serde_json::from_str(folder.run("inspect m.mlir --json").expect(0, &[]).out()).unwrap();
    assert_eq!((&json["input_format"], &json["collectives"][0]["bytes"]), (&"stablehlo".into(), &512.into()));
}

#[test]
fn other_commands_refuse_it_and_name_hlo_text() {
    let folder = Folder::with("m.mlir", TEXT);
    for command in ["rewrite m.mlir", "verify m.mlir m.mlir", "lower m.mlir"] {
        folder.run(command).expect(1, &["m.mlir", "StableHLO", "lowered.compile().as_text()"]);
    }
}

#[test]
fn a_module_that_is_cut_short_is_refused_with_line_and_column() {
    let folder = Folder::with("m.mlir", &TEXT[..TEXT.find("dense<").unwrap()]);
    folder.run("inspect m.mlir").expect(1, &["m.mlir", "line 3, column 41: this `{` is not closed"]);
}
