//! Streamed content of a file from another server, verified against the length and digest that the server announced.

use std::io::{self, Read};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use md5::{Digest, Md5};
use stemmadb::Value;

/// The length and digest that a document announces for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpectedContent {
    pub length: Option<u64>,
    /// `None` if the digest is of the compressed content, since the content arrives uncompressed.
    pub md5: Option<[u8; 16]>,
}

impl ExpectedContent {
    /// Reads them from the stub in a document's `_attachments`.
    pub(crate) fn from_stub(stub: &Value) -> Self {
        let text = |name: &str| stub.get(name).and_then(Value::as_str);
        let digest =
            text("digest").filter(|_| text("encoding").is_none()).and_then(|digest| digest.strip_prefix("md5-"));
        let digest = digest.and_then(|digest| BASE64_STANDARD.decode(digest).ok());
        ExpectedContent {
            length: stub.get("length").and_then(Value::as_u64),
            md5: digest.and_then(|md5| md5.try_into().ok()),
        }
    }
}

/// A reader that fails if the content differs from what was announced: at the first excess byte, otherwise at the end.
pub(crate) struct VerifiedContent<R> {
    content: R,
    label: String,
    expected: ExpectedContent,
    length: u64,
    hasher: Md5,
}

impl<R: Read> VerifiedContent<R> {
    pub(crate) fn new(content: R, label: String, expected: ExpectedContent) -> Self {
        VerifiedContent { content, label, expected, length: 0, hasher: Md5::new() }
    }

    fn mismatch(&self, what: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the content of {} is not {what}", self.label))
    }
}

impl<R: Read> Read for VerifiedContent<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.length += count as u64;
        self.hasher.update(&buffer[..count]);
        let is_end = count == 0 && !buffer.is_empty();
        if self.expected.length.is_some_and(|expected| self.length > expected || (is_end && self.length < expected)) {
            return Err(self.mismatch("as long as announced"));
        }
        if is_end && self.expected.md5.is_some_and(|md5| md5 != <[u8; 16]>::from(self.hasher.clone().finalize())) {
            return Err(self.mismatch("what its digest announces"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stub: &str) -> io::Result<String> {
        let expected = ExpectedContent::from_stub(&Value::parse(stub).unwrap());
        let mut read = String::new();
        VerifiedContent::new(&b"hello"[..], "it".to_owned(), expected).read_to_string(&mut read).map(|_| read)
    }

    #[test]
    fn content_that_differs_from_its_stub_is_an_error() {
        for stub in [
            r#"{"length": 5, "digest": "md5-XUFAKrxLKna5cZ2REBfFkg=="}"#,
            r#"{"length": 5}"#,
            r#"{"length": 5, "digest": "sha1-XUFAKrxLKna5cZ2REBfFkg=="}"#,
            // A digest of the compressed content is ignored.
            r#"{"length": 5, "encoding": "gzip", "encoded_length": 25, "digest": "md5-AAAAAAAAAAAAAAAAAAAAAA=="}"#,
        ] {
            assert_eq!(read(stub).unwrap(), "hello", "{stub}");
        }
        for (stub, wrong) in [
            (r#"{"length": 4}"#, "as long"),
            (r#"{"length": 6}"#, "as long"),
            (r#"{"length": 5, "digest": "md5-AAAAAAAAAAAAAAAAAAAAAA=="}"#, "digest"),
        ] {
            assert!(read(stub).unwrap_err().to_string().contains(wrong), "{stub}");
        }
    }
}
