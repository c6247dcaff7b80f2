//! Arguments of `stemma key`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DurabilityArgument, OutputOptions};

/// The arguments of `stemma key`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma key shop.stemma set greeting '\"hello\"'\n  \
    stemma key shop.stemma get greeting\n  \
    stemma key shop.stemma increment solaris --namespace visits\n  \
    stemma key shop.stemma set backup '\"worker 1\"' --namespace locks --if absent --ttl 60\n  \
    stemma key shop.stemma list --namespace visits\n\n\
    Keys are stored beside the documents: they are not indexed, not replicated, and not in the changes feed.")]
pub(crate) struct Key {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The operation
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

/// The operations of `stemma key`.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum KeyCommand {
    /// Print the value of a key
    Get(GetKey),
    /// Set the value of a key
    Set(SetKey),
    /// Remove a key
    Delete(DeleteKey),
    /// Add to a number and print the sum
    Increment(IncrementKey),
    /// List the keys of a namespace with their values
    List(ListKeys),
}

/// The namespace of a key.
#[derive(Debug, Args)]
pub(crate) struct Namespace {
    /// The namespace of the key
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,
}

/// The arguments of `stemma key … get`.
#[derive(Debug, Args)]
pub(crate) struct GetKey {
    /// The key
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
}

/// The arguments of `stemma key … set`.
#[derive(Debug, Args)]
pub(crate) struct SetKey {
    /// The key
    pub(crate) key: String,
    /// The value, as JSON
    pub(crate) value: String,
    /// Set it only if the key is absent, or only if it is present
    #[arg(long = "if", value_name = "STATE", conflicts_with = "expected")]
    pub(crate) condition: Option<KeyState>,
    /// Set it only if the key has this value, as JSON
    #[arg(long, value_name = "VALUE")]
    pub(crate) expected: Option<String>,
    /// The number of seconds after which the key expires; by default it does not
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl: Option<u64>,
    /// Print the previous value, or null
    #[arg(long)]
    pub(crate) previous: bool,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}

/// Whether a key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyState {
    /// It does not exist
    Absent,
    /// It exists
    Present,
}

/// The arguments of `stemma key … delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteKey {
    /// The key
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}

/// The arguments of `stemma key … increment`.
#[derive(Debug, Args)]
pub(crate) struct IncrementKey {
    /// The key
    pub(crate) key: String,
    /// The number to add, an integer or a float
    #[arg(default_value = "1", allow_hyphen_values = true)]
    pub(crate) by: String,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}

/// The arguments of `stemma key … list`.
#[derive(Debug, Args)]
pub(crate) struct ListKeys {
    /// List only keys that begin with this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}
