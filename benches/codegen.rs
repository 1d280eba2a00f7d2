//! How long a bucket's kernel takes: to write, to compile, and to find in the cache. The compiler needs no GPU:
//! `scripts/with-nvrtc cargo bench --bench codegen`. Without it only the writing is timed.
//!
//! As a measure of the machine, the time that an empty kernel takes stands beside.

use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
use bucketeer::program::Program;
use bucketeer_cuda::nvrtc::{Cache, Nvrtc, Request};
use bucketeer_cuda::{Arch, ImageKind};
use std::time::{Duration, Instant};

const EMPTY: &str = "extern \"C\" __global__ void empty(unsigned long long *to) { *to = 0; }\n";

/// A pack of so many members of mixed sizes, each third of them a cast, and its unpack.
fn bucket(members: u64) -> Program {
    let (mut buffers, mut inputs, mut packs, mut unpacks) =
        (String::new(), String::new(), String::new(), String::new());
    let mut at = 0;
    for member in 0..members {
        let elements = 257 + member * 37 % 9000;
        let (dtype, width) = if member % 3 == 0 { ("f32", 4) } else { ("bf16", 2) };
        buffers += &format!("  buffer a{member}: input {} align 16\n", elements * width);
        inputs += &format!("  input a{member} = {dtype}[{elements}] a{member}\n");
        packs += &format!("    {dtype}[{elements}] a{member} -> bf16[{elements}] c+{at}\n");
        unpacks += &format!("    bf16[{elements}] c+{at} -> bf16[{elements}] o+{at}\n");
        at = (at + 2 * elements).next_multiple_of(16);
    }
    let text = format!(
        "program bucket align 16 {{\n  arena comm {at} live {at}\n  arena device {at} live {at}\n{buffers}  \
         buffer c: comm {at} align 16 at 0:0\n  buffer o: output {at} align 16 at 1:0\n{inputs}  \
         s0 cat: pack {{\n{packs}  }}\n  s1 split: unpack {{\n{unpacks}  }}\n  output () ()\n}}\n"
    );
    Program::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Median and best of several.
fn time(mut run: impl FnMut()) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[times.len() / 2], times[0])
}

fn request(source: &str) -> Request<'_> {
    Request { source, name: "move.cu", arch: Arch(90), kind: ImageKind::Cubin, options: &[] }
}

fn main() {
    let row = |what: &str, (median, best): (Duration, Duration)| {
        println!("{what:40} {:>10.3} {:>10.3}", median.as_secs_f64() * 1e3, best.as_secs_f64() * 1e3);
    };
    println!("{:40} {:>10} {:>10}", "", "median ms", "best ms");
    let nvrtc = Nvrtc::load(None);
    for members in [1, 50, 500, 5000] {
        let program = bucket(members);
        let module = || CudaModule::of(&program, &CudaOptions::default()).expect("it has kernels");
        row(&format!("write, {members} members"), time(|| drop(module())));
        let Ok(nvrtc) = &nvrtc else { continue };
        let module = module();
        let uncached = nvrtc.clone().with_cache(None);
        let compile = |source: &str| drop(uncached.compile(&request(source)).expect("it compiles"));
        row("  compile", time(|| compile(&module.table_source())));
        row("  compile, with its tables in the source", time(|| compile(module.source())));
        row("  compile an empty kernel", time(|| compile(EMPTY)));
        let folder = std::env::temp_dir().join(format!("bucketeer-bench-{}", std::process::id()));
        let cached = nvrtc.clone().with_cache(Some(Cache::new(&folder)));
        cached.compile(&request(&module.table_source())).expect("it compiles");
        row(
            "  from the cache",
            time(|| assert!(cached.compile(&request(&module.table_source())).expect("it compiles").cached)),
        );
        let _ = std::fs::remove_dir_all(folder);
    }
    if let Err(error) = nvrtc {
        println!("not compiled: {error}");
    }
}
