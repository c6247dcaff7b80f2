//! The `stemma` command-line program.
//!
//! ```text
//! arguments   command line definitions and help    commands   one module for each group of subcommands
//! database    facade over the `stemmadb` library   shell      interactive prompt for the same subcommands
//! input       document readers: JSON and CSV       output     JSON Lines, indented JSON and tables
//! failure     error messages and exit statuses     progress   progress bars on standard error
//! ```

mod arguments;
mod commands;
mod database;
mod failure;
mod input;
mod output;
mod progress;
mod shell;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use stemmadb_server::script;

use arguments::Arguments;
use failure::{Exit, Failure};

/// Used by Rust code and, since it also replaces `malloc`, by C libraries.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that jemalloc reads at startup. Freed memory is returned to the system within a second, and that of large
/// allocations immediately: otherwise the memory of finished requests would add to that of current ones.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "jemalloc reads its options from the symbol of this name")]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 63] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:262144\0";

fn main() -> ExitCode {
    // The server starts this program again as a script worker, with a hidden subcommand.
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(script::WORKER_SUBCOMMAND) {
        return script::run_worker(&arguments.collect::<Vec<_>>());
    }
    let outcome = Arguments::try_parse().map_err(clap_failure).and_then(|Arguments { command, key }| {
        commands::use_key(&key, &command)?;
        let run = || commands::run(&command, None);
        match std::env::var("STEMMA_AUTHOR") {
            Ok(author) => stemmadb::past::writing_as(&author, run),
            Err(_) => run(),
        }
    });
    let exit = match outcome {
        Ok(()) => Exit::Done,
        Err(failure) => {
            failure.print();
            failure.exit()
        }
    };
    ExitCode::from(exit as u8)
}

/// Converts an error of the command-line parser. Help and version requests are printed here and exit successfully.
fn clap_failure(error: clap::Error) -> Failure {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Ok(()) => Failure::silent(Exit::Done),
            Err(fault) => Failure::output(fault),
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{error}");
        return Failure::silent(Exit::Usage);
    }
    failure::from_clap(&error.to_string())
}
