//! Segment lists: the current segments, and snapshots that keep retired segments readable.
//!
//! A list of segments is immutable; a change creates a successor, and each list links to its successor. A reader that
//! holds a list therefore reaches, and keeps open, every segment that existed when the list was current or was added
//! later, retired or not. The file of a retired segment becomes free when the last list containing it is dropped.

use std::sync::{Arc, OnceLock};

use super::position::LogPosition;
use super::segment::Segment;
use super::shared::Shared;
use crate::Result;

/// The segments at one point in time, sorted by number, with a link to the next list.
pub(super) struct SegmentList {
    pub(super) segments: Vec<Arc<Segment>>,
    next: OnceLock<Arc<SegmentList>>,
}

impl SegmentList {
    pub(super) fn new(segments: Vec<Arc<Segment>>) -> Self {
        debug_assert!(
            segments.is_sorted_by(|first, second| first.number < second.number),
            "each segment is listed once, in ascending order"
        );
        SegmentList { segments, next: OnceLock::new() }
    }

    /// Creates the successor of this list. Only the newest list may get a successor, and only one.
    pub(super) fn followed_by(&self, segments: Vec<Arc<Segment>>) -> Arc<SegmentList> {
        debug_assert!(self.next.get().is_none(), "a segment list has at most one successor");
        Arc::clone(self.next.get_or_init(|| Arc::new(SegmentList::new(segments))))
    }

    pub(super) fn find(&self, number: u32) -> Option<&Arc<Segment>> {
        self.segments.binary_search_by_key(&number, |segment| segment.number).ok().map(|index| &self.segments[index])
    }

    /// This list and all later ones.
    pub(super) fn with_successors(&self) -> impl Iterator<Item = &SegmentList> {
        std::iter::successors(Some(self), |list| list.next.get().map(|next| &**next))
    }

    /// The segment if it is in this list or a later one.
    pub(super) fn find_since(&self, number: u32) -> Option<&Arc<Segment>> {
        self.with_successors().find_map(|list| list.find(number))
    }
}

/// Drops the successors iteratively: a list may have thousands of them, and recursion would overflow the stack.
impl Drop for SegmentList {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut list) = next.and_then(Arc::into_inner) {
            next = list.next.take();
        }
    }
}

/// A snapshot of the segments: everything in them and in later segments stays readable while it lives, even after
/// retirement.
///
/// Cheap to create and to clone. Create it *before* the tree's snapshot; then every position in that snapshot is
/// readable.
#[derive(Clone)]
pub(crate) struct SegmentSet {
    pub(super) log: Arc<Shared>,
    pub(super) list: Arc<SegmentList>,
}

impl SegmentSet {
    /// Replaces `out` with the record of `bytes` bytes at `position`, decrypted if the log is encrypted. One disk read;
    /// none for bytes that are not yet written. Only whole frames have checksums: records need their own.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if no such bytes were ever written or their segment no longer exists.
    pub(crate) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        self.log.read_since(&self.list, position, bytes, out)
    }

    /// As [`SegmentSet::read`], a range with these records, each given by its start in the range and its length. Only
    /// the bytes of the records are defined.
    ///
    /// # Errors
    /// Those of [`SegmentSet::read`].
    pub(crate) fn read_records(
        &self,
        position: LogPosition,
        bytes: usize,
        records: &[(usize, usize)],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.log.read_records(&self.list, position, bytes, records, out)
    }

    /// The commit time of the frame that contains `position`, in microseconds since 1970; 0 if a version wrote it that
    /// did not record it. Reads the segment, if its times were not asked for before.
    pub(crate) fn time_at(&self, position: LogPosition) -> Result<u64> {
        self.log.time_at(&self.list, position)
    }

    /// Whether the segment can be read: it was not retired before this snapshot was taken, or its history is kept.
    pub(crate) fn contains(&self, segment: u32) -> bool {
        self.has_segment(segment) || self.log.history.contains(segment)
    }

    /// Whether a record can be read: its segment was not retired before this snapshot was taken, or the record is kept
    /// as history.
    ///
    /// # Errors
    /// `Corrupt` if the history file is damaged.
    pub(crate) fn has_record(&self, position: LogPosition) -> Result<bool> {
        Ok(self.has_segment(position.segment()) || self.log.history.has(position)?)
    }

    fn has_segment(&self, segment: u32) -> bool {
        // The newest segments may not have files yet.
        segment > self.log.last_segment().number || self.list.find_since(segment).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chain_of_lists_is_dropped_without_recursion() {
        let first = Arc::new(SegmentList::new(Vec::new()));
        let mut newest = Arc::clone(&first);
        for _ in 0..200_000 {
            newest = newest.followed_by(Vec::new());
        }
        drop(newest);
        assert!(first.find_since(1).is_none());
        drop(first);
    }
}
