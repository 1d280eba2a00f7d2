//! `run` on inputs that were found by trying; see `tests/found`.
#![cfg(target_os = "linux")]

use crate::support::Folder;
use std::path::Path;

/// A folder with one of the inputs.
fn found(name: &str) -> Folder {
    let path = kit::root().join("tests/found").join(name);
    let folder = Folder::with(name, std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    folder.write("groups.json", "{\"0\": [[0, 1]]}");
    folder
}

/// The data of a .safetensors file, without its header.
fn data(folder: &Folder, name: &str) -> Vec<u8> {
    let file = std::fs::read(folder.path(name)).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].to_vec()
}

#[test]
fn d_h10_outputs_in_a_tuple_are_the_graphs_own() {
    let folder = found("D-H10.hlo");
    folder.run("run D-H10.hlo --outputs made{rank}.safetensors").expect(0, &[]);
    // The same sums of the same inputs, without the tuple.
    let plain = "p0 = input f32[4, 2, 3]; p1 = input f32[5]; p2 = input f32[3, 2]\n\
                 r0 = all_reduce(p0, sum, G:2); r1 = all_reduce(p1, sum, G:2); r2 = all_reduce(p2, sum, G:2)\n\
                 output(wait(r0), wait(r1), wait(r2))\n";
    folder.write("plain.bkt", plain);
    folder.run("run plain.bkt --outputs plain{rank}.safetensors").expect(0, &[]);
    for rank in 0..2 {
        let made = data(&folder, &format!("made{rank}.safetensors"));
        assert_eq!(made.len(), 140);
        assert_eq!(made, data(&folder, &format!("plain{rank}.safetensors")), "rank {rank}");
    }
}

#[test]
fn d_h10_outputs_of_operators_that_are_not_known_are_refused_by_name_and_counted() {
    let graph = "x = input f32[4]\ne = aten.erfinv.default(x) : f32[4]\nf = aten.erfinv.default(e) : f32[4]\n\
                 s = all_reduce(f, sum, G:2) : f32[4]; w = wait(s) : f32[4]\noutput(w)\n";
    let folder = Folder::with("g.bkt", graph);
    let ran = folder.run("run g.bkt").expect(0, &[]);
    let line = "  numbers made up in 2 calls of each run: the evaluator does not know aten.erfinv.default (`e`), so the \
                outputs are not those of the graph\n";
    assert!(ran.out().contains(line), "{}", ran.out());
    let said = ["--outputs: the evaluator does not know aten.erfinv.default (`e`)", "nothing is written"];
    folder.run("run g.bkt --outputs made{rank}.safetensors").expect(2, &said);
    assert_eq!(folder.files(), ["g.bkt"]);
    folder.run("run g.bkt --outputs made{rank}.safetensors --made-up").expect(0, &[]);
    assert!(folder.files().contains(&"made1.safetensors".to_owned()));
    // So are constants of the module: no graph holds their values.
    let constant = "class GraphModule(torch.nn.Module):\n    def forward(self, x: \"f32[4]\"):\n        \
                    c: \"f32[4]\" = self._tensor_constant0\n        \
                    y: \"f32[4]\" = torch.ops.aten.add.Tensor(x, c)\n        return (y,)\n";
    folder.write("c.txt", constant);
    folder.run("run c.txt --outputs c.safetensors").expect(2, &["`self._tensor_constant0`, a constant that the graph"]);
    assert!(!folder.files().contains(&"c.safetensors".to_owned()));
}

#[test]
fn a_alias_inflight_sends_the_value_at_the_launch_on_every_backend() {
    let folder = found("A-alias_inflight.txt");
    let run = "run A-alias_inflight.txt --groups groups.json";
    folder.run(&format!("{run} --outputs local{{rank}}.safetensors")).expect(0, &[]);
    // A launch that takes its time, on a stream of its own.
    let library = kit::fakegpu::path();
    let mut variables = vec![("BUCKETEER_CACHE", Path::new(""))];
    variables.extend(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB", "BUCKETEER_NVRTC_LIB"].map(|name| (name, library)));
    variables.extend([("FAKEGPU_DELAY_US", Path::new("200000")), ("FAKEGPU_DELAY_STREAM", Path::new("2"))]);
    let line = format!("launch --nproc 2 -- {run} --backend nccl --outputs nccl{{rank}}.safetensors");
    folder.run_in(variables, &line).expect(0, &[]);
    // `t` is what the others are made of: its copies gathered, and it with 5 added.
    folder.write("t.bkt", "t = input f32[4]\ng = all_gather(t, G:2); w = wait(g)\noutput(w, add(t, 5.0))\n");
    folder.run("run t.bkt --outputs t{rank}.safetensors").expect(0, &[]);
    for rank in 0..2 {
        let expected = data(&folder, &format!("t{rank}.safetensors"));
        for name in ["local", "nccl"] {
            assert_eq!(data(&folder, &format!("{name}{rank}.safetensors")), expected, "{name}, rank {rank}");
        }
    }
}

#[test]
fn a_two_devices_one_launch_is_refused_with_both_devices_named() {
    let said = ["`a` and `b` lie on cuda:0 and cuda:1; one launch takes tensors of one device"];
    found("A-two_devices_one_launch.txt").run("run A-two_devices_one_launch.txt --groups groups.json").expect(2, &said);
}

#[test]
fn g_huge_group_is_an_error_on_every_backend() {
    let folder = found("G-huge_group.bkt");
    let most = "--max-memory 1000000TiB";
    let said = ["group `G`: it has 4000000000 ranks; at most 65536 can run"];
    folder.run("run G-huge_group.bkt").expect(2, &said);
    folder.run(&format!("run G-huge_group.bkt {most}")).expect(2, &said);
    folder.run(&format!("run G-huge_group.bkt {most} --backend fake")).expect(2, &said);
}

#[test]
fn g_huge_group_is_an_error_of_check_ranks_too() {
    let said = ["group `G`: it has 4000000000 ranks; at most 1048576 can be compared"];
    found("G-huge_group.bkt").run("check-ranks G-huge_group.bkt").expect(2, &said);
}

#[test]
fn run_without_repeat_has_no_ratios_for_programs_that_are_the_same() {
    let one = "x = input f32[4]\ns = all_reduce(x, sum, G:2) : f32[4]; w = wait(s) : f32[4]\noutput(w)\n";
    let ran = Folder::with("g.bkt", one).run("run g.bkt").expect(0, &[]);
    assert!(ran.out().contains("  both are the same program: nothing was bucketed"), "{}", ran.out());
    assert!(!ran.out().contains("over bucketed"), "{}", ran.out());
}

#[test]
fn under_launch_every_rank_writes_its_flight_record_before_it_is_ended() {
    let graph = "x = input f32[4]\ns = all_reduce(x, sum, G:4) : f32[4]; w = wait(s) : f32[4]\noutput(w)\n";
    let folder = Folder::with("g.bkt", graph);
    let library = kit::fakegpu::path();
    let mut variables = vec![("BUCKETEER_CACHE", Path::new(""))];
    variables.extend(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB", "BUCKETEER_NVRTC_LIB"].map(|name| (name, library)));
    // The communicators fail after the launch: the first rank that ends must not take the others' records with it.
    variables.push(("FAKEGPU_FAULT", Path::new("ncclAllReduce:1=late:6")));
    let line = "launch --nproc 4 -- run g.bkt --backend nccl --timeout 20 --flight-records flight";
    folder.run_in(variables, line).expect(2, &[" failed first: exit code 2"]);
    for rank in 0..4 {
        let record = folder.read(&format!("flight/flight-rank{rank}.json"));
        assert!(record.contains("all_reduce"), "rank {rank}: {record}");
    }
}
