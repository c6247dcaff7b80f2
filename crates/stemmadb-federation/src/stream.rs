//! The row keys of one member, in the order of the sort.

use std::collections::VecDeque;
use std::time::Instant;

use stemmadb::merging::{KeyRows, KeyedRow, RowKey};
use stemmadb::{Document, Query, Result, Sequence, field};
use stemmadb_client::{AnyDatabase, Pending, RemoteDatabase, RemoteFind, RemoteRowKeys};

use crate::view::MemberView;

/// The most keys that a server is asked for at once, and as many if the number of rows is not limited.
const PAGE_MAX: u64 = 1_000;

/// The keys of one member.
pub(crate) enum KeyStream {
    Local {
        rows: Box<KeyRows>,
        head: Option<KeyedRow>,
        page_sequence: Option<Sequence>,
    },
    Remote(Box<RemoteStream>),
    /// The member failed.
    Missing,
}

/// The keys of a member on a server, read in pages.
pub(crate) struct RemoteStream {
    database: RemoteDatabase,
    /// The query without limit and position.
    query: Query,
    /// The state that is read, if it is not the newest.
    at: Option<Sequence>,
    keys: VecDeque<RowKey>,
    last: Option<RowKey>,
    pending: Option<Pending<RemoteRowKeys>>,
    page_len: u64,
    is_done: bool,
    deadline: Option<Instant>,
}

/// A row that was taken from a stream.
pub(crate) struct TakenRow {
    pub(crate) key: RowKey,
    pub(crate) local: Option<KeyedRow>,
}

impl KeyStream {
    /// Starts reading; sends the request to a server without waiting. `rows_needed` bounds the rows of the result, if
    /// it is limited; the first `first_count` are expected to be needed.
    pub(crate) fn start(
        database: &AnyDatabase,
        seen: &MemberView,
        query: &Query,
        rows_needed: Option<u64>,
        first_count: usize,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        match (database, seen) {
            (_, MemberView::Local(snapshot)) => {
                let query = match rows_needed {
                    Some(count) => query.clone().limit(count),
                    None => query.clone(),
                };
                let mut rows = Box::new(snapshot.find(query).keys(first_count)?);
                let head = rows.next().transpose()?;
                Ok(KeyStream::Local { rows, head, page_sequence: snapshot.page_sequence() })
            }
            (AnyDatabase::Remote(database), MemberView::Remote(at)) => {
                let mut stream = RemoteStream {
                    database: database.clone(),
                    query: query.clone(),
                    at: *at,
                    keys: VecDeque::new(),
                    last: query.first_after().cloned(),
                    pending: None,
                    page_len: rows_needed.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX),
                    is_done: false,
                    deadline,
                };
                stream.pending = Some(stream.page()?);
                Ok(KeyStream::Remote(Box::new(stream)))
            }
            _ => Ok(KeyStream::Missing),
        }
    }

    /// The next key, if there is one.
    pub(crate) fn head(&mut self) -> Result<Option<&RowKey>> {
        match self {
            KeyStream::Local { head, .. } => Ok(head.as_ref().map(|row| &row.key)),
            KeyStream::Remote(stream) => stream.head(),
            KeyStream::Missing => Ok(None),
        }
    }

    /// Takes the next row.
    pub(crate) fn take(&mut self) -> Result<Option<TakenRow>> {
        match self {
            KeyStream::Local { rows, head, .. } => {
                let Some(row) = head.take() else { return Ok(None) };
                *head = rows.next().transpose()?;
                Ok(Some(TakenRow { key: row.key.clone(), local: Some(row) }))
            }
            KeyStream::Remote(stream) => Ok(stream.keys.pop_front().map(|key| TakenRow { key, local: None })),
            KeyStream::Missing => Ok(None),
        }
    }

    /// The sequence as of which further pages are read, if the member keeps its past.
    pub(crate) fn page_sequence(&self) -> Option<Sequence> {
        match self {
            KeyStream::Local { page_sequence, .. } => *page_sequence,
            KeyStream::Remote(stream) => stream.at,
            KeyStream::Missing => None,
        }
    }

    /// Reads the documents of rows of an embedded member.
    pub(crate) fn load(&self, rows: &[KeyedRow]) -> Result<Vec<Document>> {
        match self {
            KeyStream::Local { rows: all, .. } => all.load(rows),
            _ => Ok(Vec::new()),
        }
    }

    /// Asks a server for the documents of rows; those that don't match any more are not in the answer.
    pub(crate) fn send_load(&self, keys: &[&RowKey]) -> Result<Option<Pending<Vec<Document>>>> {
        let KeyStream::Remote(stream) = self else { return Ok(None) };
        let ids = field("_id").one_of(keys.iter().map(|key| key.id().as_str()));
        stream.find(Query::new(stream.query.selector().clone().and(ids))).send_documents().map(Some)
    }
}

impl RemoteStream {
    fn find(&self, query: Query) -> RemoteFind {
        let query = match self.deadline {
            Some(deadline) => query.time_limit(deadline.saturating_duration_since(Instant::now())),
            None => query,
        };
        match self.at {
            Some(at) => self.database.as_of(at).find(query),
            None => self.database.find(query),
        }
    }

    fn page(&self) -> Result<Pending<RemoteRowKeys>> {
        let query = self.query.clone().limit(self.page_len);
        let query = match &self.last {
            Some(last) => query.after_key(last.clone()),
            None => query,
        };
        self.find(query).send_keys()
    }

    fn head(&mut self) -> Result<Option<&RowKey>> {
        while self.keys.is_empty() && !self.is_done {
            let pending = match self.pending.take() {
                Some(pending) => pending,
                None => self.page()?,
            };
            let page = pending.wait(self.deadline)?;
            self.at = self.at.or(page.page_sequence);
            self.is_done = (page.keys.len() as u64) < self.page_len;
            self.last = page.keys.last().cloned().or(self.last.take());
            self.keys = page.keys.into();
        }
        Ok(self.keys.front())
    }
}
