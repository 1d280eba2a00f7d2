//! Kernels on the host: the emitted source compiled as C, with threads and blocks as loops, in a process of its own.

use bucketeer::codegen::cuda::{CudaModule, KERNEL, THREADS};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a CUDA compiler knows by itself.
pub const SHIM: &str = "\
#define __global__
#define __device__
#define __launch_bounds__(...)
static struct { unsigned x, y, z; } blockIdx, threadIdx, blockDim, gridDim;
";

/// Reads memory, anchors and launches, runs them, and writes the memory back.
const MAIN: &str = "
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static u64 next_number(FILE *file) {
    u64 value;
    if (fread(&value, 8, 1, file) != 1) exit(3);
    return value;
}

int main(int argc, char **argv) {
    FILE *in = fopen(argv[1], \"rb\"), *out;
    u64 bytes = next_number(in), count = next_number(in), launches, at;
    u8 *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    u8 **anchors = malloc((count + 1) * sizeof *anchors);
    (void)argc;
    if (!memory || !anchors) return 4;
    for (at = 0; at < count; at++) anchors[at] = memory + next_number(in);
    if (bytes && fread(memory, bytes, 1, in) != 1) return 3;
    launches = next_number(in);
    for (at = 0; at < launches; at++) {
        u64 launch = next_number(in);
        gridDim.x = (u32)next_number(in);
        blockDim.x = THREADS;
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++)
                KERNEL(anchors, launch);
    }
    out = fopen(argv[2], \"wb\");
    if (!out || (bytes && fwrite(memory, bytes, 1, out) != 1) || fclose(out)) return 5;
    return 0;
}
";

/// A folder of this process that goes with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles C with the host's compiler, which whoever links Rust has, too.
#[track_caller]
pub fn compile(folder: &Scratch, source: &str, flags: &[&str]) -> PathBuf {
    let (file, program) = (folder.path("kernels.c"), folder.path("kernels"));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-w"]).args(flags).arg("-o").arg(&program).arg(&file);
    let ran = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}; set CC to a C compiler"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    program
}

/// A module that can be run.
pub struct Host {
    folder: Scratch,
    program: PathBuf,
    /// Blocks of each launch.
    blocks: Vec<u64>,
}

impl Host {
    #[track_caller]
    pub fn new(module: &CudaModule) -> Self {
        let folder = Scratch::new();
        let table = format!("#define THREADS {THREADS}\n#define KERNEL {KERNEL}\n");
        let program = compile(&folder, &format!("{SHIM}{}{table}{MAIN}", module.source()), &["-O1"]);
        let blocks = module.launches().iter().map(|launch| u64::from(launch.blocks(3))).collect();
        Self { folder, program, blocks }
    }

    /// Runs launches on memory; anchors are offsets in it.
    #[track_caller]
    pub fn run(&self, memory: &mut Vec<u8>, anchors: &[u64], launches: &[usize]) {
        let mut input = Vec::with_capacity(memory.len() + 64);
        input.extend((memory.len() as u64).to_le_bytes());
        input.extend((anchors.len() as u64).to_le_bytes());
        anchors.iter().for_each(|anchor| input.extend(anchor.to_le_bytes()));
        input.extend(&*memory);
        input.extend((launches.len() as u64).to_le_bytes());
        for &launch in launches {
            input.extend((launch as u64).to_le_bytes());
            input.extend(self.blocks[launch].to_le_bytes());
        }
        let (from, to) = (self.folder.path("in"), self.folder.path("out"));
        std::fs::write(&from, input).unwrap();
        let ran = Command::new(&self.program).arg(&from).arg(&to).output().unwrap();
        assert!(ran.status.success(), "{:?}", ran.status);
        *memory = std::fs::read(&to).unwrap();
    }
}
