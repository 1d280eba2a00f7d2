//! NVRTC's calls.

use super::NvrtcCallError;
use crate::sys::load::{self, LoadError};
use crate::sys::{Nvrtc, NvrtcProgram, NvrtcResult};
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

/// libnvrtc, loaded.
pub struct Compiler {
    sys: Nvrtc,
    path: PathBuf,
}

impl Compiler {
    /// Loads it from `path`, or from the first place of [`load`] that has it.
    pub fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let (library, path) = load::load(&load::NVRTC, path)?;
        // SAFETY: the table's types are those of NVRTC's header, and libnvrtc is what was asked for; `load` never
        // unloads.
        match unsafe { Nvrtc::bind(library) } {
            Ok(sys) => Ok(Self { sys, path }),
            Err((symbol, source)) => Err(LoadError::Symbol { what: load::NVRTC.what, path, symbol, source }),
        }
    }

    /// Where it was loaded from: a path, or the name that the system's loader found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self, call: &'static str, code: NvrtcResult) -> Result<(), NvrtcCallError> {
        if code == NvrtcResult::SUCCESS {
            return Ok(());
        }
        // SAFETY: any code may be asked for; the answer is a string that lives as long as the library, or null.
        let name = unsafe { (self.sys.nvrtcGetErrorString)(code) };
        let name = if name.is_null() {
            "unknown code".to_owned()
        } else {
            // SAFETY: not null, so it is such a string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(NvrtcCallError { call, code, name })
    }

    /// Major and minor version.
    pub fn version(&self) -> Result<(i32, i32), NvrtcCallError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        self.check("nvrtcVersion", unsafe { (self.sys.nvrtcVersion)(&raw mut major, &raw mut minor) })?;
        Ok((major, minor))
    }

    /// The architectures that it compiles for: 90 is sm_90.
    pub fn archs(&self) -> Result<Vec<i32>, NvrtcCallError> {
        let mut count = 0;
        // SAFETY: writes one integer.
        let code = unsafe { (self.sys.nvrtcGetNumSupportedArchs)(&raw mut count) };
        self.check("nvrtcGetNumSupportedArchs", code)?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: writes as many integers as it said.
        let code = unsafe { (self.sys.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", code)?;
        Ok(archs)
    }
}

/// A source on its way to an image.
pub struct Program<'a> {
    compiler: &'a Compiler,
    raw: NvrtcProgram,
}

impl<'a> Program<'a> {
    /// A source under a name, which the log calls it by.
    pub fn new(compiler: &'a Compiler, source: &CStr, name: &CStr) -> Result<Self, NvrtcCallError> {
        let mut raw = NvrtcProgram(std::ptr::null_mut());
        // SAFETY: writes one handle; both texts end in a zero and are copied; there are no headers, so no arrays.
        let code = unsafe {
            (compiler.sys.nvrtcCreateProgram)(
                &raw mut raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        compiler.check("nvrtcCreateProgram", code)?;
        Ok(Self { compiler, raw })
    }

    /// Compiles it.
    pub fn compile(&mut self, options: &[CString]) -> Result<(), NvrtcCallError> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives as long as `self`; the array has as many texts as is said, which end in a zero.
        let code = unsafe { (self.compiler.sys.nvrtcCompileProgram)(self.raw, options.len() as i32, options.as_ptr()) };
        self.compiler.check("nvrtcCompileProgram", code)
    }

    /// What the compiler said, with its zero byte at the end taken off.
    pub fn log(&self) -> Result<Vec<u8>, NvrtcCallError> {
        let sys = &self.compiler.sys;
        let mut log = self.read(
            ("nvrtcGetProgramLogSize", sys.nvrtcGetProgramLogSize),
            ("nvrtcGetProgramLog", sys.nvrtcGetProgramLog),
        )?;
        log.pop_if(|byte| *byte == 0);
        Ok(log)
    }

    /// PTX text, with its zero byte at the end taken off.
    pub fn ptx(&self) -> Result<Vec<u8>, NvrtcCallError> {
        let sys = &self.compiler.sys;
        let mut ptx = self.read(("nvrtcGetPTXSize", sys.nvrtcGetPTXSize), ("nvrtcGetPTX", sys.nvrtcGetPTX))?;
        ptx.pop_if(|byte| *byte == 0);
        Ok(ptx)
    }

    /// A CUBIN; empty when it was compiled for a virtual architecture.
    pub fn cubin(&self) -> Result<Vec<u8>, NvrtcCallError> {
        let sys = &self.compiler.sys;
        self.read(("nvrtcGetCUBINSize", sys.nvrtcGetCUBINSize), ("nvrtcGetCUBIN", sys.nvrtcGetCUBIN))
    }

    /// Bytes that one function tells the number of and another writes.
    fn read(&self, (size_call, size): Sized, (call, get): Getter) -> Result<Vec<u8>, NvrtcCallError> {
        let mut len = 0;
        // SAFETY: one of the size functions of the table; writes one integer. The program lives as long as `self`.
        self.compiler.check(size_call, unsafe { size(self.raw, &raw mut len) })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the function that goes with it; writes as many bytes as it said.
        self.compiler.check(call, unsafe { get(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

type Sized = (&'static str, unsafe extern "C" fn(NvrtcProgram, *mut usize) -> NvrtcResult);
type Getter = (&'static str, unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> NvrtcResult);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed here only. An error leaks it, which harms nobody.
        let _ = unsafe { (self.compiler.sys.nvrtcDestroyProgram)(&raw mut self.raw) };
    }
}
