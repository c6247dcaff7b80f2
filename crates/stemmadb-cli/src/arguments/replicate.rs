//! Arguments of `stemma replicate`.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `stemma replicate`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma replicate library.stemma https://ada:secret@db.example.org/library --create\n  \
    stemma replicate https://db.example.org/library library.stemma --continuous --source-token-file token\n  \
    stemma replicate library.stemma novels.stemma --create --selector '{\"tags\": \"novel\"}'\n\n\
    Copies the revisions that TARGET lacks, with their ancestors, conflicts and attachments; deletions, too. Both \
    sides keep a checkpoint, so repeating the command copies only what is new, and an interrupted one continues. For \
    both directions, run it twice.\n\n\
    With --continuous, lost connections are retried, after a second and then after up to a minute, until the command \
    is interrupted. A database directory stays open meanwhile: other processes can't open it. To replicate a database \
    that another process keeps open, use the URL of its server.\n\n\
    A revision that TARGET refuses, because of a schema or a validation function, is counted and not repeated.")]
pub(crate) struct Replicate {
    /// The database to read: a directory, or a URL such as https://user:password@host/name
    pub(crate) source: PathBuf,
    /// The database to write: a directory, or a URL
    pub(crate) target: PathBuf,
    /// Go on with changes that follow, until interrupted
    #[arg(long)]
    pub(crate) continuous: bool,
    /// Create the target if it does not exist
    #[arg(long)]
    pub(crate) create: bool,
    /// Only documents that match this selector
    #[arg(long, value_name = "JSON", conflicts_with_all = ["ids", "filter"])]
    pub(crate) selector: Option<String>,
    /// Only these documents
    #[arg(long, value_name = "ID,…", value_delimiter = ',', conflicts_with = "filter")]
    pub(crate) ids: Vec<String>,
    /// Only documents that pass a filter function of the source, which must be a server
    #[arg(long, value_name = "DESIGN/NAME")]
    pub(crate) filter: Option<String>,
    /// Number of changes per page
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<usize>,
    /// How often a failure that may pass is retried; without end with --continuous
    #[arg(long, value_name = "N", conflicts_with = "continuous", default_value_t = 0, hide_default_value = true)]
    pub(crate) retries: u32,
    /// A file with the bearer token for the source
    #[arg(long, value_name = "FILE")]
    pub(crate) source_token_file: Option<PathBuf>,
    /// A file with the bearer token for the target
    #[arg(long, value_name = "FILE")]
    pub(crate) target_token_file: Option<PathBuf>,
    /// A PEM file with the private Ed25519 key that signs requests to the source
    #[arg(long, value_name = "FILE", conflicts_with = "source_token_file")]
    pub(crate) source_key_file: Option<PathBuf>,
    /// A PEM file with the private Ed25519 key that signs requests to the target
    #[arg(long, value_name = "FILE", conflicts_with = "target_token_file")]
    pub(crate) target_key_file: Option<PathBuf>,
    /// A PEM file with certificates to trust, in addition to those of the system
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}
