//! Variable-length encoding of unsigned integers (LEB128): seven bits per byte, lowest first, the top bit set on all
//! but the last byte.
//!
//! Invariant: every integer has exactly one encoding, the shortest; longer ones are rejected.

use crate::{Error, Result};

/// Appends `number` in 1 to 10 bytes.
pub(crate) fn write(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number from the front of `bytes` and advances it.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes end early, the encoding is not the shortest, or the number
/// exceeds 64 bits.
#[inline]
pub(crate) fn read(bytes: &mut &[u8]) -> Result<u64> {
    match **bytes {
        [first, ref rest @ ..] if first < 0x80 => {
            *bytes = rest;
            Ok(first.into())
        }
        _ => read_long(bytes),
    }
}

/// Appends a signed number; those near zero, of either sign, take the fewest bytes.
pub(crate) fn write_signed(number: i64, out: &mut Vec<u8>) {
    write((number << 1 ^ number >> 63).cast_unsigned(), out);
}

/// Reads a number that [`write_signed`] wrote.
///
/// # Errors
/// As of [`read`].
pub(crate) fn read_signed(bytes: &mut &[u8]) -> Result<i64> {
    let folded = read(bytes)?;
    Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
}

fn read_long(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0u64;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        let group = u64::from(byte & 0x7F);
        if at == 9 && group > 1 {
            break;
        }
        number |= group << (7 * at);
        if byte < 0x80 {
            if byte == 0 && at > 0 {
                break;
            }
            *bytes = &bytes[at + 1..];
            return Ok(number);
        }
    }
    Err(Error::corrupt("a variable-length number is cut off or malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_in_the_fewest_bytes() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1u64 << bit]).chain([u64::MAX]);
        for number in edges {
            let mut bytes = Vec::new();
            write(number, &mut bytes);
            assert_eq!(bytes.len(), (64 - (number | 1).leading_zeros() as usize).div_ceil(7));
            for cut in 0..bytes.len() {
                assert!(read(&mut &bytes[..cut]).is_err());
            }
            bytes.push(9);
            let mut rest = &bytes[..];
            assert_eq!(read(&mut rest).expect("just written"), number);
            assert_eq!(rest, [9]);
        }
    }

    #[test]
    fn signed_numbers_near_zero_take_one_byte() {
        for (number, length) in [(0, 1), (-1, 1), (63, 1), (-64, 1), (64, 2), (-65, 2), (i64::MAX, 10), (i64::MIN, 10)]
        {
            let mut bytes = Vec::new();
            write_signed(number, &mut bytes);
            assert_eq!(bytes.len(), length, "{number}");
            assert_eq!(read_signed(&mut &bytes[..]).expect("just written"), number);
        }
    }

    #[test]
    fn malformed_encodings_are_rejected() {
        assert!(read(&mut &[][..]).is_err());
        assert!(read(&mut &[0x80, 0x00][..]).is_err());
        assert!(read(&mut &[0xFF; 10][..]).is_err());
        assert!(read(&mut &[0xFF; 11][..]).is_err());
        assert!(read(&mut &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02][..]).is_err());
    }
}
