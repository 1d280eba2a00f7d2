//! Readers and writers of the graphs people have.
//!
//! [`Document`] reads a file in any of the forms, edits it as graphs, and prints it in its own form or another;
//! [`GroupsFile`] brings the ranks of process groups, which FX text does not hold.

mod document;
mod error;
pub mod export;
pub mod fx;
mod group_values;
mod groups;
pub mod hlo;
pub mod stablehlo;

pub use document::{Document, Format};
pub use error::{ConvertError, ReadError, SourceLocation};
pub use groups::{GroupsError, GroupsFile};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
