//! The graph: its text forms, its verifier, walks over it.

mod example;
mod synthetic;
mod text;
mod verify;
mod visit;
