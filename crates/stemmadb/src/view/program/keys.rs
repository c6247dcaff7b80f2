//! The keys of rows: in the order of ICU, then of the documents' ids; and what of them a range or a group begins and ends with.

use std::sync::OnceLock;

use crate::value::Value;
use crate::value::collate::{Language, key};

/// So many bytes of a row's key, with escapes: the tree takes no more with all that comes around them.
const ROW_BYTES_MAX: usize = 428;

/// So many bytes of the emitted key's; a longer one is cut, and ended by a hash of it.
const KEY_BYTES_MAX: usize = 280;
const HASH_BYTES: usize = 16;
const CUT_BYTES: usize = KEY_BYTES_MAX - HASH_BYTES;

/// The order of no particular language, which is CouchDB's.
fn root() -> &'static Language {
    static ROOT: OnceLock<Language> = OnceLock::new();
    ROOT.get_or_init(|| Language::new("und").expect("`und` is a language tag, and its data are compiled in"))
}

/// Bytes in the order of ICU, however many: what compares equal there is one.
pub(super) fn order_of(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    root().encode_within(value, &mut bytes);
    bytes
}

/// The bytes of an emitted key, in the order of ICU.
pub(super) fn key_bytes(emitted: &Value) -> Vec<u8> {
    let mut bytes = order_of(emitted);
    if bytes.len() > KEY_BYTES_MAX {
        let hash = blake3::hash(&bytes);
        bytes.truncate(CUT_BYTES);
        bytes.extend_from_slice(&hash.as_bytes()[..HASH_BYTES]);
    }
    bytes
}

/// The key of a row, from [`key_bytes`] and the document's id.
pub(super) fn row_key(key_bytes: &[u8], id: &str) -> Vec<u8> {
    let mut row = Vec::new();
    key::encode_joined_within(&[key_bytes, id.as_bytes()].concat(), ROW_BYTES_MAX, &mut row);
    row
}

/// What the keys of all rows with this emitted key begin with.
pub(super) fn beginning(key_bytes: &[u8]) -> Vec<u8> {
    key::joined_beginning_within(key_bytes, ROW_BYTES_MAX)
}

/// What the key of a row of this document begins with, and those of documents whose id goes on.
pub(super) fn beginning_of(key_bytes: &[u8], id: &str) -> Vec<u8> {
    beginning(&[key_bytes, id.as_bytes()].concat())
}

/// Comes after the rows of this document, and before those of documents whose id goes on.
pub(super) fn after_document(key_bytes: &[u8], id: &str) -> Vec<u8> {
    let mut bytes = beginning_of(key_bytes, id);
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

/// What the keys of all rows begin with whose emitted key is an array that begins with these elements.
pub(super) fn beginning_with(elements: &[Value]) -> Vec<u8> {
    let mut bytes = order_of(&elements.to_vec().into());
    // Without its end.
    bytes.pop();
    bytes.truncate(CUT_BYTES);
    beginning(&bytes)
}

/// The document's id in the key of a row; nothing where it was cut.
pub(super) fn id_of(row: &[u8], emitted: &Value) -> String {
    let joined = key::decode_joined(row).ok().filter(|joined| !joined.cut);
    let id = joined.and_then(|joined| joined.bytes.get(key_bytes(emitted).len()..).map(<[u8]>::to_vec));
    id.and_then(|id| String::from_utf8(id).ok()).unwrap_or_default()
}
