//! The arguments of `stemma mirror`.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `stemma mirror`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma mirror cars.stemma cars --by colour --by 'keywords[]' --once\n  \
    cat cars/by/colour/red/*.json\n  \
    stemma mirror http://reader:secret@127.0.0.1:5984/cars cars --files\n\n\
    documents/ID.json is a document, printed over lines, with `_id`, `_rev`, the revisions it is in conflict with (`_conflicts`; their \
    bodies are not copied) and what is known of its files (`_attachments`; their content, with --files, is in files/ID/NAME). \
    by/PATH/VALUE/ID.json links to it. Deleted documents and `_local` ones are not there, design documents are.\n\n\
    A PATH is as `stemma paths` prints it: author.name, tags[], lines[].product. [] is each element of an array; arrays and objects \
    themselves have no links.\n\n\
    Names are ids and values as they are, but that /, %, control characters and a dot at the beginning are percent-encoded, and what is \
    longer than 250 bytes is cut and ends in %~ and a hash. \"1\" in quotes is a text, 1 a number. Names that differ in case or in how an \
    accent is composed are different: use a file system that keeps them apart.\n\n\
    Each file is replaced at once, links of an old document go before it and those of a new one come after it. What a kill breaks off, the \
    next run mends. Without --no-flush that holds for a power cut, too. Change nothing in the copy; what is beside it, such as .git, \
    is left alone.\n\n\
    A database in a directory belongs to one process at a time: it is let go between readings, so that others can write. One that is \
    open elsewhere for long is mirrored from its server, or by the program that has it open (Database::mirror_to).")]
pub(crate) struct Mirror {
    /// The database's directory, or its URL: http://user:password@host:5984/name
    pub(crate) database: PathBuf,
    /// The directory of the copy; made if there is none
    pub(crate) directory: PathBuf,
    /// Link each document by the values at this path; may be given again
    #[arg(long, value_name = "PATH")]
    pub(crate) by: Vec<String>,
    /// Copy the documents' files, too
    #[arg(long)]
    pub(crate) files: bool,
    /// Bring it up to date and end, instead of following until interrupted
    #[arg(long)]
    pub(crate) once: bool,
    /// Leave it to the system when the copy reaches the disk; after a power cut it needs --rebuild
    #[arg(long)]
    pub(crate) no_flush: bool,
    /// Make the copy anew; the directory may have that of another database
    #[arg(long)]
    pub(crate) rebuild: bool,
}
