//! HLO text through the commands.

mod support;

use support::Folder;

const MODULE: &str = "\
HloModule step, replica_count=2

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  r = f32[64] all-reduce(x), replica_groups={}, to_apply=sum
  s = f32[64] all-reduce(y), replica_groups={}, to_apply=sum
  p = f32[64] collective-permute(x), source_target_pairs={{0,1},{1,0}}
  q = f32[64] collective-permute(y), source_target_pairs={{0,1},{1,0}}
  ROOT t = (f32[64], f32[64], f32[64], f32[64]) tuple(r, s, p, q)
}
";

#[test]
fn rewrite_makes_tuples_and_proves_them() {
    let folder = Folder::with("m.hlo", MODULE);
    let ran = folder.run("rewrite m.hlo -o out.hlo").expect(0, &["proven equal"]);
    drop(ran);
    let out = folder.read("out.hlo");
    assert!(out.contains("(f32[64], f32[64]) all-reduce(x, y)"), "{out}");
    assert!(out.contains("  p = f32[64] collective-permute(x)"), "{out}");
    folder.run("verify m.hlo out.hlo").expect(0, &[]);
    folder.run("rewrite m.hlo --mode concat -o flat.hlo").expect(0, &["proven equal"]);
    assert!(folder.read("flat.hlo").contains("f32[128] concatenate(x, y)"));
    folder.run("verify m.hlo flat.hlo").expect(0, &[]);
}

#[test]
fn policy_xla_merges_all_four_kinds_at_the_caps_of_xla() {
    let folder = Folder::with("m.hlo", MODULE);
    folder
        .run("rewrite m.hlo --policy xla -o out.hlo")
        .expect(0, &["no cap given", "permute 31457287", "proven equal"]);
    let out = folder.read("out.hlo");
    assert!(out.contains("(f32[64], f32[64]) collective-permute(x, y)"), "{out}");
    folder.run("rewrite m.hlo --policy xla --all-reduce 511 -o none.hlo").expect(0, &[]);
    assert_eq!(folder.read("none.hlo"), MODULE);
    folder.run("rewrite m.hlo --policy xla --broadcast none").expect(2, &["XLA has no combiner"]);
    folder.run("rewrite m.hlo --permute none --mode concat").expect(2, &["merged as they are"]);
}

#[test]
fn a_scheduled_module_is_refused_with_the_reason() {
    let folder = Folder::with("m.hlo", MODULE.replace("step,", "step, is_scheduled=true,"));
    folder.run("rewrite m.hlo").expect(2, &["m.hlo", "is_scheduled=true", "moves instructions"]);
    folder.run("inspect m.hlo").expect(0, &[]);
    folder.run("rewrite m.hlo --keep-schedule -o out.hlo").expect(0, &["proven equal"]);
    let out = folder.read("out.hlo");
    assert!(out.contains("(f32[64], f32[64]) all-reduce(x, y)") && out.contains("is_scheduled=true"), "{out}");
    // What stands between reads a member.
    let scheduled = MODULE.replace("step,", "step, is_scheduled=true,");
    let between = scheduled.replace("  s = f32[64]", "  n = f32[64] negate(r)\n  s = f32[64]");
    folder.write("m.hlo", &between);
    folder.run("rewrite m.hlo --keep-schedule --explain -o out.hlo").expect(0, &["schedule: cannot travel with `r`"]);
    assert_eq!(folder.read("out.hlo"), between);
}

#[test]
fn the_annotators_suggestion_is_taken_where_caps_are_xlas_own() {
    let sync = ", frontend_attributes={sync_collective=\"true\"}, to_apply=sum";
    let module = MODULE
        .replace("step,", "step, frontend_attributes={suggested_combiner_threshold=\"512\"},")
        .replace(", to_apply=sum", sync)
        .replace("[64]", "[4000000]");
    let folder = Folder::with("m.hlo", &module);
    // 16 MB each: two do not fit into the default, nor into the suggestion.
    folder.run("rewrite m.hlo --policy xla -o out.hlo").expect(0, &[]);
    assert_eq!(folder.read("out.hlo"), module);
    folder.write("m.hlo", module.replace("\"512\"", "\"40000000\""));
    folder.run("rewrite m.hlo --policy xla -o out.hlo").expect(0, &["proven equal"]);
    assert!(folder.read("out.hlo").contains("all-reduce(x, y)"));
    folder.run("rewrite m.hlo --policy xla --all-reduce 17MB -o out.hlo").expect(0, &[]);
    assert!(!folder.read("out.hlo").contains("all-reduce(x, y)"));
}

#[test]
fn inspect_and_convert_read_it() {
    let folder = Folder::with("m.hlo", MODULE);
    let ran = folder.run("inspect m.hlo").expect(0, &[]);
    assert!(ran.out().contains("4 collectives"), "{}", ran.out());
    folder.run("convert m.hlo out.bkt").expect(0, &["layouts, metadata"]);
    assert!(
        folder.read("out.bkt").contains("r = all_reduce(x, sum, all:2, replica_groups='{}')"),
        "{}",
        folder.read("out.bkt")
    );
    folder.run("convert out.bkt back.hlo").expect(1, &["HLO text is made from HLO text only"]);
    folder.run("convert m.hlo out.txt").expect(1, &["`t` is a call of `hlo-tuple`", "FX text has no such operator"]);
    folder.run("convert m.hlo same.hlo").expect(0, &[]);
    assert_eq!(folder.read("same.hlo"), MODULE);
}

#[test]
fn a_fault_shows_its_line() {
    let folder = Folder::with("m.hlo", MODULE.replace("(r, s,", "(r, z,"));
    folder.run("inspect m.hlo").expect(1, &["`z` is not defined", "m.hlo:16:58", "defined above"]);
}

#[test]
fn permutes_of_fx_text_are_not_merged() {
    let folder = Folder::with("g.txt", support::FX);
    folder.run("rewrite g.txt --permute none").expect(2, &["g.txt", "FX text has no word"]);
}
