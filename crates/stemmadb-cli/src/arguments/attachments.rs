//! Arguments of the attachment commands: `files`, `attach`, `fetch` and `detach`.

use std::path::PathBuf;

use clap::Args;

use super::{AsOfArgument, OutputOptions};

/// The arguments of `stemma files`.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma attach`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma attach library.stemma emma cover.png scans/emma-1.png\n  \
    pandoc emma.md -o - -t pdf | stemma attach library.stemma emma text.pdf\n  \
    stemma attach library.stemma emma notes notes.md --type text/markdown --rev 2-9c0a…\n\n\
    Content of any length is streamed. An attachment of the same name is replaced; the document's body is unchanged.")]
pub(crate) struct Attach {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// The name of the attachment
    pub(crate) name: String,
    /// The file to read; by default, or with -, standard input
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// The media type, such as image/png; by default inferred from the name
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// The revision to attach it to; by default the current one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// The arguments of `stemma fetch`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma fetch library.stemma emma cover.png -o cover.png\n  \
    stemma fetch library.stemma emma text.pdf | pdftotext - -\n  \
    stemma fetch library.stemma emma text.pdf --range 0-1023     # the first KiB\n  \
    stemma fetch library.stemma emma text.pdf --range -100       # the last 100 bytes\n\n\
    The content is verified against its checksums before it is written.")]
pub(crate) struct Fetch {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// The name of the attachment
    pub(crate) name: String,
    /// Only these bytes, from 0 and inclusive: 0-99, 100-, or -100 for the last 100
    #[arg(long, value_name = "FROM-TO", allow_hyphen_values = true)]
    pub(crate) range: Option<ByteRange>,
    #[command(flatten)]
    pub(crate) past: AsOfArgument,
    /// The file to write; by default, or with -, standard output. An existing file is not overwritten
    #[arg(short, long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub(crate) output: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

/// The arguments of `stemma detach`.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The database directory
    pub(crate) database: PathBuf,
    /// The document's id
    pub(crate) id: String,
    /// The name of the attachment
    pub(crate) name: String,
    /// The revision to remove it from; by default the current one
    #[arg(long, value_name = "REVISION")]
    pub(crate) rev: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// The first and the last byte, or to the end.
    FromTo(u64, Option<u64>),
    /// The number of bytes at the end.
    Suffix(u64),
}

impl std::str::FromStr for ByteRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write 0-99, 100- or -100";
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| FORM);
        match text.split_once('-').ok_or(FORM)? {
            ("", count) => Ok(ByteRange::Suffix(number(count)?)),
            (from, "") => Ok(ByteRange::FromTo(number(from)?, None)),
            (from, to) => match (number(from)?, number(to)?) {
                (from, to) if from > to => Err("the range ends before it begins"),
                (from, to) => Ok(ByteRange::FromTo(from, Some(to))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_ranges() {
        let parse = |text: &str| text.parse::<ByteRange>().ok();
        assert_eq!(parse("0-99"), Some(ByteRange::FromTo(0, Some(99))));
        assert_eq!(parse("7-7"), Some(ByteRange::FromTo(7, Some(7))));
        assert_eq!(parse("100-"), Some(ByteRange::FromTo(100, None)));
        assert_eq!(parse("-100"), Some(ByteRange::Suffix(100)));
        for wrong in ["", "-", "7", "8-7", "a-b", "1-2-3", "0-99999999999999999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
