//! Deterministic synthetic graphs as FX text, by the rule of `fixtures/synthetic.json`, and a few that are hard on
//! purpose. `collectives` is K in that rule.

#![allow(dead_code, reason = "each bench and test uses a part")]

use std::fmt::Write as _;

/// The name of the n-th node of a kind, as FX numbers them.
fn numbered(stem: &str, n: usize) -> String {
    if n == 0 { stem.to_owned() } else { format!("{stem}_{n}") }
}

const HEADER: &str = "class GraphModule(torch.nn.Module):\n    def forward(self, ";
const MATRIX: &str = "[128, 1024][1024, 1]cuda:0";

/// FSDP forward: per parameter a cast, a gather over 8 ranks, a wait, and one use. 5 K + 2 nodes.
pub fn fsdp(collectives: usize) -> String {
    let mut text = String::with_capacity(collectives * 700);
    text.push_str(HEADER);
    let _ = write!(text, "x: \"bf16{MATRIX}\"");
    let vector = |i: usize| i % 4 == 3;
    for i in 0..collectives {
        let ty = if vector(i) { "f32[128][1]cuda:0".to_owned() } else { format!("f32{MATRIX}") };
        let _ = write!(text, ", p_{i}: \"{ty}\"");
    }
    text.push_str("):\n");
    let (mut h, mut products, mut scaled) = ("x".to_owned(), 0, 0);
    for i in 0..collectives {
        let (cast, gather, wait) =
            (numbered("convert_element_type", i), numbered("all_gather_into_tensor", i), numbered("wait_tensor", i));
        let (local, full) = if vector(i) {
            ("bf16[128][1]cuda:0".to_owned(), "bf16[1024][1]cuda:0")
        } else {
            (format!("bf16{MATRIX}"), "bf16[1024, 1024][1024, 1]cuda:0")
        };
        let (name, target) = if vector(i) {
            scaled += 1;
            (numbered("mul", scaled - 1), "aten.mul.Tensor")
        } else {
            products += 1;
            (numbered("mm", products - 1), "aten.mm.default")
        };
        let _ = writeln!(
            text,
            "        {cast}: \"{local}\" = torch.ops.prims.convert_element_type.default(p_{i}, torch.bfloat16);  p_{i} = None\n        {gather}: \"{full}\" = torch.ops._c10d_functional.all_gather_into_tensor.default({cast}, 8, '0');  {cast} = None\n        {wait}: \"{full}\" = torch.ops._c10d_functional.wait_tensor.default({gather});  {gather} = None\n        {name}: \"bf16{MATRIX}\" = torch.ops.{target}({h}, {wait});  {h} = {wait} = None",
        );
        h = name;
    }
    let _ = writeln!(text, "        return ({h},)");
    text
}

/// DDP backward: per weight two products, an all-reduce and a wait, all of which are outputs. 5 K + 3 nodes.
pub fn ddp(collectives: usize) -> String {
    let mut text = String::with_capacity(collectives * 600);
    text.push_str(HEADER);
    let _ = write!(text, "x: \"bf16{MATRIX}\", xt: \"bf16[1024, 128][128, 1]cuda:0\"");
    let square = "bf16[1024, 1024][1024, 1]cuda:0";
    for i in 0..collectives {
        let _ = write!(text, ", w_{i}: \"{square}\"");
    }
    text.push_str("):\n");
    let mut h = "x".to_owned();
    for i in 0..collectives {
        let (a, b) = (numbered("mm", 2 * i), numbered("mm", 2 * i + 1));
        let (reduce, wait) = (numbered("all_reduce", i), numbered("wait_tensor", i));
        let tail = if i + 1 == collectives { format!(";  xt = {a} = None") } else { String::new() };
        let _ = writeln!(
            text,
            "        {a}: \"bf16{MATRIX}\" = torch.ops.aten.mm.default({h}, w_{i});  {h} = w_{i} = None\n        {b}: \"{square}\" = torch.ops.aten.mm.default(xt, {a}){tail}\n        {reduce}: \"{square}\" = torch.ops._c10d_functional.all_reduce.default({b}, 'avg', '0');  {b} = None\n        {wait}: \"{square}\" = torch.ops._c10d_functional.wait_tensor.default({reduce});  {reduce} = None",
        );
        h = a;
    }
    let waits: Vec<String> = (0..collectives).map(|i| numbered("wait_tensor", i)).collect();
    let comma = if collectives == 1 { "," } else { "" };
    let _ = writeln!(text, "        return ({}{comma})", waits.join(", "));
    text
}

/// Independent small gathers of one key, all waited for at the end: one key with `collectives` members.
pub fn one_key(collectives: usize) -> String {
    independent(collectives, |_| ("bf16[16][1]cuda:0", "bf16[128][1]cuda:0"))
}

/// Independent gathers whose keys alternate.
pub fn alternating(collectives: usize) -> String {
    independent(collectives, |i| {
        if i % 2 == 0 { ("bf16[16][1]cuda:0", "bf16[128][1]cuda:0") } else { ("f32[16][1]cuda:0", "f32[128][1]cuda:0") }
    })
}

fn independent(collectives: usize, types: impl Fn(usize) -> (&'static str, &'static str)) -> String {
    let mut text = String::from(HEADER);
    for i in 0..collectives {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}p_{i}: \"{}\"", types(i).0);
    }
    text.push_str("):\n");
    for i in 0..collectives {
        let (gather, full) = (numbered("all_gather_into_tensor", i), types(i).1);
        let _ = writeln!(
            text,
            "        {gather}: \"{full}\" = torch.ops._c10d_functional.all_gather_into_tensor.default(p_{i}, 8, '0');  p_{i} = None",
        );
    }
    for i in 0..collectives {
        let (gather, wait, full) = (numbered("all_gather_into_tensor", i), numbered("wait_tensor", i), types(i).1);
        let _ = writeln!(
            text,
            "        {wait}: \"{full}\" = torch.ops._c10d_functional.wait_tensor.default({gather});  {gather} = None",
        );
    }
    let waits: Vec<String> = (0..collectives).map(|i| numbered("wait_tensor", i)).collect();
    let _ = writeln!(text, "        return ({},)", waits.join(", "));
    text
}

/// Two gathers, the first of whose waits has `users` users before the second gather is issued.
pub fn many_users(users: usize) -> String {
    let mut text = String::from(HEADER);
    let (small, full) = ("bf16[16][1]cuda:0", "bf16[128][1]cuda:0");
    let _ = writeln!(text, "p: \"{small}\", q: \"{small}\"):");
    let gather = |text: &mut String, n: usize, from: &str| {
        let (gather, wait) = (numbered("all_gather_into_tensor", n), numbered("wait_tensor", n));
        let _ = writeln!(
            text,
            "        {gather}: \"{full}\" = torch.ops._c10d_functional.all_gather_into_tensor.default({from}, 8, '0');  {from} = None\n        {wait}: \"{full}\" = torch.ops._c10d_functional.wait_tensor.default({gather});  {gather} = None",
        );
    };
    gather(&mut text, 0, "p");
    for i in 0..users {
        let _ = writeln!(text, "        {}: \"{full}\" = torch.ops.aten.neg.default(wait_tensor)", numbered("neg", i));
    }
    gather(&mut text, 1, "q");
    let outputs: Vec<String> = (0..users).map(|i| numbered("neg", i)).collect();
    let _ = writeln!(text, "        return (wait_tensor, wait_tensor_1, {})", outputs.join(", "));
    text
}
