//! Arguments of `stemma backup`, `restore`, `branch` and `follow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputOptions, parse_time};

/// The arguments of `stemma backup`.
#[derive(Debug, Args)]
#[command(
    override_usage = "stemma backup <DATABASE> <TARGET> [--keep N]\n       stemma backup --verify <TARGET>\n       \
        stemma backup --list <TARGET>",
    after_long_help = "Examples:\n\n  \
    stemma backup library.stemma /mnt/usb/library --keep 30\n  \
    stemma backup --list /mnt/usb/library\n  \
    stemma backup --verify /mnt/usb/library\n  \
    stemma restore /mnt/usb/library restored.stemma\n\n\
    A target has the backups of one database. Each backup adds only what is new since the one before, and each can be \
    restored. On the file system of the database, files are linked instead of copied: that is fast and takes no space, \
    but does not protect from a damaged disk.\n\n\
    --verify reads every file and compares it with its hash and its checksums. The exit status is 3 if one is damaged."
)]
pub(crate) struct Backup {
    /// The database directory
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    /// The directory of the backups; created if it does not exist
    #[arg(required_unless_present_any = ["verify", "list"])]
    pub(crate) target: Option<PathBuf>,
    /// Keep the newest N backups and delete older ones
    #[arg(long, value_name = "N", conflicts_with_all = ["verify", "list"])]
    pub(crate) keep: Option<usize>,
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
    stemma restore /mnt/usb/library library.stemma --force\n\n\
    A state between two backups can be restored unless compaction removed a part of the log before it was backed up. \
    `stemma changes` prints sequences, `stemma backup --list` those of the backups.\n\n\
    The directory gets its name once the database in it is complete and checked. The restored database is a copy with \
    an identity of its own: replications with it start anew, and find what is missing.")]
pub(crate) struct Restore {
    /// The directory of the backups
    pub(crate) target: PathBuf,
    /// The directory of the restored database
    pub(crate) directory: PathBuf,
    /// Restore this state: a sequence such as 17, a time such as 2026-11-24T12:00:00Z, or how long ago, such as -2h
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, conflicts_with = "backup")]
    pub(crate) at: Option<String>,
    /// Restore this backup; the newest one by default
    #[arg(long, value_name = "N")]
    pub(crate) backup: Option<u64>,
    /// Replace an existing database
    #[arg(long)]
    pub(crate) force: bool,
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
    stemma follow library.stemma /mnt/usb/library --interval 1s --keep 100\n\n\
    Makes a backup whenever the database has changed, at most once in each interval, until interrupted. Backups that a \
    newer one makes superfluous are deleted. Failures are printed, and tried again.\n\n\
    Only one process at a time can have a database open. It is closed between backups, so that other processes can \
    write. To follow a database that another process keeps open, use Maintenance::follow in that program, which also \
    ships what compaction removes.")]
pub(crate) struct Follow {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The directory of the backups; created if it does not exist
    pub(crate) target: PathBuf,
    /// The shortest time between two backups, such as 500ms, 10s or 2min
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s")]
    pub(crate) interval: Duration,
    /// Keep the newest N backups and delete older ones
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
}
