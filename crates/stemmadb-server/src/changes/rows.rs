//! Rows of the feed, a batch at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use stemmadb::{Change, Sequence, Snapshot};

use super::request::{Feed, Request};
use crate::directory::Served;
use crate::documents::Printer;
use crate::error::Result;
use crate::http::write_string;

/// Where a feed is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Everything up to here was told.
    pub(super) since: Sequence,
    /// Rows told so far.
    pub(super) count: u64,
}

/// Rows end a batch when they are so much text.
const TEXT_BYTES: usize = 64 << 10;

/// Changes that a filter looks at together.
const LOOKED_AT: usize = 256;

/// The rows of one state of a database, read a batch at a time.
pub(super) struct Rows {
    served: Arc<Served>,
    snapshot: Snapshot,
    request: Arc<Request>,
    changes: Box<dyn Iterator<Item = stemmadb::Result<Change>> + Send>,
    /// Changes that were looked at and not told yet, and whether each is wanted.
    ahead: VecDeque<(Change, bool)>,
    newest: Sequence,
    position: Position,
}

impl Rows {
    /// Those from a position on, in the state as it is now. Blocks.
    pub(super) fn new(served: &Arc<Served>, request: &Arc<Request>, from: Position) -> Result<Self> {
        let snapshot = served.database().snapshot()?;
        let with_documents = request.documents || request.filter.needs_documents();
        let changes = served.database().changes(from.since)?.documents(with_documents);
        let newest = changes.last_sequence();
        let changes = request.filter.narrow(changes)?.descending(request.descending).run();
        Ok(Rows {
            served: served.clone(),
            snapshot,
            request: request.clone(),
            changes: Box::new(changes),
            ahead: VecDeque::new(),
            newest,
            position: from,
        })
    }

    /// Where they have come to.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Writes the next rows, up to the size of a batch; whether there may be more. Blocks.
    pub(super) fn write_batch(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while out.len() < TEXT_BYTES {
            if self.position.count >= self.request.limit {
                return Ok(false);
            }
            let Some((change, is_kept)) = self.next()? else {
                if !self.request.descending {
                    self.position.since = self.newest.max(self.position.since);
                }
                return Ok(false);
            };
            self.position.since = change.sequence;
            if is_kept {
                write_row(&self.served, &self.snapshot, &self.request, &change, self.position.count, out)?;
                self.position.count += 1;
            }
        }
        Ok(true)
    }

    fn next(&mut self) -> Result<Option<(Change, bool)>> {
        if self.ahead.is_empty() {
            // Where no function looks at them, one after the other: a feed with a limit reads no further than it tells.
            let together = if self.request.filter.needs_documents() { LOOKED_AT } else { 1 };
            let looked_at = self.changes.by_ref().take(together).collect::<stemmadb::Result<Vec<_>>>()?;
            let kept = self.request.filter.keep(&self.served, &looked_at)?;
            self.ahead.extend(looked_at.into_iter().zip(kept));
        }
        Ok(self.ahead.pop_front())
    }
}

fn write_row(
    served: &Served,
    snapshot: &Snapshot,
    request: &Request,
    change: &Change,
    at: u64,
    out: &mut Vec<u8>,
) -> Result<()> {
    let sequence = served.sequence_text(change.sequence);
    match request.feed {
        Feed::EventSource => out.extend_from_slice(b"data: "),
        Feed::Normal | Feed::Longpoll if at > 0 => out.extend_from_slice(b",\n"),
        _ => {}
    }
    out.extend_from_slice(b"{\"seq\":");
    match (at + 1) % request.seq_interval {
        0 => write_string(out, &sequence),
        _ => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"id\":");
    write_string(out, change.id.as_str());
    out.extend_from_slice(b",\"changes\":[");
    let leaves = if request.all_leaves { &change.leaves[..] } else { &change.leaves[..1] };
    for (at, leaf) in leaves.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"{\"rev\":" } else { b",{\"rev\":" });
        write_string(out, &leaf.to_string());
        out.push(b'}');
    }
    out.push(b']');
    if change.deleted {
        out.extend_from_slice(b",\"deleted\":true");
    }
    if let Some(document) = change.document.as_ref().filter(|_| request.documents) {
        out.extend_from_slice(b",\"doc\":");
        Printer { served, snapshot, show: &request.show }.print(document, out)?;
    }
    out.push(b'}');
    match request.feed {
        Feed::Continuous => out.push(b'\n'),
        Feed::EventSource => out.extend_from_slice(format!("\nid: {sequence}\n\n").as_bytes()),
        Feed::Normal | Feed::Longpoll => {}
    }
    Ok(())
}
