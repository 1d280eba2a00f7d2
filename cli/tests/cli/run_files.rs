//! `run` with inputs from files and outputs to files.

use crate::support::Folder;

/// Makes `w` and `v` of `a` and `b`.
const FIRST: &str = "\
a = input f32[64]; b = input bf16[8]
s = all_reduce(a, avg, G:2) : f32[64]; w = wait(s) : f32[64]
g = all_gather(b, G:2) : bf16[16]; v = wait(g) : bf16[16]
output(w, v, w)
";

/// Takes what [`FIRST`] makes.
const SECOND: &str = "\
w = input f32[64]; v = input bf16[16]
s = reduce_scatter(w, sum, G:2) : f32[32]; x = wait(s) : f32[32]
output(x, v)
";

fn folder() -> Folder {
    let folder = Folder::with("first.bkt", FIRST);
    folder.write("second.bkt", SECOND);
    folder
}

#[test]
fn outputs_of_a_run_are_inputs_of_the_next() {
    let folder = folder();
    folder.run("run first.bkt --outputs made{rank}.safetensors").expect(0, &[]);
    let ran = folder.run("run second.bkt --inputs made{rank}.safetensors --outputs end{rank}.safetensors").expect(
        0,
        &["note: made0.safetensors: 1 tensor is not an input of the graph: w.2", "note: made1.safetensors: 1 tensor"],
    );
    assert!(ran.out().contains("2 outputs on each rank, equal bit for bit"), "{}", ran.out());
    let files =
        ["end0.safetensors", "end1.safetensors", "first.bkt", "made0.safetensors", "made1.safetensors", "second.bkt"];
    assert_eq!(folder.files(), files);
    // What travels unchanged is the same in both.
    let tail = |name: &str, bytes: usize| {
        let file = std::fs::read(folder.path(name)).unwrap();
        file[file.len() - bytes..].to_vec()
    };
    assert_eq!(tail("end0.safetensors", 32), tail("made0.safetensors", 32));
    assert_ne!(tail("end0.safetensors", 32), vec![0; 32]);
    // The same again.
    let made = std::fs::read(folder.path("made0.safetensors")).unwrap();
    folder.run("run first.bkt --repeat 2 --outputs made{rank}.safetensors").expect(0, &[]);
    assert_eq!(std::fs::read(folder.path("made0.safetensors")).unwrap(), made);
}

#[test]
fn a_name_without_a_rank_is_read_by_all_and_written_by_one() {
    let folder = folder();
    folder.run("run first.bkt --outputs made{rank}.safetensors").expect(0, &[]);
    let ran = folder.run("run second.bkt --inputs made0.safetensors").expect(0, &["note: made0.safetensors"]);
    assert_eq!(ran.talk().matches("note:").count(), 1, "{}", ran.talk());
    let said = ["--outputs out.safetensors: the files of 2 ranks need `{rank}` in it"];
    folder.run("run second.bkt --outputs out.safetensors").expect(2, &said);
    folder.write("one.bkt", "x = input f32[4]\noutput(relu(x))\n");
    folder.run("run one.bkt --outputs out.safetensors").expect(0, &[]);
    assert!(folder.files().contains(&"out.safetensors".to_owned()));
}

#[test]
fn files_that_do_not_fit_are_refused_and_nothing_is_written() {
    let folder = folder();
    folder.run("run first.bkt --outputs made{rank}.safetensors").expect(0, &[]);
    let run = "run second.bkt --inputs made{rank}.safetensors --outputs end{rank}.safetensors";
    folder.write("second.bkt", SECOND.replace("v = input bf16[16]", "v = input f16[16]"));
    folder.run(run).expect(1, &["tensor `v`: found bf16[16], expected f16[16]\n  made0.safetensors"]);
    folder.write("second.bkt", SECOND.replace("v = input bf16[16]", "v = input bf16[16]; z = input f32[2]"));
    folder.run(run).expect(1, &["it lacks tensor `z`; --fill-missing makes them from the seed\n  made0.safetensors"]);
    folder.run(&format!("{run} --fill-missing")).expect(0, &[]);
    std::fs::remove_file(folder.path("end0.safetensors")).unwrap();
    std::fs::remove_file(folder.path("end1.safetensors")).unwrap();
    folder.write("second.bkt", SECOND);
    let whole = std::fs::read(folder.path("made1.safetensors")).unwrap();
    folder.write("made1.safetensors", &whole[..whole.len() - 1]);
    folder.run(run).expect(1, &["of its bytes, expected", "\n  made1.safetensors"]);
    std::fs::remove_file(folder.path("made1.safetensors")).unwrap();
    folder.run(run).expect(2, &["cannot read made1.safetensors: "]);
    assert!(
        !folder.files().iter().any(|name| name.starts_with("end") || name.starts_with('.')),
        "{:?}",
        folder.files()
    );
}

#[test]
fn outputs_are_written_for_all_ranks_or_for_none() {
    let folder = folder();
    folder.write("made0.safetensors", "old");
    std::fs::create_dir(folder.path("made1.safetensors")).unwrap();
    folder.run("run first.bkt --outputs made{rank}.safetensors").expect(2, &["cannot write made1.safetensors"]);
    assert_eq!(folder.read("made0.safetensors"), "old");
    assert_eq!(folder.files(), ["first.bkt", "made0.safetensors", "made1.safetensors", "second.bkt"]);
}

#[test]
fn outputs_that_no_file_can_hold_are_refused_before_anything_runs() {
    let folder = Folder::with("g.bkt", "x = input c128[4]\noutput(wait(all_reduce(x, sum, G:2)))\n");
    let said = ["of dtype c128, which a .safetensors file cannot hold"];
    folder.run("run g.bkt --outputs o{rank}.safetensors").expect(2, &said);
    folder.run("run g.bkt --backend fake --outputs o{rank}.safetensors").expect(2, &["--outputs", "fake"]);
    folder.run("run g.bkt --fill-missing").expect(2, &["--inputs"]);
}

#[test]
fn files_have_to_fit_the_sizes_of_a_graph_that_is_scaled_down() {
    let text = "x = input f32[4000000000]\noutput(wait(all_reduce(x, sum, G:2)))\n";
    let folder = Folder::with("g.bkt", text);
    folder.run("run g.bkt --shrink --outputs o{rank}.safetensors").expect(0, &[]);
    folder.write("in.bkt", "x = input f32[5]\noutput(x)\n");
    folder.run("run in.bkt --outputs in.safetensors").expect(0, &[]);
    let said = ["tensor `x`: found f32[5], expected f32[", "; --shrink scales the graph's sizes down"];
    folder.run("run g.bkt --shrink --inputs in.safetensors").expect(1, &said);
}
