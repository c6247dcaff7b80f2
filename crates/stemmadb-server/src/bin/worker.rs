//! A script worker by itself: what `stemma` becomes with its hidden verb, for tests and for whoever embeds the server.

use std::process::ExitCode;

use stemmadb_server::script;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) == Some(script::WORKER_VERB) {
        arguments.remove(0);
    }
    script::run_worker(&arguments)
}
