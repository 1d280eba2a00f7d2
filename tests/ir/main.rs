//! The graph: its text forms, its verifier, walks over it.

mod build;
mod example;
mod synthetic;
mod text;
mod verify;
mod visit;
