//! Reading of primitive values from a byte slice, with bounds checks.

use stemmadb::{Error, Result};

/// The unread rest of a payload.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

/// The error for bytes that don't follow the protocol.
pub(crate) fn malformed(what: &str) -> Error {
    Error::invalid(format!("malformed frame: {what}")).with_hint("client and server must speak the same wire protocol")
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The unread bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// The unread bytes, which stay unread.
    pub(crate) fn unread(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of unread bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| malformed("it ends early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or_else(|| malformed("it ends early"))?;
        self.bytes = rest;
        Ok(*taken)
    }

    pub(crate) fn bytes16(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A variable-length integer: seven bits a byte, lowest first; the high bit says that more follow.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(malformed("a variable-length integer exceeds 64 bits"))
    }

    /// A string: its length in bytes as a variable-length integer, and UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let length = usize::try_from(self.varint()?).map_err(|_| malformed("a string is too long"))?;
        str::from_utf8(self.take(length)?).map_err(|_| malformed("a string is not UTF-8"))
    }
}

/// Appends a variable-length integer.
pub(crate) fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a string.
pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) {
    write_varint(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            write_varint(number, &mut bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.varint().unwrap(), number);
            assert!(reader.is_empty());
        }
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert!(Reader::new(&[0x80]).varint().is_err());
    }
}
