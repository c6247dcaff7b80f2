//! Collection terms: a term at the root path for the collection that a document id names, so that the members of a
//! collection are one posting set.

use crate::schema::{COLLECTION_END, collection_of};
use crate::value::collate::key;

/// Longer names have no term.
const NAME_BYTES_MAX: usize = 100;

/// The key of the term that the document `id` has at the root, if its id names a collection.
pub(crate) fn collection_key(id: &str) -> Option<Vec<u8>> {
    name_key(collection_of(id)?)
}

/// The key of the term shared by exactly the documents whose ids begin with `prefix`, if the prefix names a collection.
pub(crate) fn collection_key_of_prefix(prefix: &str) -> Option<Vec<u8>> {
    let name = prefix.strip_suffix(COLLECTION_END).filter(|name| !name.contains(COLLECTION_END))?;
    name_key(name)
}

fn name_key(name: &str) -> Option<Vec<u8>> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(name.len() + 4);
    key::encode_string(name, &mut bytes);
    Some(bytes)
}
