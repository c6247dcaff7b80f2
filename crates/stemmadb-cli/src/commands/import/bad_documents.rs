//! The file of `--skip-bad`: the texts of documents that could not be imported.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::failure::{Exit, Failure, Result};

/// Only this many failures are printed; the others are counted.
const PRINTED_MAX: u64 = 20;

/// The texts of bad documents, one on a line. For a table, the first line is its header, so that the file can be
/// corrected and imported.
pub(super) struct BadDocuments<'a> {
    path: &'a Path,
    file: BufWriter<File>,
    has_header: bool,
    pub(super) count: u64,
}

impl<'a> BadDocuments<'a> {
    /// Creates the file, which must not exist, so that no documents of an earlier import are lost. If the import
    /// resumes, appends to it.
    pub(super) fn create(path: &'a Path, resumes: bool) -> Result<Self> {
        let opened =
            if resumes { OpenOptions::new().append(true).create(true).open(path) } else { File::create_new(path) };
        let file = opened.map_err(|error| {
            Failure::new(Exit::Unavailable, format!("cannot create {}: {error}", path.display()))
                .with_hint("give --skip-bad the name of a new file")
        })?;
        let has_header = file.metadata().is_ok_and(|metadata| metadata.len() > 0);
        Ok(BadDocuments { path, file: BufWriter::new(file), has_header, count: 0 })
    }

    /// Prints why documents could not be imported, and keeps their texts.
    pub(super) fn add(&mut self, header: Option<&[u8]>, documents: &[(Vec<u8>, Failure)]) -> Result<()> {
        for (_, failure) in documents {
            self.count += 1;
            if self.count <= PRINTED_MAX {
                failure.print();
            }
        }
        self.write(header, documents)
            .map_err(|error| Failure::new(Exit::Unavailable, format!("cannot write {}: {error}", self.path.display())))
    }

    fn write(&mut self, header: Option<&[u8]>, documents: &[(Vec<u8>, Failure)]) -> std::io::Result<()> {
        let ends = |byte: &u8| matches!(byte, b'\n' | b'\r');
        for (text, _) in documents {
            match header {
                Some(header) => {
                    if !self.has_header {
                        self.file.write_all(header.trim_ascii_end())?;
                        self.file.write_all(b"\n")?;
                        self.has_header = true;
                    }
                    let length = text.iter().rposition(|byte| !ends(byte)).map_or(0, |at| at + 1);
                    self.file.write_all(&text[..length])?;
                }
                // A line break in JSON is no part of a string.
                None => {
                    let text: Vec<u8> =
                        text.trim_ascii().iter().map(|byte| if ends(byte) { b' ' } else { *byte }).collect();
                    self.file.write_all(&text)?;
                }
            }
            self.file.write_all(b"\n")?;
        }
        self.file.flush()
    }

    /// The failures that were not printed.
    pub(super) fn unprinted_count(&self) -> u64 {
        self.count.saturating_sub(PRINTED_MAX)
    }
}
