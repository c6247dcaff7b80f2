//! Arguments of `stemma tiers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputOptions;

/// The arguments of `stemma tiers`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma tiers http://admin:secret@localhost:5984/invoices define tiers.json\n  \
    stemma tiers http://admin:secret@localhost:5984/invoices run\n  \
    stemma tiers http://admin:secret@localhost:5984/invoices show\n\n\
    tiers.json, by which paid invoices move to another database of the server after a year:\n\n  \
    {\"interval\": \"12h\", \"tiers\": [{\"name\": \"cold\", \"database\": \"invoices-cold\",\n    \
    \"policy\": {\"older_than\": \"365d\", \"date_field\": \"day\", \"only\": {\"state\": \"paid\"}}}]}")]
pub(crate) struct Tiers {
    /// The database, with an administrator of its server: http://user:password@host:port/database
    pub(crate) database: String,
    /// The operation
    #[command(subcommand)]
    pub(crate) command: TiersCommand,
}

/// The operations of `stemma tiers`.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum TiersCommand {
    /// Show what each tier holds
    Show {
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Define the tiers, or change them; documents move at the next run
    Define {
        /// A file with the definition as JSON, or - for standard input
        #[arg(default_value = "-", hide_default_value = true)]
        file: PathBuf,
    },
    /// Move the documents that the policies name now, and wait for that
    Run {
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Move nothing at the interval any more, until resumed
    Pause,
    /// Move documents at the interval again
    Resume,
    /// Forget the tiers; documents stay where they are
    Remove,
}
