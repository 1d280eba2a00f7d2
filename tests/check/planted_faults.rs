//! Planted faults: each is refused by the checker alone, and those that change values are found by the evaluator alone.
//! `cargo test --test check planted_faults -- --nocapture` prints the table of faults and what was said.

use bucketeer::check::{Options, Verdict, prove_with};
use bucketeer_eval::{EvalError, compare};
use kit::planted::{FAULTS, Pair, PlantedFault, Values, pairs, with_planted};

/// PyTorch's outputs share memory as it is.
fn options(pair: &Pair) -> Options {
    Options { outputs_may_share: pair.name.starts_with("PyTorch"), ..Options::default() }
}

/// One fault in one pair.
struct Planted {
    pair: String,
    /// What the checker says; none where it calls the graphs equal.
    refused: Option<String>,
    /// What the evaluator says, where it can run the graphs: none where it finds no difference.
    caught: Option<Option<String>>,
}

fn plant(fault: &'static PlantedFault, pair: &Pair) -> Option<Planted> {
    let mut after = pair.after.clone();
    if (fault.name.contains("escaping") && options(pair).outputs_may_share) || !(fault.plant)(&mut after) {
        return None;
    }
    let refused = match prove_with(&pair.before, &after, options(pair)) {
        Verdict::Equal(_) => None,
        verdict => Some(verdict.to_string().lines().next().unwrap_or_default().to_owned()),
    };
    let caught =
        pair.eval.as_ref().map(|options| match compare(&pair.before, &after, &with_planted(options, &after)) {
            Ok(comparison) => comparison.differences.first().map(ToString::to_string),
            // They have not the same outputs.
            Err(error @ EvalError::Unrelated(_)) => Some(error.to_string()),
            Err(error) => panic!("{}, {}: {error}", fault.name, pair.name),
        });
    Some(Planted { pair: pair.name.clone(), refused, caught })
}

/// Faults that change values and that the evaluator does not find, or does not look for, with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[(
    "input of a gather not at a rank's place",
    "",
    "only PyTorch's merged graphs gather in place; they are too large to run, and right on one rank alone",
)];

fn is_exception(fault: &str, pair: &str) -> bool {
    EXCEPTIONS.iter().any(|(known, of, _)| *known == fault && (of.is_empty() || *of == pair))
}

/// One line of the table, and what is wrong about it.
fn report(fault: &PlantedFault, planted: &[Planted], wrong: &mut Vec<String>) {
    let run: Vec<&Planted> = planted.iter().filter(|planted| planted.caught.is_some()).collect();
    let caught: Vec<&&Planted> =
        run.iter().filter(|planted| planted.caught.as_ref().is_some_and(Option::is_some)).collect();
    for planted in planted.iter().filter(|planted| planted.refused.is_none()) {
        wrong.push(format!("{}: the checker accepts it in {}", fault.name, planted.pair));
    }
    if fault.values == Values::Change {
        let missed =
            run.iter().filter(|planted| planted.caught == Some(None) && !is_exception(fault.name, &planted.pair));
        wrong.extend(missed.map(|planted| format!("{}: the evaluator misses it in {}", fault.name, planted.pair)));
        if run.is_empty() && !planted.is_empty() && !is_exception(fault.name, "") {
            wrong.push(format!("{}: the evaluator never ran it", fault.name));
        }
    }
    let words =
        |text: Option<&String>| text.map_or_else(String::new, |text| text.lines().next().unwrap_or("").to_owned());
    let said = words(planted.iter().find_map(|planted| planted.refused.as_ref()));
    let ran = format!("{} of {}", caught.len(), run.len());
    let note = match (fault.values, caught.first()) {
        (_, Some(first)) => words(first.caught.as_ref().and_then(Option::as_ref)),
        (Values::Stay(reason), None) => format!("({reason})"),
        (Values::Change, None) => String::new(),
    };
    println!(
        "{:50} {:>7} {:>7} {ran:>8}  {said}",
        fault.name,
        planted.len(),
        planted.iter().filter(|p| p.refused.is_some()).count()
    );
    println!("{:76}{note}", "");
}

fn check(pairs: &[Pair]) {
    for pair in pairs {
        let verdict = prove_with(&pair.before, &pair.after, options(pair));
        assert!(verdict.is_equal(), "{} without a fault: {verdict}", pair.name);
        let Some(options) = &pair.eval else { continue };
        let comparison = compare(&pair.before, &pair.after, options);
        let comparison = comparison.unwrap_or_else(|error| panic!("{}: {error}", pair.name));
        assert!(comparison.is_equal(), "{} without a fault: {:?}", pair.name, comparison.differences);
    }
    println!(
        "{:50} {:>7} {:>7} {:>8}  what the checker says, and the evaluator",
        "fault", "planted", "refused", "caught"
    );
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    for fault in FAULTS {
        let planted: Vec<Planted> = pairs.iter().filter_map(|pair| plant(fault, pair)).collect();
        report(fault, &planted, &mut wrong);
        if planted.is_empty() {
            missing.push(fault.name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(missing.is_empty(), "no graph has a place for: {missing:?}");
    assert!(FAULTS.len() >= 25);
}

#[test]
fn every_planted_fault_is_refused_and_those_that_change_values_are_caught() {
    let mut pairs = pairs();
    // Their evaluation takes seconds without optimisation; the next test does it.
    for pair in pairs.iter_mut().filter(|pair| pair.name.starts_with("tiny_")) {
        pair.eval = None;
    }
    check(&pairs);
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn every_planted_fault_is_caught_in_whole_training_steps_too() {
    check(&pairs());
}
