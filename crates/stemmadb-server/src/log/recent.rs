//! The last lines of the log, kept in memory for `GET /_log`, wherever the log is written to.
//!
//! A process has one log, so it has one such list. The list is limited in bytes; the oldest lines leave first. Numbers
//! of lines are consecutive. They begin with the time of the process's start, so that they ascend over restarts too.

use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::Level;

/// The maximum size of the kept lines, in bytes.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// The memory that a line takes besides its text, in bytes.
const LINE_OVERHEAD: usize = 96;
/// The maximum length of a message or of the text of a field, in bytes. The rest is cut off.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// A line of the log.
pub(crate) struct LogLine {
    pub(crate) number: u64,
    /// The time in microseconds since 1970.
    pub(crate) time_us: u64,
    pub(crate) level: tracing::Level,
    /// The part of the server that wrote the line.
    pub(crate) target: &'static str,
    /// The members `message` and `fields` of a JSON object, as text.
    pub(crate) members: Box<str>,
}

/// The last lines of the log.
pub(crate) struct RecentLines {
    kept: Mutex<KeptLines>,
    /// The number of the newest line. It is updated only while there are receivers.
    newest: watch::Sender<u64>,
}

struct KeptLines {
    lines: VecDeque<Arc<LogLine>>,
    byte_count: usize,
    /// The number of the next line.
    next: u64,
}

/// The last lines of this process's log. Empty if no log is installed.
pub(crate) fn recent_lines() -> &'static RecentLines {
    static RECENT: LazyLock<RecentLines> = LazyLock::new(|| RecentLines::starting_at(now_us()));
    &RECENT
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

impl RecentLines {
    fn starting_at(number: u64) -> Self {
        let kept = KeptLines { lines: VecDeque::new(), byte_count: 0, next: number };
        RecentLines { kept: Mutex::new(kept), newest: watch::Sender::new(0) }
    }

    /// Receives the number of the newest line whenever there is one. Must be called before reading, so that no line
    /// is missed.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// The last `limit` lines after number `since` that are at least as severe as `level`, oldest first.
    pub(crate) fn last(&self, since: u64, level: Level, limit: usize) -> Vec<Arc<LogLine>> {
        let (kept, filter) = (self.kept.lock(), level.filter());
        let lines = kept.after(since).rev().filter(|line| line.level <= filter).take(limit);
        let mut lines: Vec<_> = lines.cloned().collect();
        lines.reverse();
        lines
    }

    /// The first `limit` lines after number `since` that are at least as severe as `level`, and the number up to which
    /// that is known.
    pub(crate) fn next(&self, since: u64, level: Level, limit: usize) -> (Vec<Arc<LogLine>>, u64) {
        let (kept, filter) = (self.kept.lock(), level.filter());
        let lines: Vec<_> = kept.after(since).filter(|line| line.level <= filter).take(limit).cloned().collect();
        let known = match lines.last() {
            Some(last) if lines.len() == limit => last.number,
            _ => since.max(kept.next - 1),
        };
        (lines, known)
    }

    /// The number of the newest line, or the one before the first.
    pub(crate) fn newest_number(&self) -> u64 {
        self.kept.lock().next - 1
    }

    fn push(&self, level: tracing::Level, target: &'static str, members: Box<str>) {
        let mut kept = self.kept.lock();
        let number = kept.next;
        kept.push(LogLine { number, time_us: now_us(), level, target, members });
        drop(kept);
        if self.newest.receiver_count() > 0 {
            self.newest.send_replace(number);
        }
    }
}

impl KeptLines {
    fn push(&mut self, line: LogLine) {
        self.byte_count += line.size();
        self.lines.push_back(Arc::new(line));
        self.next += 1;
        while self.byte_count > KEPT_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.byte_count -= oldest.size();
        }
    }

    /// The lines after a number, oldest first.
    fn after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Arc<LogLine>> {
        let first = self.lines.front().map_or(0, |line| line.number);
        let skipped = usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.lines.range(skipped.min(self.lines.len())..)
    }
}

impl LogLine {
    fn size(&self) -> usize {
        LINE_OVERHEAD + self.members.len()
    }
}

/// Adds each line of the log to [`recent_lines`].
pub(super) struct RecentLayer;

impl<S: Subscriber> Layer<S> for RecentLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut members = Members { message: String::new(), fields: Vec::with_capacity(256) };
        event.record(&mut members);
        recent_lines().push(*metadata.level(), metadata.target(), members.finish());
    }
}

/// Collects the message and the fields of a line.
struct Members {
    message: String,
    /// The members of the object `fields`, each followed by a comma.
    fields: Vec<u8>,
}

impl Members {
    fn finish(mut self) -> Box<str> {
        self.fields.pop();
        let mut text = Vec::with_capacity(self.message.len() + self.fields.len() + 32);
        text.extend_from_slice(b"\"message\":");
        write_json(&mut text, cut(&self.message));
        text.extend_from_slice(b",\"fields\":{");
        text.extend_from_slice(&self.fields);
        text.push(b'}');
        // JSON of strings is valid UTF-8.
        String::from_utf8(text).unwrap_or_default().into_boxed_str()
    }

    fn field(&mut self, field: &Field, value: impl serde::Serialize) {
        write_json(&mut self.fields, field.name());
        self.fields.push(b':');
        write_json(&mut self.fields, value);
        self.fields.push(b',');
    }
}

fn write_json(out: &mut Vec<u8>, value: impl serde::Serialize) {
    // Writing to memory can't fail, and neither can strings and numbers.
    serde_json::to_writer(out, &value).ok();
}

/// The beginning of a long text.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string can't fail.
            write!(self.message, "{value:?}").ok();
        } else {
            self.record_str(field, &format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            _ => self.field(field, cut(value)),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u64, length: usize) -> RecentLines {
        let recent = RecentLines::starting_at(100);
        for number in 0..count {
            let level = if number % 10 == 0 { tracing::Level::WARN } else { tracing::Level::INFO };
            recent.push(level, "test", format!("{number:0length$}").into());
        }
        recent
    }

    fn numbers(lines: &[Arc<LogLine>]) -> Vec<u64> {
        lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn last_lines_are_selected_by_number_and_level() {
        let recent = filled(50, 1);
        assert_eq!(numbers(&recent.last(0, Level::Debug, 3)), [147, 148, 149]);
        assert_eq!(numbers(&recent.last(147, Level::Debug, 10)), [148, 149]);
        assert_eq!(numbers(&recent.last(0, Level::Warn, 2)), [130, 140]);
        assert!(recent.last(0, Level::Error, 10).is_empty());
        assert!(recent.last(149, Level::Debug, 10).is_empty() && recent.last(u64::MAX, Level::Debug, 1).is_empty());
        assert_eq!(recent.newest_number(), 149);
        let empty = RecentLines::starting_at(100);
        assert_eq!((empty.newest_number(), empty.last(0, Level::Debug, 1).len()), (99, 0));
    }

    #[test]
    fn following_continues_where_it_stopped() {
        let recent = filled(50, 1);
        let (lines, known) = recent.next(0, Level::Warn, 2);
        assert_eq!((numbers(&lines), known), (vec![100, 110], 110));
        let (lines, known) = recent.next(known, Level::Warn, 100);
        assert_eq!((numbers(&lines), known), (vec![120, 130, 140], 149));
        let mut newest = recent.newest();
        assert!(recent.next(known, Level::Debug, 1).0.is_empty() && !newest.has_changed().unwrap());
        recent.push(tracing::Level::ERROR, "test", "".into());
        assert_eq!(*newest.borrow_and_update(), 150);
        assert_eq!(numbers(&recent.next(known, Level::Error, 1).0), [150]);
    }

    #[test]
    fn memory_is_bounded_and_oldest_lines_leave_first() {
        let recent = filled(3_000, 10_000);
        let kept = recent.kept.lock();
        assert!(kept.byte_count <= KEPT_BYTES_MAX && kept.lines.len() > 300, "{} lines", kept.lines.len());
        assert_eq!(kept.byte_count, kept.lines.iter().map(|line| line.size()).sum::<usize>());
        assert_eq!((kept.lines.back().unwrap().number, kept.next), (3_099, 3_100));
    }

    #[test]
    fn messages_and_fields_become_json() {
        use tracing_subscriber::layer::SubscriberExt;
        // The list is the process's: other tests may add lines.
        let since = recent_lines().newest_number();
        let subscriber = tracing_subscriber::registry().with(RecentLayer);
        let long = "ä".repeat(TEXT_BYTES_MAX);
        tracing::subscriber::with_default(subscriber, || {
            let nothing: Option<&str> = None;
            tracing::warn!(target: "recent", status = 200_u16, ms = 1.5, ok = true, nothing, "\"{}\"\n", "done");
            tracing::info!(target: "recent", text = "a \"b\"\u{1}", debug = ?Some(1), long);
        });
        let lines = recent_lines().last(since, Level::Debug, usize::MAX);
        let lines: Vec<_> = lines.iter().filter(|line| line.target == "recent").collect();
        let parsed = |at: usize| serde_json::from_str::<serde_json::Value>(&format!("{{{}}}", lines[at].members));
        let first = serde_json::json!({"message": "\"done\"\n", "fields": {"status": 200, "ms": 1.5, "ok": true}});
        assert_eq!(parsed(0).unwrap(), first);
        let second = parsed(1).unwrap();
        assert_eq!((&second["message"], &second["fields"]["text"]), (&"".into(), &"a \"b\"\u{1}".into()));
        assert_eq!(second["fields"]["debug"], "Some(1)");
        assert_eq!(second["fields"]["long"].as_str().unwrap().len(), TEXT_BYTES_MAX);
    }
}
