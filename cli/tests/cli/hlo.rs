//! HLO text through the commands.

use crate::support::{FX, Folder};

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
    let folder = Folder::with("g.txt", FX);
    folder.run("rewrite g.txt --permute none").expect(2, &["g.txt", "FX text has no word"]);
}

#[test]
fn gathers_of_several_dtypes_travel_in_one_tuple_unless_they_are_to_be_split() {
    let text = "HloModule m, replica_count=2\n\nENTRY main {\n  p = f32[4]{0} parameter(0)\n  q = bf16[4]{0} parameter(1)\n  \
                a = f32[8]{0} all-gather(p), replica_groups={}, dimensions={0}\n  \
                b = bf16[8]{0} all-gather(q), replica_groups={}, dimensions={0}\n  \
                ROOT t = (f32[8]{0}, bf16[8]{0}) tuple(a, b)\n}\n";
    let folder = Folder::with("mixed.hlo", text);
    let gathers = |options: &str| {
        let ran = folder.run(&format!("rewrite mixed.hlo {options}")).expect(0, &["proven equal"]);
        ran.out().matches(" all-gather(").count()
    };
    assert_eq!((gathers(""), gathers("--mixed-dtype split")), (1, 2));
}

#[test]
fn what_moves_data_without_a_word_is_listed_with_its_group_and_held_against_other_ranks() {
    let of = |line: &str| {
        format!(
            "HloModule m, replica_count=2\n\nENTRY main {{\n  p = f32[4,4]{{1,0}} parameter(0)\n  ROOT r = {line}\n}}\n"
        )
    };
    let exchange = "f32[4,4]{1,0} all-to-all(p), replica_groups={{0,1}}, dimensions={1}";
    let folder = Folder::with("a.hlo", of(exchange));
    folder.write("b.hlo", of("f32[4,4]{1,0} collective-broadcast(p), replica_groups={{0,1}}"));
    folder
        .write("c.hlo", of("f32[4,4]{1,0} custom-call(p), custom_call_target=\"x\", custom_call_has_side_effect=true"));
    let ran = folder.run("inspect a.hlo").expect(0, &[]);
    for part in ["1 collective, 1 of them not followed", "all-to-all along dimension 1", "{{0,1}}: 2 ranks"] {
        assert!(ran.out().contains(part), "{}", ran.out());
    }
    assert!(folder.run("inspect --json a.hlo").expect(0, &[]).out().contains("other_communication"));
    folder.run("check-ranks a.hlo a.hlo").expect(0, &[]);
    folder.run("check-ranks a.hlo b.hlo").expect(1, &[]);
    folder.run("check-ranks c.hlo c.hlo").expect(2, &["cannot be decided", "c.hlo:5:"]);
}

#[test]
fn groups_are_written_as_lists_where_that_is_asked_for() {
    let spelled = MODULE.replacen("replica_groups={}", "replica_groups=mesh['x'=1,'y'=2] {'y'}", 1).replacen(
        "replica_groups={}",
        "replica_groups=[1,2]<=[2]",
        1,
    );
    let folder = Folder::with("m.hlo", &spelled);
    for mode in ["concat", "coalesced"] {
        folder.run(&format!("rewrite m.hlo --mode {mode} --groups-as lists -o out.hlo")).expect(0, &["proven equal"]);
        let out = folder.read("out.hlo");
        assert!(out.contains("replica_groups={{0,1}}"), "{out}");
        assert!(!out.contains("mesh[") && !out.contains("<="), "{out}");
        folder.run("verify m.hlo out.hlo").expect(0, &[]);
    }
    // Also where nothing is merged; and an empty list stays what it is.
    folder.run("rewrite m.hlo --all-gather 1MiB --groups-as lists -o out.hlo").expect(0, &[]);
    assert_eq!(folder.read("out.hlo").matches("replica_groups={{0,1}}").count(), 2);
    let fx = Folder::with("g.txt", FX);
    fx.run("rewrite g.txt --groups-as lists").expect(2, &["is for HLO text"]);
}
