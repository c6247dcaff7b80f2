//! The rows of a result: ids, documents, or projected fields, streamed in batches.
//!
//! Batches start small and grow, so that a short result costs little and a long one reads many documents at a time.

use super::cursor::{self, Batch, Cursor, Hit, HitPosition};
use crate::cache::CachedResult;
use crate::document::Document as StoredDocument;
use crate::index::DocumentNumber;
use crate::query::language::document::DocumentView;
use crate::query::language::page_token::{Position, QueryHash};
use crate::query::language::projection::project;
use crate::query::language::row_key::RowKey;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::query::plan::catalog::Catalog;
use crate::query::plan::request::{Prepared, Query};
use crate::query::source::QuerySource;
use crate::query::source::limits::QueryLimits;
use crate::revision::{DocumentId, Sequence};
use crate::value::Value;
use crate::{Error, Result};

/// The largest number of rows in the first batch (fewer in tests, so that small results take several), and the growth
/// factor of later ones.
const FIRST_BATCH: usize = if cfg!(test) { 2 } else { 16 };
const BATCH_GROWTH: usize = 4;
/// The largest number of ids in a batch, and of documents.
const IDS_BATCH_MAX: usize = 1024;
const DOCUMENTS_BATCH_MAX: usize = 128;
/// Batches of small documents grow further, up to this many, so that more of them are read together.
const SMALL_DOCUMENTS_BATCH_MAX: usize = if cfg!(test) { 600 } else { 2048 };
/// The goal for the bytes of the documents of such a batch.
const BATCH_BYTES: usize = 1 << 20;

/// Streams the ids of the matching documents. Reads a body only if the index cannot decide.
pub(crate) fn ids<S: QuerySource>(source: S, query: &Query) -> Result<Rows<S, DocumentId>> {
    Rows::open(source, query, IDS_BATCH_MAX, id_rows)
}

/// Streams the matching documents.
pub(crate) fn documents<S: QuerySource>(source: S, query: &Query) -> Result<Rows<S, StoredDocument>> {
    let mut rows = Rows::open(source, query, DOCUMENTS_BATCH_MAX, document_rows)?;
    rows.row_bytes = Some(|document| document.packed_bytes().len());
    rows.cache_result(query)?;
    Ok(rows)
}

/// Streams the query's fields of the matching documents; whole documents, with `_id` and `_rev` as their first fields,
/// if it has none.
pub(crate) fn values<S: QuerySource>(source: S, query: &Query) -> Result<Rows<S, Value>> {
    Rows::open(source, query, DOCUMENTS_BATCH_MAX, value_rows)
}

/// Streams the row keys of a sorted query. The first batch has about `first_count` rows.
pub(crate) fn keys<S: QuerySource>(source: S, query: &Query, first_count: usize) -> Result<Rows<S, KeyedRow>> {
    let mut rows = Rows::open(source, query, IDS_BATCH_MAX, key_rows)?;
    if rows.prepared.sort.keys.is_empty() {
        return Err(Error::invalid("the rows of a query without a sort order have no keys"));
    }
    rows.batch_size = first_count.clamp(1, FIRST_BATCH);
    Ok(rows)
}

/// A row of a sorted query: its key, and the document without its content. See [`KeyRows`](crate::merging::KeyRows).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyedRow {
    /// Where the row is in the order.
    pub key: RowKey,
    number: DocumentNumber,
}

/// Returns the number of matching documents. Ignores sort, limit, skip and token.
pub(crate) fn count<S: QuerySource>(source: S, query: &Query) -> Result<u64> {
    cursor::count(source, &query.prepare_unordered()?)
}

/// Iterates over the rows of a result in order. After an error there are no further rows.
pub(crate) struct Rows<S, T> {
    cursor: Cursor<S>,
    prepared: Prepared,
    make: BuildRows<S, T>,
    /// The rows of the current batch that were not returned yet, and the batch they were built from.
    pending: std::vec::IntoIter<T>,
    batch: Batch,
    /// The position of the last row of the previous batch.
    before: Option<Position>,
    skip_left: u64,
    limit_left: u64,
    limits: QueryLimits,
    /// The number of rows built so far, counted only if there is a row limit.
    row_count: u64,
    batch_size: usize,
    batch_max: usize,
    /// The size of a row, by which `batch_max` grows.
    row_bytes: Option<fn(&T) -> usize>,
    is_finished: bool,
}

/// Builds rows from a batch; returns the matching part of the batch and its rows.
type BuildRows<S, T> = fn(&Cursor<S>, &Prepared, Batch) -> Result<(Batch, Vec<T>)>;

impl<S: QuerySource, T> Rows<S, T> {
    fn open(source: S, query: &Query, batch_max: usize, make: BuildRows<S, T>) -> Result<Self> {
        let prepared = query.prepare()?;
        let cursor = Cursor::open(source, &prepared, None)?;
        let (skip_left, limit_left) = (prepared.skip, prepared.limit.unwrap_or(u64::MAX));
        Ok(Rows {
            cursor,
            prepared,
            make,
            pending: Vec::new().into_iter(),
            batch: Batch::Hits(Vec::new()),
            before: None,
            skip_left,
            limit_left,
            limits: query.limits().clone(),
            row_count: 0,
            batch_size: FIRST_BATCH,
            batch_max,
            row_bytes: None,
            is_finished: false,
        })
    }

    /// Returns the token that continues after the last returned row: `None` before the first row and at the end of the
    /// result. It survives a restart; pass it to [`Query::after`].
    pub(crate) fn token(&self) -> Result<Option<String>> {
        let returned_count = self.batch.len() - self.pending.len();
        let last = match returned_count.checked_sub(1) {
            Some(last) => self.cursor.position(&self.batch, last)?,
            None => self.before.clone(),
        };
        match last {
            Some(position) if !self.is_finished || self.pending.len() > 0 || self.limit_left == 0 => {
                Ok(Some(position.to_token(self.prepared.hash()?, self.cursor.filtered.source.page_sequence())))
            }
            _ => Ok(None),
        }
    }

    /// The sequence as of which further pages are read, if the database keeps its past.
    pub(crate) fn page_sequence(&self) -> Option<Sequence> {
        self.cursor.filtered.source.page_sequence()
    }

    /// The number of documents read so far, to check or to return them.
    pub(crate) fn documents_read(&self) -> u64 {
        self.cursor.filtered.documents_read()
    }

    /// Builds the next batch and returns its first row.
    #[cold]
    fn next_from_batch(&mut self) -> Option<Result<T>> {
        match self.fill() {
            Ok(()) => self.pending.next().map(Ok),
            Err(error) => {
                self.pending = Vec::new().into_iter();
                (self.is_finished, self.limit_left) = (true, 0);
                Some(Err(error))
            }
        }
    }

    /// Allows larger batches after a full batch of small rows.
    fn grow_batches(&mut self, rows: &[T]) {
        let Some(row_bytes) = self.row_bytes.filter(|_| rows.len() >= DOCUMENTS_BATCH_MAX) else { return };
        let mean_bytes = rows.iter().map(row_bytes).sum::<usize>() / rows.len();
        self.batch_max = (BATCH_BYTES / mean_bytes.max(1)).clamp(DOCUMENTS_BATCH_MAX, SMALL_DOCUMENTS_BATCH_MAX);
        self.batch_size = self.batch_size.min(self.batch_max);
    }

    /// Builds the next batch.
    ///
    /// # Errors
    /// `Stopped` if the result exceeds the row limit; the rows within the limit are returned first.
    fn fill(&mut self) -> Result<()> {
        while self.pending.len() == 0 && !self.is_finished {
            self.limits.allow_rows(self.row_count)?;
            self.cursor.filtered.source.check_stopped()?;
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
                    batch = Batch::Hits(self.cursor.filtered.verify(hits)?);
                }
                let skipped = batch.len().min(usize::try_from(self.skip_left).unwrap_or(usize::MAX));
                batch.skip(skipped);
                self.skip_left -= skipped as u64;
            }
            if batch.len() > 0 {
                let (mut batch, mut pending) = (self.make)(&self.cursor, &self.prepared, batch)?;
                self.grow_batches(&pending);
                if let Some(last) = self.batch.len().checked_sub(1) {
                    self.before = self.cursor.position(&self.batch, last)?;
                }
                self.limit_left = self.limit_left.saturating_sub(pending.len() as u64);
                if let Some(most) = self.limits.rows {
                    let allowed = usize::try_from(most.saturating_sub(self.row_count)).unwrap_or(usize::MAX);
                    self.row_count += pending.len() as u64;
                    pending.truncate(allowed);
                    batch.truncate(allowed);
                }
                (self.batch, self.pending) = (batch, pending.into_iter());
            }
        }
        Ok(())
    }
}

impl<S: QuerySource> Rows<S, KeyedRow> {
    /// Reads the documents of rows.
    pub(crate) fn load(&self, rows: &[KeyedRow]) -> Result<Vec<StoredDocument>> {
        let numbers: Vec<DocumentNumber> = rows.iter().map(|row| row.number).collect();
        let mut documents = Vec::with_capacity(rows.len());
        self.cursor.filtered.load_matching(&numbers, |document| {
            documents.push(document);
            Ok(())
        })?;
        Ok(documents)
    }
}

impl<S: QuerySource> Rows<S, StoredDocument> {
    /// Builds the first batch of a lookup and caches the result if the batch contains all of it.
    fn cache_result(&mut self, query: &Query) -> Result<()> {
        let filtered = &self.cursor.filtered;
        let Some((path, key)) = query.cache_term(Catalog::of(&filtered.source).state(), &filtered.plan) else {
            return Ok(());
        };
        let is_decided = filtered.overflow().is_empty();
        self.fill()?;
        let numbers = match &self.batch {
            Batch::Verified(numbers) => numbers.as_slice(),
            Batch::Hits(hits) if hits.is_empty() => &[],
            Batch::Hits(_) => return Ok(()),
        };
        if is_decided && numbers.len() < FIRST_BATCH {
            let answer: CachedResult = numbers.iter().copied().zip(self.pending.as_slice().iter().cloned()).collect();
            self.cursor.filtered.source.cache_lookup(path, &key, &answer);
        }
        Ok(())
    }
}

/// As [`Rows::token`], for a cached result of which `returned_count` rows were returned. Such a result continues at the
/// newest state.
pub(crate) fn token_after(answer: &CachedResult, returned_count: usize, selector: &Selector) -> Result<Option<String>> {
    let Some((number, _)) = returned_count.checked_sub(1).and_then(|last| answer.get(last)) else { return Ok(None) };
    let hash = QueryHash::new(&selector.to_value()?, &Sort::default());
    Ok(Some(Position::Number(*number).to_token(hash, None)))
}

impl<S: QuerySource, T> Iterator for Rows<S, T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        match self.pending.next() {
            Some(row) => Some(Ok(row)),
            None => self.next_from_batch(),
        }
    }
}

impl Position {
    pub(in crate::query) fn of(hit: &Hit) -> Self {
        match &hit.position {
            HitPosition::Number => Position::Number(hit.number),
            HitPosition::Value { ordinal, key } => {
                Position::Value { ordinal: *ordinal, key: key.clone(), number: hit.number }
            }
            HitPosition::Sorted(sorted) => Position::Sorted(sorted.clone()),
        }
    }
}

fn id_rows<S: QuerySource>(cursor: &Cursor<S>, _: &Prepared, batch: Batch) -> Result<(Batch, Vec<DocumentId>)> {
    let hits = match batch {
        Batch::Verified(numbers) => {
            let ids = ids_of(cursor, &numbers)?;
            return Ok((Batch::Verified(numbers), ids));
        }
        Batch::Hits(hits) => cursor.filtered.verify(hits)?,
    };
    let sorted = |hit: &Hit| match &hit.position {
        HitPosition::Sorted(sorted) => Some(sorted.id.clone()),
        _ => None,
    };
    let ids = match hits.iter().map(sorted).collect() {
        Some(ids) => ids,
        None => ids_of(cursor, &hits.iter().map(|hit| hit.number).collect::<Vec<_>>())?,
    };
    Ok((Batch::Hits(hits), ids))
}

fn key_rows<S: QuerySource>(cursor: &Cursor<S>, _: &Prepared, batch: Batch) -> Result<(Batch, Vec<KeyedRow>)> {
    let hits = match batch {
        Batch::Verified(numbers) => {
            let keys = cursor.sorted_positions(&numbers)?;
            let rows = numbers.iter().zip(keys).map(|(number, key)| KeyedRow { key: RowKey(key), number: *number });
            let rows = rows.collect();
            return Ok((Batch::Verified(numbers), rows));
        }
        Batch::Hits(hits) => cursor.filtered.verify(hits)?,
    };
    let row = |hit: &Hit| match &hit.position {
        HitPosition::Sorted(sorted) => Ok(KeyedRow { key: RowKey(sorted.clone()), number: hit.number }),
        _ => Err(Error::internal("a row of a sorted query has no sort key")),
    };
    let rows = hits.iter().map(row).collect::<Result<_>>()?;
    Ok((Batch::Hits(hits), rows))
}

fn ids_of<S: QuerySource>(cursor: &Cursor<S>, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
    let ids = cursor.filtered.source.ids(numbers)?;
    if ids.len() != numbers.len() {
        return Err(Error::internal("a snapshot gave fewer ids than documents"));
    }
    Ok(ids)
}

fn document_rows<S: QuerySource>(
    cursor: &Cursor<S>,
    _: &Prepared,
    batch: Batch,
) -> Result<(Batch, Vec<StoredDocument>)> {
    load_each(cursor, batch, Ok)
}

fn value_rows<S: QuerySource>(cursor: &Cursor<S>, prepared: &Prepared, batch: Batch) -> Result<(Batch, Vec<Value>)> {
    load_each(cursor, batch, |document| project(prepared.fields.as_ref(), DocumentView::of(&document)?))
}

fn load_each<S: QuerySource, T>(
    cursor: &Cursor<S>,
    batch: Batch,
    mut make: impl FnMut(StoredDocument) -> Result<T>,
) -> Result<(Batch, Vec<T>)> {
    let mut pending = Vec::with_capacity(batch.len());
    let mut hits = match batch {
        Batch::Verified(numbers) => {
            cursor.filtered.load_matching(&numbers, |document| {
                pending.push(make(document)?);
                Ok(())
            })?;
            return Ok((Batch::Verified(numbers), pending));
        }
        Batch::Hits(hits) => hits,
    };
    let mut matching = Vec::with_capacity(hits.len());
    cursor.filtered.load(&hits, |at, document| {
        matching.push(at);
        pending.push(make(document)?);
        Ok(())
    })?;
    if pending.len() < hits.len() {
        let mut matching = matching.into_iter().peekable();
        let mut at = 0;
        hits.retain(|_| {
            at += 1;
            matching.next_if_eq(&(at - 1)).is_some()
        });
    }
    Ok((Batch::Hits(hits), pending))
}
