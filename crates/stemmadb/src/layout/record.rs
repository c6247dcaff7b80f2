//! What one transaction's frame carries: the records of the log.
//!
//! Layout of a record: CRC32C of all that follows (4 bytes, big-endian), length of what follows the length (varint), kind (1 byte), then
//! by kind. Varints are little groups of seven bits, lowest first. A record stands alone: it is read and verified by position and length,
//! without its frame.
//!
//! | kind | fields |
//! |---|---|
//! | 1 revision | flags (1), the `revs_limit` that made ancestors forgotten if they say that one did, document number, sequence, id length, id, generation, hash (16), ancestor count, ancestor hashes (16 each, newest first), packed body |
//! | 2 local | flags (1), generation, id length, id, packed body |
//! | 3 shape | shape number, name count, then length and bytes of each name; while they are few, all are written again into each segment |
//! | 4 settings | the database's settings as JSON |
//! | 5 leaves | document number, leaf count, then generation and hash (16) of each: no older record makes another leaf |
//! | 6 statement | document number, then its row as the tree has it (see `layout`): older records count for nothing |

use smallvec::SmallVec;

use crate::index::DocumentNumber;
use crate::log::Frame;
use crate::memtable::RecordLocation;
use crate::revision::{Revision, Sequence};
use crate::varint;
use crate::{Error, Result};

/// A record as read back; borrowed from the frame or the buffer it was read into.
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
    /// The leaves a document had here: whatever older records say, there are no others. Older versions wrote it, where a statement is written
    /// now.
    Leaves { number: DocumentNumber, leaves: Vec<Revision> },
    /// What is known of a document here, as its row in the tree has it, with the places of its leaves' records. Whatever older records say
    /// counts for nothing. A place in segment 0 is so many bytes before this record.
    Statement { number: DocumentNumber, row: &'a [u8] },
}

/// What a write made forgotten, as its record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// The record was written by a version that did not say.
    Unsaid,
    /// Nothing.
    Nothing,
    /// Ancestors that were so many edits or more older than every leaf that descends from them.
    Beyond(usize),
}

/// One revision of one document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RevisionRecord<'a> {
    pub(crate) deleted: bool,
    /// Written again by compaction: the same revision and sequence as before, at a new position.
    pub(crate) relocated: bool,
    pub(crate) forgotten: Forgotten,
    pub(crate) number: DocumentNumber,
    pub(crate) sequence: Sequence,
    pub(crate) id: &'a str,
    /// This revision, then its ancestors as far as this record names them, newest first.
    pub(crate) path: SmallVec<[Revision; 2]>,
    pub(crate) body: &'a [u8],
}

const KIND_REVISION: u8 = 1;
const KIND_LOCAL: u8 = 2;
const KIND_SHAPE: u8 = 3;
const KIND_SETTINGS: u8 = 4;
const KIND_LEAVES: u8 = 5;
const KIND_STATEMENT: u8 = 6;

/// No document has this number, or a larger one: there is room to count from every one that there is.
const NUMBER_END: u64 = 1 << 56;
const FLAG_DELETED: u8 = 1;
const FLAG_RELOCATED: u8 = 2;
const FLAG_SAYS_FORGOTTEN: u8 = 4;
const FLAG_FORGETS: u8 = 8;

const CHECKSUM_BYTES: usize = 4;
/// What the length of a record takes if it is from 128 bytes to 16 KiB.
const LENGTH_BYTES_USUAL: usize = 2;

impl Record<'_> {
    /// Appends the record to `out`; returns its length in bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        out.extend([0; CHECKSUM_BYTES + LENGTH_BYTES_USUAL]);
        let fields_start = out.len();
        self.encode_fields(out);
        let fields_end = out.len();
        put_varint(out, (fields_end - fields_start) as u64);
        let length: SmallVec<[u8; 10]> = out.drain(fields_end..).collect();
        // Nearly always as long as was left for it.
        let length_at = start + CHECKSUM_BYTES;
        out.splice(length_at..fields_start, length);
        let checksum = crc32c::crc32c(&out[length_at..]);
        out[start..length_at].copy_from_slice(&checksum.to_be_bytes());
        u32::try_from(out.len() - start).expect("a record is bounded by the document limits")
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
            Record::Statement { number, row } => {
                fields.push(KIND_STATEMENT);
                put_varint(fields, number.0);
                fields.extend_from_slice(row);
            }
        }
    }

    /// Reads the record at the start of `bytes`; returns it with its length. Damage is [`crate::ErrorKind::Corrupt`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Record<'_>, usize)> {
        let mut reader = Reader { bytes, at: CHECKSUM_BYTES };
        let checksum = bytes.first_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
        let length = reader.length()?;
        let end = reader.at + length;
        let covered = bytes.get(CHECKSUM_BYTES..end).ok_or_else(damaged)?;
        if crc32c::crc32c(covered) != u32::from_be_bytes(*checksum) {
            return Err(damaged());
        }
        reader.bytes = &bytes[..end];
        Ok((reader.record()?, end))
    }

    /// How long the record at the start of `bytes` says it is, whether or not it is damaged.
    pub(crate) fn claimed_length(bytes: &[u8]) -> Option<usize> {
        let mut reader = Reader { bytes, at: CHECKSUM_BYTES };
        let length = reader.length().ok()?;
        Some(reader.at + length)
    }
}

/// The records of a frame with their places, in order. Behind one that is damaged, there is none.
pub(crate) fn records<'f>(frame: &Frame<'f>) -> impl Iterator<Item = Result<(RecordLocation, Record<'f>)>> + use<'f> {
    let Frame { position: start, payload, .. } = *frame;
    let mut offset = 0;
    std::iter::from_fn(move || {
        let bytes = payload.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let position = start.advance(offset as u32);
        let decoded = Record::decode(bytes).map_err(|error| error.within(format!("log {position}")));
        offset = decoded.as_ref().map_or(payload.len(), |(_, length)| offset + length);
        Some(decoded.map(|(record, length)| (RecordLocation { position, length: length as u32 }, record)))
    })
}

impl RevisionRecord<'_> {
    fn encode_fields(&self, fields: &mut Vec<u8>) {
        let says = match self.forgotten {
            Forgotten::Unsaid => 0,
            Forgotten::Nothing => FLAG_SAYS_FORGOTTEN,
            Forgotten::Beyond(_) => FLAG_SAYS_FORGOTTEN | FLAG_FORGETS,
        };
        fields.extend([KIND_REVISION, flags(self.deleted, self.relocated) | says]);
        if let Forgotten::Beyond(revs_limit) = self.forgotten {
            put_varint(fields, revs_limit as u64);
        }
        put_varint(fields, self.number.0);
        put_varint(fields, self.sequence.0);
        put_text(fields, self.id);
        let revision = self.path.first().expect("a revision record names its revision");
        put_revision(fields, revision);
        put_varint(fields, self.path.len() as u64 - 1);
        self.path[1..].iter().for_each(|ancestor| fields.extend_from_slice(ancestor.hash()));
        fields.extend_from_slice(self.body);
    }

    /// How many ancestors it names.
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

/// Reads fields one after the other; every read is bounds-checked.
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

    /// A length or count, which can't exceed the bytes left.
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
        match self.byte()? {
            KIND_REVISION => Ok(Record::Revision(self.revision_record()?)),
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
            KIND_STATEMENT => Ok(Record::Statement { number: self.number()?, row: self.rest() }),
            _ => Err(damaged()),
        }
    }

    fn revision_record(&mut self) -> Result<RevisionRecord<'a>> {
        let flags = self.byte()?;
        let forgotten = self.forgotten(flags)?;
        let number = self.number()?;
        let sequence = Sequence(self.varint()?);
        let id = self.text()?;
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
        Ok(RevisionRecord { deleted, relocated, forgotten, number, sequence, id, path, body: self.rest() })
    }

    fn forgotten(&mut self, flags: u8) -> Result<Forgotten> {
        if flags & FLAG_FORGETS != 0 {
            let revs_limit = self.varint()?;
            return usize::try_from(revs_limit).map(Forgotten::Beyond).map_err(|_| damaged());
        }
        Ok(if flags & FLAG_SAYS_FORGOTTEN != 0 { Forgotten::Nothing } else { Forgotten::Unsaid })
    }

    fn hash(&mut self) -> Result<[u8; 16]> {
        Ok(*self.take(16)?.first_chunk().ok_or_else(damaged)?)
    }
}
