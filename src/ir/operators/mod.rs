//! What is known of operators, beyond what a graph shows: what PyTorch's schemas say, what they leave out, and what users
//! declare.
//!
//! The default is "may": an operator that nothing here describes may write and alias the tensors that it is given, and may
//! draw random numbers.

mod declared;
mod schema;

pub use declared::{DeclareError, Operators};
