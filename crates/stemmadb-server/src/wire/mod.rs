//! The wire protocol: the library's interface for clients over TCP, TLS, Unix sockets, WebSockets
//! and QUIC.
//!
//! The thread that reads a request executes it and sends the result; no other thread is woken. If a request takes
//! longer than a few milliseconds, or streams for long, another thread takes over reading ([`monitor`]), so that the
//! client can cancel it and send others. A connection that is silent for a second has no thread ([`parking`]). Rights
//! are those of the HTTP routes that do the same ([`rights`]), which also say which part of a virtual database an
//! operation is about ([`opened`]).

mod call;
mod connection;
mod failure;
mod handshake;
mod lanes;
mod monitor;
mod opened;
mod operations;
mod parking;
mod pool;
#[cfg(all(unix, feature = "quic"))]
mod quic;
mod record;
mod rights;
mod rows;
mod running;
mod server;
mod snapshots;
mod transport;

pub(crate) use server::WireServer;
