//! Arguments of `stemma update` and `stemma delete`.

use std::path::PathBuf;

use clap::Args;

use super::{DurabilityArgument, OutputOptions};

/// The arguments of `stemma update`.
#[derive(Debug, Args)]
#[command(
    after_help = "Operators: $set $unset $inc $mul $min $max $push $addToSet $pull $rename",
    after_long_help = "Examples:\n\n  \
        stemma update library.stemma emma '{\"$set\": {\"year\": 1815}, \"$push\": {\"tags\": \"novel\"}}'\n  \
        stemma update library.stemma emma '{\"year\": 1815, \"draft\": null}'   # JSON Merge Patch\n  \
        stemma update library.stemma --where '{\"year\": {\"$lt\": 1900}}' '{\"$set\": {\"old\": true}}' --dry-run\n\n\
        Operators: $set $unset $inc $mul $min $max $push $addToSet $pull $rename. An object without operators is a \
        JSON Merge Patch: it sets the fields that it has, and null removes a field.\n\n\
        With --where all matching documents change in one transaction, or none."
)]
pub(crate) struct Update {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id, and the patch: a JSON object. With --where, only the patch
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "PATCH"])]
    pub(crate) target: Vec<String>,
    /// Update the document only if this is its current revision
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    /// Update all documents that match this selector, a JSON object
    #[arg(long = "where", value_name = "SELECTOR", conflicts_with = "rev")]
    pub(crate) selector: Option<String>,
    /// Print how many documents would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma delete`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma delete library.stemma emma\n  \
    stemma delete library.stemma emma --rev 2-9c0a…   # only if this is the current revision\n  \
    stemma delete library.stemma --where '{\"year\": {\"$lt\": 1900}}' --dry-run\n\n\
    With --where all matching documents are deleted in one transaction, or none.")]
pub(crate) struct Delete {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    #[arg(required_unless_present = "selector", conflicts_with = "selector")]
    pub(crate) id: Option<String>,
    /// The revision to delete; by default the current one
    #[arg(long, value_name = "REVISION", conflicts_with = "selector")]
    pub(crate) rev: Option<String>,
    /// Delete all documents that match this selector, a JSON object
    #[arg(long = "where", value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    /// Print how many documents would be deleted, and delete nothing
    #[arg(long, requires = "selector")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}
