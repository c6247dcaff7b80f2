//! Read timestamps: the time a snapshot was taken, used to hide documents that had expired by then. A snapshot has one
//! only if there are expiration rules.
//!
//! Invariants: expiration is derived both from the index, which has a term for each expiring document, and from the
//! document itself, and both agree. A snapshot's read timestamp never changes, so neither does what it shows.

use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::Result;
use crate::document::Document;
use crate::index::{self, DeclaredIndexes, DocumentNumber, DocumentSet};
use crate::options::clock::Clock;
use crate::read::snapshot::Snapshot;
use crate::tree::Direction;

/// The time a snapshot was taken, and the documents that had expired by then.
#[derive(Clone)]
pub(crate) struct ReadTimestamp {
    pub(crate) now_ms: i64,
    /// Computed on first use.
    expired: Arc<OnceLock<DocumentSet>>,
}

impl ReadTimestamp {
    /// The current time; none if there is no expiration rule.
    pub(crate) fn of(declared: &DeclaredIndexes, clock: &Clock) -> Option<Self> {
        let has_rules = declared.expiries().next().is_some();
        has_rules.then(|| ReadTimestamp { now_ms: clock.now_ms(), expired: Arc::default() })
    }

    /// Another time.
    pub(crate) fn at(&self, now_ms: i64) -> Self {
        ReadTimestamp { now_ms, expired: Arc::default() }
    }

    /// The same time, for a snapshot of other documents.
    pub(crate) fn again(&self) -> Self {
        ReadTimestamp { now_ms: self.now_ms, expired: Arc::default() }
    }
}

impl Snapshot {
    /// The documents that had expired and are not deleted yet; none if there are none. Costs a range lookup for each
    /// rule, once per snapshot.
    pub(crate) fn expired(&self) -> Result<Option<&DocumentSet>> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(None) };
        let expired = match read_timestamp.expired.get() {
            Some(expired) => expired,
            None => {
                let found = self.expiring_between(i64::MIN, read_timestamp.now_ms)?;
                read_timestamp.expired.get_or_init(|| found)
            }
        };
        Ok(Some(expired).filter(|expired| !expired.is_empty()))
    }

    /// Removes the expired documents from the set.
    pub(crate) fn without_expired(&self, mut set: DocumentSet) -> Result<DocumentSet> {
        if let Some(expired) = self.expired()? {
            set.and_not_with(expired);
        }
        Ok(set)
    }

    /// Whether this document had expired.
    pub(crate) fn has_expired(&self, document: &Document) -> Result<bool> {
        let Some(read_timestamp) = &self.read_timestamp else { return Ok(false) };
        has_expired(&self.declared, document, read_timestamp.now_ms)
    }

    /// The expiration time, in milliseconds since 1970, of a document that expires after `time`.
    pub(crate) fn expiration_after(&self, time: Duration) -> i64 {
        self.parts.options.clock.after(time)
    }

    /// The documents that expired between the read timestamp of another snapshot and that of this one: no longer
    /// visible or, if the clock was set back, visible again.
    pub(crate) fn expired_between(&self, other: &Snapshot) -> Result<DocumentSet> {
        let (Some(now), Some(then)) = (&self.read_timestamp, &other.read_timestamp) else {
            return Ok(DocumentSet::new());
        };
        let (earlier, later) = (now.now_ms.min(then.now_ms), now.now_ms.max(then.now_ms));
        self.expiring_between(earlier.saturating_add(1), later)
    }

    /// The documents that expire from `first_ms` to `last_ms`, both included.
    fn expiring_between(&self, first_ms: i64, last_ms: i64) -> Result<DocumentSet> {
        let mut expiring = DocumentSet::new();
        if first_ms > last_ms {
            return Ok(expiring);
        }
        let lower = index::expiration_key(first_ms);
        let upper = index::expiration_key(last_ms.saturating_add(1));
        for (_, path) in self.declared.expiries() {
            expiring.or_with(&self.range(path, &lower, &upper)?);
        }
        Ok(expiring)
    }

    /// About `count` of the expired documents, those that expired first before the others.
    pub(crate) fn first_expired(&self, count: usize) -> Result<Vec<DocumentNumber>> {
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

    /// The time at which the next document expires.
    pub(crate) fn next_expiration_ms(&self) -> Result<Option<i64>> {
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

/// Whether a document has expired according to one of the rules.
pub(crate) fn has_expired(declared: &DeclaredIndexes, document: &Document, now_ms: i64) -> Result<bool> {
    for (rule, _) in declared.expiries() {
        if rule.end_ms(document.id().as_str(), document.packed()?)?.is_some_and(|end_ms| end_ms <= now_ms) {
            return Ok(true);
        }
    }
    Ok(false)
}
