//! Whether faults show when graphs are scaled down.

use super::{FAULTS, Pair, PlantedFault, Values, with_planted};
use bucketeer_eval::{Difference, EvalError, EvalOptions, compare, shrink};

/// What small sizes do not show: a table whose columns are the ranks has no sizes that follow, and is refused; that a
/// gather in place does not send from its rank's place changes no value here.
fn is_beyond(pair: &Pair, fault: &PlantedFault) -> bool {
    let in_place = "input of a gather not at a rank's place";
    fault.name == "gathered table transposed" || (fault.name == in_place && pair.name.contains("all_gather.default"))
}

/// Plants the faults that change values and are asked for: how many were found, and which were not.
pub fn planted_at_small_sizes(pair: &Pair, asked: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let options =
        EvalOptions { groups: crate::files::groups(&pair.name).into_iter().collect(), ..EvalOptions::default() };
    let (mut found, mut missed) = (0, Vec::new());
    for fault in FAULTS
        .iter()
        .filter(|fault| matches!(fault.values, Values::Change) && asked(fault.name) && !is_beyond(pair, fault))
    {
        let mut faulty = pair.after.clone();
        if !(fault.plant)(&mut faulty) {
            continue;
        }
        let shown = shrink(&[&pair.before, &faulty], &with_planted(&options, &faulty))
            .map_err(|error| error.to_string())
            .and_then(|scaled| {
                match compare(&scaled.graphs[0], &scaled.graphs[1], &with_planted(&options, &faulty)) {
                    // PyTorch's outputs share memory as it is.
                    Ok(comparison) => {
                        Ok(comparison.differences.iter().any(|found| !matches!(found, Difference::Sharing { .. })))
                    }
                    Err(EvalError::Unrelated(_)) => Ok(true),
                    Err(error) => Err(error.to_string()),
                }
            });
        match shown {
            Ok(true) => found += 1,
            Ok(false) => missed.push(format!("{}: {}", pair.name, fault.name)),
            Err(error) => missed.push(format!("{}: {}: {error}", pair.name, fault.name)),
        }
    }
    (found, missed)
}
