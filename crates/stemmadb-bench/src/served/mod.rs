//! Stemma's server as a process of its own, and a client that costs little.

mod client;
mod process;

use std::net::SocketAddr;

use serde_json::Value;

use crate::Result;
pub(crate) use client::{Answer, Connection};
pub(crate) use process::{Served, run_child};

/// Where requests go, and who asks.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(super) authorization: String,
}

impl Site {
    /// A request, ready to be sent.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&str>) -> Vec<u8> {
        client::request(&self.authorization, method, path, body)
    }

    /// Asks on a connection of its own.
    pub(crate) fn expect(&self, status: u16, method: &str, path: &str, body: Option<&str>) -> Result<Value> {
        let answer = Connection::open(self.address)?.ask(&self.request(method, path, body))?;
        if answer.status != status {
            let text = String::from_utf8_lossy(&answer.body);
            return Err(format!("{method} {path}: {} instead of {status}: {text}", answer.status).into());
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }
}
