//! A request that is being executed: its cancellation, the credit of its stream, and the chunks that it receives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use stemmadb::{Cancellation, Error};
use stemmadb_wire::{CREDIT, DATA_BYTES_MAX};

use super::failure::Result;

/// The state of a running request that other threads change.
pub(super) struct Running {
    pub(super) cancellation: Cancellation,
    state: Mutex<StreamState>,
    changed: Condvar,
}

struct StreamState {
    /// The frames that may be sent.
    credit: u32,
    /// The chunks that the client sent and the request has not taken.
    chunks: VecDeque<Vec<u8>>,
}

impl Running {
    pub(super) fn new() -> Self {
        let state = Mutex::new(StreamState { credit: CREDIT, chunks: VecDeque::new() });
        Running { cancellation: Cancellation::new(), state, changed: Condvar::new() }
    }

    /// Cancels the request; also what waits for credit.
    pub(super) fn cancel(&self) {
        self.cancellation.cancel();
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    pub(super) fn grant(&self, count: u32) {
        let mut state = self.state.lock();
        state.credit = state.credit.saturating_add(count);
        self.changed.notify_all();
    }

    /// Takes one credit, if there is any.
    pub(super) fn try_take_credit(&self) -> bool {
        let mut state = self.state.lock();
        let has_credit = state.credit > 0;
        state.credit -= u32::from(has_credit);
        has_credit
    }

    /// Waits for a credit and takes it.
    ///
    /// # Errors
    /// `Stopped` if the request is cancelled, or the client grants nothing for `timeout`.
    pub(super) fn take_credit(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.credit == 0 {
            self.refuse_if_cancelled()?;
            if self.changed.wait_until(&mut state, deadline).timed_out() && state.credit == 0 {
                return Err(Error::stopped("the client stopped reading the stream").into());
            }
        }
        state.credit -= 1;
        Ok(())
    }

    /// Adds a chunk that the client sent. Returns false if it sent more than it was granted.
    pub(super) fn add_chunk(&self, chunk: &[u8]) -> bool {
        let mut state = self.state.lock();
        if state.chunks.len() >= CREDIT as usize || chunk.len() > DATA_BYTES_MAX {
            return false;
        }
        state.chunks.push_back(chunk.to_vec());
        self.changed.notify_all();
        true
    }

    /// Waits for the next chunk; an empty one is the last.
    ///
    /// # Errors
    /// `Stopped` if the request is cancelled, or the client sends nothing for `timeout`.
    pub(super) fn next_chunk(&self, timeout: Duration) -> Result<Vec<u8>, Error> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        loop {
            self.refuse_if_cancelled().map_err(|error| error.error)?;
            if let Some(chunk) = state.chunks.pop_front() {
                return Ok(chunk);
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() && state.chunks.is_empty() {
                return Err(Error::stopped("the client stopped sending the file"));
            }
        }
    }

    /// # Errors
    /// `Stopped` if the request is cancelled.
    pub(super) fn refuse_if_cancelled(&self) -> Result<()> {
        match self.cancellation.is_cancelled() {
            true => Err(Error::stopped("the request was cancelled").into()),
            false => Ok(()),
        }
    }
}
