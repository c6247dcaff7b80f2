//! Stemma's server as a child process, and a lightweight client.

mod client;
mod process;

use std::net::SocketAddr;

use serde_json::Value;

use crate::Result;
pub(crate) use client::{Connection, Response};
pub(crate) use process::{ServerProcess, run_child};

/// The server's address and the credentials for it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(super) authorization: String,
}

impl Endpoint {
    /// Builds a request.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&str>) -> Vec<u8> {
        client::request(&self.authorization, method, path, body)
    }

    /// Sends a request on a new connection; fails unless the response has the expected status.
    pub(crate) fn expect_status(&self, status: u16, method: &str, path: &str, body: Option<&str>) -> Result<Value> {
        let response = Connection::open(self.address)?.send(&self.request(method, path, body))?;
        if response.status != status {
            let text = String::from_utf8_lossy(&response.body);
            return Err(format!("{method} {path}: {} instead of {status}: {text}", response.status).into());
        }
        Ok(serde_json::from_slice(&response.body)?)
    }
}
