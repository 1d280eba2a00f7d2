//! Post-local SGD.

use super::given::{place, step};
use super::{layouts, on_ranks};
use crate::Hook;
use crate::hooks::{AverageError, PeriodicAverage, PostLocal, average_parameters};
use bucketeer_comm::Backend;
use bucketeer_types::{DType, GlobalRank};
use std::num::NonZeroU64;

#[test]
fn post_local_averages_within_the_subgroup_from_its_step() {
    let layouts = layouts(DType::F32, &[vec![3]], &[vec![0]]);
    let outcomes = on_ranks(4, |rank| {
        let mine = rank.group.rank().0 / 2 * 2;
        let pair = rank.backend.new_group("pair", &[GlobalRank(mine), GlobalRank(mine + 1)]).expect("all join");
        let mut hook = PostLocal::new(pair, 1);
        hook.rebuilt(&layouts, &rank.group);
        let given = vec![vec![place(rank) as f64; 3]];
        let global = rank.step(&mut hook, &step(0, &layouts, &given, 4.0)).expect("the step works").0.concat();
        let local = rank.step(&mut hook, &step(1, &layouts, &given, 4.0)).expect("the step works").0.concat();
        let weighted = rank.step(&mut hook, &step(2, &layouts, &given, 3.0)).expect_err("not known what to divide by");
        assert!(weighted.0.contains("the divisor is 3 for 4 ranks"), "{weighted}");
        (global[0], local[0])
    });
    assert_eq!(outcomes, [(1.5, 0.5), (1.5, 0.5), (1.5, 2.5), (1.5, 2.5)]);
}

#[test]
fn post_local_says_which_rank_of_its_subgroup_is_gone() {
    let layouts = layouts(DType::F32, &[vec![3]], &[vec![0]]);
    on_ranks(3, |rank| {
        let mut hook = PostLocal::new(rank.group.clone(), 0);
        if place(rank) < 2 {
            let fewer = rank.backend.new_group("fewer", &[GlobalRank(0), GlobalRank(1)]).expect("both join");
            hook.rebuilt(&layouts, &fewer);
            let given = vec![vec![1.0; 3]];
            let error = rank.step(&mut hook, &step(0, &layouts, &given, 3.0)).expect_err("rank 2 is gone");
            assert!(error.0.starts_with("rank 2 of subgroup world is not in group"), "{error}");
        }
    });
}

#[test]
fn parameters_are_averaged_in_one_call_for_each_dtype() {
    let outcomes = on_ranks(3, |rank| {
        let value = f32::from(place(rank) as u8);
        let mut one = [value.to_le_bytes(), (value * 3.0).to_le_bytes()].concat();
        // A third, which is no f16: equal parameters stay equal.
        let mut half = 0x3555u16.to_le_bytes();
        let (mut wide, mut none, mut complex) =
            (f64::from(value).to_le_bytes(), [], [one[..4].to_vec(), vec![0; 4]].concat());
        let mut tensors = [
            (DType::F32, &mut one[..]),
            (DType::F16, &mut half[..]),
            (DType::F64, &mut wide[..]),
            (DType::F32, &mut none[..]),
            (DType::C64, &mut complex[..]),
        ];
        average_parameters(&rank.backend, &rank.group, &mut tensors).expect("all are floats");
        let single =
            |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>();
        assert_eq!((single(&one), single(&complex)), (vec![1.0, 3.0], vec![1.0, 0.0]));
        assert_eq!((half, f64::from_le_bytes(wide)), (0x3555u16.to_le_bytes(), 1.0));
        let refused = average_parameters(&rank.backend, &rank.group, &mut [(DType::I64, &mut wide[..])]);
        let short = average_parameters(&rank.backend, &rank.group, &mut [(DType::F32, &mut wide[..3])]);
        [refused, short]
    });
    for [refused, short] in outcomes {
        assert_eq!(refused, Err(AverageError::DType { index: 0, dtype: DType::I64 }));
        assert_eq!(short, Err(AverageError::Length { index: 0, bytes: 3, dtype: DType::F32 }));
    }
}

#[test]
fn parameters_are_averaged_each_period_from_the_start() {
    let every = PeriodicAverage::new(10, NonZeroU64::new(4).expect("4 is not 0"));
    let due: Vec<u64> = (0..20).filter(|step| every.is_due(*step)).collect();
    assert_eq!(due, [10, 14, 18]);
}
