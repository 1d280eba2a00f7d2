//! What all hooks have in common.

use super::cases::compare;
use super::given::{Make, gradients, low_rank, mean, on_two, place, power_sgd, step};
use super::{layouts, on_ranks};
use crate::Divide;
use crate::hooks::{AllReduce, Cast16, PostLocal, PowerSgdOptions, Quantise};
use crate::{BucketLayout, Hook};
use bucketeer_comm::Backend;
use bucketeer_types::DType;
use std::num::NonZeroUsize;

/// All hooks whose result is near the mean for any gradient, and by how much of the greatest value they may be off.
const NEAR_MEAN: [(Make, f64); 8] = [
    (|| Box::new(AllReduce), 1e-6),
    (|| Box::new(Cast16::f16()), 2e-3),
    (|| Box::new(Cast16::bf16().divide(Divide::OnWire)), 2e-2),
    (|| Box::new(Cast16::f16().divide(Divide::AfterSum)), 2e-3),
    (|| Box::new(Quantise::per_tensor()), 1e-2),
    (|| Box::new(Quantise::per_channel(NonZeroUsize::new(3).expect("3 is not 0"))), 1e-2),
    // Ranks that no matrix here exceeds.
    (|| Box::new(power_sgd(PowerSgdOptions { rank: 16, min_rate: 0.0, ..low_rank() })), 1e-5),
    (|| Box::new(Cast16::f16_around(power_sgd(PowerSgdOptions { rank: 16, min_rate: 0.0, ..low_rank() }))), 2e-2),
];

#[test]
fn red_20_hooks_of_several_stages_have_several_buckets_in_flight() {
    let shapes = vec![vec![6, 5], vec![7], vec![4, 2, 3], vec![], vec![9, 9], vec![1]];
    let layouts = layouts(DType::F32, &shapes, &[vec![5, 4], vec![3], vec![2, 1], vec![0]]);
    for (make, tolerance) in NEAR_MEAN {
        let outcomes = on_ranks(3, |rank| {
            let mut hook = make();
            hook.rebuilt(&layouts, &rank.group);
            let mut run =
                |number| rank.step(&mut *hook, &step(number, &layouts, &gradients(&layouts, place(rank)), 3.0));
            [run(0), run(1)].map(|outcome| outcome.expect("the step works").0.concat())
        });
        for steps in &outcomes {
            assert_eq!(*steps, outcomes[0], "{}: ranks agree", make().describe());
            for found in steps {
                let checked = compare(&make().describe(), found, &mean(&layouts, 3), |_| tolerance);
                assert_eq!(checked, Ok(()));
            }
        }
    }
}

#[test]
fn red_20_parameters_without_elements_launch_nothing_empty() {
    let shapes = vec![vec![0, 5], vec![5, 0], vec![1], vec![6, 6], vec![]];
    let layouts = layouts(DType::F32, &shapes, &[vec![0, 1], vec![0, 2, 1], vec![3, 0], vec![4], vec![]]);
    for (make, tolerance) in NEAR_MEAN {
        let outcomes = on_ranks(2, |rank| {
            let mut hook = make();
            hook.rebuilt(&layouts, &rank.group);
            rank.step(&mut *hook, &step(0, &layouts, &gradients(&layouts, place(rank)), 2.0)).expect("the step works")
        });
        let (results, calls) = &outcomes[0];
        assert_eq!(compare(&make().describe(), &results.concat(), &mean(&layouts, 2), |_| tolerance), Ok(()));
        assert!(calls[0].is_empty() && calls[4].is_empty(), "{calls:?}");
        assert!(calls.concat().iter().all(|call| !call.ends_with(":0")), "{calls:?}");
    }
}

#[test]
fn every_dtype_of_floats_is_reduced_and_others_are_refused() {
    let shapes = vec![vec![6, 5], vec![7]];
    let run = |make: Make, dtype| {
        let layouts = layouts(dtype, &shapes, &[vec![1, 0]]);
        let outcomes =
            on_ranks(2, |rank| rank.step(&mut *make(), &step(0, &layouts, &gradients(&layouts, place(rank)), 2.0)));
        (outcomes.into_iter().next().expect("there are two ranks"), mean(&layouts, 2))
    };
    for (make, tolerance) in NEAR_MEAN {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::Bf16] {
            let what = format!("{} of {}", make().describe(), dtype.short_name());
            let (outcome, mean) = run(make, dtype);
            let is_16 = dtype.bytes() == 2;
            match outcome {
                Err(error) => {
                    let name = dtype.short_name();
                    assert!(is_16 && error.0.contains(&format!("the bucket holds {name}")), "{what}: {error}");
                    assert_ne!(what.split(',').next(), Some(name), "{what}: no cast is needed");
                }
                Ok((results, _)) => {
                    let tolerance = if is_16 { 3e-2 } else { tolerance };
                    assert_eq!(compare(&what, &results.concat(), &mean, |_| tolerance), Ok(()));
                }
            }
        }
    }
    let layouts = BucketLayout { dtype: DType::I32, ..layouts(DType::F32, &shapes, &[vec![0]]).remove(0) };
    for (make, _) in NEAR_MEAN {
        on_ranks(1, |rank| {
            let buffer = rank.backend.arena(120).and_then(|arena| arena.buffer(0, 120)).expect("there is memory");
            let (backend, group) = (&rank.backend, &rank.group);
            let bucket = crate::HookBucket { layout: &layouts, step: 0, divisor: 1.0, buffer: &buffer, group, backend };
            let error = make().begin(&bucket).expect_err("integers are not reduced");
            assert!(error.0.contains("the bucket holds i32"), "{error}");
        });
    }
}

#[test]
fn red_28_hooks_divide_by_the_divisor_that_they_are_told() {
    let layouts = layouts(DType::F32, &[vec![6, 5], vec![7]], &[vec![1, 0]]);
    // One rank of two has input; weights; the plain sum.
    for divisor in [1.0, 1.5, 4.0] {
        for (make, tolerance) in NEAR_MEAN {
            let outcomes = on_ranks(2, |rank| {
                rank.step(&mut *make(), &step(0, &layouts, &gradients(&layouts, place(rank)), divisor))
            });
            let found = outcomes[0].as_ref().expect("the step works").0.concat();
            let expected: Vec<f64> = mean(&layouts, 2).iter().map(|mean| mean * 2.0 / divisor).collect();
            assert_eq!(compare(&make().describe(), &found, &expected, |_| 2.0 * tolerance), Ok(()), "{divisor}");
        }
    }
}

#[test]
fn what_is_not_finite_is_never_hidden() {
    let shape = [4, 3];
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for (make, _) in NEAR_MEAN {
            let (mut bad, good) = (vec![0.25; 12], vec![0.5; 12]);
            bad[5] = value;
            let found = on_two(make, &shape, [&good, &bad]).expect("values are no errors");
            assert!(!found[5].is_finite(), "{}: {found:?} for {value}", make().describe());
        }
    }
}

#[test]
fn options_that_differ_are_described_differently() {
    let power = |change: fn(&mut PowerSgdOptions)| {
        let mut options = PowerSgdOptions::default();
        change(&mut options);
        power_sgd(options).describe()
    };
    let mut all = vec![
        AllReduce.describe(),
        Cast16::f16().describe(),
        Cast16::bf16().describe(),
        Cast16::f16().divide(Divide::OnWire).describe(),
        Cast16::f16().divide(Divide::AfterSum).describe(),
        Cast16::f16_around(Quantise::per_tensor()).describe(),
        Quantise::per_tensor().describe(),
        Quantise::per_channel(NonZeroUsize::new(4).expect("4 is not 0")).describe(),
        Quantise::per_channel(NonZeroUsize::new(8).expect("8 is not 0")).describe(),
        power(|_| {}),
        power(|options| options.rank = 2),
        power(|options| options.start_step = 2),
        power(|options| options.min_rate = 1.5),
        power(|options| options.warm_start = false),
        power(|options| options.error_feedback = false),
        power(|options| options.epsilon = 1e-8),
        power(|options| options.seed = 1),
    ];
    on_ranks(1, |rank| PostLocal::new(rank.group.clone(), 0).describe()).into_iter().for_each(|text| all.push(text));
    on_ranks(1, |rank| PostLocal::new(rank.group.clone(), 9).describe()).into_iter().for_each(|text| all.push(text));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "{all:#?}");
}
