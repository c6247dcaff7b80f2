//! The last lines of the log, kept in memory for `GET /_log`, wherever the log is written to.
//!
//! A process has one log, so it has one such list. The list is limited in bytes; the oldest lines leave first. Numbers
//! of lines are consecutive. They begin with the time of the process's start, so that they ascend over restarts too.
//!
//! Every request writes a line and almost none is read, so values are copied as they are, and become JSON when they are
//! read.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
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
    /// The level, the part of the server that wrote the line, and the names of its fields.
    metadata: &'static Metadata<'static>,
    values: Values,
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
        let lines = kept.after(since).rev().filter(|line| line.level() <= filter).take(limit);
        let mut lines: Vec<_> = lines.cloned().collect();
        lines.reverse();
        lines
    }

    /// The first `limit` lines after number `since` that are at least as severe as `level`, and the number up to which
    /// that is known.
    pub(crate) fn next(&self, since: u64, level: Level, limit: usize) -> (Vec<Arc<LogLine>>, u64) {
        let (kept, filter) = (self.kept.lock(), level.filter());
        let lines: Vec<_> = kept.after(since).filter(|line| line.level() <= filter).take(limit).cloned().collect();
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

    fn push(&self, metadata: &'static Metadata<'static>, values: Values) {
        let mut kept = self.kept.lock();
        let number = kept.next;
        kept.push(LogLine { number, time_us: now_us(), metadata, values });
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
    pub(crate) fn level(&self) -> tracing::Level {
        *self.metadata.level()
    }

    /// The part of the server that wrote the line.
    pub(crate) fn target(&self) -> &'static str {
        self.metadata.target()
    }

    /// Appends the members `message` and `fields` of a JSON object.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        let (mut message, mut fields) = ("", Vec::new());
        for (index, value) in self.values.iter() {
            let name = self.metadata.fields().iter().nth(index).map_or("", |field| field.name());
            match value {
                FieldValue::Text(text) if name == MESSAGE => message = text,
                value => {
                    write_json(&mut fields, name);
                    fields.push(b':');
                    write_json(&mut fields, value);
                    fields.push(b',');
                }
            }
        }
        fields.pop();
        out.extend_from_slice(b"\"message\":");
        write_json(out, message);
        out.extend_from_slice(b",\"fields\":{");
        out.extend_from_slice(&fields);
        out.push(b'}');
    }

    fn size(&self) -> usize {
        LINE_OVERHEAD + self.values.0.capacity()
    }
}

fn write_json(out: &mut Vec<u8>, value: impl Serialize) {
    // Writing to memory can't fail, and neither can strings and numbers.
    serde_json::to_writer(out, &value).ok();
}

/// Adds each line of the log to a list.
pub(super) struct RecentLayer(pub(super) &'static RecentLines);

impl<S: Subscriber> Layer<S> for RecentLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut values = Values(Vec::with_capacity(VALUES_CAPACITY));
        event.record(&mut values);
        self.0.push(event.metadata(), values);
    }
}

/// The name of the field with the message of a line.
const MESSAGE: &str = "message";
/// The initial capacity of a line's values: enough for a request.
const VALUES_CAPACITY: usize = 192;

/// The values of a line: for each one, the index of its field, its kind, and its bytes.
struct Values(Vec<u8>);

/// The value of a field.
#[derive(Serialize)]
#[serde(untagged)]
enum FieldValue<'a> {
    Flag(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
}

impl Values {
    fn push(&mut self, field: &Field, kind: u8, bytes: &[u8]) {
        // An event has at most 32 fields.
        self.0.extend_from_slice(&[field.index() as u8, kind]);
        self.0.extend_from_slice(bytes);
    }

    fn iter(&self) -> impl Iterator<Item = (usize, FieldValue<'_>)> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let ([index, kind], bytes) = rest.split_first_chunk()?;
            let (number, after) = bytes.split_first_chunk::<8>()?;
            rest = after;
            let value = match kind {
                b'b' => FieldValue::Flag(number[0] != 0),
                b'u' => FieldValue::Unsigned(u64::from_le_bytes(*number)),
                b'i' => FieldValue::Signed(i64::from_le_bytes(*number)),
                b'f' => FieldValue::Float(f64::from_le_bytes(*number)),
                _ => {
                    let (text, after) = after.split_at_checked(u64::from_le_bytes(*number) as usize)?;
                    rest = after;
                    FieldValue::Text(std::str::from_utf8(text).unwrap_or_default())
                }
            };
            Some((usize::from(*index), value))
        })
    }
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let text = &value[..value.floor_char_boundary(TEXT_BYTES_MAX)];
        self.push(field, b's', &(text.len() as u64).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, b'f', &value.to_le_bytes());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, b'i', &value.to_le_bytes());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, b'u', &value.to_le_bytes());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, b'b', &u64::from(value).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A list to which `write` writes lines.
    fn written(write: impl FnOnce()) -> &'static RecentLines {
        let recent: &'static RecentLines = Box::leak(Box::new(RecentLines::starting_at(100)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(RecentLayer(recent)), write);
        recent
    }

    fn filled(count: u64, length: usize) -> &'static RecentLines {
        written(|| {
            for number in 0..count {
                let text = "x".repeat(length);
                match number % 10 == 0 {
                    true => tracing::warn!(number, text),
                    false => tracing::info!(number, text),
                }
            }
        })
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
        tracing::subscriber::with_default(tracing_subscriber::registry().with(RecentLayer(recent)), || {
            tracing::error!("the disk is on fire");
        });
        assert_eq!(*newest.borrow_and_update(), 150);
        assert_eq!(numbers(&recent.next(known, Level::Error, 1).0), [150]);
    }

    #[test]
    fn memory_is_bounded_and_oldest_lines_leave_first() {
        let recent = filled(3_000, 7_000);
        let kept = recent.kept.lock();
        assert!(kept.byte_count <= KEPT_BYTES_MAX && kept.lines.len() > 300, "{} lines", kept.lines.len());
        assert_eq!(kept.byte_count, kept.lines.iter().map(|line| line.size()).sum::<usize>());
        assert_eq!((kept.lines.back().unwrap().number, kept.next), (3_099, 3_100));
    }

    #[test]
    fn messages_and_fields_become_json() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let recent = written(|| {
            let nothing: Option<&str> = None;
            let (ms, ok) = (1.5, true);
            tracing::warn!(target: "recent", status = 200_u16, left = -1, ms, ok, nothing, "\"{}\"\n", "done");
            tracing::info!(target: "recent", text = "a \"b\"\u{1}", debug = ?Some(1), long);
        });
        let lines = recent.last(0, Level::Debug, usize::MAX);
        let parsed = |line: &LogLine| {
            let mut text = b"{".to_vec();
            line.write_members(&mut text);
            text.push(b'}');
            serde_json::from_slice::<serde_json::Value>(&text).unwrap()
        };
        let fields = serde_json::json!({"status": 200, "left": -1, "ms": 1.5, "ok": true});
        assert_eq!(parsed(&lines[0]), serde_json::json!({"message": "\"done\"\n", "fields": fields}));
        assert_eq!((lines[0].target(), lines[0].level()), ("recent", tracing::Level::WARN));
        let second = parsed(&lines[1]);
        assert_eq!((&second["message"], &second["fields"]["text"]), (&"".into(), &"a \"b\"\u{1}".into()));
        assert_eq!(second["fields"]["debug"], "Some(1)");
        assert_eq!(second["fields"]["long"].as_str().unwrap().len(), TEXT_BYTES_MAX);
    }
}
