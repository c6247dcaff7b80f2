//! Arguments of `stemma salvage`.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `stemma salvage`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma salvage broken.stemma | stemma import --revisions recovered.stemma -\n  \
    stemma salvage broken.stemma --output saved.jsonl --files saved-files\n  \
    stemma import --revisions --files saved-files recovered.stemma saved.jsonl\n\n\
    Each line is a revision with its `_id`, `_rev`, `_revisions` (the revision, then its ancestors), `_deleted` and \
    `_attachments`; or a `_local/` document. The last line has the database's settings and declarations as \
    `_settings`. Unreadable data is reported on standard error by file and byte range, with exit status 3.\n\n\
    The database is not changed, and its indexes are not needed.")]
pub(crate) struct Salvage {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The file to write; by default standard output. An existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the contents of attachments to this new directory, each named by its SHA-256
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) files: Option<PathBuf>,
}
