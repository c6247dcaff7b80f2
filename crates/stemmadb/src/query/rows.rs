//! The rows of a result: ids, documents, or the fields that were asked for. They stream.
//!
//! Rows are made in batches that start small and grow, so that a short result costs little and a long one is read many
//! documents at a time.

use std::collections::VecDeque;

use super::cursor::{Cursor, Hit};
use super::document::{Document, value_at};
use super::fields::Fields;
use super::request::{Prepared, Query};
use super::sort::Sorted;
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
    let prepared = Prepared { sort: super::sort::Sort::default(), after: None, ..query.prepare()? };
    Cursor::open(source, &prepared, None)?.filtered.count()
}

/// The rows of a result, in order.
///
/// After an error there are no further rows.
pub(crate) struct Rows<S, T> {
    cursor: Cursor<S>,
    prepared: Prepared,
    make: Make<S, T>,
    /// Rows that are made, but not yet returned.
    made: VecDeque<(Position, T)>,
    /// The row that was returned last.
    last: Option<Position>,
    skip_left: u64,
    limit_left: u64,
    batch: usize,
    batch_max: usize,
    is_finished: bool,
}

/// Makes rows of those hits that match, and pushes them with their hits.
type Make<S, T> = fn(&Cursor<S>, &Prepared, Vec<Hit>, &mut VecDeque<(Position, T)>) -> Result<()>;

impl<S: Source, T> Rows<S, T> {
    fn open(source: S, query: &Query, batch_max: usize, make: Make<S, T>) -> Result<Self> {
        let prepared = query.prepare()?;
        let cursor = Cursor::open(source, &prepared, None)?;
        let (skip_left, limit_left) = (prepared.skip, prepared.limit.unwrap_or(u64::MAX));
        Ok(Rows {
            cursor,
            prepared,
            make,
            made: VecDeque::new(),
            last: None,
            skip_left,
            limit_left,
            batch: FIRST_BATCH,
            batch_max,
            is_finished: false,
        })
    }

    /// The token that continues after the row returned last: none before the first row, and none if the result came to
    /// its end. It survives a restart; pass it to [`Query::after`].
    pub(crate) fn token(&self) -> Result<Option<String>> {
        match &self.last {
            Some(position) if !self.is_finished || !self.made.is_empty() || self.limit_left == 0 => {
                Ok(Some(position.to_token(self.prepared.hash()?)))
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
        while self.made.is_empty() && !self.is_finished {
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
                (self.make)(&self.cursor, &self.prepared, hits, &mut self.made)?;
            }
        }
        Ok(())
    }
}

impl<S: Source, T> Iterator for Rows<S, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.made.is_empty()
            && let Err(error) = self.fill()
        {
            self.is_finished = true;
            self.limit_left = 0;
            return Some(Err(error));
        }
        let (position, row) = self.made.pop_front()?;
        self.last = Some(position);
        self.limit_left = self.limit_left.saturating_sub(1);
        Some(Ok(row))
    }
}

fn position(number: DocumentNumber, sorted: Option<Sorted>) -> Position {
    sorted.map_or(Position::Number(number), Position::Sorted)
}

fn make_ids<S: Source>(
    cursor: &Cursor<S>,
    _: &Prepared,
    hits: Vec<Hit>,
    made: &mut VecDeque<(Position, DocumentId)>,
) -> Result<()> {
    let hits = cursor.filtered.verified(hits)?;
    if hits.iter().all(|hit| hit.sorted.is_some()) {
        made.extend(hits.into_iter().filter_map(|hit| {
            let sorted = hit.sorted?;
            Some((Position::Sorted(sorted.clone()), sorted.id))
        }));
        return Ok(());
    }
    let numbers: Vec<DocumentNumber> = hits.iter().map(|hit| hit.number).collect();
    let ids = cursor.filtered.source.ids(&numbers)?;
    if ids.len() != numbers.len() {
        return Err(Error::internal("a snapshot gave fewer ids than documents"));
    }
    made.extend(hits.into_iter().zip(ids).map(|(hit, id)| (position(hit.number, hit.sorted), id)));
    Ok(())
}

fn make_documents<S: Source>(
    cursor: &Cursor<S>,
    _: &Prepared,
    hits: Vec<Hit>,
    made: &mut VecDeque<(Position, StoredDocument)>,
) -> Result<()> {
    load_each(cursor, &hits, made, |document| Ok(document.clone()))
}

fn make_values<S: Source>(
    cursor: &Cursor<S>,
    prepared: &Prepared,
    hits: Vec<Hit>,
    made: &mut VecDeque<(Position, Value)>,
) -> Result<()> {
    load_each(cursor, &hits, made, |document| project(prepared.fields.as_ref(), Document::of(document)?))
}

fn load_each<S: Source, T>(
    cursor: &Cursor<S>,
    hits: &[Hit],
    made: &mut VecDeque<(Position, T)>,
    mut make: impl FnMut(&StoredDocument) -> Result<T>,
) -> Result<()> {
    cursor.filtered.load(hits, |at, document| {
        let hit = &hits[at];
        made.push_back((position(hit.number, hit.sorted.clone()), make(document)?));
        Ok(())
    })
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
