//! Which documents can a filtered feed hand out? Those of the index rather than those of every change, where that is less.

use super::feed::Filter;
use crate::Result;
use crate::index::DocumentNumber;
use crate::query::candidates;
use crate::read::Snapshot;
use crate::revision::Sequence;

/// Feeds with fewer changes are just read: finding candidates would cost more.
pub(super) const SCANNED_MAX: u64 = if cfg!(test) { 8 } else { 1024 };

/// How a feed will be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedPlan {
    /// Each change is looked at, at most so many.
    Changes {
        /// How many they are at most.
        count_max: u64,
    },
    /// Only these documents are looked at: those that the index, or the ids that were given, name; and the deleted ones.
    Candidates {
        /// How many they are.
        count: u64,
    },
}

/// The candidates' latest events after `since`, ascending; none if it is better to look at every change.
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
        if !is_less(ids.len() as u64, changes_max, limit) {
            return Ok(None);
        }
        for id in ids {
            let state = snapshot.state_by_id(id)?.filter(|state| state.sequence > since);
            events.extend(state.map(|state| (state.sequence, state.number)));
        }
    } else if let Some((selector, _)) = &filter.selector {
        let found = candidates(snapshot, selector)?;
        if !is_less(found.len(), changes_max, limit) {
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

/// Whether looking up so many candidates is less than looking at changes until enough of them are found.
fn is_less(candidate_count: u64, changes_max: u64, limit: Option<usize>) -> bool {
    let wanted = limit.map_or(candidate_count, |limit| candidate_count.min(limit as u64));
    // As if they were spread evenly.
    let looked_at = u128::from(changes_max) * u128::from(wanted) / u128::from(candidate_count.max(1));
    candidate_count == 0 || u128::from(candidate_count) * 2 <= looked_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_looked_up_where_they_are_few() {
        assert!(is_less(0, 2000, None) && is_less(0, 2000, Some(0)));
        assert!(is_less(1000, 2000, None) && !is_less(1001, 2000, None));
        // The first hundred of 10,000 in a million are met soon; of 1,000, they are not.
        assert!(!is_less(10_000, 1_000_000, Some(100)) && is_less(1_000, 1_000_000, Some(100)));
        assert!(is_less(u64::MAX / 2, u64::MAX, None));
    }
}
