//! Order-preserving keys: self-delimiting byte strings whose order is the collation order of the values.
//!
//! Layout: one tag byte ([`Tag`]), then
//! - number: its sort key ([`Number::order`]), 64 bits of order and 11 bits of excess, split into groups of seven bits.
//!   A byte is a group shifted left by one, with the low bit set if any later group is not zero. Small integers take
//!   two or three bytes.
//! - string: UTF-8 with `00` escaped as `00 FF`, terminated by `00 00`. A string cut at a length limit is terminated by
//!   `00 01` and 16 bytes of its BLAKE3 hash, so that equal strings have equal keys and the order relative to every
//!   string within the limit is correct.
//! - array: the keys of its elements, terminated by `00`.
//! - object: for each field the key of its name (a string) and the key of its value, terminated by `00`.
//! - composite: the concatenated keys of several values, each possibly complemented bitwise for descending order;
//!   escaped, terminated and cut as a string.
//!
//! Tags below [`Tag::Null`] and between the tags are free for keys of other things than values.

use crate::value::traverse::{DepthLimited, Node, ValueTree, into_ok};
use crate::value::{DEPTH_MAX, Kind, Number, Object, PackedValue, Value};
use crate::{Error, Result};

/// The first byte of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Tag {
    /// The complete key of `null`.
    Null = 0x10,
    /// The complete key of `false`.
    False = 0x20,
    /// The complete key of `true`.
    True = 0x21,
    /// A number follows.
    Number = 0x30,
    /// A string follows.
    String = 0x40,
    /// Elements follow.
    Array = 0x50,
    /// Fields follow.
    Object = 0x60,
    /// The bytes of several concatenated keys, or of a sort key, follow.
    Composite = 0x70,
}

const END: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xFF;
const CUT: u8 = 0x01;
const HASH_BYTES: usize = 16;

/// The number of seven-bit groups that hold 64 bits of order and 11 bits of excess, and the unused bits of the last
/// group.
const NUMBER_GROUPS: u32 = 11;
const NUMBER_SPARE_BITS: u32 = 7 * NUMBER_GROUPS - 64 - 11;

/// Appends the key of any value.
pub(crate) fn encode(value: &Value, out: &mut Vec<u8>) {
    let start = out.len();
    into_ok(encode_tree(value, out));
    debug_assert_eq!(length(&out[start..]).ok(), Some(out.len() - start), "a key is self-delimiting");
}

/// Appends the key of a packed value, which equals the key of the unpacked value.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged; `out` then ends in a partial key.
pub(crate) fn encode_packed(value: PackedValue<'_>, out: &mut Vec<u8>) -> Result<()> {
    encode_tree(DepthLimited::from(value), out)
}

fn encode_tree<'v, S: ValueTree<'v>>(value: S, out: &mut Vec<u8>) -> Result<(), S::Error> {
    match value.node()? {
        Node::Null => encode_null(out),
        Node::Bool(truth) => encode_bool(truth, out),
        Node::Number(number) => encode_number(number, out),
        Node::String(text) => encode_string(text, out),
        Node::Array(_, elements) => {
            out.push(Tag::Array as u8);
            for element in elements {
                encode_tree(element?, out)?;
            }
            out.push(END);
        }
        Node::Object(_, fields) => {
            out.push(Tag::Object as u8);
            for field in fields {
                let (name, value) = field?;
                encode_string(name, out);
                encode_tree(value, out)?;
            }
            out.push(END);
        }
    }
    Ok(())
}

/// Appends the key of an array. `elements` appends the keys of its elements.
pub(crate) fn encode_array(out: &mut Vec<u8>, elements: impl FnOnce(&mut Vec<u8>)) {
    out.push(Tag::Array as u8);
    elements(out);
    out.push(END);
}

/// Appends the key of an object. `fields` appends the keys of each name and value.
pub(crate) fn encode_object(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    out.push(Tag::Object as u8);
    fields(out);
    out.push(END);
}

/// Appends the key of `null`.
pub(crate) fn encode_null(out: &mut Vec<u8>) {
    out.push(Tag::Null as u8);
}

/// Appends the key of a boolean.
pub(crate) fn encode_bool(truth: bool, out: &mut Vec<u8>) {
    out.push(if truth { Tag::True } else { Tag::False } as u8);
}

/// Appends the key of a number. `1` and `1.0` have the same key.
pub(crate) fn encode_number(number: Number, out: &mut Vec<u8>) {
    let (order, excess) = number.order();
    debug_assert!(excess < 1 << 11, "the excess of a number's order fits 11 bits");
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

/// Appends the key of a string, cut after `bytes_max` bytes, possibly inside a character. Returns whether it was cut.
///
/// The order relative to the key of every string of at most `bytes_max` bytes is correct. Two cut keys are equal if and
/// only if the strings are equal; if the strings agree in their first `bytes_max` bytes, the order of their keys is
/// otherwise arbitrary.
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

/// The length limit of a composite key without its terminator. With path and chunk it stays below the key limit of the
/// tree. Short in unit tests, so that they exercise cut keys.
const COMPOSITE_BYTES_MAX: usize = if cfg!(test) { 24 } else { 420 };

/// Appends the composite key of these bytes, cut with a hash if it is too long. Returns whether it was cut.
///
/// The guarantees are those of [`encode_string_bounded`]: keys are equal if and only if the bytes are equal, and a cut
/// key sorts correctly relative to all keys except those that agree in the part before the cut.
pub(crate) fn encode_composite(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    encode_composite_bounded(bytes, COMPOSITE_BYTES_MAX, out)
}

/// As [`encode_composite`] with the length limit `bytes_max`.
pub(crate) fn encode_composite_bounded(bytes: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    push_composite(bytes, out);
    if out.len() - start <= bytes_max {
        out.extend_from_slice(&[END, END]);
        return false;
    }
    out.truncate(start);
    push_composite(&bytes[..unescaped_length_within(bytes, bytes_max)], out);
    debug_assert!(out.len() - start <= bytes_max.max(1), "a cut composite key stays within its length limit");
    out.extend_from_slice(&[END, CUT]);
    out.extend_from_slice(&blake3::hash(bytes).as_bytes()[..HASH_BYTES]);
    true
}

/// How many of `bytes` fit a composite key of at most `bytes_max` bytes without splitting an escape sequence.
fn unescaped_length_within(bytes: &[u8], bytes_max: usize) -> usize {
    // The tag.
    let mut escaped_bytes = 1;
    let fitting = bytes.iter().take_while(|&&byte| {
        escaped_bytes += if byte == 0 { 2 } else { 1 };
        escaped_bytes <= bytes_max
    });
    fitting.count()
}

fn push_composite(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(Tag::Composite as u8);
    push_escaped(bytes, out);
}

/// The lower bound of the composite keys whose bytes do not sort before `bytes`, cut keys included. `None` if the bound
/// is longer than a composite key.
pub(crate) fn composite_bound(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bound = Vec::new();
    push_composite(bytes, &mut bound);
    (bound.len() <= COMPOSITE_BYTES_MAX).then_some(bound)
}

/// The common prefix of the composite keys, limited to `bytes_max`, of all bytes that begin with these.
pub(crate) fn composite_prefix_bounded(bytes: &[u8], bytes_max: usize) -> Vec<u8> {
    let mut prefix = Vec::new();
    push_composite(&bytes[..unescaped_length_within(bytes, bytes_max)], &mut prefix);
    prefix
}

/// A common prefix of the composite keys of all bytes that begin with these.
pub(crate) fn composite_prefix(bytes: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    push_composite(&bytes[..bytes.len().min(COMPOSITE_BYTES_MAX / 2 - 1)], &mut prefix);
    prefix
}

/// The bytes of a composite key, and whether they were cut.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if `key` is not a composite key.
pub(crate) fn decode_composite(key: &[u8]) -> Result<DecodedText> {
    decode_tagged(&mut &*key, Tag::Composite)
}

/// Appends the key of a string that is ordered by a language, given its sort key in that language.
pub(crate) fn encode_sort_key(sort_key: &[u8], out: &mut Vec<u8>) {
    out.push(Tag::String as u8);
    push_escaped(sort_key, out);
    out.extend_from_slice(&[END, END]);
}

fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    // Nearly all strings are free of zeros, and this check is vectorized.
    if !bytes.contains(&0) {
        return out.extend_from_slice(bytes);
    }
    for (at, part) in bytes.split(|&byte| byte == 0).enumerate() {
        if at > 0 {
            out.extend_from_slice(&[0, ESCAPED_ZERO]);
        }
        out.extend_from_slice(part);
    }
}

/// The half-open range of the keys of a kind of value.
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

/// The half-open range of the keys of all strings that begin with `prefix`.
///
/// The range contains cut keys, too, if `prefix` is no longer than their length limit.
pub(crate) fn prefix_range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut lower = vec![Tag::String as u8];
    push_escaped(prefix.as_bytes(), &mut lower);
    let mut upper = lower.clone();
    while upper.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = upper.last_mut() {
        *last += 1;
    }
    debug_assert!(lower < upper, "the range of a prefix contains the prefix itself");
    (lower, upper)
}

/// Whether a key is that of a cut string.
pub(crate) fn is_cut(value_key: &[u8]) -> bool {
    if let [_, text @ .., END, END] = value_key
        && !text.contains(&END)
    {
        return false;
    }
    value_key.first() == Some(&(Tag::String as u8)) && decode_string(value_key).is_ok_and(|(text, _)| text.cut)
}

/// Decodes the value at the front of `key` and returns it with the number of bytes it takes.
///
/// A number is returned as an integer if it equals one in range, since `1` and `1.0` have the same key.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are not the key of a value, or a string was cut (see
/// [`decode_string`]).
pub(crate) fn decode(key: &[u8]) -> Result<(Value, usize)> {
    let mut rest = key;
    let value = decode_within(&mut rest, DEPTH_MAX)?;
    Ok((value, key.len() - rest.len()))
}

/// The kind of value that a key encodes, from its first byte.
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
            DecodedText { bytes, cut: false } => Ok(Value::String(String::from_utf8(bytes).map_err(|_| malformed())?)),
            DecodedText { cut: true, .. } => Err(Error::corrupt("a key that must be complete was cut")),
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

/// The decoded key of a string or a composite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DecodedText {
    /// The bytes; for a cut string the part before the cut, possibly ending inside a character.
    pub(crate) bytes: Vec<u8>,
    /// Whether the string was cut at its length limit.
    pub(crate) cut: bool,
}

/// Decodes the string at the front of `key`, cut or not, and returns it with the number of bytes it takes.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if `key` is not the key of a string.
pub(crate) fn decode_string(key: &[u8]) -> Result<(DecodedText, usize)> {
    let mut rest = key;
    let text = decode_text(&mut rest)?;
    Ok((text, key.len() - rest.len()))
}

fn decode_text(rest: &mut &[u8]) -> Result<DecodedText> {
    decode_tagged(rest, Tag::String)
}

fn decode_tagged(rest: &mut &[u8], expected: Tag) -> Result<DecodedText> {
    let [tag, text @ ..] = *rest else { return Err(malformed()) };
    if *tag != expected as u8 {
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
                return Ok(DecodedText { bytes, cut: false });
            }
            CUT => {
                *rest = text.get(HASH_BYTES..).ok_or_else(malformed)?;
                return Ok(DecodedText { bytes, cut: true });
            }
            _ => return Err(malformed()),
        }
    }
}

/// The length of the key at the front of `bytes`, without decoding it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes don't begin with a key.
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
            None if open == 0 && rest.first() == Some(&(Tag::Composite as u8)) => at += string_length(rest)?,
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
