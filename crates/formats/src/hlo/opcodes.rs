//! What opcodes do beside computing.

/// Opcodes that compute, move elements or call, in the order of the alphabet. What is not here may do anything.
const LOCAL: &[&str] = &[
    "abs",
    "acos",
    "acosh",
    "add",
    "add-dependency",
    "after-all",
    "and",
    "asin",
    "asinh",
    "async",
    "atan2",
    "atanh",
    "batch-norm-grad",
    "batch-norm-inference",
    "batch-norm-training",
    "bitcast",
    "bitcast-convert",
    "broadcast",
    "call",
    "cbrt",
    "ceil",
    "cholesky",
    "clamp",
    "compare",
    "complex",
    "concatenate",
    "conditional",
    "constant",
    "convert",
    "convolution",
    "copy",
    "cosh",
    "cosine",
    "count-leading-zeros",
    "custom-call",
    "divide",
    "domain",
    "dot",
    "dynamic-reshape",
    "dynamic-slice",
    "dynamic-update-slice",
    "erf",
    "exponential",
    "exponential-minus-one",
    "fft",
    "floor",
    "fusion",
    "gather",
    "get-dimension-size",
    "get-tuple-element",
    "imag",
    "iota",
    "is-finite",
    "log",
    "log-plus-one",
    "logistic",
    "map",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "opt-barrier",
    "optimization-barrier",
    "or",
    "pad",
    "parameter",
    "partition-id",
    "popcnt",
    "power",
    "ragged-dot",
    "real",
    "reduce",
    "reduce-precision",
    "reduce-window",
    "remainder",
    "replica-id",
    "reshape",
    "reverse",
    "rng",
    "rng-bit-generator",
    "rng-get-and-update-state",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "scaled-dot",
    "scan",
    "scatter",
    "select",
    "select-and-scatter",
    "set-dimension-size",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "sine",
    "sinh",
    "slice",
    "sort",
    "sqrt",
    "stochastic-convert",
    "subtract",
    "tan",
    "tanh",
    "topk",
    "transpose",
    "triangular-solve",
    "tuple",
    "while",
    "xor",
];

/// Opcodes that move data between the devices of a group.
const COLLECTIVES: &[&str] = &[
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
];

/// What an opcode does beside computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// Nothing.
    Computes,
    /// Moves data between the devices of a group.
    Collective,
    /// Talks to another device, or to the host.
    Talks,
    /// Nobody here knows.
    Unknown,
}

/// What an opcode does. What ends something that is in flight does nothing new.
pub(super) fn doing(opcode: &str) -> Doing {
    let bare = |end: &str| opcode.strip_suffix(end);
    if let Some(begun) = bare("-done").or_else(|| bare("-update")) {
        // The receiver of a message says so with both halves.
        return if matches!(begun, "send" | "recv") { Doing::Talks } else { Doing::Computes };
    }
    let base = bare("-start").unwrap_or(opcode);
    match base {
        "send" | "recv" | "infeed" | "outfeed" => Doing::Talks,
        _ if COLLECTIVES.contains(&base) => Doing::Collective,
        _ if LOCAL.binary_search(&base).is_ok() => Doing::Computes,
        _ => Doing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_stand_in_order_so_that_they_are_found() {
        assert!(LOCAL.is_sorted());
        for (opcode, expected) in [
            ("add", Doing::Computes),
            ("copy-start", Doing::Computes),
            ("async-start", Doing::Computes),
            ("all-to-all", Doing::Collective),
            ("all-gather-start", Doing::Collective),
            ("all-gather-done", Doing::Computes),
            ("send-done", Doing::Talks),
            ("outfeed", Doing::Talks),
            ("brand-new", Doing::Unknown),
        ] {
            assert_eq!(doing(opcode), expected, "{opcode}");
        }
    }
}
