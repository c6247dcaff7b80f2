//! Unsigned integers in few bytes: seven bits a byte, lowest first, the high bit says that more follow.

use crate::{Error, Result};

pub(super) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes one integer off the front of `input`.
pub(super) fn take(input: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = input.split_first() else {
            return Err(Error::corrupt("a stored integer is cut short"));
        };
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
            break;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Error::corrupt("a stored integer is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_have_one_form() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put(value, &mut out);
            let mut input = &out[..];
            assert_eq!(take(&mut input).unwrap(), value);
            assert!(input.is_empty());
        }
        for bad in [&[][..], &[0x80], &[0x80, 0], &[0xff; 10], &[0xff; 11]] {
            assert!(take(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}
