//! Faults as exceptions. Their types are written in Python, in `bucketeer/_errors.py`.

use bucketeer_cli::api::{Fault, FaultKind};
use pyo3::prelude::*;

/// The exception for a fault; if there is none to be had, why.
pub fn exception(py: Python<'_>, fault: Fault) -> PyErr {
    made(py, fault).unwrap_or_else(|error| error)
}

fn made(py: Python<'_>, fault: Fault) -> PyResult<PyErr> {
    let errors = py.import("bucketeer._errors")?;
    let Fault { kind, message, file, line, column, source_line } = fault;
    let made = match kind {
        FaultKind::Input => errors.getattr("InputError")?.call1((message, file, line, column, source_line))?,
        FaultKind::Options => errors.getattr("OptionError")?.call1((message,))?,
        FaultKind::Refused => errors.getattr("RefusedError")?.call1((message,))?,
        FaultKind::Other => errors.getattr("Error")?.call1((message,))?,
    };
    Ok(PyErr::from_value(made))
}
