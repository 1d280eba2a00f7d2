//! `lower`.

mod support;

use support::{FX, Folder, REDUCES};

#[test]
fn a_program_is_printed_and_a_summary_is_said() {
    let folder = Folder::with("g.txt", FX);
    let ran = folder.run("lower g.txt").expect(0, &["program `GraphModule`", "peak", "proven equal"]);
    assert!(ran.out().starts_with("program GraphModule align 16 {"), "{}", ran.out());
    let again = folder.run("lower g.txt -o out.txt").expect(0, &[]);
    assert!(again.out().is_empty());
    assert_eq!(folder.read("out.txt"), ran.out());
}

#[test]
fn json_and_the_plan_are_for_machines() {
    let folder = Folder::with("g.txt", REDUCES);
    let json: serde_json::Value =
        serde_json::from_str(folder.run("lower g.txt --emit json").expect(0, &[]).out()).unwrap();
    assert_eq!(json["align_bytes"], 16);
    let plan: serde_json::Value =
        serde_json::from_str(folder.run("lower g.txt --emit plan").expect(0, &[]).out()).unwrap();
    assert_eq!(plan["peak_bytes"], 55_000_000);
}

#[test]
fn the_peak_before_and_after_passes_is_said() {
    let folder = Folder::with("g.txt", REDUCES);
    folder
        .run("lower g.txt --pipeline bucket-all-reduce{cap=25MB} -o out.txt")
        .expect(0, &["before the passes", "2 launches", "proven equal"]);
}

#[test]
fn what_cannot_be_lowered_is_the_inputs_fault_and_writes_nothing() {
    let folder = Folder::with("g.txt", "x = input f32[s]\ns0 = all_reduce(x, sum, G0:2); w = wait(s0)\noutput(w)\n");
    folder.run("lower g.txt -o out.txt").expect(1, &["`x`", "`s`"]);
    folder.run("lower g.txt --hint s=4 -o out.txt").expect(0, &[]);
    folder.write("h.txt", "x = input f32[4]\ns0 = all_reduce(x, sum, G0); w = wait(s0)\noutput(w)\n");
    folder.run("lower h.txt").expect(1, &["group `G0`", "h.txt"]);
    folder.run("lower g.txt --align-bytes 24").expect(2, &["--align-bytes", "power of two"]);
    folder.run("lower g.txt --one-shot-max lots").expect(2, &["--one-shot-max"]);
}
