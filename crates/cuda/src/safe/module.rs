//! Modules and their kernels.

#![expect(unsafe_code, reason = "an image is checked before the driver reads it, and a kernel holds its module")]

use super::retire::{Resource, Uses};
use super::{Context, Stream};
use crate::result::{self, CallError};
use crate::sys::{CuResult, FunctionAttribute};
use crate::{CudaError, Image, ImageKind};
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

/// Kernels loaded into a context. Clones, and the kernels, share it; unloaded after the last of them and all launches.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    context: Context,
    raw: Option<result::Module>,
    uses: Uses,
}

impl Module {
    pub(super) fn load(context: &Context, image: &Image) -> Result<Self, CudaError> {
        context.inner().retirement.collect();
        // SAFETY: an `Image` is what the driver expects, as its maker checked.
        let raw = unsafe { result::Module::load(&context.inner().raw, image.for_driver()) };
        let raw = raw.map_err(|(error, log)| refusal(context, image, error, log))?;
        Ok(Self(Arc::new(Inner { context: context.clone(), raw: Some(raw), uses: Uses::default() })))
    }

    /// Its kernel of a name; in C++ of an `extern "C"` one.
    ///
    /// # Errors
    /// When there is none.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        const CALL: &str = "Module::function";
        let c_name = CString::new(name).map_err(|_| CudaError::invalid(CALL, "the name has a zero byte in it"))?;
        let raw = self.raw()?.function(&c_name).map_err(|error| match error.code {
            CuResult::NOT_FOUND => CudaError::invalid(CALL, format!("the module has no kernel `{name}` ({error})")),
            _ => error.into(),
        })?;
        let mut function =
            Function { module: self.clone(), raw, name: name.into(), registers: 0, local_bytes: 0, threads: 0 };
        function.registers = function.attribute(FunctionAttribute::NUM_REGS)?;
        function.local_bytes = function.attribute(FunctionAttribute::LOCAL_SIZE_BYTES)?;
        function.threads = function.attribute(FunctionAttribute::MAX_THREADS_PER_BLOCK)?;
        Ok(function)
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    fn raw(&self) -> Result<&result::Module, CudaError> {
        // Gone in the drop alone, when nobody can ask any more.
        self.0.raw.as_ref().ok_or_else(|| CudaError::invalid("Module", "the module is unloaded"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(module) = self.raw.take() {
            self.context.inner().retirement.retire(&self.uses.take(), Resource::Module(module));
        }
    }
}

/// Why the driver does not load an image, and what helps.
fn refusal(context: &Context, image: &Image, error: CallError, log: String) -> CudaError {
    let is_ptx = image.kind() == ImageKind::Ptx;
    match (error.code, context.device().driver().version()) {
        (CuResult::UNSUPPORTED_PTX_VERSION, Ok(driver)) if is_ptx => {
            CudaError::OldDriver { ptx: image.ptx_version().unwrap_or("unknown").to_owned(), driver, error }
        }
        _ => CudaError::Module { kind: image.kind(), error, log },
    }
}

/// A kernel.
#[derive(Clone)]
pub struct Function {
    module: Module,
    pub(super) raw: result::Function,
    name: Arc<str>,
    registers: u32,
    local_bytes: u32,
    threads: u32,
}

impl Function {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Registers that a thread uses.
    #[must_use]
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Bytes of local memory, spills included, that a thread uses.
    #[must_use]
    pub fn local_bytes(&self) -> u32 {
        self.local_bytes
    }

    /// Threads that a block may have at most.
    #[must_use]
    pub fn max_threads_per_block(&self) -> u32 {
        self.threads
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.module.context()
    }

    /// To be called before a launch is enqueued: from here on a drop of the module waits for the stream.
    pub(super) fn used_on(&self, stream: &Stream) {
        self.module.0.uses.add(stream.raw());
    }

    fn attribute(&self, attribute: FunctionAttribute) -> Result<u32, CudaError> {
        // SAFETY: the function is of the module that it holds.
        let value = unsafe { self.module.raw()?.attribute(self.raw, attribute) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {} ({} registers, {} local bytes)", self.name, self.registers, self.local_bytes)
    }
}
