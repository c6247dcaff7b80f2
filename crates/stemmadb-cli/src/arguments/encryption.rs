//! Arguments that name the key of an encrypted database, and those of `stemma encrypt`, `decrypt` and `rekey`.

use std::path::PathBuf;

use clap::Args;

/// The key of the database.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub(crate) struct KeyArguments {
    /// The file with the key of an encrypted database, 64 hexadecimal digits; also $STEMMA_KEY_FILE
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) key_file: Option<String>,
    /// Ask for the passphrase of an encrypted database
    #[arg(long, global = true, conflicts_with = "key_file", hide_short_help = true)]
    pub(crate) passphrase: bool,
}

/// The arguments of `stemma encrypt`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    openssl rand -hex 32 > library.key\n  \
    stemma encrypt library.stemma --key-file library.key\n  \
    stemma encrypt notes.stemma --passphrase\n\n\
    Keep the key in another place than the database and its backups. Whoever loses it loses the database.\n\n\
    Every file is written again; the old bytes may remain in free blocks of the disk, and backups made before stay as \
    they are. If the command is interrupted, run it again: until then the database can be used with the key.\n\n\
    The key is given with --key-file or $STEMMA_KEY_FILE, $STEMMA_KEY (the key itself), --passphrase (on a terminal), \
    or $STEMMA_PASSPHRASE.")]
pub(crate) struct Encrypt {
    /// The database directory
    pub(crate) database: PathBuf,
}

/// The arguments of `stemma decrypt`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma decrypt library.stemma --key-file library.key\n\n\
    Every file is written again, without encryption. If the command is interrupted, run it again.")]
pub(crate) struct Decrypt {
    /// The database directory
    pub(crate) database: PathBuf,
}

/// The arguments of `stemma rekey`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma rekey library.stemma --key-file old.key --new-key-file new.key\n  \
    stemma rekey library.stemma --passphrase --new-passphrase\n  \
    stemma rekey library.stemma --key-file old.key --new-key-file new.key --full\n\n\
    Replacing the key writes one small file. Whoever has the old key and a copy of the database from before can then \
    still decrypt newer copies of its files; --full prevents that: it encrypts everything again, which takes as long \
    as a compaction of the whole database. Backups keep the key that they were made with.")]
pub(crate) struct Rekey {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The file with the new key
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key_file: Option<PathBuf>,
    /// Ask for a new passphrase, or use that in $STEMMA_NEW_PASSPHRASE
    #[arg(long, conflicts_with = "new_key_file")]
    pub(crate) new_passphrase: bool,
    /// Encrypt everything again
    #[arg(long)]
    pub(crate) full: bool,
}
