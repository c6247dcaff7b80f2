//! One connection, used by one call or stream at a time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stemmadb::{CancelCallback, Cancellation, Error, ErrorKind, Result, Value};
use stemmadb_wire::{
    AnswerReader, Encoding, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameBuffer, FrameKind, HELLO_BYTES_MAX, Hello, Item,
    Operation, Reply, Request, VERSION, Welcome, WriteKey, error_from_value, owner_of_error, write_frame,
};

use crate::answer_wait::Expected;
use crate::convert::missing_field;
use crate::options::ClientOptions;
use crate::pool::Shared;
use crate::transport::{Connector, Transport};
use crate::url::ServerUrl;

/// Why a call failed.
pub(crate) enum Failure {
    /// The connection is lost, or was never opened: another one may succeed.
    Lost(Error),
    /// The server's answer.
    Answer(Error),
    /// The request was not executed: another server of the cluster has the database.
    Moved(Moved),
}

/// Which server has a database.
pub(crate) struct Moved {
    pub(crate) error: Error,
    /// Its URL.
    pub(crate) owner: String,
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Lost(error) | Failure::Answer(error) | Failure::Moved(Moved { error, .. }) => error,
        }
    }
}

fn lost(what: &str, error: &io::Error) -> Failure {
    let message = match error.kind() {
        io::ErrorKind::TimedOut => format!("cannot {what}: the server did not answer in time"),
        _ => format!("cannot {what}: {error}"),
    };
    Failure::Lost(Error::unavailable(message).with_hint("check the address, and that the server runs"))
}

/// How often a wait for an answer looks whether the request was cancelled.
const CANCELLATION_POLL: Duration = Duration::from_millis(20);

/// The cancellation of a request, and whether it was sent to the server.
pub(crate) struct Cancelling {
    cancellation: Option<Cancellation>,
    is_sent: bool,
}

impl Cancelling {
    pub(crate) fn new(cancellation: Option<Cancellation>) -> Self {
        Cancelling { cancellation, is_sent: false }
    }

    /// What cancels the work of this thread.
    pub(crate) fn current() -> Self {
        Self::new(Cancellation::current())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancellation.as_ref().is_some_and(Cancellation::is_cancelled)
    }
}

/// A frame from the server, for a request.
pub(crate) enum Answer {
    /// Rows of a stream.
    Items(Vec<Item>),
    /// A chunk of a file.
    Data(Vec<u8>),
    /// The result; the request is over.
    Reply(Reply),
}

/// A connection after its handshake.
pub(crate) struct Connection {
    transport: Transport,
    frames: FrameBuffer,
    answers: AnswerReader,
    next_request: u32,
    /// The largest frame that the server accepts.
    frame_bytes_max: usize,
    /// When it was last used.
    pub(crate) used: Instant,
    /// The idempotency keys of this connection's writes.
    pub(crate) lane: Lane,
    /// While it is used: the pool of the server that it is to, if that is not the client's own one.
    pub(crate) pool: Option<Arc<Shared>>,
    out: Vec<u8>,
    is_open: bool,
}

/// A sequence of writes, of which one is under way at a time. It survives its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) id: [u8; 16],
    pub(crate) number: u64,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Lane { id: *uuid::Uuid::new_v4().as_bytes(), number: 0 }
    }
}

impl Connection {
    /// Connects and authenticates.
    pub(crate) fn open(
        url: &ServerUrl,
        options: &ClientOptions,
        connector: &Connector,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let deadline = deadline.min(Instant::now() + options.connect_timeout);
        let mut transport = connector.connect(options, deadline).map_err(|error| lost("connect", &error))?;
        let hello = Hello {
            versions: (VERSION, VERSION),
            encoding: options.encoding,
            credentials: options.credentials.clone().unwrap_or_else(|| url.credentials.clone()),
        };
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Hello, 0, |out| hello.write(out));
        transport.write(&bytes).map_err(|error| lost("connect", &error))?;
        let mut connection = Connection {
            transport,
            frames: FrameBuffer::new(HELLO_BYTES_MAX),
            answers: AnswerReader::new(options.encoding),
            next_request: 1,
            frame_bytes_max: FRAME_BYTES_MAX,
            used: Instant::now(),
            lane: Lane::new(),
            pool: None,
            out: Vec::new(),
            is_open: true,
        };
        let welcome = connection.next_frame(deadline, |kind, _, payload, answers| match kind {
            FrameKind::Welcome => Welcome::read(payload).map_err(Failure::Answer),
            FrameKind::Error => Err(read_error(payload, answers, true)),
            _ => Err(Failure::Answer(Error::invalid("the server answers by another protocol"))),
        })?;
        connection.frame_bytes_max = welcome.frame_bytes_max as usize;
        connection.frames.set_frame_bytes_max(usize::try_from(u32::MAX).unwrap_or(usize::MAX));
        Ok(connection)
    }

    /// Waits for the next frame and reads it.
    fn next_frame<T>(
        &mut self,
        deadline: Instant,
        read: impl FnOnce(FrameKind, u32, &[u8], &mut AnswerReader) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match self.frames.next_frame().map_err(Failure::Lost)? {
                Some(frame) if matches!(frame.kind, FrameKind::Ping | FrameKind::Pong) && frame.request == 0 => {
                    return read(FrameKind::Ping, 0, &[], &mut self.answers);
                }
                Some(frame) => return read(frame.kind, frame.request, frame.payload, &mut self.answers),
                None => {}
            }
            let space = self.frames.space();
            match self.transport.read(space, deadline) {
                Ok(0) => {
                    self.is_open = false;
                    return Err(lost("read the answer", &io::ErrorKind::ConnectionReset.into()));
                }
                Ok(count) => self.frames.add(count),
                Err(error) => {
                    self.is_open &= error.kind() == io::ErrorKind::TimedOut;
                    return Err(lost("read the answer", &error));
                }
            }
        }
    }

    /// Whether reads failed by nothing but timeouts so far.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Appends a request to what is sent next; returns its id.
    ///
    /// # Errors
    /// `Invalid` if it is larger than the server accepts.
    pub(crate) fn queue(
        &mut self,
        operation: Operation,
        database: &str,
        key: Option<WriteKey>,
        arguments: &Value,
    ) -> Result<u32, Failure> {
        let id = self.next_request;
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        let start = self.out.len();
        write_frame(&mut self.out, FrameKind::Request, id, |out| {
            Request::write(operation, database, key, arguments, self.answers.encoding(), out);
        });
        let length = self.out.len() - start;
        if length > self.frame_bytes_max {
            self.out.truncate(start);
            let message = format!("the request has {length} bytes; the server accepts {}", self.frame_bytes_max);
            let hint = "send it in parts, or raise the server's limits.body_bytes";
            return Err(Failure::Answer(Error::invalid(message).with_hint(hint)));
        }
        Ok(id)
    }

    /// Sends what was queued.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.transport.write(&self.out).map_err(|error| lost("send the request", &error));
        self.out.clear();
        if self.out.capacity() > 64 * 1024 {
            self.out = Vec::new();
        }
        self.used = Instant::now();
        result
    }

    /// Notes that a request of this kind was sent, which decides how its answer is waited for.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.transport.expect(expected);
    }

    /// Waits for the next frame of a request. `None`: the server shows that it lives.
    pub(crate) fn answer(&mut self, request: u32, deadline: Instant) -> Result<Option<Answer>, Failure> {
        self.used = Instant::now();
        self.next_frame(deadline, |kind, of, payload, answers| {
            if kind == FrameKind::Ping {
                return Ok(None);
            }
            if kind == FrameKind::Error && (of == request || of == 0) {
                return Err(read_error(payload, answers, of == 0));
            }
            if of != request || kind == FrameKind::Credit {
                // The rest of a request that was given up, or of an upload.
                return Ok(None);
            }
            Ok(Some(match kind {
                FrameKind::Item => Answer::Items(answers.rows(payload).map_err(Failure::Lost)?),
                FrameKind::Data => Answer::Data(payload.to_vec()),
                FrameKind::Reply => Answer::Reply(answers.reply(payload).map_err(Failure::Lost)?),
                _ => return Err(Failure::Lost(Error::invalid("malformed frame: a server does not send this kind"))),
            }))
        })
    }

    /// As [`Connection::answer`]; sends the server a cancellation once the request is cancelled, and returns `None` now
    /// and then.
    pub(crate) fn answer_or_cancel(
        &mut self,
        request: u32,
        deadline: Instant,
        cancelling: &mut Cancelling,
    ) -> Result<Option<Answer>, Failure> {
        if cancelling.cancellation.is_none() || cancelling.is_sent {
            return self.answer(request, deadline);
        }
        if cancelling.is_cancelled() {
            self.cancel(request);
            cancelling.is_sent = true;
        }
        let until = deadline.min(Instant::now() + CANCELLATION_POLL);
        match self.answer(request, until) {
            Err(Failure::Lost(_)) if self.is_open && until < deadline && Instant::now() < deadline => Ok(None),
            answer => answer,
        }
    }

    /// Closes the connection when the work of this thread is cancelled; until then if the result is dropped.
    pub(crate) fn close_when_cancelled(&self) -> Option<CancelCallback> {
        let (cancellation, closer) = (Cancellation::current()?, self.transport.closer().ok()?);
        Some(cancellation.on_cancel(closer))
    }

    /// Waits for the result of a request, and collects the rows of its stream. The request is stopped if the work of
    /// this thread is cancelled.
    pub(crate) fn result(&mut self, request: u32, deadline: Instant) -> Result<(Vec<Item>, Reply), Failure> {
        let (mut rows, mut cancelling) = (Vec::new(), Cancelling::current());
        loop {
            match self.answer_or_cancel(request, deadline, &mut cancelling)? {
                None => {}
                Some(Answer::Items(more)) => {
                    rows.extend(more);
                    self.grant(request)?;
                }
                Some(Answer::Data(_)) => return Err(Failure::Lost(missing_field("rows"))),
                Some(Answer::Reply(reply)) => return Ok((rows, reply)),
            }
        }
    }

    /// Waits for the results of requests without streams. They may arrive in any order, because the server executes a
    /// request on another thread if one before it takes long.
    pub(crate) fn results(&mut self, requests: &[u32], deadline: Instant) -> Result<Vec<Result<Item>>, Failure> {
        let mut results: Vec<Option<Result<Item>>> = requests.iter().map(|_| None).collect();
        while results.iter().any(Option::is_none) {
            let arrived = self.next_frame(deadline, |kind, of, payload, answers| {
                let at = requests.iter().position(|request| *request == of);
                match (kind, at) {
                    (FrameKind::Error, None) if of == 0 => Err(read_error(payload, answers, true)),
                    (FrameKind::Error, Some(at)) => match read_error(payload, answers, false) {
                        Failure::Answer(error) => Ok(Some((at, Err(error)))),
                        failure => Err(failure),
                    },
                    (FrameKind::Reply, Some(at)) => {
                        let item = answers.reply(payload).and_then(Reply::into_item).map_err(Failure::Lost)?;
                        Ok(Some((at, Ok(item))))
                    }
                    _ => Ok(None),
                }
            })?;
            if let Some((at, result)) = arrived {
                results[at] = Some(result);
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Grants the server another frame of a stream.
    pub(crate) fn grant(&mut self, request: u32) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Credit, request, |out| out.extend_from_slice(&1u32.to_le_bytes()));
        self.transport.write(&bytes).map_err(|error| lost("read the stream", &error))
    }

    /// Sends a chunk of a file; an empty one ends it.
    pub(crate) fn send_data(&mut self, request: u32, chunk: &[u8]) -> Result<(), Failure> {
        let mut bytes = Vec::with_capacity(chunk.len() + FRAME_HEADER_BYTES);
        write_frame(&mut bytes, FrameKind::Data, request, |out| out.extend_from_slice(chunk));
        self.transport.write(&bytes).map_err(|error| lost("send the file", &error))
    }

    /// Waits for the server to grant chunks of a file, or to refuse it.
    pub(crate) fn granted(&mut self, request: u32, deadline: Instant) -> Result<u32, Failure> {
        self.next_frame(deadline, |kind, of, payload, answers| match (kind, of == request) {
            (FrameKind::Credit, true) => {
                let count = payload.try_into().map(u32::from_le_bytes);
                count.map_err(|_| Failure::Lost(missing_field("credit")))
            }
            (FrameKind::Error, _) if of == request || of == 0 => Err(read_error(payload, answers, of == 0)),
            (FrameKind::Reply, true) => Err(Failure::Lost(missing_field("credit"))),
            _ => Ok(0),
        })
    }

    /// Tells the server to stop a request.
    pub(crate) fn cancel(&mut self, request: u32) {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Cancel, request, |_| ());
        // If this fails, the connection is lost, and the server stops anyway.
        self.transport.write(&bytes).ok();
    }

    /// Asks whether the server still answers.
    pub(crate) fn ping(&mut self, timeout: Duration) -> Result<(), Failure> {
        let id = self.next_request;
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Ping, id, |_| ());
        self.transport.write(&bytes).map_err(|error| lost("reach the server", &error))?;
        let deadline = Instant::now() + timeout;
        while !self.next_frame(deadline, |kind, of, _, _| Ok(kind == FrameKind::Pong && of == id))? {}
        Ok(())
    }
}

/// Reads an error frame. An error of the connection itself, and a server or database that closes, are worth another
/// attempt.
fn read_error(payload: &[u8], answers: &AnswerReader, is_of_connection: bool) -> Failure {
    let value = answers.encoding().read(payload).or_else(|_| Encoding::Json.read(payload)).unwrap_or_default();
    let error = error_from_value(&value);
    let error = error.unwrap_or_else(|| Error::invalid("malformed frame: an error can't be read"));
    if let Some(owner) = owner_of_error(&value) {
        return Failure::Moved(Moved { error, owner: owner.to_owned() });
    }
    match error.kind() {
        ErrorKind::Closed => Failure::Lost(error),
        ErrorKind::Unavailable if is_of_connection => Failure::Lost(error),
        _ => Failure::Answer(error),
    }
}
