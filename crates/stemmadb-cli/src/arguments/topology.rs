//! Arguments of `stemma topology`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputOptions;

/// The arguments of `stemma topology`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma topology http://admin:secret@localhost:5984 define offices offices.json\n  \
    stemma topology http://admin:secret@localhost:5984 show offices\n  \
    stemma topology http://admin:secret@localhost:5984 pause offices\n\n\
    offices.json, in which the head office replicates to the others and back:\n\n  \
    {\"shape\": \"fan-out\", \"direction\": \"both\", \"nodes\": [\n    \
    {\"name\": \"head\", \"database\": \"books\"},\n    \
    {\"name\": \"rome\", \"database\": \"https://ada:secret@rome.example.org/books\"}]}\n\n\
    The shapes are chain, ring, group, fan-out, fan-in and tiered; `edges` names single replications. The server runs \
    them until the topology is removed, also after a restart.")]
pub(crate) struct Topology {
    /// The server that runs the replications, with an administrator: http://user:password@host:port
    pub(crate) server: String,
    /// The operation
    #[command(subcommand)]
    pub(crate) command: TopologyCommand,
}

/// The operations of `stemma topology`.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum TopologyCommand {
    /// List the topologies with their numbers of replications by state
    List {
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show the replications of a topology: state, lag, last error
    Show {
        /// The topology
        name: String,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Define a topology, or change it: replications that stay are not interrupted
    Define {
        /// The topology
        name: String,
        /// A file with the definition as JSON, or - for standard input
        #[arg(default_value = "-", hide_default_value = true)]
        file: PathBuf,
    },
    /// End the replications until the topology is resumed
    Pause {
        /// The topology
        name: String,
    },
    /// Start the replications of a paused topology again
    Resume {
        /// The topology
        name: String,
    },
    /// End the replications and forget the topology; documents stay
    Remove {
        /// The topology
        name: String,
    },
}
