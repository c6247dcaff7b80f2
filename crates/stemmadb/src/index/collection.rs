//! Of which collection is a document? Its id says so, up to the first colon; that is a term at the root, so the members of a collection
//! are one set.

use crate::schema::{COLLECTION_END, collection_of};
use crate::value::collate::key;

/// Longer names have no term.
const NAME_BYTES_MAX: usize = 100;

/// The key of the term that the document `id` has at the root, if its id names a collection.
pub(crate) fn collection_key(id: &str) -> Option<Vec<u8>> {
    key_of_name(collection_of(id)?)
}

/// The key of the term that exactly the documents have whose ids begin with `prefix`, if there is one.
pub(crate) fn collection_key_of_prefix(prefix: &str) -> Option<Vec<u8>> {
    let name = prefix.strip_suffix(COLLECTION_END).filter(|name| !name.contains(COLLECTION_END))?;
    key_of_name(name)
}

fn key_of_name(name: &str) -> Option<Vec<u8>> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(name.len() + 4);
    key::encode_string(name, &mut bytes);
    Some(bytes)
}
