//! Row keys of program views: ordered by ICU collation of the emitted key, then by document id.

use std::sync::OnceLock;

use crate::Result;
use crate::value::Value;
use crate::value::collate::{Language, key};

/// Maximum bytes of a row key, including escapes, so that the complete key fits the tree's limit.
const ROW_BYTES_MAX: usize = 428;

/// Maximum bytes of the emitted key; a longer one is truncated and ends in a hash.
const KEY_BYTES_MAX: usize = 280;
const HASH_BYTES: usize = 16;
const CUT_BYTES: usize = KEY_BYTES_MAX - HASH_BYTES;

/// The bytes that precede the emitted key in the row keys of a partitioned view: a hash of the partition, so that long
/// names take no room. Rows of different partitions are never in one result, so their order does not matter.
pub(super) type PartitionPrefix = [u8; 16];

/// The prefix of the rows of the partition `name`.
pub(super) fn partition_prefix(name: &str) -> PartitionPrefix {
    let hash = blake3::hash(name.as_bytes());
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

/// The partition of a document: its id before the first `:`; empty if there is none.
pub(super) fn partition_of(id: &str) -> &str {
    id.split_once(':').map_or("", |(partition, _)| partition)
}

/// The root collation, which CouchDB uses. It is loaded once.
///
/// # Errors
/// `Unavailable` in a build without collation data.
pub(in crate::view) fn root_collation() -> Result<&'static Language> {
    static ROOT: OnceLock<Language> = OnceLock::new();
    match ROOT.get() {
        Some(root) => Ok(root),
        None => Language::new("und").map(|root| ROOT.get_or_init(|| root)),
    }
}

/// Encodes a value in ICU collation order without a length limit. Values that compare equal have equal bytes.
pub(super) fn collation_key(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    root_collation()
        .expect("program views are opened only if there is collation data")
        .encode_nested(value, &mut bytes);
    bytes
}

/// Encodes an emitted key in ICU collation order, truncated to [`KEY_BYTES_MAX`].
pub(super) fn key_bytes(emitted: &Value) -> Vec<u8> {
    let mut bytes = collation_key(emitted);
    if bytes.len() > KEY_BYTES_MAX {
        let hash = blake3::hash(&bytes);
        bytes.truncate(CUT_BYTES);
        bytes.extend_from_slice(&hash.as_bytes()[..HASH_BYTES]);
    }
    bytes
}

/// As [`key_bytes`], after the prefix of a partition if the view has partitions.
pub(super) fn key_bytes_within(partition: Option<&PartitionPrefix>, emitted: &Value) -> Vec<u8> {
    match partition {
        Some(partition) => [partition.as_slice(), &key_bytes(emitted)].concat(),
        None => key_bytes(emitted),
    }
}

/// Builds the key of a row from [`key_bytes_within`] and the document's id.
pub(super) fn row_key(key_bytes: &[u8], id: &str) -> Vec<u8> {
    let mut row = Vec::new();
    key::encode_composite_bounded(&[key_bytes, id.as_bytes()].concat(), ROW_BYTES_MAX, &mut row);
    row
}

/// The common prefix of all row keys with this emitted key.
pub(super) fn row_prefix(key_bytes: &[u8]) -> Vec<u8> {
    key::composite_prefix_bounded(key_bytes, ROW_BYTES_MAX)
}

/// The common prefix of the row keys of this document and of documents whose id starts with this id.
pub(super) fn row_prefix_for_document(key_bytes: &[u8], id: &str) -> Vec<u8> {
    row_prefix(&[key_bytes, id.as_bytes()].concat())
}

/// A key after the rows of this document, and before those of documents whose longer id starts with this id.
pub(super) fn after_document(key_bytes: &[u8], id: &str) -> Vec<u8> {
    let mut bytes = row_prefix_for_document(key_bytes, id);
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

/// The common prefix of all row keys whose emitted key is an array that begins with these elements.
pub(super) fn row_prefix_for_elements(partition: Option<&PartitionPrefix>, elements: &[Value]) -> Vec<u8> {
    let mut bytes = collation_key(&elements.to_vec().into());
    // Remove the array's terminator.
    bytes.pop();
    bytes.truncate(CUT_BYTES);
    row_prefix(&[partition.map_or(&[][..], |partition| partition.as_slice()), &bytes].concat())
}

/// Whether [`row_prefix_for_elements`] contains these elements completely, so that it selects no other keys.
pub(super) fn is_complete_prefix(elements: &[Value]) -> bool {
    collation_key(&elements.to_vec().into()).len() <= CUT_BYTES
}

/// The document id within a row key; empty if the key was truncated.
pub(super) fn id_of(row: &[u8], emitted: &Value, is_partitioned: bool) -> String {
    let joined = key::decode_composite(row).ok().filter(|joined| !joined.cut);
    let prefix_bytes = if is_partitioned { size_of::<PartitionPrefix>() } else { 0 };
    let start = prefix_bytes + key_bytes(emitted).len();
    let id = joined.and_then(|joined| joined.bytes.get(start..).map(<[u8]>::to_vec));
    id.and_then(|id| String::from_utf8(id).ok()).unwrap_or_default()
}
