//! The driver and its devices.

use super::Context;
use crate::CudaError;
use crate::result::Api;
use crate::sys::{CuDevice, CuResult, DeviceAttribute};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A version of CUDA, of its driver or of NVRTC: `12.1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// Before the point.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// An architecture, by its number: 90 for compute capability 9.0. Prints as `sm_90`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Arch(pub u32);

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// NVIDIA's driver, loaded and started. Clones are the same one.
#[derive(Clone)]
pub struct Driver(Arc<Api>);

impl Driver {
    /// Loads it from a path, a file or a folder; without one from the path in `BUCKETEER_CUDA_LIB`, else from where the
    /// system has it.
    ///
    /// # Errors
    /// When there is none, when it lacks a function, or when it does not start: without a GPU, or with one that the
    /// driver does not know.
    pub fn load(path: Option<&Path>) -> Result<Self, CudaError> {
        let api = Api::load(path)?;
        api.init()?;
        Ok(Self(Arc::new(api)))
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The newest CUDA version that it knows.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn version(&self) -> Result<Version, CudaError> {
        let version = u32::try_from(self.0.version()?).unwrap_or(0);
        Ok(Version { major: version / 1000, minor: version % 1000 / 10 })
    }

    /// Number of devices.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn device_count(&self) -> Result<u32, CudaError> {
        Ok(u32::try_from(self.0.device_count()?).unwrap_or(0))
    }

    /// The device of an ordinal, counted from 0 within `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&self, ordinal: u32) -> Result<Device, CudaError> {
        let handle = i32::try_from(ordinal).map(|ordinal| self.0.device(ordinal));
        match handle {
            Ok(Ok(handle)) => Ok(Device { driver: self.clone(), ordinal, handle }),
            Ok(Err(error)) if error.code != CuResult::INVALID_DEVICE => Err(error.into()),
            _ => Err(CudaError::NoDevice { ordinal, count: self.device_count()? }),
        }
    }

    pub(super) fn api(&self) -> &Arc<Api> {
        &self.0
    }
}

/// A GPU.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    ordinal: u32,
    handle: CuDevice,
}

impl Device {
    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its name: `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn name(&self) -> Result<String, CudaError> {
        Ok(self.driver.api().device_name(self.handle)?)
    }

    /// Its compute capability.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn arch(&self) -> Result<Arch, CudaError> {
        let major = self.attribute(DeviceAttribute::COMPUTE_CAPABILITY_MAJOR)?;
        Ok(Arch(major * 10 + self.attribute(DeviceAttribute::COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Number of its multiprocessors.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn multiprocessors(&self) -> Result<u32, CudaError> {
        self.attribute(DeviceAttribute::MULTIPROCESSOR_COUNT)
    }

    /// Its memory in bytes.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn total_bytes(&self) -> Result<usize, CudaError> {
        Ok(self.driver.api().device_bytes(self.handle)?)
    }

    /// Its primary context, made if there is none.
    ///
    /// # Errors
    /// When the driver cannot make one.
    pub fn context(&self) -> Result<Context, CudaError> {
        Context::retain(self)
    }

    pub(super) fn handle(&self) -> CuDevice {
        self.handle
    }

    pub(super) fn attribute(&self, attribute: DeviceAttribute) -> Result<u32, CudaError> {
        let value = self.driver.api().device_attribute(self.handle, attribute)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}
