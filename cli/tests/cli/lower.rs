//! `lower`.

use crate::support::{FX, Folder, REDUCES};

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

#[test]
fn kernels_and_their_plan_are_printed() {
    let folder = Folder::with(
        "g.bkt",
        "x = input f32[4]; y = input f32[6]\ns = reduce_scatter(x, avg, G:2); t = reduce_scatter(y, avg, G:2)\n\
         output(wait(s), wait(t))\n",
    );
    let bucketed = "lower g.bkt --pipeline bucket-reduce-scatter";
    let ran = folder.run(&format!("{bucketed} --emit cuda -o k.cu")).expect(0, &["proven equal"]);
    assert_eq!(ran.out(), "");
    assert!(folder.read("k.cu").contains("__global__ void __launch_bounds__(256, 3) bucketeer_move("));
    let plan = |options: &str| -> serde_json::Value {
        serde_json::from_str(folder.run(&format!("{bucketed} --emit plan {options}")).expect(0, &[]).out()).unwrap()
    };
    assert_eq!(plan("")["launches"].as_array().unwrap().len(), 2);
    assert_eq!(plan("")["steps"][1]["action"]["step"]["collective"]["op"]["reduce_scatter"], "avg");
    assert_eq!(plan("--average before")["steps"][1]["action"]["step"]["collective"]["op"]["reduce_scatter"], "sum");
    folder.write("i.bkt", "x = input i32[4]\ns = all_reduce(x, avg, G:2)\noutput(wait(s))\n");
    folder.run("lower i.bkt --emit cuda --average after").expect(2, &["i.bkt", "int32 is not divided"]);
}

#[test]
fn b_a2a_sym_parts_whose_hints_are_equal_are_even() {
    let folder = Folder::with("g.txt", include_str!("../../../tests/found/B-a2a_sym.txt"));
    folder.run("lower g.txt --hint u0=8 --hint u1=8 -o out.txt").expect(0, &["1 launches", "proven equal"]);
    let folder = Folder::with("g.txt", include_str!("../../../tests/found/A-a2a_symbolic.txt"));
    folder.run("lower g.txt --hint u1=3 -o out.txt").expect(0, &["1 launches", "proven equal"]);
}
