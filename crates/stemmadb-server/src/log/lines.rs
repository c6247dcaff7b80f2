//! Lines on their way to where the log is written: whoever logs leaves a line and goes on; a thread of its own takes many at once.
//!
//! The thread is woken by the first line after it has slept, and then waits a moment for more: to wake it for each line costs a request
//! more than the line itself. Beyond a bound, lines are left out, since who waits for a slow log makes everybody wait.

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait to be written.
const WAITING_MAX: usize = 16 << 20;
/// How long more lines are waited for.
const GATHERED_FOR: Duration = Duration::from_millis(20);

/// Where lines are left.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    left_out: u64,
    is_over: bool,
}

/// The thread that writes; dropped, it writes what is left and ends.
pub(super) struct Writing {
    lines: Lines,
    thread: Option<JoinHandle<()>>,
}

impl Lines {
    /// Begins to write to `writer` what is left here.
    pub(super) fn write_to(&self, writer: impl Write + Send + 'static) -> std::io::Result<Writing> {
        let lines = self.clone();
        let thread = std::thread::Builder::new().name("stemma-log".to_owned()).spawn(move || lines.run(writer))?;
        Ok(Writing { lines: self.clone(), thread: Some(thread) })
    }

    fn run(&self, mut writer: impl Write) {
        let mut spare = Vec::new();
        loop {
            let mut waiting = self.0.waiting.lock();
            self.0.changed.wait_while(&mut waiting, |waiting| waiting.bytes.is_empty() && !waiting.is_over);
            if !waiting.is_over {
                self.0.changed.wait_while_for(&mut waiting, |waiting| !waiting.is_over, GATHERED_FOR);
            }
            let bytes = std::mem::replace(&mut waiting.bytes, std::mem::take(&mut spare));
            let (left_out, is_over) = (std::mem::take(&mut waiting.left_out), waiting.is_over);
            drop(waiting);
            // A log that can't be written has nowhere to say so.
            writer.write_all(&bytes).ok();
            if left_out > 0 {
                writeln!(writer, "{{\"level\":\"WARN\",\"message\":\"lines were left out\",\"count\":{left_out}}}")
                    .ok();
            }
            writer.flush().ok();
            spare = bytes;
            spare.clear();
            if is_over {
                return;
            }
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut waiting = self.0.waiting.lock();
        if waiting.bytes.len() + line.len() > WAITING_MAX {
            waiting.left_out += 1;
            return Ok(line.len());
        }
        let was_empty = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        if was_empty {
            self.0.changed.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.lines.0.waiting.lock().is_over = true;
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

    /// Hands on what is written, piece by piece; the first one only when it is told to.
    struct Slow(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Whoever tells is gone: go on.
            self.0.recv().ok();
            self.1.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_lines_are_written_in_order_by_the_end() {
        let (go, told) = mpsc::channel();
        drop(go);
        let (written, mut lines) = (Arc::default(), Lines::default());
        let writing = lines.write_to(Slow(told, Arc::clone(&written))).unwrap();
        let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        for line in text.split_inclusive('\n') {
            lines.write_all(line.as_bytes()).unwrap();
        }
        drop(writing);
        assert_eq!(String::from_utf8(written.lock().clone()).unwrap(), text);
    }

    #[test]
    fn a_log_that_stands_still_holds_nobody_up() {
        let (go, told) = mpsc::channel();
        let (written, mut lines) = (Arc::default(), Lines::default());
        let writing = lines.write_to(Slow(told, Arc::clone(&written))).unwrap();
        let line = [b'x'; 1 << 10];
        for _ in 0..3 * (WAITING_MAX >> 10) {
            lines.write_all(&line).unwrap();
        }
        drop(go);
        drop(writing);
        let written = String::from_utf8(written.lock().clone()).unwrap();
        assert!(
            written.len() <= 2 * WAITING_MAX + 1000 && written.contains("lines were left out"),
            "{}",
            written.len()
        );
    }
}
