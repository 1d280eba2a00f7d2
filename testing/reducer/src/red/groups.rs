//! Ranks that disagree, run out of data, leave and come.

use super::{
    case, error_of, f32s, gradient, indices, make, make_recorded, mark, mean, numbers, pairs, place, read, whole_step,
};
use crate::Case;
use bucketeer_reducer::{
    Caps, JoinDivide, JoinOptions, Param, Reducer, ReducerError, ReducerOptions, RunOut, Scale, Tensor, Unused, Wire,
};
use bucketeer_types::{DType, GlobalRank};

type Change = fn(&mut Vec<Param>, &mut ReducerOptions);

/// What rank 2 of 3 has otherwise, on what ranks then disagree, and both sides.
const DISAGREEMENTS: [(Change, &str, &str, &str); 9] = [
    (|params, _| drop(params.pop()), "the number of parameters", "3", "2"),
    (|params, _| params[1] = Param::new("p1", &[3], DType::F32), "parameter 1", "p1 f32 [2]", "p1 f32 [3]"),
    (|params, _| params[1] = Param::new("p1", &[2, 1], DType::F32), "parameter 1", "p1 f32 [2]", "p1 f32 [2, 1]"),
    (
        |params, _| params[0] = Param::new("p0", &[2], DType::F32).with_strides(&[2]),
        "parameter 0",
        "p0 f32 [2]",
        "p0 f32 [2] strides [2]",
    ),
    (|params, _| params[2] = Param::new("p2", &[2], DType::Bf16), "parameter 2", "p2 f32 [2]", "p2 bf16 [2]"),
    (|params, _| params[2] = Param::new("q2", &[2], DType::F32), "parameter 2", "p2 f32 [2]", "q2 f32 [2]"),
    (
        |params, _| params[2] = Param::new("p2", &[2], DType::F32).sparse(),
        "parameter 2",
        "p2 f32 [2]",
        "p2 f32 [2] sparse",
    ),
    (|_, options| options.unused = Unused::Average, "the options", "unused Refuse", "unused Average"),
    (
        |_, options| options.wire = Some(Wire { dtype: DType::F16, divide: Default::default() }),
        "the options",
        "wire none",
        "wire f16",
    ),
];

pub fn cases() -> Vec<Case> {
    vec![
        case("red_33_every_rank_is_told_both_sides_of_what_ranks_disagree_on", 3, |rank| {
            for (change, what, first, other) in DISAGREEMENTS {
                let (mut params, mut options) = (pairs(3), ReducerOptions::default());
                if place(rank) == 2 {
                    change(&mut params, &mut options);
                }
                let error = error_of(Reducer::new(rank.backend.clone(), &rank.group, params, options));
                let ReducerError::Disagree { what: found, ranks, values } = error else { panic!("{error}") };
                assert_eq!((&*found, ranks), (what, (GlobalRank(0), GlobalRank(2))));
                assert!(values.0.contains(first) && values.1.contains(other), "{values:?}");
            }
            // And nothing is broken.
            whole_step(&mut make(rank, pairs(3), ReducerOptions::default()), place(rank), &[2, 1, 0]);
        }),
        case("caps_of_rank_0_hold_where_ranks_give_others", 2, |rank| {
            let caps = Caps::List(vec![[8, 16][place(rank)]]);
            let mut reducer = make(rank, pairs(4), ReducerOptions { caps, ..ReducerOptions::default() });
            assert_eq!(indices(&reducer), [[3], [2], [1], [0]]);
            let reduced = whole_step(&mut reducer, place(rank), &[3, 2, 1, 0]);
            assert_eq!(read(&reduced, 2, 2), Some(mean(2, 2, 2)));
        }),
        case("red_29_a_rank_that_ran_out_has_used_nothing", 2, |rank| {
            let options = ReducerOptions { unused: Unused::Average, ..ReducerOptions::default() };
            let mut reducer = make(rank, pairs(2), options);
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            let reduced = {
                let step = join.step(&mut []).unwrap();
                mark(&step, place(rank), &[1, 0]);
                step.finish().unwrap()
            };
            assert!(!reduced.is_kept(0));
            if place(rank) == 1 {
                for _ in 0..2 {
                    let step = join.step(&mut []).unwrap();
                    mark(&step, 1, &[1]);
                    let reduced = step.finish().unwrap();
                    assert!(reduced.is_kept(0));
                    assert_eq!(read(&reduced, 1, 2), Some(vec![36.0, 36.5]));
                }
            }
            join.end(&mut [], &mut []).unwrap();
        }),
        case("red_30_ranks_without_data_learn_whether_the_others_reduce", 3, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            let mut join = reducer.join(JoinOptions { divide: JoinDivide::ByLive, ..JoinOptions::default() }).unwrap();
            let mut reduced = 0;
            for round in 0..place(rank) * 2 {
                if round % 2 == 0 {
                    join.local_step(&mut []).unwrap().ready(0, &f32s(&[1.0, 2.0])).unwrap();
                } else {
                    let step = join.step(&mut []).unwrap();
                    step.ready(0, &f32s(&[1.0, 2.0])).unwrap();
                    assert_eq!(read(&step.finish().unwrap(), 0, 2), Some(vec![2.0, 4.0]));
                    reduced += 1;
                }
            }
            let joined = join.end(&mut [], &mut []).unwrap();
            assert_eq!(joined.shadowed_steps, 2 - reduced);
        }),
        case("ranks_of_which_some_reduce_and_some_do_not_are_told", 2, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            let error = match place(rank) {
                0 => error_of(join.step(&mut [])),
                _ => error_of(join.local_step(&mut [])),
            };
            assert!(error.to_string().contains("1 of the 2 ranks with data reduce this step"), "{error}");
        }),
        case("red_31_a_rank_that_never_had_data_sets_no_order_and_breaks_no_static_graph", 2, |rank| {
            let options = ReducerOptions { static_graph: true, caps: Caps::bytes(8), ..ReducerOptions::default() };
            let mut reducer = make(rank, pairs(3), options);
            for epoch in 0..3 {
                // Rank 0 has data in the second epoch for the first time.
                let steps = if epoch == 1 || place(rank) == 1 { 3 } else { 0 };
                let mut join =
                    reducer.join(JoinOptions { divide: JoinDivide::ByLive, ..JoinOptions::default() }).unwrap();
                for _ in 0..steps {
                    let step = join.step(&mut []).unwrap();
                    mark(&step, place(rank), &[1, 0, 2]);
                    let reduced = step.finish().unwrap();
                    let wanted = if epoch == 1 { mean(2, 0, 2) } else { numbers(&gradient(1, 0, 2)) };
                    assert_eq!(read(&reduced, 0, 2), Some(wanted));
                }
                join.end(&mut [], &mut []).unwrap();
                assert_eq!(indices(&reducer), [[1], [0], [2]]);
            }
        }),
        case("red_32_a_rank_that_ran_out_is_told_that_its_optimizer_is_stale", 3, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            for _ in 0..place(rank).min(1) {
                let step = join.step(&mut []).unwrap();
                mark(&step, place(rank), &[0]);
                step.finish().unwrap();
            }
            let (mut weights, mut count) = (f32s(&[place(rank) as f32; 2]), vec![place(rank) as u8; 8]);
            let mut tensors = [Tensor::new(DType::F32, &mut weights), Tensor::new(DType::I64, &mut count)];
            let joined = join.end(&mut [], &mut tensors).unwrap();
            assert_eq!(joined.optimizer_is_stale, place(rank) == 0);
            assert_eq!((joined.authority, numbers(&weights), count), (GlobalRank(2), vec![2.0; 2], vec![2; 8]));
        }),
        case("all_ranks_are_told_who_ran_out_where_that_is_an_error", 3, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            let mut join = reducer.join(JoinOptions { run_out: RunOut::Fail, ..JoinOptions::default() }).unwrap();
            let mut ended = Ok(());
            for _ in 0..if place(rank) == 1 { 1 } else { 3 } {
                match join.step(&mut []) {
                    Ok(step) => {
                        mark(&step, place(rank), &[0]);
                        step.finish().unwrap();
                    }
                    Err(error) => {
                        ended = Err(error);
                        break;
                    }
                }
            }
            let error = error_of(ended.and_then(|()| join.end(&mut [], &mut [])));
            assert!(error.to_string().contains("step 1: rank 1 ran out of data"), "{error}");
        }),
        case("a_weighted_mean_goes_on_while_ranks_run_out", 2, |rank| {
            let mut reducer =
                make(rank, pairs(1), ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() });
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            for step in 0..=place(rank) {
                let begun = join.weighted_step(3.0, &mut []).unwrap();
                begun.ready(0, &f32s(&[2.0, 4.0])).unwrap();
                assert_eq!(read(&begun.finish().unwrap(), 0, 2), Some(vec![2.0, 4.0]), "step {step}");
            }
            join.end(&mut [], &mut []).unwrap();
        }),
        case("a_group_shrinks_and_grows_with_its_buckets_and_ranks_that_are_new", 3, |rank| {
            let options = || ReducerOptions { caps: Caps::bytes(8), ..ReducerOptions::default() };
            let members: Vec<GlobalRank> = rank.group.members().to_vec();
            let small = format!("{} two", rank.group.name());
            let large = format!("{} three again", rank.group.name());
            let mut reducer = None;
            if place(rank) < 2 {
                let group = rank.backend.new_group(&small, &members[..2]).unwrap();
                let mut made = Reducer::new(rank.backend.clone(), &group, pairs(3), options()).unwrap();
                for _ in 0..2 {
                    whole_step(&mut made, place(rank), &[1, 2, 0]);
                }
                assert_eq!(indices(&made), [[1], [2], [0]]);
                reducer = Some(made);
            }
            let group = rank.backend.new_group(&large, &members).unwrap();
            let mut reducer = match reducer {
                Some(mut reducer) => {
                    reducer.change_group(&group).unwrap();
                    reducer
                }
                None => Reducer::new(rank.backend.clone(), &group, pairs(3), options()).unwrap(),
            };
            // The buckets of those that were there hold for one step; then they are made again.
            assert_eq!(indices(&reducer), [[1], [2], [0]]);
            for _ in 0..2 {
                let reduced = whole_step(&mut reducer, place(rank), &[0, 2, 1]);
                let wanted = mean(3, 2, 2);
                let found = read(&reduced, 2, 2).unwrap();
                assert!(
                    found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs()),
                    "{found:?} {wanted:?}"
                );
            }
            assert_eq!(indices(&reducer), [[0], [2], [1]]);
        }),
        case("red_34_a_bulk_runs_in_less_memory_than_the_model_has", 2, |rank| {
            let (mut reducer, recorder) = make_recorded(rank, pairs(100), ReducerOptions::default());
            for cap_bytes in [0, 64, 1 << 20] {
                recorder.take();
                let mut gradients: Vec<Vec<u8>> = (0..100).map(|param| gradient(place(rank), param, 2)).collect();
                let mut list: Vec<&mut [u8]> = gradients.iter_mut().map(|gradient| &mut gradient[..]).collect();
                reducer.reduce_all_within(&mut list, cap_bytes).unwrap();
                for (param, gradient) in gradients.iter().enumerate() {
                    assert_eq!(numbers(gradient), mean(2, param, 2));
                }
                assert_eq!(
                    recorder.take().len(),
                    if cap_bytes == 0 { 100 } else { if cap_bytes == 64 { 50 } else { 1 } }
                );
            }
            whole_step(&mut reducer, place(rank), &(0..100).collect::<Vec<_>>());
        }),
        case("sums_stay_sums_whoever_has_data_sparse_ones_too", 2, |rank| {
            let params = vec![Param::new("rows", &[4, 1], DType::F32).sparse(), Param::new("w", &[1], DType::F32)];
            let mut reducer = make(rank, params, ReducerOptions { scale: Scale::Sum, ..ReducerOptions::default() });
            let mut join = reducer.join(JoinOptions { divide: JoinDivide::ByLive, ..JoinOptions::default() }).unwrap();
            for number in 0..=place(rank) {
                let step = join.step(&mut []).unwrap();
                step.ready(1, &f32s(&[3.0])).unwrap();
                step.ready_sparse(0, &[2], &f32s(&[3.0])).unwrap();
                let reduced = step.finish().unwrap();
                let wanted = if number == 0 { 6.0 } else { 3.0 };
                assert_eq!(read(&reduced, 1, 1), Some(vec![wanted]));
                assert_eq!(numbers(&reduced.sparse(0).unwrap().values), [wanted]);
            }
            join.end(&mut [], &mut []).unwrap();
        }),
        case("a_static_graph_refuses_what_no_rank_used_while_this_one_had_no_data", 2, |rank| {
            let mut reducer = make(rank, pairs(2), ReducerOptions { static_graph: true, ..ReducerOptions::default() });
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            if place(rank) == 0 {
                let step = join.step(&mut []).unwrap();
                mark(&step, 0, &[0]);
                step.finish().unwrap();
            }
            join.end(&mut [], &mut []).unwrap();
            rank.settle();
            let step = reducer.step().unwrap();
            let marked = step.ready(0, &gradient(place(rank), 0, 2));
            let text = match (marked, place(rank)) {
                (Ok(()), 1) => {
                    let text = error_of(step.ready(1, &gradient(1, 1, 2))).to_string();
                    drop(step);
                    text
                }
                (Ok(()), _) => error_of(step.finish()).to_string(),
                (Err(error), _) => error.to_string(),
            };
            assert!(text.contains("rank 1") && text.contains("parameter 1 (p1)"), "{text}");
            assert!(text.contains("no rank used it in the first step"), "{text}");
        }),
        case("hooks_count_reduced_steps_whatever_each_rank_does_between", 2, |rank| {
            let power = bucketeer_reducer::hooks::PowerSgdOptions { start_step: 2, ..Default::default() };
            let hook = bucketeer_reducer::hooks::PowerSgd::new(power).unwrap();
            let params = vec![Param::new("m", &[12, 12], DType::F32)];
            let mut reducer = super::make_with(rank, params, ReducerOptions::default(), hook);
            for _ in 0..4 {
                for _ in 0..place(rank) {
                    reducer.local_step().unwrap().ready(0, &gradient(0, 0, 144)).unwrap();
                    drop(reducer.step().unwrap());
                }
                let step = reducer.step().unwrap();
                step.ready(0, &gradient(place(rank), 0, 144)).unwrap();
                step.finish().unwrap();
            }
            assert_eq!(reducer.stats().reduced_steps, 4);
        }),
        case("what_a_failed_step_may_have_used_up_is_not_counted_again", 2, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            reducer.local_step().unwrap().ready(0, &f32s(&[64.0, 64.0])).unwrap();
            rank.settle();
            let step = reducer.step().unwrap();
            if place(rank) == 0 {
                let _ = step.ready(0, &f32s(&[1.0, 1.0]));
            }
            // Rank 1 forgets it.
            error_of(step.finish());
            reducer.change_group(&rank.again("whole")).unwrap();
            let reduced = whole_step(&mut reducer, place(rank), &[0]);
            assert_eq!(read(&reduced, 0, 2), Some(mean(2, 0, 2)));
        }),
        case("gradients_of_local_steps_are_not_weighted_away_when_a_rank_runs_out", 2, |rank| {
            let mut reducer =
                make(rank, pairs(1), ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() });
            rank.settle();
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            join.local_step(&mut []).unwrap().ready(0, &f32s(&[1.0, 1.0])).unwrap();
            let text = error_of(join.end(&mut [], &mut [])).to_string();
            assert!(text.contains("gradients of local steps and no samples"), "{text}");
        }),
        case("a_step_that_other_ranks_know_of_cannot_be_left_out", 2, |rank| {
            let mut reducer = make(rank, pairs(1), ReducerOptions::default());
            rank.settle();
            let mut join = reducer.join(JoinOptions::default()).unwrap();
            let text = if place(rank) == 1 {
                drop(join.step(&mut []).unwrap());
                error_of(join.step(&mut [])).to_string()
            } else {
                error_of(join.end(&mut [], &mut [])).to_string()
            };
            assert!(text.contains("rank 1") && text.contains("given up before it was finished"), "{text}");
        }),
    ]
}
