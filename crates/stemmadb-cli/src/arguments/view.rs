//! Arguments of `stemma view`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{AsOfArgument, OutputOptions};

/// The arguments of `stemma view`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma view shop.stemma sales --define '{\"unnest\": \"lines\", \"key\": [\"@.product\", \"day\"], \
      \"value\": \"@.price\", \"reduce\": \"_sum\"}'\n  \
    stemma view shop.stemma                             # list the views\n  \
    stemma view shop.stemma sales --limit 10            # rows\n  \
    stemma view shop.stemma sales --prefix '[\"tea\"]' --reduce\n  \
    stemma view shop.stemma sales --from '[\"tea\", 20]' --to '[\"tea\", 30]' --reduce\n  \
    stemma view shop.stemma sales --group-level 1\n  \
    stemma view shop.stemma sales --reduce --as-of -1d   # today's definition, yesterday's documents\n  \
    stemma view shop.stemma sales --drop\n\n\
    A definition has a `key` (a path or an array of paths) and optionally a `value` (a path, or an array or object of \
    paths), `where` (a selector), `unnest` (a path to an array: each element, written as @, becomes a row), `reduce` \
    (_count _sum _stats _min _max _avg _approx_count_distinct) and `refresh` (lazy, eager, or unique, which permits \
    each key only once). It is stored in the document _design/NAME. Keys are JSON.")]
pub(crate) struct View {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The name of the view; by default all views are listed
    pub(crate) name: Option<String>,
    /// Define the view, or replace its definition
    #[arg(long, value_name = "DEFINITION", requires = "name", conflicts_with_all = ["drop", "query"])]
    pub(crate) define: Option<String>,
    /// Drop the view and its definition
    #[arg(long, requires = "name", conflicts_with = "query")]
    pub(crate) drop: bool,
    #[command(flatten)]
    pub(crate) query: ViewQuery,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// A view query.
#[derive(Debug, Args)]
#[group(id = "query", multiple = true)]
pub(crate) struct ViewQuery {
    /// Only rows with this key; may be repeated
    #[arg(long, value_name = "JSON", conflicts_with_all = ["from", "to", "prefix"])]
    pub(crate) key: Vec<String>,
    /// Only rows with this key or a later one
    #[arg(long, value_name = "JSON", conflicts_with = "prefix")]
    pub(crate) from: Option<String>,
    /// Only rows with this key or an earlier one
    #[arg(long, value_name = "JSON", conflicts_with = "prefix")]
    pub(crate) to: Option<String>,
    /// Only rows whose key begins with this string, or with these array elements
    #[arg(long, value_name = "JSON")]
    pub(crate) prefix: Option<String>,
    /// Return rows in descending key order
    #[arg(long)]
    pub(crate) descending: bool,
    /// Maximum number of rows or groups
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Number of results to skip
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<u64>,
    /// Return one reduced value for all rows
    #[arg(long, conflicts_with_all = ["group", "group_level", "documents"])]
    pub(crate) reduce: bool,
    /// Return one reduced value for each key
    #[arg(long, conflicts_with_all = ["group_level", "documents"])]
    pub(crate) group: bool,
    /// Return one reduced value for each group of keys with the same first N elements
    #[arg(long, value_name = "N", conflicts_with = "documents")]
    pub(crate) group_level: Option<usize>,
    /// Include the documents, or the ones that values link to
    #[arg(long)]
    pub(crate) documents: bool,
    /// Whether to update the view first: true, false, or lazy for after the query
    #[arg(long, value_name = "WHEN", default_value = "true", hide_possible_values = true)]
    pub(crate) update: ViewUpdate,
    /// Query the view as it is; the same as --update false
    #[arg(long, conflicts_with = "update")]
    pub(crate) stale: bool,
}

/// When a view query updates the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewUpdate {
    /// Before the query
    True,
    /// Not at all
    False,
    /// After the query
    Lazy,
}
