//! Where a view's rows lie in the tree's table `views`.
//!
//! | key | value |
//! |---|---|
//! | `00`, slot | name, version and how far it has come, as JSON |
//! | `01`, slot, `01`, key, document, ordinal | the value as JSON; nothing for `null` |
//! | `01`, slot, `02`, document | how its map ended; the keys of its rows, in order |
//! | `01`, slot, `03`, level, key of a row | the partial reduction from that row to the next one of that level |
//!
//! A slot holds one version of one view; its number is never reused while any row of it is left. Keys are those of
//! `value/collate`, numbers those of `index::ordered`: both say themselves where they end.

use std::ops::Bound;
use std::sync::Arc;

use crate::index::{DocumentNumber, ordered, take_ordered};
use crate::revision::Sequence;
use crate::value::collate::key;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// The longest key of a row, in bytes of its collation form: with all that comes around it, a key of the tree.
pub(super) const KEY_BYTES_MAX: usize = 448;

const SLOTS: u8 = 0x00;
const CONTENTS: u8 = 0x01;

const ROWS: u8 = 0x01;
const BACK_REFERENCES: u8 = 0x02;
const PARTIALS: u8 = 0x03;

/// The number of one version of one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotNumber(pub(super) u64);

/// The error of a row that is not what was written.
pub(super) fn damaged(what: &str) -> Error {
    Error::corrupt(format!("tree/data.mdb: {what} of table views is not what was put there"))
        .with_hint("run `stemma rebuild`: views are derived from the log and are made again without loss")
}

/// The key of a slot's record.
pub(super) fn slot_key(slot: SlotNumber) -> Vec<u8> {
    [&[SLOTS], ordered(slot.0).as_slice()].concat()
}

/// Where slots' records are: from the first, inclusive, to the second, exclusive.
pub(super) const SLOT_RANGE: (&[u8], &[u8]) = (&[SLOTS], &[SLOTS + 1]);

/// The slot whose record has this key.
pub(super) fn slot_of_key(key: &[u8]) -> Result<SlotNumber> {
    let mut rest = key.strip_prefix(&[SLOTS]).ok_or_else(|| damaged("a slot"))?;
    take_ordered(&mut rest).map(SlotNumber)
}

/// What every key of a slot's contents begins with.
pub(super) fn slot_prefix(slot: SlotNumber) -> Vec<u8> {
    [&[CONTENTS], ordered(slot.0).as_slice()].concat()
}

/// The least bytes that no key with this prefix reaches; none if there are none.
pub(super) fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// The key of a row within its slot: of `row`, which [`row_key`] made, or of a bound of rows.
pub(super) fn row_place(row: &[u8]) -> Vec<u8> {
    [&[ROWS], row].concat()
}

/// The end of all rows.
pub(super) fn rows_end() -> Vec<u8> {
    vec![ROWS + 1]
}

/// Whether this key within a slot is of a row; its rest.
pub(super) fn row_of_place(place: &[u8]) -> Option<&[u8]> {
    place.strip_prefix(&[ROWS])
}

/// Whether this key within a slot is of a back reference.
pub(super) fn is_back_reference(place: &[u8]) -> bool {
    place.first() == Some(&BACK_REFERENCES)
}

/// A row's own key.
pub(super) fn row_key(key: &[u8], document: DocumentNumber, ordinal: u64) -> Vec<u8> {
    [key, &ordered(document.0), &ordered(ordinal)].concat()
}

/// What a row's own key says.
pub(super) struct RowKey<'a> {
    /// The emitted key, in collation form.
    pub(super) key: &'a [u8],
    /// Who emitted it.
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

/// The key, within its slot, of what is known of a document.
pub(super) fn document_place(document: DocumentNumber) -> Vec<u8> {
    [&[BACK_REFERENCES], ordered(document.0).as_slice()].concat()
}

/// The document whose back reference has this key within its slot.
pub(super) fn document_of_place(place: &[u8]) -> Result<DocumentNumber> {
    let mut rest = place.strip_prefix(&[BACK_REFERENCES]).ok_or_else(|| damaged("a back reference"))?;
    take_ordered(&mut rest).map(DocumentNumber)
}

/// The back references, within a slot.
pub(super) const BACK_REFERENCE_RANGE: (&[u8], &[u8]) = (&[BACK_REFERENCES], &[BACK_REFERENCES + 1]);

/// The key, within its slot, of the partial reduction that begins at `row` on `level`.
pub(super) fn partial_place(level: u8, row: &[u8]) -> Vec<u8> {
    [&[PARTIALS, level], row].concat()
}

/// The row at which the partial reduction with this key begins.
pub(super) fn row_of_partial(place: &[u8]) -> Result<&[u8]> {
    place.get(2..).ok_or_else(|| damaged("a partial reduction"))
}

/// The partial reductions of all levels, within a slot.
pub(super) fn partial_range() -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (Bound::Included(vec![PARTIALS]), Bound::Excluded(vec![PARTIALS + 1]))
}

/// What became of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BackReference {
    /// The keys of its rows in collation form, in order; equal ones follow each other.
    Rows(Vec<Vec<u8>>),
    /// Its map failed, so it has no rows.
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

    /// The keys of its rows.
    pub(super) fn keys(&self) -> &[Vec<u8>] {
        match self {
            BackReference::Rows(keys) => keys,
            BackReference::Failed(_) => &[],
        }
    }

    /// The own keys of the rows of `document`, in order.
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

/// What is stored of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRecord {
    pub(super) name: Arc<str>,
    pub(super) version: Arc<str>,
    /// Everything up to here is in its rows.
    pub(super) position: Sequence,
    pub(super) row_count: u64,
    pub(super) failed_count: u64,
    pub(super) phase: Phase,
}

/// What can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Rows and partial reductions are those of the position.
    Ready,
    /// Rows are being written that lie beyond the position, and partial reductions may be missing.
    Unfinished,
    /// Its rows are being removed.
    Dropped,
}

impl Phase {
    const NAMES: [(Phase, &'static str); 3] =
        [(Phase::Ready, "ready"), (Phase::Unfinished, "unfinished"), (Phase::Dropped, "dropped")];
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
