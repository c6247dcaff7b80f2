//! Files of a remote database's documents, streamed in both directions.

use std::io::{self, Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use stemmadb::{Error, Result, Revision, Value};
use stemmadb_wire::{CREDIT, DATA_BYTES_MAX, Item, Operation, Repetition, WriteKey};

use crate::connection::{Answer, Connection, Failure, Moved};
use crate::convert::{missing_field, number, object, revision_of, text};
use crate::database::RemoteDatabase;
use crate::pool::{Redirects, write_key};

/// The wait before another attempt.
const RETRY_WAIT: Duration = Duration::from_millis(10);

/// Operations on the files of a remote database, with the methods of [`stemmadb::handles::Files`].
#[derive(Debug, Clone)]
pub struct RemoteFiles {
    pub(crate) database: RemoteDatabase,
}

impl RemoteFiles {
    /// Attaches a file to a document, or replaces the file of that name; returns the document's new revision.
    ///
    /// The content is streamed: both sides hold at most a megabyte of it. The call has no time limit as long as the
    /// content goes on.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Invalid` if the content is
    /// longer than the server allows. `Unavailable` if the connection is lost: content of up to a megabyte is sent
    /// again, longer content can't be, and may have been attached.
    pub fn attach(
        &self,
        id: &str,
        revision: &Revision,
        name: &str,
        content_type: &str,
        content: impl Read,
    ) -> Result<Revision> {
        let arguments = object([
            ("id", id.into()),
            ("rev", revision.to_string().into()),
            ("name", name.into()),
            ("content_type", content_type.into()),
        ]);
        let arguments = self.database.durable(arguments);
        let mut content = Content { source: content, first: Vec::new(), is_long: false, has_continued: false };
        content.read_first()?;
        revision_of(&self.database.shared.upload(&self.database.name, &arguments, &mut content)?)
    }

    /// Removes a file from a document; returns the document's new revision.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document or file.
    pub fn detach(&self, id: &str, revision: &Revision, name: &str) -> Result<Revision> {
        let id = stemmadb::DocumentId::new(id)?;
        self.database.edit(stemmadb::Edit::Detach { id, revision: *revision, name: name.to_owned() })
    }

    /// Opens the file `name` of the document `id` for reading and seeking; `None` if there is no such file.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn open(&self, id: &str, name: &str) -> Result<Option<RemoteFile>> {
        let mut file = RemoteFile {
            database: self.database.clone(),
            id: id.to_owned(),
            name: name.to_owned(),
            length: 0,
            digest: String::new(),
            content_type: String::new(),
            position: 0,
            chunk: Vec::new(),
            read_of_chunk: 0,
            stream: None,
        };
        Ok(if file.start_again()? { Some(file) } else { None })
    }
}

/// The content of an upload: its beginning, which can be sent again, and the rest.
pub(crate) struct Content<R> {
    source: R,
    first: Vec<u8>,
    is_long: bool,
    /// Whether more than the beginning was read, so that it can't be sent again.
    has_continued: bool,
}

impl<R: Read> Content<R> {
    fn read_first(&mut self) -> Result<()> {
        let most = CREDIT as u64 * DATA_BYTES_MAX as u64;
        let read = self.source.by_ref().take(most).read_to_end(&mut self.first).map_err(source_failure)?;
        self.is_long = read as u64 == most;
        Ok(())
    }
}

fn source_failure(error: io::Error) -> Error {
    Error::unavailable(format!("the content can't be read: {error}"))
}

impl crate::pool::Shared {
    /// Sends a file, and again if the connection is lost and the content is short.
    fn upload<R: Read>(&self, database: &str, arguments: &Value, content: &mut Content<R>) -> Result<Value> {
        let has_key = Operation::AttachFile.repetition() == Repetition::Keyed && self.options().idempotent_writes;
        let (deadline, mut lane, mut redirects) = (self.deadline(), None, Redirects::default());
        loop {
            let mut connection = self.check_out(database, deadline).map_err(Failure::into_error)?;
            let key = has_key.then(|| write_key(&mut connection, &mut lane));
            match self.upload_on(&mut connection, database, key, arguments, content) {
                Ok(value) => {
                    self.check_in(connection);
                    return Ok(value);
                }
                // Chunks may be under way after a refusal, so the connection is not used again.
                Err(Failure::Answer(error)) => {
                    self.give_up(&connection);
                    return Err(error);
                }
                Err(Failure::Moved(moved)) => {
                    self.give_up(&connection);
                    redirects.follow(self, database, moved, deadline).map_err(Failure::into_error)?;
                    if content.has_continued {
                        let error = Error::unavailable("another server of the cluster has the database now");
                        return Err(error.with_hint("nothing was attached: attach the file again"));
                    }
                }
                Err(Failure::Lost(error)) => {
                    self.give_up_lane(&mut connection, lane);
                    if content.has_continued || !has_key || Instant::now() >= deadline {
                        return Err(error.with_hint("the file may have been attached: read before you repeat it"));
                    }
                    std::thread::sleep(RETRY_WAIT);
                }
            }
        }
    }

    fn upload_on<R: Read>(
        &self,
        connection: &mut Connection,
        database: &str,
        key: Option<WriteKey>,
        arguments: &Value,
        content: &mut Content<R>,
    ) -> Result<Value, Failure> {
        let id = connection.queue(Operation::AttachFile, database, key, arguments)?;
        connection.flush()?;
        let mut credit = CREDIT;
        let mut send = |connection: &mut Connection, chunk: &[u8]| {
            while credit == 0 {
                credit += connection.granted(id, self.deadline())?;
            }
            credit -= 1;
            connection.send_data(id, chunk)
        };
        for chunk in content.first.chunks(DATA_BYTES_MAX) {
            send(connection, chunk)?;
        }
        if content.is_long {
            content.has_continued = true;
            let mut chunk = Vec::with_capacity(DATA_BYTES_MAX);
            loop {
                chunk.clear();
                let read = content.source.by_ref().take(DATA_BYTES_MAX as u64).read_to_end(&mut chunk);
                if let Err(error) = read {
                    connection.cancel(id);
                    return Err(Failure::Answer(source_failure(error)));
                }
                if chunk.is_empty() {
                    break;
                }
                send(connection, &chunk)?;
            }
        }
        send(connection, &[])?;
        let (_, reply) = connection.result(id, self.deadline())?;
        reply.into_item().and_then(Item::into_value).map_err(Failure::Lost)
    }
}

/// A file of a remote document, for reading and seeking. Content arrives while it is read, at most a megabyte ahead. A
/// lost connection is opened again; if the file was replaced meanwhile, reading fails.
pub struct RemoteFile {
    database: RemoteDatabase,
    id: String,
    name: String,
    length: u64,
    digest: String,
    content_type: String,
    /// Where the next byte is read.
    position: u64,
    chunk: Vec<u8>,
    read_of_chunk: usize,
    /// The connection and the request, while the server has more.
    stream: Option<(Connection, u32)>,
}

impl RemoteFile {
    /// The length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The media type, such as `image/png`.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Asks for the content from the current position on. Returns false if there is no such file.
    fn start_again(&mut self) -> Result<bool> {
        self.stop();
        let shared = self.database.shared.clone();
        let (deadline, mut redirects) = (shared.deadline(), Redirects::default());
        loop {
            match self.begin(deadline) {
                Ok(found) => return Ok(found),
                Err(Failure::Moved(moved)) => {
                    redirects.follow(&shared, &self.database.name, moved, deadline).map_err(Failure::into_error)?
                }
                Err(Failure::Lost(_)) if Instant::now() < deadline => std::thread::sleep(RETRY_WAIT),
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    fn begin(&mut self, deadline: Instant) -> Result<bool, Failure> {
        let mut arguments: stemmadb::Object =
            [("id", Value::from(self.id.as_str())), ("name", self.name.as_str().into())].into_iter().collect();
        arguments.insert("offset", self.position);
        if !self.digest.is_empty() {
            arguments.insert("digest", self.digest.as_str());
        }
        let shared = self.database.shared.clone();
        let mut connection = shared.check_out(&self.database.name, deadline)?;
        let sent = connection.queue(Operation::ReadFile, &self.database.name, None, &Value::Object(arguments));
        let answered = sent.and_then(|id| {
            connection.flush()?;
            loop {
                if let Some(answer) = connection.answer(id, deadline)? {
                    return Ok((id, answer));
                }
            }
        });
        match answered {
            Ok((id, Answer::Items(rows))) => {
                match rows.into_iter().next().and_then(|row| described(&row.into_value().ok()?)) {
                    Some((length, digest, content_type)) if connection.grant(id).is_ok() => {
                        (self.length, self.digest, self.content_type) = (length, digest, content_type);
                        self.stream = Some((connection, id));
                        Ok(true)
                    }
                    _ => {
                        shared.give_up(&connection);
                        Err(Failure::Lost(missing_field("file")))
                    }
                }
            }
            Ok((_, Answer::Reply(_))) => {
                shared.check_in(connection);
                Ok(false)
            }
            Ok((_, Answer::Data(_))) => {
                shared.give_up(&connection);
                Err(Failure::Lost(missing_field("file")))
            }
            Err(failure) => {
                shared.give_back(connection, &failure);
                Err(failure)
            }
        }
    }

    /// Ends the stream before its end.
    fn stop(&mut self) {
        (self.chunk, self.read_of_chunk) = (Vec::new(), 0);
        if let Some((mut connection, id)) = self.stream.take() {
            connection.cancel(id);
            self.database.shared.give_up(&connection);
        }
    }

    /// Receives the next chunk; false at the end.
    fn receive(&mut self) -> Result<bool> {
        loop {
            let Some((mut connection, id)) = self.stream.take() else {
                if self.position >= self.length {
                    return Ok(false);
                }
                let found = self.start_again()?;
                if !found {
                    return Err(Error::not_found(format!("there is no file `{}` any more", self.name)));
                }
                continue;
            };
            let shared = self.database.shared.clone();
            match connection.answer(id, shared.deadline()) {
                Ok(None) => self.stream = Some((connection, id)),
                Ok(Some(Answer::Data(chunk))) => {
                    if connection.grant(id).is_ok() {
                        self.stream = Some((connection, id));
                    } else {
                        shared.give_up(&connection);
                    }
                    if !chunk.is_empty() {
                        (self.chunk, self.read_of_chunk) = (chunk, 0);
                        return Ok(true);
                    }
                }
                Ok(Some(Answer::Reply(_))) => {
                    shared.check_in(connection);
                    if self.position < self.length {
                        return Err(missing_field("file"));
                    }
                }
                Ok(Some(Answer::Items(_))) => {
                    shared.give_up(&connection);
                    return Err(missing_field("file"));
                }
                // The file is opened again where it was read last.
                Err(Failure::Lost(_)) => shared.give_up(&connection),
                Err(Failure::Answer(error) | Failure::Moved(Moved { error, .. })) => {
                    shared.check_in(connection);
                    return Err(error);
                }
            }
        }
    }
}

/// Length, digest and media type of a file.
fn described(row: &Value) -> Option<(u64, String, String)> {
    let own = |name| text(row, name).ok().map(str::to_owned);
    Some((number(row, "length").ok()?, own("digest")?, own("content_type")?))
}

impl Read for RemoteFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_of_chunk == self.chunk.len() && !self.receive().map_err(io::Error::other)? {
            return Ok(0);
        }
        let count = (&self.chunk[self.read_of_chunk..]).read(buffer)?;
        self.read_of_chunk += count;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for RemoteFile {
    /// Moves within the file. Costs a round trip with the next read.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        if position != self.position {
            self.stop();
            self.position = position;
        }
        Ok(position)
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.stop();
    }
}
