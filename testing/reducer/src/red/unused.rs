//! Parameters without a gradient.

use super::{
    case, error_of, f32s, gradient, indices, make, make_recorded, mark, mean, numbers, pairs, place, read, whole_step,
};
use crate::Case;
use bucketeer_reducer::{Caps, Param, Reducer, ReducerOptions, Unused};
use bucketeer_types::DType;

fn with(unused: Unused) -> ReducerOptions {
    ReducerOptions { unused, caps: Caps::bytes(8), ..ReducerOptions::default() }
}

pub fn cases() -> Vec<Case> {
    vec![
        case("red_06_what_no_rank_used_keeps_its_gradient_bit_for_bit", 2, |rank| {
            let odd = [f32::from_bits(0x7fc0_1234), -0.0];
            for in_place in [false, true] {
                let group = rank.again(if in_place { "in place" } else { "copied" });
                let made = Reducer::new(rank.backend.clone(), &group, pairs(2), with(Unused::Average));
                let mut reducer = made.unwrap();
                if in_place {
                    let step = reducer.step().unwrap();
                    step.slot(0).unwrap().write().unwrap().copy_from_slice(&f32s(&[1.0, 1.0]));
                    step.ready_in_place(0).unwrap();
                    mark(&step, place(rank), &[1]);
                    step.finish().unwrap();
                    reducer.slot(0).unwrap().write().unwrap().copy_from_slice(&f32s(&odd));
                }
                let mut own = f32s(&odd);
                let reduced = whole_step(&mut reducer, place(rank), &[1]);
                assert!(reduced.is_kept(0) && !reduced.copy_to(0, &mut own).unwrap());
                assert_eq!(own, f32s(&odd));
                assert_eq!(read(&reduced, 1, 2), Some(mean(2, 1, 2)));
                if in_place {
                    assert_eq!(reducer.slot(0).unwrap().read().unwrap()[..], f32s(&odd)[..]);
                }
            }
        }),
        case("red_06_what_some_rank_used_is_averaged_with_zeros_or_left_alone_as_chosen", 2, |rank| {
            let mut reducer = make(rank, pairs(2), with(Unused::Average));
            let used: &[usize] = if place(rank) == 0 { &[1, 0] } else { &[1] };
            let reduced = whole_step(&mut reducer, place(rank), used);
            assert_eq!(read(&reduced, 0, 2), Some(vec![0.0, 0.5]));
        }),
        case("red_06_a_rank_that_keeps_its_own_gradient_does", 2, |rank| {
            let mut reducer = make(rank, pairs(2), with(Unused::KeepMine));
            let used: &[usize] = if place(rank) == 0 { &[1, 0] } else { &[1] };
            let reduced = whole_step(&mut reducer, place(rank), used);
            let wanted = (place(rank) == 0).then(|| vec![0.0, 0.5]);
            assert_eq!(read(&reduced, 0, 2), wanted);
        }),
        case("buckets_of_unused_parameters_are_skipped_where_all_ranks_agree", 2, |rank| {
            let (mut reducer, recorder) = make_recorded(rank, pairs(3), with(Unused::Skip));
            let step = reducer.step().unwrap();
            step.unused(2).unwrap();
            mark(&step, place(rank), &[1, 0]);
            let reduced = step.finish().unwrap();
            assert!(reduced.is_kept(2) && read(&reduced, 1, 2) == Some(mean(2, 1, 2)));
            assert_eq!(recorder.take(), ["all_reduce:f32:2@0", "all_reduce:f32:2@0", "all_reduce:i32:3@0"]);
        }),
        case("ranks_that_skip_different_buckets_are_told", 2, |rank| {
            let mut reducer = make(rank, pairs(3), with(Unused::Skip));
            let step = reducer.step().unwrap();
            // Equally many buckets of one size: only the map tells.
            let (unused, used) = if place(rank) == 0 { (2, [1, 0]) } else { (1, [2, 0]) };
            step.unused(unused).unwrap();
            for param in used {
                let _ = step.ready(param, &gradient(place(rank), param, 2));
            }
            let text = error_of(step.finish()).to_string();
            assert!(text.contains("1 of 2 ranks used it"), "{text}");
        }),
        case("red_07_an_unused_sparse_parameter_gives_no_rows", 2, |rank| {
            let params = vec![Param::new("e", &[4, 2], DType::F32).sparse(), Param::new("w", &[2], DType::F32)];
            let mut reducer = make(rank, params, with(Unused::Average));
            for step in 0..3 {
                let begun = reducer.step().unwrap();
                begun.ready(1, &gradient(place(rank), 1, 2)).unwrap();
                // Used by both, by one, by none.
                if place(rank) + step < 2 {
                    begun.ready_sparse(0, &[3, 1, 3], &f32s(&[1.0, 1.0, 2.0, 2.0, 4.0, 4.0])).unwrap();
                }
                let reduced = begun.finish().unwrap();
                let found = reduced.sparse(0).map(|sparse| (sparse.rows.clone(), numbers(&sparse.values)));
                let users = 2usize.saturating_sub(step) as f32;
                let wanted = [1.0, 1.0, 2.5, 2.5].map(|value| value * users);
                let wanted = [wanted[0], wanted[1], wanted[2], wanted[3]];
                assert_eq!(found, (users > 0.0).then(|| (vec![1, 3], wanted.to_vec())), "step {step}");
            }
        }),
        case("what_local_steps_left_is_reduced_also_where_the_reduced_step_does_not_use_it", 2, |rank| {
            let mut reducer = make(rank, pairs(2), with(Unused::Average));
            reducer.local_step().unwrap().ready(0, &f32s(&[4.0, 8.0])).unwrap();
            let reduced = whole_step(&mut reducer, place(rank), &[1]);
            assert_eq!(read(&reduced, 0, 2), Some(vec![4.0, 8.0]));
            let reduced = whole_step(&mut reducer, place(rank), &[1]);
            assert!(reduced.is_kept(0));
        }),
        case("a_static_graph_learns_what_is_unused_and_refuses_another", 2, |rank| {
            let options = ReducerOptions { static_graph: true, caps: Caps::bytes(8), ..ReducerOptions::default() };
            let mut reducer = make(rank, pairs(3), options);
            for _ in 0..4 {
                let reduced = whole_step(&mut reducer, place(rank), &[2, 0]);
                assert!(reduced.is_kept(1));
            }
            assert_eq!(indices(&reducer), [[2], [0], [1]]);
            assert!(reducer.stats().can_be_static);
            let step = reducer.step().unwrap();
            let text = error_of(step.ready(1, &gradient(0, 1, 2))).to_string();
            assert!(text.contains("parameter 1 (p1)") && text.contains("was 0 times in the first"), "{text}");
        }),
        case("a_guard_that_is_kept_on_an_unused_slot_fails_the_step_on_all_ranks", 2, |rank| {
            let mut reducer = make(rank, pairs(2), with(Unused::Average));
            let held = whole_step(&mut reducer, place(rank), &[1, 0]).read(0).unwrap();
            rank.settle();
            let held = held.filter(|_| place(rank) == 1);
            let step = reducer.step().unwrap();
            // The other rank may have failed before.
            let marked = step.ready(1, &gradient(place(rank), 1, 2));
            let error = match marked {
                Ok(()) => error_of(step.finish()),
                Err(error) => {
                    drop(step);
                    error
                }
            };
            drop(held);
            let text = error.to_string();
            assert!(text.contains("rank 1") && text.contains("parameter 0 (p0)"), "{text}");
            assert!(matches!(error_of(reducer.step()), bucketeer_reducer::ReducerError::Broken { .. }));
        }),
        case("a_static_graph_skips_what_no_rank_uses_and_nothing_else", 2, |rank| {
            let options = ReducerOptions { static_graph: true, ..with(Unused::Skip) };
            let (mut reducer, recorder) = make_recorded(rank, pairs(3), options);
            for number in 0..4 {
                recorder.take();
                // Each rank uses one, and neither the third.
                let reduced = whole_step(&mut reducer, place(rank), &[place(rank)]);
                assert!(reduced.is_kept(2), "step {number}");
                let half = |owner: usize| numbers(&gradient(owner, owner, 2)).iter().map(|value| value / 2.0).collect();
                (0..2).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(half(param)), "step {number}"));
            }
            let launches = recorder.take();
            assert_eq!(launches.iter().filter(|call| call.starts_with("all_reduce:f32")).count(), 2, "{launches:?}");
            assert!(reducer.join(bucketeer_reducer::JoinOptions::default()).is_err());
        }),
    ]
}
