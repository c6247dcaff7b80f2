//! Reading and hashing the files of a database on their way to a target or to a copy.

use std::io::{self, Read};
use std::sync::Arc;

use super::directory_target::FileReader;
use crate::log::ExportedSegment;
use crate::vfs::{Vfs, VfsFile};
use crate::{Error, Result};

const STEP_BYTES: usize = 1 << 20;

/// How many bytes at the beginning and at the end of a sealed segment its fingerprint covers.
const HEAD_BYTES: u64 = 8 << 10;
const TAIL_BYTES: u64 = 64 << 10;

/// Reads a range of an exported segment.
pub(super) struct SegmentReader<'a> {
    segment: &'a ExportedSegment,
    offset: u64,
    end: u64,
}

impl<'a> SegmentReader<'a> {
    pub(super) fn new(segment: &'a ExportedSegment, offset: u64, end: u64) -> Self {
        SegmentReader { segment, offset, end }
    }
}

impl Read for SegmentReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (self.end - self.offset).min(buffer.len() as u64) as usize;
        if count == 0 {
            return Ok(0);
        }
        let count = self.segment.read_at(&mut buffer[..count], self.offset).map_err(io::Error::other)?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends too early"));
        }
        self.offset += count as u64;
        Ok(count)
    }
}

/// Hashes and counts what is read through it.
pub(super) struct Hashing<R> {
    reader: R,
    hasher: blake3::Hasher,
    is_hashed: bool,
    pub(super) length: u64,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(reader: R) -> Self {
        Hashing { reader, hasher: blake3::Hasher::new(), is_hashed: true, length: 0 }
    }

    /// Only counts.
    pub(super) fn counting(reader: R) -> Self {
        Hashing { is_hashed: false, ..Self::new(reader) }
    }

    pub(super) fn hash(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }

    /// Reads everything.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(|_| ())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        if self.is_hashed {
            self.hasher.update(&buffer[..count]);
        }
        self.length += count as u64;
        Ok(count)
    }
}

/// The hash of the beginning and the end of a segment: cheap to compute, and different for segments of databases that
/// went different ways.
pub(super) fn fingerprint(segment: &ExportedSegment) -> Result<String> {
    let range = |start, end| SegmentReader::new(segment, start, end);
    fingerprint_of(segment.file_name(), segment.byte_count, range)
}

/// The hash of the beginning and the end of a file.
pub(super) fn file_fingerprint(file: &Arc<dyn VfsFile>, name: &str) -> Result<String> {
    let length = file.len().map_err(|error| Error::io(format_args!("examine {name}"), error))?;
    let range = |start, end| FileReader { file: file.clone(), offset: start }.take(end - start);
    fingerprint_of(name, length, range)
}

fn fingerprint_of<R: Read>(name: &str, length: u64, range: impl Fn(u64, u64) -> R) -> Result<String> {
    let (head, tail) = (length.min(HEAD_BYTES), length.saturating_sub(TAIL_BYTES));
    let mut hashing = Hashing::new(range(0, head).chain(range(tail, length)));
    let read = hashing.drain();
    read.map_err(|error| Error::io(format_args!("read {name}"), error))?;
    Ok(hashing.hash())
}

/// The hash of a range of a segment.
pub(super) fn range_hash(segment: &ExportedSegment, offset: u64, length: u64) -> Result<String> {
    let mut hashing = Hashing::new(SegmentReader::new(segment, offset, offset + length));
    let read = hashing.drain();
    read.map_err(|error| Error::io(format_args!("read {}", segment.file_name()), error))?;
    Ok(hashing.hash())
}

/// Reads the file `name` of a database.
pub(super) fn open_file(vfs: &dyn Vfs, name: &str) -> Result<FileReader> {
    let file = vfs.open(name).map_err(|error| Error::io(format_args!("open {name}"), error))?;
    Ok(FileReader { file, offset: 0 })
}

/// The hash of all bytes of a file.
pub(super) fn file_hash(vfs: &dyn Vfs, name: &str) -> Result<String> {
    let mut hashing = Hashing::new(open_file(vfs, name)?);
    io::copy(&mut hashing, &mut io::sink()).map_err(|error| Error::io(format_args!("read {name}"), error))?;
    Ok(hashing.hash())
}

/// Appends everything that `content` has to a file, at `offset`; returns where it ends. `show` receives the number of
/// bytes of each step.
pub(super) fn write_all(
    file: &Arc<dyn VfsFile>,
    name: &str,
    mut offset: u64,
    content: &mut dyn Read,
    show: &mut dyn FnMut(u64),
) -> Result<u64> {
    let mut buffer = vec![0; STEP_BYTES];
    loop {
        let count = match content.read(&mut buffer) {
            Ok(0) => return Ok(offset),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(|error| Error::io(format_args!("read the bytes of {name}"), error))?,
        };
        let written = file.write_at(&buffer[..count], offset);
        written.map_err(|error| Error::io(format_args!("write {name}"), error))?;
        offset += count as u64;
        show(count as u64);
    }
}
