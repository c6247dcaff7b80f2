//! Stored form of a container: the smallest of four encodings.
//!
//! ```text
//! 2 bytes            the one member, big-endian
//! 01, 2 bytes × n    ascending members, big-endian
//! 02, 4 bytes × n    ascending runs, (first, last), both inclusive, big-endian
//! 03, 2 to 8192      bits: number n is bit n % 8 of byte n / 8; later bytes are zero
//! ```

use std::sync::Arc;

use super::bitmap::{BITMAP_BYTES, Bitmap};
use super::{ARRAY_MAX, Array, Container, Repr, Run, Runs, are_apart, normalized};
use crate::{Error, Result};

const ARRAY: u8 = 1;
const RUNS: u8 = 2;
const BITS: u8 = 3;
const BITS_BYTES_MIN: usize = 2;

/// A stored container whose encoding was validated, except for runs.
pub(super) enum StoredRepr<'a> {
    One(u16),
    Array(&'a [[u8; 2]]),
    Bits(&'a [u8]),
    /// Runs, which are validated when they are decoded.
    Runs,
}

/// Validates a stored container and returns its encoding.
pub(super) fn parse(bytes: &[u8]) -> Result<StoredRepr<'_>> {
    match bytes {
        &[high, low] => Ok(StoredRepr::One(u16::from_be_bytes([high, low]))),
        [ARRAY, rest @ ..] => {
            let (pairs, []) = rest.as_chunks::<2>() else { return Err(damaged()) };
            // Compare without early exit, so that the loop is vectorized.
            let ascends = |(a, b): (&[u8; 2], &[u8; 2])| u16::from_be_bytes(*a) < u16::from_be_bytes(*b);
            let is_ascending = || pairs.iter().zip(&pairs[1..]).fold(true, |sorted, pair| sorted & ascends(pair));
            if pairs.is_empty() || pairs.len() > ARRAY_MAX || !is_ascending() {
                return Err(damaged());
            }
            Ok(StoredRepr::Array(pairs))
        }
        [RUNS, ..] => Ok(StoredRepr::Runs),
        [BITS, rest @ ..] => {
            check_bits(rest)?;
            Ok(StoredRepr::Bits(rest))
        }
        _ => Err(damaged()),
    }
}

/// The members of a stored array.
pub(super) fn values(pairs: &[[u8; 2]]) -> impl Iterator<Item = u16> {
    pairs.iter().map(|pair| u16::from_be_bytes(*pair))
}

impl Container {
    /// Appends the stored form. The container must not be empty: empty containers are not stored.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(!self.is_empty(), "an empty container is not stored");
        let start = out.len();
        match &self.0 {
            Repr::Array(values) => encode_sorted(values, out),
            Repr::Bitmap(bitmap) => encode_bitmap(bitmap, out),
            Repr::Runs(runs) => encode_runs(runs, out),
        }
        debug_assert_eq!(
            Container::stored_len(&out[start..]).ok(),
            Some(self.len()),
            "the stored form of a container has its cardinality"
        );
    }

    /// Appends the stored form of a container with one member.
    pub(crate) fn encode_one(value: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.to_be_bytes());
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a container.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Container> {
        Ok(match parse(bytes)? {
            StoredRepr::One(value) => Container::of_one(value),
            StoredRepr::Array(pairs) => {
                let mut array = Array::from_elem(0, pairs.len());
                array.iter_mut().zip(values(pairs)).for_each(|(target, value)| *target = value);
                Container(Repr::Array(array))
            }
            StoredRepr::Runs => normalized(Repr::Runs(take_runs(&bytes[1..])?)),
            StoredRepr::Bits(bits) => normalized(Repr::Bitmap(Arc::new(Bitmap::of_bytes(bits)))),
        })
    }

    /// The cardinality of a stored container, without decoding it.
    ///
    /// # Errors
    /// `Corrupt` if the bytes can't be a container.
    pub(crate) fn stored_len(bytes: &[u8]) -> Result<u32> {
        match bytes {
            [_, _] => Ok(1),
            [ARRAY, rest @ ..] if !rest.is_empty() && rest.len() % 2 == 0 => Ok((rest.len() / 2) as u32),
            [RUNS, rest @ ..] => Ok(take_runs(rest)?.iter().map(|run| run.len()).sum()),
            [BITS, rest @ ..] => {
                check_bits(rest)?;
                let (words, tail) = rest.as_chunks::<8>();
                let whole: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
                Ok(whole + tail.iter().map(|byte| byte.count_ones()).sum::<u32>())
            }
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> Error {
    Error::corrupt("a stored set of documents is damaged")
}

fn take_runs(bytes: &[u8]) -> Result<Runs> {
    let (quads, []) = bytes.as_chunks::<4>() else { return Err(damaged()) };
    let run = |&[a, b, c, d]: &[u8; 4]| Run { first: u16::from_be_bytes([a, b]), last: u16::from_be_bytes([c, d]) };
    let runs: Runs = quads.iter().map(run).collect();
    let is_valid = !runs.is_empty() && runs.iter().all(|run| run.first <= run.last) && are_apart(&runs);
    if is_valid { Ok(runs) } else { Err(damaged()) }
}

fn check_bits(bytes: &[u8]) -> Result<()> {
    let is_valid = (BITS_BYTES_MIN..=BITMAP_BYTES).contains(&bytes.len()) && bytes.iter().any(|&byte| byte != 0);
    if is_valid { Ok(()) } else { Err(damaged()) }
}

fn bits_bytes(last: u16) -> usize {
    (usize::from(last) / 8 + 1).max(BITS_BYTES_MIN)
}

/// Appends the stored form of strictly ascending values, at least one and at most [`ARRAY_MAX`].
fn encode_sorted(values: &[u16], out: &mut Vec<u8>) {
    debug_assert!((1..=ARRAY_MAX).contains(&values.len()), "a stored array has 1 to ARRAY_MAX members");
    debug_assert!(values.is_sorted_by(|a, b| a < b), "the members of a stored container are strictly ascending");
    let [_, .., last] = *values else {
        values.iter().for_each(|value| out.extend_from_slice(&value.to_be_bytes()));
        return;
    };
    let run_count = 1 + values.iter().zip(&values[1..]).map(|(a, b)| u16::from(a.wrapping_add(1) != *b)).sum::<u16>();
    let run_count = usize::from(run_count);
    if 2 * run_count < values.len() && 4 * run_count < bits_bytes(last) {
        out.push(RUNS);
        return runs_of(values).for_each(|run| put_run(run, out));
    }
    if bits_bytes(last) < 2 * values.len() {
        out.push(BITS);
        let start = out.len();
        out.resize(start + bits_bytes(last), 0);
        for &value in values {
            out[start + usize::from(value) / 8] |= 1 << (value % 8);
        }
        return;
    }
    out.push(ARRAY);
    let start = out.len();
    out.resize(start + 2 * values.len(), 0);
    for (pair, value) in out[start..].as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *pair = value.to_be_bytes();
    }
}

fn runs_of(values: &[u16]) -> impl Iterator<Item = Run> {
    values.chunk_by(|a, b| b - a == 1).filter_map(|run| Some(Run { first: *run.first()?, last: *run.last()? }))
}

fn put_run(run: Run, out: &mut Vec<u8>) {
    out.extend_from_slice(&run.first.to_be_bytes());
    out.extend_from_slice(&run.last.to_be_bytes());
}

fn encode_bitmap(bitmap: &Bitmap, out: &mut Vec<u8>) {
    let Some(last) = bitmap.last() else { return };
    // The caller excludes the array encoding: it would be larger than this one.
    if 4 * bitmap.run_count() < bits_bytes(last) {
        out.push(RUNS);
        return bitmap.to_runs().into_iter().for_each(|run| put_run(run, out));
    }
    out.push(BITS);
    let start = out.len();
    out.resize(start + BITMAP_BYTES, 0);
    for (bytes, word) in out[start..].as_chunks_mut::<8>().0.iter_mut().zip(bitmap.words()) {
        *bytes = word.to_le_bytes();
    }
    out.truncate(start + bits_bytes(last));
}

fn encode_runs(runs: &[Run], out: &mut Vec<u8>) {
    let count: usize = runs.iter().map(|run| run.len() as usize).sum();
    let Some(last) = runs.last().map(|run| run.last) else { return };
    if 2 * count <= 4 * runs.len() {
        let values: Array = runs.iter().flat_map(|run| run.first..=run.last).collect();
        return encode_sorted(&values, out);
    }
    if bits_bytes(last) < 4 * runs.len() {
        return encode_bitmap(&Bitmap::of_runs(runs), out);
    }
    out.push(RUNS);
    runs.iter().for_each(|&run| put_run(run, out));
}
