//! `stemma files`, `attach`, `fetch` and `detach`: the attachments of a document.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use super::{Session, on, write_result};
use crate::arguments::{Attach, Detach, Fetch, Files};
use crate::database::AttachmentReader;
use crate::failure::{Exit, Failure, Result};
use crate::input::Source;
use crate::output::{OutputFormat, Printer};
use crate::progress::Progress;
use crate::shell::interrupt;

/// Size of the copy buffer.
const BUFFER_BYTES: usize = 256 * 1024;

/// Lists the attachments of a document.
pub(super) fn list(files: &Files, session: Session<'_>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(files.output, OutputFormat::Table));
    on!(session, past files.past, &files.database, |db| {
        db.files(&files.id)?.into_iter().try_for_each(|row| printer.row(row))
    })?;
    printer.flush()
}

/// Attaches a file to a document and prints the new revision.
pub(super) fn attach(attach: &Attach, session: Session<'_>) -> Result<()> {
    let source = Source::open(&attach.file)?;
    let inferred = || content_type(&attach.name).or_else(|| content_type(&attach.file.to_string_lossy()));
    let content_type = attach.content_type.as_deref().or_else(inferred).unwrap_or("application/octet-stream");
    let progress = Progress::for_bytes("attach", source.bytes);
    let content = ProgressReader { content: source.content(), done: 0, progress };
    let revision = on!(session, with, &attach.database, |db| {
        db.attach(&attach.id, attach.rev.as_deref(), &attach.name, content_type, content)
    })?;
    let mut printer = Printer::new(OutputFormat::choose(attach.output, OutputFormat::Table));
    printer.record(write_result(&attach.id, &revision))?;
    printer.flush()
}

/// Writes an attachment to a file or standard output.
pub(super) fn fetch(fetch: &Fetch, session: Session<'_>) -> Result<()> {
    on!(session, past fetch.past, &fetch.database, |db| {
        let mut content = db.fetch(&fetch.id, &fetch.name, fetch.range)?;
        if fetch.output == Path::new("-") {
            return copy(&mut content, &mut std::io::stdout().lock(), &Failure::output);
        }
        let name = fetch.output.display().to_string();
        let fault = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}"));
        let mut file = create_output(&fetch.output, fetch.force)?;
        copy(&mut content, &mut file, &fault)
            .and_then(|()| file.sync_all().map_err(fault))
            // A truncated file could be mistaken for a complete one.
            .inspect_err(|_| drop(std::fs::remove_file(&fetch.output)))
    })
}

/// Removes an attachment and prints the document's new revision.
pub(super) fn detach(detach: &Detach, session: Session<'_>) -> Result<()> {
    let revision =
        on!(session, with, &detach.database, |db| db.detach(&detach.id, detach.rev.as_deref(), &detach.name))?;
    let mut printer = Printer::new(OutputFormat::choose(detach.output, OutputFormat::Table));
    printer.record(write_result(&detach.id, &revision))?;
    printer.flush()
}

fn copy(content: &mut AttachmentReader, out: &mut dyn Write, fault: &dyn Fn(std::io::Error) -> Failure) -> Result<()> {
    let progress = Progress::for_bytes("fetch", Some(content.byte_count()));
    let (mut buffer, mut done) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let count = content.read(&mut buffer)?;
        if count == 0 {
            return out.flush().map_err(fault);
        }
        out.write_all(&buffer[..count]).map_err(fault)?;
        done += count as u64;
        progress.set_position(done);
        interrupt::check()?;
    }
}

/// Creates the output file; fails if it exists, unless `force` is set.
pub(super) fn create_output(path: &Path, force: bool) -> Result<File> {
    let name = path.display();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).create_new(!force);
    options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{name} already exists")).with_hint("--force overwrites it")
        }
        _ => Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}")),
    })
}

/// Reader that updates a progress bar.
struct ProgressReader<R> {
    content: R,
    done: u64,
    progress: Progress,
}

impl<R: Read> Read for ProgressReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.done += count as u64;
        self.progress.set_position(self.done);
        Ok(count)
    }
}

/// The media type for the extension of a file name.
fn content_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_lowercase().as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "csv" => "text/csv",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        _ => return None,
    })
}
