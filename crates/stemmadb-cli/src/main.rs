//! The `stemma` command: parse, run one verb, report.
//!
//! ```text
//! arguments   what may be written
//! verbs       what each verb does          face     the only module that knows the library
//! read        documents coming in          show     data going out
//! failure     error and hint lines, exit   progress bars on standard error
//! shell       the same verbs at a prompt
//! ```

mod arguments;
mod face;
mod failure;
mod progress;
mod read;
mod shell;
mod show;
mod verbs;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use stemmadb_server::script;

use arguments::Arguments;
use failure::{Exit, Failure};

/// For C's libraries too.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc reads when it starts. Memory goes back to the system soon after it is freed, that of large pieces at once: else what a request
/// took for a while stands beside what it takes next.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the name under which a C library looks for its settings")]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 63] = b"dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:262144\0";

fn main() -> ExitCode {
    // What the server starts itself again for: no verb for people, so it is not among them.
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(script::WORKER_VERB) {
        return script::run_worker(&arguments.collect::<Vec<_>>());
    }
    let outcome = Arguments::try_parse().map_err(refusal).and_then(|arguments| verbs::run(&arguments.verb, None));
    let exit = match outcome {
        Ok(()) => Exit::Done,
        Err(failure) => {
            failure.print();
            failure.exit()
        }
    };
    ExitCode::from(exit as u8)
}

/// What is wrong with the command line, in our form; help that was asked for is printed right away.
fn refusal(error: clap::Error) -> Failure {
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
    failure::of_usage(&error.to_string())
}
