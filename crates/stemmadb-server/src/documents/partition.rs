//! Partitions of partitioned databases: the id of every document there is `partition:name`.

use hyper::StatusCode;

use super::check_id;
use crate::error::{Failure, Result};

/// Ends the partition in an id.
const END: char = ':';

/// The prefix of a partition's ids.
pub(crate) fn partition_prefix(partition: &str) -> String {
    format!("{partition}{END}")
}

/// A bound above all ids of a partition: the character after `:` follows its name.
pub(crate) fn partition_end(partition: &str) -> String {
    format!("{partition};")
}

/// Checks the name of a partition.
///
/// # Errors
/// 400 with CouchDB's error `illegal_partition`.
pub(crate) fn check_partition(partition: &str) -> Result<()> {
    let reason = match partition {
        "" => "Partition must not be empty",
        name if name.starts_with('_') => "Partition must not start with an underscore",
        name if name.contains(END) => "Partition must not contain a colon",
        _ => return Ok(()),
    };
    Err(Failure::new(StatusCode::BAD_REQUEST, "illegal_partition", reason))
}

/// Checks the id of a document of a partitioned database. Design documents and local documents have no partition.
///
/// # Errors
/// 400 with CouchDB's error `illegal_docid` or `illegal_partition`.
pub(crate) fn check_partitioned_id(id: &str) -> Result<()> {
    if id.starts_with("_design/") || id.starts_with("_local/") {
        return Ok(());
    }
    let Some((partition, name)) = id.split_once(END) else {
        return Err(Failure::new(StatusCode::BAD_REQUEST, "illegal_docid", "Doc id must be of form partition:id"));
    };
    check_partition(partition)?;
    check_id(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_a_partition() {
        for id in ["a:b", "a:b:c", "é:1", "_design/a", "_local/a"] {
            assert_eq!(check_partitioned_id(id), Ok(()), "{id}");
        }
        for (id, error, reason) in [
            ("a", "illegal_docid", "Doc id must be of form partition:id"),
            (":b", "illegal_partition", "Partition must not be empty"),
            ("_a:b", "illegal_partition", "Partition must not start with an underscore"),
            ("a:", "illegal_docid", "Document id must not be empty"),
            ("a:_b", "illegal_docid", "Only reserved document ids may start with underscore."),
        ] {
            let failure = check_partitioned_id(id).unwrap_err();
            assert_eq!((failure.error(), failure.reason()), (error, reason), "{id}");
        }
    }

    #[test]
    fn ids_of_a_partition_are_below_its_end() {
        let (first, end) = (partition_prefix("a"), partition_end("a"));
        for (id, is_within) in [("a:", true), ("a:\u{10FFFF}", true), ("a9:b", false), ("a;:b", false), ("b:", false)] {
            assert_eq!((first.as_str()..end.as_str()).contains(&id), is_within, "{id}");
        }
    }
}
