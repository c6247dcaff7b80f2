//! Collection membership: the part of a document id before the first colon names its collection.

use crate::{Error, Result};

/// Separates the name of a collection from the rest of an id.
pub(crate) const COLLECTION_END: char = ':';

/// The collection of the document `id`, if its id names one.
pub(crate) fn collection_of(id: &str) -> Option<&str> {
    id.split_once(COLLECTION_END).map(|(name, _)| name)
}

/// Validates the name of a collection.
///
/// # Errors
/// `Invalid` if the name is empty, begins with `_`, or contains a colon.
pub(crate) fn check_collection_name(name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('_') || name.contains(COLLECTION_END) {
        return Err(Error::invalid(format!("`{}` can't be the name of a collection", name.escape_debug()))
            .with_hint("ids of members are the name, a colon and the key: give a name like `books`"));
    }
    Ok(())
}
