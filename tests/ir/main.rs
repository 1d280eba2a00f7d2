//! The graph: its text forms, its verifier, walks over it.

mod build;
mod edit_log;
mod example;
mod synthetic;
mod text;
mod verify;
mod visit;
