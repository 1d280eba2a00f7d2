//! Every case of the recording.

use super::fixture::{Kind, cases, kind, name};
use super::{cases as checks, low_rank};

/// Runs each case and reports all that differ. Which check a case has is told by what is in it; one that no check is
/// for fails.
#[test]
fn recorded_cases_match() {
    let mut wrong = Vec::new();
    for case in cases() {
        let result = kind(&case).and_then(|kind| match kind {
            Kind::Unable => low_rank::check_batched(),
            Kind::Cast(dtype) => checks::check_cast(&case, dtype),
            Kind::LowRank(options, within) => low_rank::check(&case, options, within),
            Kind::Quantise(block) => checks::check_quantise(&case, block),
        });
        if let Err(reason) = result {
            wrong.push(format!("{}: {reason}", name(&case)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
