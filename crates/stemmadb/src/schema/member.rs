//! Of which collection is a document? Its id says so, up to the first colon.

use crate::{Error, Result};

/// What divides the name of a collection from the rest of an id.
pub(crate) const COLLECTION_END: char = ':';

/// The collection that the document `id` is in, if its id names one.
pub(crate) fn collection_of(id: &str) -> Option<&str> {
    id.split_once(COLLECTION_END).map(|(name, _)| name)
}

/// # Errors
/// `Invalid` if no collection can have this name.
pub(crate) fn check_collection_name(name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('_') || name.contains(COLLECTION_END) {
        return Err(Error::invalid(format!("`{}` can't be the name of a collection", name.escape_debug()))
            .with_hint("ids of members are the name, a colon and the key: give a name like `books`"));
    }
    Ok(())
}
