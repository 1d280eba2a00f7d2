//! Every planted fault is refused by the checker alone. `cargo test --test planted_faults -- --nocapture` prints the
//! table of faults and what was said.

mod files;
mod planted;

use bucketeer::check::{Options, Verdict, prove_with};
use planted::{FAULTS, pairs};

#[test]
fn every_planted_fault_is_refused() {
    let pairs = pairs();
    let options = |name: &str| Options { outputs_may_share: name.starts_with("PyTorch"), ..Options::default() };
    for pair in &pairs {
        let verdict = prove_with(&pair.before, &pair.after, options(&pair.name));
        assert!(verdict.is_equal(), "{} without a fault: {verdict}", pair.name);
    }
    println!("{:52} {:>7}  first refusal", "fault", "planted");
    let (mut accepted, mut missing) = (Vec::new(), Vec::new());
    for fault in FAULTS {
        let (mut planted, mut said) = (0, None);
        for pair in &pairs {
            let mut after = pair.after.clone();
            // PyTorch's outputs share memory as it is.
            if fault.name.contains("escaping") && options(&pair.name).outputs_may_share {
                continue;
            }
            if !(fault.plant)(&mut after) {
                continue;
            }
            planted += 1;
            match prove_with(&pair.before, &after, options(&pair.name)) {
                Verdict::Equal(_) => accepted.push(format!("{}: {}", fault.name, pair.name)),
                verdict => {
                    said.get_or_insert_with(|| verdict.to_string().lines().next().unwrap_or_default().to_owned());
                }
            }
        }
        if planted == 0 {
            missing.push(fault.name);
        }
        println!("{:52} {planted:>7}  {}", fault.name, said.unwrap_or_default());
    }
    assert!(accepted.is_empty(), "accepted:\n{}", accepted.join("\n"));
    // Only PyTorch's own merged graphs gather in place, and they are beside the tree; without them that is skipped.
    if files::shared().is_none() {
        missing.retain(|name| *name != "input of a gather not at a rank's place");
    }
    assert!(missing.is_empty(), "no graph has a place for: {missing:?}");
    assert!(FAULTS.len() >= 25);
}
