//! Arguments of `stemma aggregate`.

use std::path::PathBuf;

use clap::Args;

use super::{AsOfArgument, OutputOptions, TimeoutArgument};

/// The arguments of `stemma aggregate`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma aggregate library.stemma --sum price --average price\n  \
    stemma aggregate library.stemma '{\"year\": {\"$lt\": 1900}}' --group-by author --count\n  \
    stemma aggregate library.stemma --group-by tags[] --count --order-by count --descending --limit 10\n  \
    stemma aggregate library.stemma --group-by country,year --count-distinct author\n  \
    stemma aggregate library.stemma --pipeline '[{\"$unwind\": \"$tags\"}, {\"$sortByCount\": \"$tags\"}]'\n\n\
    [] in a path stands for each element of an array; a document counts once in each group. Without a figure, \
    --count is printed.")]
pub(crate) struct Aggregate {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The selector, a JSON object; by default it matches every document
    #[arg(default_value = "{}", hide_default_value = true)]
    pub(crate) selector: String,
    /// One row for each value of this field, or for each combination of values
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) group_by: Vec<String>,
    /// The number of documents
    #[arg(long)]
    pub(crate) count: bool,
    /// The sum of the numbers in these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) sum: Vec<String>,
    /// The average of the numbers in these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) average: Vec<String>,
    /// The smallest value of these fields; in groups, the smallest number
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) min: Vec<String>,
    /// The largest value of these fields; in groups, the largest number
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) max: Vec<String>,
    /// The distinct values of these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) distinct: Vec<String>,
    /// The number of distinct values of these fields
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub(crate) count_distinct: Vec<String>,
    /// Sort the groups by this figure, such as count or sum(price); by default by their values
    #[arg(long, value_name = "FIGURE", requires = "group_by")]
    pub(crate) order_by: Option<String>,
    /// Sort in descending order
    #[arg(long, requires = "group_by")]
    pub(crate) descending: bool,
    /// Maximum number of groups
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Number of groups to skip
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<u64>,
    /// Run an aggregation pipeline, a JSON array of stages, on the documents that match
    #[arg(
        long,
        value_name = "STAGES",
        conflicts_with_all = [
            "group_by", "count", "sum", "average", "min", "max", "distinct", "count_distinct", "limit", "skip"
        ]
    )]
    pub(crate) pipeline: Option<String>,
    /// Print how the pipeline would run
    #[arg(long, requires = "pipeline")]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}
