//! The rows of the table of options.

use super::{BucketKind, BucketOption, Measure, MixedDtype, Mode, Unpack, Values, Word};
use crate::passes::select::Policy;
use bucketeer_types::sizes::{format_bytes, parse_bytes};

const fn word(word: &'static str, help: &'static str) -> Word {
    Word { word, help }
}

const ON_OFF: &[Word] = &[word("on", ""), word("off", "")];

/// All options, in the order in which they are printed.
pub const OPTIONS: &[BucketOption] = &[
    BucketOption {
        name: "cap",
        help: "The most bytes of a bucket: one number, or a list for the first bucket of a group, the second, and so \
               on; the last goes for all further ones",
        default: "256 MiB for gathers, scatters and all-to-alls, else 25 MiB; with policy xla 30 MiB and 7 bytes",
        values: Values::Caps,
        get: |options| match &*options.caps.cap_bytes {
            [] => "none".to_owned(),
            caps => caps.iter().map(|&cap| format_bytes(cap)).collect::<Vec<_>>().join("/"),
        },
        set: |options, value| {
            options.caps.cap_bytes = match value {
                "none" | "unlimited" => Vec::new(),
                _ => value.split('/').map(cap_bytes).collect::<Result<_, _>>()?,
            };
            Ok(())
        },
    },
    BucketOption {
        name: "max-members",
        help: "Most members of a bucket",
        default: "no limit; with policy xla 2048",
        values: Values::Count,
        get: |options| options.caps.max_members.map_or("none".to_owned(), |most| most.to_string()),
        set: |options, value| {
            options.caps.max_members = match (value, value.parse::<usize>()) {
                ("none", _) => None,
                (_, Ok(most)) if most > 0 => Some(most),
                _ => {
                    return Err(
                        "expected a whole number of at least 1, for a bucket has at least one member".to_owned()
                    );
                }
            };
            Ok(())
        },
    },
    BucketOption {
        name: "max-member",
        help: "Largest collective to bucket: a larger one moves fast enough alone, or is not worth copying",
        default: "no limit",
        values: Values::Bytes,
        get: |options| options.max_member_bytes.map_or("none".to_owned(), format_bytes),
        set: |options, value| optional_bytes(&mut options.max_member_bytes, value),
    },
    BucketOption {
        name: "suggested",
        help: "The cap that XLA's annotator wrote into a module, for what is pipelined or marked as synchronous",
        default: "what the module says, with policy xla at its own caps",
        values: Values::Bytes,
        get: |options| options.suggested_cap_bytes.map_or("none".to_owned(), format_bytes),
        set: |options, value| optional_bytes(&mut options.suggested_cap_bytes, value),
    },
    BucketOption {
        name: "memory",
        help: "The most bytes alive at once, by program order and without inputs; what would pass it is not merged",
        default: "none",
        values: Values::Memory,
        get: |options| options.memory.to_string(),
        set: |options, value| value.parse().map(|cap| options.memory = cap).map_err(|error| format!("{error}")),
    },
    BucketOption {
        name: "policy",
        help: "Which collectives are tried with which",
        default: "greedy",
        values: Values::Words(&[
            word("greedy", "First fit over all that may travel together"),
            word("adjacent", "Neighbours in wait order, as PyTorch Inductor does"),
            word(
                "xla",
                "As XLA's combiners do; with their caps for GPUs (30 MiB and 7 bytes, 2048 members) where none are given",
            ),
        ]),
        get: |options| {
            match options.policy {
                Policy::Greedy => "greedy",
                Policy::Adjacent => "adjacent",
                Policy::Xla => "xla",
            }
            .to_owned()
        },
        set: |options, value| {
            options.policy = match value {
                "greedy" => Policy::Greedy,
                "adjacent" => Policy::Adjacent,
                "xla" if !BucketKind::XLA.contains(&options.kind) => {
                    return Err(format!("XLA has no combiner of {}s", options.kind.word()));
                }
                "xla" => Policy::Xla,
                _ => return Err(expected(&["greedy", "adjacent", "xla"], value)),
            };
            Ok(())
        },
    },
    BucketOption {
        name: "mode",
        help: "How members are put together",
        default: "concat; of HLO text, and with policy xla, coalesced",
        values: Values::Words(&[
            word("concat", "One buffer: pack, one collective, unpack"),
            word("coalesced", "One grouped launch of the members as they are"),
        ]),
        get: |options| if options.mode == Mode::Coalesced { "coalesced" } else { "concat" }.to_owned(),
        set: |options, value| {
            options.mode = match value {
                "concat" if options.kind == BucketKind::Permute => {
                    return Err("permutes are merged as they are, which is mode coalesced".to_owned());
                }
                "concat" => Mode::Concat,
                "coalesced" if matches!(options.kind, BucketKind::Broadcast | BucketKind::AllToAll) => {
                    return Err(format!("PyTorch has no coalesced {}", options.kind.word()));
                }
                "coalesced" => Mode::Coalesced,
                _ => return Err(expected(&["concat", "coalesced"], value)),
            };
            Ok(())
        },
    },
    BucketOption {
        name: "mixed-dtype",
        help: "Whether gathers of different dtypes may travel together",
        default: "split; of HLO text, in one tuple, bytes",
        values: Values::Words(&[word("split", "No"), word("bytes", "Yes, as bytes")]),
        get: |options| if options.mixed_dtype == MixedDtype::Bytes { "bytes" } else { "split" }.to_owned(),
        set: |options, value| {
            options.mixed_dtype = match value {
                "split" => MixedDtype::Split,
                "bytes" if !options.kind.mixes_dtypes() => {
                    return Err("only gathers and permutes may travel as bytes".to_owned());
                }
                "bytes" => MixedDtype::Bytes,
                _ => return Err(expected(&["split", "bytes"], value)),
            };
            Ok(())
        },
    },
    BucketOption {
        name: "by-dim",
        help: "Whether gathers and scatters along different dimensions are kept apart",
        default: "auto; with policy xla off",
        values: Values::Switch(&[word("on", ""), word("off", ""), word("auto", "In mode coalesced")]),
        get: |options| options.by_dim.map_or("auto", on_or_off).to_owned(),
        set: |options, value| {
            options.by_dim = if value == "auto" { None } else { Some(switch(value)?) };
            Ok(())
        },
    },
    BucketOption {
        name: "measure",
        help: "What counts against a cap",
        default: "larger; with policy xla result",
        values: Values::Words(&[
            word("larger", "The larger of what goes in and what comes out"),
            word("result", "What comes out, as XLA counts"),
        ]),
        get: |options| if options.measure == Measure::Result { "result" } else { "larger" }.to_owned(),
        set: |options, value| {
            options.measure = match value {
                "larger" => Measure::Larger,
                "result" => Measure::Result,
                _ => return Err(expected(&["larger", "result"], value)),
            };
            Ok(())
        },
    },
    BucketOption {
        name: "boundaries",
        help: "Whether boundaries that users set (`key=`, and in HLO text `combiner_key` and `collective_group_key`) \
               keep collectives apart",
        default: "on; with policy xla only `combiner_key`, as in jaxlib 0.10.2 on GPUs; on CPUs it has none, which is \
                  off",
        values: Values::Switch(&[word("on", ""), word("off", ""), word("combiner-key", "Only `combiner_key`")]),
        get: |options| {
            match (options.boundaries, options.combiner_keys) {
                (false, true) => "combiner-key",
                (all, _) => on_or_off(all),
            }
            .to_owned()
        },
        set: |options, value| {
            options.boundaries = value != "combiner-key" && switch(value)?;
            options.combiner_keys = value == "combiner-key" || options.boundaries;
            Ok(())
        },
    },
    BucketOption {
        name: "unpack",
        help: "What scatters and reduces hand out",
        default: "auto; of HLO text views",
        values: Values::Words(&[
            word("auto", "Views where nothing writes a result and none leaves the graph, else copies"),
            word("views", "Views where nothing writes a result or sees where it begins"),
            word("copies", "Copies"),
        ]),
        get: |options| {
            match options.unpack {
                Unpack::Auto => "auto",
                Unpack::Views => "views",
                Unpack::Copies => "copies",
            }
            .to_owned()
        },
        set: |options, value| {
            options.unpack = match value {
                "auto" => Unpack::Auto,
                "views" => Unpack::Views,
                "copies" => Unpack::Copies,
                _ => return Err(expected(&["auto", "views", "copies"], value)),
            };
            Ok(())
        },
    },
    BucketOption {
        name: "fsdp-only",
        help: "Only FSDP's gathers of parameters and scatters of gradients",
        default: "off",
        values: Values::Switch(ON_OFF),
        get: |options| on_or_off(options.fsdp_only).to_owned(),
        set: |options, value| switch(value).map(|on| options.fsdp_only = on),
    },
    BucketOption {
        name: "in-loops",
        help: "Whether collectives in loop bodies are bucketed, each body by itself",
        default: "on",
        values: Values::Words(ON_OFF),
        get: |options| on_or_off(options.in_loops).to_owned(),
        set: |options, value| switch(value).map(|on| options.in_loops = on),
    },
    BucketOption {
        name: "groups",
        help: "Only collectives of these process groups",
        default: "all",
        values: Values::List,
        get: |options| options.groups.join("/"),
        set: |options, value| set_list(&mut options.groups, value),
    },
    BucketOption {
        name: "names",
        help: "Only collectives whose name matches; `*` is any text, `?` any character",
        default: "all",
        values: Values::List,
        get: |options| options.names.join("/"),
        set: |options, value| set_list(&mut options.names, value),
    },
    BucketOption {
        name: "except",
        help: "No collective whose name matches",
        default: "none",
        values: Values::List,
        get: |options| options.except.join("/"),
        set: |options, value| set_list(&mut options.except, value),
    },
];

fn expected(words: &[&str], found: &str) -> String {
    format!("expected one of {}, found `{found}`", words.join(", "))
}

fn cap_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("a cap of zero holds nothing; leave the pass out to merge nothing".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn optional_bytes(limit: &mut Option<u64>, text: &str) -> Result<(), String> {
    *limit = match (text, parse_bytes(text)) {
        ("none", _) => None,
        (_, Ok(0)) => return Err("a limit of zero holds nothing".to_owned()),
        (_, Ok(bytes)) => Some(bytes),
        (_, Err(error)) => return Err(error.to_string()),
    };
    Ok(())
}

fn set_list(list: &mut Vec<String>, text: &str) -> Result<(), String> {
    *list = text.split('/').map(|part| part.trim().to_owned()).collect();
    Ok(())
}

const fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "" | "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(format!("expected on or off, found `{value}`")),
    }
}
