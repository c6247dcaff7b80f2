//! Encryption of segments: every record and every frame header alone, so that each is read by its position.
//!
//! An encrypted record begins with the *session* (8 bytes), a random number of the opening of the log that wrote it,
//! and its authentication tag (16 bytes), instead of a checksum. The length follows as it is, the rest encrypted. What
//! readers get, the *opened* record, has [`OPENED`] in place of session and tag.
//!
//! The data key follows from the segment's number and the session, and the nonce from the offset in the segment.
//!
//! Invariants:
//! - A log encrypts once at each offset while it is open: positions are assigned once, and the header of the first
//!   frame of a batch is encrypted when the batch is taken for writing, with its final durable offset. After a crash,
//!   other frames may get the same offsets, with another session.
//! - Everything in a frame is of one session.

use std::sync::Arc;

use super::frame::{FrameFormat, FrameHeader};
use super::payload::{CHECKSUM_BYTES, Payload};
use crate::cipher::{DataKey, Keyring, Place, Purpose, SALT_BYTES, TAG_BYTES};
use crate::sync::RwLock;
use crate::{Result, varint};

/// Session and tag of a record.
pub(super) const PREFIX_BYTES: usize = SESSION_BYTES + TAG_BYTES;

const SESSION_BYTES: usize = 8;

/// The beginning of a record that was decrypted. No record of a log that is not encrypted begins so: its length would
/// be malformed.
pub(crate) const OPENED: [u8; PREFIX_BYTES] = [0xff; PREFIX_BYTES];

/// Kinds of places in a segment.
const RECORD: u8 = 1;
const HEADER: u8 = 2;

/// More data keys of one segment are not kept.
const KEYS_MAX: usize = 64;

/// A random number of one opening of a log.
pub(super) type Session = u64;

/// Reads what is encrypted in one segment.
pub(super) struct SegmentCipher {
    keyring: Arc<Keyring>,
    /// The number of the database key.
    key: u32,
    segment: u32,
    /// The data keys that were needed so far.
    keys: RwLock<Vec<(Session, Arc<DataKey>)>>,
}

/// Encrypts what one opening of a log writes to one segment.
#[derive(Clone)]
pub(super) struct SegmentWriter {
    session: Session,
    key: Arc<DataKey>,
}

impl std::fmt::Debug for SegmentWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentWriter")
    }
}

/// A new session.
pub(super) fn new_session(keyring: &Keyring) -> Result<Session> {
    let salt = keyring.new_salt()?;
    let (session, _) = salt.split_at(SESSION_BYTES);
    Ok(read_session(session).unwrap_or_default())
}

fn read_session(bytes: &[u8]) -> Option<Session> {
    bytes.first_chunk().map(|bytes| Session::from_be_bytes(*bytes))
}

/// A record as it is stored.
struct RecordParts<'b> {
    session: Session,
    tag: [u8; TAG_BYTES],
    /// Its length as it is stored, which the tag covers.
    length: &'b [u8],
    /// The encrypted bytes.
    content: &'b mut [u8],
    byte_count: usize,
}

impl<'b> RecordParts<'b> {
    /// The parts of the record at the start of `bytes`.
    fn of(bytes: &'b mut [u8]) -> Option<Self> {
        let (session, tag) = (read_session(bytes)?, *bytes.get(SESSION_BYTES..)?.first_chunk()?);
        let (start, byte_count) = extent(bytes)?;
        let (head, content) = bytes[..byte_count].split_at_mut(start);
        Some(RecordParts { session, tag, length: &head[PREFIX_BYTES..], content, byte_count })
    }
}

fn data_key(keyring: &Keyring, key: u32, segment: u32, session: Session) -> Result<DataKey> {
    let mut salt = [0; SALT_BYTES];
    salt[..SESSION_BYTES].copy_from_slice(&session.to_be_bytes());
    keyring.data_key(key, Purpose::Log, [u64::from(segment), 0], &salt)
}

impl SegmentWriter {
    /// Encrypts for segment `segment` in this format; none if the format is not encrypted.
    pub(super) fn new(
        keyring: Option<&Arc<Keyring>>,
        format: FrameFormat,
        segment: u32,
        session: Session,
    ) -> Result<Option<Self>> {
        let Some(keyring) = keyring.filter(|_| format.is_encrypted()) else { return Ok(None) };
        let key = Arc::new(data_key(keyring, format.key, segment, session)?);
        Ok(Some(SegmentWriter { session, key }))
    }

    /// Encrypts the records that begin at `starts` of a payload at `offset` of the segment. They have room for session
    /// and tag.
    pub(super) fn seal_payload(&self, payload: &mut [u8], starts: &[u32], offset: u32) {
        for &start in starts {
            let place = Place { kind: RECORD, position: u64::from(offset + start) };
            let record = &mut payload[start as usize..];
            let Some(RecordParts { length, content, .. }) = RecordParts::of(record) else {
                debug_assert!(false, "a record has a prefix and a length");
                continue;
            };
            let tag = self.key.seal(place, length, content);
            record[..SESSION_BYTES].copy_from_slice(&self.session.to_be_bytes());
            record[SESSION_BYTES..PREFIX_BYTES].copy_from_slice(&tag);
        }
    }

    /// The header with session and tag, for the frame at `offset` of the segment.
    pub(super) fn seal_header(&self, header: &FrameHeader, format: FrameFormat, offset: u32) -> FrameHeader {
        let mut sealed = FrameHeader { session: self.session, ..*header };
        let place = Place { kind: HEADER, position: u64::from(offset) };
        sealed.tag = self.key.seal(place, &format.authenticated(&sealed), &mut []);
        sealed
    }
}

impl SegmentCipher {
    /// For segment `segment` in this format; none if the format is not encrypted, or there are no keys.
    pub(super) fn new(keyring: Option<&Arc<Keyring>>, format: FrameFormat, segment: u32) -> Option<Self> {
        let keyring = keyring.filter(|_| format.is_encrypted())?.clone();
        Some(SegmentCipher { keyring, key: format.key, segment, keys: RwLock::default() })
    }

    /// Calls `open` with the data key of a session, and keeps the key if that succeeds.
    fn with_key(&self, session: Session, open: impl FnOnce(&DataKey) -> bool) -> bool {
        let known = self.keys.read().iter().find(|(known, _)| *known == session).map(|(_, key)| key.clone());
        if let Some(key) = known {
            return open(&key);
        }
        let Ok(key) = data_key(&self.keyring, self.key, self.segment, session) else { return false };
        let is_open = open(&key);
        if is_open {
            let mut keys = self.keys.write();
            if keys.len() >= KEYS_MAX {
                keys.remove(0);
            }
            keys.push((session, Arc::new(key)));
        }
        is_open
    }

    /// Decrypts the record at the start of `bytes`, which is at `offset` of the segment; returns its length. `None` if
    /// it is not what was written there, or, if a session is given, not in that session.
    pub(super) fn open_record(&self, bytes: &mut [u8], offset: u32, expected: Option<Session>) -> Option<usize> {
        let RecordParts { session, tag, length, content, byte_count } = RecordParts::of(bytes)?;
        if expected.is_some_and(|expected| expected != session) {
            return None;
        }
        let place = Place { kind: RECORD, position: u64::from(offset) };
        if !self.with_key(session, |key| key.open(place, length, &tag, content)) {
            return None;
        }
        bytes[..PREFIX_BYTES].copy_from_slice(&OPENED);
        Some(byte_count)
    }

    /// Decrypts a record of this length at `offset` of the segment; returns whether it is what was written there.
    #[must_use]
    pub(super) fn opens(&self, record: &mut [u8], offset: u32) -> bool {
        self.open_record(record, offset, None) == Some(record.len())
    }

    /// Decrypts records in a range that begins at `offset` of the segment, each given by its start in the range and its
    /// length; returns the offset of the first one that is not what was written there.
    pub(super) fn first_damaged(&self, range: &mut [u8], offset: u32, records: &[(usize, usize)]) -> Option<u32> {
        let mut previous = None;
        let damaged = records.iter().find(|&&(start, length)| {
            // The same record may be read twice.
            if previous.replace((start, length)) == Some((start, length)) {
                return false;
            }
            let record = range.get_mut(start..start + length);
            !record.is_some_and(|record| self.opens(record, offset + start as u32))
        });
        damaged.map(|&(start, _)| offset + start as u32)
    }

    /// Decrypts a payload at `offset` of the segment; returns whether all of it is what was written there in this
    /// session.
    #[must_use]
    pub(super) fn open_payload(&self, payload: &mut [u8], offset: u32, session: Session) -> bool {
        let mut at = 0;
        while at < payload.len() {
            match self.open_record(&mut payload[at..], offset + at as u32, Some(session)) {
                Some(byte_count) => at += byte_count,
                None => return false,
            }
        }
        true
    }

    /// Whether a frame header was written at `offset` of the segment.
    #[must_use]
    pub(super) fn verifies(&self, header: &FrameHeader, format: FrameFormat, offset: u32) -> bool {
        let place = Place { kind: HEADER, position: u64::from(offset) };
        let authenticated = format.authenticated(header);
        self.with_key(header.session, |key| key.open(place, &authenticated, &header.tag, &mut []))
    }
}

/// The session of the record at the start of `bytes`.
pub(super) fn session_of(bytes: &[u8]) -> Option<Session> {
    read_session(bytes)
}

/// The length of the record at the start of `bytes`, if it ends within them.
pub(super) fn length_of(bytes: &[u8]) -> Option<usize> {
    extent(bytes).map(|(_, end)| end)
}

/// Where the encrypted bytes of the record at the start of `bytes` begin and end.
fn extent(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut rest = bytes.get(PREFIX_BYTES..)?;
    let before = rest.len();
    let length = usize::try_from(varint::read(&mut rest).ok()?).ok()?;
    let start = PREFIX_BYTES + before - rest.len();
    let end = start.checked_add(length).filter(|&end| end <= bytes.len())?;
    Some((start, end))
}

/// The content of an opened payload with one record.
pub(super) fn opened_content(payload: &[u8]) -> Option<&[u8]> {
    let mut rest = payload.strip_prefix(&OPENED)?;
    let length = usize::try_from(varint::read(&mut rest).ok()?).ok()?;
    (rest.len() == length).then_some(rest)
}

/// A payload with this content as its only record.
pub(super) fn payload_of(content: &[u8]) -> Payload {
    let mut payload = Payload::encrypted();
    payload.add(|bytes| {
        bytes.resize(bytes.len() + CHECKSUM_BYTES, 0);
        varint::write(content.len() as u64, bytes);
        bytes.extend_from_slice(content);
    });
    payload
}
