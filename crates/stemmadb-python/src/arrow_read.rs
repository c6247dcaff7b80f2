//! Documents from Arrow streams, by the C data and stream interfaces: what polars, pyarrow and DuckDB give to
//! `insert_many`, without any of them.
//!
//! Columns become fields, and null values are left out. Times become text by the convention of `_convert.py`, binary
//! values base64, decimals text. Types that no document has, such as unions and intervals, are refused.
#![expect(unsafe_code, reason = "a C interface")]

use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use stemmadb::{Error, Number, Object, Value};

use crate::arrow::{ArrowArray, ArrowArrayStream, ArrowSchema, STREAM_NAME};
use crate::errors::Result;

/// An Arrow stream that was taken out of its capsule: batches of rows.
pub(crate) struct ArrowRows {
    stream: ArrowArrayStream,
    fields: Vec<Field>,
    batch: Option<Batch>,
}

/// An array of the stream, which is released when it is dropped, and the next of its rows.
struct Batch {
    array: ArrowArray,
    next: i64,
}

// SAFETY: the memory of an array belongs to its owner and is only read; the interface allows releasing it in any
// thread.
unsafe impl Send for Batch {}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(release) = self.array.release {
            // SAFETY: the array is owned, and was not released.
            unsafe { release(&mut self.array) }
        }
    }
}

/// A schema that is released when it is dropped.
struct OwnedSchema(ArrowSchema);

impl Drop for OwnedSchema {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the schema is owned, and was not released.
            unsafe { release(&mut self.0) }
        }
    }
}

/// A column: its name, and how its values are read.
struct Field {
    name: String,
    kind: Kind,
}

enum Kind {
    Null,
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    /// Text or binary values with offsets of 32 or 64 bits, or as views.
    Bytes {
        layout: Layout,
        is_text: bool,
    },
    /// Days since 1970.
    Date,
    /// A time: units in a second, whether it is 64 bits wide, and what it counts from.
    Time {
        per_second: i64,
        is_wide: bool,
        origin: Origin,
    },
    /// A decimal of 128 bits with so many decimal places.
    Decimal(usize),
    List {
        is_large: bool,
        element: Box<Field>,
    },
    FixedList {
        length: i64,
        element: Box<Field>,
    },
    Struct(Vec<Field>),
    /// Positions in a dictionary of values.
    Dictionary {
        positions: Box<Kind>,
        values: Box<Field>,
    },
}

#[derive(Clone, Copy)]
enum Layout {
    Offsets32,
    Offsets64,
    Views,
}

#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Midnight,
    /// 1970 without a zone.
    Naive,
    /// 1970 in UTC.
    Utc,
}

/// A string of C.
///
/// # Safety
/// `text` is null, or points to a string that ends with a zero byte and lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: as required of the caller.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

fn refused(name: &str, format: &str) -> Error {
    Error::invalid(format!("the column `{name}` has the Arrow type `{format}`, which documents don't have"))
        .with_hint("cast it, for example to text")
}

impl Field {
    /// # Safety
    /// `schema` is valid and not released.
    unsafe fn new(schema: &ArrowSchema, depth: usize) -> Result<Self> {
        // SAFETY: the strings of a valid schema are valid.
        let (name, format) = unsafe { (text(schema.name).to_owned(), text(schema.format)) };
        if depth > stemmadb::DEPTH_MAX {
            return Err(refused(&name, format));
        }
        let children = || -> Result<Vec<Field>> {
            let count = usize::try_from(schema.n_children).unwrap_or(0);
            // SAFETY: a valid schema has so many valid children.
            (0..count).map(|at| unsafe { Field::new(&**schema.children.add(at), depth + 1) }).collect()
        };
        let element = || -> Result<Box<Field>> {
            children()?.into_iter().next().map(Box::new).ok_or_else(|| refused(&name, format))
        };
        let bytes = |layout, is_text| Kind::Bytes { layout, is_text };
        let time = |unit: &str, origin| {
            let (per_second, is_wide) = match unit {
                "s" => (1, origin != Origin::Midnight),
                "m" => (1_000, origin != Origin::Midnight),
                "u" => (1_000_000, true),
                "n" => (1_000_000_000, true),
                _ => return Err(refused(&name, format)),
            };
            Ok(Kind::Time { per_second, is_wide, origin })
        };
        let kind = match format {
            "n" => Kind::Null,
            "b" => Kind::Bool,
            "c" => Kind::I8,
            "C" => Kind::U8,
            "s" => Kind::I16,
            "S" => Kind::U16,
            "i" => Kind::I32,
            "I" => Kind::U32,
            "l" => Kind::I64,
            "L" => Kind::U64,
            "f" => Kind::F32,
            "g" => Kind::F64,
            "u" => bytes(Layout::Offsets32, true),
            "U" => bytes(Layout::Offsets64, true),
            "vu" => bytes(Layout::Views, true),
            "z" => bytes(Layout::Offsets32, false),
            "Z" => bytes(Layout::Offsets64, false),
            "vz" => bytes(Layout::Views, false),
            "tdD" => Kind::Date,
            "tdm" => Kind::Time { per_second: 1_000, is_wide: true, origin: Origin::Naive },
            "+l" => Kind::List { is_large: false, element: element()? },
            "+L" => Kind::List { is_large: true, element: element()? },
            "+s" => Kind::Struct(children()?),
            _ if format.starts_with("tt") => time(&format[2..], Origin::Midnight)?,
            _ if format.starts_with("ts") => match format[2..].split_once(':') {
                Some((unit, "")) => time(unit, Origin::Naive)?,
                Some((unit, _)) => time(unit, Origin::Utc)?,
                None => return Err(refused(&name, format)),
            },
            _ if format.starts_with("+w:") => {
                let length = format[3..].parse().map_err(|_| refused(&name, format))?;
                Kind::FixedList { length, element: element()? }
            }
            _ if format.starts_with("d:") => {
                let mut parts = format[2..].split(',').map(str::parse::<usize>);
                match (parts.next(), parts.next(), parts.next()) {
                    (Some(Ok(_)), Some(Ok(places)), None | Some(Ok(128))) => Kind::Decimal(places),
                    _ => return Err(refused(&name, format)),
                }
            }
            _ => return Err(refused(&name, format)),
        };
        let kind = match NonNull::new(schema.dictionary) {
            Some(values) => {
                // SAFETY: the dictionary of a valid schema is valid.
                let values = Box::new(unsafe { Field::new(values.as_ref(), depth + 1)? });
                Kind::Dictionary { positions: Box::new(kind), values }
            }
            None => kind,
        };
        Ok(Field { name, kind })
    }
}

/// Reads an entry of a buffer.
///
/// # Safety
/// The buffer of the array has such entries, and more than `at` of them.
unsafe fn entry<T: Copy>(array: &ArrowArray, buffer: usize, at: i64) -> T {
    // SAFETY: as required of the caller; the producer need not align buffers.
    unsafe { (*array.buffers.add(buffer)).cast::<T>().offset(at as isize).read_unaligned() }
}

/// Whether a row has a value.
///
/// # Safety
/// The array is valid, of a type that has a bitmap, and has the row.
unsafe fn is_valid(array: &ArrowArray, at: i64) -> bool {
    if array.null_count == 0 || array.n_buffers == 0 {
        return true;
    }
    // SAFETY: the first buffer of a valid array is null or a bitmap of its rows.
    unsafe {
        let bitmap = (*array.buffers).cast::<u8>();
        bitmap.is_null() || *bitmap.offset((at / 8) as isize) >> (at % 8) & 1 == 1
    }
}

/// The bytes of a row.
///
/// # Safety
/// The array is valid, has this layout, and has the row.
unsafe fn bytes(array: &ArrowArray, layout: Layout, at: i64) -> &[u8] {
    // SAFETY: buffers of a valid array have the offsets and the bytes that the layout says.
    unsafe {
        let (start, length): (*const u8, usize) = match layout {
            Layout::Offsets32 | Layout::Offsets64 => {
                let (start, end) = match layout {
                    Layout::Offsets32 => {
                        (i64::from(entry::<i32>(array, 1, at)), i64::from(entry::<i32>(array, 1, at + 1)))
                    }
                    _ => (entry::<i64>(array, 1, at), entry::<i64>(array, 1, at + 1)),
                };
                let data = (*array.buffers.add(2)).cast::<u8>();
                (data.wrapping_offset(start as isize), usize::try_from(end - start).unwrap_or(0))
            }
            Layout::Views => {
                let view = (*array.buffers.add(1)).cast::<u8>().offset(at as isize * 16);
                let field = |at: usize| view.add(at).cast::<i32>().read_unaligned();
                let length = usize::try_from(field(0)).unwrap_or(0);
                if length <= 12 {
                    (view.add(4), length)
                } else {
                    let data = (*array.buffers.add(2 + field(8) as usize)).cast::<u8>();
                    (data.offset(field(12) as isize), length)
                }
            }
        };
        if length == 0 { &[] } else { std::slice::from_raw_parts(start, length) }
    }
}

/// The value of a row.
///
/// # Safety
/// The array is valid, has the type of the kind, and has the row.
unsafe fn value(kind: &Kind, array: &ArrowArray, row: i64) -> Result<Value> {
    let at = row + array.offset;
    // SAFETY: the array is valid, so its buffers and children are those of its type.
    unsafe {
        if matches!(kind, Kind::Null) || !is_valid(array, at) {
            return Ok(Value::Null);
        }
        let child = |position: usize| &**array.children.add(position);
        let list = |element: &Field, start: i64, end: i64| -> Result<Value> {
            let elements = (start..end).map(|at| value(&element.kind, child(0), at));
            Ok(Value::Array(elements.collect::<Result<_>>()?))
        };
        Ok(match kind {
            Kind::Null => Value::Null,
            Kind::Bool => Value::Bool(entry::<u8>(array, 1, at / 8) >> (at % 8) & 1 == 1),
            Kind::I8 => Value::from(i64::from(entry::<i8>(array, 1, at))),
            Kind::U8 => Value::from(u64::from(entry::<u8>(array, 1, at))),
            Kind::I16 => Value::from(i64::from(entry::<i16>(array, 1, at))),
            Kind::U16 => Value::from(u64::from(entry::<u16>(array, 1, at))),
            Kind::I32 => Value::from(i64::from(entry::<i32>(array, 1, at))),
            Kind::U32 => Value::from(u64::from(entry::<u32>(array, 1, at))),
            Kind::I64 => Value::from(entry::<i64>(array, 1, at)),
            Kind::U64 => Value::from(entry::<u64>(array, 1, at)),
            Kind::F32 => double(f64::from(entry::<f32>(array, 1, at))),
            Kind::F64 => double(entry::<f64>(array, 1, at)),
            Kind::Bytes { layout, is_text: true } => {
                let text = std::str::from_utf8(bytes(array, *layout, at));
                Value::from(text.map_err(|_| Error::invalid("a text of an Arrow stream is not UTF-8"))?)
            }
            Kind::Bytes { layout, is_text: false } => Value::from(STANDARD.encode(bytes(array, *layout, at))),
            Kind::Date => Value::from(date(i64::from(entry::<i32>(array, 1, at)))),
            Kind::Time { per_second, is_wide, origin } => {
                let count = if *is_wide { entry::<i64>(array, 1, at) } else { entry::<i32>(array, 1, at).into() };
                Value::from(time(count, *per_second, *origin))
            }
            Kind::Decimal(places) => Value::from(decimal(entry::<i128>(array, 1, at), *places)),
            Kind::List { is_large: false, element } => {
                list(element, entry::<i32>(array, 1, at).into(), entry::<i32>(array, 1, at + 1).into())?
            }
            Kind::List { is_large: true, element } => {
                list(element, entry::<i64>(array, 1, at), entry::<i64>(array, 1, at + 1))?
            }
            Kind::FixedList { length, element } => list(element, at * length, (at + 1) * length)?,
            Kind::Struct(fields) => Value::Object(object(fields, array, at)?),
            Kind::Dictionary { positions, values } => {
                let position = value(positions, array, row)?.as_u64();
                match (position.and_then(|at| i64::try_from(at).ok()), array.dictionary.is_null()) {
                    (Some(at), false) => value(&values.kind, &*array.dictionary, at)?,
                    _ => return Err(Error::invalid("an Arrow stream has a broken dictionary")),
                }
            }
        })
    }
}

/// The fields of a struct, without those that are null. `at` counts the offset of the struct.
///
/// # Safety
/// The array is a valid struct of these fields, and has the row.
unsafe fn object(fields: &[Field], array: &ArrowArray, at: i64) -> Result<Object> {
    let mut object = Object::new();
    for (position, field) in fields.iter().enumerate() {
        // SAFETY: a valid struct has an array for each field.
        let value = unsafe { value(&field.kind, &**array.children.add(position), at)? };
        if !value.is_null() {
            object.insert(&field.name, value);
        }
    }
    Ok(object)
}

/// A double; `NaN` is a missing value.
fn double(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// The date so many days after 1970, in the Gregorian calendar.
fn date(days: i64) -> String {
    // Years are counted from March, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + i64::from(month <= 2))
}

/// A time as text with microseconds.
fn time(count: i64, per_second: i64, origin: Origin) -> String {
    let (seconds, rest) = (count.div_euclid(per_second), count.rem_euclid(per_second));
    let us = if per_second > 1_000_000 { rest / (per_second / 1_000_000) } else { rest * (1_000_000 / per_second) };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let clock = format!("{hour:02}:{minute:02}:{second:02}.{us:06}");
    match origin {
        Origin::Midnight => clock,
        Origin::Naive => format!("{}T{clock}", date(days)),
        Origin::Utc => format!("{}T{clock}Z", date(days)),
    }
}

/// A decimal number, exactly.
fn decimal(digits: i128, places: usize) -> String {
    let sign = if digits < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", digits.unsigned_abs(), width = places + 1);
    let (whole, fraction) = digits.split_at(digits.len() - places);
    if places == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

impl ArrowRows {
    /// Takes the stream out of the capsule that an object exports.
    ///
    /// # Errors
    /// `Invalid` if it has columns of types that documents don't have.
    pub(crate) fn new(capsule: &Bound<'_, PyCapsule>) -> PyResult<Result<Self>> {
        let stream = capsule.pointer_checked(Some(STREAM_NAME))?.cast::<ArrowArrayStream>();
        // SAFETY: a capsule of this name has a stream. It is moved: the original is marked as released.
        let mut stream = unsafe {
            let taken = ptr::read(stream.as_ptr());
            (*stream.as_ptr()).release = None;
            taken
        };
        let mut schema = OwnedSchema(ArrowSchema::empty());
        let Some(get_schema) = stream.get_schema.filter(|_| stream.release.is_some()) else {
            return Ok(Err(Error::invalid("the Arrow stream was read already")));
        };
        // SAFETY: the stream is owned and was not released; the schema is released when it is dropped.
        let code = unsafe { get_schema(&mut stream, &mut schema.0) };
        if code != 0 {
            return Ok(Err(failure(&mut stream)));
        }
        // SAFETY: the producer filled the schema.
        let root = match unsafe { Field::new(&schema.0, 0) } {
            Ok(root) => root,
            Err(error) => return Ok(Err(error)),
        };
        Ok(match root.kind {
            Kind::Struct(fields) => Ok(ArrowRows { stream, fields, batch: None }),
            _ => Err(Error::invalid("the Arrow stream is not a table").with_hint("give a DataFrame or a table")),
        })
    }

    fn next_batch(&mut self) -> Result<bool> {
        let Some(get_next) = self.stream.get_next else { return Ok(false) };
        let mut batch = Batch { array: ArrowArray::empty(), next: 0 };
        // SAFETY: the stream is owned and was not released; the array is released when it is dropped.
        if unsafe { get_next(&mut self.stream, &mut batch.array) } != 0 {
            return Err(failure(&mut self.stream));
        }
        let is_open = batch.array.release.is_some();
        if is_open && usize::try_from(batch.array.n_children).ok() != Some(self.fields.len()) {
            return Err(Error::invalid("a batch of the Arrow stream does not have the columns of its schema"));
        }
        self.batch = is_open.then_some(batch);
        Ok(is_open)
    }
}

/// The error of a stream.
fn failure(stream: &mut ArrowArrayStream) -> Error {
    let message = match stream.get_last_error {
        // SAFETY: the stream is owned and was not released; the text is copied before anything else is done with it.
        Some(get_last_error) => unsafe { text(get_last_error(stream)) },
        None => "",
    };
    Error::invalid(format!("the Arrow stream failed: {message}"))
}

impl Iterator for ArrowRows {
    type Item = Result<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = &mut self.batch
                && batch.next < batch.array.length
            {
                let row = batch.next;
                batch.next += 1;
                // SAFETY: the array is valid, was not released, and has the row.
                return Some(unsafe { object(&self.fields, &batch.array, row + batch.array.offset) });
            }
            match self.next_batch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
