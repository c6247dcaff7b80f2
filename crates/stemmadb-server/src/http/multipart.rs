//! A streaming parser of multipart messages, which holds only one buffer.

use std::io::{self, Read};

use memchr::memmem::Finder;

/// The largest head of a part.
const HEAD_BYTES_MAX: usize = 16 << 10;
const BUFFER_BYTES: usize = 64 << 10;

/// Parses a multipart message. As a reader it returns the body of the current part.
pub(crate) struct Parts<R> {
    inner: R,
    /// Bytes read from `inner` and not yet returned.
    buffer: Vec<u8>,
    finder: Finder<'static>,
    position: ParsePosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParsePosition {
    /// Within a body, or before the first part.
    Body,
    /// Right after a delimiter.
    Delimiter,
    End,
}

/// The head of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PartHead {
    fields: Vec<(String, String)>,
}

impl PartHead {
    /// The field `name`, which is lower-case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The file name of the part.
    pub(crate) fn file_name(&self) -> Option<&str> {
        parameter(self.get("content-disposition")?, "filename")
    }
}

/// The boundary of a `Content-Type`.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    parameter(content_type, "boundary")
}

/// A parameter of a header field.
fn parameter<'a>(field: &'a str, name: &str) -> Option<&'a str> {
    field.split(';').skip(1).find_map(|parameter| {
        let (known, value) = parameter.trim().split_once('=')?;
        known.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"'))
    })
}

impl<R: Read> Parts<R> {
    /// Parses the parts of `inner`, which are separated by `boundary`.
    pub(crate) fn new(inner: R, boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        Parts {
            inner,
            // The first delimiter may be at the very beginning.
            buffer: b"\r\n".to_vec(),
            finder: Finder::new(delimiter.as_bytes()).into_owned(),
            position: ParsePosition::Body,
        }
    }

    /// Advances to the next part and returns its head. Skips the rest of the current part. Returns `None` after the
    /// last part.
    pub(crate) fn next_part(&mut self) -> io::Result<Option<PartHead>> {
        while self.position == ParsePosition::Body {
            let mut skipped = [0; 4096];
            while self.read(&mut skipped)? > 0 {}
        }
        if self.position == ParsePosition::End {
            return Ok(None);
        }
        self.fill_to(2)?;
        if self.buffer.starts_with(b"--") {
            self.position = ParsePosition::End;
            return Ok(None);
        }
        self.position = ParsePosition::Body;
        self.read_head().map(Some)
    }

    fn read_head(&mut self) -> io::Result<PartHead> {
        loop {
            // The rest of the delimiter's line, the header fields, and an empty line.
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                let text = String::from_utf8(head).map_err(|_| malformed("a part's head is not UTF-8"))?;
                let fields = text.lines().filter_map(|line| line.split_once(':'));
                let fields = fields.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
                return Ok(PartHead { fields: fields.collect() });
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(malformed("a part's head is too long"));
            }
            let count = self.buffer.len();
            self.fill_to(count + 1)?;
        }
    }

    /// Reads until the buffer has at least `count` bytes.
    fn fill_to(&mut self, count: usize) -> io::Result<()> {
        while self.buffer.len() < count {
            if !self.fill()? {
                return Err(malformed("the message ends within a part"));
            }
        }
        Ok(())
    }

    /// Reads more bytes into the buffer. Returns false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        let start = self.buffer.len();
        self.buffer.resize(start + BUFFER_BYTES, 0);
        let read = self.inner.read(&mut self.buffer[start..]);
        self.buffer.truncate(start + *read.as_ref().unwrap_or(&0));
        read.map(|count| count > 0)
    }
}

impl<R: Read> Read for Parts<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.position != ParsePosition::Body || out.is_empty() {
            return Ok(0);
        }
        let delimiter = self.finder.needle().len();
        loop {
            let found = self.finder.find(&self.buffer);
            // Bytes that may be the start of a delimiter stay in the buffer.
            let plain = found.unwrap_or((self.buffer.len() + 1).saturating_sub(delimiter));
            if plain > 0 {
                let count = plain.min(out.len());
                out[..count].copy_from_slice(&self.buffer[..count]);
                self.buffer.drain(..count);
                return Ok(count);
            }
            if found.is_some() {
                self.buffer.drain(..delimiter);
                self.position = ParsePosition::Delimiter;
                return Ok(0);
            }
            if !self.fill()? {
                return Err(malformed("the message ends within a part"));
            }
        }
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::SlowReader;

    #[test]
    fn parts_are_parsed_for_any_chunk_size() {
        let message = b"--b\r\nContent-Type: application/json\r\n\r\n{\"a\":1}\r\n--b\r\n\
            Content-Disposition: attachment; filename=\"x y\"\r\nContent-Length: 7\r\n\
            \r\n\r\n--\r\n-\r\n--b\r\n\r\n\r\n--b--";
        for count in [1, 2, 3, 7, 1000] {
            let mut parts = Parts::new(SlowReader(message, count), "b");
            let head = parts.next_part().unwrap().unwrap();
            assert_eq!(head.get("content-type"), Some("application/json"));
            let mut body = String::new();
            parts.read_to_string(&mut body).unwrap();
            assert_eq!(body, "{\"a\":1}");
            let head = parts.next_part().unwrap().unwrap();
            assert_eq!(head.file_name(), Some("x y"));
            body.clear();
            parts.read_to_string(&mut body).unwrap();
            assert_eq!(body, "\r\n--\r\n-");
            assert!(parts.next_part().unwrap().is_some());
            assert!(parts.next_part().unwrap().is_none());
        }
    }

    #[test]
    fn nested_parts_are_parsed_and_unread_bodies_skipped() {
        let message = b"\r\n--o\r\nContent-Type: multipart/related; boundary=\"i\"\r\n\r\n--i\r\n\r\none\r\n\
            --i\r\n\r\ntwo\r\n--i--\r\n--o\r\n\r\nlast\r\n--o--";
        let mut outer = Parts::new(&message[..], "o");
        let head = outer.next_part().unwrap().unwrap();
        let mut inner = Parts::new(&mut outer, boundary(head.get("content-type").unwrap()).unwrap());
        inner.next_part().unwrap().unwrap();
        inner.next_part().unwrap().unwrap();
        let mut text = String::new();
        inner.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two");
        outer.next_part().unwrap().unwrap();
        text.clear();
        outer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last");
    }

    #[test]
    fn truncated_message_is_an_error() {
        for message in ["", "--b\r\n", "--b\r\nx: y\r\n\r\nbody", "--b\r\n\r\nbody\r\n--"] {
            let mut parts = Parts::new(message.as_bytes(), "b");
            let outcome = parts.next_part().and_then(|_| parts.next_part());
            assert!(outcome.is_err(), "{message:?}");
        }
    }
}
