//! What gradients come to.

use super::{
    case, error_of, f32s, gradient, indices, make, make_recorded, mark, mean, numbers, pairs, place, read, same_on_all,
    whole_step,
};
use crate::Case;
use bucketeer_reducer::{Caps, Divide, FirstStep, Param, ReducerOptions, Scale, Wire};
use bucketeer_types::{DType, num};

fn wire(dtype: DType, divide: Divide) -> ReducerOptions {
    ReducerOptions { wire: Some(Wire { dtype, divide }), ..ReducerOptions::default() }
}

pub fn cases() -> Vec<Case> {
    vec![
        case("red_17_memory_is_given_back_between_steps_and_taken_again", 2, |rank| {
            let mut reducer =
                make(rank, pairs(3), ReducerOptions { caps: Caps::bytes(8), ..ReducerOptions::default() });
            for step in 0..3 {
                let reduced = whole_step(&mut reducer, place(rank), &[2, 1, 0]);
                assert_eq!(read(&reduced, 1, 2), Some(mean(2, 1, 2)), "step {step}");
                reducer.release_memory().unwrap();
                assert!(reducer.buckets().is_empty());
            }
            reducer.local_step().unwrap().ready(0, &f32s(&[1.0, 1.0])).unwrap();
            let error = error_of(reducer.release_memory()).to_string();
            assert!(error.contains("local steps have left gradients"), "{error}");
        }),
        case("red_18_a_gradient_that_was_replaced_is_copied_in_and_one_elsewhere_is_named", 2, |rank| {
            let mut reducer =
                make(rank, pairs(2), ReducerOptions { caps: Caps::bytes(8), ..ReducerOptions::default() });
            let own = rank.backend.arena(8).unwrap().buffer(0, 8).unwrap();
            for _ in 0..3 {
                own.write().unwrap().copy_from_slice(&gradient(place(rank), 1, 2));
                let step = reducer.step().unwrap();
                let slot = step.slot(0).unwrap();
                slot.write().unwrap().copy_from_slice(&gradient(place(rank), 0, 2));
                assert!(step.ready_from(0, &slot).unwrap());
                assert!(!step.ready_from(1, &own).unwrap());
                let reduced = step.finish().unwrap();
                (0..2).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(2, param, 2))));
                reduced.expect_slot(0, &slot).unwrap();
                let error = error_of(reduced.expect_slot(1, &own)).to_string();
                assert!(error.contains("parameter 1 (p1) is not its slot"), "{error}");
            }
        }),
        case("slots_move_with_what_they_hold_when_buckets_are_made_again", 2, |rank| {
            let mut reducer =
                make(rank, pairs(4), ReducerOptions { caps: Caps::bytes(8), ..ReducerOptions::default() });
            for _ in 0..2 {
                let step = reducer.step().unwrap();
                for param in [1, 3, 0, 2] {
                    // A framework that adds up: zeros at first, then what was reduced.
                    let slot = step.slot(param).unwrap();
                    let sum: Vec<f32> = numbers(&slot.read().unwrap())
                        .iter()
                        .zip(numbers(&gradient(place(rank), param, 2)))
                        .map(|(a, b)| a + b)
                        .collect();
                    slot.write().unwrap().copy_from_slice(&f32s(&sum));
                    step.ready_in_place(param).unwrap();
                }
                step.finish().unwrap();
            }
            assert_eq!(indices(&reducer), [[1], [3], [0], [2]]);
            let found = numbers(&reducer.slot(3).unwrap().read().unwrap());
            assert_eq!(found, mean(2, 3, 2).iter().map(|value| 2.0 * value).collect::<Vec<_>>());
        }),
        case("red_26_where_a_mean_is_divided_on_a_wire_of_16_bits_can_be_chosen", 2, |rank| {
            let given = f32s(&[60000.0, 8e-8]);
            let wanted =
                [(Divide::BeforeCast, [60000.0, 5.9604645e-8]), (Divide::AfterSum, [f32::INFINITY, 5.9604645e-8])];
            for (divide, wanted) in wanted {
                let group = rank.again(&format!("{divide:?}"));
                let made =
                    bucketeer_reducer::Reducer::new(rank.backend.clone(), &group, pairs(1), wire(DType::F16, divide));
                let mut reducer = made.unwrap();
                let step = reducer.step().unwrap();
                step.ready(0, &given).unwrap();
                // 8e-8 is 5.96e-8 in f16; half of it, 4e-8, too.
                let found = read(&step.finish().unwrap(), 0, 2).unwrap();
                let wanted = if divide == Divide::BeforeCast { [60000.0, 1.1920929e-7] } else { wanted };
                assert_eq!(found, wanted, "{divide:?}");
            }
        }),
        case("red_27_sums_means_and_means_over_samples", 2, |rank| {
            let given = [f32s(&[1.0, 4.0]), f32s(&[5.0, 8.0])][place(rank)].clone();
            for (scale, wanted) in [(Scale::Sum, [6.0, 12.0]), (Scale::Mean, [3.0, 6.0]), (Scale::Weighted, [4.0, 7.0])]
            {
                let group = rank.again(&format!("{scale:?}"));
                let options = ReducerOptions { scale, ..ReducerOptions::default() };
                let made = bucketeer_reducer::Reducer::new(rank.backend.clone(), &group, pairs(1), options);
                let mut reducer = made.unwrap();
                let step = match scale {
                    Scale::Weighted => reducer.weighted_step([8.0, 24.0][place(rank)]).unwrap(),
                    _ => reducer.step().unwrap(),
                };
                step.ready(0, &given).unwrap();
                assert_eq!(read(&step.finish().unwrap(), 0, 2), Some(wanted.to_vec()), "{scale:?}");
                let wrong =
                    if scale == Scale::Weighted { reducer.step().err() } else { reducer.weighted_step(1.0).err() };
                assert!(wrong.is_some());
            }
        }),
        case("weights_of_which_no_rank_has_any_are_refused", 2, |rank| {
            let mut reducer =
                make(rank, pairs(1), ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() });
            for wrong in [-1.0, f64::NAN, f64::INFINITY] {
                assert!(error_of(reducer.weighted_step(wrong)).to_string().contains("give 0 or more"));
            }
            let step = reducer.weighted_step(0.0).unwrap();
            let error = error_of(step.ready(0, &gradient(0, 0, 2))).to_string();
            assert!(error.contains("add up to 0; give more than 0"), "{error}");
        }),
        case("red_36_two_and_four_ranks_average_exactly", 4, |rank| {
            let mut reducer = make(rank, pairs(3), ReducerOptions::default());
            let reduced = whole_step(&mut reducer, place(rank), &[2, 1, 0]);
            (0..3).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(4, param, 2))));
        }),
        case("red_36_three_ranks_average_within_an_ulp_and_bit_equal_on_all", 3, |rank| {
            let mut reducer = make(rank, vec![Param::new("p", &[1000], DType::F32)], ReducerOptions::default());
            let value = |place: usize, at: usize| (((place * 7919 + at * 104_729) % 20_011) as f32 - 10_000.0) / 77.0;
            let step = reducer.step().unwrap();
            step.ready(0, &f32s(&(0..1000).map(|at| value(place(rank), at)).collect::<Vec<_>>())).unwrap();
            let found = read(&step.finish().unwrap(), 0, 1000).unwrap();
            for (at, found) in found.iter().enumerate() {
                let parts = [0, 1, 2].map(|place| f64::from(value(place, at)) / 3.0);
                let bound = parts.iter().map(|part| part.abs()).sum::<f64>() * f64::from(f32::EPSILON);
                assert!((f64::from(*found) - parts.iter().sum::<f64>()).abs() <= bound, "{at}");
            }
            same_on_all(rank, &f32s(&found));
        }),
        case("red_37_buckets_of_another_dtype_hold_the_first_steps_gradients", 2, |rank| {
            let mut reducer = make(rank, pairs(2), wire(DType::Bf16, Divide::OnWire));
            let given = |param: usize| f32s(&[(place(rank) + param) as f32, 2.0]);
            let bf16 = Some(Wire { dtype: DType::Bf16, divide: Divide::OnWire });
            for wire in [bf16, None, bf16] {
                reducer.set_wire(wire).unwrap();
                for step in 0..3 {
                    let begun = reducer.step().unwrap();
                    [1, 0].into_iter().for_each(|param| begun.ready(param, &given(param)).unwrap());
                    let reduced = begun.finish().unwrap();
                    for param in 0..2 {
                        assert_eq!(read(&reduced, param, 2), Some(vec![0.5 + param as f32, 2.0]), "{wire:?} {step}");
                    }
                    assert_eq!(reduced.read(0).is_ok(), wire.is_none());
                }
            }
            reducer.set_wire(bf16).unwrap();
            let step = reducer.step().unwrap();
            let error = error_of(step.ready_in_place(0)).to_string();
            assert!(error.contains("its bucket holds bf16"), "{error}");
            mark(&step, place(rank), &[1, 0]);
            step.finish().unwrap();
        }),
        case("local_steps_add_up_in_the_gradients_own_dtype_whatever_the_wire", 2, |rank| {
            let mut reducer = make(rank, pairs(1), wire(DType::Bf16, Divide::BeforeCast));
            // 256 and then ones: bf16 would lose each of them.
            for value in [256.0, 1.0, 1.0, 1.0] {
                reducer.local_step().unwrap().ready(0, &f32s(&[value, 0.0])).unwrap();
            }
            let step = reducer.step().unwrap();
            step.ready(0, &f32s(&[1.0, 0.0])).unwrap();
            assert_eq!(read(&step.finish().unwrap(), 0, 2), Some(vec![260.0, 0.0]));
        }),
        case("a_graph_that_is_learned_takes_the_last_mark_on_top_of_what_local_steps_left", 2, |rank| {
            for (wire_dtype, in_place) in [(None, false), (None, true), (Some(DType::F16), false)] {
                let wire = wire_dtype.map(|dtype| Wire { dtype, divide: Divide::BeforeCast });
                let (static_graph, scale) = (true, Scale::Weighted);
                let options = ReducerOptions { static_graph, scale, wire, ..ReducerOptions::default() };
                let group = rank.again(&format!("{wire_dtype:?} {in_place}"));
                let made = bucketeer_reducer::Reducer::new(rank.backend.clone(), &group, pairs(1), options);
                let mut reducer = made.unwrap();
                for number in 0..3 {
                    if !in_place {
                        reducer.local_step().unwrap().ready(0, &f32s(&[8.0, 8.0])).unwrap();
                    }
                    let step = reducer.weighted_step(2.0).unwrap();
                    for so_far in [8.0, 16.0] {
                        if in_place {
                            step.slot(0).unwrap().write().unwrap().copy_from_slice(&f32s(&[so_far; 2]));
                            step.ready_in_place(0).unwrap();
                        } else {
                            step.ready(0, &f32s(&[so_far; 2])).unwrap();
                        }
                    }
                    let wanted = if in_place { 16.0 } else { 24.0 };
                    assert_eq!(read(&step.finish().unwrap(), 0, 2), Some(vec![wanted; 2]), "step {number}");
                }
            }
        }),
        case("nan_and_infinity_pass_through", 2, |rank| {
            let mut reducer = make(rank, vec![Param::new("p", &[4], DType::F32)], ReducerOptions::default());
            let step = reducer.step().unwrap();
            let own = if place(rank) == 0 { [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0] } else { [1.0; 4] };
            step.ready(0, &f32s(&own)).unwrap();
            let found = read(&step.finish().unwrap(), 0, 4).unwrap();
            assert!(found[0].is_nan() && found[1..] == [f32::INFINITY, f32::NEG_INFINITY, 1.0], "{found:?}");
        }),
        case("all_dtypes_and_shapes_without_elements_are_reduced", 2, |rank| {
            let dtypes = [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::C32, DType::C64, DType::C128];
            let params: Vec<Param> = dtypes
                .into_iter()
                .flat_map(|dtype| {
                    [("a", vec![3]), ("scalar", vec![]), ("none", vec![0, 5])].map(|(name, shape)| (dtype, name, shape))
                })
                .map(|(dtype, name, shape)| Param::new(format!("{name} {}", dtype.short_name()), &shape, dtype))
                .collect();
            let count = params.len();
            let options =
                ReducerOptions { first_step: FirstStep::Buckets, caps: Caps::bytes(1), ..ReducerOptions::default() };
            let mut reducer = make(rank, params.clone(), options);
            for _ in 0..2 {
                let step = reducer.step().unwrap();
                for param in (0..count).rev() {
                    let (real, reals) = crate::values::real(params[param].dtype());
                    let mut bytes = Vec::new();
                    for _ in 0..params[param].elements() as usize * reals {
                        num::store_float(real, (place(rank) * 4) as f64 + 1.0, &mut bytes);
                    }
                    step.ready(param, &bytes).unwrap();
                }
                let reduced = step.finish().unwrap();
                for (param, what) in params.iter().enumerate() {
                    let mut bytes = vec![0; what.bytes() as usize];
                    assert!(reduced.copy_to(param, &mut bytes).unwrap());
                    assert!(crate::values::numbers(&bytes, what.dtype()).iter().all(|value| *value == 3.0), "{what}");
                }
            }
        }),
        case("marks_come_from_many_threads", 2, |rank| {
            let mut reducer =
                make(rank, pairs(64), ReducerOptions { caps: Caps::bytes(24), ..ReducerOptions::default() });
            for _ in 0..20 {
                let step = reducer.step().unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..4 {
                        let marker = step.marker();
                        scope.spawn(move || {
                            for param in (0..64).filter(|param| param % 4 == thread) {
                                marker.ready(param, &gradient(place(rank), param, 2)).unwrap();
                            }
                        });
                    }
                });
                let reduced = step.finish().unwrap();
                (0..64).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean(2, param, 2))));
            }
        }),
        case("a_bulk_is_reduced_in_place_and_leaves_what_is_kept", 2, |rank| {
            let unused = bucketeer_reducer::Unused::Average;
            let (mut reducer, _) =
                make_recorded(rank, pairs(3), ReducerOptions { unused, ..ReducerOptions::default() });
            for _ in 0..3 {
                let (mut a, mut b) = (gradient(place(rank), 0, 2), gradient(place(rank), 2, 2));
                let reduced = reducer.reduce_all(&mut [Some(&mut a), None, Some(&mut b)]).unwrap();
                assert!(reduced.is_kept(1));
                assert_eq!((numbers(&a), numbers(&b)), (mean(2, 0, 2), mean(2, 2, 2)));
            }
            let error = error_of(reducer.reduce_all(&mut [None])).to_string();
            assert!(error.contains("1 gradients for 3 parameters"), "{error}");
            // Told before the step begins, so that all goes on.
            let error = error_of(reducer.reduce_all(&mut [None, Some(&mut [0; 3]), None])).to_string();
            assert!(error.contains("parameter 1 (p1) has 3 bytes"), "{error}");
            whole_step(&mut reducer, place(rank), &[0, 1, 2]);
        }),
    ]
}
