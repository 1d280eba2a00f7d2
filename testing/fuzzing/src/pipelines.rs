//! Texts of pipelines, put together from all options that passes have.

use super::choices::Choices;

const KINDS: [&str; 5] = ["all-gather", "reduce-scatter", "all-reduce", "broadcast", "all-to-all"];
const TIDY: [&str; 3] = ["dedupe-waits", "fold-trivial", "dedupe-collectives"];

/// Values of the options; an empty text leaves the option out. Those of more weight stand more than once.
const CAPS: [&str; 10] = ["none", "none", "none", "none", "1", "64", "200B", "64/256", "1KiB", "1GiB"];
const POLICIES: [&str; 4] = ["", "", "greedy", "adjacent"];
const UNPACKS: [&str; 5] = ["", "", "auto", "views", "copies"];
const MEMBERS: [&str; 5] = ["", "", "", "2", "3"];
const MEMBER_BYTES: [&str; 8] = ["", "", "", "", "", "", "32", "100B"];
const GROUPS: [&str; 10] = ["", "", "", "", "", "", "", "", "G0", "G1/G2"];
const NAMES: [&str; 10] = ["", "", "", "", "", "", "", "", "c*", "c?/c1*"];
const EXCEPT: [&str; 10] = ["", "", "", "", "", "", "", "", "*3", "c?"];
const MODES: [&str; 3] = ["", "concat", "coalesced"];
const DTYPES: [&str; 3] = ["", "split", "bytes"];
const SWITCHES: [&str; 10] = ["", "", "", "", "", "", "", "", "on", "off"];

/// The text of a pipeline of one to six passes, in any order.
#[must_use]
pub fn pipeline_text(choices: &mut Choices<'_>) -> String {
    let count = 1 + choices.below(6);
    let passes: Vec<String> = (0..count).map(|_| pass(choices)).collect();
    passes.join(",")
}

fn pass(choices: &mut Choices<'_>) -> String {
    let kind = choices.below(KINDS.len() + TIDY.len());
    let Some(kind) = KINDS.get(kind) else { return TIDY[kind - KINDS.len()].to_owned() };
    let mut options = Vec::new();
    let mut option = |key: &str, values: &[&str]| match values[choices.below(values.len())] {
        "" => {}
        value => options.push(format!("{key}={value}")),
    };
    option("cap", &CAPS);
    option("policy", &POLICIES);
    option("unpack", &UNPACKS);
    option("max-members", &MEMBERS);
    option("max-member", &MEMBER_BYTES);
    option("groups", &GROUPS);
    option("names", &NAMES);
    option("except", &EXCEPT);
    option("in-loops", &SWITCHES);
    option("fsdp-only", &SWITCHES);
    if !matches!(*kind, "broadcast" | "all-to-all") {
        option("mode", &MODES);
    }
    if *kind == "all-gather" {
        option("mixed-dtype", &DTYPES);
    }
    format!("bucket-{kind}{{{}}}", options.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::passes::Pipeline;

    #[test]
    fn every_text_is_a_pipeline() {
        for seed in 0..=255u8 {
            let bytes: Vec<u8> = (0..100u8).map(|at| at.wrapping_mul(seed).wrapping_add(seed >> 3)).collect();
            let text = pipeline_text(&mut Choices::new(&bytes));
            assert!(text.parse::<Pipeline>().is_ok(), "{text}");
        }
    }
}
