//! What Python imports as `bucketeer._native`; `python/bucketeer` is written over it.

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod _native {
    use super::*;

    /// Version of the library.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("version", env!("CARGO_PKG_VERSION"))
    }
}
