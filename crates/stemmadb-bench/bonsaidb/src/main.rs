//! BonsaiDb's side of the shop benchmark: a program that keeps a shop and serves shoppers.
//!
//! ```text
//! embedded PATH         a shop in the directory PATH, within this process
//! websocket PATH        the same behind BonsaiDb's server, in a child process, reached by WebSocket
//! serve PATH ADDRESS    that server, until its stdin ends
//! ```
//!
//! The first two read requests from stdin and answer on stdout, one JSON text per line: see `messages`. Times are
//! measured here, so that this exchange costs nothing in them.

mod connect;
mod messages;
mod operations;
mod schema;
mod serve;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use connect::{Connect, Embedded, WebSocket};
use messages::{Reply, Request};
use serve::Shop;

/// An error that ends the program.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["embedded", path] => Embedded::open(Path::new(path)).and_then(answer),
        ["websocket", path] => WebSocket::start(Path::new(path)).and_then(answer),
        ["serve", path, address] => connect::serve(Path::new(path), address),
        _ => Err("usage: embedded PATH, websocket PATH or serve PATH ADDRESS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests until stdin ends.
fn answer<C: Connect>(connect: C) -> Result<()> {
    let mut shop = Shop::new(connect)?;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let reply = shop.answer(request).unwrap_or_else(|error| Reply::Failed(error.to_string()));
        serde_json::to_writer(&mut output, &reply)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}
