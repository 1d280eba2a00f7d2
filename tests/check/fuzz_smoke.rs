//! The fuzz targets on a bounded number of damaged inputs, the same ones each time.
//!
//! `BUCKETEER_FUZZ=20` makes every test run 20 times as many.

use bucketeer::ir::json::to_json;
use bucketeer::ir::text;
use bucketeer_fuzzing as fuzzing;
use bucketeer_fuzzing::grow::{GraphOptions, grow};
use kit::files;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        // Mostly short.
        let most = if self.below(4) == 0 { 200 } else { 12 };
        start..(start + self.below(most)).min(len)
    }
}

/// Words that mean something in one of the languages.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "18446744073709551616",
    "9223372036854775807",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    ".",
    ";",
    "\n",
    "\t",
    "\r\n",
    " ",
    "    ",
    "#",
    "'",
    "\"",
    "\\",
    "None",
    "= None",
    "f32[4]",
    "Sym(u0)",
    "input",
    "output",
    "wait(",
    "after(",
    "region loop(n=2) {",
    "all_reduce(",
    "all_gather(",
    "G0:2",
    "G0:0",
    "cuda:0",
    "é",
    "\u{0}",
    "return ",
    "def forward(self",
    "class M(",
    "*",
    "**",
    "->",
    "%",
    "null",
    "1e400",
    "cap=",
    "/",
    "key=\"L1\"",
];

/// One change or a few.
fn damage(random: &mut Random, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let range = random.range(bytes.len());
        match random.below(9) {
            0 => drop(bytes.drain(range)),
            1 => {
                let copy = bytes[range].to_vec();
                let at = random.below(bytes.len() + 1);
                bytes.splice(at..at, copy);
            }
            2 => {
                let from = random.range(other.len());
                bytes.splice(range, other[from].iter().copied());
            }
            3 if !bytes.is_empty() => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            4 if random.below(8) == 0 => bytes.truncate(range.start),
            // Whole lines, so that more of the damage is well-formed.
            5 | 6 => {
                let mut lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
                let (from, to) = (random.below(lines.len()), random.below(lines.len()));
                match random.below(3) {
                    0 if !lines.is_empty() => drop(lines.remove(from)),
                    1 if !lines.is_empty() => lines.insert(to, lines[from]),
                    _ if !lines.is_empty() => lines.swap(from, to),
                    _ => {}
                }
                bytes = lines.concat();
            }
            7 => {
                // One word for another of the same text, which keeps it well-formed more often than not.
                let words = words(&bytes);
                if !words.is_empty() {
                    let (from, to) =
                        (words[random.below(words.len())].clone(), words[random.below(words.len())].clone());
                    let word = bytes[from].to_vec();
                    bytes.splice(to, word);
                }
            }
            _ => drop(bytes.splice(range, WORDS[random.below(WORDS.len())].bytes())),
        }
    }
    bytes
}

fn words(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut words = Vec::new();
    let mut start = 0;
    for (at, byte) in bytes.iter().chain(b" ").enumerate() {
        if !byte.is_ascii_alphanumeric() && *byte != b'_' {
            if at > start {
                words.push(start..at);
            }
            start = at + 1;
        }
    }
    words
}

fn times() -> usize {
    std::env::var("BUCKETEER_FUZZ").map_or(1, |times| times.parse().expect("a number"))
}

/// Calls `target`, and shows the input if it panics.
fn check(target: fn(&[u8]) -> bool, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(input))).unwrap_or_else(|panic| {
        eprintln!("the input is:\n{}\nas bytes: {input:?}", String::from_utf8_lossy(input));
        resume_unwind(panic)
    })
}

/// Runs `target` on every seed, which it must accept, and on damaged ones.
fn smoke(iterations: usize, seeds: &[Vec<u8>], target: fn(&[u8]) -> bool) {
    for seed in seeds {
        assert!(check(target, seed), "refused:\n{}", String::from_utf8_lossy(seed));
    }
    let iterations = iterations * times();
    let mut random = Random(times() as u64);
    let mut accepted = 0;
    for _ in 0..iterations {
        let seed = &seeds[random.below(seeds.len())];
        let other = &seeds[random.below(seeds.len())];
        accepted += usize::from(check(target, &damage(&mut random, seed, other)));
    }
    println!("{accepted} of {iterations} accepted");
    assert!(accepted * 100 > iterations, "hardly any damaged input was accepted");
}

fn contents(paths: Vec<PathBuf>) -> Vec<Vec<u8>> {
    paths.iter().map(|path| files::read(path)).collect()
}

/// The text of a random graph.
fn random_graph(random: &mut Random) -> Vec<u8> {
    let steps: Vec<_> = (0..5 + random.below(40))
        .map(|_| (random.below(100) as u8, random.next() as u16, random.next() as u16, random.next() as u16))
        .collect();
    text::print(&grow(&steps, GraphOptions::default())).into_bytes()
}

fn random_graphs() -> Vec<Vec<u8>> {
    let mut random = Random(1);
    (0..60).map(|_| random_graph(&mut random)).collect()
}

const FX: &str = r#"class GraphModule(torch.nn.Module):
    def forward(self, arg0_1: "f32[8, 16][16, 1]cuda:0", arg1_1: "bf16[s0, 4][4, 1]cuda:0", arg2_1: "Sym(s0)"):
        # File: /a/model.py:12 in forward, code: y = torch.cat([x, w])
        all_gather_into_tensor: "f32[16, 16][16, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(arg0_1, 2, '0');  arg0_1 = None
        wait_tensor: "f32[16, 16][16, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(all_gather_into_tensor);  all_gather_into_tensor = None
        convert_element_type: "f32[s0, 4][4, 1]cuda:0" = torch.ops.prims.convert_element_type.default(arg1_1, torch.float32);  arg1_1 = None
        all_reduce: "f32[s0, 4][4, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(convert_element_type, 'avg', '0');  convert_element_type = None
        all_reduce_1: "f32[16, 16][16, 1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(wait_tensor, 'avg', '0')
        wait_tensor_1: "f32[s0, 4][4, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(all_reduce);  all_reduce = None
        wait_tensor_2: "f32[16, 16][16, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(all_reduce_1);  all_reduce_1 = None
        sum_1: "f32[16][1]cuda:0" = torch.ops.aten.sum.dim_IntList(wait_tensor, [0], dtype = torch.float32);  wait_tensor = None
        add: "Sym(s0 + 1)" = arg2_1 + 1;  arg2_1 = None
        return (wait_tensor_1, wait_tensor_2, sum_1, add)
"#;

#[test]
fn hlo_text_survives() {
    let small: Vec<Vec<u8>> = contents(files::hlo()).into_iter().filter(|seed| seed.len() < 4096).collect();
    assert_eq!(small.len(), 9);
    smoke(3000, &small, fuzzing::hlo_text);
}

#[test]
fn damaged_fx_text() {
    let mut seeds = vec![FX.as_bytes().to_vec(); 3];
    seeds.extend(contents(files::fx()).into_iter().filter(|text| text.len() < 6000));
    assert!(seeds.len() > 5, "{}", seeds.len());
    smoke(1500, &seeds, fuzzing::fx_text);
}

#[test]
fn damaged_native_text() {
    let mut seeds = contents(files::sketches());
    seeds.extend(random_graphs());
    smoke(6000, &seeds, fuzzing::native_text);
}

#[test]
fn damaged_json() {
    let parse = |bytes: Vec<u8>| text::parse(str::from_utf8(&bytes).unwrap()).unwrap();
    let seeds: Vec<_> = random_graphs().into_iter().map(|text| to_json(&parse(text)).into_bytes()).collect();
    smoke(2000, &seeds, fuzzing::json);
}

#[test]
fn damaged_pipelines() {
    let mut seeds: Vec<Vec<u8>> = fuzzing::PIPELINES.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.push(b"bucket-all-gather{cap=1.5GB/25MiB,groups=0/1,names=all_*/x?,except=*_3,fsdp-only=on}".to_vec());
    smoke(6000, &seeds, fuzzing::pipeline_text);
}

#[test]
fn damaged_graphs_rewritten() {
    smoke(2500, &random_graphs(), fuzzing::rewrite);
}

#[test]
fn random_graphs_rewritten() {
    let mut random = Random(times() as u64);
    for _ in 0..100 * times() {
        let mut text = random_graph(&mut random);
        // The length chooses the pipeline.
        for _ in fuzzing::PIPELINES {
            assert!(check(fuzzing::rewrite, &text));
            text.push(b'\n');
        }
    }
}
