//! What may be written after `stemma salvage`?

use std::path::PathBuf;

use clap::Args;

/// The arguments of `stemma salvage`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma salvage broken.stemma | stemma import --revisions mended.stemma -\n  \
    stemma salvage broken.stemma --output saved.jsonl --files saved-files\n  \
    stemma import --revisions --files saved-files mended.stemma saved.jsonl\n\n\
    A line is a revision with its `_id`, `_rev`, `_revisions` (itself, then its ancestors), `_deleted` and `_attachments`; \
    a `_local/` document; or, last, what was declared, as `_settings`. What could not be read is told on standard error, by file \
    and bytes, and makes the exit status 3.\n\n\
    Nothing is changed, and the index is not needed.")]
pub(crate) struct Salvage {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// Write here, not to standard output; a file that exists is not overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Put the content of documents' files in this new directory, each named by its SHA-256
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) files: Option<PathBuf>,
}
