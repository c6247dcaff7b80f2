//! One connection: reads frames, executes requests on the thread that read them, and sends results.
//!
//! At any time one thread has the reading role, which is a number. If its request takes long, [`Connection::hand_over`]
//! gives the role to another thread by incrementing the number; the old thread finishes its request and leaves.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::{Error, ErrorKind, Value};
use stemmadb_wire::{
    Encoding, Frame, FrameBuffer, FrameKind, HELLO_BYTES_MAX, Operation, Request, SharedPolling, add_owner,
    error_to_value, write_frame,
};

use super::call::{Call, ON_BEHALF};
use super::failure::{Result, WireError};
use super::record::FinishedOperation;
use super::running::Running;
use super::server::WireServer;
use super::transport::Transport;
use super::{handshake, operations, parking};
use crate::accounts::Identity;
use crate::connections::CountedConnection;
use crate::error::{Failure, library_error};
use crate::http::MemoryReservation;
use crate::virtual_databases::DelegatedRequest;

/// The time after which another thread reads the connection of a running request.
const BUSY_TIME: Duration = Duration::from_millis(2);
/// The most requests of a connection that run at the same time.
const RUNNING_MAX: usize = 64;
/// The interval after which credentials are verified again, as for feeds over HTTP.
const VERIFY_INTERVAL: Duration = Duration::from_secs(5);
/// Frames larger than this are counted in the memory that bodies share.
const SMALL_FRAME_BYTES: usize = 64 * 1024;
/// The memory of a request as a multiple of its bytes: received, parsed, and prepared.
const MEMORY_FACTOR: usize = 3;
/// Answers that wait for the answer to the next request are sent once they have so many bytes.
const UNSENT_BYTES_MAX: usize = 32 * 1024;

/// A connection of a client.
pub(super) struct Connection {
    pub(super) server: Weak<WireServer>,
    pub(super) peer: SocketAddr,
    pub(super) transport: Transport,
    number: u64,
    /// The encoding of values, set by the handshake.
    encoding: OnceLock<Encoding>,
    identity: Mutex<Option<(Arc<Identity>, Instant)>>,
    reading: Mutex<ReadingState>,
    role: Mutex<ReadingRole>,
    running: Mutex<HashMap<u32, Arc<Running>>>,
    is_closed: AtomicBool,
    /// `None` if the connection that carries it is counted.
    _counted: Option<CountedConnection>,
}

/// What belongs to the thread that reads.
struct ReadingState {
    frames: FrameBuffer,
    polling: SharedPolling,
    timeout: Duration,
}

#[derive(Default)]
struct ReadingRole {
    number: u64,
    /// Since when the thread with the role executes a request.
    busy_since: Option<Instant>,
}

/// What reading a connection came to.
enum Reading {
    Request(ReadRequest),
    /// Nothing arrives at present.
    Silence,
}

/// A request that was read.
struct ReadRequest {
    id: u32,
    payload: Vec<u8>,
    _reservation: Option<Arc<MemoryReservation>>,
}

impl Connection {
    pub(super) fn new(
        server: &Arc<WireServer>,
        transport: Transport,
        peer: SocketAddr,
        number: u64,
        counted: Option<CountedConnection>,
    ) -> Self {
        let poll_time = Duration::from_micros(server.state.config.poll_us as u64);
        let reading = ReadingState {
            frames: FrameBuffer::new(HELLO_BYTES_MAX),
            polling: SharedPolling::new(poll_time),
            timeout: Duration::ZERO,
        };
        Connection {
            server: Arc::downgrade(server),
            peer,
            transport,
            number,
            encoding: OnceLock::new(),
            identity: Mutex::default(),
            reading: Mutex::new(reading),
            role: Mutex::default(),
            running: Mutex::default(),
            is_closed: AtomicBool::new(false),
            _counted: counted,
        }
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding.get().copied().unwrap_or(Encoding::Json)
    }

    /// Tells the client that the server has no thread for it, and closes the connection.
    pub(super) fn refuse(&self) {
        let error = Error::unavailable("the server has too many connections")
            .with_hint("try again later; an administrator can raise wire.connection_count and wire.thread_count");
        self.send_error(0, &error);
        self.close();
    }

    /// Serves the connection from its first byte.
    pub(super) fn serve_from_handshake(self: &Arc<Self>) {
        if self.shake_hands().is_some() {
            self.serve(0);
        } else {
            self.end();
        }
    }

    fn shake_hands(&self) -> Option<()> {
        let server = self.server.upgrade()?;
        let deadline = Instant::now() + server.state.config.limits.handshake_timeout;
        let mut reading = self.reading.lock();
        let state = &mut *reading;
        let outcome = loop {
            match state.frames.next_frame() {
                Ok(Some(frame)) => break handshake::accept(&server, self, &frame),
                Ok(None) => {}
                Err(error) => break Err(error.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.transport.set_read_timeout(left).ok()?;
            match self.transport.read(state.frames.space(), false) {
                Ok(0) | Err(_) => return None,
                Ok(count) => state.frames.add(count),
            }
        };
        match outcome {
            Ok((encoding, identity, welcome)) => {
                self.encoding.set(encoding).ok();
                *self.identity.lock() = Some((Arc::new(identity), Instant::now()));
                state.frames.set_frame_bytes_max(welcome.frame_bytes_max as usize);
                let mut bytes = Vec::new();
                write_frame(&mut bytes, FrameKind::Welcome, 0, |out| welcome.write(out));
                self.transport.write(&bytes).ok()
            }
            Err(WireError { error, .. }) => {
                self.send_error(0, &error);
                None
            }
        }
    }

    /// Reads and executes requests as long as this thread has the reading role `number`.
    pub(super) fn serve(self: &Arc<Self>, number: u64) {
        let (mut can_park, mut unsent) = (true, Vec::new());
        loop {
            let request = match self.read_request(can_park) {
                Some(Reading::Request(request)) => request,
                Some(Reading::Silence) if parking::park(self, number) => return,
                Some(Reading::Silence) => {
                    can_park = false;
                    continue;
                }
                None => break,
            };
            let Some(server) = self.server.upgrade() else { break };
            self.role.lock().busy_since = Some(Instant::now());
            server.monitor.note_request();
            let (last_frame, finished) = self.execute(&server, request, number);
            unsent.extend(last_frame);
            let is_stopping = server.is_stopping.load(Ordering::SeqCst);
            if is_stopping || unsent.len() > UNSENT_BYTES_MAX || !self.reads_a_document_next() {
                self.send(&std::mem::take(&mut unsent)).ok();
            }
            let is_reader = {
                let mut role = self.role.lock();
                let is_reader = role.number == number;
                if is_reader {
                    role.busy_since = None;
                }
                is_reader
            };
            if !is_reader {
                // Another thread reads now.
                self.send(&unsent).ok();
            }
            // After the answer, so that the client does not wait for it.
            finished.log(&server, self);
            match (is_reader, is_stopping) {
                (false, _) => return,
                (true, true) => break,
                (true, false) => {}
            }
        }
        self.end();
    }

    /// Gives the reading role to another thread, if the thread with the role `number` still has it. Returns whether
    /// another thread reads now.
    pub(super) fn hand_over(self: &Arc<Self>, number: u64) -> bool {
        let mut role = self.role.lock();
        if role.number == number && role.busy_since.is_some() {
            self.hand_over_locked(&mut role);
        }
        role.number != number
    }

    fn hand_over_locked(self: &Arc<Self>, role: &mut ReadingRole) {
        let Some(server) = self.server.upgrade() else { return };
        if self.running.lock().len() >= RUNNING_MAX {
            return;
        }
        let (connection, next) = (self.clone(), role.number + 1);
        if server.pool.run(move || connection.serve(next)) {
            role.number = next;
            role.busy_since = None;
        }
    }

    /// Gives the reading role to another thread if its request takes long. Returns whether a request runs.
    pub(super) fn hand_over_if_busy(self: &Arc<Self>) -> bool {
        let mut role = self.role.lock();
        match role.busy_since {
            Some(since) if since.elapsed() >= BUSY_TIME => self.hand_over_locked(&mut role),
            Some(_) => {}
            None => return false,
        }
        true
    }

    /// Reads frames up to the next request; `None` at the end of the connection. With `can_park`, returns if the
    /// connection is silent.
    fn read_request(&self, can_park: bool) -> Option<Reading> {
        let server = self.server.upgrade()?;
        let limits = &server.state.config.limits;
        let mut reading = self.reading.lock();
        let state = &mut *reading;
        let mut reservation: Option<Arc<MemoryReservation>> = None;
        loop {
            match state.frames.next_frame() {
                Ok(Some(frame)) if frame.kind == FrameKind::Request => {
                    let (id, payload) = (frame.request, frame.payload.to_vec());
                    return Some(Reading::Request(ReadRequest { id, payload, _reservation: reservation }));
                }
                Ok(Some(frame)) => {
                    self.handle_control(&frame)?;
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    self.send_error(0, &error);
                    return None;
                }
            }
            if let Some(length) = state.frames.announced_bytes().filter(|length| *length > SMALL_FRAME_BYTES)
                && reservation.is_none()
            {
                let reserved = server.state.memory.reservation();
                let grown = server.wait(reserved.grow(length.saturating_mul(MEMORY_FACTOR)));
                if let Err(failure) = grown {
                    self.send_error(0, &library_error(&failure));
                    return None;
                }
                reservation = Some(reserved);
            }
            let idle_timeout = server.state.config.wire.idle_timeout;
            let parking_time = parking::waiting_time(server.pool.thread_count(), server.pool.count_max())
                .filter(|time| can_park && *time < idle_timeout && !state.frames.has_bytes());
            let timeout = match (state.frames.has_bytes(), parking_time) {
                (true, _) => limits.stall_timeout,
                (false, Some(time)) => time,
                (false, None) => idle_timeout,
            };
            match self.fill(state, timeout) {
                Ok(0) => return None,
                Ok(count) => state.frames.add(count),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if parking_time.is_some() {
                        state.frames.release_memory();
                        self.transport.release_memory();
                        return Some(Reading::Silence);
                    }
                    // A connection with a running stream is not idle.
                    if state.frames.has_bytes() || self.running.lock().is_empty() {
                        return None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            if self.is_closed.load(Ordering::Relaxed) {
                return None;
            }
        }
    }

    /// Polls for bytes for a short time, then sleeps until some arrive.
    fn fill(&self, state: &mut ReadingState, timeout: Duration) -> io::Result<usize> {
        let ReadingState { frames, polling, timeout: current } = state;
        let space = frames.space();
        if let Some(result) = polling.poll(|| self.transport.read(space, true)) {
            return result;
        }
        if *current != timeout {
            self.transport.set_read_timeout(timeout)?;
            *current = timeout;
        }
        let count = self.transport.read(space, false)?;
        polling.note_received();
        Ok(count)
    }

    /// Handles a frame that is no request. `None` if it breaks the protocol.
    fn handle_control(&self, frame: &Frame<'_>) -> Option<()> {
        let running = || self.running.lock().get(&frame.request).cloned();
        match frame.kind {
            FrameKind::Ping => {
                let mut bytes = Vec::new();
                write_frame(&mut bytes, FrameKind::Pong, frame.request, |out| out.extend_from_slice(frame.payload));
                return self.transport.write(&bytes).ok();
            }
            FrameKind::Pong => {}
            FrameKind::Cancel => {
                if let Some(running) = running() {
                    running.cancel();
                }
            }
            FrameKind::Credit => {
                let count = frame.payload.try_into().map(u32::from_le_bytes).ok()?;
                if let Some(running) = running() {
                    running.grant(count);
                }
            }
            FrameKind::Data => {
                if running().is_some_and(|running| !running.add_chunk(frame.payload)) {
                    self.send_error(0, &Error::invalid("the client sent more of a file than it was granted"));
                    return None;
                }
            }
            _ => {
                self.send_error(0, &Error::invalid(format!("a client can't send a frame of kind {:?}", frame.kind)));
                return None;
            }
        }
        Some(())
    }

    /// Executes a request; returns its last frame, and what is logged of it.
    fn execute(
        self: &Arc<Self>,
        server: &Arc<WireServer>,
        request: ReadRequest,
        role: u64,
    ) -> (Vec<u8>, FinishedOperation) {
        let running = Arc::new(Running::new());
        let is_new = self.running.lock().insert(request.id, running.clone()).is_none();
        let (operation, started) = (request.payload.first().map(|code| Operation::from_code(*code)), Instant::now());
        let outcome = match is_new {
            false => Err(Error::invalid("a request with this id is still running").into()),
            true => {
                let work = || self.execute_operation(server, &request, &running, role);
                catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                    Err(Error::internal("an operation panicked: the server's stderr shows where").into())
                })
            }
        };
        // A client may use the id again once it has the last frame.
        self.running.lock().remove(&request.id);
        let is_stopping = server.is_stopping.load(Ordering::SeqCst);
        let outcome = outcome.map_err(|failure| match failure.error.kind() {
            ErrorKind::Stopped if is_stopping => Error::closed("the server is stopping").into(),
            _ => failure,
        });
        let (last_frame, error) = match outcome {
            Ok(last_frame) => (last_frame, None),
            Err(WireError { error, owner, .. }) => {
                (self.error_frame(request.id, &error, owner.as_deref()), Some(error))
            }
        };
        (last_frame, FinishedOperation::note(server, operation.and_then(Result::ok), error, started))
    }

    /// Whether the next request has arrived and reads one document: then its answer can be sent with those before.
    fn reads_a_document_next(&self) -> bool {
        // Another thread may be reading by now.
        let Some(reading) = self.reading.try_lock() else { return false };
        reading.frames.waiting_request().and_then(<[u8]>::first) == Some(&(Operation::Get as u8))
    }

    /// The name of the authenticated user.
    pub(super) fn user_name(&self) -> Option<String> {
        self.identity.lock().as_ref().and_then(|(identity, _)| identity.user.name.clone())
    }

    /// Whether requests are running.
    pub(super) fn has_running(&self) -> bool {
        !self.running.lock().is_empty()
    }

    /// Executes a request; returns its last frame.
    fn execute_operation(
        self: &Arc<Self>,
        server: &Arc<WireServer>,
        read: &ReadRequest,
        running: &Arc<Running>,
        role: u64,
    ) -> Result<Vec<u8>> {
        let request = Request::read(&read.payload)?;
        let identity = self.verified_identity(server)?;
        let arguments = request.arguments(self.encoding())?;
        let delegated = match arguments.get(ON_BEHALF).and_then(Value::as_str) {
            Some(user) => Some(DelegatedRequest::parse(user.as_bytes(), &identity.user)?),
            None => None,
        };
        let (id, opened) = (read.id, OnceCell::new());
        let call =
            Call { server, connection: self, running, request, arguments, identity, delegated, id, role, opened };
        call.find_database()?;
        let reply = running.cancellation.during(|| operations::execute(&call))?;
        call.check_owned()?;
        Ok(reply)
    }

    /// The client's identity, verified again if that was long ago.
    ///
    /// # Errors
    /// `Forbidden` if the credentials are no longer valid.
    pub(super) fn verified_identity(&self, server: &WireServer) -> Result<Arc<Identity>> {
        let known = self.identity.lock().clone();
        let (identity, verified) = known.ok_or_else(|| Failure::unauthorized("Authentication required."))?;
        if verified.elapsed() < VERIFY_INTERVAL {
            return Ok(identity);
        }
        let state = &server.state;
        let user = server.wait(state.authenticator.reverify(&state.directory, &identity.proof))?;
        let user = user.ok_or_else(|| Failure::unauthorized("The credentials are no longer valid."))?;
        let (proof, scope) = (identity.proof.clone(), identity.scope.clone());
        let identity = Arc::new(Identity { user, proof, scope, signed_content: None, cookie: None });
        *self.identity.lock() = Some((identity.clone(), Instant::now()));
        Ok(identity)
    }

    /// Sends bytes of complete frames.
    ///
    /// # Errors
    /// `Closed` if the connection is lost.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<()> {
        self.transport.write(bytes).map_err(|error| {
            self.close();
            Error::closed(format!("the connection is lost: {error}")).into()
        })
    }

    fn error_frame(&self, request: u32, error: &Error, owner: Option<&str>) -> Vec<u8> {
        let mut value: Value = error_to_value(error);
        owner.into_iter().for_each(|owner| add_owner(&mut value, owner));
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Error, request, |out| self.encoding().write(&value, out));
        bytes
    }

    fn send_error(&self, request: u32, error: &Error) {
        self.send(&self.error_frame(request, error, None)).ok();
    }

    /// Closes the connection once its current request is answered.
    pub(super) fn stop_when_idle(&self) {
        let is_idle = self.role.lock().busy_since.is_none();
        self.running.lock().values().for_each(|running| running.cancel());
        if is_idle && self.running.lock().is_empty() {
            self.close();
        }
    }

    /// Closes the connection and cancels what runs.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.running.lock().values().for_each(|running| running.cancel());
        self.transport.shut_down();
    }

    /// Forgets the connection, whose reading has ended.
    pub(super) fn end(&self) {
        self.close();
        if let Some(server) = self.server.upgrade() {
            server.forget(self.number);
        }
    }
}
