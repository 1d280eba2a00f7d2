//! Rewritten HLO text under XLA itself: parsed, and run before and after on eight CPU devices.
//!
//! Needs a Python with jax and jaxlib 0.10.2, which `BUCKETEER_JAX_PYTHON` names; ignored as a rule.

use bucketeer::passes::Pipeline;
use bucketeer_formats::Document;
use kit::files;
use std::path::PathBuf;
use std::process::Command;

const SCHEDULED: &str = "dedupe-waits,bucket-reduce-scatter{cap=none,mode=coalesced},\
                         bucket-all-reduce{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}";

const PIPELINES: [&str; 5] = [
    SCHEDULED,
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced},bucket-permute{cap=none}",
    "bucket-reduce-scatter{cap=none,unpack=views},bucket-all-reduce{cap=none,unpack=views},\
     bucket-all-gather{cap=none,unpack=views}",
    "bucket-all-gather{cap=none,mixed-dtype=bytes,unpack=views}",
    "bucket-all-gather{policy=xla},bucket-all-reduce{policy=xla},bucket-reduce-scatter{policy=xla},\
     bucket-permute{policy=xla}",
];

#[test]
#[ignore = "needs jaxlib 0.10.2"]
fn xla_parses_rewritten_modules_and_runs_them_to_the_same_bits() {
    let python =
        std::env::var_os("BUCKETEER_JAX_PYTHON").expect("BUCKETEER_JAX_PYTHON names a Python with jaxlib 0.10.2");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hlo_jax");
    std::fs::create_dir_all(&folder).unwrap();
    let mut pairs = Vec::new();
    for path in files::hlo() {
        for (nth, pipeline) in PIPELINES.iter().enumerate() {
            let bytes = files::read(&path);
            let mut document = Document::read(bytes.clone()).unwrap();
            // One of them as if the order were a schedule, whose merges stand elsewhere.
            document.graphs_mut()[0].scheduled = *pipeline == SCHEDULED;
            pipeline.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
            let printed = document.print();
            if printed != bytes {
                let out = folder.join(format!("{}.{nth}.hlo", path.file_stem().unwrap().display()));
                std::fs::write(&out, printed).unwrap();
                pairs.extend([path.clone(), out]);
            }
        }
    }
    let script = kit::root().join("scripts/check_with_jax.py");
    let ran = Command::new(python).arg(script).args(&pairs).output().unwrap();
    let (out, talk) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{talk}");
    let equal = out.lines().filter(|line| line.ends_with("equal on 8 devices")).count();
    assert!(equal >= 8, "{out}");
}
