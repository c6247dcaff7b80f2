//! Counts of connections, in all and by client address, and of the requests of one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::http::client_network;

/// Counts of connections by client network.
#[derive(Default)]
pub(crate) struct Connections {
    counts: Mutex<HashMap<IpAddr, usize>>,
    /// The number of connections that were refused because their network had too many.
    refused: AtomicU64,
}

/// A counted connection; uncounted when dropped.
pub(crate) struct CountedConnection {
    connections: Arc<Connections>,
    network: IpAddr,
}

impl Connections {
    /// Counts a connection. Returns `None` if its network already has `count_max`.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, count_max: usize) -> Option<CountedConnection> {
        let network = client_network(address);
        let mut counts = self.counts.lock();
        let count = counts.entry(network).or_insert(0);
        if *count >= count_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(CountedConnection { connections: self.clone(), network })
    }

    /// The number of refused connections.
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().values().sum()
    }
}

/// The slot that a connection occupies until it is closed, also after an upgrade to a WebSocket.
pub(crate) struct ConnectionSlot {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) _counted: CountedConnection,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut counts = self.connections.counts.lock();
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
    }
}

/// Waits for bytes of a local socket, and returns up to `bytes_max` of them; `None` at the end. Waits without a buffer:
/// most connections are idle.
#[cfg(unix)]
pub(crate) async fn next_chunk(stream: &tokio::net::unix::OwnedReadHalf, bytes_max: usize) -> Option<Vec<u8>> {
    loop {
        stream.readable().await.ok()?;
        let mut chunk = vec![0; bytes_max];
        match stream.try_read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return None,
            Ok(count) => {
                chunk.truncate(count);
                return Some(chunk);
            }
        }
    }
}

/// The requests of a connection that are under way, and since when there are none.
#[derive(Default)]
pub(crate) struct Activity {
    running: Mutex<(usize, Option<Instant>)>,
    /// Work put off until the answers are sent; none if the connection does not say when they are.
    after_answers: Option<Mutex<Vec<AfterAnswer>>>,
}

/// Work for which the client need not wait.
type AfterAnswer = Box<dyn FnOnce() + Send>;

/// A request that is under way, until the last byte of its response is ready to be sent.
pub(crate) struct RunningRequest(Arc<Activity>);

impl Activity {
    /// For a connection that calls [`Activity::note_sent`].
    pub(crate) fn noting_what_is_sent() -> Self {
        Activity { after_answers: Some(Mutex::default()), ..Activity::default() }
    }

    pub(crate) fn begin(self: &Arc<Self>) -> RunningRequest {
        self.running.lock().0 += 1;
        RunningRequest(self.clone())
    }

    /// Does the work that was put off until the answers were sent.
    pub(crate) fn note_sent(&self) {
        let Some(after_answers) = &self.after_answers else { return };
        let put_off = std::mem::take(&mut *after_answers.lock());
        put_off.into_iter().for_each(|work| work());
    }

    /// Whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.lock().0 == 0
    }

    /// Returns once there was no request for `time`.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let begun = Instant::now();
        loop {
            let (running, since) = *self.running.lock();
            let end = since.unwrap_or(begun) + time;
            match (running, end.checked_duration_since(Instant::now())) {
                (0, None) => return,
                (0, Some(rest)) => tokio::time::sleep(rest).await,
                _ => tokio::time::sleep(time).await,
            }
        }
    }
}

impl RunningRequest {
    /// Ends the request; `work` is done once its answer is sent, so that the client does not wait for it.
    pub(crate) fn end_with(self, work: impl FnOnce() + Send + 'static) {
        match &self.0.after_answers {
            Some(after_answers) => after_answers.lock().push(Box::new(work)),
            None => work(),
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut running = self.0.running.lock();
        *running = (running.0 - 1, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn work_is_put_off_until_the_answer_is_sent() {
        let done = Arc::new(AtomicUsize::new(0));
        let count = || {
            let done = done.clone();
            move || {
                done.fetch_add(1, Ordering::SeqCst);
            }
        };
        let activity = Arc::new(Activity::noting_what_is_sent());
        activity.begin().end_with(count());
        assert!(activity.is_idle(), "the request is over");
        assert_eq!(done.load(Ordering::SeqCst), 0);
        activity.note_sent();
        activity.note_sent();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        // A connection that does not say when answers are sent puts nothing off.
        Arc::<Activity>::default().begin().end_with(count());
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }
}
