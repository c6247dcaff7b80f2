//! Multipart messages: an assembled message is parsed into the same parts, and arbitrary bytes give the same result
//! however they are split.

use std::io::{self, Read};

use arbitrary::{Result, Unstructured};

use crate::http::{Parts, boundary};

/// The header fields of a part, and its body.
type Part = (Vec<(String, String)>, Vec<u8>);

/// Parses arbitrary bytes as a message, and a message assembled from parts.
pub fn multipart(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        boundary(text);
    }
    let whole = read(data, usize::MAX, "b");
    assert_eq!(whole, read(data, 1, "b"), "it makes a difference how the bytes arrive");
    assert_eq!(whole, read(data, 7, "b"), "it makes a difference how the bytes arrive");
    if let Ok((name, parts)) = message(&mut Unstructured::new(data)) {
        let text = assemble(&parts, &name);
        for piece in [usize::MAX, 1, 5] {
            let (found, is_whole) = read(&text, piece, &name);
            let expected: Vec<&Vec<u8>> = parts.iter().map(|(_, body)| body).collect();
            let bodies: Vec<&Vec<u8>> = found.iter().map(|(_, body)| body).collect();
            assert!(is_whole, "a whole message was not read to its end");
            assert_eq!(bodies, expected);
        }
    }
}

/// A reader that returns a few bytes at a time.
pub(crate) struct SlowReader<'a>(pub(crate) &'a [u8], pub(crate) usize);

impl Read for SlowReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(out.len()).min(self.0.len());
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

/// A part's file name and body.
type NamedPart = (Option<String>, Vec<u8>);

/// The parts found, and whether the message was read to its end.
fn read(message: &[u8], piece: usize, boundary: &str) -> (Vec<NamedPart>, bool) {
    let mut parts = Parts::new(SlowReader(message, piece), boundary);
    let mut found = Vec::new();
    loop {
        let head = match parts.next_part() {
            Ok(Some(head)) => head,
            Ok(None) => return (found, true),
            Err(_) => return (found, false),
        };
        let mut body = Vec::new();
        if parts.read_to_end(&mut body).is_err() {
            return (found, false);
        }
        found.push((head.file_name().map(str::to_owned), body));
    }
}

/// A boundary, and parts that do not contain it.
fn message(given: &mut Unstructured<'_>) -> Result<(String, Vec<Part>)> {
    let letters = |given: &mut Unstructured<'_>, count: usize| -> Result<String> {
        (0..count).map(|_| Ok(*given.choose(b"-abZ09'+_")? as char)).collect()
    };
    let count = given.int_in_range(1..=12)?;
    let name = letters(given, count)?;
    let delimiter = format!("\r\n--{name}");
    let mut parts = Vec::new();
    for _ in 0..given.int_in_range(1..=5)? {
        let mut head = Vec::new();
        for _ in 0..given.int_in_range(0..=3)? {
            head.push((letters(given, 4)?, letters(given, 8)?));
        }
        let length = given.int_in_range(0..=300)?.min(given.len());
        let body = given.bytes(length)?.to_vec();
        // The end of a body and the delimiter after it must not form another delimiter either.
        let closed = [&body[..], delimiter.as_bytes()].concat();
        if memchr::memmem::find(&closed, delimiter.as_bytes()) == Some(body.len()) {
            parts.push((head, body));
        }
    }
    if parts.is_empty() { Err(arbitrary::Error::IncorrectFormat) } else { Ok((name, parts)) }
}

fn assemble(parts: &[Part], boundary: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for (head, body) in parts {
        text.extend_from_slice(format!("\r\n--{boundary}\r\n").as_bytes());
        for (name, value) in head {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(body);
    }
    text.extend_from_slice(format!("\r\n--{boundary}--").as_bytes());
    text
}
