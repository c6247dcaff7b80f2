//! Arguments of `stemma backup`, `restore`, `branch` and `follow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputOptions, parse_time};

/// The arguments of `stemma backup`.
#[derive(Debug, Args)]
#[command(
    override_usage = "stemma backup <DATABASE> <TARGET> [--keep N] [--no-tree]\n       \
        stemma backup --verify <TARGET>\n       stemma backup --list <TARGET>",
    after_long_help = "Examples:\n\n  \
    stemma backup library.stemma /mnt/usb/library --keep 30\n  \
    stemma backup --list /mnt/usb/library\n  \
    stemma backup --verify /mnt/usb/library\n  \
    stemma restore /mnt/usb/library restored.stemma\n  \
    stemma backup library.stemma s3://backups/library\n\n\
    A target has the backups of one database. Each backup adds only what is new since the one before, and each can be \
    restored. On the file system of the database, files are linked instead of copied: that is fast and takes no space, \
    but does not protect from a damaged disk.\n\n\
    A bucket of S3, or of a store that is compatible with it, is reached as these environment variables say: \
    AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_CA_BUNDLE.\n\n\
    --verify reads every file and compares it with its hash and its checksums. The exit status is 3 if one is damaged."
)]
pub(crate) struct Backup {
    /// The database directory
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    /// The place of the backups: a directory, created if it does not exist, or s3://BUCKET/PREFIX
    #[arg(required_unless_present_any = ["verify", "list"])]
    pub(crate) target: Option<PathBuf>,
    /// Keep the newest N backups and delete older ones
    #[arg(long, value_name = "N", conflicts_with_all = ["verify", "list"])]
    pub(crate) keep: Option<usize>,
    /// Leave the tree out, which is otherwise linked: links keep what the database replaces
    #[arg(long, conflicts_with_all = ["verify", "list"])]
    pub(crate) no_tree: bool,
    /// Verify the backups instead of making one
    #[arg(long)]
    pub(crate) verify: bool,
    /// List the backups instead of making one
    #[arg(long, conflicts_with = "verify")]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma restore`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma restore /mnt/usb/library restored.stemma\n  \
    stemma restore /mnt/usb/library restored.stemma --at -2h\n  \
    stemma restore /mnt/usb/library library.stemma --force\n  \
    stemma restore s3://backups/library library.stemma --revert --at -1h\n  \
    stemma restore library http://admin:secret@127.0.0.1:5984/copy\n\n\
    A state between two backups can be restored unless compaction removed a part of the log before it was backed up. \
    `stemma changes` prints sequences, `stemma backup --list` those of the backups.\n\n\
    The directory gets its name once the database in it is complete and checked. The restored database is a copy with \
    an identity of its own: replications with it start anew, and find what is missing.\n\n\
    --revert keeps the database and writes new revisions, by which each document gets the restored state; other \
    documents are deleted. Replicas receive that like any change.\n\n\
    With the URL of a database, its server restores what it has itself below its setting `backups`, by that name.")]
pub(crate) struct Restore {
    /// The place of the backups: a directory or s3://BUCKET/PREFIX; for a server, the name that it has there
    pub(crate) target: PathBuf,
    /// The directory of the restored database, or its URL
    pub(crate) directory: PathBuf,
    /// Restore this state: a sequence such as 17, a time such as 2026-11-24T12:00:00Z, or how long ago, such as -2h
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, conflicts_with = "backup")]
    pub(crate) at: Option<String>,
    /// Restore this backup; the newest one by default
    #[arg(long, value_name = "N")]
    pub(crate) backup: Option<u64>,
    /// Replace an existing database
    #[arg(long, conflicts_with = "revert")]
    pub(crate) force: bool,
    /// Write the restored state as new revisions over the existing database
    #[arg(long)]
    pub(crate) revert: bool,
    /// Do not check the restored database; hashes and checksums are verified
    #[arg(long)]
    pub(crate) no_check: bool,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma branch`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma branch library.stemma trial.stemma\n  \
    stemma branch library.stemma yesterday.stemma --at -1d\n\n\
    A branch is a database of its own. On the same file system it shares the files of the original until either of \
    them replaces them, so it takes little time and space. It counts as another database and can replicate back.\n\n\
    An older state must still be in the log: compaction removes what was replaced.")]
pub(crate) struct Branch {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The directory of the new database
    pub(crate) directory: PathBuf,
    /// Branch from this state: a sequence such as 17, a time such as 2026-11-24T12:00:00Z, or how long ago, such as -2h
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
}

/// The arguments of `stemma follow`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma follow library.stemma /mnt/usb/library\n  \
    stemma follow library.stemma /mnt/usb/library --interval 1s --keep 100\n  \
    stemma follow library.stemma s3://backups/library --check 1d\n\n\
    Makes a backup whenever the database has changed, at most once in each interval, until interrupted. Backups that a \
    newer one makes superfluous are deleted. Failures are printed, and tried again. While nothing changes, nothing is \
    sent to the target. If another process makes backups there, it ends with an error.\n\n\
    --check restores the newest backup to the directory for temporary files (TMPDIR), checks the database there and \
    removes it. A check that fails is printed, and the exit status is then 3 at the end. \
    `stemma info library.stemma --backups TARGET` prints how far the backups are behind.\n\n\
    Only one process at a time can have a database open. It is closed between backups, so that other processes can \
    write. To follow a database that another process keeps open, use Maintenance::follow in that program, which also \
    ships what compaction removes.")]
pub(crate) struct Follow {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The place of the backups: a directory, created if it does not exist, or s3://BUCKET/PREFIX
    pub(crate) target: PathBuf,
    /// The shortest time between two backups, such as 500ms, 10s or 2min
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s")]
    pub(crate) interval: Duration,
    /// Restore and check the newest backup this often; daily without a value
    #[arg(long, value_name = "EVERY", value_parser = parse_time, num_args = 0..=1, default_missing_value = "24h")]
    pub(crate) check: Option<Duration>,
    /// Keep the newest N backups and delete older ones
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
}
