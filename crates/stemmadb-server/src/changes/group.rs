//! Groups of feeds with the same options, and the batches of rows that they share.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use stemmadb::{Change, Sequence, Snapshot};
use tokio::sync::broadcast;

use super::filter::ChangesFilter;
use super::request::{ChangesRequest, FeedMode};
use super::rows::write_row;
use crate::directory::ServedDatabase;
use crate::error::Result;

/// The number of batches that are kept for slow feeds of a group. A slower one reads for itself.
const BATCHES_KEPT: usize = 16;

/// Feeds whose rows are the same.
pub(super) struct FeedGroup {
    pub(super) key: String,
    /// The options of the feeds, without a position or limit.
    pub(super) request: Arc<ChangesRequest>,
    /// None once the group has ended, so that its feeds notice.
    sender: Mutex<Option<broadcast::Sender<Arc<RowBatch>>>>,
}

/// The text of consecutive rows.
#[derive(Debug)]
pub(super) struct RowBatch {
    text: Bytes,
    /// The sequence of each row, and where it ends.
    ends: Vec<(Sequence, usize)>,
}

/// A batch that is being written.
#[derive(Default)]
pub(super) struct BatchWriter {
    text: Vec<u8>,
    ends: Vec<(Sequence, usize)>,
}

/// The rows of a batch that a feed sends.
pub(super) struct RowSlice {
    pub(super) text: Bytes,
    pub(super) count: u64,
    /// The sequence of the last row.
    pub(super) last: Sequence,
}

/// The key of the group of a request; `None` if its rows depend on its position, or its filter may take long.
pub(super) fn group_key(request: &ChangesRequest) -> Option<String> {
    let ChangesRequest { feed, all_leaves, include_docs, show, filter, paths, restriction, .. } = request;
    let is_shared = !request.descending && request.seq_interval == 1 && !matches!(filter, ChangesFilter::Function(_));
    is_shared.then(|| format!("{feed:?} {all_leaves} {include_docs} {show:?} {filter:?} {paths:?} {restriction:?}"))
}

impl FeedGroup {
    pub(super) fn new(key: String, request: &ChangesRequest) -> Self {
        let request = ChangesRequest { since: Sequence::ZERO, limit: u64::MAX, ..request.clone() };
        let sender = Mutex::new(Some(broadcast::channel(BATCHES_KEPT).0));
        FeedGroup { key, request: Arc::new(request), sender }
    }

    /// A receiver of all further batches; `None` if the group has ended.
    pub(super) fn subscribe(&self) -> Option<broadcast::Receiver<Arc<RowBatch>>> {
        self.sender.lock().as_ref().map(broadcast::Sender::subscribe)
    }

    /// Passes rows to all feeds; returns how many there are.
    pub(super) fn send(&self, batch: RowBatch) -> usize {
        self.sender.lock().as_ref().map_or(0, |sender| sender.send(Arc::new(batch)).unwrap_or(0))
    }

    pub(super) fn has_feeds(&self) -> bool {
        self.sender.lock().as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Ends all subscriptions.
    pub(super) fn end(&self) {
        *self.sender.lock() = None;
    }
}

impl BatchWriter {
    /// Writes the row of a change. Blocks.
    pub(super) fn add(
        &mut self,
        served: &ServedDatabase,
        snapshot: &Snapshot,
        request: &ChangesRequest,
        change: &Change,
    ) -> Result<()> {
        write_row(served, snapshot, request, change, self.ends.len() as u64, &mut self.text)?;
        self.ends.push((change.sequence, self.text.len()));
        Ok(())
    }

    pub(super) fn byte_count(&self) -> usize {
        self.text.len()
    }

    pub(super) fn finish(self) -> RowBatch {
        RowBatch { text: self.text.into(), ends: self.ends }
    }
}

impl RowBatch {
    /// The first `count_max` rows after `since`, for a feed that has sent `sent_count` rows; `None` if there is none.
    pub(super) fn rows_after(&self, since: Sequence, count_max: u64, feed: FeedMode) -> Option<RowSlice> {
        let first = self.ends.partition_point(|(sequence, _)| *sequence <= since);
        let count = usize::try_from(count_max).unwrap_or(usize::MAX).min(self.ends.len() - first);
        let &(last, end) = self.ends[first..][..count].last()?;
        let begin = match first.checked_sub(1) {
            None => 0,
            // Rows of a list are separated by a comma and a line break, which the first one does not need.
            Some(before) if feed == FeedMode::Longpoll => self.ends[before].1 + SEPARATOR_BYTES,
            Some(before) => self.ends[before].1,
        };
        Some(RowSlice { text: self.text.slice(begin..end), count: count as u64, last })
    }
}

/// The length of what separates the rows of a list.
const SEPARATOR_BYTES: usize = b",\n".len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_takes_the_rows_that_it_lacks() {
        let batch = |text: &'static str, ends: &[(u64, usize)]| RowBatch {
            text: Bytes::from_static(text.as_bytes()),
            ends: ends.iter().map(|&(sequence, end)| (Sequence::new(sequence), end)).collect(),
        };
        let taken = |batch: &RowBatch, since, count_max, feed| {
            let rows = batch.rows_after(Sequence::new(since), count_max, feed)?;
            Some((String::from_utf8(rows.text.to_vec()).unwrap(), rows.count, rows.last.get()))
        };
        let lines = batch("a\nb\nc\n", &[(3, 2), (5, 4), (6, 6)]);
        let continuous = FeedMode::Continuous;
        assert_eq!(taken(&lines, 0, 9, continuous), Some(("a\nb\nc\n".to_owned(), 3, 6)));
        assert_eq!(taken(&lines, 3, 9, continuous), Some(("b\nc\n".to_owned(), 2, 6)));
        assert_eq!(taken(&lines, 4, 1, continuous), Some(("b\n".to_owned(), 1, 5)));
        assert_eq!(taken(&lines, 6, 9, continuous), None);
        assert_eq!(taken(&lines, 0, 0, continuous), None);
        let list = batch("a,\nb,\nc", &[(3, 1), (5, 4), (6, 7)]);
        assert_eq!(taken(&list, 0, 2, FeedMode::Longpoll), Some(("a,\nb".to_owned(), 2, 5)));
        assert_eq!(taken(&list, 3, 9, FeedMode::Longpoll), Some(("b,\nc".to_owned(), 2, 6)));
    }
}
