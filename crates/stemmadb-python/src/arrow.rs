//! Export of columns by the Arrow C data and stream interfaces, in a PyCapsule: what pandas, polars, DuckDB and pyarrow
//! read without a copy, and without a dependency here.
//!
//! The structures and the rules of ownership are those of the specification: a consumer that takes a structure copies
//! it and clears `release` of the original; the holder of one with a `release` calls it once.
#![expect(unsafe_code, reason = "a C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::columns::{Column, Data};

pub(crate) const STREAM_NAME: &CStr = c"arrow_array_stream";
const NULLABLE: i64 = 2;

#[repr(C)]
pub(crate) struct ArrowSchema {
    pub(crate) format: *const c_char,
    pub(crate) name: *const c_char,
    pub(crate) metadata: *const c_char,
    pub(crate) flags: i64,
    pub(crate) n_children: i64,
    pub(crate) children: *mut *mut ArrowSchema,
    pub(crate) dictionary: *mut ArrowSchema,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub(crate) private_data: *mut c_void,
}

#[repr(C)]
pub(crate) struct ArrowArray {
    pub(crate) length: i64,
    pub(crate) null_count: i64,
    pub(crate) offset: i64,
    pub(crate) n_buffers: i64,
    pub(crate) n_children: i64,
    pub(crate) buffers: *mut *const c_void,
    pub(crate) children: *mut *mut ArrowArray,
    pub(crate) dictionary: *mut ArrowArray,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub(crate) private_data: *mut c_void,
}

#[repr(C)]
pub(crate) struct ArrowArrayStream {
    pub(crate) get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    pub(crate) get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    pub(crate) get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    pub(crate) private_data: *mut c_void,
}

// SAFETY: the private data is a `StreamOwner`, which is `Send`; the structure is used by one thread at a time.
unsafe impl Send for ArrowArrayStream {}

impl ArrowSchema {
    /// A schema for a producer to fill.
    pub(crate) fn empty() -> Self {
        ArrowSchema {
            format: ptr::null(),
            name: ptr::null(),
            metadata: ptr::null(),
            flags: 0,
            n_children: 0,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }
}

impl ArrowArray {
    /// An array for a producer to fill.
    pub(crate) fn empty() -> Self {
        ArrowArray {
            length: 0,
            null_count: 0,
            offset: 0,
            n_buffers: 0,
            n_children: 0,
            buffers: ptr::null_mut(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: nobody took the stream, so it is still to be released.
            unsafe { release(self) }
        }
    }
}

/// What a schema owns.
struct SchemaOwner {
    _format: CString,
    _name: CString,
    children: Vec<*mut ArrowSchema>,
}

/// What an array owns.
struct ArrayOwner {
    _buffers: Vec<Buffer>,
    _pointers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
}

/// Memory of a buffer.
enum Buffer {
    Bytes(Vec<u8>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

impl Buffer {
    fn pointer(&self) -> *const c_void {
        match self {
            Buffer::Bytes(bytes) => bytes.as_ptr().cast(),
            Buffer::Ints(values) => values.as_ptr().cast(),
            Buffer::Floats(values) => values.as_ptr().cast(),
        }
    }
}

/// A stream of one batch.
struct StreamOwner {
    table: Option<Column>,
    /// Made at the beginning: the table may be taken before its schema is asked for.
    schema: Option<ArrowSchema>,
}

// SAFETY: the pointers within the schema are to memory that the schema owns.
unsafe impl Send for StreamOwner {}

impl Drop for StreamOwner {
    fn drop(&mut self) {
        if let Some(mut schema) = self.schema.take()
            && let Some(release) = schema.release
        {
            // SAFETY: the schema was not handed out.
            unsafe { release(&mut schema) }
        }
    }
}

/// The `release` of schemas made here.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the caller holds a schema that was made by `schema_of`, and has not released it.
    unsafe {
        let owner = Box::from_raw((*schema).private_data.cast::<SchemaOwner>());
        for child in &owner.children {
            if let Some(release) = (**child).release {
                release(*child);
            }
            drop(Box::from_raw(*child));
        }
        (*schema).release = None;
    }
}

/// The `release` of arrays made here.
unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the caller holds an array that was made by `array_of`, and has not released it.
    unsafe {
        let owner = Box::from_raw((*array).private_data.cast::<ArrayOwner>());
        for child in &owner.children {
            if let Some(release) = (**child).release {
                release(*child);
            }
            drop(Box::from_raw(*child));
        }
        (*array).release = None;
    }
}

fn schema_of(name: &str, column: &Column) -> ArrowSchema {
    let (format, children) = match &column.data {
        Data::Null => (c"n", Vec::new()),
        Data::Bool(_) => (c"b", Vec::new()),
        Data::Int(_) => (c"l", Vec::new()),
        Data::Float(_) => (c"g", Vec::new()),
        Data::Text(_) | Data::Json(_) => (c"U", Vec::new()),
        Data::List(list) => (c"+L", vec![schema_of("item", &list.elements)]),
        Data::Struct(fields) => (c"+s", fields.fields.iter().map(|(name, column)| schema_of(name, column)).collect()),
    };
    // A name with a zero byte can't be said in C.
    let name = CString::new(name.replace('\0', "\u{fffd}")).unwrap_or_default();
    let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
    let mut owner = Box::new(SchemaOwner { _format: format.to_owned(), _name: name, children });
    ArrowSchema {
        format: owner._format.as_ptr(),
        name: owner._name.as_ptr(),
        metadata: ptr::null(),
        flags: NULLABLE,
        n_children: owner.children.len() as i64,
        children: owner.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(owner).cast(),
    }
}

/// Bits, the first in the lowest place.
fn bitmap(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | u8::from(*bit) << at);
    bits.chunks(8).map(byte).collect()
}

/// Offsets of Arrow: where the first begins, then where each ends.
fn offsets(ends: Vec<i64>) -> Buffer {
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    offsets.push(0);
    offsets.extend(ends);
    Buffer::Ints(offsets)
}

fn array_of(column: Column) -> ArrowArray {
    let Column { data, valid } = column;
    let length = valid.len();
    let null_count = valid.iter().filter(|valid| !**valid).count();
    let is_null = matches!(data, Data::Null);
    let (values, children): (Vec<Buffer>, Vec<Column>) = match data {
        Data::Null => (Vec::new(), Vec::new()),
        Data::Bool(values) => (vec![Buffer::Bytes(bitmap(&values))], Vec::new()),
        Data::Int(values) => (vec![Buffer::Ints(values)], Vec::new()),
        Data::Float(values) => (vec![Buffer::Floats(values)], Vec::new()),
        Data::Text(text) | Data::Json(text) => (vec![offsets(text.ends), Buffer::Bytes(text.bytes)], Vec::new()),
        Data::List(list) => (vec![offsets(list.ends)], vec![*list.elements]),
        Data::Struct(fields) => (Vec::new(), fields.fields.into_iter().map(|(_, column)| column).collect()),
    };
    let mut buffers = Vec::with_capacity(values.len() + 1);
    let mut pointers = Vec::with_capacity(values.len() + 1);
    // An array of the null type has no buffers; all others begin with the bitmap of what is there.
    if !is_null {
        let bitmap = (null_count > 0).then(|| Buffer::Bytes(bitmap(&valid)));
        pointers.push(bitmap.as_ref().map_or(ptr::null(), Buffer::pointer));
        buffers.extend(bitmap);
    }
    pointers.extend(values.iter().map(Buffer::pointer));
    buffers.extend(values);
    let children = children.into_iter().map(|child| Box::into_raw(Box::new(array_of(child)))).collect();
    let mut owner = Box::new(ArrayOwner { _buffers: buffers, _pointers: pointers, children });
    ArrowArray {
        length: length as i64,
        null_count: null_count as i64,
        offset: 0,
        n_buffers: owner._pointers.len() as i64,
        n_children: owner.children.len() as i64,
        buffers: owner._pointers.as_mut_ptr(),
        children: owner.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: Box::into_raw(owner).cast(),
    }
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the caller holds a stream that was made by `stream`, and memory for a schema.
    unsafe {
        let owner = &mut *(*stream).private_data.cast::<StreamOwner>();
        let again = owner.table.as_ref().map(|table| schema_of("", table));
        match owner.schema.take() {
            Some(schema) => {
                ptr::write(out, schema);
                owner.schema = again;
                0
            }
            // The schema was taken after the batch.
            None => 22,
        }
    }
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the caller holds a stream that was made by `stream`, and memory for an array.
    unsafe {
        let owner = &mut *(*stream).private_data.cast::<StreamOwner>();
        match owner.table.take() {
            Some(table) => ptr::write(out, array_of(table)),
            // A released array is the end of the stream.
            None => ptr::write_bytes(out, 0, 1),
        }
        0
    }
}

unsafe extern "C" fn get_last_error(_: *mut ArrowArrayStream) -> *const c_char {
    c"the schema was asked for after the end of the stream".as_ptr()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: the caller holds a stream that was made by `stream`, and has not released it.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<StreamOwner>()));
        (*stream).release = None;
    }
}

/// A table as a stream of one batch, in a capsule of the Arrow PyCapsule interface.
pub(crate) fn stream(py: Python<'_>, table: Column) -> PyResult<Bound<'_, PyCapsule>> {
    let schema = Some(schema_of("", &table));
    let owner = Box::new(StreamOwner { table: Some(table), schema });
    let stream = ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release_stream),
        private_data: Box::into_raw(owner).cast(),
    };
    PyCapsule::new_with_value(py, stream, STREAM_NAME)
}
