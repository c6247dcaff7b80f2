//! Chooses how a filtered feed is read: by looking up candidate documents in the index, or by scanning every change.

use super::feed::Filter;
use crate::Result;
use crate::index::DocumentNumber;
use crate::query::candidates;
use crate::read::Snapshot;
use crate::revision::Sequence;

/// Feeds with at most this many changes are always scanned: finding candidates would cost more.
pub(super) const SCANNED_MAX: u64 = if cfg!(test) { 8 } else { 1024 };

/// The number of events that are scanned in one call.
const SCANNED_COUNT: usize = 1024;

/// How a feed will be read; returned by [`Changes::explain`](super::Changes::explain).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedPlan {
    /// Every change after the start position is read.
    Changes {
        /// Upper bound of the number of changes.
        count_max: u64,
    },
    /// Only candidate documents are looked up: those that the index or the given ids name, and deleted documents.
    Candidates {
        /// Number of candidates.
        count: u64,
    },
}

/// Returns the candidates' latest events after `since`, ascending; `None` if scanning every change is cheaper.
pub(super) fn events(
    snapshot: &Snapshot,
    filter: &Filter,
    since: Sequence,
    limit: Option<usize>,
) -> Result<Option<Vec<(Sequence, DocumentNumber)>>> {
    let changes_max = snapshot.sequence().get().saturating_sub(since.get());
    if changes_max <= SCANNED_MAX {
        return Ok(None);
    }
    let mut events = Vec::new();
    if let Some(ids) = &filter.ids {
        if !is_cheaper(ids.len() as u64, changes_max, limit) {
            return Ok(None);
        }
        for id in ids {
            let state = snapshot.state_by_id(id)?.filter(|state| state.sequence > since);
            events.extend(state.map(|state| (state.sequence, state.number)));
        }
    } else if let Some(selector) = filter.indexed_selector() {
        let found = candidates(snapshot, &selector)?;
        if !is_cheaper(found.len(), changes_max, limit) {
            return Ok(None);
        }
        for number in found.iter() {
            let state = snapshot.state(number)?.filter(|state| state.sequence > since);
            events.extend(state.map(|state| (state.sequence, number)));
        }
    } else {
        return Ok(None);
    }
    events.sort_unstable();
    Ok(Some(events))
}

/// Adds to candidate events those of documents with several leaves, after `since` and up to `last`. Scans every change.
pub(super) fn add_branched(
    events: &mut Vec<(Sequence, DocumentNumber)>,
    snapshot: &Snapshot,
    since: Sequence,
    last: Sequence,
) -> Result<()> {
    let mut position = since;
    while position < last {
        let batch = snapshot.events_after(position, SCANNED_COUNT)?;
        for (sequence, number) in batch.events.into_iter().filter(|(sequence, _)| *sequence <= last) {
            if snapshot.state(number)?.is_some_and(|state| state.tree.leaves().len() > 1) {
                events.push((sequence, number));
            }
        }
        position = batch.reached;
    }
    events.sort_unstable();
    events.dedup();
    Ok(())
}

/// Whether looking up `candidate_count` documents is cheaper than scanning changes until enough of them are found.
fn is_cheaper(candidate_count: u64, changes_max: u64, limit: Option<usize>) -> bool {
    let needed_count = limit.map_or(candidate_count, |limit| candidate_count.min(limit as u64));
    // Assumes that the candidates are spread evenly over the feed.
    let scanned_count = u128::from(changes_max) * u128::from(needed_count) / u128::from(candidate_count.max(1));
    candidate_count == 0 || u128::from(candidate_count) * 2 <= scanned_count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_looked_up_where_they_are_few() {
        assert!(is_cheaper(0, 2000, None) && is_cheaper(0, 2000, Some(0)));
        assert!(is_cheaper(1000, 2000, None) && !is_cheaper(1001, 2000, None));
        // Among a million changes, the first hundred of 10,000 candidates are found early; of 1,000 candidates they are
        // not.
        assert!(!is_cheaper(10_000, 1_000_000, Some(100)) && is_cheaper(1_000, 1_000_000, Some(100)));
        assert!(is_cheaper(u64::MAX / 2, u64::MAX, None));
    }
}
