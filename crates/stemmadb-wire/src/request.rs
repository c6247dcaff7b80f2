//! Requests: an operation, a database, an optional write key, and arguments.

use stemmadb::{Result, Value};

use crate::operation::Operation;
use crate::reader::{Reader, malformed, write_text};
use crate::value::Encoding;

/// The flag of a request with a write key.
const HAS_KEY: u8 = 1;

/// The idempotency key of a write: a lane, which has one write at a time, and the number of the write in it.
///
/// The server stores the key and the result with the write, so a repeated request returns the stored result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteKey {
    /// A random number that the client chose.
    pub lane: [u8; 16],
    /// Ascends with each write of the lane.
    pub number: u64,
}

/// The payload of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// What to do.
    pub operation: Operation,
    /// The database; empty for operations on the server.
    pub database: &'a str,
    /// The idempotency key of a write.
    pub key: Option<WriteKey>,
    /// The arguments, encoded: see [`Request::arguments`].
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Appends the payload of a request with these arguments.
    pub fn write(
        operation: Operation,
        database: &str,
        key: Option<WriteKey>,
        arguments: &Value,
        encoding: Encoding,
        out: &mut Vec<u8>,
    ) {
        out.push(operation as u8);
        out.push(if key.is_some() { HAS_KEY } else { 0 });
        write_text(database, out);
        if let Some(key) = key {
            out.extend_from_slice(&key.lane);
            out.extend_from_slice(&key.number.to_le_bytes());
        }
        encoding.write(arguments, out);
    }

    /// Reads the payload of a request.
    ///
    /// # Errors
    /// `Invalid` if it is malformed, or the operation is unknown.
    pub fn read(payload: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let operation = Operation::from_code(reader.u8()?)?;
        let flags = reader.u8()?;
        if flags & !HAS_KEY != 0 {
            return Err(malformed("a flag of the request is unknown"));
        }
        let database = reader.text()?;
        let key = match flags & HAS_KEY {
            0 => None,
            _ => Some(WriteKey { lane: reader.bytes16()?, number: reader.u64()? }),
        };
        Ok(Request { operation, database, key, body: reader.rest() })
    }

    /// Decodes the arguments.
    ///
    /// # Errors
    /// `Invalid` if they are malformed.
    pub fn arguments(&self, encoding: Encoding) -> Result<Value> {
        encoding.read(self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip() {
        let arguments: Value = r#"{"id": "solaris"}"#.parse().unwrap();
        let key = WriteKey { lane: [7; 16], number: 1 << 40 };
        for (encoding, key) in [(Encoding::Json, None), (Encoding::Packed, Some(key))] {
            let mut bytes = Vec::new();
            Request::write(Operation::Get, "shop", key, &arguments, encoding, &mut bytes);
            let request = Request::read(&bytes).unwrap();
            assert_eq!((request.operation, request.database, request.key), (Operation::Get, "shop", key));
            assert_eq!(request.arguments(encoding).unwrap(), arguments);
            for length in 0..bytes.len() {
                let cut = Request::read(&bytes[..length]).and_then(|request| request.arguments(encoding));
                assert!(cut.is_err(), "{length}");
            }
        }
        assert!(Request::read(&[1, 2, 0]).is_err());
        assert!(Request::read(&[0xff, 0, 0]).is_err());
    }
}
