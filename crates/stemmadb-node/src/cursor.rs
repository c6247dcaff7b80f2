//! Results that are read in portions: rows of queries, the changes feed and live queries.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use napi_derive::napi;
use stemmadb::{Document, DocumentId, Error, Result, Value};
use stemmadb_client::{AnyDatabase, AnyRows, AnySubscription, AnyWatch};

use crate::calls::{Answer, Calls};
use crate::pool::{CALLS, WAITS};
use crate::text::{into_text, write_change, write_delta, write_document};

/// How long a feed waits until it looks whether somebody closed it.
const SLICE: Duration = Duration::from_millis(100);

/// The rows of a query.
pub(crate) enum Rows {
    Documents(AnyRows<Document>),
    Values(AnyRows<Value>),
    Ids(AnyRows<DocumentId>),
    /// Those that the server has returned already.
    Read(std::vec::IntoIter<Document>),
}

impl Rows {
    /// Appends the next row; returns whether there is one.
    pub(crate) fn write_next(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        match self {
            Rows::Documents(rows) => match rows.next().transpose()? {
                Some(document) => write_document(&document, out)?,
                None => return Ok(false),
            },
            Rows::Values(rows) => match rows.next().transpose()? {
                Some(value) => value.write_json(out),
                None => return Ok(false),
            },
            Rows::Ids(rows) => match rows.next().transpose()? {
                Some(id) => Value::from(id.as_str()).write_json(out),
                None => return Ok(false),
            },
            Rows::Read(rows) => match rows.next() {
                Some(document) => write_document(&document, out)?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// The token of the last row that was read, after which another query continues.
    pub(crate) fn token(&self) -> Result<Option<String>> {
        match self {
            Rows::Documents(rows) => rows.token(),
            Rows::Values(rows) => rows.token(),
            Rows::Ids(rows) => rows.token(),
            Rows::Read(_) => Ok(None),
        }
    }
}

/// What a cursor reads.
pub(crate) enum Source {
    Rows(Rows),
    Changes {
        database: AnyDatabase,
        feed: AnySubscription,
        timeout: Option<Duration>,
    },
    Watch {
        database: AnyDatabase,
        watch: AnyWatch,
        timeout: Option<Duration>,
    },
    /// The error that ended it, after the rows before it.
    Failed(Error),
    Ended,
}

/// An iteration that JavaScript asks for portions.
#[napi]
pub struct Cursor {
    shared: Arc<Shared>,
    waits: bool,
}

struct Shared {
    source: Mutex<Source>,
    is_closed: AtomicBool,
}

#[napi]
impl Cursor {
    /// Answers with the next items, up to `count`: an array whose first element says whether there are no more. A feed
    /// waits for the first item, and adds those that are there already.
    #[napi]
    pub fn next(&self, calls: &Calls, number: f64, count: u32) {
        let shared = self.shared.clone();
        calls.run(if self.waits { &WAITS } else { &CALLS }, number, move || shared.next(count).map(Answer::Text));
    }

    /// Ends a wait, and releases what the cursor holds.
    #[napi]
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        let shared = self.shared.clone();
        CALLS.run(Box::new(move || shared.end()));
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.close();
    }
}

impl Cursor {
    pub(crate) fn new(source: Source) -> Self {
        let waits = !matches!(source, Source::Rows(_));
        Cursor { shared: Arc::new(Shared { source: Mutex::new(source), is_closed: AtomicBool::new(false) }), waits }
    }
}

/// What a feed returns within a time.
enum Step<T> {
    Item(T),
    Nothing,
    Closed,
}

fn step<T>(database: &AnyDatabase, item: Option<T>) -> Step<T> {
    match item {
        Some(item) => Step::Item(item),
        None if database.is_closed() => Step::Closed,
        None => Step::Nothing,
    }
}

impl Shared {
    fn end(&self) {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        *source = Source::Ended;
    }

    fn next(&self, count: u32) -> Result<String> {
        let mut source = self.source.lock().map_err(|_| Error::internal("an earlier read of this iterator failed"))?;
        let mut items = Vec::with_capacity(1024);
        let (is_done, failure) = match &mut *source {
            Source::Rows(rows) => read_rows(rows, count, &mut items),
            Source::Changes { database, feed, timeout } => {
                let next = |time| Ok(step(database, feed.next_within(time)?));
                self.read_feed(*timeout, count, &mut items, next, |change, out| write_change(&change, out))
            }
            Source::Watch { database, watch, timeout } => {
                let next = |time| Ok(step(database, watch.next_within(time)?));
                self.read_feed(*timeout, count, &mut items, next, |delta, out| write_delta(&delta, out))
            }
            Source::Failed(_) => match std::mem::replace(&mut *source, Source::Ended) {
                Source::Failed(error) => return Err(error),
                _ => (true, None),
            },
            Source::Ended => (true, None),
        };
        if let Some(error) = failure {
            // What was read before it is returned first.
            if items.is_empty() {
                *source = Source::Ended;
                return Err(error);
            }
            *source = Source::Failed(error);
        } else if is_done {
            *source = Source::Ended;
        }
        let mut json = Vec::with_capacity(items.len() + 8);
        json.extend_from_slice(if is_done { b"[true" } else { b"[false" });
        json.append(&mut items);
        json.push(b']');
        into_text(json)
    }

    /// Reads what a feed has, after waiting for the first item.
    fn read_feed<T>(
        &self,
        timeout: Option<Duration>,
        count: u32,
        items: &mut Vec<u8>,
        mut next: impl FnMut(Duration) -> Result<Step<T>>,
        mut write: impl FnMut(T, &mut Vec<u8>) -> Result<()>,
    ) -> (bool, Option<Error>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut read_count = 0;
        while read_count < count {
            if self.is_closed.load(Ordering::Acquire) {
                return (true, None);
            }
            let left = match (read_count, deadline) {
                (0, Some(deadline)) => deadline.saturating_duration_since(Instant::now()).min(SLICE),
                (0, None) => SLICE,
                // Others that are there already.
                _ => Duration::ZERO,
            };
            match next(left) {
                Ok(Step::Item(item)) => {
                    items.push(b',');
                    if let Err(error) = write(item, items) {
                        return (true, Some(error));
                    }
                    read_count += 1;
                }
                Ok(Step::Closed) => return (true, None),
                Ok(Step::Nothing) if read_count > 0 => return (false, None),
                Ok(Step::Nothing) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return (true, None);
                }
                Ok(Step::Nothing) => {}
                Err(error) => return (read_count == 0, Some(error)),
            }
        }
        (false, None)
    }
}

fn read_rows(rows: &mut Rows, count: u32, items: &mut Vec<u8>) -> (bool, Option<Error>) {
    for _ in 0..count {
        let start = items.len();
        items.push(b',');
        match rows.write_next(items) {
            Ok(true) => {}
            Ok(false) => {
                items.truncate(start);
                return (true, None);
            }
            Err(error) => {
                items.truncate(start);
                return (false, Some(error));
            }
        }
    }
    (false, None)
}
