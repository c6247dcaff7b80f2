//! What may be written after `stemma`? The verbs, their arguments, and the help that teaches them.

mod files;
mod mirror;
mod salvage;
mod serve;

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::read::Format;
pub(crate) use files::{Attach, Detach, Fetch, Files, Range};
pub(crate) use mirror::Mirror;
pub(crate) use salvage::Salvage;
pub(crate) use serve::Serve;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// A document database in a directory: every field indexed, nothing acknowledged lost
#[derive(Debug, Parser)]
#[command(
    name = "stemma",
    version,
    styles = STYLES,
    max_term_width = 100,
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    override_usage = "stemma <VERB> <DATABASE> [ARGUMENTS]",
    after_help = "The first minute:\n  \
        stemma import library.stemma books.jsonl\n  \
        stemma find library.stemma '{\"year\": {\"$gte\": 1960}}' --sort year --limit 10\n\
        `stemma VERB --help` teaches a verb with examples.",
    after_long_help = "The first minute:\n\n  \
        stemma import library.stemma books.jsonl --id-field isbn\n  \
        stemma find library.stemma '{\"year\": {\"$gte\": 1960}}' --sort year --limit 10\n  \
        stemma changes library.stemma --follow\n\n\
        Output is JSON Lines in a pipe and a table on a terminal; --json, --pretty and --table decide otherwise. Only \
        data goes to standard output.\n\n\
        Exit status: 0 done, 1 not found or conflict, 2 wrong usage or input, 3 damaged data, 4 the environment refuses \
        (full, read-only), 5 a bug in Stemma, 6 open in another process.\n\n\
        `stemma VERB --help` teaches a verb with examples."
)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What the command can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Put a file of documents in: JSON Lines, a JSON array or CSV
    ///
    /// A new database is made where there is none.
    Import(Import),
    /// Write every document out as JSON Lines
    ///
    /// One JSON object a line, in the order of the latest changes, with `_id` and `_rev` first: `stemma import` takes it back.
    Export(Export),
    /// Write one document
    ///
    /// Without --rev the document must be new: nobody's change is overwritten by accident. A new database is made where there
    /// is none.
    Put(Put),
    /// Read one document
    ///
    /// The document is printed with `_id` and `_rev` first; exit status 1 says that there is none.
    Get(Get),
    /// Delete one document
    ///
    /// The deletion itself stays in the changes feed, so that followers and replicas learn of it.
    Delete(Delete),
    /// List the files of a document
    ///
    /// Each with what it is, how long, and the SHA-256 of its content.
    Files(Files),
    /// Give a document a file
    ///
    /// Without --rev the current revision gets it. Acknowledged when its content is flushed to the disk and the document names it.
    Attach(Attach),
    /// Get a file out of a document
    ///
    /// Exit status 1 says that there is no such document or file.
    Fetch(Fetch),
    /// Take a file away from a document
    ///
    /// Its content is removed once nothing names it any more.
    Detach(Detach),
    /// Find documents by any field
    ///
    /// Every field is indexed: nothing needs to be declared.
    Find(Find),
    /// Show how a query would be answered
    ///
    /// The plan with estimated rows; with --analyze the query runs, and the plan shows actual rows and time too. Text for
    /// people, also in a pipe; --json for programs.
    Explain(Explain),
    /// Count the documents that match
    ///
    /// Where the index can tell, no document is read.
    Count(Count),
    /// Show what changed since a sequence, or follow it
    ///
    /// The latest change of each document, in order, without gaps.
    Changes(Changes),
    /// Show what matches, and then what changes in that
    ///
    /// A live query: the documents that match, then each that comes to match, changes, or no longer matches.
    Watch(Watch),
    /// Keep a copy in plain files, for ls, cat, grep and git
    ///
    /// A JSON file for each document, and links to it by the values you choose; of a database here or on a server, kept in step with it.
    Mirror(Mirror),
    /// Keep a summary of documents, and ask it: rows by key, sums of any range
    ///
    /// Without a name, the views there are; with one, its rows or what they come to.
    View(View),
    /// Show sizes, counts and the durability in force
    ///
    /// What the database holds and how it is set.
    Info(Info),
    /// Declare an index, list those declared, or drop one
    ///
    /// Every field is indexed already. An index is declared to make values unique, to have an order of several fields without
    /// sorting, or the order of a language.
    Index(Index),
    /// List the paths that documents have
    ///
    /// Each with how many documents have something there, of which kinds, and how many distinct scalars; [] stands for the elements of an array.
    Paths(Paths),
    /// Verify every stored byte and every index entry
    ///
    /// Reads everything: each record against its checksum, each index entry against its document and back. Exit status 3 says
    /// that something is damaged.
    Check(Check),
    /// Build the index anew from the log
    ///
    /// The log holds the documents; everything else is made from it again.
    Rebuild(Rebuild),
    /// Save what can be read of a damaged database, as JSON Lines
    ///
    /// Every record of the log whose checksum is right, past whatever is damaged: `stemma import --revisions` takes it back.
    Salvage(Salvage),
    /// Give back the space of old versions now
    ///
    /// Nobody has to: a database gives back space by itself, a segment at a time. This does all of it at once.
    Compact(Compact),
    /// Serve every database in a directory over HTTP, as CouchDB does
    ///
    /// For PouchDB and every other client of CouchDB's protocol. Runs until interrupted.
    Serve(Serve),
    /// Type verbs at a prompt, with history and completion
    ///
    /// The same verbs, without the database's name. A new database is made where there is none.
    Shell(Shell),
}

/// The arguments of `stemma import`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
        stemma import library.stemma books.jsonl --id-field isbn\n  \
        stemma import library.stemma books.csv --on-conflict skip\n  \
        curl -s https://example.org/books.json | stemma import library.stemma -\n  \
        cargo metadata --format-version 1 | stemma import crates.stemma - --at packages --id-field id\n\n\
        A document's id is its `_id`, else the field named by --id-field, else a new one that sorts by time. A `_rev` in \
        it is passed over: what export wrote can be imported again.\n\n\
        In CSV the first row names the fields; 12 is an integer, 1.5 a float, true and false are booleans, an empty cell \
        is no field, and anything a number would change (007, +1) stays text; --text=zip keeps a whole column.\n\n\
        What was imported before an error stays; each batch is one acknowledged write.")]
pub(crate) struct Import {
    /// The database's directory, by custom NAME.stemma
    pub(crate) database: PathBuf,
    /// The file to read, or - for standard input
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// The field that holds each document's id
    #[arg(long, value_name = "FIELD")]
    pub(crate) id_field: Option<String>,
    /// When a document with the same id is there
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    pub(crate) on_conflict: OnConflict,
    /// Read it so, instead of guessing from the name and the first byte
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// The documents are the array at this field of an outer object (a.b goes two deep)
    #[arg(long, value_name = "FIELD", conflicts_with_all = ["format", "delimiter", "text"])]
    pub(crate) at: Option<String>,
    /// What separates the cells of a table
    #[arg(long, value_name = "CHARACTER")]
    pub(crate) delimiter: Option<char>,
    /// Keep the cells of these columns of a table as text, or of all
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', num_args = 0.., require_equals = true)]
    pub(crate) text: Option<Vec<String>>,
    /// Documents acknowledged together
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) batch: u32,
    /// Take each revision as it is, with `_rev`, `_revisions` and `_deleted`: what `stemma salvage` wrote
    #[arg(long, conflicts_with_all = ["id_field", "on_conflict"])]
    pub(crate) revisions: bool,
    /// Where the content of documents' files is, each named by its SHA-256
    #[arg(long, value_name = "DIRECTORY", requires = "revisions")]
    pub(crate) files: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}

/// What to do with a document whose id is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnConflict {
    /// Stop and say so
    Fail,
    /// Keep the document that is there
    Skip,
    /// Replace it by the imported one
    Replace,
}

/// How durable a write is when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityChoice {
    /// Flushed to the disk: survives a power cut
    Sync,
    /// Flushed within a second
    Interval,
    /// Left to the operating system: survives the process only
    None,
}

/// The choice of durability, where a verb writes.
#[derive(Debug, Args)]
pub(crate) struct DurabilityArgument {
    /// When a write is acknowledged: flushed to the disk (sync), at most a second before (interval), any time (none)
    #[arg(long, value_name = "WHEN", default_value = "sync", hide_possible_values = true)]
    pub(crate) durability: DurabilityChoice,
}

/// The arguments of `stemma export`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma export library.stemma > books.jsonl\n  \
    stemma export library.stemma books.jsonl\n  \
    stemma export library.stemma | zstd > books.jsonl.zst")]
pub(crate) struct Export {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The file to write, or - for standard output; a file that exists is not overwritten
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// Overwrite the file
    #[arg(long)]
    pub(crate) force: bool,
}

/// The arguments of `stemma put`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma put library.stemma emma '{\"title\": \"Emma\", \"year\": 1815}'\n  \
    stemma put library.stemma '{\"title\": \"Emma\"}'          # an id is made\n  \
    stemma put library.stemma emma < emma.json\n  \
    stemma put library.stemma emma --rev 1-5f1e… '{\"title\": \"Emma\", \"year\": 1816}'\n\n\
    A `_rev` in the document counts as --rev, so what `get` printed can be edited and put back.")]
pub(crate) struct Put {
    /// The database's directory, by custom NAME.stemma
    pub(crate) database: PathBuf,
    /// The document's id; left out, it is the document's `_id` or a new one
    pub(crate) id: Option<String>,
    /// The document, a JSON object; left out or -, it is read from standard input
    pub(crate) document: Option<String>,
    /// The revision this write replaces
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    /// Replace whatever is there, or insert
    #[arg(long, conflicts_with = "rev")]
    pub(crate) upsert: bool,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma get`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma get library.stemma emma\n  \
    stemma get library.stemma emma --conflicts\n  \
    stemma get library.stemma emma --rev 1-5f1e…")]
pub(crate) struct Get {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// This revision instead of the winning one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    /// Add the revisions this one descends from, as `_revisions`
    #[arg(long)]
    pub(crate) revs: bool,
    /// Add the other current revisions, as `_conflicts`
    #[arg(long)]
    pub(crate) conflicts: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma delete`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma delete library.stemma emma\n  \
    stemma delete library.stemma emma --rev 2-9c0a…   # only if nobody changed it since")]
pub(crate) struct Delete {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// The revision to delete; left out, it is the current one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// What is asked for.
#[derive(Debug, Args)]
pub(crate) struct Query {
    /// A selector, a JSON object; left out, every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    /// Order by these fields; -FIELD is descending
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sort: Vec<String>,
    /// Order text as people of this language do: de, sv, und for none in particular
    #[arg(long, value_name = "LANGUAGE", requires = "sort")]
    pub(crate) collation: Option<String>,
    /// At most this many documents
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Pass over this many first
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<u64>,
    /// Only these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', conflicts_with = "ids")]
    pub(crate) fields: Vec<String>,
    /// Only the ids, which need no document to be read
    #[arg(long)]
    pub(crate) ids: bool,
    /// Go on where an earlier page ended
    #[arg(long, value_name = "TOKEN")]
    pub(crate) page: Option<String>,
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
        Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $beginsWith $and $or $not $nor $all $elemMatch $size \
        $regex $mod. A dot leads into an object: publisher.city; \\. is a dot in a name.\n\n\
        With --limit, a token for the next page is printed to standard error while there is more: --page TOKEN goes on \
        there, every document once, also after a restart."
)]
pub(crate) struct Find {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) query: Query,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma explain`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma explain library.stemma '{\"year\": {\"$gte\": 1960}, \"author\": {\"$ne\": \"Anonymous\"}}'\n  \
    stemma explain library.stemma '{\"title\": {\"$regex\": \"^The\"}}' --sort year --limit 10 --analyze")]
pub(crate) struct Explain {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) query: Query,
    /// Run it, and show actual rows and time
    #[arg(long)]
    pub(crate) analyze: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma count`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma count library.stemma\n  \
    stemma count library.stemma '{\"year\": {\"$lt\": 1900}}'")]
pub(crate) struct Count {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// A selector, a JSON object; left out, every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
}

/// The arguments of `stemma changes`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma changes library.stemma\n  \
    stemma changes library.stemma --since 1200 --docs\n  \
    stemma changes library.stemma --follow --selector '{\"type\": \"order\"}'\n\n\
    The `seq` of the last line read is the --since of the next call.\n\n\
    A database in a directory belongs to one process at a time: with --follow it is let go between readings, so that others \
    can write, and read again when its log changes.")]
pub(crate) struct Changes {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// Only what came after this sequence
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    pub(crate) since: u64,
    /// Wait for more, until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// With the documents
    #[arg(long)]
    pub(crate) docs: bool,
    /// Only of these documents
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) ids: Vec<String>,
    /// Only of documents that match
    #[arg(long, value_name = "JSON")]
    pub(crate) selector: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma watch`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma watch library.stemma '{\"year\": {\"$gte\": 1960}}'\n  \
    stemma watch orders.stemma '{\"state\": \"open\"}' --docs\n\n\
    Each line is an `event`: `added`, `changed`, or `removed` (also `deleted`, if it was). Lines of one `seq` belong together: \
    after the last of them, what was told is what matches.\n\n\
    A database in a directory belongs to one process at a time: it is let go between readings, so that others can write, and \
    read again when its log changes. What happened in between is one step.")]
pub(crate) struct Watch {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// A selector, a JSON object; left out, every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    /// With the documents
    #[arg(long)]
    pub(crate) docs: bool,
    /// At most this many lines
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma info`.
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma index`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma index users.stemma create email --unique\n  \
    stemma index orders.stemma create status,-created_at\n  \
    stemma index library.stemma create title --collation de --name titles\n  \
    stemma index library.stemma list\n  \
    stemma index library.stemma drop titles\n\n\
    Others may not write meanwhile, as a database in a directory belongs to one process at a time; within a program that has it \
    open, building an index holds up neither reads nor writes. One that was interrupted goes on when the database is next opened.")]
pub(crate) struct Index {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub(crate) act: IndexAct,
}

/// What can be done with declared indexes.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum IndexAct {
    /// Declare an index and build it
    Create(CreateIndex),
    /// List the declared indexes, and whether they are ready
    List(ListIndexes),
    /// Take an index away
    Drop(DropIndex),
}

/// The arguments of `stemma index … create`.
#[derive(Debug, Args)]
pub(crate) struct CreateIndex {
    /// The fields it orders by; -FIELD is descending
    #[arg(value_name = "FIELD,…", allow_hyphen_values = true)]
    pub(crate) paths: String,
    /// Refuse a document whose values another one has
    #[arg(long)]
    pub(crate) unique: bool,
    /// Order text as people of this language do: de, sv, und for none in particular
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) collation: Option<String>,
    /// Its name; left out, its fields
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma index … list`.
#[derive(Debug, Args)]
pub(crate) struct ListIndexes {
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma index … drop`.
#[derive(Debug, Args)]
pub(crate) struct DropIndex {
    /// Its name
    #[arg(allow_hyphen_values = true)]
    pub(crate) name: String,
}

/// The arguments of `stemma paths`.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma rebuild`.
#[derive(Debug, Args)]
pub(crate) struct Rebuild {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma compact`.
#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// The database's directory
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma shell`.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  \
    $ stemma shell library.stemma\n  \
    library> find {\"year\": {\"$gte\": 1960}} --sort year --limit 3\n  \
    library> put emma {\"title\": \"Emma\"}\n  \
    library> help find\n\n\
    JSON needs no quotes around it there. Tab completes verbs, ids and field names.")]
pub(crate) struct Shell {
    /// The database's directory
    pub(crate) database: PathBuf,
}

/// The arguments of `stemma view`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma view shop.stemma sales --define '{\"unnest\": \"lines\", \"key\": [\"@.product\", \"day\"], \"value\": \"@.price\", \"reduce\": \"_sum\"}'\n  \
    stemma view shop.stemma                             # the views there are\n  \
    stemma view shop.stemma sales --limit 10            # rows\n  \
    stemma view shop.stemma sales --prefix '[\"tea\"]' --reduce\n  \
    stemma view shop.stemma sales --from '[\"tea\", 20]' --to '[\"tea\", 30]' --reduce\n  \
    stemma view shop.stemma sales --group-level 1\n  \
    stemma view shop.stemma sales --drop\n\n\
    A definition has a `key` (a path, or a list of paths), and may have a `value` (a path, a list or an object of paths), `where` (a \
    selector), `unnest` (a path to a list: each element, @, makes a row), `reduce` (_count _sum _stats _min _max _avg \
    _approx_count_distinct) and `refresh` (lazy, eager or unique: then no two documents may have one key). It is kept in the \
    document _design/NAME. Keys are JSON.")]
pub(crate) struct View {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The view's name; left out, all of them are listed
    pub(crate) name: Option<String>,
    /// Define the view, or define it anew
    #[arg(long, value_name = "DEFINITION", requires = "name", conflicts_with_all = ["drop", "question"])]
    pub(crate) define: Option<String>,
    /// Forget the view, and its definition
    #[arg(long, requires = "name", conflicts_with = "question")]
    pub(crate) drop: bool,
    #[command(flatten)]
    pub(crate) question: Rows,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Which rows of a view, and what to make of them.
#[derive(Debug, Args)]
#[group(id = "question", multiple = true)]
pub(crate) struct Rows {
    /// Only rows with this key
    #[arg(long, value_name = "JSON", conflicts_with_all = ["from", "to", "prefix"])]
    pub(crate) key: Vec<String>,
    /// Only rows from this key on
    #[arg(long, value_name = "JSON", conflicts_with = "prefix")]
    pub(crate) from: Option<String>,
    /// Only rows up to this key, and with it
    #[arg(long, value_name = "JSON", conflicts_with = "prefix")]
    pub(crate) to: Option<String>,
    /// Only rows whose key begins with this text, or with these elements
    #[arg(long, value_name = "JSON")]
    pub(crate) prefix: Option<String>,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) descending: bool,
    /// At most this many rows or groups
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Pass over this many first
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<u64>,
    /// What the rows come to
    #[arg(long, conflicts_with_all = ["group", "group_level", "documents"])]
    pub(crate) reduce: bool,
    /// What the rows of each key come to
    #[arg(long, conflicts_with_all = ["group_level", "documents"])]
    pub(crate) group: bool,
    /// What the rows come to whose keys begin with the same N elements
    #[arg(long, value_name = "N", conflicts_with = "documents")]
    pub(crate) group_level: Option<usize>,
    /// With the documents, or those that values link to
    #[arg(long)]
    pub(crate) documents: bool,
}

/// How the output looks.
#[derive(Debug, Clone, Copy, Default, Args)]
#[group(multiple = false)]
pub(crate) struct Form {
    /// JSON Lines, as in a pipe
    #[arg(long)]
    pub(crate) json: bool,
    /// JSON spread over lines
    #[arg(long)]
    pub(crate) pretty: bool,
    /// A table, as on a terminal
    #[arg(long)]
    pub(crate) table: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn short_help_fits_one_screen() {
        let mut command = Arguments::command().term_width(100);
        command.build();
        assert!(command.render_help().to_string().lines().count() <= 40);
        for verb in command.get_subcommands_mut() {
            let help = verb.render_help().to_string();
            assert!(help.lines().count() <= 40, "{help}");
        }
    }

    #[test]
    fn a_descending_sort_is_no_option() {
        let arguments = Arguments::try_parse_from(["stemma", "find", "x", "--sort", "-year,title"]).unwrap();
        let Verb::Find(find) = arguments.verb else { panic!("another verb") };
        assert_eq!(find.query.sort, ["-year", "title"]);
        assert_eq!(find.query.selector, "{}");
    }
}
