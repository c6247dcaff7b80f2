//! `stemma manual`: manual pages for packages of distributions.

use clap::CommandFactory;

use crate::arguments::{Arguments, Manual};
use crate::failure::{Exit, Failure, Result};

/// Writes a page for the command and for each of its subcommands.
pub(super) fn run(manual: &Manual) -> Result<()> {
    let directory = &manual.directory;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(|error| {
        let message = format!("manual pages can't be written into {}: {error}", directory.display());
        Failure::new(Exit::Unavailable, message).with_hint("name a directory that exists and can be written to")
    })
}
