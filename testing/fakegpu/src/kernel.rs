//! Kernels on the host: CUDA source that is also C is compiled by the C compiler into a shared object, which stands
//! for the CUBIN.
//!
//! What a source must keep to:
//!
//! - it is in the common subset of C and C++, and includes no header;
//! - kernels are written `__global__ void NAME(...)` or `__global__ void __launch_bounds__(...) NAME(...)`,
//!   `extern "C"` under `#ifdef __cplusplus`, with at most six parameters of 8 bytes each: pointers and `u64`;
//! - no `__syncthreads`, no shuffles, no shared memory: the threads of a block run one after the other;
//! - what only a GPU can do, inline PTX say, is under `#ifdef __CUDA_ARCH__`.
//!
//! Anything else is an error in the compiler's log.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

const MOST_PARAMETERS: usize = 6;

/// What stands before a source.
const SHIM: &str = r#"
typedef struct { unsigned x, y, z; } fakegpu_index;
static __thread fakegpu_index threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
static inline unsigned __float_as_uint(float x) { unsigned y; __builtin_memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
"#;

/// A kernel as its source declares it.
#[derive(Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    /// The type of each parameter.
    pub types: Vec<String>,
}

impl Declared {
    /// What stands behind a source for each kernel: a function that runs it over a grid, and a table of its parameters.
    fn runner(&self) -> String {
        let Self { name, types } = self;
        let args = types.iter().enumerate().map(|(at, ty)| format!("({ty})a[{at}]")).collect::<Vec<_>>().join(", ");
        let is_pointer = types.iter().map(|ty| format!(", {}", u8::from(ty.contains('*')))).collect::<String>();
        let checks = types.iter().filter(|ty| !ty.contains('*')).map(|ty| {
            format!(
                "_Static_assert(sizeof({ty}) == 8 && _Generic(({ty})0, double: 0, default: 1), \
                 \"fakegpu: a parameter of {name} is neither a pointer nor a u64\");\n"
            )
        });
        format!(
            "{checks}const unsigned char fakegpu_params_{name}[] = {{{count}{is_pointer}}};\n\
             void fakegpu_run_{name}(const unsigned long long *a, const unsigned *grid, const unsigned *block) {{\n\
             (void)a;\n\
             gridDim = (fakegpu_index){{grid[0], grid[1], grid[2]}};\n\
             blockDim = (fakegpu_index){{block[0], block[1], block[2]}};\n\
             for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)\n\
             for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)\n\
             for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)\n\
             for (threadIdx.z = 0; threadIdx.z < block[2]; threadIdx.z++)\n\
             for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)\n\
             for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++)\n\
             {name}({args});\n\
             }}\n",
            checks = checks.collect::<String>(),
            count = types.len(),
        )
    }
}

/// A source without comments, which become spaces.
fn without_comments(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        text.push_str(&rest[..at]);
        text.push(' ');
        let end = if rest[at..].starts_with("//") {
            rest[at..].find('\n').map(|end| at + end)
        } else {
            rest[at + 2..].find("*/").map(|end| at + 2 + end + 2)
        };
        rest = end.map_or("", |end| &rest[end..]);
    }
    text + rest
}

/// The kernels that a source defines, in its order.
pub fn scan(source: &str) -> Result<Vec<Declared>, String> {
    let text = without_comments(source);
    let mut kernels = Vec::new();
    for (at, word) in text.match_indices("__global__") {
        let line = text[text[..at].rfind('\n').map_or(0, |end| end + 1)..].lines().next().unwrap_or_default().trim();
        let refuse = |why: &str| Err(format!("fakegpu: error: {why}: {line}"));
        let Some(mut rest) = text[at + word.len()..].trim_start().strip_prefix("void").map(str::trim_start) else {
            return refuse("a kernel is written `__global__ void NAME(...)`");
        };
        if let Some(bounds) = rest.strip_prefix("__launch_bounds__") {
            let Some(end) = bounds.find(')') else { return refuse("launch bounds without an end") };
            rest = bounds[end + 1..].trim_start();
        }
        let Some((name, rest)) = rest.split_once('(') else { return refuse("a kernel without parameters in brackets") };
        let Some((list, rest)) = rest.split_once(')') else { return refuse("a kernel whose parameters do not end") };
        let name = name.trim();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return refuse("a kernel without a plain name");
        }
        if !rest.trim_start().starts_with('{') {
            continue; // declared here, defined elsewhere
        }
        let list = list.trim();
        let parts = if list.is_empty() || list == "void" { Vec::new() } else { list.split(',').collect() };
        if parts.len() > MOST_PARAMETERS {
            return refuse("a kernel with more than six parameters");
        }
        let types = parts.iter().map(|part| parameter_type(part));
        let Some(types) = types.collect() else { return refuse("a parameter without a type and a name") };
        kernels.push(Declared { name: name.to_owned(), types });
    }
    Ok(kernels)
}

/// A parameter without its name, which stands last.
fn parameter_type(part: &str) -> Option<String> {
    let part = part.trim();
    let end = part.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').trim_end();
    (!end.is_empty() && !part.ends_with(['*', ']'])).then(|| end.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// What a compiler makes of a source: a shared object and warnings, or errors.
type Outcome = Result<(Vec<u8>, String), String>;

/// Compiles a source, whose messages call it `name`, once for each arch and list of `-D`s in a process.
pub fn compile(name: &str, source: &str, arch: i32, defines: &[String]) -> Outcome {
    type Known = HashMap<(String, String, i32, Vec<String>), Outcome>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (name.to_owned(), source.to_owned(), arch, defines.to_vec());
    if let Some(outcome) = known().get(&key) {
        return outcome.clone();
    }
    let outcome = compile_anew(name, source, arch, defines);
    known().insert(key, outcome.clone());
    outcome
}

fn compile_anew(name: &str, source: &str, arch: i32, defines: &[String]) -> Outcome {
    let runners: String = scan(source)?.iter().map(Declared::runner).collect();
    let quoted = name.replace(['\\', '"', '\n'], "_");
    let text = format!(
        "{SHIM}\n#line 1 \"{quoted}\"\n{source}\n#line 1 \"fakegpu\"\nconst int fakegpu_arch = {arch};\n{runners}"
    );
    let folder = scratch("compile");
    let outcome = run_compiler(&folder, &text, defines);
    let _ = std::fs::remove_dir_all(folder);
    outcome
}

fn run_compiler(folder: &std::path::Path, text: &str, defines: &[String]) -> Outcome {
    let failed = |what: &str, error: std::io::Error| format!("fakegpu: error: {what}: {error}");
    let (input, output) = (folder.join("kernel.c"), folder.join("kernel.so"));
    std::fs::create_dir_all(folder).map_err(|error| failed("a folder for the compiler", error))?;
    std::fs::write(&input, text).map_err(|error| failed("a file for the compiler", error))?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-x", "c", "-std=gnu17", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off"]);
    command.args(["-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types", "-Wl,-z,defs"]);
    let done = command.args(defines).arg(&input).arg("-o").arg(&output).output();
    let done = done.map_err(|error| failed(&format!("the C compiler {compiler}"), error))?;
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    if !done.status.success() {
        return Err(log);
    }
    Ok((std::fs::read(&output).map_err(|error| failed("what the compiler made", error))?, log))
}

/// A path for a file or folder that no other process or call uses.
pub fn scratch(what: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fakegpu-{what}-{}-{nth}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_the_types_of_their_parameters() {
        let source = "/* __global__ void no(u64 n) {} */\n\
                      __global__ void declared(u64 n);\n\
                      __global__ void __launch_bounds__(256) pack(const u16 *__restrict__ from, u64 n) // pack\n{}\n\
                      __global__  void  none(void) {}\n";
        let kernels = scan(source).unwrap();
        assert_eq!(kernels.len(), 2);
        assert_eq!(
            kernels[0],
            Declared { name: "pack".to_owned(), types: vec!["const u16 *__restrict__".to_owned(), "u64".to_owned()] }
        );
        assert_eq!(kernels[1], Declared { name: "none".to_owned(), types: Vec::new() });
    }

    #[test]
    fn what_cannot_run_here_is_refused() {
        for source in [
            "__global__ int f(u64 n) {}",
            "__global__ void f(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g) {}",
            "__global__ void f(u64) {}",
            "__global__ void f(u64 *) {}",
        ] {
            let error = scan(source).unwrap_err();
            assert!(error.contains(source), "{error}");
        }
        for (source, why) in [
            ("__global__ void f(int n) {}", "neither a pointer nor a u64"),
            ("__global__ void f(double n) {}", "neither a pointer nor a u64"),
            ("__global__ void f(int *p) { __syncthreads(); }", "__syncthreads"),
            ("\n__global__ void f(int *p) { p = q; }", "a.cu:2:"),
        ] {
            let error = compile("a.cu", source, 90, &[]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
