//! `stemma completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::arguments::{Arguments, Completions};
use crate::failure::Result;
use crate::output::{OutputFormat, Printer};

/// Prints the completion script.
pub(super) fn run(completions: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Arguments::command(), "stemma", &mut script);
    let mut printer = Printer::new(OutputFormat::JsonLines);
    printer.text(&String::from_utf8_lossy(&script))?;
    printer.flush()
}
