//! Revision ids: the generation of an edit and a hash of its content.
//!
//! A hash has 16 bytes, printed as 32 hexadecimal digits. CouchDB accepts any text in place of the digits, and test
//! suites use that (`1-a`), so a text of 1 to 12 printable ASCII characters is stored as its bytes padded with zeros.
//! The byte order of the two kinds is the order in which CouchDB compares them. The few hexadecimal hashes that equal
//! such a padded text (one in 10¹⁴ at random) are rejected by the parser and never generated, so every text denotes
//! exactly one revision and prints unchanged.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

pub(super) const HASH_BYTES: usize = 16;
const TEXT_BYTES_MAX: usize = 12;
/// Larger generations are rejected in input, so that an edit of an accepted revision always has a generation.
const GENERATION_MAX: u32 = u32::MAX / 2;
const EDIT_CONTEXT: &[u8; 11] = b"stemma edit";
/// Longer content is replaced by its BLAKE3 hash, so that it need not be buffered until its parent is known, nor hashed
/// under the writer lock.
const CONTENT_BYTES_MAX: usize = 16 << 10;

pub(super) type Hash = [u8; HASH_BYTES];

/// The id of one edit of a document, such as `2-7051cbe5c8faecd085a3fa619e6e6337`: its generation, then its hash.
///
/// Revisions are ordered by generation, then hash, so that all replicas order two edits of the same parent alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    generation: u32,
    hash: Hash,
}

/// The canonical bytes of a document over which its revision is hashed, or their hash if they are long.
#[derive(Debug)]
pub(crate) struct RevisionContent {
    bytes: Vec<u8>,
    is_digest: bool,
}

/// Builds a [`RevisionContent`] in bounded memory.
pub(crate) struct RevisionContentWriter {
    /// The bytes that are not hashed yet.
    bytes: Vec<u8>,
    hasher: Option<Box<blake3::Hasher>>,
}

impl RevisionContentWriter {
    pub(crate) fn new() -> Self {
        RevisionContentWriter { bytes: Vec::with_capacity(512), hasher: None }
    }

    /// The buffer that short writes are pushed to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.bytes.len() > CONTENT_BYTES_MAX {
            self.hash();
        }
        &mut self.bytes
    }

    /// Writes any number of bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        match bytes.len() <= CONTENT_BYTES_MAX {
            true => self.buffer().extend_from_slice(bytes),
            false => drop(self.hash().update(bytes)),
        }
    }

    /// Hashes and clears the buffered bytes.
    fn hash(&mut self) -> &mut blake3::Hasher {
        let hasher = self.hasher.get_or_insert_default();
        hasher.update(&self.bytes);
        self.bytes.clear();
        hasher
    }

    pub(crate) fn finish(mut self) -> RevisionContent {
        if self.hasher.is_none() && self.bytes.len() <= CONTENT_BYTES_MAX {
            return RevisionContent { bytes: self.bytes, is_digest: false };
        }
        RevisionContent { bytes: self.hash().finalize().as_bytes().to_vec(), is_digest: true }
    }
}

impl Revision {
    /// The size of a stored revision in bytes.
    pub(crate) const STORED_BYTES: usize = 4 + HASH_BYTES;

    /// The revision of an edit of `parent` (`None` for a new document) with this `content`; `deleted` marks a deletion.
    /// The same edit has the same revision on every replica.
    ///
    /// Costs one pass of BLAKE3 over the content and no allocation.
    pub fn of_edit(parent: Option<&Revision>, deleted: bool, content: &[u8]) -> Revision {
        match content.len() <= CONTENT_BYTES_MAX {
            true => Self::hashed(parent, deleted, content, false),
            false => Self::hashed(parent, deleted, blake3::hash(content).as_bytes(), true),
        }
    }

    /// As [`Revision::of_edit`], for content that was written by a [`RevisionContentWriter`].
    pub(crate) fn of_content(parent: Option<&Revision>, deleted: bool, content: &RevisionContent) -> Revision {
        Self::hashed(parent, deleted, &content.bytes, content.is_digest)
    }

    fn hashed(parent: Option<&Revision>, deleted: bool, content: &[u8], is_digest: bool) -> Revision {
        let (generation, parent_hash) = match parent {
            Some(parent) => (parent.generation.saturating_add(1), parent.hash),
            None => (1, [0; HASH_BYTES]),
        };
        // Everything but the content goes into the hash key, so that the input need not be concatenated.
        let mut key = [0u8; 32];
        key[0..4].copy_from_slice(&generation.to_be_bytes());
        key[4] = u8::from(deleted) | u8::from(is_digest) << 1;
        key[5..16].copy_from_slice(EDIT_CONTEXT);
        key[16..32].copy_from_slice(&parent_hash);
        let digest = blake3::keyed_hash(&key, content);
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(&digest.as_bytes()[..HASH_BYTES]);
        if short_text(&hash).is_some() {
            hash[HASH_BYTES - 1] = 1;
        }
        Revision { generation, hash }
    }

    /// The number of edits that led to this revision, itself included; at least 1.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The hash of the revision.
    pub const fn hash(&self) -> &[u8; 16] {
        &self.hash
    }

    /// A revision with a generation and a hash that are known to be valid.
    pub(super) const fn from_parts(generation: u32, hash: Hash) -> Self {
        debug_assert!(generation > 0, "the generation of a revision is at least 1");
        Revision { generation, hash }
    }

    /// The revision with a stored generation and hash.
    ///
    /// # Errors
    /// `Corrupt` if the generation is zero.
    pub(crate) fn from_stored(generation: u32, hash: Hash) -> Result<Self> {
        let mut bytes = [0; Self::STORED_BYTES];
        bytes[..4].copy_from_slice(&generation.to_be_bytes());
        bytes[4..].copy_from_slice(&hash);
        Self::from_bytes(&bytes)
    }

    /// The fixed-size stored form: the generation, big-endian, then the hash. Its byte order is the order of revisions.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn to_bytes(self) -> [u8; Self::STORED_BYTES] {
        let mut bytes = [0; Self::STORED_BYTES];
        bytes[..4].copy_from_slice(&self.generation.to_be_bytes());
        bytes[4..].copy_from_slice(&self.hash);
        bytes
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if the generation is zero.
    pub(crate) fn from_bytes(bytes: &[u8; Self::STORED_BYTES]) -> Result<Self> {
        let [a, b, c, d, hash @ ..] = *bytes;
        match u32::from_be_bytes([a, b, c, d]) {
            0 => Err(Error::corrupt("a stored revision has generation 0")),
            generation => Ok(Revision { generation, hash }),
        }
    }
}

/// The text that is stored in place of a hash, if these bytes are a padded text.
fn short_text(hash: &Hash) -> Option<&str> {
    let length = hash.iter().position(|&byte| byte == 0)?;
    let (text, padding) = hash.split_at(length);
    let is_text = (1..=TEXT_BYTES_MAX).contains(&length)
        && text.iter().all(u8::is_ascii_graphic)
        && padding.iter().all(|&byte| byte == 0);
    if is_text { str::from_utf8(text).ok() } else { None }
}

fn parse_hash(text: &str) -> Option<Hash> {
    let bytes = text.as_bytes();
    let mut hash = [0; HASH_BYTES];
    if bytes.len() == 2 * HASH_BYTES {
        // Without a branch for each digit, which would be guessed wrong half of the time.
        let mut digits_or = 0;
        for (byte, digits) in hash.iter_mut().zip(bytes.as_chunks::<2>().0) {
            let [high, low] = digits.map(|digit| HEX_DIGITS[usize::from(digit)]);
            *byte = high << 4 | low & 15;
            digits_or |= high | low;
        }
        return (digits_or != NO_DIGIT && short_text(&hash).is_none()).then_some(hash);
    }
    hash.get_mut(..bytes.len())?.copy_from_slice(bytes);
    short_text(&hash).map(|_| hash)
}

/// The mark of a character that is no digit; all digits are below 16.
const NO_DIGIT: u8 = 0xFF;

/// The value of each hexadecimal digit.
const HEX_DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value as usize] as usize] = value;
        digits[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    digits
};

fn parse_generation(text: &str) -> Option<u32> {
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&generation| generation <= GENERATION_MAX)
}

impl FromStr for Revision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let reject = |reason: &str| {
            let shown: String = text.chars().take(80).collect();
            Err(Error::invalid(format!("`{}` is not a revision: {reason}", shown.escape_debug()))
                .with_hint("a revision looks like 2-7051cbe5c8faecd085a3fa619e6e6337"))
        };
        let Some((generation, hash)) = text.split_once('-') else {
            return reject("it has no `-`");
        };
        let Some(generation) = parse_generation(generation) else {
            return reject("it does not begin with a generation from 1 to 2147483647");
        };
        match parse_hash(hash) {
            Some(hash) => Ok(Revision { generation, hash }),
            None => reject("its hash is neither 32 hexadecimal digits nor 1 to 12 printable ASCII characters"),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = short_text(&self.hash) {
            return write!(f, "{}-{text}", self.generation);
        }
        let mut digits = [0; 2 * HASH_BYTES];
        for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(self.hash) {
            *pair = [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]);
        }
        let digits = str::from_utf8(&digits).map_err(|_| fmt::Error)?;
        write!(f, "{}-{digits}", self.generation)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision(text: &str) -> Revision {
        text.parse().unwrap()
    }

    #[test]
    fn the_same_edit_has_the_same_revision() {
        let first = Revision::of_edit(None, false, b"{}");
        assert_eq!(first, Revision::of_edit(None, false, b"{}"));
        assert_eq!(first.generation(), 1);
        let second = Revision::of_edit(Some(&first), false, b"{}");
        assert_eq!(second.generation(), 2);
        let others = [
            Revision::of_edit(None, true, b"{}"),
            Revision::of_edit(None, false, b"{ }"),
            Revision::of_edit(Some(&second), false, b"{}"),
        ];
        assert!(others.iter().all(|other| other.hash() != first.hash() && other.hash() != second.hash()));
    }

    /// Existing documents and logs contain these revisions: changing them changes the format.
    #[test]
    fn revision_hashes_are_stable() {
        let first = Revision::of_edit(None, false, b"content");
        assert_eq!(first.to_string(), "1-786a27ab2d0f90430cf78863d193f6f6");
        assert_eq!(Revision::of_edit(Some(&first), true, b"").to_string(), "2-2986e44c16f2cbb88df4338ff3a58221");
        let long = Revision::of_edit(None, false, &[b'x'; CONTENT_BYTES_MAX + 1]);
        assert_eq!(long.to_string(), "1-fdae310ce17638637ebcf949e5eebd5d");
    }

    #[test]
    fn content_hash_does_not_depend_on_write_sizes() {
        let max = CONTENT_BYTES_MAX;
        let write_lengths =
            [&[0][..], &[max], &[max + 1], &[1, max], &[max, 1], &[max - 1, 1], &[7; 6_000], &[3 * max, 5, 2 * max]];
        for lengths in write_lengths {
            let (mut writer, mut whole) = (RevisionContentWriter::new(), Vec::new());
            for (number, length) in lengths.iter().enumerate() {
                let bytes = vec![number as u8; *length];
                match number % 2 {
                    0 => writer.extend(&bytes),
                    _ => writer.buffer().extend_from_slice(&bytes),
                }
                whole.extend(bytes);
            }
            let content = writer.finish();
            assert_eq!(
                Revision::of_content(None, false, &content),
                Revision::of_edit(None, false, &whole),
                "{lengths:?}"
            );
            assert!(content.bytes.capacity() <= 2 * max, "{}", content.bytes.capacity());
        }
    }

    #[test]
    fn long_content_differs_from_content_that_is_its_hash() {
        let long = [b'x'; CONTENT_BYTES_MAX + 1];
        assert_ne!(
            Revision::of_edit(None, false, &long),
            Revision::of_edit(None, false, blake3::hash(&long).as_bytes())
        );
    }

    #[test]
    fn revisions_order_by_generation_then_hash_as_in_couchdb() {
        let ordered =
            ["1-a", "1-ab", "1-b", "2-00000000000000000000000000000000", "2-a", "2-ffffffffffffffffffffffffffffffff"];
        assert!(ordered.iter().map(|text| revision(text)).is_sorted());
        assert!(revision("9-b") < revision("10-a"));
        assert!(revision("1-a") < revision("1-61000000000000000000000000000001"));
    }

    #[test]
    fn malformed_revisions_are_rejected() {
        let long = format!("1-{}", "a".repeat(40));
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-a",
            "0-a",
            "01-a",
            "+1-a",
            "a-1",
            "2147483648-a",
            "99999999999-a",
            "1-ü",
            "1-a b",
            "1-abcdefghijklm",
            "1-7051cbe5c8faecd085a3fa619e6e633g",
            "1-61000000000000000000000000000000",
            &long,
        ] {
            let error = text.parse::<Revision>().unwrap_err();
            assert!(error.message().contains("is not a revision"), "{error:?}");
        }
        assert_eq!(revision("3-7051CBE5C8FAECD085A3FA619E6E6337").to_string(), "3-7051cbe5c8faecd085a3fa619e6e6337");
    }

    proptest! {
        #[test]
        fn text_and_bytes_round_trip(generation in 1..=GENERATION_MAX, hash: [u8; 16], text in "[!-~]{1,12}") {
            for text in [format!("{generation}-{text}"), Revision { generation, hash }.to_string()] {
                let parsed = revision(&text);
                prop_assert_eq!(parsed.to_string(), text);
                prop_assert_eq!(Revision::from_bytes(&parsed.to_bytes()).unwrap(), parsed);
            }
        }

        #[test]
        fn random_text_never_panics(text in ".{0,40}") {
            let _outcome = text.parse::<Revision>();
        }
    }
}
