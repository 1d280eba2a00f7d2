//! A store for processes, over TCP: one serves it, all others and it itself connect.
//!
//! The protocol is ours and small: frames with a length, of numbers, texts and lists. A rank says hello (magic,
//! version, rank, world size), answers a challenge if the store has a secret, and then sends requests with numbers of
//! its own, in any order; an answer has the number of its request. Who has said nothing for a heartbeat says that it
//! lives; who was not heard for much longer is lost. See `docs/launch.md`.

mod client;
mod connect;
mod fuzz;
mod hello;
mod link;
mod membership;
mod message;
mod peer;
mod secret;
mod serve;
mod server;
mod server_state;
mod wire;

pub use client::{LINGER, TcpStore};
pub use connect::JoinOptions;
pub use fuzz::fuzz;
pub use message::PROTOCOL_VERSION;
pub use secret::{SECRET_VARIABLE, Secret};
pub use server::{ServerOptions, StoreServer};
