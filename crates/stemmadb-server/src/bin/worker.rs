//! A standalone script worker, for tests and for programs that embed the server. `stemma` runs the same code as a
//! hidden subcommand.

use std::process::ExitCode;

use stemmadb_server::script;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) == Some(script::WORKER_SUBCOMMAND) {
        arguments.remove(0);
    }
    script::run_worker(&arguments)
}
