//! A loaded driver, and its devices.

use super::CallError;
use crate::sys::load::{self, LoadError};
use crate::sys::{CuDevice, CuResult, DeviceAttribute, Driver};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};

/// libcuda, loaded.
pub struct Api {
    /// Its functions.
    pub(super) sys: Driver,
    path: PathBuf,
}

impl Api {
    /// Loads it from `path`, or from the first place of [`load`] that has it.
    pub fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let (library, path) = load::load(&load::CUDA, path)?;
        // SAFETY: the table's types are those of the driver's headers, and libcuda is what was asked for; `load` never
        // unloads.
        match unsafe { Driver::bind(library) } {
            Ok(sys) => Ok(Self { sys, path }),
            Err((symbol, source)) => Err(LoadError::Symbol { what: load::CUDA.what, path, symbol, source }),
        }
    }

    /// Where it was loaded from: a path, or the name that the system's loader found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The code of the call `call`, as a result.
    pub(super) fn check(&self, call: &'static str, code: CuResult) -> Result<(), CallError> {
        if code == CuResult::SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// A query: whether it is done.
    pub(super) fn check_ready(&self, call: &'static str, code: CuResult) -> Result<bool, CallError> {
        if code == CuResult::NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }

    /// A code in the driver's words.
    #[cold]
    pub(super) fn error(&self, call: &'static str, code: CuResult) -> CallError {
        let words = |get: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the function writes one pointer, to a string that lives as long as the library, or none.
            let found = unsafe { get(code, &raw mut text) } == CuResult::SUCCESS && !text.is_null();
            // SAFETY: not null, so it is such a string.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = words(self.sys.cuGetErrorName).unwrap_or_else(|| "unknown code".to_owned());
        let text = words(self.sys.cuGetErrorString).unwrap_or_else(|| "the driver has no words for it".to_owned());
        CallError { call, code, name, text }
    }

    /// Starts the driver. To be called before all else; again does no harm.
    pub fn init(&self) -> Result<(), CallError> {
        // SAFETY: takes no pointer.
        self.check("cuInit", unsafe { (self.sys.cuInit)(0) })
    }

    /// The newest CUDA version that the driver knows: 12020 is 12.2.
    pub fn version(&self) -> Result<i32, CallError> {
        let mut version = 0;
        // SAFETY: writes one integer.
        self.check("cuDriverGetVersion", unsafe { (self.sys.cuDriverGetVersion)(&raw mut version) })?;
        Ok(version)
    }

    /// Number of devices.
    pub fn device_count(&self) -> Result<i32, CallError> {
        let mut count = 0;
        // SAFETY: writes one integer.
        self.check("cuDeviceGetCount", unsafe { (self.sys.cuDeviceGetCount)(&raw mut count) })?;
        Ok(count)
    }

    /// The device of an ordinal.
    pub fn device(&self, ordinal: i32) -> Result<CuDevice, CallError> {
        let mut device = 0;
        // SAFETY: writes one integer; any ordinal may be asked for.
        self.check("cuDeviceGet", unsafe { (self.sys.cuDeviceGet)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    /// A device's name.
    pub fn device_name(&self, device: CuDevice) -> Result<String, CallError> {
        let mut name = [0_u8; 256];
        let len = name.len() as i32 - 1;
        // SAFETY: writes at most `len` bytes, of the buffer's `len + 1`. A device is an integer that is checked there.
        let code = unsafe { (self.sys.cuDeviceGetName)(name.as_mut_ptr().cast(), len, device) };
        self.check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// A property of a device.
    pub fn device_attribute(&self, device: CuDevice, attribute: DeviceAttribute) -> Result<i32, CallError> {
        let mut value = 0;
        // SAFETY: writes one integer; attributes and devices are integers that are checked there.
        let code = unsafe { (self.sys.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// A device's memory in bytes.
    pub fn device_bytes(&self, device: CuDevice) -> Result<usize, CallError> {
        let mut bytes = 0;
        // SAFETY: writes one integer.
        self.check("cuDeviceTotalMem_v2", unsafe { (self.sys.cuDeviceTotalMem_v2)(&raw mut bytes, device) })?;
        Ok(bytes)
    }
}
