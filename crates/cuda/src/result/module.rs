//! Modules, their functions, and launches.

use super::{CallError, Context, Stream};
use crate::sys::{CuFunction, CuModule, FunctionAttribute, JitOption};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// Bytes kept of what the driver's assembler says about PTX.
const LOG_BYTES: usize = 16 << 10;

/// A loaded image, unloaded at once when dropped.
pub struct Module {
    context: Arc<Context>,
    raw: CuModule,
}

/// A kernel of a module; to be used no longer than it.
#[derive(Clone, Copy)]
pub struct Function {
    raw: CuFunction,
}

impl Module {
    /// Loads an image; with the error, what the driver's assembler said of it.
    ///
    /// # Safety
    /// `image` is PTX text with a zero byte at its end, or a CUBIN or fat binary whose headers tell no length beyond
    /// its own.
    pub unsafe fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, (CallError, String)> {
        context.make_current().map_err(|error| (error, String::new()))?;
        let api = &context.api;
        let mut raw = CuModule::NULL;
        let mut log = vec![0_u8; LOG_BYTES];
        let mut names = [JitOption::ERROR_LOG_BUFFER, JitOption::ERROR_LOG_BUFFER_SIZE_BYTES];
        // The second value is a number in the place of a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES)];
        // SAFETY: the image's end can be told from its content, as the caller promises. The arrays have two entries
        // each; the log is written within the size that is given.
        let code = unsafe {
            (api.sys.cuModuleLoadDataEx)(
                &raw mut raw,
                image.as_ptr().cast(),
                2,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        api.check("cuModuleLoadDataEx", code).map_err(|error| {
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            (error, String::from_utf8_lossy(text).trim_end().to_owned())
        })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Its kernel of a name.
    pub fn function(&self, name: &CStr) -> Result<Function, CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        let mut raw = CuFunction::NULL;
        // SAFETY: writes one handle; the module lives as long as `self`, and the name ends in a zero.
        let code = unsafe { (api.sys.cuModuleGetFunction)(&raw mut raw, self.raw, name.as_ptr()) };
        api.check("cuModuleGetFunction", code)?;
        Ok(Function { raw })
    }

    /// A property of one of its kernels.
    ///
    /// # Safety
    /// `function` is of this module.
    pub unsafe fn attribute(&self, function: Function, attribute: FunctionAttribute) -> Result<i32, CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        let mut value = 0;
        // SAFETY: writes one integer; the function's module lives as long as `self`.
        let code = unsafe { (api.sys.cuFuncGetAttribute)(&raw mut value, attribute, function.raw) };
        api.check("cuFuncGetAttribute", code)?;
        Ok(value)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: made by `load`, unloaded here only. An error leaves it to the context's end.
            let _ = unsafe { (self.context.api.sys.cuModuleUnload)(self.raw) };
        }
    }
}

impl Stream {
    /// Enqueues a launch of a kernel whose parameters are of 8 bytes each.
    ///
    /// # Safety
    /// The function's module is loaded in the stream's context until the launch has ended. The kernel has as many
    /// parameters as there are `args`, of 8 bytes each, and with them touches only memory that is allocated until it
    /// has ended, and that the host does not use.
    pub unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &mut [u64],
    ) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        let mut params: Vec<*mut c_void> = args.iter_mut().map(|arg| std::ptr::from_mut(arg).cast()).collect();
        // So that too few of them end in a fault and not in whatever lies behind.
        params.push(std::ptr::null_mut());
        // SAFETY: the driver reads one pointer for each parameter, and 8 bytes through it, before it returns; the rest
        // is promised by the caller.
        let code = unsafe {
            (api.sys.cuLaunchKernel)(
                function.raw,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                self.raw(),
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        api.check("cuLaunchKernel", code)
    }
}
