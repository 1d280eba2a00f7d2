//! Assignments to buckets, as PyTorch's `compute_bucket_assignment_by_size` makes them.

use bucketeer_reducer::{Item, assign};
use bucketeer_types::DType;
use serde_json::Value;

fn list(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
}

/// What is recorded of one case, and what this crate makes.
fn check(case: &Value) {
    let name = case["name"].as_str().unwrap();
    let dtypes = case["dtype"].as_array().unwrap();
    let count = dtypes.len();
    let devices = case.get("device").map_or(vec![0; count], list);
    let sparse = case.get("sparse").map_or(vec![0; count], list);
    // With explicit indices the position says which tensor is walked when; without, tensors are walked as they come.
    let numel = list(&case["numel"]);
    let item = |at: usize| {
        let dtype = DType::from_name(dtypes[at].as_str().unwrap()).unwrap();
        Item { bytes: numel[at] * dtype.bytes(), dtype, device: devices[at] as u32, sparse: false }
    };
    let at_positions: Vec<Item> = (0..count).map(item).collect();
    let caps = list(&case["caps"]);
    let found = match case.get("indices").map(list) {
        None => {
            let items = at_positions.iter().zip(&sparse).map(|(item, sparse)| Item { sparse: *sparse != 0, ..*item });
            assign(&items.collect::<Vec<_>>(), &caps, None)
        }
        Some(indices) => {
            let order: Vec<usize> = indices.iter().map(|index| *index as usize).collect();
            let mut items = at_positions.clone();
            for (position, &tensor) in order.iter().enumerate() {
                items[tensor] = Item { sparse: sparse[tensor] != 0, ..at_positions[position] };
            }
            assign(&items, &caps, Some(&order))
        }
    };
    let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
    let wanted: Vec<Vec<usize>> = serde_json::from_value(case["buckets"].clone()).unwrap();
    let limits = list(&case["limits"]);
    // Leftovers of several kinds are in the order of a hash map there.
    let any = case.get("tail_any_order").and_then(Value::as_u64).unwrap_or(0) as usize;
    let fixed = wanted.len() - any;
    assert_eq!(found.buckets.len(), wanted.len(), "{name}");
    assert_eq!(found.buckets[..fixed], wanted[..fixed], "{name}");
    assert_eq!(found.limits_bytes[..fixed], limits[..fixed], "{name}");
    let tail = |buckets: &[Vec<usize>], limits: &[u64]| {
        let mut tail: Vec<_> = buckets[fixed..].iter().cloned().zip(limits[fixed..].iter().copied()).collect();
        tail.sort();
        tail
    };
    assert_eq!(tail(&found.buckets, &found.limits_bytes), tail(&wanted, &limits), "{name}");
}

#[test]
fn red_01_all_recorded_assignments_are_made() {
    let text = std::fs::read_to_string(reducer_suite::folder().join("bucket_assignment.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!cases.is_empty(), "there are no recordings");
    cases.iter().for_each(check);
}

#[test]
fn red_02_what_is_left_over_follows_in_the_order_in_which_its_kinds_came() {
    let kinds = [DType::F16, DType::F64, DType::Bf16, DType::F32, DType::C64];
    for first in 0..kinds.len() {
        let items: Vec<Item> =
            (0..10).map(|at| Item { bytes: 2, dtype: kinds[(first + at) % 5], device: 0, sparse: false }).collect();
        let order: Vec<usize> = (0..10).rev().collect();
        let found = assign(&items, &[100], Some(&order)).unwrap();
        assert_eq!(found.buckets, [[9, 4], [8, 3], [7, 2], [6, 1], [5, 0]]);
    }
}
