//! The queue of log lines: loggers append a line and continue, and a thread writes many lines at once.
//!
//! The thread is woken by the first line after a sleep, and then waits shortly for more, because waking it for each
//! line would cost a request more than the line itself. If the queue is full, lines are dropped, so that a slow log
//! does not block requests.

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// The maximum size of queued lines, in bytes.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// The time to wait for more lines after the first.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

/// A handle of the queue, to which lines are appended.
#[derive(Clone, Default)]
pub(super) struct LogQueue(Arc<SharedQueue>);

#[derive(Default)]
struct SharedQueue {
    queued: Mutex<QueuedLines>,
    changed: Condvar,
}

#[derive(Default)]
struct QueuedLines {
    bytes: Vec<u8>,
    dropped_count: u64,
    is_closed: bool,
}

/// The writing thread. When dropped, it writes the remaining lines and ends.
pub(super) struct LogWriterThread {
    lines: LogQueue,
    thread: Option<JoinHandle<()>>,
}

impl LogQueue {
    /// Starts a thread that writes the queued lines to `writer`.
    pub(super) fn write_to(&self, writer: impl Write + Send + 'static) -> std::io::Result<LogWriterThread> {
        let lines = self.clone();
        let thread = std::thread::Builder::new().name("stemma-log".to_owned()).spawn(move || lines.run(writer))?;
        Ok(LogWriterThread { lines: self.clone(), thread: Some(thread) })
    }

    fn run(&self, mut writer: impl Write) {
        let mut spare = Vec::new();
        loop {
            let mut queued = self.0.queued.lock();
            self.0.changed.wait_while(&mut queued, |queued| queued.bytes.is_empty() && !queued.is_closed);
            if !queued.is_closed {
                self.0.changed.wait_while_for(&mut queued, |queued| !queued.is_closed, BATCH_INTERVAL);
            }
            let bytes = std::mem::replace(&mut queued.bytes, std::mem::take(&mut spare));
            let (dropped_count, is_closed) = (std::mem::take(&mut queued.dropped_count), queued.is_closed);
            drop(queued);
            // A failure to write the log can't be reported anywhere.
            writer.write_all(&bytes).ok();
            if dropped_count > 0 {
                writeln!(writer, "{{\"level\":\"WARN\",\"message\":\"lines were dropped\",\"count\":{dropped_count}}}")
                    .ok();
            }
            writer.flush().ok();
            spare = bytes;
            spare.clear();
            if is_closed {
                return;
            }
        }
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut queued = self.0.queued.lock();
        if queued.bytes.len() + line.len() > QUEUED_BYTES_MAX {
            queued.dropped_count += 1;
            return Ok(line.len());
        }
        let was_empty = queued.bytes.is_empty();
        queued.bytes.extend_from_slice(line);
        drop(queued);
        if was_empty {
            self.0.changed.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogQueue;

    fn make_writer(&'a self) -> LogQueue {
        self.clone()
    }
}

impl Drop for LogWriterThread {
    fn drop(&mut self) {
        self.lines.0.queued.lock().is_closed = true;
        self.lines.0.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A writer that waits for a signal before the first write.
    struct GatedWriter(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for GatedWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // A closed channel counts as the signal.
            self.0.recv().ok();
            self.1.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_lines_are_written_in_order_on_drop() {
        let (go, signal) = mpsc::channel();
        drop(go);
        let (written, mut lines) = (Arc::default(), LogQueue::default());
        let writing = lines.write_to(GatedWriter(signal, Arc::clone(&written))).unwrap();
        let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        for line in text.split_inclusive('\n') {
            lines.write_all(line.as_bytes()).unwrap();
        }
        drop(writing);
        assert_eq!(String::from_utf8(written.lock().clone()).unwrap(), text);
    }

    #[test]
    fn stalled_log_does_not_block_loggers() {
        let (go, signal) = mpsc::channel();
        let (written, mut lines) = (Arc::default(), LogQueue::default());
        let writing = lines.write_to(GatedWriter(signal, Arc::clone(&written))).unwrap();
        let line = [b'x'; 1 << 10];
        for _ in 0..3 * (QUEUED_BYTES_MAX >> 10) {
            lines.write_all(&line).unwrap();
        }
        drop(go);
        drop(writing);
        let written = String::from_utf8(written.lock().clone()).unwrap();
        assert!(
            written.len() <= 2 * QUEUED_BYTES_MAX + 1000 && written.contains("lines were dropped"),
            "{}",
            written.len()
        );
    }
}
