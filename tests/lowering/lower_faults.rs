//! Faults planted into programs: the checker refuses each.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::{CommOp, Made, Operand, Program, Segment, StepKind};

const TEXT: &str = "x = input f32[5]; y = input f32[3]; p = input f32[4,2]; q = input f32[2,3]; u = input f32[6]\n\
    a = relu(x); b = neg(y)\ng = all_gather(a, G0:2); h = all_gather(b, G0:2)\n\
    r = reduce_scatter(p, sum, G0:2); t = reduce_scatter(q, sum, G0:2)\nwr = wait(r); wt = wait(t)\n\
    w = wait(g); v = wait(h)\ns = all_reduce(relu(u), sum, G1:2)\nz = sin(x); ws = wait(s)\n\
    output(w, v, neg(wr), neg(wt), cos(ws), z)";

fn source() -> Graph {
    let mut graph = bucketeer::ir::text::parse(TEXT).unwrap();
    let pipeline = "bucket-reduce-scatter{cap=none},bucket-all-gather{cap=none}";
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    graph
}

/// Plants a fault, which must be refused for the reason.
fn refuses(wanted: &str, plant: impl FnOnce(&mut Program)) {
    let graph = source();
    let (mut program, _) = lower(&graph, &LowerOptions { realise: false, ..LowerOptions::default() }).unwrap();
    assert!(matches!(prove(&graph, &program), ProgramVerdict::Equal(_)), "{:?}", prove(&graph, &program));
    plant(&mut program);
    match prove(&graph, &program) {
        ProgramVerdict::Different(fault) => {
            assert!(fault.to_string().contains(wanted), "refused, but for another reason than `{wanted}`: {fault}");
        }
        other => panic!("not refused: {other:?}\n{program}"),
    }
}

fn packs(program: &mut Program) -> Vec<&mut Vec<Segment>> {
    let pack = |kind| match kind {
        &mut StepKind::Pack(ref mut moves) if moves.segments.len() > 1 => Some(&mut moves.segments),
        _ => None,
    };
    program.steps.iter_mut().filter_map(|step| pack(&mut step.kind)).collect()
}

fn step(program: &Program, wanted: impl Fn(&StepKind) -> bool) -> usize {
    program.steps.iter().position(|step| wanted(&step.kind)).unwrap()
}

fn compute(program: &Program, target: &str) -> usize {
    step(program, |kind| matches!(kind, StepKind::Compute(it) if &*program.calls[it.call as usize].target == target))
}

fn launch(program: &Program, name: &str) -> usize {
    step(program, |kind| matches!(kind, StepKind::Collective(it) if it.op.name() == name))
}

#[test]
fn a_wrong_offset_in_a_pack() {
    refuses("has to hold", |program| packs(program)[0][1].to.offset += 4);
}

#[test]
fn a_segment_from_another_members_place() {
    refuses("has to hold", |program| {
        let unpack = program.steps.iter_mut().find_map(|step| match &mut step.kind {
            StepKind::Unpack(moves) => Some(moves),
            _ => None,
        });
        // The same shapes, so that only the values tell: both results from the first one's place.
        let segments = &mut unpack.unwrap().segments;
        segments[1].from.offset = 0;
    });
}

#[test]
fn a_segment_left_out() {
    refuses("has to hold", |program| {
        packs(program)[0].pop();
    });
}

#[test]
fn a_slot_that_two_members_share() {
    refuses("has to hold", |program| {
        let segments = packs(program).remove(0);
        segments[1].to.offset = segments[0].to.offset;
    });
}

#[test]
fn a_launch_that_does_not_wait_for_its_pack() {
    refuses("nothing orders that behind", |program| {
        let launch = launch(program, "all_gather");
        program.steps[launch].after.clear();
    });
}

#[test]
fn a_wait_that_is_not_after_its_launch() {
    refuses("", |program| {
        let wait = step(program, |kind| matches!(kind, StepKind::Wait(_)));
        program.steps[wait].after.clear();
    });
}

#[test]
fn a_wait_left_out() {
    refuses("", |program| {
        let wait = step(program, |kind| matches!(kind, StepKind::Wait(_)));
        let other = program.steps[compute(program, "sin")].clone();
        program.steps[wait] = other;
    });
}

#[test]
fn buffers_that_overlap_while_both_are_in_use() {
    refuses("", |program| {
        let StepKind::Compute(made) = &program.steps[compute(program, "sin")].kind else { panic!() };
        let Made::Tensor(view) = made.made else { panic!() };
        let result = program.buffers[view.buffer.0 as usize].place;
        let reduced = program.steps[launch(program, "all_reduce")].kind.clone();
        let StepKind::Collective(reduced) = reduced else { panic!() };
        let buffer = reduced.parts[0].send.buffer.0 as usize;
        program.buffers[buffer].place = result;
    });
}

#[test]
fn a_buffer_on_top_of_one_in_flight() {
    refuses("may still be in use", |program| {
        let reduced = program.steps[launch(program, "all_reduce")].kind.clone();
        let StepKind::Collective(reduced) = reduced else { panic!() };
        let place = program.buffers[reduced.parts[0].send.buffer.0 as usize].place;
        let StepKind::Compute(made) = &program.steps[compute(program, "sin")].kind else { panic!() };
        let Made::Tensor(view) = made.made else { panic!() };
        program.buffers[view.buffer.0 as usize].place = place;
    });
}

#[test]
fn another_reduction() {
    refuses("its node is a", |program| {
        let at = launch(program, "all_reduce");
        let StepKind::Collective(it) = &mut program.steps[at].kind else { panic!() };
        it.op = CommOp::AllReduce(bucketeer::ir::ReduceOp::Max);
    });
}

#[test]
fn another_group() {
    refuses("group", |program| program.groups.swap(0, 1));
}

#[test]
fn launches_in_another_order() {
    refuses("", |program| {
        let (a, b) = (launch(program, "all_gather"), launch(program, "reduce_scatter"));
        let (low, high) = (a.min(b), a.max(b));
        let moved = program.steps[high].clone();
        program.steps[high] = program.steps[low].clone();
        program.steps[low] = moved;
    });
}

#[test]
fn an_operand_of_another_value() {
    refuses("has to hold", |program| {
        let at = compute(program, "sin");
        let StepKind::Compute(it) = &mut program.steps[at].kind else { panic!() };
        let Operand::Tensor(view) = &mut it.operands[0] else { panic!() };
        let u = match &program.inputs[4].value {
            Operand::Tensor(view) => view.buffer,
            _ => panic!(),
        };
        view.buffer = u;
    });
}

#[test]
fn another_operator_and_another_output() {
    refuses("another operator", |program| {
        let at = compute(program, "sin");
        let other = compute(program, "cos");
        let StepKind::Compute(it) = &program.steps[other].kind else { panic!() };
        let call = it.call;
        let StepKind::Compute(it) = &mut program.steps[at].kind else { panic!() };
        it.call = call;
    });
    refuses("has to hold", |program| {
        let last = program.outputs.values.len() - 1;
        let Operand::Tensor(x) = program.inputs[0].value.clone() else { panic!() };
        program.outputs.values[last] = Operand::Tensor(x);
    });
}

#[test]
fn an_input_that_is_overwritten() {
    refuses("", |program| {
        let at = compute(program, "sin");
        let Operand::Tensor(x) = program.inputs[0].value.clone() else { panic!() };
        let StepKind::Compute(it) = &mut program.steps[at].kind else { panic!() };
        it.made = Made::Tensor(x);
        let last = program.outputs.values.len() - 1;
        program.outputs.values[last] = Operand::Tensor(x);
    });
}

#[test]
fn a_gather_whose_slot_is_another_ranks() {
    refuses("overlap", |program| {
        let at = launch(program, "all_gather");
        let StepKind::Collective(it) = &mut program.steps[at].kind else { panic!() };
        it.parts[0].send.rank_bytes = 0;
    });
}

#[test]
fn a_result_over_an_operand_and_a_pack_from_its_own_buffer() {
    refuses("lies over what it reads", |program| {
        let at = compute(program, "cos");
        let StepKind::Compute(it) = &mut program.steps[at].kind else { panic!() };
        let Operand::Tensor(read) = it.operands[0] else { panic!() };
        it.made = Made::Tensor(read);
        let last = program.outputs.values.len() - 2;
        program.outputs.values[last] = Operand::Tensor(read);
    });
    refuses("move in any order", |program| {
        let segments = packs(program).remove(0);
        segments[1].from = segments[0].to;
        segments[1].to.layout = segments[0].to.layout;
        segments[1].to.offset = segments[0].to.offset;
    });
}

#[test]
fn members_that_were_not_merged_into_it() {
    refuses("other members than its node", |program| {
        let at = launch(program, "all_gather");
        let StepKind::Collective(it) = &mut program.steps[at].kind else { unreachable!() };
        assert_eq!(it.members, ["g".into(), "h".into()]);
        it.members.swap(0, 1);
    });
}
