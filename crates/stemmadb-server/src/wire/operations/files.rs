//! Contents of files, streamed in both directions.

use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use stemmadb::{DocumentId, Edit, Error, Value};
use stemmadb_wire::{DATA_BYTES_MAX, FrameKind, write_frame};

use super::super::call::{Call, object, revision};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::documents::readable_revision;
use super::edits;
use crate::auth::readable;

fn rights_of(id: &str, is_read: bool) -> RightsOf {
    match (id.starts_with("_design/"), is_read) {
        (false, true) => RightsOf::GetFile,
        (false, false) => RightsOf::PutFile,
        (true, true) => RightsOf::GetDesign,
        (true, false) => RightsOf::PutDesign,
    }
}

fn read_failure(error: &io::Error) -> Error {
    Error::unavailable(format!("a file can't be read: {error}"))
}

/// Streams the content of a file from an offset: an Item that describes it, Data frames, and null. Only null if there
/// is no such file.
pub(super) fn read(call: &Call<'_>) -> Result<Vec<u8>> {
    let (id, name) = (call.text("id")?, call.text("name")?);
    let (served, restriction) = call.open_restricted(rights_of(id, true), Some(id))?;
    let snapshot = match call.past(&served)? {
        Some(snapshot) => snapshot,
        None => served.database().snapshot()?,
    };
    let document = match call.optional_text("rev") {
        Some(rev) => readable_revision(&snapshot, id, &revision(rev)?, restriction.as_ref())?,
        None => readable(restriction.as_ref(), snapshot.get(id)?)?,
    };
    let Some(document) = document else { return Ok(call.reply(&Value::Null)) };
    let file = document.attachments()?.into_iter().find(|file| file.name == name);
    let Some((file, mut content)) = file.zip(snapshot.open_attachment(&document, name)?) else {
        return Ok(call.reply(&Value::Null));
    };
    let digest = file.digest.to_string();
    if call.optional_text("digest").is_some_and(|expected| expected != digest) {
        return Err(Error::conflict(format!("file `{name}` of document `{id}` has other content now")).into());
    }
    let offset = call.optional_number("offset")?.unwrap_or(0);
    content.seek(SeekFrom::Start(offset)).map_err(|error| read_failure(&error))?;
    // A slow client holds back no move.
    drop(served);
    let mut rows = super::super::rows::RowStream::new(call);
    rows.add_value(&object([
        ("length", file.length.into()),
        ("digest", digest.into()),
        ("content_type", file.content_type.into()),
    ]))?;
    rows.send()?;
    let mut bytes = Vec::new();
    loop {
        call.take_credit()?;
        let mut count = Ok(0);
        bytes.clear();
        write_frame(&mut bytes, FrameKind::Data, call.id, |out| {
            count = content.by_ref().take(DATA_BYTES_MAX as u64).read_to_end(out);
        });
        // The empty frame at the end is sent, too.
        let count = count.map_err(|error| read_failure(&error))?;
        call.connection.send(&bytes)?;
        if count == 0 {
            return Ok(call.reply(&Value::Null));
        }
    }
}

/// Attaches a file; its content follows in Data frames, of which an empty one is the last. The result is the document's
/// new revision.
pub(super) fn attach(call: &Call<'_>) -> Result<Vec<u8>> {
    let (id, name) = (DocumentId::new(call.text("id")?)?, call.text("name")?.to_owned());
    let (served, options) = edits::open(call, rights_of(id.as_str(), false), Some(id.as_str()), &[])?;
    let restriction = options.validator.restriction.as_ref();
    if restriction.is_some() && readable(restriction, served.database().get(id.as_str())?)?.is_none() {
        return Err(Error::not_found(format!("there is no document `{id}`")).into());
    }
    let revision = revision(call.text("rev")?)?;
    let content_type = call.optional_text("content_type").unwrap_or("application/octet-stream").to_owned();
    if !call.release_reading() {
        return Err(Error::unavailable("the server has no thread for another upload")
            .with_hint("try again later")
            .into());
    }
    let limits = &call.server.state.settings.config().limits;
    let mut upload = Upload {
        call,
        chunk: Vec::new(),
        position: 0,
        has_ended: false,
        bytes_left: limits.attachment_bytes,
        timeout: limits.stall_timeout,
        failure: None,
    };
    let stored = served.database().files().store(&mut upload);
    if let Some(failure) = upload.failure {
        return Err(failure.into());
    }
    let content = stored?;
    edits::apply(call, &served, Edit::Attach { id, revision, name, content_type, content }, &options)
}

/// The content that a client sends.
struct Upload<'a> {
    call: &'a Call<'a>,
    chunk: Vec<u8>,
    position: usize,
    has_ended: bool,
    /// How much longer the content may be.
    bytes_left: u64,
    /// How long the client may be silent.
    timeout: Duration,
    /// Why reading failed.
    failure: Option<Error>,
}

impl Upload<'_> {
    /// Receives the next chunk, and lets the client send another one.
    fn receive(&mut self) -> Result<(), Error> {
        self.chunk = self.call.running.next_chunk(self.timeout)?;
        self.position = 0;
        self.has_ended = self.chunk.is_empty();
        self.bytes_left = self.bytes_left.checked_sub(self.chunk.len() as u64).ok_or_else(|| {
            Error::invalid("the file is too large").with_hint("an administrator can raise limits.attachment_bytes")
        })?;
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Credit, self.call.id, |out| out.extend_from_slice(&1u32.to_le_bytes()));
        self.call.connection.send(&bytes).map_err(|error| error.error)
    }
}

impl Read for Upload<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position == self.chunk.len()
            && !self.has_ended
            && let Err(error) = self.receive()
        {
            self.failure = Some(error);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = (&self.chunk[self.position..]).read(buffer)?;
        self.position += count;
        Ok(count)
    }
}
