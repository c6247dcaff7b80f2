//! The rows of a result: ids, documents, or the fields that were asked for. They stream.
//!
//! Rows are made in batches that start small and grow, so that a short result costs little and a long one is read many
//! documents at a time.

use super::cursor::{self, Cursor, Hit, Place};
use super::document::{Document, value_at};
use super::fields::Fields;
use super::limits::Limits;
use super::request::{Prepared, Query};
use super::source::Source;
use super::token::Position;
use crate::index::DocumentNumber;
use crate::revision::DocumentId;
use crate::store::Document as StoredDocument;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// How many rows the first batch makes at most (fewer in tests, so that small results take several), and how much larger
/// each next one may be.
const FIRST_BATCH: usize = if cfg!(test) { 2 } else { 16 };
const BATCH_GROWTH: usize = 4;
/// How many ids a batch makes at most, and how many documents.
const IDS_BATCH_MAX: usize = 1024;
const DOCUMENTS_BATCH_MAX: usize = 128;

/// The ids of the documents that match; bodies are only read where the index can't decide.
pub(crate) fn ids<S: Source>(source: S, query: &Query) -> Result<Rows<S, DocumentId>> {
    Rows::open(source, query, IDS_BATCH_MAX, make_ids)
}

/// The documents that match.
pub(crate) fn documents<S: Source>(source: S, query: &Query) -> Result<Rows<S, StoredDocument>> {
    Rows::open(source, query, DOCUMENTS_BATCH_MAX, make_documents)
}

/// The fields that the query asks for, of the documents that match; whole documents, with `_id` and `_rev` as their first
/// fields, if it asks for none.
pub(crate) fn values<S: Source>(source: S, query: &Query) -> Result<Rows<S, Value>> {
    Rows::open(source, query, DOCUMENTS_BATCH_MAX, make_values)
}

/// How many documents match. Sort, limit, skip and token play no part.
pub(crate) fn count<S: Source>(source: S, query: &Query) -> Result<u64> {
    cursor::count(source, &query.prepare_unordered()?)
}

/// The rows of a result, in order.
///
/// After an error there are no further rows.
pub(crate) struct Rows<S, T> {
    cursor: Cursor<S>,
    prepared: Prepared,
    make: Make<S, T>,
    /// The rows made last that are not yet returned, and the hits that all rows made last came from.
    made: std::vec::IntoIter<T>,
    hits: Vec<Hit>,
    /// The row before these.
    before: Option<Hit>,
    skip_left: u64,
    limit_left: u64,
    limits: Limits,
    returned_count: u64,
    batch: usize,
    batch_max: usize,
    is_finished: bool,
}

/// Makes rows of those hits that match, and returns both.
type Make<S, T> = fn(&Cursor<S>, &Prepared, Vec<Hit>) -> Result<(Vec<Hit>, Vec<T>)>;

impl<S: Source, T> Rows<S, T> {
    fn open(source: S, query: &Query, batch_max: usize, make: Make<S, T>) -> Result<Self> {
        let prepared = query.prepare()?;
        let cursor = Cursor::open(source, &prepared, None)?;
        let (skip_left, limit_left) = (prepared.skip, prepared.limit.unwrap_or(u64::MAX));
        Ok(Rows {
            cursor,
            prepared,
            make,
            made: Vec::new().into_iter(),
            hits: Vec::new(),
            before: None,
            skip_left,
            limit_left,
            limits: query.limits().clone(),
            returned_count: 0,
            batch: FIRST_BATCH,
            batch_max,
            is_finished: false,
        })
    }

    /// The token that continues after the row returned last: none before the first row, and none if the result came to
    /// its end. It survives a restart; pass it to [`Query::after`].
    pub(crate) fn token(&self) -> Result<Option<String>> {
        let returned_count = self.hits.len() - self.made.len();
        let last = returned_count.checked_sub(1).map_or(self.before.as_ref(), |last| self.hits.get(last));
        match last {
            Some(hit) if !self.is_finished || self.made.len() > 0 || self.limit_left == 0 => {
                Ok(Some(Position::of(hit).to_token(self.prepared.hash()?)))
            }
            _ => Ok(None),
        }
    }

    /// How many documents were read so far, to decide or to return.
    pub(crate) fn documents_read(&self) -> u64 {
        self.cursor.filtered.documents_read()
    }

    /// Makes the next rows.
    fn fill(&mut self) -> Result<()> {
        while self.made.len() == 0 && !self.is_finished {
            self.cursor.filtered.source.proceed()?;
            let left = usize::try_from(self.limit_left.saturating_add(self.skip_left)).unwrap_or(usize::MAX);
            if self.limit_left == 0 {
                self.is_finished = true;
                break;
            }
            let mut hits = self.cursor.next_hits(self.batch.min(left))?;
            self.batch = (self.batch * BATCH_GROWTH).min(self.batch_max);
            if hits.is_empty() {
                self.is_finished = true;
                break;
            }
            if self.skip_left > 0 {
                hits = self.cursor.filtered.verified(hits)?;
                let skipped = hits.len().min(usize::try_from(self.skip_left).unwrap_or(usize::MAX));
                hits.drain(..skipped);
                self.skip_left -= skipped as u64;
            }
            if !hits.is_empty() {
                let (hits, made) = (self.make)(&self.cursor, &self.prepared, hits)?;
                if let Some(last) = self.hits.pop() {
                    self.before = Some(last);
                }
                (self.hits, self.made) = (hits, made.into_iter());
            }
        }
        Ok(())
    }
}

impl<S: Source, T> Iterator for Rows<S, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.made.len() == 0
            && let Err(error) = self.fill()
        {
            self.is_finished = true;
            self.limit_left = 0;
            return Some(Err(error));
        }
        let row = self.made.next()?;
        self.returned_count += 1;
        if let Err(error) = self.limits.allow_rows(self.returned_count) {
            self.made = Vec::new().into_iter();
            (self.is_finished, self.limit_left) = (true, 0);
            return Some(Err(error));
        }
        self.limit_left = self.limit_left.saturating_sub(1);
        Some(Ok(row))
    }
}

impl Position {
    fn of(hit: &Hit) -> Self {
        match &hit.place {
            Place::Number => Position::Number(hit.number),
            Place::Value { ordinal, key } => {
                Position::Value { ordinal: *ordinal, key: key.clone(), number: hit.number }
            }
            Place::Sorted(sorted) => Position::Sorted(sorted.clone()),
        }
    }
}

fn make_ids<S: Source>(cursor: &Cursor<S>, _: &Prepared, hits: Vec<Hit>) -> Result<(Vec<Hit>, Vec<DocumentId>)> {
    let hits = cursor.filtered.verified(hits)?;
    let sorted = |hit: &Hit| match &hit.place {
        Place::Sorted(sorted) => Some(sorted.id.clone()),
        _ => None,
    };
    if let Some(ids) = hits.iter().map(sorted).collect() {
        return Ok((hits, ids));
    }
    let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
    let ids = cursor.filtered.source.ids(&numbers)?;
    if ids.len() != numbers.len() {
        return Err(Error::internal("a snapshot gave fewer ids than documents"));
    }
    Ok((hits, ids))
}

fn make_documents<S: Source>(
    cursor: &Cursor<S>,
    _: &Prepared,
    hits: Vec<Hit>,
) -> Result<(Vec<Hit>, Vec<StoredDocument>)> {
    load_each(cursor, hits, Ok)
}

fn make_values<S: Source>(cursor: &Cursor<S>, prepared: &Prepared, hits: Vec<Hit>) -> Result<(Vec<Hit>, Vec<Value>)> {
    load_each(cursor, hits, |document| project(prepared.fields.as_ref(), Document::of(&document)?))
}

fn load_each<S: Source, T>(
    cursor: &Cursor<S>,
    hits: Vec<Hit>,
    mut make: impl FnMut(StoredDocument) -> Result<T>,
) -> Result<(Vec<Hit>, Vec<T>)> {
    let mut made = Vec::with_capacity(hits.len());
    let mut matching = Vec::with_capacity(hits.len());
    cursor.filtered.load(&hits, |at, document| {
        matching.push(at);
        made.push(make(document)?);
        Ok(())
    })?;
    if made.len() == hits.len() {
        return Ok((hits, made));
    }
    let mut matching = matching.into_iter().peekable();
    let mut at = 0;
    let mut hits = hits;
    hits.retain(|_| {
        at += 1;
        matching.next_if_eq(&(at - 1)).is_some()
    });
    Ok((hits, made))
}

/// The fields of a document; all of them, its own first, if none are named.
fn project(fields: Option<&Fields>, document: Document<'_>) -> Result<Value> {
    if let Some(fields) = fields {
        return fields.project(|path| value_at(path, document));
    }
    let mut whole = Object::new();
    whole.insert("_id", document.id);
    whole.insert("_rev", document.revision.to_string());
    if let Value::Object(body) = document.body.to_value()? {
        for (name, value) in body {
            if !matches!(name.as_str(), "_id" | "_rev") {
                whole.insert(name, value);
            }
        }
    }
    Ok(Value::Object(whole))
}
