//! Pairs of graphs of which one attribute of a collective differs.

/// The least number of pairs of each kind.
pub const LEAST: &[(&str, usize)] = &[
    ("kind", 100),
    ("reduction", 100),
    ("group", 60),
    ("size of the group", 15),
    ("members of the group", 20),
    ("dimension", 60),
    ("root", 6),
    ("split", 8),
    ("pairs", 4),
    ("dtype", 40),
    ("what is sent", 40),
    ("what else is asked for", 20),
    ("order of two", 60),
    ("a wait that is gone", 40),
    ("place of a wait", 40),
    ("order in a list", 20),
    ("result taken from a list", 20),
];

const OPS: [&str; 8] = ["sum", "avg", "product", "min", "max", "band", "bor", "bxor"];

/// Collectives of one tensor `x`, over a group that is written `G`, with what the result is.
fn collectives() -> Vec<String> {
    let mut all = vec![
        "all_gather(x, G)".to_owned(),
        "all_gather(x, G, dim=1)".to_owned(),
        "broadcast(x, 0, G)".to_owned(),
        "broadcast(x, 1, G)".to_owned(),
        "all_to_all(x, [], [], G)".to_owned(),
        "all_to_all(x, [2, 2], [2, 2], G)".to_owned(),
        "permute(x, [[0, 1], [1, 0]], G)".to_owned(),
        "permute(x, [[0, 1]], G)".to_owned(),
    ];
    for op in OPS {
        all.push(format!("all_reduce(x, {op}, G)"));
        all.push(format!("reduce_scatter(x, {op}, G)"));
        all.push(format!("reduce_scatter(x, {op}, G, dim=1)"));
        all.push(format!("reduce(x, {op}, 0, G)"));
    }
    all
}

fn graph(call: &str) -> String {
    format!("x = input f32[4, 4]; y = input f32[4, 4]\nc = {call}\nw = wait(c)\noutput(w)")
}

type Pair = (&'static str, String, String);

/// All pairs.
pub fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    let of = |kind: &'static str, one: &str, other: &str| (kind, graph(one), graph(other));
    let over = |call: &str, group: &str| call.replace('G', group);
    let all = collectives();
    for (at, one) in all.iter().enumerate() {
        for other in &all[at + 1..] {
            let words = |call: &str| call.split(['(', ' ', ',', ')']).map(str::to_owned).collect::<Vec<_>>();
            let (a, b) = (words(one), words(other));
            let even = |call: &str| call == "all_to_all(x, [], [], G)" || call == "all_to_all(x, [2, 2], [2, 2], G)";
            if even(one) && even(other) {
                continue;
            }
            let kind = match a[0] == b[0] {
                false => "kind",
                true if one.contains("dim=1") != other.contains("dim=1") => "dimension",
                true if OPS.iter().any(|op| a.iter().any(|word| word == op)) && a.last() == b.last() => "reduction",
                true if one.contains("broadcast") => "root",
                true if one.contains("permute") => "pairs",
                true => "dimension",
            };
            pairs.push(of(kind, &over(one, "G0:2"), &over(other, "G0:2")));
        }
    }
    for call in &all {
        for (one, other) in [("G0:2", "G1:2"), ("G0:2", "G1:4")] {
            pairs.push(of("group", &over(call, one), &over(call, other)));
        }
        pairs.push(of("size of the group", &over(call, "G0:2"), &over(call, "G0:4")));
        let members = |list: &str| format!("group M:2 = {list}\n{}", graph(&over(call, "M")));
        for other in ["[[0, 2], [1, 3]]", "[[1, 0], [2, 3]]"] {
            pairs.push(("members of the group", members("[[0, 1], [2, 3]]"), members(other)));
        }
        let call = over(call, "G0:2");
        pairs.push(of("what is sent", &call, &call.replace("(x", "(y")));
        pairs.push(of("what is sent", &call, &call.replace("(x", "(neg(x)")));
        pairs.push(of("what else is asked for", &call, &format!("{} impl=registered", call)));
        pairs.push(of("what else is asked for", &format!("{call} impl=one"), &format!("{call} impl=two")));
        // Converted before is not converted after, and no other dtype is.
        let cast = |to: &str| {
            format!(
                "x = input f32[4, 4]; d = cast(x, {to})\nc = {}\nw = cast(wait(c), f32)\noutput(w)",
                call.replace("(x", "(d")
            )
        };
        pairs.push(("dtype", cast("bf16"), cast("f16")));
        let after = format!("x = input f32[4, 4]\nc = {call}\nw = cast(cast(wait(c), bf16), f32)\noutput(w)");
        // What only moves elements may be converted before or after.
        if call.contains("reduce") && ["sum", "avg", "product"].iter().any(|op| call.contains(op)) {
            pairs.push(("dtype", cast("bf16"), after));
        }
        // A result that is not waited for, or waited for by another.
        let unready = format!("x = input f32[4, 4]; y = input f32[4, 4]\nc = {call}\noutput(c)");
        pairs.push(("a wait that is gone", graph(&call), unready));
        let after_read = |wait: &str| format!("x = input f32[4, 4]; y = input f32[4, 4]\nc = {call}\n{wait}");
        pairs.push((
            "place of a wait",
            after_read("w = wait(c); n = neg(w); output(n)"),
            after_read("n = neg(c); w = wait(c); output(n)"),
        ));
        // Two launches of one group keep their order.
        let second = call.replace("(x", "(y");
        let two = |first: &str, second: &str| {
            format!("x = input f32[4, 4]; y = input f32[4, 4]\na = {first}\nb = {second}\nv = wait(a); w = wait(b)")
        };
        pairs.push((
            "order of two",
            format!("{}\noutput(v, w)", two(&call, &second)),
            format!("{}\noutput(w, v)", two(&call, &second)),
        ));
        pairs.push((
            "order of two",
            format!("{}\noutput(v, w)", two(&call, &second)),
            format!("{}\noutput(w, v)", two(&second, &call)),
        ));
        if let Some((name, rest)) = call
            .split_once("(x")
            .filter(|(name, _)| !matches!(*name, "broadcast" | "all_to_all" | "permute" | "reduce"))
        {
            let list = |inputs: &str, takes: &str| {
                format!(
                    "x = input f32[4, 4]; y = input f32[4, 4]\nc = {name}_coalesced([{inputs}]{rest}\na = getitem(c, {takes}); w = wait(a)\noutput(w)"
                )
            };
            pairs.push(("order in a list", list("x, y", "0"), list("y, x", "0")));
            pairs.push(("result taken from a list", list("x, y", "0"), list("x, y", "1")));
        }
    }
    for (one, other) in [
        ("[1, 3], [1, 3]", "[3, 1], [1, 3]"),
        ("[1, 3], [1, 3]", "[1, 3], [3, 1]"),
        ("[1, 3], [1, 3]", "[2, 2], [2, 2]"),
        ("[2, 2], [2, 2]", "[4, 0], [4, 0]"),
        ("[0, 4], [2, 2]", "[2, 2], [2, 2]"),
        ("[1, 1], [2, 2]", "[], []"),
        ("[2, 2], [1, 3]", "[2, 2], []"),
        ("[1, 3], [2, 2]", "[], [2, 2]"),
    ] {
        let call = |splits: &str| format!("all_to_all(x, {splits}, G0:2)");
        pairs.push(of("split", &call(one), &call(other)));
    }
    for (one, other) in [("0", "1"), ("1", "3"), ("0", "2")] {
        let to = |root: &str| format!("reduce(x, sum, {root}, G0:4)");
        pairs.push(of("root", &to(one), &to(other)));
        let from = |root: &str| format!("broadcast(x, {root}, G0:4)");
        pairs.push(of("root", &from(one), &from(other)));
    }
    for (one, other) in [("[[0, 1]]", "[[1, 0]]"), ("[[0, 1], [1, 2]]", "[[0, 2], [1, 1]]"), ("[]", "[[0, 1]]")] {
        let call = |pairs: &str| format!("permute(x, {pairs}, G0:4)");
        pairs.push(of("pairs", &call(one), &call(other)));
    }
    pairs
}
