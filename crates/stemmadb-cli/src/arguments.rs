//! Command-line definitions: subcommands, arguments, and their help.

mod aggregate;
mod attachments;
mod backup;
mod encryption;
mod history;
mod import;
mod keys;
mod mirror;
mod replicate;
mod salvage;
mod serve;
mod tiers;
mod topology;
mod update;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use aggregate::Aggregate;
pub(crate) use attachments::{Attach, ByteRange, Detach, Fetch, Files};
pub(crate) use backup::{Backup, Branch, Follow, Restore};
pub(crate) use encryption::{Decrypt, Encrypt, KeyArguments, Rekey};
pub(crate) use history::{AsOfArgument, Diff, History, Kept, Log, Revert, Undelete};
pub(crate) use import::{Import, OnConflict};
pub(crate) use keys::{Key, KeyCommand, KeyState, ListKeys, SetKey};
pub(crate) use mirror::Mirror;
pub(crate) use replicate::Replicate;
pub(crate) use salvage::Salvage;
pub(crate) use serve::{Console, Serve};
pub(crate) use tiers::{Tiers, TiersCommand};
pub(crate) use topology::{Topology, TopologyCommand};
pub(crate) use update::{Delete, Update};
pub(crate) use view::{View, ViewQuery, ViewUpdate};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Stemma, an embedded document database: every field is indexed, and writes are durable
#[derive(Debug, Parser)]
#[command(
    name = "stemma",
    version,
    styles = STYLES,
    max_term_width = 100,
    subcommand_value_name = "COMMAND",
    subcommand_help_heading = "Commands",
    override_usage = "stemma <COMMAND> <DATABASE> [ARGUMENTS]",
    after_help = "`stemma COMMAND --help` describes a command, with examples: stemma find --help",
    after_long_help = "Examples:\n\n  \
        stemma import library.stemma books.jsonl --id-field isbn\n  \
        stemma find library.stemma '{\"year\": {\"$gte\": 1960}}' --sort year --limit 10\n  \
        stemma changes library.stemma --follow\n\n\
        Output is a table on a terminal and JSON Lines otherwise; --json, --pretty and --table select a format. \
        Messages go to standard error.\n\n\
        Exit status: 0 success, 1 not found or conflict, 2 invalid usage or input, 3 damaged data, 4 refused by the \
        system (disk full, read-only), 5 bug in Stemma, 6 open in another process, 7 key missing or wrong, \
        130 interrupted.\n\n\
        `stemma COMMAND --help` describes a command, with examples."
)]
pub(crate) struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) key: KeyArguments,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Import documents from JSON Lines, a JSON array or CSV
    ///
    /// Creates the database if it does not exist.
    Import(Import),
    /// Export documents as JSON Lines or CSV
    ///
    /// Writes one JSON object per line, in the order of the latest changes, with `_id` and `_rev` first.
    /// `stemma import` reads this format.
    Export(Export),
    /// Insert or replace a document
    ///
    /// Without --rev or --upsert the document must not exist yet, so that no change is overwritten by accident. Creates
    /// the database if it does not exist.
    Put(Put),
    /// Print a document
    ///
    /// `_id` and `_rev` are the first fields. The exit status is 1 if the document does not exist.
    Get(Get),
    /// Change fields of a document, or of all that match
    ///
    /// Other fields and attachments stay as they are. Prints the new revision, or the number of changed documents.
    Update(Update),
    /// Delete a document, or all that match
    ///
    /// The deletion remains in the changes feed, so that followers and replicas receive it.
    Delete(Delete),
    /// List the revisions of a document with their times
    ///
    /// Prints the revisions that are stored, the newest first. `stemma history --keep` sets how long replaced ones are.
    Log(Log),
    /// Show what changed between two states of the past
    ///
    /// Prints the documents that were added, changed or removed, with the paths that changed.
    Diff(Diff),
    /// Write the last revision of a deleted document again
    ///
    /// Prints the new revision. Its attachments are restored, too.
    Undelete(Undelete),
    /// Set documents to their state of the past
    ///
    /// Prints the number of changed documents.
    Revert(Revert),
    /// Show or set how much of the past is kept
    ///
    /// Every reading command takes --as-of. Without a setting it reaches back to the last compaction.
    History(History),
    /// List the attachments of a document
    ///
    /// Prints the name, media type, length and SHA-256 of each attachment.
    Files(Files),
    /// Attach a file to a document
    ///
    /// Without --rev it is attached to the current revision. The command returns once the content and the document are
    /// flushed to disk.
    Attach(Attach),
    /// Read an attachment
    ///
    /// The exit status is 1 if the document or the attachment does not exist.
    Fetch(Fetch),
    /// Remove an attachment from a document
    ///
    /// Its content is deleted once no document refers to it.
    Detach(Detach),
    /// Find documents with a query
    ///
    /// Every field is indexed; no index needs to be declared.
    Find(Find),
    /// Show the plan of a query
    ///
    /// Prints the plan with estimated rows. With --analyze, also runs the query and prints actual rows and time. The
    /// output is text, also to a pipe; use --json for programs.
    Explain(Explain),
    /// Count the documents that match a query
    ///
    /// Reads no documents if the indexes are sufficient.
    Count(Count),
    /// Compute counts, sums and other figures, also by group
    ///
    /// Reads no documents if the indexes are sufficient.
    Aggregate(Aggregate),
    /// Print the changes feed, or follow it
    ///
    /// Prints the latest change of each document, in sequence order and without gaps.
    Changes(Changes),
    /// Run a live query
    ///
    /// Prints the documents that match, then an event whenever a document starts to match, changes, or stops matching.
    Watch(Watch),
    /// Mirror documents to plain JSON files
    ///
    /// Writes one JSON file per document, and links that group documents by the values of chosen fields, for use with
    /// ls, cat, grep and git. Mirrors a local or remote database, once or continuously.
    Mirror(Mirror),
    /// Replicate between databases and servers
    ///
    /// Copies the revisions that the target lacks, once or continuously. Each side is a directory or the URL of a
    /// database on a CouchDB-compatible server.
    Replicate(Replicate),
    /// Define, watch and pause the replications of a server
    ///
    /// A topology names databases, here and on other servers, and the replications between them, which the server runs.
    Topology(Topology),
    /// Move documents of a server's database to others by age, use or size
    ///
    /// Old, unused or large documents move to other databases of the server, and are read as before.
    Tiers(Tiers),
    /// Define, query, list or drop views
    ///
    /// Without a name, lists the views. With a name, prints the rows of the view or their reduced values.
    View(View),
    /// Show sizes, counts and settings
    ///
    /// Prints the number of documents, the sizes of the files, and the durability in effect.
    Info(Info),
    /// Create, list or drop indexes
    ///
    /// Every single field is indexed already. Declare an index for unique values, for sorting by several fields, or for
    /// sorting text by the rules of a language.
    Index(Index),
    /// Get, set, count or list keys of the key-value store
    ///
    /// For data that are no documents: counters, locks, caches. Keys may expire.
    Key(Key),
    /// List field paths and their value types
    ///
    /// Prints for each path the number of documents that have it, the number per value type, and the number of distinct
    /// scalars. [] stands for the elements of an array.
    Paths(Paths),
    /// Verify the log and all indexes
    ///
    /// Reads the whole database: verifies the checksum of each record and compares each index entry with its document,
    /// in both directions. The exit status is 3 if anything is damaged.
    Check(Check),
    /// Rebuild the indexes from the log
    ///
    /// The log contains the documents; all other data is derived from it.
    Rebuild(Rebuild),
    /// Recover readable data from a damaged database
    ///
    /// Writes every log record with a valid checksum as JSON Lines and skips damaged ones. `stemma import --revisions`
    /// reads this format.
    Salvage(Salvage),
    /// Make an incremental backup, or verify backups
    ///
    /// Copies or links what is new in the database to a directory of backups.
    Backup(Backup),
    /// Restore a database from its backups
    ///
    /// Restores the newest state, that of a backup, or that after any sequence, and checks the result.
    Restore(Restore),
    /// Create a writable copy that shares files
    ///
    /// The branch and the database change independently, and can replicate with each other.
    Branch(Branch),
    /// Make backups whenever a database changes
    ///
    /// Runs until interrupted.
    Follow(Follow),
    /// Encrypt a database
    ///
    /// Everything in it, and the backups that are made from then on.
    Encrypt(Encrypt),
    /// Decrypt an encrypted database
    ///
    /// Its files are not encrypted afterwards.
    Decrypt(Decrypt),
    /// Replace the key of an encrypted database
    ///
    /// Takes effect at once.
    Rekey(Rekey),
    /// Reclaim disk space now
    ///
    /// Not required: a database reclaims space in the background, one segment at a time. This command reclaims all of
    /// it.
    Compact(Compact),
    /// Serve the databases in a directory over HTTP
    ///
    /// Implements the CouchDB protocol, for PouchDB and other CouchDB clients. Runs until interrupted.
    Serve(Serve),
    /// Look at a database in a browser
    ///
    /// Serves the web console for one database of this machine until interrupted, and prints its address.
    Console(Console),
    /// Print a completion script for a shell
    ///
    /// For bash, add `source <(stemma completions bash)` to ~/.bashrc. For fish, run `stemma completions fish >
    /// ~/.config/fish/completions/stemma.fish`. For zsh, write it to a file named _stemma in a directory of $fpath.
    #[command(hide = true)]
    Completions(Completions),
    /// Write manual pages into a directory
    ///
    /// One for the command and one for each of its subcommands, for packages of distributions.
    #[command(hide = true)]
    Manual(Manual),
    /// Start an interactive shell
    ///
    /// Accepts the same commands without the database argument, with history and completion. Creates the database if it
    /// does not exist.
    Shell(Shell),
}

/// The arguments of `stemma completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// The arguments of `stemma manual`.
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// The directory, which must exist
    pub(crate) directory: std::path::PathBuf,
}

/// How durable a write is when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityChoice {
    /// Flushed to disk: survives a power failure
    Sync,
    /// Flushed within one second
    Interval,
    /// Not flushed: survives a crash of the process, but not of the system
    None,
}

/// Options of a database that a command creates.
#[derive(Debug, Args)]
pub(crate) struct CreationArgument {
    /// Which paths the database indexes, as JSON: {"include": […], "exclude": […]}; all by default
    #[arg(long, value_name = "POLICY")]
    pub(crate) index_policy: Option<String>,
}

/// The durability option of commands that write.
#[derive(Debug, Args)]
pub(crate) struct DurabilityArgument {
    /// When writes are flushed to disk: before acknowledgment (sync), within a second (interval), or by the system
    /// (none)
    #[arg(long, value_name = "WHEN", default_value = "sync", hide_possible_values = true)]
    pub(crate) durability: DurabilityChoice,
}

/// The arguments of `stemma export`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma export library.stemma > books.jsonl\n  \
    stemma export library.stemma books.jsonl\n  \
    stemma export library.stemma | zstd > books.jsonl.zst\n  \
    stemma export library.stemma old.jsonl --where '{\"year\": {\"$lt\": 1900}}'\n  \
    stemma export library.stemma books.csv --fields _id,title,publisher.city\n\n\
    A file name that ends in .csv selects CSV: one column for each of --fields, or for each top-level field.")]
pub(crate) struct Export {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The file to write, or - for standard output; an existing file is not overwritten
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Export only the documents that match this selector, a JSON object
    #[arg(long = "where", value_name = "SELECTOR", default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    /// The output format; selected by the file name by default
    #[arg(long)]
    pub(crate) format: Option<ExportFormat>,
    /// Export only these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
}

/// A format of `stemma export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// JSON Lines
    Jsonl,
    /// CSV; arrays and objects are cells of JSON
    Csv,
}

/// The arguments of `stemma put`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma put library.stemma emma '{\"title\": \"Emma\", \"year\": 1815}'\n  \
    stemma put library.stemma '{\"title\": \"Emma\"}'          # generates an id\n  \
    stemma put library.stemma emma < emma.json\n  \
    stemma put library.stemma emma --rev 1-5f1e… '{\"title\": \"Emma\", \"year\": 1816}'\n\n\
    A `_rev` in the document has the effect of --rev, so the output of `stemma get` can be edited and written back.")]
pub(crate) struct Put {
    /// The database directory, conventionally NAME.stemma
    pub(crate) database: PathBuf,
    /// The document's id; by default its `_id`, or a generated id
    pub(crate) id: Option<String>,
    /// The document, a JSON object; by default, or with -, read from standard input
    pub(crate) document: Option<String>,
    /// The revision to replace
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    /// Insert the document, or replace any current revision
    #[arg(long, conflicts_with = "rev")]
    pub(crate) upsert: bool,
    #[command(flatten)]
    pub(crate) creation: CreationArgument,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma get`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma get library.stemma emma\n  \
    stemma get library.stemma emma --conflicts\n  \
    stemma get library.stemma emma --rev 1-5f1e…")]
pub(crate) struct Get {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// Print this revision instead of the winning one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    /// Add the revision's ancestors as `_revisions`
    #[arg(long)]
    pub(crate) revs: bool,
    /// Add the conflicting leaf revisions as `_conflicts`
    #[arg(long)]
    pub(crate) conflicts: bool,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// A query.
#[derive(Debug, Args)]
pub(crate) struct Query {
    /// The selector, a JSON object; by default it matches every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    /// Sort by these fields; -FIELD for descending order
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sort: Vec<String>,
    /// Sort text by the rules of this language: a BCP 47 tag such as de or sv, or und for the default
    #[arg(long, value_name = "LANGUAGE", requires = "sort")]
    pub(crate) collation: Option<String>,
    /// Maximum number of documents
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Number of results to skip
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<u64>,
    /// Print only these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', conflicts_with = "ids")]
    pub(crate) fields: Vec<String>,
    /// Print only ids, without reading the documents
    #[arg(long)]
    pub(crate) ids: bool,
    /// Continue after the page that printed this token
    #[arg(long, value_name = "TOKEN")]
    pub(crate) page: Option<String>,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgument,
}

/// The time limit of a query.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct TimeoutArgument {
    /// Stop the query with an error after this time, such as 500ms, 30s or 2min
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) timeout: Option<Duration>,
}

/// Parses a time with a unit; without one, seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit_ms = match &text[end..] {
        "ms" => 1,
        "s" | "" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("expected a time, such as 500ms, 30s, 2min, 6h or 1d".to_owned()),
    };
    let malformed = |_| "expected a time, such as 500ms, 30s, 2min, 6h or 1d".to_owned();
    let count: u64 = text[..end].parse().map_err(malformed)?;
    Ok(Duration::from_millis(count.saturating_mul(unit_ms)))
}

/// The arguments of `stemma find`.
#[derive(Debug, Args)]
#[command(
    after_help = "Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $beginsWith $and $or $not $nor $all \
        $elemMatch $size $regex $mod",
    after_long_help = "Examples:\n\n  \
        stemma find library.stemma '{\"author\": \"Jane Austen\"}'\n  \
        stemma find library.stemma '{\"year\": {\"$gte\": 1960}}' --sort year --limit 10\n  \
        stemma find library.stemma '{\"$or\": [{\"tags\": {\"$all\": [\"sea\"]}}, {\"year\": 1851}]}' --sort -year\n  \
        stemma find library.stemma '{\"publisher.city\": {\"$beginsWith\": \"Lon\"}}' --fields title,year\n\n\
        Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $beginsWith $and $or $not $nor $all $elemMatch \
        $size $regex $mod; $options beside $regex: i ignores case. A dot separates nested fields: publisher.city; \
        \\. is a dot in a name; lines[].price stands for some element of an array.\n\n\
        With --limit, a continuation token is printed to standard error if more documents match. --page TOKEN \
        continues there; the pages contain every document exactly once, also after a restart."
)]
pub(crate) struct Find {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) query: Query,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma explain`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma explain library.stemma '{\"year\": {\"$gte\": 1960}, \"author\": {\"$ne\": \"Anonymous\"}}'\n  \
    stemma explain library.stemma '{\"title\": {\"$regex\": \"^The\"}}' --sort year --limit 10 --analyze")]
pub(crate) struct Explain {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) query: Query,
    /// Run the query and show actual rows and time
    #[arg(long)]
    pub(crate) analyze: bool,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma count`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma count library.stemma\n  \
    stemma count library.stemma '{\"year\": {\"$lt\": 1900}}'")]
pub(crate) struct Count {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The selector, a JSON object; by default it matches every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgument,
}

/// The arguments of `stemma changes`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma changes library.stemma\n  \
    stemma changes library.stemma --since 1200 --docs\n  \
    stemma changes library.stemma --follow --selector '{\"type\": \"order\"}'\n  \
    stemma changes library.stemma --path 'color/+' --path '_id/shops/#'\n\n\
    In a pattern, + is any one level of a path; #, at the end, is a value and everything within it.\n\n\
    To continue later, pass the `seq` of the last line as --since.\n\n\
    Only one process at a time can have a database open. With --follow, it is closed between polls so that other \
    processes can write, and reopened when its log changes.")]
pub(crate) struct Changes {
    /// The database directory
    pub(crate) database: PathBuf,
    /// Only changes after this sequence
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    pub(crate) since: u64,
    /// Wait for further changes until interrupted
    #[arg(long, short, conflicts_with = "as_of")]
    pub(crate) follow: bool,
    /// Include the documents
    #[arg(long)]
    pub(crate) docs: bool,
    /// Only changes of these documents
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) ids: Vec<String>,
    /// Only changes of documents that match this selector
    #[arg(long, value_name = "JSON")]
    pub(crate) selector: Option<String>,
    /// Only changes of documents with a value at a path that matches this pattern; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) path: Vec<String>,
    /// Maximum number of changes
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma watch`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma watch library.stemma '{\"year\": {\"$gte\": 1960}}'\n  \
    stemma watch orders.stemma '{\"state\": \"open\"}' --docs\n\n\
    Each line has an `event`: `added`, `changed` or `removed`, with `deleted` if the document was deleted. Lines with \
    the same `seq` form one update: after the last of them, the events describe the current result.\n\n\
    Only one process at a time can have a database open. It is closed between polls so that other processes can write, \
    and reopened when its log changes. All changes between two polls form one update.")]
pub(crate) struct Watch {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The selector, a JSON object; by default it matches every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    /// Include the documents
    #[arg(long)]
    pub(crate) docs: bool,
    /// Maximum number of lines
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma info`.
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The database directory
    pub(crate) database: PathBuf,
    /// Also print how far the newest backup in this directory or bucket is behind
    #[arg(long, value_name = "TARGET")]
    pub(crate) backups: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma index`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma index users.stemma create email --unique\n  \
    stemma index orders.stemma create status,-created_at\n  \
    stemma index library.stemma create title --collation de --name titles\n  \
    stemma index library.stemma list\n  \
    stemma index library.stemma drop titles\n\n\
    Only one process at a time can have a database open, so other processes cannot write while the index is built. \
    Within the process that has it open, building blocks neither reads nor writes. An interrupted build resumes when \
    the database is next opened.")]
pub(crate) struct Index {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The operation
    #[command(subcommand)]
    pub(crate) command: IndexCommand,
}

/// The operations of `stemma index`.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum IndexCommand {
    /// Create and build an index
    Create(CreateIndex),
    /// List the declared indexes and their states
    List(ListIndexes),
    /// Drop an index
    Drop(DropIndex),
}

/// The arguments of `stemma index … create`.
#[derive(Debug, Args)]
pub(crate) struct CreateIndex {
    /// The fields to index; -FIELD for descending order
    #[arg(value_name = "FIELD,…", allow_hyphen_values = true)]
    pub(crate) paths: String,
    /// Refuse documents with values that another document has
    #[arg(long)]
    pub(crate) unique: bool,
    /// Sort text by the rules of this language: a BCP 47 tag such as de or sv, or und for the default
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) collation: Option<String>,
    /// The name of the index; by default its fields
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma index … list`.
#[derive(Debug, Args)]
pub(crate) struct ListIndexes {
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma index … drop`.
#[derive(Debug, Args)]
pub(crate) struct DropIndex {
    /// The name of the index
    #[arg(allow_hyphen_values = true)]
    pub(crate) name: String,
}

/// The arguments of `stemma paths`.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma rebuild`.
#[derive(Debug, Args)]
pub(crate) struct Rebuild {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma compact`.
#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// The database directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma shell`.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  \
    $ stemma shell library.stemma\n  \
    library> find {\"year\": {\"$gte\": 1960}} --sort year --limit 3\n  \
    library> put emma {\"title\": \"Emma\"}\n  \
    library> help find\n\n\
    JSON needs no shell quoting there. Tab completes commands, ids and field names.")]
pub(crate) struct Shell {
    /// The database directory
    pub(crate) database: PathBuf,
}

/// Options that select the output format.
#[derive(Debug, Clone, Copy, Default, Args)]
#[group(multiple = false)]
pub(crate) struct OutputOptions {
    /// Print JSON Lines, the default for a pipe
    #[arg(long)]
    pub(crate) json: bool,
    /// Print indented JSON
    #[arg(long)]
    pub(crate) pretty: bool,
    /// Print a table, the default on a terminal
    #[arg(long)]
    pub(crate) table: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn short_help_fits_one_screen() {
        let mut command = Arguments::command().term_width(100);
        command.build();
        assert!(command.render_help().to_string().lines().count() <= 56);
        // `help` lists all commands again.
        for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
            let help = subcommand.render_help().to_string();
            assert!(help.lines().count() <= 40, "{help}");
        }
    }

    #[test]
    fn descending_sort_key_is_not_parsed_as_an_option() {
        let arguments = Arguments::try_parse_from(["stemma", "find", "x", "--sort", "-year,title"]).unwrap();
        let Command::Find(find) = arguments.command else { panic!("another command") };
        assert_eq!(find.query.sort, ["-year", "title"]);
        assert_eq!(find.query.selector, "{}");
    }
}
