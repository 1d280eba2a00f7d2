//! CUDA C++ to PTX or CUBIN, by NVIDIA's run-time compiler, with a cache on disk.
//!
//! A CUBIN is machine code for one architecture and needs no assembler in the driver, so an NVRTC that is newer than
//! the driver does no harm; PTX is text of a version that the driver must know. [`Nvrtc::compile`] makes either. It
//! needs no GPU and no driver.
//!
//! **What a kernel costs.** NVRTC hands its assembler's report out in the log, once it is asked for by
//! `--ptxas-options=-v`, for real architectures only (`sm_90`; for PTX nothing is assembled). This is always asked for
//! when a CUBIN is made, and [`Compiled::kernels`] has it as numbers: registers, spills, and the stack frame, which is
//! a thread's local memory.
//!
//! **The cache** is keyed by everything that decides the result: source, name, options, NVRTC's version, and ours. See
//! [`Cache`].

mod cache;
mod error;
mod report;

pub use cache::Cache;
pub use error::NvrtcError;
pub use report::KernelCost;

use super::result::{self, Program};
use super::safe::{Arch, Version};
use super::{Image, ImageKind, sys::NvrtcResult};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// NVIDIA's run-time compiler, loaded. Clones are the same one.
#[derive(Clone)]
pub struct Nvrtc {
    compiler: Arc<result::Compiler>,
    version: Version,
    cache: Option<Cache>,
}

/// What to compile.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// CUDA C++.
    pub source: &'a str,
    /// What messages call it: `pack.cu`.
    pub name: &'a str,
    /// For which architecture.
    pub arch: Arch,
    /// [`ImageKind::Ptx`] or [`ImageKind::Cubin`].
    pub kind: ImageKind,
    /// Further options of NVRTC's: `--use_fast_math`.
    pub options: &'a [&'a str],
}

/// What came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The kernels.
    pub image: Image,
    /// What the compiler said: warnings, and the report of the assembler without its times.
    pub log: String,
    /// Whether it came from the cache.
    pub cached: bool,
}

impl Compiled {
    /// What each kernel costs, in the assembler's order; empty for PTX.
    #[must_use]
    pub fn kernels(&self) -> Vec<KernelCost> {
        report::read(&self.log)
    }
}

impl Nvrtc {
    /// Loads it from a path, a file or a folder; without one from the path in `BUCKETEER_NVRTC_LIB`, else from where
    /// the system or a Python package has it. The cache is [`Cache::from_env`].
    ///
    /// # Errors
    /// When there is none, or it lacks a function.
    pub fn load(path: Option<&Path>) -> Result<Self, NvrtcError> {
        let compiler = result::Compiler::load(path)?;
        let (major, minor) = compiler.version()?;
        let version = Version { major: u32::try_from(major).unwrap_or(0), minor: u32::try_from(minor).unwrap_or(0) };
        Ok(Self { compiler: Arc::new(compiler), version, cache: Cache::from_env() })
    }

    /// With another cache, or none.
    #[must_use]
    pub fn with_cache(self, cache: Option<Cache>) -> Self {
        Self { cache, ..self }
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.compiler.path()
    }

    /// Its version, which is the version of CUDA that it came with.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The architectures that it compiles for.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn archs(&self) -> Result<Vec<Arch>, NvrtcError> {
        Ok(self.compiler.archs()?.into_iter().filter_map(|arch| u32::try_from(arch).ok().map(Arch)).collect())
    }

    /// Compiles a source, or takes the result from the cache.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with the log when the source is at fault.
    pub fn compile(&self, request: &Request<'_>) -> Result<Compiled, NvrtcError> {
        let options = options(request)?;
        let key = self.key(request, &options);
        if let Some(compiled) = self.cache.as_ref().and_then(|cache| cache.get(&key, request.kind)) {
            return Ok(compiled);
        }
        let compiled = self.compile_anew(request, &options)?;
        if let Some(cache) = &self.cache {
            cache.put(&key, &compiled);
        }
        Ok(compiled)
    }

    /// All that decides the result, as text. Parts are told apart by their lengths.
    fn key(&self, request: &Request<'_>, options: &[String]) -> String {
        let Request { source, name, kind, .. } = request;
        let mut key = format!("bucketeer {} nvrtc {} {kind}\n", env!("CARGO_PKG_VERSION"), self.version);
        for part in options.iter().map(String::as_str).chain([*name, *source]) {
            key.push_str(&format!("{}:{part}\n", part.len()));
        }
        key
    }

    fn compile_anew(&self, request: &Request<'_>, options: &[String]) -> Result<Compiled, NvrtcError> {
        let source = c_string(request.source, "source")?;
        let name = c_string(request.name, "name")?;
        let options = options.iter().map(|option| c_string(option, "option")).collect::<Result<Vec<_>, _>>()?;
        let mut program = Program::new(&self.compiler, &source, &name)?;
        let outcome = program.compile(&options);
        let log = report::without_times(&String::from_utf8_lossy(&program.log()?));
        match outcome {
            Ok(()) => {}
            Err(error) if error.code == NvrtcResult::COMPILATION => {
                return Err(NvrtcError::Compile { lines: error::lines_at_fault(request, &log), log });
            }
            Err(error) if error.code == NvrtcResult::INVALID_OPTION => {
                let archs = self.archs()?.iter().map(Arch::to_string).collect::<Vec<_>>().join(", ");
                return Err(NvrtcError::Option { arch: request.arch, version: self.version, archs, log });
            }
            Err(error) => return Err(error.into()),
        }
        let bytes = if request.kind == ImageKind::Ptx { program.ptx() } else { program.cubin() }?;
        let image = Image::new(bytes)?;
        Ok(Compiled { image, log, cached: false })
    }
}

/// NVRTC's options for a request.
fn options(request: &Request<'_>) -> Result<Vec<String>, NvrtcError> {
    let mut options = match request.kind {
        ImageKind::Ptx => vec![format!("--gpu-architecture=compute_{}", request.arch.0)],
        ImageKind::Cubin => vec![format!("--gpu-architecture={}", request.arch), "--ptxas-options=-v".to_owned()],
        ImageKind::FatBinary => return Err(NvrtcError::Request("NVRTC makes PTX and CUBINs, no fat binaries")),
    };
    options.extend(request.options.iter().map(|option| (*option).to_owned()));
    Ok(options)
}

fn c_string(text: &str, what: &'static str) -> Result<CString, NvrtcError> {
    CString::new(text).map_err(|error| NvrtcError::ZeroByte { what, at: error.nul_position() })
}
