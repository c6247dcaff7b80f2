//! Arguments of `stemma mirror`.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `stemma mirror`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma mirror cars.stemma cars --by colour --by 'keywords[]' --once\n  \
    cat cars/by/colour/red/*.json\n  \
    stemma mirror http://reader:secret@127.0.0.1:5984/cars cars --files\n\n\
    documents/ID.json is a document as indented JSON, with `_id`, `_rev`, its conflicting revisions (`_conflicts`, \
    without their bodies) and the stubs of its attachments (`_attachments`; with --files, their content is in \
    files/ID/NAME). by/PATH/VALUE/ID.json is a link to it. Deleted and `_local` documents are omitted; design \
    documents are included.\n\n\
    A PATH is written as `stemma paths` prints it: author.name, tags[], lines[].product. [] stands for each element of \
    an array. Arrays and objects themselves have no links.\n\n\
    File names are ids and values with /, %, control characters and a leading dot percent-encoded. A name longer than \
    250 bytes is truncated and ends in %~ and a hash. \"1\" in quotes is a string, 1 a number. Names that differ only \
    in case or Unicode normalization are distinct: use a file system that distinguishes them.\n\n\
    Each file is replaced atomically. Links to an old version are removed before the document changes, new links are \
    added after it. If a run is killed, the next one repairs the mirror; without --no-flush this also holds after a \
    power failure. Do not edit the mirrored files; other files beside them, such as .git, are not touched.\n\n\
    Only one process at a time can have a database open. It is closed between polls, so that other processes can \
    write. To mirror a database that another process keeps open, use the URL of its server, or Database::mirror_to in \
    that program.")]
pub(crate) struct Mirror {
    /// The database directory, or its URL: http://user:password@host:5984/name
    pub(crate) database: PathBuf,
    /// The directory of the mirror; created if it does not exist
    pub(crate) directory: PathBuf,
    /// Add links grouped by the values at this path; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) by: Vec<String>,
    /// Also copy attachments
    #[arg(long)]
    pub(crate) files: bool,
    /// Exit when the mirror is up to date, instead of following until interrupted
    #[arg(long)]
    pub(crate) once: bool,
    /// Do not flush files to disk; after a power failure the mirror needs --rebuild
    #[arg(long)]
    pub(crate) no_flush: bool,
    /// Rebuild the mirror from scratch, even if the directory mirrors another database
    #[arg(long)]
    pub(crate) rebuild: bool,
}
