//! Which segments are there now, and which must stay readable for those who read since before?
//!
//! The segments are a list that is never changed, only followed by another list. Each list holds the one that follows it, so whoever
//! holds a list reaches everything that was there at that moment or came later, retired or not, and holds it open; a retired
//! segment's file is free when the last list that knows it is dropped.

use std::sync::{Arc, OnceLock};

use super::position::LogPosition;
use super::segment::Segment;
use super::shared::Shared;
use crate::Result;

/// The segments at one moment, sorted by number, and what came after.
pub(super) struct SegmentList {
    pub(super) segments: Vec<Arc<Segment>>,
    next: OnceLock<Arc<SegmentList>>,
}

impl SegmentList {
    pub(super) fn new(segments: Vec<Arc<Segment>>) -> Self {
        debug_assert!(segments.is_sorted_by_key(|segment| segment.number));
        SegmentList { segments, next: OnceLock::new() }
    }

    /// Makes `segments` the list that follows. Only the newest list can be followed, once.
    pub(super) fn followed_by(&self, segments: Vec<Arc<Segment>>) -> Arc<SegmentList> {
        Arc::clone(self.next.get_or_init(|| Arc::new(SegmentList::new(segments))))
    }

    pub(super) fn find(&self, number: u32) -> Option<&Arc<Segment>> {
        self.segments.binary_search_by_key(&number, |segment| segment.number).ok().map(|index| &self.segments[index])
    }

    /// The segment if it is in this list or came later.
    pub(super) fn find_since(&self, number: u32) -> Option<&Arc<Segment>> {
        let mut list = self;
        loop {
            if let Some(found) = list.find(number) {
                return Some(found);
            }
            list = list.next.get()?;
        }
    }
}

/// A list may be followed by thousands: they are dropped one after the other, not each within the one before.
impl Drop for SegmentList {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut list) = next.and_then(Arc::into_inner) {
            next = list.next.take();
        }
    }
}

/// What there was to read at one moment and whatever came since: while it lives, all of it stays readable, even when retired.
///
/// Cheap to take and to clone. Take it *before* the tree's snapshot; then whatever that snapshot names can be read.
#[derive(Clone)]
pub(crate) struct SegmentSet {
    pub(super) log: Arc<Shared>,
    pub(super) list: Arc<SegmentList>,
}

impl SegmentSet {
    /// Replaces `out` by the `bytes` bytes at `position`, which must lie within one payload. One read of the disk, none
    /// for what still waits to be written. Checksums are the frame's: bytes read singly need their own.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if no such bytes were ever written or their segment is gone.
    pub(crate) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        self.log.read_since(&self.list, position, bytes, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_row_of_lists_is_dropped_without_recursion() {
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
