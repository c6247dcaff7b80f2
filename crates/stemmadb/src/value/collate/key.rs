//! Keys: bytes whose order is the order of values, each of which says itself where it ends.
//!
//! Layout: one tag byte ([`Tag`]), then
//! - number: its place among numbers ([`Number::order`]), 64 bits and 11 bits of excess, cut into groups of seven; a byte
//!   is a group shifted left, its low bit set if any later group is not zero. Small integers take two or three bytes.
//! - string: UTF-8 with `00` as `00 FF`, ended by `00 00`. A string cut at a bound ends in `00 01` and 16 bytes of its
//!   BLAKE3 hash: equal strings have equal keys, and the order against every string within the bound is right.
//! - array: the elements' keys, ended by `00`.
//! - object: for each field the key of its name (a string) and of its value, ended by `00`.
//! - joined: the keys of several values one after the other, each perhaps turned round bit by bit; escaped, ended and cut as a string.
//!
//! Tags below [`Tag::Null`] and the gaps between tags are free for keys that are not of values.

use crate::value::source::{Bounded, Look, Source, certain};
use crate::value::{DEPTH_MAX, Kind, Number, Object, PackedValue, Value};
use crate::{Error, Result};

/// The first byte of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Tag {
    /// `null`, complete.
    Null = 0x10,
    /// `false`, complete.
    False = 0x20,
    /// `true`, complete.
    True = 0x21,
    /// A number follows.
    Number = 0x30,
    /// A string follows.
    String = 0x40,
    /// Elements follow.
    Array = 0x50,
    /// Fields follow.
    Object = 0x60,
    /// Several keys, or what stands in their place, follow as bytes.
    Joined = 0x70,
}

const END: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xFF;
const CUT: u8 = 0x01;
const HASH_BYTES: usize = 16;

/// Groups of seven bits that hold 64 bits of order and 11 of excess, and the bits left over.
const NUMBER_GROUPS: u32 = 11;
const NUMBER_SPARE_BITS: u32 = 7 * NUMBER_GROUPS - 64 - 11;

/// Appends the key of any value.
pub(crate) fn encode(value: &Value, out: &mut Vec<u8>) {
    certain(encode_source(value, out));
}

/// Appends the key of a packed value: the same bytes as of the value itself.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged; `out` then ends in part of a key.
pub(crate) fn encode_packed(value: PackedValue<'_>, out: &mut Vec<u8>) -> Result<()> {
    encode_source(Bounded::from(value), out)
}

fn encode_source<'v, S: Source<'v>>(value: S, out: &mut Vec<u8>) -> Result<(), S::Error> {
    match value.look()? {
        Look::Null => encode_null(out),
        Look::Bool(truth) => encode_bool(truth, out),
        Look::Number(number) => encode_number(number, out),
        Look::String(text) => encode_string(text, out),
        Look::Array(_, elements) => {
            out.push(Tag::Array as u8);
            for element in elements {
                encode_source(element?, out)?;
            }
            out.push(END);
        }
        Look::Object(_, fields) => {
            out.push(Tag::Object as u8);
            for field in fields {
                let (name, value) = field?;
                encode_string(name, out);
                encode_source(value, out)?;
            }
            out.push(END);
        }
    }
    Ok(())
}

/// Appends the key of an array whose elements' keys `elements` appends.
pub(crate) fn encode_array(out: &mut Vec<u8>, elements: impl FnOnce(&mut Vec<u8>)) {
    out.push(Tag::Array as u8);
    elements(out);
    out.push(END);
}

/// Appends the key of an object of which `fields` appends the keys of each name and value.
pub(crate) fn encode_object(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    out.push(Tag::Object as u8);
    fields(out);
    out.push(END);
}

/// Appends the key of `null`.
pub(crate) fn encode_null(out: &mut Vec<u8>) {
    out.push(Tag::Null as u8);
}

/// Appends the key of a truth value.
pub(crate) fn encode_bool(truth: bool, out: &mut Vec<u8>) {
    out.push(if truth { Tag::True } else { Tag::False } as u8);
}

/// Appends the key of a number: the same for `1` and `1.0`.
pub(crate) fn encode_number(number: Number, out: &mut Vec<u8>) {
    let (order, excess) = number.order();
    let mut bits = (u128::from(order) << 11 | u128::from(excess)) << (128 - 75);
    let mut bytes = [0; NUMBER_GROUPS as usize];
    let mut count = 0;
    loop {
        let group = (bits >> 121) as u8;
        bits <<= 7;
        bytes[count] = group << 1 | u8::from(bits != 0);
        count += 1;
        if bits == 0 {
            break;
        }
    }
    out.push(Tag::Number as u8);
    out.extend_from_slice(&bytes[..count]);
}

/// Appends the key of a string.
pub(crate) fn encode_string(text: &str, out: &mut Vec<u8>) {
    out.push(Tag::String as u8);
    push_escaped(text.as_bytes(), out);
    out.extend_from_slice(&[END, END]);
}

/// Appends the key of a string, cut after `bytes_max` bytes (at any byte, so that the order is right); returns whether it was cut.
///
/// The key orders rightly against the key of every string of at most `bytes_max` bytes. Two cut keys are equal exactly
/// if the strings are; if the strings agree in their first `bytes_max` bytes, the order of the keys says nothing else.
pub(crate) fn encode_string_bounded(text: &str, bytes_max: usize, out: &mut Vec<u8>) -> bool {
    if text.len() <= bytes_max {
        encode_string(text, out);
        return false;
    }
    out.push(Tag::String as u8);
    push_escaped(&text.as_bytes()[..bytes_max], out);
    out.extend_from_slice(&[END, CUT]);
    out.extend_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..HASH_BYTES]);
    true
}

/// The longest joined key, but for what marks its end: less than the tree allows, with path and chunk. Short in tests, so that they
/// meet cut ones.
const JOINED_BYTES_MAX: usize = if cfg!(test) { 24 } else { 420 };

/// Appends bytes as one key, in their order; cut with a hash where they are too many. Returns whether they were cut.
///
/// What holds of bounded strings holds of these: equal keys exactly for equal bytes, and cut keys order rightly against others
/// but those that share all that is left of them.
pub(crate) fn encode_joined(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    encode_joined_within(bytes, JOINED_BYTES_MAX, out)
}

/// As [`encode_joined`], cut where it takes more than `bytes_max`.
pub(crate) fn encode_joined_within(bytes: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    push_joined(bytes, out);
    if out.len() - start <= bytes_max {
        out.extend_from_slice(&[END, END]);
        return false;
    }
    out.truncate(start);
    // So many bytes that no escape is divided.
    let mut escaped_bytes = 1;
    let kept = bytes.iter().take_while(|&&byte| {
        escaped_bytes += if byte == 0 { 2 } else { 1 };
        escaped_bytes <= bytes_max
    });
    let kept = kept.count();
    push_joined(&bytes[..kept], out);
    out.extend_from_slice(&[END, CUT]);
    out.extend_from_slice(&blake3::hash(bytes).as_bytes()[..HASH_BYTES]);
    true
}

fn push_joined(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(Tag::Joined as u8);
    push_escaped(bytes, out);
}

/// The bound between the joined keys whose bytes come before `bytes` and the others, cut ones too. None if that is more than a key
/// holds.
pub(crate) fn joined_bound(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bound = Vec::new();
    push_joined(bytes, &mut bound);
    (bound.len() <= JOINED_BYTES_MAX).then_some(bound)
}

/// What every joined key of at most `bytes_max` begins with whose bytes begin as these do, as far as such a key holds them.
pub(crate) fn joined_beginning_within(bytes: &[u8], bytes_max: usize) -> Vec<u8> {
    let mut escaped_bytes = 1;
    let held = bytes.iter().take_while(|&&byte| {
        escaped_bytes += if byte == 0 { 2 } else { 1 };
        escaped_bytes <= bytes_max
    });
    let mut beginning = Vec::new();
    push_joined(&bytes[..held.count()], &mut beginning);
    beginning
}

/// What every joined key begins with whose bytes begin as these do, as far as a key holds them.
pub(crate) fn joined_beginning(bytes: &[u8]) -> Vec<u8> {
    let mut beginning = Vec::new();
    push_joined(&bytes[..bytes.len().min(JOINED_BYTES_MAX / 2 - 1)], &mut beginning);
    beginning
}

/// The bytes that a joined key is of, and whether they were cut.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if `key` is not a joined one.
pub(crate) fn decode_joined(key: &[u8]) -> Result<Text> {
    decode_tagged(&mut &*key, Tag::Joined)
}

/// Appends the key of a string as a language orders it: `order` are the bytes of its place among strings.
pub(crate) fn encode_collated(order: &[u8], out: &mut Vec<u8>) {
    out.push(Tag::String as u8);
    push_escaped(order, out);
    out.extend_from_slice(&[END, END]);
}

fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    // As nearly all are; and many bytes are compared at once.
    if !bytes.contains(&0) {
        return out.extend_from_slice(bytes);
    }
    for (at, piece) in bytes.split(|&byte| byte == 0).enumerate() {
        if at > 0 {
            out.extend_from_slice(&[0, ESCAPED_ZERO]);
        }
        out.extend_from_slice(piece);
    }
}

/// The keys of a kind of value: from the first, inclusive, to the second, exclusive.
pub(crate) fn type_range(kind: Kind) -> (Vec<u8>, Vec<u8>) {
    let (first, last) = match kind {
        Kind::Null => (Tag::Null, Tag::Null),
        Kind::Bool => (Tag::False, Tag::True),
        Kind::Number => (Tag::Number, Tag::Number),
        Kind::String => (Tag::String, Tag::String),
        Kind::Array => (Tag::Array, Tag::Array),
        Kind::Object => (Tag::Object, Tag::Object),
    };
    (vec![first as u8], vec![last as u8 + 1])
}

/// The keys of all strings that begin with `prefix`: from the first, inclusive, to the second, exclusive.
///
/// Of keys cut at a bound, all are found if `prefix` is no longer than the bound.
pub(crate) fn prefix_range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut lower = vec![Tag::String as u8];
    push_escaped(prefix.as_bytes(), &mut lower);
    let mut upper = lower.clone();
    while upper.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = upper.last_mut() {
        *last += 1;
    }
    (lower, upper)
}

/// Whether a key is one of a string that was cut.
pub(crate) fn is_cut(value_key: &[u8]) -> bool {
    if let [_, text @ .., END, END] = value_key
        && !text.contains(&END)
    {
        return false;
    }
    value_key.first() == Some(&(Tag::String as u8)) && decode_string(value_key).is_ok_and(|(text, _)| text.cut)
}

/// Reads the value off the front of `key`, and the number of bytes it takes.
///
/// A number comes back as an integer if it is one in range, since `1` and `1.0` have one key.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are no key of a value, or a string was cut at a bound (see [`decode_string`]).
pub(crate) fn decode(key: &[u8]) -> Result<(Value, usize)> {
    let mut rest = key;
    let value = decode_within(&mut rest, DEPTH_MAX)?;
    Ok((value, key.len() - rest.len()))
}

/// The kind of value that `key` is of, from its first byte.
pub(crate) fn kind_of(key: &[u8]) -> Option<Kind> {
    const TAGS: [(Tag, Kind); 7] = [
        (Tag::Null, Kind::Null),
        (Tag::False, Kind::Bool),
        (Tag::True, Kind::Bool),
        (Tag::Number, Kind::Number),
        (Tag::String, Kind::String),
        (Tag::Array, Kind::Array),
        (Tag::Object, Kind::Object),
    ];
    let first = *key.first()?;
    TAGS.iter().find(|(tag, _)| *tag as u8 == first).map(|(_, kind)| *kind)
}

fn decode_within(rest: &mut &[u8], depth: usize) -> Result<Value> {
    let first = rest.first().copied();
    match kind_of(rest).ok_or_else(malformed)? {
        Kind::String => match decode_text(rest)? {
            Text { bytes, cut: false } => Ok(Value::String(String::from_utf8(bytes).map_err(|_| malformed())?)),
            Text { cut: true, .. } => Err(Error::corrupt("a key that should be whole was cut at a bound")),
        },
        kind => {
            *rest = &rest[1..];
            match kind {
                Kind::Null => Ok(Value::Null),
                Kind::Bool => Ok(Value::Bool(first == Some(Tag::True as u8))),
                Kind::Number => decode_number(rest).map(Value::Number),
                Kind::Array => decode_array(rest, depth.checked_sub(1).ok_or_else(too_deep)?),
                _ => decode_object(rest, depth.checked_sub(1).ok_or_else(too_deep)?),
            }
        }
    }
}

fn decode_number(rest: &mut &[u8]) -> Result<Number> {
    let mut bits = 0u128;
    for group in 0..NUMBER_GROUPS {
        let (&byte, after) = rest.split_first().ok_or_else(malformed)?;
        *rest = after;
        bits |= u128::from(byte >> 1) << (7 * (NUMBER_GROUPS - 1 - group));
        if byte & 1 == 0 {
            if byte == 0 && group > 0 || bits & ((1 << NUMBER_SPARE_BITS) - 1) != 0 {
                break;
            }
            let bits = bits >> NUMBER_SPARE_BITS;
            return Number::from_order((bits >> 11) as u64, bits as u16 & 0x7FF).ok_or_else(malformed);
        }
    }
    Err(malformed())
}

fn decode_array(rest: &mut &[u8], depth: usize) -> Result<Value> {
    let mut elements = Vec::new();
    while rest.first() != Some(&END) {
        elements.push(decode_within(rest, depth)?);
    }
    *rest = &rest[1..];
    Ok(Value::Array(elements))
}

fn decode_object(rest: &mut &[u8], depth: usize) -> Result<Value> {
    let mut object = Object::new();
    while rest.first() != Some(&END) {
        let Value::String(name) = decode_within(rest, 0)? else { return Err(malformed()) };
        let value = decode_within(rest, depth)?;
        if object.insert(name, value).is_some() {
            return Err(malformed());
        }
    }
    *rest = &rest[1..];
    Ok(Value::Object(object))
}

/// What a string's key holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// The string's bytes; of a cut one the first, perhaps ending inside a character.
    pub(crate) bytes: Vec<u8>,
    /// Whether the string was cut at a bound.
    pub(crate) cut: bool,
}

/// Reads the string off the front of `key`, cut or not, and the number of bytes it takes.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if `key` is not one of a string.
pub(crate) fn decode_string(key: &[u8]) -> Result<(Text, usize)> {
    let mut rest = key;
    let text = decode_text(&mut rest)?;
    Ok((text, key.len() - rest.len()))
}

fn decode_text(rest: &mut &[u8]) -> Result<Text> {
    decode_tagged(rest, Tag::String)
}

fn decode_tagged(rest: &mut &[u8], wanted: Tag) -> Result<Text> {
    let [tag, text @ ..] = *rest else { return Err(malformed()) };
    if *tag != wanted as u8 {
        return Err(malformed());
    }
    let mut bytes = Vec::new();
    let mut text = text;
    loop {
        let zero = text.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        bytes.extend_from_slice(&text[..zero]);
        let (&after, left) = text[zero + 1..].split_first().ok_or_else(malformed)?;
        text = left;
        match after {
            ESCAPED_ZERO => bytes.push(0),
            END => {
                *rest = text;
                return Ok(Text { bytes, cut: false });
            }
            CUT => {
                *rest = text.get(HASH_BYTES..).ok_or_else(malformed)?;
                return Ok(Text { bytes, cut: true });
            }
            _ => return Err(malformed()),
        }
    }
}

/// The length of the key at the front of `bytes`, without decoding it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if there is none.
pub(crate) fn length(bytes: &[u8]) -> Result<usize> {
    let mut at = 0;
    let mut open = 0usize;
    loop {
        let rest = bytes.get(at..).ok_or_else(malformed)?;
        match kind_of(rest) {
            Some(Kind::Null | Kind::Bool) => at += 1,
            Some(Kind::Number) => {
                let last = rest[1..].iter().take(NUMBER_GROUPS as usize).position(|byte| byte & 1 == 0);
                at += last.ok_or_else(malformed)? + 2;
            }
            Some(Kind::String) => at += string_length(rest)?,
            Some(Kind::Array | Kind::Object) => {
                at += 1;
                open += 1;
            }
            None if open == 0 && rest.first() == Some(&(Tag::Joined as u8)) => at += string_length(rest)?,
            None if open > 0 && rest.first() == Some(&END) => {
                at += 1;
                open -= 1;
            }
            None => return Err(malformed()),
        }
        if open == 0 {
            return Ok(at);
        }
    }
}

fn string_length(key: &[u8]) -> Result<usize> {
    let mut at = 1;
    loop {
        let rest = key.get(at..).ok_or_else(malformed)?;
        let zero = rest.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        at += zero + 2;
        match rest.get(zero + 1) {
            Some(&ESCAPED_ZERO) => {}
            Some(&END) => return Ok(at),
            Some(&CUT) if key.len() >= at + HASH_BYTES => return Ok(at + HASH_BYTES),
            _ => return Err(malformed()),
        }
    }
}

#[cold]
fn malformed() -> Error {
    Error::corrupt("a key is cut off or malformed")
}

#[cold]
fn too_deep() -> Error {
    Error::corrupt("a key is nested too deeply")
}
