//! Options: what each cap means, and that those that make no sense are refused at once, in one line.

use crate::support::{Folder, REDUCES};

#[track_caller]
fn refuse(options: &str, parts: &[&str]) {
    let folder = Folder::with("g.txt", REDUCES);
    let ran = folder.run(&format!("rewrite g.txt {options}")).expect(2, parts);
    assert_eq!((ran.out(), ran.talk().lines().count()), ("", 1), "{}", ran.talk());
}

/// How many all-reduces are left.
#[track_caller]
fn left(options: &str) -> usize {
    let folder = Folder::with("g.txt", REDUCES);
    folder.run(&format!("rewrite g.txt {options}")).expect(0, &[]).out().matches("= all_reduce(").count()
}

#[test]
fn caps_that_are_no_sizes_are_refused_with_option_and_value() {
    for value in ["0", "0MB", "-1", "-1MB", "true", "nan", "inf", "1.5", "25MX", "1MiB,0", "1MiB,", "99999999TiB"] {
        refuse(&format!("--all-reduce {value}"), &["error: --all-reduce `"]);
    }
    refuse("--all-gather 0", &["error: --all-gather `0`", "`off`"]);
    refuse("--first-bucket 0", &["error: --first-bucket `0`"]);
    refuse("--max-members 0", &["error: --max-members `0`"]);
    refuse("--max-members -3", &["error: --max-members `-3`"]);
    refuse("--max-member 0", &["error: --max-member `0`"]);
    refuse("--hint s0", &["error: --hint `s0`"]);
    refuse("--hint s0=-1", &["error: --hint `s0=-1`"]);
    refuse("--pipeline bucket-all-reduce{cap=0}", &["error: --pipeline `bucket-all-reduce{cap=0}`", "a cap of zero"]);
    refuse("--pipeline sort", &["no pass is called `sort`"]);
    refuse("--all-reduce 1MB --mixed-dtype bytes", &["--mixed-dtype `bytes`"]);
    refuse("--broadcast 1MB --mode coalesced", &["--mode `coalesced`"]);
}

#[test]
fn a_cap_of_none_is_no_limit_and_off_leaves_the_kind_alone() {
    assert_eq!(left("--all-reduce none"), 1);
    assert_eq!(left("--all-reduce unlimited"), 1);
    assert_eq!(left("--all-reduce off"), 5);
    assert_eq!(left("--all-gather 1MB"), 5);
}

#[test]
fn an_absurd_cap_is_taken_with_a_warning() {
    let folder = Folder::with("g.txt", REDUCES);
    folder
        .run("rewrite g.txt --all-reduce 12TiB")
        .expect(0, &["warning: a cap of 12TiB for all-reduce is above 1 TiB"]);
    let ran = folder.run("rewrite g.txt --all-reduce 1TiB").expect(0, &[]);
    assert!(!ran.talk().contains("above 1 TiB"));
}

#[test]
fn caps_hold_on_both_sides_of_a_sum() {
    assert_eq!(left("--all-reduce 24999999"), 3);
    assert_eq!(left("--all-reduce 25000000"), 2);
    assert_eq!(left("--all-reduce 25MB"), 2);
    assert_eq!(left("--all-reduce 10MB,45MB"), 2);
    assert_eq!(left("--all-reduce 45MB --first-bucket 10MB"), 2);
    assert_eq!(left("--all-reduce none --first-bucket 10MB"), 2);
    assert_eq!(left("--all-reduce none --max-members 2"), 3);
    assert_eq!(left("--all-reduce none --max-member 10MB"), 2);
    assert_eq!(left("--all-reduce none --max-member 9999999"), 3);
}

#[test]
fn without_caps_the_defaults_are_used_and_said() {
    let folder = Folder::with("g.txt", REDUCES);
    folder
        .run("rewrite g.txt")
        .expect(0, &["no cap given: reduce-scatter 256MiB, all-reduce 25MiB, all-gather 256MiB (defaults)"]);
    let ran = folder.run("rewrite g.txt --all-reduce 25MB").expect(0, &[]);
    assert!(!ran.talk().contains("no cap given"));
    folder.run("rewrite g.txt --all-reduce off").expect(0, &["no cap given: reduce-scatter 256MiB, all-gather 256MiB"]);
}

#[test]
fn filters_keep_collectives_out_and_warn_if_they_name_nothing() {
    assert_eq!(left("--all-reduce none --only s[12]"), 5);
    assert_eq!(left("--all-reduce none --only s0 --only s1"), 4);
    assert_eq!(left("--all-reduce none --except s4"), 2);
    assert_eq!(left("--all-reduce none --group other"), 5);
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("rewrite g.txt --group other --only z*").expect(0, &["the group `other`", "matches `z*`"]);
}

#[test]
fn a_pipeline_takes_the_place_of_the_options() {
    assert_eq!(left("--pipeline dedupe-waits,bucket-all-reduce{cap=25MB}"), 2);
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("rewrite g.txt --pipeline dedupe-waits --all-reduce 1MB").expect(2, &["cannot be used with"]);
    folder.run("rewrite g.txt --pipeline dedupe-waits --fsdp-only").expect(2, &["cannot be used with"]);
}

/// Two all-reduces in FX text.
const FX: &str = "class GraphModule(torch.nn.Module):
    def forward(self, y: \"f32[2]cpu\", z: \"f32[400]cpu\"):
        s1: \"f32[2]cpu\" = torch.ops._c10d_functional.all_reduce.default(y, 'sum', '0');  y = None
        s2: \"f32[400]cpu\" = torch.ops._c10d_functional.all_reduce.default(z, 'sum', '0');  z = None
        w1: \"f32[2]cpu\" = torch.ops._c10d_functional.wait_tensor.default(s1);  s1 = None
        w2: \"f32[400]cpu\" = torch.ops._c10d_functional.wait_tensor.default(s2);  s2 = None
        return (w1, w2)
";

#[test]
fn policy_xla_without_caps_works_on_fx_text_and_leaves_permutes_alone() {
    let folder = Folder::with("f.txt", FX);
    let ran = folder.run("rewrite f.txt --policy xla").expect(0, &["several permutes", "proven equal"]);
    assert_eq!(ran.out().matches("all_reduce_coalesced").count(), 1, "{}", ran.out());
    folder.run("rewrite f.txt --policy xla --permute none").expect(2, &["no word for several permutes"]);
}

#[test]
fn a_near_of_gathers_that_a_graph_lacks_nothing_is_said() {
    let folder = Folder::with("f.txt", FX);
    let ran = folder.run("rewrite f.txt --policy xla").expect(0, &["proven equal"]);
    assert!(!ran.talk().contains("gathers of several dtypes"), "{}", ran.talk());
    let ran = folder.run("rewrite f.txt --policy xla --all-reduce 100 --explain");
    ran.expect(0, &["s1 ", "cap reached: does not fit with `s2`"]);
}
