//! Order.
/// x
#[derive(Debug)]
pub struct Dependencies;
