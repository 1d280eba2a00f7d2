//! Stage `read`.

use super::{rewrite, rewrite_graph};
use bucketeer::ir::{GlobalRank, Variant, verify};
use bucketeer::passes::Pipeline;
use bucketeer::passes::bucketing::Reason;
use bucketeer_formats::{Document, GroupsFile};
use kit::rewrite::{ALL, read, read_fx, sketch};

#[test]
fn dce_1_a_collective_without_a_reader_is_still_launched_and_waited_for() {
    let done = rewrite(&sketch("dce-1"), ALL, &[]);
    assert_eq!((done.count("all_gather"), done.count("all_reduce")), (1, 1));
    assert!(done.place("g") < done.place("w") && done.place("w") < done.place("output"));
    // Merged, it still travels.
    let text = "a = input f32[4]; b = input f32[4]\ng = all_gather(a, G0:2); w = wait(g)\n\
                h = all_gather(b, G0:2); v = wait(h)\noutput(v)";
    rewrite(text, ALL, &[&["g", "h"]]);
}

#[test]
fn nowait_1_a_read_of_a_pending_value_is_an_error_that_names_both() {
    let graph = read(&sketch("nowait-1"));
    let error = verify(&graph).unwrap_err().to_string();
    assert!(error.contains("`g`") && error.contains("`c0`") && !error.contains("`v`"), "{error}");
    let mut graph = graph;
    let error = ALL.parse::<Pipeline>().unwrap().run(&mut graph).unwrap_err().to_string();
    assert!(error.contains("not well-formed") && error.contains("`c0`"), "{error}");
}

const READ_2: &str = r#"class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4][1]cpu", y: "f32[4][1]cpu", z: "f32[4][1]cpu"):
        a1: "f32[4][1]cpu" = torch.ops.c10d_functional.all_reduce.default(x, 'sum', 'tag0', [0, 1], 2)
        a2: "f32[4][1]cpu" = torch.ops._c10d_functional.all_reduce.default(y, 'sum', '0')
        a3: "f32[4][1]cpu" = torch.ops._c10d_functional.all_reduce_.default(z, 'sum', '0')
        w1: "f32[4][1]cpu" = torch.ops.c10d_functional.wait_tensor.default(a1)
        w2: "f32[4][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(a2)
        w3: "f32[4][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(a3)
        return (w1, w2, w3)
"#;

#[test]
fn read_2_old_new_and_in_place_spellings_are_read() {
    let graph = read_fx(READ_2);
    let found: Vec<_> = graph.order().iter().filter_map(|&id| graph.collective(id)).collect();
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|collective| collective.kind.name() == "all_reduce"));
    assert_eq!(
        found.iter().map(|c| c.variant).collect::<Vec<_>>(),
        [Variant::Functional, Variant::Functional, Variant::InPlace]
    );
    // Nothing says that '0' holds the ranks of a1.
    assert_ne!(found[0].group, found[1].group);
    let members: Vec<_> = graph.group(found[0].group).members.clone();
    assert_eq!(members, [[GlobalRank(0), GlobalRank(1)]]);
    let done = rewrite_graph(graph, ALL, &[Default::default()], &[]);
    let expected = Reason::KeyDiffers { from: "a1".to_owned(), fields: vec!["group"] };
    assert_eq!(done.reason("a2"), &expected);
}

#[test]
fn read_2_a_group_named_by_its_ranks_is_the_group_that_is_known_to_have_them() {
    // Not by the harness, which asks that members keep the name of their group.
    let merged = |groups: &str| {
        let mut graph = read_fx(READ_2);
        GroupsFile::parse(groups.as_bytes()).unwrap().apply(&mut graph).unwrap();
        let reports = ALL.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
        reports.iter().filter_map(|report| report.plan.as_ref()).flat_map(|plan| plan.names(&graph)).collect::<Vec<_>>()
    };
    assert_eq!(merged("{\"0\": [[0, 1]]}"), [["a1", "a2"]]);
    // On other ranks the group of that name is another one.
    assert!(merged("{\"0\": [[0, 1], [2, 3]]}").is_empty());
    assert!(merged("{\"0\": [[1, 2]]}").is_empty());
}

/// A module with these lines behind its parameters, in line 9 and on.
fn hlo(lines: &str) -> String {
    format!(
        "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\
         ENTRY main {{\n  %x = f32[8,4]{{0,1}} parameter(0)\n  %y = f32[8,4]{{1,0}} parameter(1)\n{lines}\n}}\n"
    )
}

#[test]
fn read_1_faulty_group_lists_are_one_error_each_with_its_place() {
    for (groups, problem) in [
        ("[2,2]<=[16]", "2 groups of 2 are 4 devices, but these sizes multiply to 16"),
        ("mesh['a'=2,'b'=2] {'zz'}", "the mesh has no axis `zz`"),
        ("{{0,1},{1,2}}", "device 1 is in these groups twice"),
    ] {
        let text = hlo(&format!("  %s = f32[8,4]{{0,1}} all-reduce(%x), replica_groups={groups}, to_apply=%add"));
        let error = Document::read(text.into_bytes()).map(drop).unwrap_err();
        assert_eq!(error.what(), problem);
        let place = error.place().unwrap();
        assert_eq!(place.line, 11);
        assert!(place.source_line.contains(groups) && place.column > 40, "{place:?}");
        assert!(error.expected().is_some());
    }
}

#[test]
fn lay_1_a_pinned_layout_and_none_stay_apart_and_are_kept() {
    let text = hlo("  %s = f32[8,4]{0,1} all-reduce(%x), constrain_layout=true, to_apply=%add\n  \
         %t = f32[8,4]{1,0} all-reduce(%y), to_apply=%add\n  \
         ROOT %o = (f32[8,4]{0,1}, f32[8,4]{1,0}) tuple(%s, %t)");
    let mut document = Document::read(text.clone().into_bytes()).unwrap();
    let pipeline: Pipeline = "bucket-all-reduce{cap=none,mode=coalesced}".parse().unwrap();
    let reports = pipeline.run(&mut document.graphs_mut()[0]).unwrap();
    assert!(reports.iter().all(|report| !report.changed()));
    assert_eq!(String::from_utf8(document.print()).unwrap(), text);
}
