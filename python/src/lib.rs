//! What Python imports as `bucketeer._native`; `python/bucketeer` is written over it.

mod errors;
mod live;
mod text;
mod values;

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::live::{Edits, LiveGraph, Ref, Told, check_flags, read_live};
    #[pymodule_export]
    use super::text::{check_ranks, inspect, main, options, plan, rewrite, verify};

    /// Version of the library.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("version", env!("CARGO_PKG_VERSION"))
    }
}
