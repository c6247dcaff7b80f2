//! Continuation tokens: a position in a result, as text that survives a restart.
//!
//! A token refers to no state in the server. It contains a hash of the query it belongs to and the position of the last
//! returned row: its document number, its value and number, or its sort key and id. If the database keeps its past, it
//! also contains the sequence as of which all pages are read. It is opaque but not secret; a checksum detects damage.
//!
//! Layout, before encoding as base64url without padding:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 1, or 2 if there is a sequence |
//! | 8 | hash of selector and sort |
//! | 8 | the sequence, big-endian, if there is one |
//! | 1 | 0: by number; 1: by sort key; 2: by the values of a condition |
//! | rest | the position, see below |
//! | 4 | CRC-32C of everything before, big-endian |
//!
//! The position is one of:
//! - by number: the number (8 bytes, big-endian);
//! - by sort key: the sort key's length (4 bytes, big-endian), the sort key, the id;
//! - by value: the condition's ordinal (1 byte), the number (8 bytes, big-endian), the value's key.

use std::sync::Arc;

use super::sort::{Sort, SortedPosition};
use crate::index::DocumentNumber;
use crate::revision::{DocumentId, Sequence};
use crate::value::Value;
use crate::{Error, Result};

const VERSION: u8 = 1;
const VERSION_WITH_SEQUENCE: u8 = 2;
const BY_NUMBER: u8 = 0;
const BY_SORT_KEY: u8 = 1;
const BY_VALUE: u8 = 2;
/// Longer text cannot be a token: sixteen sort values of 4 KiB and an id of 1 KiB fit.
const TEXT_BYTES_MAX: usize = 100_000;

/// Identifies the query that a token continues by the hash of its selector and sort. Limit and fields may differ from
/// page to page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryHash([u8; 8]);

/// The position of the last returned row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// In order of document numbers.
    Number(DocumentNumber),
    /// In order of the values of one condition, then of document numbers.
    Value {
        /// The condition's ordinal; see [`DrivingCondition`](crate::query::plan::DrivingCondition).
        ordinal: u8,
        key: Arc<[u8]>,
        number: DocumentNumber,
    },
    /// In a sorted order.
    Sorted(SortedPosition),
}

impl QueryHash {
    /// Hashes a selector, as printed, and a sort.
    pub(crate) fn new(selector: &Value, sort: &Sort) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [selector.to_json(), sort.to_value().to_json()] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        let mut hash = [0; 8];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        QueryHash(hash)
    }
}

impl Position {
    /// Encodes the position as a token of a query, whose further pages are read as of `at` if there is one.
    pub(crate) fn to_token(&self, query: QueryHash, at: Option<Sequence>) -> String {
        let mut bytes = vec![if at.is_some() { VERSION_WITH_SEQUENCE } else { VERSION }];
        bytes.extend_from_slice(&query.0);
        if let Some(at) = at {
            bytes.extend_from_slice(&at.get().to_be_bytes());
        }
        match self {
            Position::Number(number) => {
                bytes.push(BY_NUMBER);
                bytes.extend_from_slice(&number.0.to_be_bytes());
            }
            Position::Value { ordinal, key, number } => {
                bytes.extend_from_slice(&[BY_VALUE, *ordinal]);
                bytes.extend_from_slice(&number.0.to_be_bytes());
                bytes.extend_from_slice(key);
            }
            Position::Sorted(SortedPosition { key, id }) => {
                bytes.push(BY_SORT_KEY);
                bytes.extend_from_slice(&(key.len() as u32).to_be_bytes());
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(id.as_str().as_bytes());
            }
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        to_base64url(&bytes)
    }

    /// Decodes a token and checks that it belongs to the query.
    pub(crate) fn of_token(token: &str, query: QueryHash) -> Result<Self> {
        let Token { hash, position, .. } = Token::decode(token)?;
        if hash != query {
            return Err(Error::invalid("the continuation token belongs to another query")
                .with_hint("continue with the same selector and sort, or start from the beginning without a token"));
        }
        Ok(position)
    }
}

/// Returns the sequence as of which the page of a token is read, if it has one. A malformed token has none: reading the
/// page reports it.
pub(crate) fn sequence_of(token: &str) -> Option<Sequence> {
    Token::decode(token).ok()?.at
}

/// A decoded token.
struct Token {
    hash: QueryHash,
    at: Option<Sequence>,
    position: Position,
}

impl Token {
    fn decode(token: &str) -> Result<Self> {
        let bytes = if token.len() <= TEXT_BYTES_MAX { from_base64url(token) } else { None };
        let bytes = bytes.ok_or_else(damaged)?;
        let (bytes, checksum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
        if crc32c::crc32c(bytes) != u32::from_be_bytes(*checksum) {
            return Err(damaged());
        }
        let (version, bytes) = bytes.split_first().ok_or_else(damaged)?;
        if ![VERSION, VERSION_WITH_SEQUENCE].contains(version) {
            return Err(Error::invalid(format!(
                "the continuation token has version {version}, which this version does not support"
            ))
            .with_hint("it was made by another version of Stemma; start the query from its beginning"));
        }
        let (hash, mut bytes) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
        let mut at = None;
        if *version == VERSION_WITH_SEQUENCE {
            let (sequence, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
            (at, bytes) = (Some(Sequence::new(u64::from_be_bytes(*sequence))), rest);
        }
        Ok(Token { hash: QueryHash(*hash), at, position: position(bytes).ok_or_else(damaged)? })
    }
}

fn position(bytes: &[u8]) -> Option<Position> {
    let (kind, bytes) = bytes.split_first()?;
    match *kind {
        BY_NUMBER => Some(Position::Number(DocumentNumber(u64::from_be_bytes(bytes.try_into().ok()?)))),
        BY_VALUE => {
            let (ordinal, bytes) = bytes.split_first()?;
            let (number, key) = bytes.split_first_chunk::<8>()?;
            let number = DocumentNumber(u64::from_be_bytes(*number));
            Some(Position::Value { ordinal: *ordinal, key: key.into(), number })
        }
        BY_SORT_KEY => {
            let (length, bytes) = bytes.split_first_chunk::<4>()?;
            let (key, id) = bytes.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            let id = DocumentId::new(std::str::from_utf8(id).ok()?).ok()?;
            Some(Position::Sorted(SortedPosition { key: key.into(), id }))
        }
        _ => None,
    }
}

fn damaged() -> Error {
    Error::invalid("the continuation token is damaged")
        .with_hint("pass it exactly as it was returned, or start the query from its beginning")
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(in crate::query) fn to_base64url(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for i in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]));
        }
    }
    text
}

pub(in crate::query) fn from_base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for (i, symbol) in group.iter().enumerate() {
            bits |= u32::from(symbol_value(*symbol)?) << (18 - 6 * i);
        }
        let count = group.len().checked_sub(1).filter(|count| *count > 0)?;
        let [_, first, second, third] = bits.to_be_bytes();
        let group = [first, second, third];
        if group[count..].iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&group[..count]);
    }
    Some(bytes)
}

fn symbol_value(symbol: u8) -> Option<u8> {
    Some(match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}
