//! Documents as records for another process: their packed bodies as they are stored, and the shapes that these need.
//!
//! | | what |
//! |---|---|
//! | varint | number of the dictionary, in the writer's process |
//! | varint | count of shapes that no earlier record has; for each: its number, the count of its names, the names |
//! | text | id |
//! | varint, 16 bytes | generation and hash of the revision |
//! | varint | sequence |
//! | byte | 1: the revision is a deletion |
//! | varint, bytes | packed body, as [`packed`](crate::value) describes it |
//!
//! A text is its length in bytes as a varint, and UTF-8.

use std::str;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::Document;
use crate::revision::{DocumentId, Revision, Sequence};
use crate::value::{Body, DEPTH_MAX, Kind, PackedValue, Shape, ShapeNumber, Shapes};
use crate::varint;
use crate::{Error, Result};

/// The depth of stored bodies: that of documents, and their attachments.
const DEPTH: usize = DEPTH_MAX + 2;
/// The most dictionaries that a reader knows.
const DICTIONARIES_MAX: usize = 64;

/// Writes documents as records that a [`RecordReader`] reads. A record costs one pass over the objects of its body,
/// and no decoding.
///
/// The first record that needs a shape, the field names of an object, has it. So a reader reads all records of a writer
/// in their order.
///
/// ```
/// # fn main() -> stemmadb::Result<()> {
/// use stemmadb::remote::{RecordReader, RecordWriter};
///
/// # let db = stemmadb::Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let mut bytes = Vec::new();
/// RecordWriter::new().write(&db.get("solaris")?.unwrap(), &mut bytes)?;
/// let (document, length) = RecordReader::new().read(&bytes)?;
/// assert_eq!((document.to_json()?.as_str(), length), (r#"{"year":1961}"#, bytes.len()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct RecordWriter {
    dictionary: u64,
    known: SmallVec<[ShapeNumber; 8]>,
}

impl RecordWriter {
    /// Returns a writer whose first record has all shapes that it needs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the record of a document.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged; nothing is appended then.
    pub fn write(&mut self, document: &Document, out: &mut Vec<u8>) -> Result<()> {
        let dictionary = document.shapes.dictionary();
        if dictionary != self.dictionary {
            self.known.clear();
            self.dictionary = dictionary;
        }
        let known_before = self.known.len();
        let mut added = SmallVec::<[&Shape; 8]>::new();
        let visited = document.packed().and_then(|packed| {
            packed.visit_shapes(DEPTH, &mut |shape| {
                if !self.known.contains(&shape.number()) {
                    self.known.push(shape.number());
                    added.push(shape);
                }
            })
        });
        if let Err(error) = visited {
            self.known.truncate(known_before);
            return Err(error);
        }
        varint::write(dictionary, out);
        varint::write(added.len() as u64, out);
        for shape in added {
            varint::write(shape.number().get() as u64, out);
            varint::write(shape.len() as u64, out);
            shape.names().for_each(|name| write_bytes(name.as_bytes(), out));
        }
        write_bytes(document.id.as_str().as_bytes(), out);
        varint::write(document.revision.generation().into(), out);
        out.extend_from_slice(document.revision.hash());
        varint::write(document.sequence.get(), out);
        out.push(document.deleted.into());
        write_bytes(document.packed_bytes(), out);
        Ok(())
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint::write(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads the records of one process: see [`RecordWriter`].
///
/// Bytes that are no record are an error, at the latest when the document's body is read.
#[derive(Debug, Default)]
pub struct RecordReader {
    dictionaries: HashMap<u64, Arc<Shapes>>,
}

impl RecordReader {
    /// Returns a reader that knows no shape yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the record at the front of `bytes`; returns its document, and how many bytes it has. Costs a copy of the
    /// body, which is not decoded.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<(Document, usize)> {
        let length = bytes.len();
        let document = self.read_front(&mut bytes).map_err(|error| Error::invalid(error.message()))?;
        Ok((document, length - bytes.len()))
    }

    fn read_front(&mut self, bytes: &mut &[u8]) -> Result<Document> {
        let shapes = self.dictionary(varint::read(bytes)?);
        for _ in 0..varint::read(bytes)? {
            let number = ShapeNumber::new(varint::read(bytes)?).ok_or_else(|| malformed("a shape's number"))?;
            let count = varint::read(bytes)?;
            if shapes.get(number).is_some() {
                (0..count).try_for_each(|_| read_bytes(bytes).map(drop))?;
                continue;
            }
            let names = (0..count).map(|_| read_text(bytes)).collect::<Result<Vec<_>>>()?;
            shapes.restore_sparse(number, names);
        }
        let id = DocumentId::new(read_text(bytes)?)?;
        let generation = u32::try_from(varint::read(bytes)?).map_err(|_| malformed("a generation"))?;
        let (hash, rest) = bytes.split_first_chunk().ok_or_else(|| malformed("a revision"))?;
        *bytes = rest;
        let revision = Revision::from_stored(generation, *hash)?;
        let sequence = Sequence::new(varint::read(bytes)?);
        let (&deleted, rest) = bytes.split_first().ok_or_else(|| malformed("a deletion mark"))?;
        *bytes = rest;
        let body = read_bytes(bytes)?;
        if PackedValue::new(body, &shapes)?.kind() != Kind::Object {
            return Err(malformed("a body"));
        }
        Ok(Document::new(id, revision, sequence, deleted == 1, Body::new(body), shapes))
    }

    fn dictionary(&mut self, number: u64) -> Arc<Shapes> {
        if self.dictionaries.len() >= DICTIONARIES_MAX && !self.dictionaries.contains_key(&number) {
            self.dictionaries.clear();
        }
        self.dictionaries.entry(number).or_default().clone()
    }
}

fn read_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = usize::try_from(varint::read(bytes)?).map_err(|_| malformed("a length"))?;
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(|| malformed("its end"))?;
    *bytes = rest;
    Ok(taken)
}

fn read_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str> {
    str::from_utf8(read_bytes(bytes)?).map_err(|_| malformed("a text"))
}

#[cold]
fn malformed(what: &str) -> Error {
    Error::invalid(format!("a document's record is malformed: {what} is missing or out of range"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Database;

    fn documents() -> Vec<Document> {
        let db = Database::in_memory();
        db.insert("a", &json!({"n": 1, "nested": {"x": [1.5, {"deep": "ä"}]}, "list": []})).unwrap();
        db.insert("b", &json!({"n": 2, "nested": {"x": [1.5, {"deep": null}]}, "list": [{}]})).unwrap();
        let revision = db.insert("c", &json!({"other": "names"})).unwrap();
        db.files().attach("c", &revision, "f.txt", "text/plain", &b"content"[..]).unwrap();
        ["a", "b", "c"].map(|id| db.get(id).unwrap().unwrap()).into()
    }

    #[test]
    fn records_keep_all_of_a_document() {
        let (mut writer, mut bytes, mut ends) = (RecordWriter::new(), Vec::new(), Vec::new());
        let documents = documents();
        for document in &documents {
            writer.write(document, &mut bytes).unwrap();
            ends.push(bytes.len());
        }
        let (mut reader, mut at) = (RecordReader::new(), 0);
        for (document, end) in documents.iter().zip(&ends) {
            let (read, length) = reader.read(&bytes[at..]).unwrap();
            at += length;
            assert_eq!(at, *end);
            assert_eq!(&read, document);
            assert_eq!(read.sequence(), document.sequence());
            assert_eq!(read.to_json().unwrap(), document.to_json().unwrap());
            assert_eq!(read.attachments().unwrap(), document.attachments().unwrap());
        }
        // The names of the first document are not repeated.
        let names = |bytes: &[u8]| bytes.windows(6).filter(|window| window == b"nested").count();
        assert_eq!(names(&bytes), 1);
        // The same database opened twice is two dictionaries.
        let mut other = Vec::new();
        writer.write(&self::documents()[0], &mut other).unwrap();
        assert_eq!(names(&other), 1);
        assert_eq!(reader.read(&other).unwrap().0.to_json().unwrap(), documents[0].to_json().unwrap());
    }

    #[test]
    fn damaged_records_are_errors() {
        let mut bytes = Vec::new();
        RecordWriter::new().write(&documents()[0], &mut bytes).unwrap();
        for end in 0..bytes.len() {
            assert!(RecordReader::new().read(&bytes[..end]).is_err(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // It may be another document; reading it ends.
                if let Ok((document, _)) = RecordReader::new().read(&damaged) {
                    document.value().ok();
                }
            }
        }
        // A record that refers to shapes that were never sent.
        let (mut writer, mut second) = (RecordWriter::new(), Vec::new());
        writer.write(&documents()[0], &mut Vec::new()).unwrap();
        writer.known.extend((0..100).filter_map(ShapeNumber::new));
        let document = &documents()[0];
        writer.dictionary = document.shapes.dictionary();
        writer.write(document, &mut second).unwrap();
        let read = RecordReader::new().read(&second).unwrap().0;
        assert!(read.value().is_err() && read.get("n").is_err());
    }
}
