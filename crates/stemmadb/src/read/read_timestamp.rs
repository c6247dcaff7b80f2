//! What has ended? A snapshot has a moment, if there are rules of expiry, and shows nothing that had ended by then.
//!
//! Invariants: what has ended is told from the index alone, which has a term for each document that ends, and from the document itself,
//! and both say the same; a snapshot's moment never changes, so what it shows does not either.

use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::Result;
use crate::document::Document;
use crate::index::{self, DeclaredIndexes, DocumentNumber, DocumentSet};
use crate::options::clock::Clock;
use crate::read::snapshot::Snapshot;
use crate::tree::Direction;

/// The time that a snapshot was taken at, and what had ended by then.
#[derive(Clone)]
pub(crate) struct ReadTimestamp {
    pub(crate) now_ms: i64,
    /// Looked up when it is asked for first.
    ended: Arc<OnceLock<DocumentSet>>,
}

impl ReadTimestamp {
    /// Now; none if there is no rule of expiry.
    pub(crate) fn of(declared: &DeclaredIndexes, clock: &Clock) -> Option<Self> {
        let has_rules = declared.expiries().next().is_some();
        has_rules.then(|| ReadTimestamp { now_ms: clock.now_ms(), ended: Arc::default() })
    }

    /// The same time for a snapshot of other documents.
    pub(crate) fn again(&self) -> Self {
        ReadTimestamp { now_ms: self.now_ms, ended: Arc::default() }
    }
}

impl Snapshot {
    /// The documents that had ended and are not swept away yet; none if there are none. Costs a look-up for each rule, once.
    pub(crate) fn ended(&self) -> Result<Option<&DocumentSet>> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(None) };
        let ended = match read_timestamp.ended.get() {
            Some(ended) => ended,
            None => {
                let found = self.ending(i64::MIN, read_timestamp.now_ms)?;
                read_timestamp.ended.get_or_init(|| found)
            }
        };
        Ok(Some(ended).filter(|ended| !ended.is_empty()))
    }

    /// The set without what had ended.
    pub(crate) fn without_ended(&self, mut set: DocumentSet) -> Result<DocumentSet> {
        if let Some(ended) = self.ended()? {
            set.and_not_with(ended);
        }
        Ok(set)
    }

    /// Whether this document had ended.
    pub(crate) fn has_ended(&self, document: &Document) -> Result<bool> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(false) };
        has_ended(&self.declared, document, read_timestamp.now_ms)
    }

    /// The millisecond that lies `time` after this moment: what a document is given that ends then.
    pub(crate) fn end_after(&self, time: Duration) -> i64 {
        self.parts.options.clock.after(time)
    }

    /// The documents that ended between the moment of another snapshot and that of this one: gone since, or, if the clock was set back,
    /// there again.
    pub(crate) fn ended_between(&self, other: &Snapshot) -> Result<DocumentSet> {
        let (Some(now), Some(then)) = (&self.read_timestamp, &other.read_timestamp) else {
            return Ok(DocumentSet::new());
        };
        let (earlier, later) = (now.now_ms.min(then.now_ms), now.now_ms.max(then.now_ms));
        self.ending(earlier.saturating_add(1), later)
    }

    /// The documents that end from one millisecond to another.
    fn ending(&self, first_ms: i64, last_ms: i64) -> Result<DocumentSet> {
        let mut ending = DocumentSet::new();
        if first_ms > last_ms {
            return Ok(ending);
        }
        let lower = index::expiration_key(first_ms);
        let upper = index::expiration_key(last_ms.saturating_add(1));
        for (_, path) in self.declared.expiries() {
            ending.or_with(&self.range(path, &lower, &upper)?);
        }
        Ok(ending)
    }

    /// About so many of the documents that have ended, those that ended first before the others.
    pub(crate) fn first_ended(&self, count: usize) -> Result<Vec<DocumentNumber>> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (_, path) in self.declared.expiries() {
            let mut walk = self.walk(path, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
            while found.len() < count
                && let Some(mut term) = walk.next_term()?
                && index::decode_expiration_key(term.key)? <= read_timestamp.now_ms
            {
                found.extend(term.take()?.first_from(DocumentNumber::MIN, count));
            }
        }
        found.sort_unstable();
        found.dedup();
        found.truncate(count);
        Ok(found)
    }

    /// When the first document ends that has not ended yet.
    pub(crate) fn next_end_ms(&self) -> Result<Option<i64>> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(None) };
        let mut next: Option<i64> = None;
        let lower = index::expiration_key(read_timestamp.now_ms.saturating_add(1));
        for (_, path) in self.declared.expiries() {
            let lower = Bound::Included(&*lower);
            let mut walk = self.walk(path, lower, Bound::Unbounded, Direction::Ascending)?;
            if let Some(term) = walk.next_term()? {
                let end_ms = index::decode_expiration_key(term.key)?;
                next = Some(next.map_or(end_ms, |next| next.min(end_ms)));
            }
        }
        Ok(next)
    }
}

/// Whether a document has ended by one of the rules.
pub(crate) fn has_ended(declared: &DeclaredIndexes, document: &Document, now_ms: i64) -> Result<bool> {
    for (rule, _) in declared.expiries() {
        if rule.end_ms(document.id().as_str(), document.packed()?)?.is_some_and(|end_ms| end_ms <= now_ms) {
            return Ok(true);
        }
    }
    Ok(false)
}
