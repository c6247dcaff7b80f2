//! Keys of postings, which sort by path, value and chunk.
//!
//! ```text
//! 1–5 bytes   path number, ordered integer
//! …           the value's key (see value/collate), which is self-delimiting; or presence: 01, code
//! 1–7 bytes   chunk, ordered integer
//! ```
//!
//! The value of such a key is a stored [`Container`](super::Container). The containers of a term are adjacent, and the
//! terms of a path are in collation order.

use super::number::{PathNumber, Window, put_ordered, take_ordered};
use crate::value::Kind;
use crate::value::collate::key;
use crate::{Error, Result};

/// The first byte of a presence key. Sorts before the tag of every value.
const PRESENCE_TAG: u8 = 0x01;
/// Sorts after every first byte of a value's key or of a chunk.
const BEYOND: u8 = 0xff;

/// The type of value that a document has at a path, without entering arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Presence {
    /// At the root only: the document has more terms than are indexed.
    Overflow = 0,
    Null = 1,
    Bool = 2,
    Number = 3,
    String = 4,
    Array = 5,
    Object = 6,
}

impl Presence {
    pub(crate) const ALL: [Presence; 7] = [
        Presence::Overflow,
        Presence::Null,
        Presence::Bool,
        Presence::Number,
        Presence::String,
        Presence::Array,
        Presence::Object,
    ];

    /// The bytes that replace a value's key in a posting key.
    pub(crate) const fn key(self) -> [u8; 2] {
        [PRESENCE_TAG, self as u8]
    }

    /// The presence that these bytes of a posting key represent, if they are not a value's key.
    #[cfg(test)]
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        match key {
            [PRESENCE_TAG, code] => Self::ALL.get(usize::from(*code)).copied(),
            _ => None,
        }
    }
}

impl From<Kind> for Presence {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Null => Presence::Null,
            Kind::Bool => Presence::Bool,
            Kind::Number => Presence::Number,
            Kind::String => Presence::String,
            Kind::Array => Presence::Array,
            Kind::Object => Presence::Object,
        }
    }
}

/// The parts of a posting key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PostingKey<'a> {
    pub(crate) path: PathNumber,
    /// The value's key, or [`Presence::key`].
    pub(crate) value: &'a [u8],
    pub(crate) chunk: u64,
}

impl<'a> PostingKey<'a> {
    /// Appends the encoded key.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(
            matches!(self.value, [PRESENCE_TAG, _])
                || key::length(self.value).is_ok_and(|length| length == self.value.len()),
            "the value of a posting key is self-delimiting"
        );
        put_ordered(u64::from(self.path.0), out);
        out.extend_from_slice(self.value);
        put_ordered(self.chunk, out);
    }

    /// Decodes a posting key.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a posting key.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut rest = bytes;
        let path = u32::try_from(take_ordered(&mut rest)?).map_err(|_| damaged())?;
        let length = match *rest {
            [PRESENCE_TAG, code, ..] if usize::from(code) < Presence::ALL.len() => 2,
            _ => key::length(rest)?,
        };
        let (value, mut rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let chunk = take_ordered(&mut rest)?;
        if rest.is_empty() { Ok(PostingKey { path: PathNumber(path), value, chunk }) } else { Err(damaged()) }
    }
}

/// The key of the container with the documents of one chunk that have one term.
pub(crate) fn posting_key(path: PathNumber, value: &[u8], chunk: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 12);
    PostingKey { path, value, chunk }.encode(&mut out);
    out
}

/// An inclusive lower bound of the keys of this term and of those with greater values. `value` may be a prefix of a
/// value's key.
pub(crate) fn first_posting(path: PathNumber, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 5);
    put_ordered(u64::from(path.0), &mut out);
    out.extend_from_slice(value);
    out
}

/// An upper bound of the keys of this term, below those of greater values. With an empty `value`: an upper bound of all
/// keys of the path.
pub(crate) fn after_postings(path: PathNumber, value: &[u8]) -> Vec<u8> {
    let mut out = first_posting(path, value);
    out.push(BEYOND);
    out
}

/// An inclusive lower bound of the keys of this term in a window. `value` is a complete key.
pub(crate) fn first_of_window(path: PathNumber, value: &[u8], window: Window) -> Vec<u8> {
    if window.start == 0 { first_posting(path, value) } else { posting_key(path, value, window.start) }
}

/// An upper bound of the keys of this term in a window, not above the first key after the window. `value` is a complete
/// key.
pub(crate) fn after_window(path: PathNumber, value: &[u8], window: Window) -> Vec<u8> {
    if window.end == u64::MAX { after_postings(path, value) } else { posting_key(path, value, window.end) }
}

fn damaged() -> Error {
    Error::corrupt("an index key is damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::collate::compare;
    use crate::value::{Number, Value};

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|number| Value::Number(Number::from(number))),
            "[a\\x00\\x01\u{ff}]{0,4}".prop_map(Value::String),
        ]
    }

    fn key_of(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        key::encode(value, &mut out);
        out
    }

    proptest! {
        #[test]
        fn keys_round_trip_and_sort_by_path_value_and_chunk(
            a in (any::<u32>(), scalar(), 0..1u64 << 48),
            b in (any::<u32>(), scalar(), 0..1u64 << 48),
            same_path: bool,
        ) {
            let b = (if same_path { a.0 } else { b.0 }, b.1, b.2);
            let [x, y] = [&a, &b].map(|(path, value, chunk)| posting_key(PathNumber(*path), &key_of(value), *chunk));
            let expected = a.0.cmp(&b.0).then_with(|| compare(&a.1, &b.1)).then(a.2.cmp(&b.2));
            prop_assert_eq!(x.cmp(&y), expected);
            let value = key_of(&a.1);
            let parts = PostingKey { path: PathNumber(a.0), value: &value, chunk: a.2 };
            prop_assert_eq!(PostingKey::decode(&x).unwrap(), parts);
            // The bounds contain exactly this term's keys.
            let within = first_posting(parts.path, &value)..after_postings(parts.path, &value);
            prop_assert!(within.contains(&x));
            prop_assert_eq!(within.contains(&y), a.0 == b.0 && compare(&a.1, &b.1).is_eq());
            let path = first_posting(parts.path, &[])..after_postings(parts.path, &[]);
            prop_assert_eq!(path.contains(&y), a.0 == b.0);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(key) = PostingKey::decode(&bytes) {
                prop_assert_eq!(posting_key(key.path, key.value, key.chunk), bytes);
            }
        }
    }

    #[test]
    fn presence_keys_sort_before_values_and_round_trip() {
        for presence in Presence::ALL {
            let bytes = posting_key(PathNumber(300), &presence.key(), 7);
            let key = PostingKey::decode(&bytes).unwrap();
            assert_eq!((key.path.0, key.chunk, Presence::of_key(key.value)), (300, 7, Some(presence)));
            assert!(bytes < posting_key(PathNumber(300), &key_of(&Value::Null), 0));
        }
        assert!(PostingKey::decode(&[0, PRESENCE_TAG, 7, 0]).is_err());
        assert_eq!(Presence::from(Kind::Object) as u8, 6);
    }
}
