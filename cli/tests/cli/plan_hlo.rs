//! `plan` of HLO modules, as a new user would run it.

use crate::support::Folder;

/// Two layers: their weights are gathered, and the gradients summed.
const MODULE: &str = "\
HloModule step, replica_count=8

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  w0 = f32[512,4096] parameter(0)
  w1 = f32[512,4096] parameter(1)
  x = f32[4096,4096] parameter(2)
  g0 = f32[4096,4096] all-gather(w0), replica_groups={}, dimensions={0}
  d0 = f32[4096,4096] dot(x, g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g1 = f32[4096,4096] all-gather(w1), replica_groups={}, dimensions={0}
  d1 = f32[4096,4096] dot(d0, g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r0 = f32[4096,4096] all-reduce(d0), replica_groups={}, to_apply=sum
  r1 = f32[4096,4096] all-reduce(d1), replica_groups={}, to_apply=sum
  ROOT out = (f32[4096,4096], f32[4096,4096]) tuple(r0, r1)
}
";

#[test]
fn a_module_is_planned_by_its_shapes_and_its_times_are_called_what_they_are() {
    let folder = Folder::with("step.hlo", MODULE);
    let ran = folder.run("plan step.hlo --profile h100 -o planned.hlo").expect(
        0,
        &[
            "proven equal",
            "XLA orders this module",
            "was not measured",
            "waited for on the spot, the written module takes",
        ],
    );
    assert!(ran.out().contains("no plan is shorter than"), "{}", ran.out());
    folder.run("verify step.hlo planned.hlo --launches-may-move").expect(0, &[]);
    folder.run("plan planned.hlo --profile h100 --as-written").expect(0, &[]);
}

#[test]
fn what_has_no_time_by_its_shapes_is_named_with_what_to_do() {
    let folder =
        Folder::with("step.hlo", MODULE.replace("dot(d0, g1)", "custom-call(d0, g1), custom_call_target=\"mine\""));
    folder
        .run("plan step.hlo --profile h100")
        .expect(1, &["`d1`, a custom-call of `mine`; state their times", "--times FILE"]);
    folder.write("times.json", r#"{"schema": "bucketeer-times-1", "ns": {"d1": 300000}}"#);
    folder.run("plan step.hlo --profile h100 --times times.json").expect(0, &["proven equal"]);
}

#[test]
fn the_page_shows_what_the_tool_says_of_a_module() {
    let module = kit::root().join("fixtures/xla/gpu/fsdp_transformer_4l.pre_combine.hlo.gz");
    let folder = Folder::with("step.hlo", MODULE);
    let ran = folder
        .run(&format!("plan {} --profile h100 --waits 2 -o planned.hlo", module.display()))
        .expect(0, &["proven equal"]);
    let page = kit::files::page("planning.md");
    for line in ran.out().lines() {
        assert!(page.contains(line), "docs/planning.md lacks {line}");
    }
}

#[test]
fn a_scheduled_module_is_written_in_the_planned_order() {
    let starts = "g1s = (f32[512,4096], f32[4096,4096]) all-gather-start(w1), replica_groups={}, dimensions={0}\n  g1 = \
                  f32[4096,4096] all-gather-done(g1s)";
    let text = MODULE
        .replace("replica_count=8", "is_scheduled=true, replica_count=8")
        .replace("g1 = f32[4096,4096] all-gather(w1), replica_groups={}, dimensions={0}", starts);
    let folder = Folder::with("step.hlo", &text);
    let ran = folder
        .run("plan step.hlo --profile h100 --json -o planned.hlo")
        .expect(0, &["proven equal", "buckets are kept, and so is the order of all but launches"]);
    let planned = folder.read("planned.hlo");
    let place = |name: &str| planned.find(&format!("  {name} = ")).unwrap_or_else(|| panic!("{name}: {planned}"));
    assert!(place("g1s") < place("d0") && place("d0") < place("g1") && place("g0") < place("d0"), "{planned}");
    // What is written takes what the plan says.
    let again = folder.run("plan planned.hlo --profile h100 --as-written --json").expect(0, &[]);
    let time =
        |out: &str, run: &str| serde_json::from_str::<serde_json::Value>(out).unwrap()[run]["makespan_ns"].clone();
    assert_eq!(time(ran.out(), "planned"), time(again.out(), "as_written"));
    folder.run("verify step.hlo planned.hlo --launches-may-move").expect(0, &[]);
}

#[test]
fn messages_in_loops_are_refused_before_times_are_asked_for() {
    let module = kit::root().join("fixtures/hlo/gpu_ar_while_body.pre_combine.hlo");
    let folder = Folder::with("step.hlo", MODULE);
    folder
        .run(&format!("plan {} --profile h100", module.display()))
        .expect(1, &["the body of a loop, a branch or a call", "Unroll or inline"]);
}
