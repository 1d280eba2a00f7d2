//! The options of bucket passes: one table makes the page, reads texts and prints them.

use bucketeer::passes::Pipeline;
use bucketeer::passes::options::{BucketKind, BucketOptions, OPTIONS, OptionError, Values};
use bucketeer::passes::select::Policy;
use std::fmt::Write as _;

const HEAD: &str = "\
# Options of bucket passes

As they stand in the text of a pipeline, `bucket-all-gather{cap=25MiB,policy=adjacent}`, and on the command line. A test
makes this page from the table in `src/passes/options/table.rs`. Sizes are plain bytes, or have a unit: 25MB is 10^6 bytes each,
25MiB is 2^20. Lists are separated by `/`; on the command line, caps by `,`, and names are given one by one.

| option | command line | says | may be | if not given |
|---|---|---|---|---|
";

#[test]
fn the_page_of_options_is_what_the_table_says() {
    let mut page = HEAD.to_owned();
    for option in OPTIONS {
        let flag = match option.name {
            "cap" => "`--all-gather CAP` and so on".to_owned(),
            "suggested" => String::new(),
            "groups" => "`--group NAME`".to_owned(),
            "names" => "`--only PATTERN`".to_owned(),
            "except" => "`--except PATTERN`".to_owned(),
            name => format!("`--{name}`"),
        };
        let values = match option.values {
            Values::Words(words) | Values::Switch(words) => {
                let one = |word: &bucketeer::passes::options::Word| match word.help {
                    "" => format!("`{}`", word.word),
                    help => format!("`{}`: {}", word.word, help),
                };
                words.iter().map(one).collect::<Vec<_>>().join("<br>")
            }
            Values::Bytes => "a size".to_owned(),
            Values::Caps => "sizes, or `none`".to_owned(),
            Values::Count => "a whole number of at least 1".to_owned(),
            Values::Memory => "`normal`, `same`, a share such as `+5%`, a size, or `none`".to_owned(),
            Values::List => "a list".to_owned(),
            other => panic!("the page has no words for {other:?}"),
        };
        writeln!(page, "| `{}` | {flag} | {} | {values} | {} |", option.name, option.help, option.default).unwrap();
    }
    kit::files::hold_page("options.md", &page);
}

/// Each option with each word it may be, for each kind and policy: what is set is printed, and read back.
#[test]
fn every_value_of_every_option_is_read_back_as_printed() {
    let mut set = 0;
    for kind in BucketKind::ALL {
        let xla = BucketKind::XLA.contains(&kind).then_some(Policy::Xla);
        for policy in [Policy::Greedy, Policy::Adjacent].into_iter().chain(xla) {
            for option in OPTIONS {
                let words: Vec<&str> = match option.values {
                    Values::Words(words) | Values::Switch(words) => words.iter().map(|word| word.word).collect(),
                    Values::Caps => vec!["1KiB", "none", "3/5MB"],
                    Values::Count => vec!["1", "7", "none"],
                    Values::Memory => vec!["none", "normal", "same", "+5%", "+2.25%", "80GB"],
                    _ => vec!["3KiB"],
                };
                for word in words {
                    let mut options = BucketOptions::of_policy(kind, policy);
                    match options.set(option.name, word) {
                        Ok(()) => {}
                        Err(OptionError::Value { .. }) => continue,
                        Err(unknown) => panic!("{unknown}"),
                    }
                    // A policy that is changed afterwards leaves the other's defaults, all of which are then printed.
                    let text = options.to_string();
                    let pairs = text.split(',').map(|pair| pair.split_once('=').unwrap());
                    assert_eq!(BucketOptions::parse(kind, pairs).as_ref(), Ok(&options), "{text}");
                    let pipeline = format!("bucket-{}{{{text}}}", kind.word());
                    assert_eq!(pipeline.parse::<Pipeline>().unwrap().to_string(), pipeline);
                    set += 1;
                }
            }
        }
    }
    assert!(set > 400, "{set}");
}
