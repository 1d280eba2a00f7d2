//! Readers and writers of the graphs people have.

pub mod fx;
