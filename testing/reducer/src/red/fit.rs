//! Buckets of sizes that fit.

use super::{case, f32s, indices, make, make_recorded, mean, pairs, place, read, same_on_all, whole_step};
use crate::Case;
use bucketeer_reducer::{Caps, Fit, Param, ReducerOptions};
use bucketeer_types::DType;
use std::time::Duration;

fn fit(fit: Fit) -> ReducerOptions {
    ReducerOptions { caps: Caps::Fit(fit), ..ReducerOptions::default() }
}

pub fn cases() -> Vec<Case> {
    vec![
        case("sizes_that_fit_are_planned_by_rank_0_from_measured_steps_and_are_the_same_on_all_ranks", 2, |rank| {
            let count = 6;
            let params = (0..count).map(|at| Param::new(format!("p{at}"), &[1000], DType::F32)).collect();
            let mut reducer = make(rank, params, fit(Fit { measured_steps: 2, ..Fit::default() }));
            for step in 0..8 {
                let begun = reducer.step().unwrap();
                for param in (0..count).rev() {
                    begun.ready(param, &f32s(&vec![(place(rank) + param) as f32; 1000])).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
                let reduced = begun.finish().unwrap();
                assert_eq!(read(&reduced, 3, 1000), Some(vec![3.5; 1000]), "step {step}");
            }
            // By default all would be one bucket. With 2 ms between gradients, each message is over before the next is due.
            assert!(reducer.buckets().len() > 1, "{:?}", indices(&reducer));
            same_on_all(rank, format!("{:?}", indices(&reducer)).as_bytes());
            assert_eq!(reducer.fit_report().is_some(), place(rank) == 0);
            if let Some(report) = reducer.fit_report() {
                assert_eq!(report.steps, 5);
                assert!(report.measured_exposed.is_some() && report.expected_exposed < Duration::from_millis(10));
            }
        }),
        case("a_known_cost_is_not_measured_again", 2, |rank| {
            // A message costs a day: all in one.
            let piece = bucketeer_chain::Piece { alpha_ns: 86_400_000_000_000, ns_per_byte_num: 1, ns_per_byte_den: 1 };
            let cost = bucketeer_chain::MessageCost::new(vec![piece]).unwrap();
            let (mut reducer, recorder) =
                make_recorded(rank, pairs(4), fit(Fit { cost: Some(cost), measured_steps: 1 }));
            for _ in 0..4 {
                let reduced = whole_step(&mut reducer, place(rank), &[2, 3, 1, 0]);
                assert_eq!(read(&reduced, 3, 2), Some(mean(2, 3, 2)));
            }
            assert_eq!(indices(&reducer), [[2, 3, 1, 0]]);
            // Two rebuilds of two broadcasts, and a launch in each step.
            assert_eq!(recorder.take().len(), 8);
        }),
    ]
}
