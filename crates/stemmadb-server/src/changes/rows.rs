//! Production of feed rows, one batch at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use stemmadb::{Change, Sequence, Snapshot};

use super::format::{BATCH_BYTES, ChangeDocument, ChangeRow, shows_sequence};
use super::request::ChangesRequest;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, readable_leaves};
use crate::error::Result;

/// The progress of a feed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FeedPosition {
    /// All changes up to this sequence were sent or filtered out.
    pub(super) since: Sequence,
    /// The number of rows sent.
    pub(super) count: u64,
}

/// The number of changes passed to a filter function in one call.
const FILTER_BATCH: usize = 256;

/// Feed rows of one snapshot.
pub(super) struct ChangeRows {
    served: Arc<ServedDatabase>,
    snapshot: Snapshot,
    request: Arc<ChangesRequest>,
    changes: Box<dyn Iterator<Item = stemmadb::Result<Change>> + Send>,
    /// Changes that were filtered but not written yet, and whether each was accepted.
    filtered: VecDeque<(Change, bool)>,
    newest: Sequence,
    position: FeedPosition,
}

impl ChangeRows {
    /// Opens the rows after a position in the current snapshot. Blocks.
    pub(super) fn new(served: &Arc<ServedDatabase>, request: &Arc<ChangesRequest>, from: FeedPosition) -> Result<Self> {
        let snapshot = served.read(request.as_of)?;
        let with_documents = request.include_docs || request.filter.needs_documents();
        let changes = snapshot.changes(from.since).documents(with_documents);
        let newest = changes.last_sequence();
        let changes = request.restrict(changes)?.descending(request.descending).run();
        Ok(ChangeRows {
            served: served.clone(),
            snapshot,
            request: request.clone(),
            changes: Box::new(changes),
            filtered: VecDeque::new(),
            newest,
            position: from,
        })
    }

    /// The progress so far.
    pub(super) fn position(&self) -> FeedPosition {
        self.position
    }

    /// Writes the next batch of rows; returns whether there may be more. Blocks.
    pub(super) fn write_batch(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while out.len() < BATCH_BYTES {
            if self.position.count >= self.request.limit {
                return Ok(false);
            }
            let Some((change, is_accepted)) = self.next()? else {
                if !self.request.descending {
                    self.position.since = self.newest.max(self.position.since);
                }
                return Ok(false);
            };
            self.position.since = change.sequence;
            if is_accepted {
                write_row(&self.served, &self.snapshot, &self.request, &change, self.position.count, out)?;
                self.position.count += 1;
            }
        }
        Ok(true)
    }

    fn next(&mut self) -> Result<Option<(Change, bool)>> {
        if self.filtered.is_empty() {
            // Only filter functions profit from batches. Without one, a feed with a limit reads no more than it sends.
            let count = if self.request.filter.needs_documents() { FILTER_BATCH } else { 1 };
            let batch = self.changes.by_ref().take(count).collect::<stemmadb::Result<Vec<_>>>()?;
            let accepted = self.request.filter.evaluate(&self.served, &batch)?;
            self.filtered.extend(batch.into_iter().zip(accepted));
        }
        Ok(self.filtered.pop_front())
    }
}

/// Writes the row of a change that has `index` rows before it. Blocks.
pub(super) fn write_row(
    served: &ServedDatabase,
    snapshot: &Snapshot,
    request: &ChangesRequest,
    change: &Change,
    index: u64,
    out: &mut Vec<u8>,
) -> Result<()> {
    let sequence = served.sequence_text(change.sequence);
    let leaves = if request.all_leaves { &change.leaves[..] } else { &change.leaves[..1] };
    let leaves = readable_leaves(snapshot, change.id.as_str(), leaves, request.restriction.as_ref())?;
    let is_restricted = change.deleted && request.restriction.is_some();
    let show = if is_restricted { &request.show.without_branches() } else { &request.show };
    let document = change.document.as_ref().filter(|_| request.include_docs);
    let row = ChangeRow {
        feed: request.feed,
        index,
        sequence: shows_sequence(request.limit, index, request.seq_interval).then_some(&sequence),
        event_id: &sequence,
        change,
        leaves: &leaves,
        document: document.map(|document| ChangeDocument::Stored(DocumentPrinter { served, snapshot, show }, document)),
    };
    row.write(out)
}
