//! Arguments of `stemma import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{CreationArgument, DurabilityArgument};
use crate::input::InputFormat;

/// The arguments of `stemma import`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
        stemma import library.stemma books.jsonl --id-field isbn\n  \
        stemma import library.stemma books.csv --on-conflict skip\n  \
        curl -s https://example.org/books.json | stemma import library.stemma -\n  \
        cargo metadata --format-version 1 | stemma import crates.stemma - --at packages --id-field id\n\n\
        A document's id is its `_id`, or the field named by --id-field, or a generated id that sorts by time. `_rev` \
        is ignored, so that exported documents can be imported again.\n\n\
        In CSV the first row has the field names. 12 is an integer, 1.5 a float, true and false are booleans, an empty \
        cell is no field, and a cell that a number would not preserve (007, +1) is text; --text=zip reads a whole \
        column as text.\n\n\
        Each batch is acknowledged as a whole, and records how far the import got. Documents imported before an error \
        are kept. --resume goes on after the last batch, also after a crash; it recognizes a file by its name, size \
        and first bytes, so give it to the first run too if standard input is read.")]
pub(crate) struct Import {
    /// The database directory, conventionally NAME.stemma
    pub(crate) database: PathBuf,
    /// The file to read, or - for standard input
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// The field with the document's id
    #[arg(long, value_name = "FIELD")]
    pub(crate) id_field: Option<String>,
    /// What to do if a document with the same id exists
    #[arg(long, value_name = "ACTION", default_value = "fail")]
    pub(crate) on_conflict: OnConflict,
    /// The input format; detected from the file name and the first byte by default
    #[arg(long)]
    pub(crate) format: Option<InputFormat>,
    /// Read the documents from the array at this field of an outer object; a.b for a nested field
    #[arg(long, value_name = "FIELD", conflicts_with_all = ["format", "delimiter", "text"])]
    pub(crate) at: Option<String>,
    /// The delimiter of CSV cells; detected from the first rows by default
    #[arg(long, value_name = "CHARACTER")]
    pub(crate) delimiter: Option<char>,
    /// Read these CSV columns as text, or all columns
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', num_args = 0.., require_equals = true)]
    pub(crate) text: Option<Vec<String>>,
    /// Skip documents that can't be imported and write them to this new file, one on a line
    #[arg(long, value_name = "FILE", conflicts_with = "revisions")]
    pub(crate) skip_bad: Option<PathBuf>,
    /// Go on where an interrupted import of this file stopped
    #[arg(long)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) creation: CreationArgument,
    /// Number of documents per acknowledged batch
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) batch: u32,
    /// Import revisions with their `_rev`, `_revisions` and `_deleted`, as written by `stemma salvage`
    #[arg(long, conflicts_with_all = ["id_field", "on_conflict"])]
    pub(crate) revisions: bool,
    /// The directory with the contents of attachments, each named by its SHA-256
    #[arg(long, value_name = "DIRECTORY", requires = "revisions")]
    pub(crate) files: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}

/// What to do with a document whose id exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnConflict {
    /// Stop with an error
    Fail,
    /// Keep the existing document
    Skip,
    /// Replace it with the imported document
    Replace,
}
