//! Stored formats of the tree's rows: the keys and values of its tables.
//!
//! The tree verifies that a row is what was written; decoding still checks all bounds.
//!
//! | table | key | value |
//! |---|---|---|
//! | ids | document id (long ones: a prefix and a hash) | number, sequence, location of the winner's record, deleted |
//! | docs | document number | id, sequence, location of the winner's record, revision tree, snapshot record |
//! | sequences | sequence | document number |
//! | postings | path, value, chunk (see `index`) | container |
//! | local | id | generation, flags, position, length |
//! | contents | digest of an attachment's content | location of its record |
//! | meta | text | counters, dictionaries, checkpoint position |
//!
//! A location is a log position and a length. The revision tree holds the locations of the other leaves' records.

pub(crate) mod meta;
pub(crate) mod posting_operand;
pub(crate) mod record;
pub(crate) mod settings;

use std::ops::Bound;

use smallvec::SmallVec;

use crate::index::{self, DocumentNumber, PathNumber, ordered_bytes, take_ordered};
use crate::layout::record::{Reader, put_varint};
use crate::log::{Digest, LogPosition};
use crate::memtable::{DocumentState, RecordLocation, ReplayMode, StoredRevision};
use crate::revision::{DocumentId, RevisionTree, Sequence};
use crate::tree::Table;
use crate::{Error, Result, varint};

/// Document numbers begin at one, so that an unset number (zero) never names a document.
pub(crate) const FIRST_NUMBER: DocumentNumber = DocumentNumber(1);

/// The first byte of a value's key; presence keys are below it.
const FIRST_VALUE: &[u8] = &[2];

/// Ids up to this many bytes are used as keys. Longer ids are truncated to this length, followed by a hash of the whole
/// id.
pub(crate) const ID_KEY_BYTES_MAX: usize = 400;

/// The error for a tree row that can't be decoded.
pub(crate) fn damaged(table: Table) -> Error {
    Error::corrupt(format!("tree: a row of table {table} is malformed"))
        .with_hint("run `stemma rebuild`: the tree is derived from the log and can be rebuilt without loss")
}

/// The key of a document id in `ids` and `local`.
pub(crate) fn id_key(id: &str) -> std::borrow::Cow<'_, [u8]> {
    let bytes = id.as_bytes();
    if bytes.len() <= ID_KEY_BYTES_MAX {
        return bytes.into();
    }
    let mut key = bytes[..ID_KEY_BYTES_MAX].to_vec();
    key.extend_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    key.into()
}

/// The first id (or key of an id) that may be within the bounds, and a test for ids past the end. Long ids with the
/// same prefix are ordered differently from their keys, so all ids with the same prefix as a bound are included.
pub(crate) fn id_span<'a>(lower: Bound<&'a [u8]>, upper: Bound<&'a [u8]>) -> (&'a [u8], impl Fn(&[u8]) -> bool + 'a) {
    fn beginning(bytes: &[u8]) -> &[u8] {
        &bytes[..bytes.len().min(ID_KEY_BYTES_MAX)]
    }
    let first = match lower {
        Bound::Unbounded => &[],
        Bound::Included(lower) | Bound::Excluded(lower) => beginning(lower),
    };
    let is_past = move |id: &[u8]| match upper {
        Bound::Unbounded => false,
        Bound::Included(upper) | Bound::Excluded(upper) => beginning(id) > beginning(upper),
    };
    (first, is_past)
}

/// The key of a document number or a sequence: order-preserving, and short for small numbers.
pub(crate) fn number_key(number: u64) -> SmallVec<[u8; 9]> {
    ordered_bytes(number)
}

/// The inverse of [`number_key`].
pub(crate) fn number_of_key(table: Table, key: &[u8]) -> Result<u64> {
    let mut rest = key;
    match take_ordered(&mut rest) {
        Ok(number) if rest.is_empty() => Ok(number),
        _ => Err(damaged(table)),
    }
}

/// A row of `ids`: enough to fetch the winner with one more read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRow {
    pub(crate) number: DocumentNumber,
    pub(crate) sequence: Sequence,
    pub(crate) deleted: bool,
    pub(crate) position: LogPosition,
    pub(crate) length: u32,
}

impl IdRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(24);
        put_varint(&mut value, self.number.0);
        varint::write_signed(self.sequence.0.wrapping_sub(self.number.0).cast_signed(), &mut value);
        put_varint(&mut value, self.position.to_u64());
        put_varint(&mut value, u64::from(self.length) << 1 | u64::from(self.deleted));
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        let number = reader.varint()?;
        let sequence = number.wrapping_add_signed(reader.signed_varint()?);
        let position = LogPosition::from_u64(reader.varint()?);
        let length = reader.varint()?;
        Ok(IdRow {
            number: DocumentNumber(number),
            sequence: Sequence(sequence),
            deleted: length & 1 != 0,
            position,
            length: u32::try_from(length >> 1).map_err(|_| damaged(Table::Ids))?,
        })
    }

    /// The row of a document in state `state`.
    pub(crate) fn of(state: &DocumentState) -> Result<Self> {
        let winner = state.tree.winner().ok_or_else(|| Error::internal("a document without any revision"))?;
        Ok(IdRow {
            number: state.number,
            sequence: state.sequence,
            deleted: winner.deleted,
            position: winner.payload.position,
            length: winner.payload.length,
        })
    }
}

/// The fields before the revision tree in a row of `docs`, which are all that a query result needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DocumentRow<'a> {
    pub(crate) id: &'a str,
    pub(crate) sequence: Sequence,
    /// The position of the winner's record.
    pub(crate) position: LogPosition,
    pub(crate) length: u32,
    tree: &'a [u8],
}

impl<'a> DocumentRow<'a> {
    /// Encodes the row of a document in state `state`.
    pub(crate) fn encode(state: &DocumentState) -> Result<Vec<u8>> {
        let IdRow { sequence, position, length, .. } = IdRow::of(state)?;
        let mut value = Vec::with_capacity(64 + state.id.as_str().len());
        put_varint(&mut value, state.id.as_str().len() as u64);
        value.extend_from_slice(state.id.as_str().as_bytes());
        put_varint(&mut value, sequence.0);
        put_varint(&mut value, position.to_u64());
        put_varint(&mut value, u64::from(length));
        state.tree.encode(&mut value, |stored, out| {
            // The position of the winner's record precedes the tree.
            if stored.position == position {
                put_varint(out, 0);
            } else {
                put_varint(out, stored.position.to_u64());
                put_varint(out, u64::from(stored.length));
            }
            put_varint(out, u64::from(stored.logged_ancestors));
        });
        put_replay_mode(&mut value, state.replay_mode);
        Ok(value)
    }

    pub(crate) fn decode(value: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        Ok(DocumentRow {
            id: reader.text()?,
            sequence: Sequence(reader.varint()?),
            position: LogPosition::from_u64(reader.varint()?),
            length: reader.varint()? as u32,
            tree: reader.rest(),
        })
    }

    /// The state in a snapshot record at `place`. Positions in segment 0 are relative, counted back from it. `stored`
    /// maps each leaf's location.
    pub(crate) fn snapshot_state(
        &self,
        number: DocumentNumber,
        location: RecordLocation,
        stored: impl Fn(StoredRevision) -> StoredRevision,
    ) -> Result<DocumentState> {
        let mut state = self.state(number)?;
        let leaves: SmallVec<[_; 1]> = state.tree.leaves().map(|leaf| (leaf.revision, leaf.payload)).collect();
        for (revision, mut payload) in leaves {
            if payload.position.segment() == 0 {
                payload.position = location.position.back(payload.position.offset());
            }
            state.tree.update_payload(&revision, stored(payload));
        }
        Ok(DocumentState { replay_mode: ReplayMode::Snapshot(location), ..state })
    }

    /// The document's state; costs a walk over the revision tree.
    pub(crate) fn state(&self, number: DocumentNumber) -> Result<DocumentState> {
        let mut rest = self.tree;
        let tree = RevisionTree::decode(&mut rest, |bytes| {
            let mut reader = Reader::new(bytes);
            let (position, length) = match reader.varint()? {
                0 => (self.position, self.length),
                position => (LogPosition::from_u64(position), reader.varint()? as u32),
            };
            let logged_ancestors = reader.varint()? as u32;
            *bytes = reader.rest();
            Ok(StoredRevision { position, length, logged_ancestors })
        })?;
        let id = DocumentId::new(self.id).map_err(|_| damaged(Table::Docs))?;
        Ok(DocumentState {
            number,
            id,
            sequence: self.sequence,
            tree,
            replay_mode: take_replay_mode(rest)?,
            body: None,
        })
    }
}

/// Writes nothing for a document whose records define its state exactly, as most do.
fn put_replay_mode(out: &mut Vec<u8>, replay_mode: ReplayMode) {
    match replay_mode {
        ReplayMode::AnyOrder => {}
        ReplayMode::InOrder => put_varint(out, 0),
        ReplayMode::Snapshot(RecordLocation { position, length }) => {
            put_varint(out, position.to_u64());
            put_varint(out, u64::from(length));
        }
    }
}

fn take_replay_mode(bytes: &[u8]) -> Result<ReplayMode> {
    if bytes.is_empty() {
        return Ok(ReplayMode::AnyOrder);
    }
    let mut reader = Reader::new(bytes);
    Ok(match reader.varint()? {
        0 => ReplayMode::InOrder,
        position => ReplayMode::Snapshot(RecordLocation {
            position: LogPosition::from_u64(position),
            length: reader.varint()? as u32,
        }),
    })
}

/// A row of `local`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRow {
    pub(crate) generation: u64,
    /// Deletions are stored: without them, a rebuild would restore older records of the log.
    pub(crate) deleted: bool,
    pub(crate) position: LogPosition,
    pub(crate) length: u32,
}

impl LocalRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(16);
        put_varint(&mut value, self.generation);
        value.push(u8::from(self.deleted));
        put_varint(&mut value, self.position.to_u64());
        put_varint(&mut value, u64::from(self.length));
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        Ok(LocalRow {
            generation: reader.varint()?,
            deleted: reader.byte()? != 0,
            position: LogPosition::from_u64(reader.varint()?),
            length: reader.varint()? as u32,
        })
    }
}

/// A row of `contents`: where the log has the content of attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentRow(pub(crate) RecordLocation);

impl ContentRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(16);
        put_varint(&mut value, self.0.position.to_u64());
        put_varint(&mut value, u64::from(self.0.length));
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value);
        let position = LogPosition::from_u64(reader.varint()?);
        let length = u32::try_from(reader.varint()?).map_err(|_| damaged(Table::Contents))?;
        Ok(ContentRow(RecordLocation { position, length }))
    }

    /// The digest that is the key of a row.
    pub(crate) fn digest(key: &[u8]) -> Result<Digest> {
        key.try_into().map(Digest::from_stored).map_err(|_| damaged(Table::Contents))
    }
}

/// The bounds of the rows of `postings` between two values of a path.
pub(crate) fn posting_bounds(path: PathNumber, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let from = match lower {
        Bound::Unbounded => index::first_posting(path, FIRST_VALUE),
        Bound::Included(key) | Bound::Excluded(key) => index::first_posting(path, key),
    };
    let to = match upper {
        Bound::Unbounded => index::after_postings(path, &[]),
        Bound::Excluded(key) => index::first_posting(path, key),
        Bound::Included(key) => index::after_postings(path, key),
    };
    (from, to)
}

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_record(revision: &crate::revision::Revision, body: &[u8]) -> crate::log::Payload {
    let record = record::RevisionRecord {
        deleted: false,
        relocated: false,
        pruned: record::PrunedAncestors::Nothing,
        origin: None,
        number: FIRST_NUMBER,
        sequence: Sequence(1),
        id: "solaris",
        author: None,
        path: smallvec::smallvec![*revision],
        predecessor: None,
        body: crate::compression::StoredBody::Plain(body.into()),
    };
    example_payload(&record::Record::Revision(record))
}

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_content_record(digest: Digest, bytes: &[u8]) -> crate::log::Payload {
    example_payload(&record::Record::Content { removed: false, relocated: false, digest, bytes })
}

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_id_row(
    number: DocumentNumber,
    sequence: Sequence,
    position: LogPosition,
    length: u32,
) -> Vec<u8> {
    IdRow { number, sequence, deleted: false, position, length }.encode()
}

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_dictionary_record(bytes: &[u8]) -> crate::log::Payload {
    example_payload(&record::Record::Dictionary { number: 0, bytes })
}

#[cfg(test)]
fn example_payload(record: &record::Record<'_>) -> crate::log::Payload {
    let mut payload = crate::log::Payload::default();
    record.encode(&mut payload);
    payload
}
