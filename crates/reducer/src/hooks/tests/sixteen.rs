//! 16-bit hooks, where they differ from PyTorch's.

use super::cases::{compare, recorded, ulp};
use super::fixture::{cases, name};
use super::given::{Make, on_two, place, step};
use super::{numbers, on_ranks};
use crate::Divide;
use crate::hooks::Cast16;
use crate::{Hook, HookError, Stage};
use bucketeer_types::DType;

#[test]
fn red_26_what_overflows_or_vanishes_in_16_bits_before_it_is_divided_does_not_afterwards() {
    let given: [&[f64]; 2] =
        [&[60_000.0, 65_520.0, 70_000.0, 1e-6, -131_008.0], &[60_000.0, 10.0, -70_000.0, 1e-6, 65_504.0]];
    let run = |divide| on_two(move || Box::new(Cast16::f16().divide(divide)), &[5], given).expect("f32 is cast");
    let expected = [60_000.0, 32_765.0, 0.0, 1e-6, -32_752.0];
    let tolerance = |value| 2.0 * ulp(DType::F16, value);
    assert_eq!(compare("before the cast", &run(Divide::BeforeCast), &expected, tolerance), Ok(()));
    let within = run(Divide::OnWire);
    assert!(within[1].is_infinite() && within[2].is_nan() && within[4].is_infinite(), "{within:?}");
    let after = run(Divide::AfterSum);
    assert!(after[0].is_infinite(), "{after:?}");
    // A value that half of is lost.
    let least = 2f64.powi(-24);
    let run = |divide| on_two(move || Box::new(Cast16::f16().divide(divide)), &[1], [&[least], &[least]]).unwrap();
    assert_eq!((run(Divide::OnWire), run(Divide::AfterSum)), (vec![0.0], vec![least]));
}

#[test]
fn red_26_recorded_gradients_divided_before_the_cast_are_within_a_rounding_of_the_mean() {
    let casts = cases().into_iter().filter(|case| ["fp16", "bf16", "bf16_w3"].contains(&name(case)));
    for case in casts {
        for step_of in recorded(&case) {
            let world = step_of.gradients.len();
            let (dtype, hook): (DType, Make) = match name(&case) {
                "fp16" => (DType::F16, || Box::new(Cast16::f16())),
                _ => (DType::Bf16, || Box::new(Cast16::bf16())),
            };
            let outcomes = on_ranks(world as u32, |rank| {
                let given = step(0, &step_of.layouts, &step_of.gradients[place(rank)], world as f64);
                rank.step(&mut *hook(), &given).expect("f32 is cast").0.concat()
            });
            let ranks: Vec<Vec<f64>> = step_of.gradients.iter().map(|buckets| buckets.concat()).collect();
            for (at, found) in outcomes[0].iter().enumerate() {
                let mean = ranks.iter().map(|rank| rank[at]).sum::<f64>() / world as f64;
                let most = ranks.iter().map(|rank| rank[at].abs()).sum::<f64>() / world as f64;
                assert!((found - mean).abs() <= world as f64 * ulp(dtype, most), "{found} for {mean}");
            }
        }
    }
}

#[test]
fn a_hook_around_another_takes_a_result_from_any_buffer() {
    struct Elsewhere;
    impl Hook for Elsewhere {
        fn describe(&self) -> String {
            "elsewhere".to_owned()
        }
        fn begin(&mut self, bucket: &crate::HookBucket<'_>) -> Result<Stage, HookError> {
            assert_eq!(bucket.layout().dtype, DType::F16);
            let given = numbers(DType::F16, bucket.buffer());
            let buffer = bucket.scratch(bucket.buffer().bytes())?;
            let doubled: Vec<f64> = given.iter().map(|value| value * 2.0).collect();
            super::values::store(DType::F16, &doubled, &mut buffer.write()?)?;
            Ok(Stage::DoneIn(buffer))
        }
        fn next(&mut self, _: &crate::HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
            Err("there is no stage".into())
        }
    }
    let found = on_two(|| Box::new(Cast16::f16_around(Elsewhere)), &[2], [&[1.0, 3.0], &[1.0, 3.0]]);
    assert_eq!(found, Ok(vec![1.0, 3.0]));
}
