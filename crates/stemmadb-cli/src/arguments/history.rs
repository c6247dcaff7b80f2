//! Arguments of the commands that read the past, and `--as-of`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stemmadb::past::{At, Retention};

use super::{DurabilityArgument, OutputOptions};

/// A point in the past to read as of.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct AsOfArgument {
    /// Read the database as it was: a sequence, a time such as 2026-11-24T12:00:00Z, or -90s, -30m, -2h, -7d
    #[arg(long, value_name = "WHEN", value_parser = parse_at, allow_hyphen_values = true)]
    pub(crate) as_of: Option<At>,
}

fn parse_at(text: &str) -> Result<At, String> {
    text.parse::<At>().map_err(|error| match error.hint() {
        Some(hint) => format!("{}: {hint}", error.message()),
        None => error.message().to_owned(),
    })
}

/// The arguments of `stemma log`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma log library.stemma emma\n  \
    stemma log library.stemma emma --docs --pretty\n\n\
    While the database keeps history, commands that write record $STEMMA_AUTHOR as the author.")]
pub(crate) struct Log {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// Include the bodies
    #[arg(long)]
    pub(crate) docs: bool,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma diff`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma diff library.stemma -2h\n  \
    stemma diff library.stemma 1200 1300 --where '{\"type\": \"order\"}'")]
pub(crate) struct Diff {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The first state: a sequence, a time, or how long ago
    #[arg(value_parser = parse_at, allow_hyphen_values = true)]
    pub(crate) from: At,
    /// The second state; by default the newest
    #[arg(value_parser = parse_at, allow_hyphen_values = true)]
    pub(crate) to: Option<At>,
    /// Only documents that match this selector, a JSON object, in one of the states
    #[arg(long = "where", value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma undelete`.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  stemma undelete library.stemma emma")]
pub(crate) struct Undelete {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma revert`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma revert library.stemma -2h --where '{\"type\": \"order\"}' --dry-run\n  \
    stemma revert library.stemma 1200 --where '{}'\n\n\
    Writes new revisions in one transaction, so replicas receive them. Documents that did not exist then are deleted.")]
pub(crate) struct Revert {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The state to return to: a sequence, a time, or how long ago
    #[arg(value_parser = parse_at, allow_hyphen_values = true)]
    pub(crate) to: At,
    /// The documents to revert: those that match this selector, a JSON object, now or then
    #[arg(long = "where", value_name = "SELECTOR")]
    pub(crate) selector: String,
    /// Print how many documents would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma history`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma history library.stemma --keep 30d\n  \
    stemma history library.stemma --keep 500MB\n  \
    stemma history library.stemma --keep '5 revisions'\n  \
    stemma history library.stemma --prefix session: --keep nothing\n  \
    stemma history library.stemma --prefix session: --keep default\n  \
    stemma history library.stemma --pin audit-2026 --at 2026-11-24T12:00:00Z\n  \
    stemma history library.stemma --release audit-2026")]
pub(crate) struct History {
    /// The database directory
    pub(crate) database: PathBuf,
    /// Keep this much of the past: a time such as 12h or 30d, a number of revisions of each document such as
    /// '5 revisions', a size such as 500MB, everything, or nothing
    #[arg(long, value_name = "HOW MUCH", value_parser = parse_retention)]
    pub(crate) keep: Option<Kept>,
    /// --keep concerns only documents whose ids begin with this; with --keep default, they lose their own setting
    #[arg(long, value_name = "PREFIX", requires = "keep")]
    pub(crate) prefix: Option<String>,
    /// Keep a point in the past readable under this name
    #[arg(long, value_name = "NAME")]
    pub(crate) pin: Option<String>,
    /// The point that --pin keeps; by default the newest state
    #[arg(long, value_name = "WHEN", value_parser = parse_at, allow_hyphen_values = true, requires = "pin")]
    pub(crate) at: Option<At>,
    /// Release a pin
    #[arg(long, value_name = "NAME")]
    pub(crate) release: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// How much of the past is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Of a prefix: as much as of all documents.
    Default,
    Retention(Retention),
}

/// Parses how much of the past is kept.
fn parse_retention(text: &str) -> Result<Kept, String> {
    let malformed = || {
        format!(
            "{text:?} is not a time such as 30d, a number such as '5 revisions', a size such as 500MB, everything, or \
             nothing"
        )
    };
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number = || text[..end].parse::<u64>().map_err(|_| malformed());
    let seconds =
        |unit: u64| Ok(Retention::For(Duration::from_secs(number()?.checked_mul(unit).ok_or_else(malformed)?)));
    let bytes = |unit: u64| Ok(Retention::Bytes(number()?.checked_mul(unit).ok_or_else(malformed)?));
    let retention: Result<Retention, String> = match text[end..].trim_start() {
        "default" if end == 0 => return Ok(Kept::Default),
        "revision" | "revisions" => {
            Ok(Retention::Revisions(number().and_then(|count| u32::try_from(count).map_err(|_| malformed()))?))
        }
        "everything" if end == 0 => Ok(Retention::Everything),
        "nothing" if end == 0 => Ok(Retention::Nothing),
        "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86_400),
        "w" => seconds(604_800),
        "kB" | "KB" => bytes(1000),
        "MB" => bytes(1_000_000),
        "GB" => bytes(1_000_000_000),
        _ => Err(malformed()),
    };
    retention.map(Kept::Retention)
}
