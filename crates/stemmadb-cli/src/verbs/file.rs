//! A document's files: list them, put one in, get it out, take it away.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use super::{Session, written};
use crate::arguments::{Attach, Detach, Fetch, Files};
use crate::face::Content;
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;
use crate::read::Source;
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// Bytes handed on at a time.
const STEP_BYTES: usize = 256 * 1024;

/// Lists a document's files.
pub(super) fn list(files: &Files, session: Session<'_>) -> Result<()> {
    let mut show = Show::new(Look::of(files.form, Look::Table));
    session.with(&files.database, |db| db.files(&files.id)?.into_iter().try_for_each(|row| show.row(row)))?;
    show.flush()
}

/// Gives a document a file and shows its new revision.
pub(super) fn attach(attach: &Attach, session: Session<'_>) -> Result<()> {
    let source = Source::open(&attach.file)?;
    let guessed = || content_type(&attach.name).or_else(|| content_type(&attach.file.to_string_lossy()));
    let content_type = attach.content_type.as_deref().or_else(guessed).unwrap_or("application/octet-stream");
    let progress = Progress::of_bytes("attach", source.bytes);
    let content = Shown { content: source.content(), done: 0, progress };
    let revision = session.with(&attach.database, |db| {
        db.attach(&attach.id, attach.rev.as_deref(), &attach.name, content_type, content)
    })?;
    let mut show = Show::new(Look::of(attach.form, Look::Table));
    show.record(written(&attach.id, &revision))?;
    show.flush()
}

/// Writes a document's file out.
pub(super) fn fetch(fetch: &Fetch, session: Session<'_>) -> Result<()> {
    session.with(&fetch.database, |db| {
        let mut content = db.fetch(&fetch.id, &fetch.name, fetch.range)?;
        if fetch.output == Path::new("-") {
            return copy(&mut content, &mut std::io::stdout().lock(), &Failure::output);
        }
        let name = fetch.output.display().to_string();
        let fault = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}"));
        let mut file = output(&fetch.output, fetch.force)?;
        copy(&mut content, &mut file, &fault)
            .and_then(|()| file.sync_all().map_err(fault))
            // Half a file would be taken for a whole one.
            .inspect_err(|_| drop(std::fs::remove_file(&fetch.output)))
    })
}

/// Takes a file away from a document and shows its new revision.
pub(super) fn detach(detach: &Detach, session: Session<'_>) -> Result<()> {
    let revision = session.with(&detach.database, |db| db.detach(&detach.id, detach.rev.as_deref(), &detach.name))?;
    let mut show = Show::new(Look::of(detach.form, Look::Table));
    show.record(written(&detach.id, &revision))?;
    show.flush()
}

fn copy(content: &mut Content, out: &mut dyn Write, fault: &dyn Fn(std::io::Error) -> Failure) -> Result<()> {
    let progress = Progress::of_bytes("fetch", Some(content.byte_count()));
    let (mut buffer, mut done) = (vec![0; STEP_BYTES], 0);
    loop {
        let count = content.read(&mut buffer)?;
        if count == 0 {
            return out.flush().map_err(fault);
        }
        out.write_all(&buffer[..count]).map_err(fault)?;
        done += count as u64;
        progress.reached(done);
        interrupt::check()?;
    }
}

/// The file to write, which must be new unless `force` says otherwise.
pub(super) fn output(path: &Path, force: bool) -> Result<File> {
    let name = path.display();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).create_new(!force);
    options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{name} is there already")).with_hint("--force overwrites it")
        }
        _ => Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}")),
    })
}

/// Content that shows how far it was read.
struct Shown<R> {
    content: R,
    done: u64,
    progress: Progress,
}

impl<R: Read> Read for Shown<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.done += count as u64;
        self.progress.reached(self.done);
        Ok(count)
    }
}

/// What a file so called usually is.
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
