//! PowerSGD from step to step.

use super::cases::compare;
use super::given::{gradients, low_rank, mean, on_two, place, power_sgd, step};
use super::{layouts, on_ranks};
use crate::hooks::{PowerSgd, PowerSgdOptions};
use crate::{BucketLayout, Hook, Stage};
use bucketeer_types::DType;

#[test]
fn a_step_that_is_not_finite_leaves_nothing_in_the_state_of_powersgd() {
    let layouts = layouts(DType::F32, &[vec![6, 6]], &[vec![0]]);
    let outcomes = on_ranks(2, |rank| {
        let mut hook = power_sgd(low_rank());
        let good = gradients(&layouts, place(rank));
        let mut bad = good.clone();
        bad[0][7] = if place(rank) == 1 { f64::INFINITY } else { 1.0 };
        let mut run = |number, given| rank.step(&mut hook, &step(number, &layouts, given, 2.0)).unwrap().0.concat();
        [run(0, &good), run(1, &bad), run(2, &good)]
    });
    for steps in outcomes {
        assert!(steps[1].iter().all(|value| value.is_nan()), "{steps:?}");
        assert!(steps[2].iter().all(|value| value.is_finite()), "{steps:?}");
    }
}

#[test]
fn red_24_a_gradient_of_zeros_gives_zeros_and_the_next_is_compressed_as_ever() {
    let layouts = layouts(DType::F32, &[vec![6, 6]], &[vec![0]]);
    for rank in [1, 2, 3] {
        let options = PowerSgdOptions { rank, min_rate: 0.5, ..low_rank() };
        let outcomes = on_ranks(2, |rank| {
            let mut hook = power_sgd(options);
            let zeros = vec![vec![0.0; 36]];
            let first = rank.step(&mut hook, &step(0, &layouts, &zeros, 2.0)).expect("the step works").0.concat();
            let given = gradients(&layouts, place(rank));
            let next = rank.step(&mut hook, &step(1, &layouts, &given, 2.0)).expect("the step works").0.concat();
            (first, next)
        });
        for (first, next) in outcomes {
            assert_eq!(first, [0.0; 36]);
            assert!(next.iter().all(|value| value.is_finite()) && next.iter().any(|value| *value != 0.0));
        }
    }
}

#[test]
fn red_24_a_gradient_of_lower_rank_than_asked_for_comes_through() {
    let layouts = layouts(DType::F32, &[vec![9, 8]], &[vec![0]]);
    for rank in [1, 2, 3] {
        let options = PowerSgdOptions { rank, min_rate: 0.5, error_feedback: false, ..low_rank() };
        let given: Vec<f64> =
            (0..72).map(|at| f64::from((at / 8) as f32 * 0.3 - 1.0) * f64::from((at % 8) as f32 - 2.5)).collect();
        let found = on_two(move || Box::new(power_sgd(options)), &[9, 8], [&given, &given]);
        let checked = compare("rank one", &found.expect("the step works"), &given, |_| 1e-5);
        assert_eq!(checked, Ok(()), "rank {rank} of {layouts:?}");
    }
}

#[test]
fn red_25_what_is_not_compressed_has_no_error() {
    let layouts = layouts(DType::F32, &[vec![6, 6], vec![6]], &[vec![1, 0]]);
    on_ranks(2, |rank| {
        let mut hook = power_sgd(low_rank());
        rank.step(&mut hook, &step(0, &layouts, &gradients(&layouts, place(rank)), 2.0)).expect("the step works");
        assert!(hook.state(0).is_some_and(|state| state.error.len() == 36 * 4));
        assert!(hook.state(1).is_none());
    });
}

/// All that ranks gave is what came out, times the divisor, and what they still have: whatever the divisor is.
#[test]
fn what_a_step_leaves_comes_with_the_next_ones() {
    let layouts = layouts(DType::F32, &[vec![8, 8]], &[vec![0]]);
    for divisor in [1.0, 2.0, 3.5] {
        let outcomes = on_ranks(2, |rank| {
            let mut hook = power_sgd(PowerSgdOptions { rank: 1, ..low_rank() });
            let given = gradients(&layouts, place(rank));
            let mut sum = vec![0.0; 64];
            for number in 0..20 {
                let outcome = rank.step(&mut hook, &step(number, &layouts, &given, divisor));
                let found = outcome.expect("the step works").0.concat();
                sum.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
            }
            (sum, hook.state(0).expect("it is compressed").error.clone())
        });
        let left = |at: usize| {
            let error = |error: &[u8]| f64::from(f32::from_le_bytes(error.as_chunks().0[at]));
            outcomes.iter().map(|(_, bytes)| error(bytes)).sum::<f64>()
        };
        let found: Vec<f64> = (0..64).map(|at| outcomes[0].0[at] * divisor + left(at)).collect();
        let expected: Vec<f64> = mean(&layouts, 2).iter().map(|mean| mean * 2.0 * 20.0).collect();
        assert_eq!(compare("all", &found, &expected, |_| 1e-4), Ok(()), "{divisor}");
        assert!((0..64).all(|at| left(at).abs() < 20.0), "errors do not grow");
    }
}

#[test]
fn red_22_state_goes_with_the_parameters_into_other_buckets() {
    let shapes = vec![vec![6, 6], vec![7, 5], vec![4], vec![8, 3]];
    let one = layouts(DType::F32, &shapes, &[vec![0, 1], vec![2, 3]]);
    let other = layouts(DType::F32, &shapes, &[vec![3, 2, 1], vec![0]]);
    // The same gradient for a parameter, wherever it lies.
    let given = |layouts: &[BucketLayout], rank: usize, number: usize| -> Vec<Vec<f64>> {
        let value = |param: usize, at: usize| {
            f64::from(((param * 31 + at * 17 + rank * 5 + number * 3) % 29) as f32 / 14.0 - 1.0)
        };
        let parts = |layout: &BucketLayout| {
            layout.parts.iter().flat_map(|part| (0..part.range.len()).map(|at| value(part.param, at))).collect()
        };
        layouts.iter().map(parts).collect()
    };
    let by_param = |layouts: &[BucketLayout], results: &[Vec<f64>]| {
        let parts = layouts.iter().zip(results).flat_map(|(l, r)| l.parts.iter().map(move |part| (part, r)));
        let mut all: Vec<(usize, Vec<f64>)> =
            parts.map(|(part, r)| (part.param, r[part.range.clone()].to_vec())).collect();
        all.sort_by_key(|(param, _)| *param);
        all
    };
    let run = |buckets: [&[BucketLayout]; 4]| {
        let outcomes = on_ranks(2, |rank| {
            let mut hook = power_sgd(low_rank());
            let mut known: &[BucketLayout] = &[];
            let mut last = Vec::new();
            for (number, layouts) in buckets.into_iter().enumerate() {
                if known != layouts {
                    hook.rebuilt(layouts, &rank.group);
                    known = layouts;
                }
                let given = given(layouts, place(rank), number);
                let outcome = rank.step(&mut hook, &step(number as u64, layouts, &given, 2.0));
                last = by_param(layouts, &outcome.expect("the step works").0);
            }
            last
        });
        outcomes.into_iter().next().expect("there are two ranks")
    };
    assert_eq!(run([&one, &one, &one, &one]), run([&one, &one, &other, &other]));
}

#[test]
fn red_19_a_step_that_failed_between_stages_leaves_no_gradient_behind() {
    let layouts = layouts(DType::F32, &[vec![6, 6]], &[vec![0]]);
    on_ranks(1, |rank| {
        let mut hook = power_sgd(low_rank());
        let given = gradients(&layouts, 0);
        let buffer = rank.fill(&layouts[0], &given[0]);
        let failed = step(0, &layouts, &given, 1.0);
        assert!(matches!(hook.begin(&rank.bucket(&failed, 0, &buffer)), Ok(Stage::Calls(_))));
        let mut fresh = power_sgd(low_rank());
        let after = rank.step(&mut hook, &step(1, &layouts, &given, 1.0)).expect("the step works");
        let expected = rank.step(&mut fresh, &step(1, &layouts, &given, 1.0)).expect("the step works");
        // The Q that the failed step took is drawn again.
        assert_eq!(after, expected);
    });
}

#[test]
fn red_21_compression_starts_with_its_step_in_all_buckets() {
    let layouts = layouts(DType::F32, &[vec![6, 6], vec![5, 5]], &[vec![0], vec![1]]);
    on_ranks(2, |rank| {
        let mut hook = power_sgd(PowerSgdOptions { start_step: 2, ..low_rank() });
        for number in 0..4 {
            let (_, calls) =
                rank.step(&mut hook, &step(number, &layouts, &gradients(&layouts, place(rank)), 2.0)).unwrap();
            let stages = if number < 2 { 1 } else { 2 };
            assert!(calls.iter().all(|calls| calls.len() == stages), "step {number}: {calls:?}");
        }
    });
}

#[test]
fn options_without_sense_are_refused() {
    for (options, word) in [
        (PowerSgdOptions { rank: 0, ..low_rank() }, "rank"),
        (PowerSgdOptions { min_rate: f64::NAN, ..low_rank() }, "minimum rate is NaN"),
        (PowerSgdOptions { epsilon: -1.0, ..low_rank() }, "epsilon"),
    ] {
        let error = PowerSgd::new(options).expect_err("it makes no sense");
        assert!(error.0.contains(word) || error.0.contains("NaN"), "{error}");
    }
}
