//! The changes feed of a snapshot: the tree's rows and the memtables' events merged by sequence, without superseded
//! events.

use std::ops::Bound;

use crate::Result;
use crate::index::DocumentNumber;
use crate::layout;
use crate::read::snapshot::Snapshot;
use crate::revision::Sequence;
use crate::tree::{Direction, Table};

/// A part of the feed.
pub(crate) struct Events {
    /// The latest event of each document, in ascending order.
    pub(crate) events: Vec<(Sequence, DocumentNumber)>,
    /// The part is complete up to this sequence: continue after it.
    pub(crate) reached: Sequence,
}

impl Snapshot {
    /// The next events after `after`, in order, about `limit` of them: only the latest event of each document.
    pub(crate) fn events_after(&self, after: Sequence, limit: usize) -> Result<Events> {
        let mut recent = Vec::new();
        // If a memtable has more events than were taken, the part must end at the last one taken.
        let mut reached = self.at;
        for memtable in &self.memtables {
            let events = memtable.events(after, self.at, limit);
            if events.len() == limit {
                reached = reached.min(events[limit - 1].0);
            }
            recent.extend(events);
        }
        recent.retain(|(sequence, number)| *sequence <= reached && self.is_latest(*sequence, *number));
        let lower = layout::number_key(after.0);
        let mut rows =
            self.tree.scan(Table::Sequences, Bound::Excluded(&lower), Bound::Unbounded, Direction::Ascending)?;
        let mut row_count = 0;
        while let Some(row) = rows.next()? {
            let (sequence, number) = self.event_of_row(row)?;
            if sequence > reached {
                break;
            }
            if self.is_latest(sequence, number) {
                recent.push((sequence, number));
            }
            row_count += 1;
            if row_count == limit {
                reached = sequence;
                recent.retain(|event| event.0 <= reached);
                break;
            }
        }
        recent.sort_unstable();
        recent.dedup();
        Ok(Events { events: recent, reached })
    }

    /// Up to `limit` events before `before` and after `since`, newest first.
    pub(crate) fn events_before(
        &self,
        before: Sequence,
        since: Sequence,
        limit: usize,
    ) -> Result<Vec<(Sequence, DocumentNumber)>> {
        let recent = self.memtables.iter().flat_map(|memtable| memtable.events(since, self.at, usize::MAX));
        let mut events: Vec<_> =
            recent.filter(|(sequence, number)| *sequence < before && self.is_latest(*sequence, *number)).collect();
        let (lower, upper) = (layout::number_key(since.0), layout::number_key(before.0));
        let mut rows = self.tree.scan(
            Table::Sequences,
            Bound::Excluded(&lower),
            Bound::Excluded(&upper),
            Direction::Descending,
        )?;
        let mut row_count = 0;
        while let Some(row) = rows.next()? {
            let (sequence, number) = self.event_of_row(row)?;
            if sequence <= self.at && self.is_latest(sequence, number) {
                events.push((sequence, number));
                row_count += 1;
                if row_count == limit {
                    break;
                }
            }
        }
        events.sort_unstable_by_key(|event| std::cmp::Reverse(event.0));
        events.dedup();
        events.truncate(limit);
        Ok(events)
    }

    fn event_of_row(&self, (key, value): crate::tree::Row<'_>) -> Result<(Sequence, DocumentNumber)> {
        let sequence = Sequence(layout::number_of_key(Table::Sequences, key)?);
        Ok((sequence, DocumentNumber(layout::number_of_key(Table::Sequences, value)?)))
    }

    /// Whether no memtable has a later event of the document.
    fn is_latest(&self, sequence: Sequence, number: DocumentNumber) -> bool {
        self.state_in_memory(number).is_none_or(|state| state.sequence == sequence)
    }
}
