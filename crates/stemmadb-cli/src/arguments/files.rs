//! What may be written after the verbs about a document's files.

use std::path::PathBuf;

use clap::Args;

use super::Form;

/// The arguments of `stemma files`.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma attach`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma attach library.stemma emma cover.png scans/emma-1.png\n  \
    pandoc emma.md -o - -t pdf | stemma attach library.stemma emma text.pdf\n  \
    stemma attach library.stemma emma notes notes.md --type text/markdown --rev 2-9c0a…\n\n\
    Content of any length goes in with little memory. A file of the same name is replaced; the document's body stays.")]
pub(crate) struct Attach {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// What the file is called in the document
    pub(crate) name: String,
    /// The file to read; left out or -, it is standard input
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// What it is, such as image/png, instead of a guess from its name
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// The revision that gets it; left out, it is the current one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The arguments of `stemma fetch`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma fetch library.stemma emma cover.png -o cover.png\n  \
    stemma fetch library.stemma emma text.pdf | pdftotext - -\n  \
    stemma fetch library.stemma emma text.pdf --range 0-1023     # the first KiB\n  \
    stemma fetch library.stemma emma text.pdf --range -100       # the last 100 bytes\n\n\
    Its bytes as they are, each checked before it is written.")]
pub(crate) struct Fetch {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// What the file is called in the document
    pub(crate) name: String,
    /// Only these bytes, from 0, the last one too: 0-99, 100- or, from the end, -100
    #[arg(long, value_name = "FROM-TO", allow_hyphen_values = true)]
    pub(crate) range: Option<Range>,
    /// The file to write; left out or -, it is standard output. One that exists is not overwritten
    #[arg(short, long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub(crate) output: PathBuf,
    /// Overwrite the file
    #[arg(long)]
    pub(crate) force: bool,
}

/// The arguments of `stemma detach`.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The database's directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// What the file is called in the document
    pub(crate) name: String,
    /// The revision that loses it; left out, it is the current one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Range {
    /// From one byte to another, or to the end.
    From(u64, Option<u64>),
    /// So many at the end.
    Last(u64),
}

impl std::str::FromStr for Range {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write 0-99, 100- or -100";
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| FORM);
        match text.split_once('-').ok_or(FORM)? {
            ("", count) => Ok(Range::Last(number(count)?)),
            (from, "") => Ok(Range::From(number(from)?, None)),
            (from, to) => match (number(from)?, number(to)?) {
                (from, to) if from > to => Err("it ends before it begins"),
                (from, to) => Ok(Range::From(from, Some(to))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let parse = |text: &str| text.parse::<Range>().ok();
        assert_eq!(parse("0-99"), Some(Range::From(0, Some(99))));
        assert_eq!(parse("7-7"), Some(Range::From(7, Some(7))));
        assert_eq!(parse("100-"), Some(Range::From(100, None)));
        assert_eq!(parse("-100"), Some(Range::Last(100)));
        for wrong in ["", "-", "7", "8-7", "a-b", "1-2-3", "0-99999999999999999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
