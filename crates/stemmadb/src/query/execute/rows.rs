//! The rows of a result: ids, documents, or the fields that were asked for. They stream.
//!
//! Rows are made in batches that start small and grow, so that a short result costs little and a long one is read many
//! documents at a time.

use super::cursor::{self, Batch, Cursor, Hit, Place};
use crate::cache::CachedResult;
use crate::document::Document as StoredDocument;
use crate::index::DocumentNumber;
use crate::query::language::document::{Document, value_at};
use crate::query::language::page_token::{Position, QueryHash};
use crate::query::language::projection::Fields;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::query::plan::facts::Facts;
use crate::query::plan::request::{Prepared, Query};
use crate::query::source::Source;
use crate::query::source::limits::Limits;
use crate::revision::DocumentId;
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
    let mut rows = Rows::open(source, query, DOCUMENTS_BATCH_MAX, make_documents)?;
    rows.keep_answer(query)?;
    Ok(rows)
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
    /// The rows made last that are not yet returned, and what all rows made last came from.
    made: std::vec::IntoIter<T>,
    batch: Batch,
    /// Where the row before these stands.
    before: Option<Position>,
    skip_left: u64,
    limit_left: u64,
    limits: Limits,
    /// Rows made so far, if there may only be so many.
    made_count: u64,
    batch_size: usize,
    batch_max: usize,
    is_finished: bool,
}

/// Makes rows of what matches, and returns both.
type Make<S, T> = fn(&Cursor<S>, &Prepared, Batch) -> Result<(Batch, Vec<T>)>;

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
            batch: Batch::Hits(Vec::new()),
            before: None,
            skip_left,
            limit_left,
            limits: query.limits().clone(),
            made_count: 0,
            batch_size: FIRST_BATCH,
            batch_max,
            is_finished: false,
        })
    }

    /// The token that continues after the row returned last: none before the first row, and none if the result came to
    /// its end. It survives a restart; pass it to [`Query::after`].
    pub(crate) fn token(&self) -> Result<Option<String>> {
        let returned_count = self.batch.len() - self.made.len();
        let last = match returned_count.checked_sub(1) {
            Some(last) => self.cursor.position(&self.batch, last)?,
            None => self.before.clone(),
        };
        match last {
            Some(position) if !self.is_finished || self.made.len() > 0 || self.limit_left == 0 => {
                Ok(Some(position.to_token(self.prepared.hash()?)))
            }
            _ => Ok(None),
        }
    }

    /// How many documents were read so far, to decide or to return.
    pub(crate) fn documents_read(&self) -> u64 {
        self.cursor.filtered.documents_read()
    }

    /// The first of the next rows, which are made.
    #[cold]
    fn turn(&mut self) -> Option<Result<T>> {
        match self.fill() {
            Ok(()) => self.made.next().map(Ok),
            Err(error) => {
                self.made = Vec::new().into_iter();
                (self.is_finished, self.limit_left) = (true, 0);
                Some(Err(error))
            }
        }
    }

    /// Makes the next rows.
    ///
    /// # Errors
    /// `Stopped` once there are more rows than the query may have, after all it may.
    fn fill(&mut self) -> Result<()> {
        while self.made.len() == 0 && !self.is_finished {
            self.limits.allow_rows(self.made_count)?;
            self.cursor.filtered.source.proceed()?;
            let left = usize::try_from(self.limit_left.saturating_add(self.skip_left)).unwrap_or(usize::MAX);
            if self.limit_left == 0 {
                self.is_finished = true;
                break;
            }
            let mut batch = self.cursor.next_batch(self.batch_size.min(left))?;
            self.batch_size = (self.batch_size * BATCH_GROWTH).min(self.batch_max);
            if batch.len() == 0 {
                self.is_finished = true;
                break;
            }
            if self.skip_left > 0 {
                if let Batch::Hits(hits) = batch {
                    batch = Batch::Hits(self.cursor.filtered.verified(hits)?);
                }
                let skipped = batch.len().min(usize::try_from(self.skip_left).unwrap_or(usize::MAX));
                batch.skip(skipped);
                self.skip_left -= skipped as u64;
            }
            if batch.len() > 0 {
                let (mut batch, mut made) = (self.make)(&self.cursor, &self.prepared, batch)?;
                if let Some(last) = self.batch.len().checked_sub(1) {
                    self.before = self.cursor.position(&self.batch, last)?;
                }
                self.limit_left = self.limit_left.saturating_sub(made.len() as u64);
                if let Some(most) = self.limits.rows {
                    let allowed = usize::try_from(most.saturating_sub(self.made_count)).unwrap_or(usize::MAX);
                    self.made_count += made.len() as u64;
                    made.truncate(allowed);
                    batch.truncate(allowed);
                }
                (self.batch, self.made) = (batch, made.into_iter());
            }
        }
        Ok(())
    }
}

impl<S: Source> Rows<S, StoredDocument> {
    /// Makes the first rows of a look-up at once, and has them kept if they are all.
    fn keep_answer(&mut self, query: &Query) -> Result<()> {
        let filtered = &self.cursor.filtered;
        let Some((path, key)) = query.note_term(Facts::of(&filtered.source).state(), &filtered.plan) else {
            return Ok(());
        };
        let is_decided = filtered.overflow().is_empty();
        self.fill()?;
        let numbers = match &self.batch {
            Batch::Sure(numbers) => numbers.as_slice(),
            Batch::Hits(hits) if hits.is_empty() => &[],
            Batch::Hits(_) => return Ok(()),
        };
        if is_decided && numbers.len() < FIRST_BATCH {
            let answer: CachedResult = numbers.iter().copied().zip(self.made.as_slice().iter().cloned()).collect();
            self.cursor.filtered.source.keep_answer(path, &key, &answer);
        }
        Ok(())
    }
}

/// As [`Rows::token`], of an answer that was kept, of which so many rows were returned.
pub(crate) fn token_after(answer: &CachedResult, returned_count: usize, selector: &Selector) -> Result<Option<String>> {
    let Some((number, _)) = returned_count.checked_sub(1).and_then(|last| answer.get(last)) else { return Ok(None) };
    let hash = QueryHash::new(&selector.to_value()?, &Sort::default());
    Ok(Some(Position::Number(*number).to_token(hash)))
}

impl<S: Source, T> Iterator for Rows<S, T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        match self.made.next() {
            Some(row) => Some(Ok(row)),
            None => self.turn(),
        }
    }
}

impl Position {
    pub(in crate::query) fn of(hit: &Hit) -> Self {
        match &hit.place {
            Place::Number => Position::Number(hit.number),
            Place::Value { ordinal, key } => {
                Position::Value { ordinal: *ordinal, key: key.clone(), number: hit.number }
            }
            Place::Sorted(sorted) => Position::Sorted(sorted.clone()),
        }
    }
}

fn make_ids<S: Source>(cursor: &Cursor<S>, _: &Prepared, batch: Batch) -> Result<(Batch, Vec<DocumentId>)> {
    let hits = match batch {
        Batch::Sure(numbers) => {
            let ids = ids_of(cursor, &numbers)?;
            return Ok((Batch::Sure(numbers), ids));
        }
        Batch::Hits(hits) => cursor.filtered.verified(hits)?,
    };
    let sorted = |hit: &Hit| match &hit.place {
        Place::Sorted(sorted) => Some(sorted.id.clone()),
        _ => None,
    };
    let ids = match hits.iter().map(sorted).collect() {
        Some(ids) => ids,
        None => ids_of(cursor, &hits.iter().map(|hit| hit.number).collect::<Vec<_>>())?,
    };
    Ok((Batch::Hits(hits), ids))
}

fn ids_of<S: Source>(cursor: &Cursor<S>, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
    let ids = cursor.filtered.source.ids(numbers)?;
    if ids.len() != numbers.len() {
        return Err(Error::internal("a snapshot gave fewer ids than documents"));
    }
    Ok(ids)
}

fn make_documents<S: Source>(cursor: &Cursor<S>, _: &Prepared, batch: Batch) -> Result<(Batch, Vec<StoredDocument>)> {
    load_each(cursor, batch, Ok)
}

fn make_values<S: Source>(cursor: &Cursor<S>, prepared: &Prepared, batch: Batch) -> Result<(Batch, Vec<Value>)> {
    load_each(cursor, batch, |document| project(prepared.fields.as_ref(), Document::of(&document)?))
}

fn load_each<S: Source, T>(
    cursor: &Cursor<S>,
    batch: Batch,
    mut make: impl FnMut(StoredDocument) -> Result<T>,
) -> Result<(Batch, Vec<T>)> {
    let mut made = Vec::with_capacity(batch.len());
    let mut hits = match batch {
        Batch::Sure(numbers) => {
            cursor.filtered.load_sure(&numbers, |document| {
                made.push(make(document)?);
                Ok(())
            })?;
            return Ok((Batch::Sure(numbers), made));
        }
        Batch::Hits(hits) => hits,
    };
    let mut matching = Vec::with_capacity(hits.len());
    cursor.filtered.load(&hits, |at, document| {
        matching.push(at);
        made.push(make(document)?);
        Ok(())
    })?;
    if made.len() < hits.len() {
        let mut matching = matching.into_iter().peekable();
        let mut at = 0;
        hits.retain(|_| {
            at += 1;
            matching.next_if_eq(&(at - 1)).is_some()
        });
    }
    Ok((Batch::Hits(hits), made))
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
