//! One edit of a document, named by how many edits led to it and by a hash of what it says.
//!
//! A hash has 16 bytes, written as 32 hexadecimal digits. Other databases accept any text there, and test suites use it
//! (`1-a`), so a text of 1 to 12 printable ASCII bytes is kept as these bytes followed by zeros. This
//! is also the order in which CouchDB compares the two kinds. The few hexadecimal hashes that would read as such a
//! text (one in 10¹⁴ at random) are refused when parsed and avoided when made, so every text has exactly one revision
//! and comes back as it was.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

pub(super) const HASH_BYTES: usize = 16;
const TEXT_BYTES_MAX: usize = 12;
/// Generations beyond this are not accepted from outside, so that an edit of what was accepted always has a number.
const GENERATION_MAX: u32 = u32::MAX / 2;
const EDIT_CONTEXT: &[u8; 11] = b"stemma edit";
/// Of a longer content the BLAKE3 hash stands for it: so nobody keeps it until its parent is known, nor hashes it while others wait.
const CONTENT_BYTES_MAX: usize = 16 << 10;

pub(super) type Hash = [u8; HASH_BYTES];

/// One edit of a document, as in `2-7051cbe5c8faecd085a3fa619e6e6337`: its generation, then its hash.
///
/// Revisions are ordered by generation, then hash: of two edits of the same parent, everybody takes the same one
/// for the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    generation: u32,
    hash: Hash,
}

/// What a document says, as its revision is the hash of: all of it, or its hash if that is much.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    is_digest: bool,
}

/// Writes a [`Content`] down, in bounded memory.
pub(crate) struct ContentWriter {
    /// What is not hashed yet.
    bytes: Vec<u8>,
    hasher: Option<Box<blake3::Hasher>>,
}

impl ContentWriter {
    pub(crate) fn new() -> Self {
        ContentWriter { bytes: Vec::with_capacity(512), hasher: None }
    }

    /// Where the next few bytes are pushed to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.bytes.len() > CONTENT_BYTES_MAX {
            self.hash();
        }
        &mut self.bytes
    }

    /// Writes bytes, however many.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        match bytes.len() <= CONTENT_BYTES_MAX {
            true => self.buffer().extend_from_slice(bytes),
            false => drop(self.hash().update(bytes)),
        }
    }

    /// Hashes what is there already.
    fn hash(&mut self) -> &mut blake3::Hasher {
        let hasher = self.hasher.get_or_insert_default();
        hasher.update(&self.bytes);
        self.bytes.clear();
        hasher
    }

    pub(crate) fn finish(mut self) -> Content {
        if self.hasher.is_none() && self.bytes.len() <= CONTENT_BYTES_MAX {
            return Content { bytes: self.bytes, is_digest: false };
        }
        Content { bytes: self.hash().finalize().as_bytes().to_vec(), is_digest: true }
    }
}

impl Revision {
    /// How many bytes a revision takes.
    pub(crate) const STORED_BYTES: usize = 4 + HASH_BYTES;

    /// The revision of an edit: of `parent` (none for a new document), to a deleted or a living document with this
    /// `content`. The same edit has the same revision, wherever it is made.
    ///
    /// Costs one pass of BLAKE3 over the content, no allocation.
    pub fn of_edit(parent: Option<&Revision>, deleted: bool, content: &[u8]) -> Revision {
        match content.len() <= CONTENT_BYTES_MAX {
            true => Self::hashed(parent, deleted, content, false),
            false => Self::hashed(parent, deleted, blake3::hash(content).as_bytes(), true),
        }
    }

    /// The same of a content that was written down before.
    pub(crate) fn of_content(parent: Option<&Revision>, deleted: bool, content: &Content) -> Revision {
        Self::hashed(parent, deleted, &content.bytes, content.is_digest)
    }

    fn hashed(parent: Option<&Revision>, deleted: bool, content: &[u8], is_digest: bool) -> Revision {
        let (generation, parent_hash) = match parent {
            Some(parent) => (parent.generation.saturating_add(1), parent.hash),
            None => (1, [0; HASH_BYTES]),
        };
        // What an edit is apart from its content goes into the key, so nothing is copied together.
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

    /// How many edits led to it, this one included; at least 1.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Its hash.
    pub const fn hash(&self) -> &[u8; 16] {
        &self.hash
    }

    /// A revision with a hash that was checked when it was stored.
    pub(super) const fn from_parts(generation: u32, hash: Hash) -> Self {
        Revision { generation, hash }
    }

    /// The revision of a generation and a hash that were stored.
    ///
    /// # Errors
    /// `Corrupt` if no revision has them.
    pub(crate) fn from_stored(generation: u32, hash: Hash) -> Result<Self> {
        let mut bytes = [0; Self::STORED_BYTES];
        bytes[..4].copy_from_slice(&generation.to_be_bytes());
        bytes[4..].copy_from_slice(&hash);
        Self::from_bytes(&bytes)
    }

    /// Its fixed-size stored form: the generation, big-endian, then the hash. Ordered as revisions are.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn to_bytes(self) -> [u8; Self::STORED_BYTES] {
        let mut bytes = [0; Self::STORED_BYTES];
        bytes[..4].copy_from_slice(&self.generation.to_be_bytes());
        bytes[4..].copy_from_slice(&self.hash);
        bytes
    }

    /// The revision in its stored form.
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

/// The text that these bytes stand for, if it is a short text and not a hash.
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
        for (byte, digits) in hash.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *byte = hex_digit(digits[0])? << 4 | hex_digit(digits[1])?;
        }
        return short_text(&hash).is_none().then_some(hash);
    }
    hash.get_mut(..bytes.len())?.copy_from_slice(bytes);
    short_text(&hash).map(|_| hash)
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn parse_generation(text: &str) -> Option<u32> {
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&generation| generation <= GENERATION_MAX)
}

impl FromStr for Revision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            let shown: String = text.chars().take(80).collect();
            Err(Error::invalid(format!("`{}` is not a revision: {what}", shown.escape_debug()))
                .with_hint("a revision looks like 2-7051cbe5c8faecd085a3fa619e6e6337"))
        };
        let Some((generation, hash)) = text.split_once('-') else {
            return refuse("it has no `-`");
        };
        let Some(generation) = parse_generation(generation) else {
            return refuse("it does not begin with a generation from 1 to 2147483647");
        };
        match parse_hash(hash) {
            Some(hash) => Ok(Revision { generation, hash }),
            None => refuse("its hash is neither 32 hexadecimal digits nor 1 to 12 printable ASCII characters"),
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

    /// These are in documents and logs that already exist: a change here is a change of format.
    #[test]
    fn revisions_stay_what_they_were() {
        let first = Revision::of_edit(None, false, b"content");
        assert_eq!(first.to_string(), "1-786a27ab2d0f90430cf78863d193f6f6");
        assert_eq!(Revision::of_edit(Some(&first), true, b"").to_string(), "2-2986e44c16f2cbb88df4338ff3a58221");
        let long = Revision::of_edit(None, false, &[b'x'; CONTENT_BYTES_MAX + 1]);
        assert_eq!(long.to_string(), "1-fdae310ce17638637ebcf949e5eebd5d");
    }

    #[test]
    fn content_written_in_pieces_is_the_content() {
        let max = CONTENT_BYTES_MAX;
        let piece_lengths =
            [&[0][..], &[max], &[max + 1], &[1, max], &[max, 1], &[max - 1, 1], &[7; 6_000], &[3 * max, 5, 2 * max]];
        for lengths in piece_lengths {
            let (mut writer, mut whole) = (ContentWriter::new(), Vec::new());
            for (number, length) in lengths.iter().enumerate() {
                let piece = vec![number as u8; *length];
                match number % 2 {
                    0 => writer.extend(&piece),
                    _ => writer.buffer().extend_from_slice(&piece),
                }
                whole.extend(piece);
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
    fn a_content_is_no_other_ones_hash() {
        let long = [b'x'; CONTENT_BYTES_MAX + 1];
        assert_ne!(
            Revision::of_edit(None, false, &long),
            Revision::of_edit(None, false, blake3::hash(&long).as_bytes())
        );
    }

    #[test]
    fn order_is_generation_then_hash_as_couchdb_has_it() {
        let ordered =
            ["1-a", "1-ab", "1-b", "2-00000000000000000000000000000000", "2-a", "2-ffffffffffffffffffffffffffffffff"];
        assert!(ordered.iter().map(|text| revision(text)).is_sorted());
        assert!(revision("9-b") < revision("10-a"));
        assert!(revision("1-a") < revision("1-61000000000000000000000000000001"));
    }

    #[test]
    fn what_is_not_a_revision_is_refused() {
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
        fn text_and_bytes_come_back(generation in 1..=GENERATION_MAX, hash: [u8; 16], text in "[!-~]{1,12}") {
            for text in [format!("{generation}-{text}"), Revision { generation, hash }.to_string()] {
                let parsed = revision(&text);
                prop_assert_eq!(parsed.to_string(), text);
                prop_assert_eq!(Revision::from_bytes(&parsed.to_bytes()).unwrap(), parsed);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _outcome = text.parse::<Revision>();
        }
    }
}
