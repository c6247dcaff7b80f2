//! The key and value layout of views in the tree's table `views`.
//!
//! | key | value |
//! |---|---|
//! | `00`, slot | name, version and position of the slot, as JSON |
//! | `01`, slot, `01`, key, document, ordinal | the value as JSON; empty for `null` |
//! | `01`, slot, `02`, document | the outcome of mapping the document; the keys of its rows, in order |
//! | `01`, slot, `03`, level, key of a row | the partial reduction from that row to the next one of that level |
//!
//! A slot holds one version of one view; its number is not reused while any of its rows remain. Keys are encoded by
//! `value/collate`, numbers by `index::ordered_bytes`; both are self-delimiting.

use std::sync::Arc;

use crate::index::{DocumentNumber, ordered_bytes, take_ordered};
use crate::revision::Sequence;
use crate::value::collate::key;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// The longest emitted key in bytes of its collation form, so that the complete key fits the tree's limit.
pub(super) const KEY_BYTES_MAX: usize = 448;

const SLOTS: u8 = 0x00;
const CONTENTS: u8 = 0x01;

const ROWS: u8 = 0x01;
const BACK_REFERENCES: u8 = 0x02;
const PARTIALS: u8 = 0x03;

/// Identifies one version of one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotNumber(pub(super) u64);

/// The error for malformed stored bytes.
pub(super) fn damaged(what: &str) -> Error {
    Error::corrupt(format!("tree: {what} of table views is not what was put there"))
        .with_hint("run `stemma rebuild`: views are derived from the log and are made again without loss")
}

/// The tree key of a slot's record.
pub(super) fn slot_record_key(slot: SlotNumber) -> Vec<u8> {
    [&[SLOTS], ordered_bytes(slot.0).as_slice()].concat()
}

/// The range of the slots' records: from the first key, inclusive, to the second, exclusive.
pub(super) const SLOT_RANGE: (&[u8], &[u8]) = (&[SLOTS], &[SLOTS + 1]);

/// Decodes the slot from the key of its record.
pub(super) fn slot_of_record_key(key: &[u8]) -> Result<SlotNumber> {
    let mut rest = key.strip_prefix(&[SLOTS]).ok_or_else(|| damaged("a slot"))?;
    take_ordered(&mut rest).map(SlotNumber)
}

/// The prefix of all tree keys of a slot's contents.
pub(super) fn slot_prefix(slot: SlotNumber) -> Vec<u8> {
    [&[CONTENTS], ordered_bytes(slot.0).as_slice()].concat()
}

/// The smallest byte string greater than all keys with this prefix; `None` if there is none.
pub(super) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// The key of a row within its slot, from a row key made by [`row_key`] or a bound of one.
pub(super) fn local_row_key(row: &[u8]) -> Vec<u8> {
    [&[ROWS], row].concat()
}

/// The exclusive end of all rows.
pub(super) fn rows_end() -> Vec<u8> {
    vec![ROWS + 1]
}

/// The row key, if this key within a slot is that of a row.
pub(super) fn row_of_local_key(local_key: &[u8]) -> Option<&[u8]> {
    local_key.strip_prefix(&[ROWS])
}

/// A row key: emitted key, document, and ordinal among the document's rows with that key.
pub(super) fn row_key(key: &[u8], document: DocumentNumber, ordinal: u64) -> Vec<u8> {
    [key, &ordered_bytes(document.0), &ordered_bytes(ordinal)].concat()
}

/// A decoded row key.
pub(super) struct RowKey<'a> {
    /// The emitted key, in collation form.
    pub(super) key: &'a [u8],
    /// The document that emitted the row.
    pub(super) document: DocumentNumber,
}

impl<'a> RowKey<'a> {
    pub(super) fn decode(row: &'a [u8]) -> Result<Self> {
        let (key, mut rest) = row.split_at(key::length(row)?);
        let document = DocumentNumber(take_ordered(&mut rest)?);
        take_ordered(&mut rest)?;
        if rest.is_empty() { Ok(RowKey { key, document }) } else { Err(damaged("the key of a row")) }
    }
}

/// The key of a document's back reference within its slot.
pub(super) fn local_back_reference_key(document: DocumentNumber) -> Vec<u8> {
    [&[BACK_REFERENCES], ordered_bytes(document.0).as_slice()].concat()
}

/// Decodes the document from the key of its back reference.
pub(super) fn document_of_local_key(local_key: &[u8]) -> Result<DocumentNumber> {
    let mut rest = local_key.strip_prefix(&[BACK_REFERENCES]).ok_or_else(|| damaged("a back reference"))?;
    take_ordered(&mut rest).map(DocumentNumber)
}

/// The range of back references within a slot.
pub(super) const BACK_REFERENCE_RANGE: (&[u8], &[u8]) = (&[BACK_REFERENCES], &[BACK_REFERENCES + 1]);

/// The key, within its slot, of the partial reduction of `level` that begins at `row`.
pub(super) fn local_partial_key(level: u8, row: &[u8]) -> Vec<u8> {
    [&[PARTIALS, level], row].concat()
}

/// The row key at which the partial reduction with this key begins.
pub(super) fn row_of_partial(local_key: &[u8]) -> Result<&[u8]> {
    local_key.get(2..).ok_or_else(|| damaged("a partial reduction"))
}

/// The range of partial reductions of all levels, within a slot.
pub(super) const PARTIAL_BOUNDS: (&[u8], &[u8]) = (&[PARTIALS], &[PARTIALS + 1]);

/// The outcome of mapping one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BackReference {
    /// The emitted keys of its rows in collation form, in order; equal keys are adjacent.
    Rows(Vec<Vec<u8>>),
    /// The map failed, with this message; the document has no rows.
    Failed(String),
}

impl BackReference {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            BackReference::Rows(keys) => {
                let mut value = vec![0];
                keys.iter().for_each(|key| value.extend_from_slice(key));
                value
            }
            BackReference::Failed(why) => [&[1], why.as_bytes()].concat(),
        }
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self> {
        match value.split_first() {
            Some((0, mut rest)) => {
                let mut keys = Vec::new();
                while !rest.is_empty() {
                    let (key, after) = rest.split_at(key::length(rest)?);
                    keys.push(key.to_vec());
                    rest = after;
                }
                Ok(BackReference::Rows(keys))
            }
            Some((1, why)) => Ok(BackReference::Failed(String::from_utf8_lossy(why).into_owned())),
            _ => Err(damaged("a back reference")),
        }
    }

    /// The emitted keys of its rows.
    pub(super) fn keys(&self) -> &[Vec<u8>] {
        match self {
            BackReference::Rows(keys) => keys,
            BackReference::Failed(_) => &[],
        }
    }

    /// The row keys of `document`, in order.
    pub(super) fn rows(&self, document: DocumentNumber) -> Vec<Vec<u8>> {
        let mut ordinal = 0;
        let keys = self.keys();
        (0..keys.len())
            .map(|at| {
                ordinal = if at > 0 && keys[at - 1] == keys[at] { ordinal + 1 } else { 0 };
                row_key(&keys[at], document, ordinal)
            })
            .collect()
    }
}

/// The stored record of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRecord {
    pub(super) name: Arc<str>,
    pub(super) version: Arc<str>,
    /// Everything up to this sequence is in the rows.
    pub(super) position: Sequence,
    pub(super) row_count: u64,
    pub(super) failed_count: u64,
    pub(super) phase: Phase,
}

/// Which of a slot's contents are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Rows and partial reductions are those of the position.
    Ready,
    /// Rows of later positions are being written, and partial reductions may be missing.
    Unfinished,
}

impl Phase {
    const NAMES: [(Phase, &'static str); 2] = [(Phase::Ready, "ready"), (Phase::Unfinished, "unfinished")];
}

impl SlotRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let phase = Phase::NAMES.iter().find(|(phase, _)| *phase == self.phase).map_or("", |(_, name)| name);
        let mut object = Object::new();
        object.insert("name", &*self.name);
        object.insert("version", &*self.version);
        object.insert("position", self.position.get());
        object.insert("rows", self.row_count);
        object.insert("failed", self.failed_count);
        object.insert("phase", phase);
        Value::Object(object).to_json().into_bytes()
    }

    pub(super) fn decode(stored: &[u8]) -> Result<Self> {
        let record = Value::parse(stored).map_err(|_| damaged("a slot"))?;
        let text = |name| record.get(name).and_then(Value::as_str).ok_or_else(|| damaged("a slot"));
        let number = |name| record.get(name).and_then(Value::as_u64).ok_or_else(|| damaged("a slot"));
        let phase = text("phase")?;
        let phase = Phase::NAMES.iter().find(|(_, name)| *name == phase).ok_or_else(|| damaged("a slot"))?.0;
        Ok(SlotRecord {
            name: text("name")?.into(),
            version: text("version")?.into(),
            position: Sequence::new(number("position")?),
            row_count: number("rows")?,
            failed_count: number("failed")?,
            phase,
        })
    }
}
