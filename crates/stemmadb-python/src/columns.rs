//! Documents as columns: typed builders that are filled straight from packed records.
//!
//! A column takes the type of its first values and changes it if later ones don't fit: integers become doubles, and
//! everything else becomes JSON text. Rows without a value are null. Columns are nested as the documents are: an array
//! is a list of one element column, an object a struct of a column for each name.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use stemmadb::{Document, Error, Number, Object, Value};

use crate::errors::Result;

/// More names in one object are keys rather than columns: the object becomes JSON text.
const FIELDS_MAX: usize = 1_000;
/// More columns of a table are refused.
const COLUMNS_MAX: usize = 10_000;

/// One column. Its data may be shorter than its rows until [`Column::pad`] was called.
#[derive(Default)]
pub(crate) struct Column {
    pub(crate) data: Data,
    /// Whether each row has a value.
    pub(crate) valid: Vec<bool>,
}

/// The values of a column, with some value in rows that have none.
#[derive(Default)]
pub(crate) enum Data {
    /// No row has a value yet.
    #[default]
    Null,
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Float(Vec<f64>),
    Text(Text),
    List(List),
    Struct(Struct),
    /// JSON text of values of several types.
    Json(Text),
}

/// Strings one after the other, and where each ends.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<i64>,
}

/// The elements of all lists, and where each list ends.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) elements: Box<Column>,
    pub(crate) ends: Vec<i64>,
}

/// The fields of objects.
#[derive(Default)]
pub(crate) struct Struct {
    positions: HashMap<Box<str>, usize>,
    pub(crate) fields: Vec<(Box<str>, Column)>,
    rows: usize,
}

impl Text {
    fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len() as i64);
    }

    fn pad(&mut self, rows: usize) {
        self.ends.resize(rows.max(self.ends.len()), self.bytes.len() as i64);
    }

    /// The text of a row.
    pub(crate) fn get(&self, row: usize) -> &str {
        let bytes = &self.bytes[start(&self.ends, row)..self.ends[row] as usize];
        std::str::from_utf8(bytes).expect("only strings were pushed")
    }
}

/// Where a row begins.
fn start(ends: &[i64], row: usize) -> usize {
    if row == 0 { 0 } else { ends[row - 1] as usize }
}

impl Struct {
    /// The column of a name. Documents mostly have their fields in the same order, so `guess` is mostly right.
    fn field(&mut self, name: &str, guess: usize) -> Result<usize> {
        if self.fields.get(guess).is_some_and(|(field, _)| **field == *name) {
            return Ok(guess);
        }
        if let Some(position) = self.positions.get(name) {
            return Ok(*position);
        }
        if self.fields.len() == COLUMNS_MAX {
            return Err(Error::invalid(format!("the table would have more than {COLUMNS_MAX} columns"))
                .with_hint("choose the columns with fields=[…]"));
        }
        self.positions.insert(name.into(), self.fields.len());
        self.fields.push((name.into(), Column::default()));
        Ok(self.fields.len() - 1)
    }
}

impl Column {
    /// Gives the column this many rows, the new ones without a value.
    pub(crate) fn pad(&mut self, rows: usize) {
        if self.valid.len() >= rows {
            return;
        }
        self.valid.resize(rows, false);
        match &mut self.data {
            Data::Null => {}
            Data::Bool(values) => values.resize(rows, false),
            Data::Int(values) => values.resize(rows, 0),
            Data::Float(values) => values.resize(rows, 0.0),
            Data::Text(text) | Data::Json(text) => text.pad(rows),
            Data::List(list) => list.ends.resize(rows, list.ends.last().copied().unwrap_or(0)),
            Data::Struct(fields) => fields.rows = rows,
        }
    }

    /// Gives all columns within a struct the rows of it.
    pub(crate) fn finish(&mut self) {
        match &mut self.data {
            Data::List(list) => list.elements.finish(),
            Data::Struct(fields) => {
                for (_, column) in &mut fields.fields {
                    column.pad(fields.rows);
                    column.finish();
                }
            }
            _ => {}
        }
    }

    /// Prepares the next row, `row`, for a value of data that `is_kind` accepts; a column of no values becomes `empty`.
    /// Returns whether the value fits.
    fn accepts(&mut self, row: usize, is_kind: impl Fn(&Data) -> bool, empty: impl FnOnce() -> Data) -> bool {
        if matches!(self.data, Data::Null) {
            let rows = std::mem::take(&mut self.valid).len();
            self.data = empty();
            self.pad(rows);
        }
        self.pad(row);
        is_kind(&self.data)
    }

    fn push_number(&mut self, row: usize, number: Number) {
        let integer = number.as_i64();
        let empty = || if integer.is_some() { Data::Int(Vec::new()) } else { Data::Float(Vec::new()) };
        self.accepts(row, |_| true, empty);
        if let (Data::Int(values), None) = (&self.data, integer) {
            self.data = Data::Float(values.iter().map(|value| *value as f64).collect());
        }
        match (&mut self.data, integer) {
            (Data::Int(values), Some(integer)) => values.push(integer),
            (Data::Float(values), _) => values.push(number.as_f64()),
            _ => return self.push_json(row, &Value::Number(number)),
        }
        self.valid.push(true);
    }

    fn push_bool(&mut self, row: usize, truth: bool) {
        self.accepts(row, |_| true, || Data::Bool(Vec::new()));
        match &mut self.data {
            Data::Bool(values) => values.push(truth),
            _ => return self.push_json(row, &Value::Bool(truth)),
        }
        self.valid.push(true);
    }

    fn push_text(&mut self, row: usize, text: &str) {
        self.accepts(row, |_| true, || Data::Text(Text::default()));
        match &mut self.data {
            Data::Text(values) => values.push(text),
            _ => return self.push_json(row, &Value::from(text)),
        }
        self.valid.push(true);
    }

    fn push_json(&mut self, row: usize, value: &Value) {
        self.pad(row);
        if !matches!(self.data, Data::Json(_)) {
            self.become_json();
        }
        if let Data::Json(text) = &mut self.data {
            text.push(&value.to_json());
            self.valid.push(true);
        }
    }

    /// Replaces the values by their JSON text.
    fn become_json(&mut self) {
        self.finish();
        let mut text = Text::default();
        for row in 0..self.valid.len() {
            match self.valid[row] {
                true => text.push(&self.value(row).to_json()),
                false => text.push(""),
            }
        }
        self.data = Data::Json(text);
    }

    /// The value of a row. Of JSON text, the text.
    pub(crate) fn value(&self, row: usize) -> Value {
        if !self.valid.get(row).copied().unwrap_or(false) {
            return Value::Null;
        }
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(values) => Value::Bool(values[row]),
            Data::Int(values) => Value::from(values[row]),
            Data::Float(values) => Number::from_f64(values[row]).map_or(Value::Null, Value::Number),
            Data::Text(text) => Value::from(text.get(row)),
            Data::Json(text) => text.get(row).parse().unwrap_or_default(),
            Data::List(list) => {
                let range = start(&list.ends, row)..list.ends[row] as usize;
                Value::Array(range.map(|element| list.elements.value(element)).collect())
            }
            Data::Struct(fields) => {
                let present = fields.fields.iter().filter(|(_, column)| column.valid.get(row).copied() == Some(true));
                Value::Object(present.map(|(name, column)| (name, column.value(row))).collect::<Object>())
            }
        }
    }

    /// A table of documents, with the column `_id` first.
    ///
    /// # Errors
    /// `Invalid` for too many columns; those of reading.
    pub(crate) fn of_documents(documents: impl Iterator<Item = Result<Document>>) -> Result<Self> {
        let mut table = Column { data: Data::Struct(Struct::default()), valid: Vec::new() };
        for (row, document) in documents.enumerate() {
            let document = document?;
            if let Data::Struct(fields) = &mut table.data {
                let id = fields.field("_id", 0)?;
                fields.fields[id].1.push_text(row, document.id().as_str());
            }
            document.deserialize_with(Cell { column: &mut table, row, is_table: true })?;
        }
        table.finish();
        Ok(table)
    }

    /// A table of plain rows.
    ///
    /// # Errors
    /// `Invalid` for too many columns; those of reading.
    pub(crate) fn of_values(values: impl Iterator<Item = Result<Value>>) -> Result<Self> {
        let mut table = Column { data: Data::Struct(Struct::default()), valid: Vec::new() };
        for (row, value) in values.enumerate() {
            for (position, (name, value)) in value?.as_object().into_iter().flatten().enumerate() {
                let Data::Struct(fields) = &mut table.data else { break };
                let at = fields.field(name, position)?;
                fields.fields[at].1.push_value(row, value)?;
            }
            table.pad(row);
            table.valid.push(true);
            if let Data::Struct(fields) = &mut table.data {
                fields.rows = row + 1;
            }
        }
        table.finish();
        Ok(table)
    }

    fn push_value(&mut self, row: usize, value: &Value) -> Result<()> {
        match value {
            Value::Null => self.pad(row + 1),
            Value::Bool(truth) => self.push_bool(row, *truth),
            Value::Number(number) => self.push_number(row, *number),
            Value::String(text) => self.push_text(row, text),
            Value::Array(elements) => {
                if !self.accepts(row, |data| matches!(data, Data::List(_)), || Data::List(List::default())) {
                    self.push_json(row, value);
                } else if let Data::List(list) = &mut self.data {
                    for element in elements {
                        let at = list.elements.valid.len();
                        list.elements.push_value(at, element)?;
                    }
                    list.ends.push(list.elements.valid.len() as i64);
                    self.valid.push(true);
                }
            }
            Value::Object(object) => {
                let fits =
                    self.accepts(row, |data| matches!(data, Data::Struct(_)), || Data::Struct(Struct::default()));
                if !fits || object.len() > FIELDS_MAX {
                    self.push_json(row, value);
                } else if let Data::Struct(fields) = &mut self.data {
                    for (position, (name, value)) in object.iter().enumerate() {
                        let at = fields.field(name, position)?;
                        fields.fields[at].1.push_value(row, value)?;
                    }
                    fields.rows = row + 1;
                    self.valid.push(true);
                }
            }
        }
        Ok(())
    }
}

/// A row of a column, to be filled by a deserializer.
struct Cell<'c> {
    column: &'c mut Column,
    row: usize,
    /// Whether it is a row of a table, whose columns are never too many to be columns.
    is_table: bool,
}

impl<'de> DeserializeSeed<'de> for Cell<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Cell<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        self.column.pad(self.row + 1);
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> std::result::Result<(), E> {
        self.column.push_bool(self.row, truth);
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> std::result::Result<(), E> {
        self.column.push_number(self.row, Number::from(number));
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> std::result::Result<(), E> {
        self.column.push_number(self.row, Number::from(number));
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> std::result::Result<(), E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("a number is not finite"))?;
        self.column.push_number(self.row, number);
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<(), E> {
        self.column.push_text(self.row, text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> std::result::Result<(), A::Error> {
        let Cell { column, row, .. } = self;
        if !column.accepts(row, |data| matches!(data, Data::List(_)), || Data::List(List::default())) {
            let value = Value::deserialize(SeqAccessDeserializer::new(elements))?;
            column.push_json(row, &value);
            return Ok(());
        }
        let Data::List(list) = &mut column.data else { return Ok(()) };
        loop {
            let row = list.elements.valid.len();
            let cell = Cell { column: &mut list.elements, row, is_table: false };
            if elements.next_element_seed(cell)?.is_none() {
                break;
            }
        }
        list.ends.push(list.elements.valid.len() as i64);
        column.valid.push(true);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<(), A::Error> {
        let Cell { column, row, is_table } = self;
        let mut fits = column.accepts(row, |data| matches!(data, Data::Struct(_)), || Data::Struct(Struct::default()));
        if let Data::Struct(fields) = &column.data {
            fits &= is_table || fields.fields.len() <= FIELDS_MAX;
        }
        if !fits {
            let value = Value::deserialize(MapAccessDeserializer::new(entries))?;
            column.push_json(row, &value);
            return Ok(());
        }
        let Data::Struct(fields) = &mut column.data else { return Ok(()) };
        // The column of ids comes before the others.
        let mut guess = usize::from(is_table);
        while let Some(position) = entries.next_key_seed(FieldPosition { fields, guess })? {
            let cell = Cell { column: &mut fields.fields[position].1, row, is_table: false };
            entries.next_value_seed(cell)?;
            guess = position + 1;
        }
        fields.rows = row + 1;
        column.valid.push(true);
        Ok(())
    }
}

/// Finds the column of a field's name.
struct FieldPosition<'f> {
    fields: &'f mut Struct,
    guess: usize,
}

impl<'de> DeserializeSeed<'de> for FieldPosition<'_> {
    type Value = usize;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldPosition<'_> {
    type Value = usize;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> std::result::Result<usize, E> {
        self.fields.field(name, self.guess).map_err(E::custom)
    }
}
