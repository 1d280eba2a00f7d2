//! Stage `lower`: programs of the sketches, as they are and bucketed. Each is proven against its graph.

use super::{Buckets, GATHER, beside, bucketed};
use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::{BufferKind, Collective, Operand, Path, Program, StepKind};
use kit::rewrite::{read, sketch};

fn proven(graph: &Graph, options: &LowerOptions) -> Program {
    let (program, _) = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    match prove(graph, &program) {
        ProgramVerdict::Equal(_) => program,
        other => panic!("{other:?}\n{program}"),
    }
}

/// The program of a text as it is, and of the same with these buckets.
#[track_caller]
fn both(text: &str, buckets: Buckets<'_>) -> [Program; 2] {
    [read(text), bucketed(text, buckets)].map(|graph| proven(&graph, &LowerOptions::default()))
}

fn launches(program: &Program) -> Vec<&Collective> {
    let steps = program.steps.iter();
    steps
        .filter_map(|step| match &step.kind {
            StepKind::Collective(collective) => Some(collective),
            _ => None,
        })
        .collect()
}

#[test]
fn alias_1_the_input_of_a_reduce_is_copied_and_never_written() {
    let [program, _] = both(&sketch("alias-1"), &[]);
    let part = launches(&program)[0].parts[0];
    assert_eq!(program.buffer(part.recv.buffer).kind, BufferKind::Device);
}

#[test]
fn alias_2_and_alias_3_and_alias_4_hold_for_programs() {
    for id in ["alias-2", "alias-3"] {
        both(&sketch(id), &[]);
        both(&beside(id, GATHER), &[&["g", "h"]]);
    }
    let [_, program] = both(&sketch("alias-4"), &[&["s0", "s1"]]);
    let buffer = |value: &Operand| match value {
        Operand::Tensor(view) => view.buffer,
        _ => panic!("outputs are tensors"),
    };
    let outputs: Vec<_> = program.outputs.values.iter().map(buffer).collect();
    assert_ne!(outputs[0], outputs[1], "no two outputs share memory");
}

#[test]
fn aln_1_members_and_the_chunk_lie_at_multiples_of_align_bytes() {
    let graph = bucketed(&sketch("aln-1"), &[&["g0", "g1"]]);
    for (align_bytes, second, chunk) in [(16, 16, 32), (1, 10, 16), (4, 12, 20), (64, 64, 128)] {
        let program = proven(&graph, &LowerOptions { align_bytes, ..LowerOptions::default() });
        let StepKind::Pack(pack) = &program.steps[0].kind else { panic!("{program}") };
        assert_eq!(pack.segments.iter().map(|segment| segment.to.offset).collect::<Vec<_>>(), [0, second]);
        assert_eq!(launches(&program)[0].parts[0].send.bytes, chunk);
        let padding: u64 = pack.zeros.iter().map(|range| range.bytes).sum();
        assert_eq!(padding, chunk - 16, "of 16 bytes of payload");
    }
}

#[test]
fn dt_3_reductions_keep_their_dtype_and_a_sum_of_bools_is_a_maximum() {
    let [program, _] = both(&sketch("dt-3"), &[]);
    let found: Vec<_> = launches(&program).iter().map(|it| (it.op.name(), it.op.reduce_op(), it.dtype)).collect();
    use bucketeer::ir::{DType, ReduceOp};
    assert_eq!(found[1], ("all_reduce", Some(ReduceOp::Max), DType::Bool));
    // Never as bytes: a backend without it refuses by name.
    assert_eq!(found[2], ("reduce_scatter", Some(ReduceOp::Sum), DType::F8E4m3fn));
}

#[test]
fn inpl_1_a_gather_from_its_own_output_goes_through_a_copy() {
    let text = "own = input f32[4]; buf = input f32[8]\ns = slice(buf, 0, 4)\ncopy_(s, own)\n\
                g = all_gather(s, out=buf, G0:2); w = wait(g)\noutput(neg(w))";
    let program = proven(&read(text), &LowerOptions::default());
    let part = launches(&program)[0].parts[0];
    assert_ne!(part.send.buffer, part.recv.buffer);
    let error = lower(&read(&sketch("inpl-1")), &LowerOptions::default()).expect_err("no rank is in a program");
    assert!(error.to_string().contains("narrow"), "{error}");
}

#[test]
fn life_1_and_life_2_buffers_in_flight_are_not_reused() {
    both(&sketch("life-1"), &[&["s0", "s1", "s2", "s3", "s4", "s5"]]);
    both(&sketch("life-2"), &[]);
    both(&beside("life-2", "all_reduce(extra, sum, G0:2)"), &[&["s", "h"]]);
}

#[test]
fn num_1_and_str_1_are_packed_in_logical_order() {
    both(&sketch("num-1"), &[&["r0", "r1"]]);
    both(&beside("str-1", GATHER), &[&["g", "h"]]);
    let [program, _] = both(&sketch("str-1"), &[]);
    assert!(matches!(program.steps[0].kind, StepKind::Pack(_)), "{program}");
}

#[test]
fn ovf_1_sizes_past_4_gib_have_offsets() {
    let [_, program] = both(&sketch("ovf-1"), &[&["g0", "g1"]]);
    let part = launches(&program)[0].parts[0];
    assert_eq!((part.send.bytes, part.recv.bytes), (6_000_000_000, 12_000_000_000));
    let StepKind::Pack(pack) = &program.steps[0].kind else { panic!("{program}") };
    assert_eq!(pack.segments[1].to.offset, 3_000_000_000);
}

#[test]
fn pad_1_an_all_reduce_that_the_group_does_not_divide_is_one_launch_of_its_own_size() {
    both(&beside("pad-1", "all_reduce(extra, sum, G0:6)"), &[&["s", "h"]]);
    let [program, _] = both(&sketch("pad-1"), &[]);
    assert_eq!(launches(&program)[0].parts[0].recv.bytes, 32);
}

#[test]
fn pad_2_scatters_are_packed_rank_major() {
    let graph = bucketed(&sketch("pad-2"), &[&["r0", "r1"]]);
    let program = proven(&graph, &LowerOptions { align_bytes: 1, ..LowerOptions::default() });
    let StepKind::Pack(pack) = &program.steps[0].kind else { panic!("{program}") };
    let rows = |at: usize| program.layout(pack.segments[at].to.layout).strides[0];
    assert_eq!((rows(0), rows(1), pack.segments[1].to.offset), (7, 7, 16));
    assert_eq!(launches(&program)[0].parts[0].count, 14);
}

#[test]
fn sym_1_registered_tensors_are_copied_or_written_into_comm_buffers_never_relabelled() {
    let options = LowerOptions { one_shot_max_bytes: 256, ..LowerOptions::default() };
    let program = proven(&read(&sketch("sym-1")), &options);
    for launch in launches(&program) {
        assert_eq!(launch.path, Path::OneShot);
        assert_eq!(program.buffer(launch.parts[0].send.buffer).kind, BufferKind::Comm);
    }
    let of = |name: &str| program.steps.iter().filter(|step| &*step.node == name).count();
    // `x` is packed and launched; `y` is written in place and launched.
    assert_eq!((of("s"), of("t")), (2, 1));
    assert_eq!(program.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Input).count(), 1);
}

#[test]
fn sym_2_the_gate_is_inclusive_and_every_size_has_one_path() {
    let options = LowerOptions { one_shot_max_bytes: 1024, ..LowerOptions::default() };
    let program = proven(&read(&sketch("sym-2")), &options);
    let paths: Vec<_> = launches(&program).iter().map(|it| (it.parts[0].send.bytes, it.path)).collect();
    assert_eq!(paths, [(1024, Path::OneShot), (1040, Path::Normal), (1000, Path::OneShot)]);
}

#[test]
fn hook_1_compressed_transport_is_refused_by_name() {
    let error = lower(&read(&sketch("hook-1")), &LowerOptions::default()).expect_err("it is not lowered yet");
    assert!(error.to_string().contains("transport=bf16"), "{error}");
}
