//! Many ranks, overlapping groups, each rank in an order of its own, with random delays: every result is exact.
//! `cargo bench --bench stress` does the same for longer.

use kit::stress;

#[test]
fn calls_of_overlapping_groups_are_exact_in_any_order_and_with_any_delays() {
    for seed in 0..5 {
        assert!(stress::cross_group_order(seed, 5) >= 5);
    }
}
