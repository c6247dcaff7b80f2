//! What a server answers: values, and documents as records.

use stemmadb::remote::RecordReader;
use stemmadb::{Document, Object, Result, Value};

use crate::reader::{Reader, malformed};
use crate::value::{ARRAY, DEPTH, Encoding, OBJECT, RECORD, count, read_packed};

/// The field of a result that has the last rows.
const ROWS: &str = "rows";

/// A row, or a result.
#[derive(Debug)]
pub enum Item {
    /// A value.
    Value(Value),
    /// A document that arrived as a record: see [`Encoding::Records`].
    Document(Document),
}

impl Item {
    /// The value.
    ///
    /// # Errors
    /// `Invalid` if it is a document's record.
    pub fn into_value(self) -> Result<Value> {
        match self {
            Item::Value(value) => Ok(value),
            Item::Document(_) => Err(malformed("a document where a value is expected")),
        }
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct Reply {
    value: Item,
    /// The result's field `rows`, if it was read apart from `value`.
    rows: Option<Vec<Item>>,
}

impl Reply {
    /// The whole result.
    ///
    /// # Errors
    /// `Invalid` if rows are documents' records.
    pub fn into_item(self) -> Result<Item> {
        let Some(rows) = self.rows else { return Ok(self.value) };
        let rows = rows.into_iter().map(Item::into_value).collect::<Result<Vec<_>>>()?;
        let mut whole = Object::new();
        whole.insert(ROWS, rows);
        if let Value::Object(rest) = self.value.into_value()? {
            whole.extend(rest);
        }
        Ok(Item::Value(Value::Object(whole)))
    }

    /// The rows, and the other fields of the result.
    ///
    /// # Errors
    /// `Invalid` if the result has no rows.
    pub fn into_rows(self) -> Result<(Vec<Item>, Value)> {
        let mut value = self.value.into_value()?;
        if let Some(rows) = self.rows {
            return Ok((rows, value));
        }
        match value.as_object_mut().and_then(|fields| fields.remove(ROWS)) {
            Some(Value::Array(rows)) => Ok((rows.into_iter().map(Item::Value).collect(), value)),
            _ => Err(malformed("a result without `rows`")),
        }
    }
}

/// Reads the answers of one connection, in their order.
#[derive(Debug)]
pub struct AnswerReader {
    encoding: Encoding,
    records: RecordReader,
}

impl AnswerReader {
    /// Returns a reader for a connection with this encoding.
    pub fn new(encoding: Encoding) -> Self {
        AnswerReader { encoding, records: RecordReader::new() }
    }

    /// The encoding of the connection.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Reads the payload of an `Item` frame.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn rows(&mut self, payload: &[u8]) -> Result<Vec<Item>> {
        if self.encoding != Encoding::Records {
            return match self.encoding.read(payload)? {
                Value::Array(rows) => Ok(rows.into_iter().map(Item::Value).collect()),
                _ => Err(malformed("an item is no array")),
            };
        }
        let mut reader = Reader::new(payload);
        let rows = self.read_rows(&mut reader)?;
        end(&reader)?;
        Ok(rows)
    }

    /// Reads the payload of a `Reply` frame.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn reply(&mut self, payload: &[u8]) -> Result<Reply> {
        if self.encoding != Encoding::Records {
            return Ok(Reply { value: Item::Value(self.encoding.read(payload)?), rows: None });
        }
        let mut reader = Reader::new(payload);
        let reply = match payload.first() {
            Some(&OBJECT) => self.read_object(&mut reader)?,
            _ => Reply { value: self.read_item(&mut reader)?, rows: None },
        };
        end(&reader)?;
        Ok(reply)
    }

    /// Reads an object whose rows, if they are its first field, may be records.
    fn read_object(&mut self, reader: &mut Reader<'_>) -> Result<Reply> {
        let whole = Reader::new(reader.unread());
        reader.u8()?;
        let (fields, depth) = count(reader, DEPTH, 2)?;
        let begins_with_rows = fields > 0 && reader.text()? == ROWS && reader.unread().first() == Some(&ARRAY);
        if !begins_with_rows {
            *reader = whole;
            return Ok(Reply { value: Item::Value(read_packed(reader, DEPTH)?), rows: None });
        }
        let rows = self.read_rows(reader)?;
        let mut value = Object::new();
        for _ in 1..fields {
            let name = reader.text()?;
            if value.insert(name, read_packed(reader, depth)?).is_some() {
                return Err(malformed("an object has a field twice"));
            }
        }
        Ok(Reply { value: Item::Value(Value::Object(value)), rows: Some(rows) })
    }

    fn read_rows(&mut self, reader: &mut Reader<'_>) -> Result<Vec<Item>> {
        if reader.u8()? != ARRAY {
            return Err(malformed("an item is no array"));
        }
        let (count, _) = count(reader, DEPTH, 1)?;
        let mut rows = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            rows.push(self.read_item(reader)?);
        }
        Ok(rows)
    }

    fn read_item(&mut self, reader: &mut Reader<'_>) -> Result<Item> {
        if reader.unread().first() != Some(&RECORD) {
            return read_packed(reader, DEPTH).map(Item::Value);
        }
        reader.u8()?;
        let (document, length) = self.records.read(reader.unread()).map_err(|error| malformed(error.message()))?;
        reader.take(length)?;
        Ok(Item::Document(document))
    }
}

fn end(reader: &Reader<'_>) -> Result<()> {
    if reader.is_empty() { Ok(()) } else { Err(malformed("bytes follow a value")) }
}

#[cfg(test)]
mod tests {
    use stemmadb::Database;
    use stemmadb::remote::RecordWriter;

    use super::*;

    fn packed(value: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        Encoding::Packed.write(&value.parse().unwrap(), &mut bytes);
        bytes
    }

    /// A result whose rows are two documents and a null.
    fn documents() -> Vec<u8> {
        let db = Database::in_memory();
        let mut writer = RecordWriter::new();
        let mut bytes = Vec::new();
        Encoding::write_packed_object_head(2, &mut bytes);
        Encoding::write_packed_name(ROWS, &mut bytes);
        Encoding::write_packed_array_head(3, &mut bytes);
        for id in ["a", "b"] {
            db.insert(id, &Object::from_iter([("name", id)])).unwrap();
            Encoding::write_record_head(&mut bytes);
            writer.write(&db.get(id).unwrap().unwrap(), &mut bytes).unwrap();
        }
        Encoding::Records.write(&Value::Null, &mut bytes);
        Encoding::write_packed_name("token", &mut bytes);
        Encoding::Records.write(&Value::from("t"), &mut bytes);
        bytes
    }

    #[test]
    fn rows_are_documents_and_values() {
        let (rows, rest) = AnswerReader::new(Encoding::Records).reply(&documents()).unwrap().into_rows().unwrap();
        let described = rows.into_iter().map(|row| match row {
            Item::Document(document) => format!("{} {}", document.id(), document.to_json().unwrap()),
            Item::Value(value) => value.to_json(),
        });
        assert_eq!(described.collect::<Vec<_>>(), [r#"a {"name":"a"}"#, r#"b {"name":"b"}"#, "null"]);
        assert_eq!(rest.to_json(), r#"{"token":"t"}"#);
        assert!(AnswerReader::new(Encoding::Records).reply(&documents()).unwrap().into_item().is_err());
    }

    #[test]
    fn values_are_whole_in_each_encoding() {
        for text in ["null", "[1,[2]]", r#"{"rows":[1,{"a":2}],"n":1}"#, r#"{"n":1,"rows":[1]}"#, r#"{"rows":7}"#, "{}"]
        {
            let answers = [
                (Encoding::Json, text.as_bytes().to_vec()),
                (Encoding::Packed, packed(text)),
                (Encoding::Records, packed(text)),
            ];
            for (encoding, bytes) in answers {
                let item = AnswerReader::new(encoding).reply(&bytes).unwrap().into_item().unwrap();
                assert_eq!(item.into_value().unwrap(), text.parse().unwrap(), "{encoding:?} {text}");
            }
        }
        for encoding in [Encoding::Json, Encoding::Packed, Encoding::Records] {
            let bytes = if encoding == Encoding::Json { b"[1,2]".to_vec() } else { packed("[1,2]") };
            assert_eq!(AnswerReader::new(encoding).rows(&bytes).unwrap().len(), 2);
            assert!(AnswerReader::new(encoding).rows(&[]).is_err());
        }
    }

    #[test]
    fn malformed_answers_are_refused() {
        let bytes = documents();
        for end in 0..bytes.len() {
            assert!(AnswerReader::new(Encoding::Records).reply(&bytes[..end]).is_err(), "cut at {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(AnswerReader::new(Encoding::Records).reply(&longer).is_err());
        for hostile in [&[RECORD][..], &[ARRAY, 0xff, 0xff, 0x7f], &[OBJECT, 1, 4, b'r', b'o', b'w', b's']] {
            assert!(AnswerReader::new(Encoding::Records).reply(hostile).is_err());
            assert!(AnswerReader::new(Encoding::Records).rows(hostile).is_err());
        }
    }
}
