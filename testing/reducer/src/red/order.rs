//! What is launched when, and in which buckets.

use super::{case, error_of, f32s, gradient, indices, make, make_recorded, mark, mean, pairs, place, read, whole_step};
use crate::Case;
use bucketeer_reducer::{Caps, FirstStep, Param, Rebuild, Reducer, ReducerError, ReducerOptions, Unused};
use bucketeer_types::DType;

fn one_by_one() -> ReducerOptions {
    let (first_step, rebuild) = (FirstStep::Buckets, Rebuild::Never);
    ReducerOptions { caps: Caps::bytes(8), first_step, rebuild, ..ReducerOptions::default() }
}

pub fn cases() -> Vec<Case> {
    vec![
        case("red_03_a_bucket_is_launched_at_the_mark_that_completes_it_and_all_before_it", 2, |rank| {
            let (mut reducer, recorder) = make_recorded(rank, pairs(4), one_by_one());
            assert_eq!(indices(&reducer), [[3], [2], [1], [0]]);
            let step = reducer.step().unwrap();
            for (at, param) in [2, 0, 3, 1].into_iter().enumerate() {
                recorder.at(at + 1);
                mark(&step, place(rank), &[param]);
            }
            assert_eq!(recorder.take(), ["@3", "@3", "@4", "@4"].map(|at| format!("all_reduce:f32:2{at}")));
            let reduced = step.finish().unwrap();
            (0..4).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(2, param, 2))));
        }),
        case("red_04_rank_0s_first_order_makes_the_buckets_of_all_ranks", 2, |rank| {
            let options = ReducerOptions { caps: Caps::bytes(16), ..ReducerOptions::default() };
            let (mut reducer, recorder) = make_recorded(rank, pairs(4), options);
            let orders = [[1, 3, 0, 2], [2, 0, 3, 1]];
            for step in 0..3 {
                recorder.take();
                let own = orders[place(rank)];
                let reduced = whole_step(&mut reducer, place(rank), &own);
                (0..4).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(2, param, 2)), "{step}"));
                if step > 0 {
                    assert_eq!(indices(&reducer), [[1, 3], [0, 2]]);
                }
            }
            let launches: Vec<String> = recorder.take();
            assert_eq!(launches, ["all_reduce:f32:4@0", "all_reduce:f32:4@0"]);
        }),
        case("red_05_missing_marks_are_named_in_this_step_and_no_rank_hangs", 3, |rank| {
            let options = ReducerOptions { timeout: Some(std::time::Duration::from_secs(20)), ..one_by_one() };
            let mut reducer = make(rank, pairs(5), options);
            whole_step(&mut reducer, place(rank), &[4, 3, 2, 1, 0]);
            rank.settle();
            let start = std::time::Instant::now();
            let step = reducer.step().unwrap();
            let used: &[usize] = if place(rank) == 1 { &[4, 2, 0] } else { &[4, 3, 2, 1, 0] };
            for &param in used {
                // A rank may learn of it while it still marks.
                if step.ready(param, &gradient(place(rank), param, 2)).is_err() {
                    break;
                }
            }
            let error = error_of(step.finish());
            assert!(start.elapsed().as_secs() < 10, "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 1") && text.contains("step 1"), "{text}");
            assert!(text.contains("parameters 1 (p1) and 3 (p3)"), "{text}");
            assert_eq!(matches!(error, ReducerError::Missing { .. }), place(rank) == 1, "{error}");
            assert!(matches!(error_of(reducer.step()), ReducerError::Broken { .. }));
            // And on they go.
            reducer.change_group(&rank.again("whole")).unwrap();
            let reduced = whole_step(&mut reducer, place(rank), &[0, 1, 2, 3, 4]);
            assert_eq!(read(&reduced, 3, 2), Some(mean(3, 3, 2)));
        }),
        case("red_08_a_second_mark_is_refused_by_name_before_memory_changes", 2, |rank| {
            let mut reducer = make(rank, pairs(2), ReducerOptions::default());
            let step = reducer.step().unwrap();
            mark(&step, place(rank), &[1]);
            let error = error_of(step.ready(1, &f32s(&[9e9, 9e9])));
            let text = error.to_string();
            assert!(text.contains("step 0, parameter 1 (p1)") && text.contains("second time"), "{text}");
            mark(&step, place(rank), &[0]);
            let reduced = step.finish().unwrap();
            (0..2).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(2, param, 2))));
        }),
        case("a_slot_that_is_held_while_its_bucket_is_launched_fails_the_step_on_all_ranks", 2, |rank| {
            let mut reducer = make(rank, pairs(2), one_by_one());
            rank.settle();
            let step = reducer.step().unwrap();
            let held = (place(rank) == 1).then(|| step.slot(1).unwrap().read().unwrap());
            let marked = step.ready_in_place(1).and_then(|()| step.ready(0, &gradient(place(rank), 0, 2)));
            let text = match marked {
                Err(error) => error.to_string(),
                Ok(()) => error_of(step.finish()).to_string(),
            };
            drop(held);
            assert!(text.contains("rank 1") && text.contains("are in use by a guard on the host"), "{text}");
        }),
        case("red_09_a_mark_outside_of_a_step_is_refused_and_nothing_stays_local", 2, |rank| {
            let mut reducer = make(rank, pairs(2), ReducerOptions::default());
            let step = reducer.step().unwrap();
            let marker = step.marker();
            mark(&step, place(rank), &[1, 0]);
            step.finish().unwrap();
            let error = error_of(marker.ready(0, &gradient(0, 0, 2))).to_string();
            assert!(error.contains("parameter 0 (p0)") && error.contains("the step is over"), "{error}");
            // A backward that is not finished is a failure of the step on all ranks, not a local gradient.
            let step = reducer.step().unwrap();
            mark(&step, place(rank), &[1]);
            drop(step);
            let error = error_of(reducer.step()).to_string();
            assert!(error.contains("given up before it was finished"), "{error}");
        }),
        case("red_10_what_became_trainable_later_or_another_tensor_is_refused_at_its_mark", 2, |rank| {
            let mut reducer = make(rank, pairs(2), ReducerOptions::default());
            let step = reducer.step().unwrap();
            let error = error_of(step.ready(2, &gradient(0, 0, 2))).to_string();
            assert!(error.contains("there are 2 parameters"), "{error}");
            let error = error_of(step.ready(1, &gradient(0, 0, 3))).to_string();
            assert!(error.contains("parameter 1 (p1)") && error.contains("12 bytes"), "{error}");
            let error = error_of(step.ready_strided(1, &gradient(0, 0, 2), &[9])).to_string();
            assert!(error.contains("reach over 40"), "{error}");
            mark(&step, place(rank), &[1, 0]);
            step.finish().unwrap();
        }),
        case("red_11_local_steps_may_come_first_with_a_static_graph", 2, |rank| {
            let options = ReducerOptions { static_graph: true, caps: Caps::bytes(8), ..ReducerOptions::default() };
            let mut reducer = make(rank, pairs(2), options);
            for step in 0..4 {
                for param in 0..2 {
                    reducer.local_step().unwrap().ready(param, &f32s(&[1.0, 2.0])).unwrap();
                }
                let reduced = whole_step(&mut reducer, place(rank), &[1, 0]);
                let wanted: Vec<f32> = mean(2, 1, 2).into_iter().zip([1.0, 2.0]).map(|(a, b)| a + b).collect();
                assert_eq!(read(&reduced, 1, 2), Some(wanted), "step {step}");
            }
            assert_eq!(indices(&reducer), [[1], [0]]);
        }),
        case("red_12_forwards_without_a_backward_change_nothing", 2, |rank| {
            for static_graph in [false, true] {
                let options = ReducerOptions { static_graph, caps: Caps::bytes(8), ..ReducerOptions::default() };
                let group = rank.again(if static_graph { "static" } else { "dynamic" });
                let mut reducer = Reducer::new(rank.backend.clone(), &group, pairs(2), options).unwrap();
                for _ in 0..4 {
                    // An evaluation, of any number on each rank.
                    (0..=place(rank)).for_each(|_| drop(reducer.step().unwrap()));
                    let reduced = whole_step(&mut reducer, place(rank), &[1, 0]);
                    assert_eq!(read(&reduced, 0, 2), Some(mean(2, 0, 2)));
                }
                assert_eq!((indices(&reducer), reducer.stats().reduced_steps), (vec![vec![1], vec![0]], 4));
            }
        }),
        case("red_13_the_first_step_is_one_launch_at_its_end_unless_told_otherwise", 2, |rank| {
            let options = ReducerOptions { caps: Caps::bytes(8), ..ReducerOptions::default() };
            let (mut reducer, recorder) = make_recorded(rank, pairs(3), options);
            let step = reducer.step().unwrap();
            for (at, param) in [2, 1, 0].into_iter().enumerate() {
                recorder.at(at + 1);
                mark(&step, place(rank), &[param]);
            }
            assert_eq!(recorder.take(), ["all_reduce:f32:6@3"]);
            step.finish().unwrap();
        }),
        case("red_14_a_users_cap_is_also_the_first_one", 2, |rank| {
            let mut reducer =
                make(rank, pairs(5), ReducerOptions { caps: Caps::bytes(16), ..ReducerOptions::default() });
            whole_step(&mut reducer, place(rank), &[4, 3, 2, 1, 0]);
            whole_step(&mut reducer, place(rank), &[4, 3, 2, 1, 0]);
            assert_eq!(indices(&reducer), [vec![4, 3], vec![2, 1], vec![0]]);
            assert!(reducer.buckets().iter().all(|bucket| bucket.limit_bytes == 16));
        }),
        case("red_15_an_empty_list_of_caps_is_an_error_before_ranks_meet", 2, |rank| {
            let options = ReducerOptions { caps: Caps::List(Vec::new()), ..ReducerOptions::default() };
            let made = Reducer::new(rank.backend.clone(), &rank.group, pairs(1), options);
            assert!(error_of(made).to_string().contains("the list of caps is empty"));
        }),
        case("red_35_buckets_may_be_made_again_where_parameters_may_be_unused", 2, |rank| {
            let (unused, caps, rebuild) = (Unused::Average, Caps::bytes(16), Rebuild::Once);
            let mut reducer =
                make(rank, pairs(4), ReducerOptions { unused, caps, rebuild, ..ReducerOptions::default() });
            assert_eq!(indices(&reducer), [[2, 3], [0, 1]]);
            whole_step(&mut reducer, place(rank), &[0, 1, 2, 3]);
            whole_step(&mut reducer, place(rank), &[0, 1, 2, 3]);
            assert_eq!(indices(&reducer), [[0, 1], [2, 3]]);
        }),
        case("red_16_strides_of_single_elements_cost_no_second_copy", 2, |rank| {
            let conv = Param::new("conv", &[2, 3, 1, 1], DType::F32).with_strides(&[3, 1, 1, 1]);
            let mut reducer = make(rank, vec![conv], ReducerOptions::default());
            for (strides, reordered) in [([3, 1, 3, 3], 0), ([1, 2, 1, 1], 1)] {
                let step = reducer.step().unwrap();
                step.ready_strided(0, &gradient(place(rank), 0, 6), &strides).unwrap();
                step.finish().unwrap();
                assert_eq!(reducer.stats().reordered_gradients, reordered);
            }
        }),
    ]
}
