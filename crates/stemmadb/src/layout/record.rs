//! Log records: the content of a transaction's frame.
//!
//! Layout of a record: a checksum (4 bytes, big-endian), length of what follows the length (varint), kind (1 byte),
//! then the fields of the kind. Varints are groups of seven bits, least significant first. The checksum is the CRC32C
//! of all that follows it. If the uppermost bit of the kind is set, as in all records written now, it is XORed with the
//! CRC32C of the database's id and the record's position (segment number and offset, 4 bytes each). A record is
//! self-contained: it is read and verified by position and length, without its frame. In an encrypted log, what the log
//! has authenticated (see `log::cipher`) is in place of the checksum.
//!
//! Fields by kind:
//!
//! - 1 revision: flags (1), `revs_limit` if a flag says that ancestors were pruned, the distance to its own sequence
//!   and its commit time if a flag says so, document number, sequence, id length, id, length of the author and author
//!   if a flag says so, generation, hash (16), ancestor count, ancestor hashes (16 each, newest first), packed body
//! - 2 local: flags (1), generation, id length, id, packed body
//! - 3 shape: shape number, name count, then length and bytes of each name; while there are few shapes, each segment
//!   repeats all of them
//! - 4 settings: the database's settings as JSON
//! - 5 leaves: document number, leaf count, then generation and hash (16) of each; older records add no other leaf
//! - 6 snapshot: document number, then its row as in the tree (see `layout`); replaces all older records of the
//!   document
//! - 7 content: flags (1), digest (32), then the content of an attachment; nothing if a flag says that it was removed
//! - 8 revision with a predecessor: position and length of the predecessor's record, then the fields of kind 1
//! - 9 dictionary: method (1), number, then the bytes of a dictionary for compressed bodies; repeated as shapes are
//!
//! A flag of kinds 1 and 8 says that the body is compressed: the method (1), then what `compression` stores.

use smallvec::SmallVec;

use crate::compression::{Dictionary, Method, StoredBody};
use crate::index::DocumentNumber;
use crate::log::{ChecksumSeed, Digest, Frame, LogPosition, OPENED, Payload};
use crate::memtable::RecordLocation;
use crate::revision::{Revision, Sequence};
use crate::varint;
use crate::{Error, Result};

/// A decoded record, borrowed from the frame or buffer it was read from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record<'a> {
    /// One revision of one document.
    Revision(RevisionRecord<'a>),
    /// One version of a `_local` document.
    Local { deleted: bool, relocated: bool, generation: u64, id: &'a str, body: &'a [u8] },
    /// The field names of one shape.
    Shape { number: u32, names: Vec<&'a str> },
    /// The database's settings as JSON.
    Settings(&'a [u8]),
    /// All leaves of a document at this point: older records add no others. Written by older versions, which did not
    /// have snapshot records.
    Leaves { number: DocumentNumber, leaves: Vec<Revision> },
    /// The state of a document at this point: its row as in the tree, with the locations of its leaves' records.
    /// Replaces all older records of the document. A position in segment 0 is relative: it counts back from this
    /// record.
    Snapshot { number: DocumentNumber, row: &'a [u8] },
    /// The content of attachments. It precedes the revisions of its frame, which may refer to it. If it was removed,
    /// no leaf referred to it at this point, and `bytes` is empty.
    Content { removed: bool, relocated: bool, digest: Digest, bytes: &'a [u8] },
    /// A dictionary with which bodies are compressed.
    Dictionary { number: u32, bytes: &'a [u8] },
}

/// The ancestors that a write pruned, according to its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrunedAncestors {
    /// The record was written by a version that did not record it.
    Unrecorded,
    /// None.
    Nothing,
    /// Ancestors that were at least this many edits older than every leaf that descends from them.
    Beyond(usize),
}

/// When a revision was first written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its own sequence. That of the document may be higher, if the document has several leaves.
    pub(crate) sequence: Sequence,
    /// The commit time, in microseconds since 1970; 0 if it was not recorded.
    pub(crate) time_us: u64,
}

/// One revision of one document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RevisionRecord<'a> {
    pub(crate) deleted: bool,
    /// Rewritten by compaction: the same revision and sequence as before, at a new position.
    pub(crate) relocated: bool,
    pub(crate) pruned: PrunedAncestors,
    /// For relocated records: when the revision was first written. `None` if a version relocated it that did not keep
    /// that.
    pub(crate) origin: Option<Origin>,
    pub(crate) number: DocumentNumber,
    pub(crate) sequence: Sequence,
    pub(crate) id: &'a str,
    /// Who wrote the revision, if that was recorded.
    pub(crate) author: Option<&'a str>,
    /// This revision, then the ancestors that this record names, newest first.
    pub(crate) path: SmallVec<[Revision; 2]>,
    /// The record of the leaf that this revision replaced, if it was stored when this record was written. A position
    /// in segment 0 is relative: it counts back from this record. Compaction may have removed the record since.
    pub(crate) predecessor: Option<RecordLocation>,
    pub(crate) body: StoredBody<'a>,
}

const KIND_REVISION: u8 = 1;
const KIND_LOCAL: u8 = 2;
const KIND_SHAPE: u8 = 3;
const KIND_SETTINGS: u8 = 4;
const KIND_LEAVES: u8 = 5;
const KIND_SNAPSHOT: u8 = 6;
const KIND_CONTENT: u8 = 7;
const KIND_SUCCESSOR: u8 = 8;
const KIND_DICTIONARY: u8 = 9;
/// Set in a kind if the checksum holds only at the record's position.
const BOUND: u8 = 0x80;

/// Document numbers are below this bound, so that counting up from any of them can't overflow.
const NUMBER_END: u64 = 1 << 56;
const FLAG_DELETED: u8 = 1;
const FLAG_RELOCATED: u8 = 2;
const FLAG_RECORDS_PRUNING: u8 = 4;
const FLAG_PRUNED: u8 = 8;
const FLAG_COMPRESSED: u8 = 16;
const FLAG_ORIGIN: u8 = 32;
const FLAG_AUTHOR: u8 = 64;

const CHECKSUM_BYTES: usize = 4;
/// The size of a record's length field for lengths from 128 bytes to 16 KiB.
const LENGTH_BYTES_USUAL: usize = 2;

impl Record<'_> {
    /// Adds the record to `payload`; returns its length in bytes.
    pub(crate) fn encode(&self, payload: &mut Payload) -> u32 {
        payload.add(|bytes| self.encode_unplaced(bytes))
    }

    /// Appends the record with a checksum that doesn't depend on its position yet.
    fn encode_unplaced(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; CHECKSUM_BYTES + LENGTH_BYTES_USUAL]);
        let fields_start = out.len();
        self.encode_fields(out);
        out[fields_start] |= BOUND;
        let fields_end = out.len();
        put_varint(out, (fields_end - fields_start) as u64);
        let length: SmallVec<[u8; 10]> = out.drain(fields_end..).collect();
        // The length nearly always has the reserved size.
        let length_at = start + CHECKSUM_BYTES;
        out.splice(length_at..fields_start, length);
        let checksum = crc32c::crc32c(&out[length_at..]);
        out[start..length_at].copy_from_slice(&checksum.to_be_bytes());
    }

    fn encode_fields(&self, fields: &mut Vec<u8>) {
        match self {
            Record::Revision(record) => record.encode_fields(fields),
            Record::Local { deleted, relocated, generation, id, body } => {
                fields.extend([KIND_LOCAL, flags(*deleted, *relocated)]);
                put_varint(fields, *generation);
                put_text(fields, id);
                fields.extend_from_slice(body);
            }
            Record::Shape { number, names } => {
                fields.push(KIND_SHAPE);
                put_varint(fields, u64::from(*number));
                put_varint(fields, names.len() as u64);
                names.iter().for_each(|name| put_text(fields, name));
            }
            Record::Settings(settings) => {
                fields.push(KIND_SETTINGS);
                fields.extend_from_slice(settings);
            }
            Record::Leaves { number, leaves } => {
                fields.push(KIND_LEAVES);
                put_varint(fields, number.0);
                put_varint(fields, leaves.len() as u64);
                leaves.iter().for_each(|leaf| put_revision(fields, leaf));
            }
            Record::Snapshot { number, row } => {
                fields.push(KIND_SNAPSHOT);
                put_varint(fields, number.0);
                fields.extend_from_slice(row);
            }
            Record::Content { removed, relocated, digest, bytes } => {
                fields.extend([KIND_CONTENT, flags(*removed, *relocated)]);
                fields.extend_from_slice(digest.as_bytes());
                fields.extend_from_slice(bytes);
            }
            Record::Dictionary { number, bytes } => {
                fields.extend([KIND_DICTIONARY, Method::ZstdWithDictionary as u8]);
                put_varint(fields, u64::from(*number));
                fields.extend_from_slice(bytes);
            }
        }
    }

    /// Decodes the record at the start of `bytes`, which were read at `position`; returns it with its length.
    ///
    /// # Errors
    /// `Corrupt` if the checksum or the fields are wrong.
    pub(crate) fn decode(bytes: &[u8], position: LogPosition, seed: ChecksumSeed) -> Result<(Record<'_>, usize)> {
        let verified = verify(bytes, position, seed).ok_or_else(damaged);
        let decoded = verified.and_then(|(mut fields, _)| Ok((fields.record()?, fields.bytes.len())));
        decoded.map_err(|error| error.within(format!("log {position}")))
    }

    /// The record at the start of `bytes` with its length, if there is one. `is_bound`: whether its checksum has to
    /// hold only at `position`. Of an encrypted log, only authenticated records are found.
    pub(crate) fn find(
        bytes: &[u8],
        position: LogPosition,
        seed: ChecksumSeed,
        is_bound: bool,
    ) -> Option<(Record<'_>, usize)> {
        if seed.is_opened && !bytes.starts_with(&OPENED) {
            return None;
        }
        let (mut fields, is_found_bound) = verify(bytes, position, seed)?;
        let record = if is_found_bound == is_bound { fields.record().ok() } else { None };
        record.map(|record| (record, fields.bytes.len()))
    }
}

/// The fields of the record at the start of `bytes`, if its checksum is right, and whether that holds only at
/// `position`.
fn verify(bytes: &[u8], position: LogPosition, seed: ChecksumSeed) -> Option<(Reader<'_>, bool)> {
    if seed.is_opened && bytes.starts_with(&OPENED) {
        return authenticated(bytes);
    }
    let mut reader = Reader { bytes, at: CHECKSUM_BYTES };
    let checksum = u32::from_be_bytes(*bytes.first_chunk::<CHECKSUM_BYTES>()?);
    let length = reader.length().ok()?;
    let kind = *bytes.get(reader.at)?;
    // Cheap: a search for records tries every offset.
    if length == 0 || !matches!(kind & !BOUND, KIND_REVISION..=KIND_DICTIONARY) {
        return None;
    }
    let is_bound = kind & BOUND != 0;
    let mask = if is_bound { seed.mask_at(position) } else { 0 };
    let end = reader.at + length;
    reader.bytes = &bytes[..end];
    (crc32c::crc32c(&bytes[CHECKSUM_BYTES..end]) ^ mask == checksum).then_some((reader, is_bound))
}

/// The fields of the record at the start of `bytes`, which the log has decrypted.
fn authenticated(bytes: &[u8]) -> Option<(Reader<'_>, bool)> {
    let mut reader = Reader { bytes, at: OPENED.len() };
    let length = reader.length().ok()?;
    let kind = *bytes.get(reader.at)?;
    reader.bytes = &bytes[..reader.at + length];
    (length > 0).then_some((reader, kind & BOUND != 0))
}

impl<'a> From<&'a Dictionary> for Record<'a> {
    fn from(dictionary: &'a Dictionary) -> Self {
        Record::Dictionary { number: dictionary.number(), bytes: dictionary.bytes() }
    }
}

/// The records of a frame with their locations, in order. Ends after the first damaged one.
pub(crate) fn records<'f>(frame: &Frame<'f>) -> impl Iterator<Item = Result<(RecordLocation, Record<'f>)>> + use<'f> {
    let Frame { position: start, seed, payload, .. } = *frame;
    let mut offset = 0;
    std::iter::from_fn(move || {
        let bytes = payload.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let position = start.advance(offset as u32);
        let decoded = Record::decode(bytes, position, seed);
        offset = decoded.as_ref().map_or(payload.len(), |(_, length)| offset + length);
        Some(decoded.map(|(record, length)| (RecordLocation { position, length: length as u32 }, record)))
    })
}

impl RevisionRecord<'_> {
    fn encode_fields(&self, fields: &mut Vec<u8>) {
        let pruning_flags = match self.pruned {
            PrunedAncestors::Unrecorded => 0,
            PrunedAncestors::Nothing => FLAG_RECORDS_PRUNING,
            PrunedAncestors::Beyond(_) => FLAG_RECORDS_PRUNING | FLAG_PRUNED,
        };
        match self.predecessor {
            None => fields.push(KIND_REVISION),
            Some(RecordLocation { position, length }) => {
                fields.push(KIND_SUCCESSOR);
                put_varint(fields, position.to_u64());
                put_varint(fields, u64::from(length));
            }
        }
        let origin_flag = if self.origin.is_some() { FLAG_ORIGIN } else { 0 };
        let compression_flag = if matches!(self.body, StoredBody::Compressed(_)) { FLAG_COMPRESSED } else { 0 };
        let author_flag = if self.author.is_some() { FLAG_AUTHOR } else { 0 };
        let own_flags = pruning_flags | compression_flag | origin_flag | author_flag;
        fields.push(flags(self.deleted, self.relocated) | own_flags);
        if let PrunedAncestors::Beyond(revs_limit) = self.pruned {
            put_varint(fields, revs_limit as u64);
        }
        if let Some(Origin { sequence, time_us }) = self.origin {
            debug_assert!(sequence <= self.sequence, "no revision is newer than its document");
            put_varint(fields, self.sequence.0 - sequence.0);
            put_varint(fields, time_us);
        }
        put_varint(fields, self.number.0);
        put_varint(fields, self.sequence.0);
        put_text(fields, self.id);
        if let Some(author) = self.author {
            put_text(fields, author);
        }
        let revision = self.path.first().expect("a revision record names its revision");
        put_revision(fields, revision);
        put_varint(fields, self.path.len() as u64 - 1);
        self.path[1..].iter().for_each(|ancestor| fields.extend_from_slice(ancestor.hash()));
        fields.extend_from_slice(self.body.bytes());
    }

    /// The location of the predecessor's record, for this record at `position`.
    pub(crate) fn predecessor_of(&self, position: LogPosition) -> Option<RecordLocation> {
        let RecordLocation { position: stored, length } = self.predecessor?;
        let position = if stored.segment() == 0 { position.back(stored.offset()) } else { stored };
        Some(RecordLocation { position, length })
    }

    /// When the revision was first written, for a record in a frame with this commit time.
    pub(crate) fn origin(&self, frame_time_us: u64) -> Origin {
        self.origin
            .unwrap_or(Origin { sequence: self.sequence, time_us: if self.relocated { 0 } else { frame_time_us } })
    }

    /// The number of ancestors that the record names.
    pub(crate) fn ancestor_count(&self) -> u32 {
        self.path.len() as u32 - 1
    }
}

fn flags(deleted: bool, relocated: bool) -> u8 {
    (if deleted { FLAG_DELETED } else { 0 }) | (if relocated { FLAG_RELOCATED } else { 0 })
}

fn damaged() -> Error {
    Error::corrupt("a record of the log fails its checksum or its form")
}

/// Appends `value` as a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    varint::write(value, out);
}

fn put_revision(out: &mut Vec<u8>, revision: &Revision) {
    put_varint(out, u64::from(revision.generation()));
    out.extend_from_slice(revision.hash());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A cursor over encoded fields; every read is bounds-checked.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut rest = self.bytes.get(self.at..).ok_or_else(damaged)?;
        let value = varint::read(&mut rest)?;
        self.at = self.bytes.len() - rest.len();
        Ok(value)
    }

    pub(crate) fn signed_varint(&mut self) -> Result<i64> {
        let mut rest = self.bytes.get(self.at..).ok_or_else(damaged)?;
        let value = varint::read_signed(&mut rest)?;
        self.at = self.bytes.len() - rest.len();
        Ok(value)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(damaged)?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).ok_or_else(damaged)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(damaged)?;
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| damaged())
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// A length or count, which can't exceed the number of bytes left.
    fn length(&mut self) -> Result<usize> {
        let length = self.varint()?;
        let left = self.bytes.len() - self.at;
        usize::try_from(length).ok().filter(|length| *length <= left).ok_or_else(damaged)
    }

    fn number(&mut self) -> Result<DocumentNumber> {
        let number = self.varint()?;
        if number < NUMBER_END { Ok(DocumentNumber(number)) } else { Err(damaged()) }
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| damaged())
    }

    fn record(&mut self) -> Result<Record<'a>> {
        match self.byte()? & !BOUND {
            KIND_REVISION => Ok(Record::Revision(self.revision_record(None)?)),
            KIND_SUCCESSOR => {
                let position = LogPosition::from_u64(self.varint()?);
                let predecessor = RecordLocation { position, length: self.small()? };
                Ok(Record::Revision(self.revision_record(Some(predecessor))?))
            }
            KIND_LOCAL => {
                let flags = self.byte()?;
                let (deleted, relocated) = (flags & FLAG_DELETED != 0, flags & FLAG_RELOCATED != 0);
                let generation = self.varint()?;
                Ok(Record::Local { deleted, relocated, generation, id: self.text()?, body: self.rest() })
            }
            KIND_SHAPE => {
                let number = self.small()?;
                let count = self.length()?;
                let names = (0..count).map(|_| self.text()).collect::<Result<_>>()?;
                Ok(Record::Shape { number, names })
            }
            KIND_SETTINGS => Ok(Record::Settings(self.rest())),
            KIND_LEAVES => {
                let number = self.number()?;
                let count = self.length()?;
                let leaves = (0..count).map(|_| Revision::from_stored(self.small()?, self.hash()?));
                Ok(Record::Leaves { number, leaves: leaves.collect::<Result<_>>()? })
            }
            KIND_SNAPSHOT => Ok(Record::Snapshot { number: self.number()?, row: self.rest() }),
            KIND_CONTENT => {
                let flags = self.byte()?;
                let (removed, relocated) = (flags & FLAG_DELETED != 0, flags & FLAG_RELOCATED != 0);
                let digest = Digest::from_stored(*self.take(32)?.first_chunk().ok_or_else(damaged)?);
                Ok(Record::Content { removed, relocated, digest, bytes: self.rest() })
            }
            KIND_DICTIONARY => match self.byte()? {
                method if method == Method::ZstdWithDictionary as u8 => {
                    Ok(Record::Dictionary { number: self.small()?, bytes: self.rest() })
                }
                _ => Err(damaged()),
            },
            _ => Err(damaged()),
        }
    }

    fn revision_record(&mut self, predecessor: Option<RecordLocation>) -> Result<RevisionRecord<'a>> {
        let flags = self.byte()?;
        let pruned = self.pruned(flags)?;
        let origin = match flags & FLAG_ORIGIN {
            0 => None,
            _ => Some((self.varint()?, self.varint()?)),
        };
        let number = self.number()?;
        let sequence = Sequence(self.varint()?);
        let origin = match origin {
            Some((distance, time_us)) => {
                let sequence = Sequence(sequence.0.checked_sub(distance).ok_or_else(damaged)?);
                Some(Origin { sequence, time_us })
            }
            None => None,
        };
        let id = self.text()?;
        let author = if flags & FLAG_AUTHOR != 0 { Some(self.text()?) } else { None };
        let generation = self.small()?;
        let hash = self.hash()?;
        let ancestor_count = self.length()?;
        if generation == 0 || ancestor_count >= generation as usize {
            return Err(damaged());
        }
        let mut path = SmallVec::with_capacity(ancestor_count.min(self.bytes.len() / 16) + 1);
        path.push(Revision::from_stored(generation, hash)?);
        for step in 1..=ancestor_count as u32 {
            path.push(Revision::from_stored(generation - step, self.hash()?)?);
        }
        let deleted = flags & FLAG_DELETED != 0;
        let relocated = flags & FLAG_RELOCATED != 0;
        let body = self.rest().into();
        let body = if flags & FLAG_COMPRESSED != 0 { StoredBody::Compressed(body) } else { StoredBody::Plain(body) };
        Ok(RevisionRecord { deleted, relocated, pruned, origin, number, sequence, id, author, path, predecessor, body })
    }

    fn pruned(&mut self, flags: u8) -> Result<PrunedAncestors> {
        if flags & FLAG_PRUNED != 0 {
            let revs_limit = self.varint()?;
            return usize::try_from(revs_limit).map(PrunedAncestors::Beyond).map_err(|_| damaged());
        }
        Ok(if flags & FLAG_RECORDS_PRUNING != 0 { PrunedAncestors::Nothing } else { PrunedAncestors::Unrecorded })
    }

    fn hash(&mut self) -> Result<[u8; 16]> {
        Ok(*self.take(16)?.first_chunk().ok_or_else(damaged)?)
    }
}
