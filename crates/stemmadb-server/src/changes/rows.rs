//! Rows of the feed, a batch at a time.

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

/// A batch of rows.
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) position: Position,
    /// Whether there was nothing more for now.
    pub(super) is_last: bool,
}

/// A batch ends when it has so much text.
const TEXT_BYTES: usize = 64 << 10;

/// Changes that a filter looks at together.
const LOOKED_AT: usize = 256;

/// The next rows, up to the size of a batch. Blocks.
pub(super) fn next_batch(served: &Served, snapshot: &Snapshot, request: &Request, from: Position) -> Result<Batch> {
    let with_documents = request.documents || request.filter.needs_documents();
    let changes = served.database().changes(from.since)?.documents(with_documents);
    let newest = changes.last_sequence();
    let mut batch = Batch { text: Vec::new(), position: from, is_last: true };
    let mut changes = request.filter.narrow(changes)?.descending(request.descending).run();
    // Where no function looks at them, one after the other: a feed with a limit reads no further than it tells.
    let together = if request.filter.needs_documents() { LOOKED_AT } else { 1 };
    loop {
        let looked_at = changes.by_ref().take(together).collect::<stemmadb::Result<Vec<_>>>()?;
        if looked_at.is_empty() {
            break;
        }
        let kept = request.filter.keep(served, &looked_at)?;
        for (change, is_kept) in looked_at.iter().zip(kept) {
            if batch.position.count >= request.limit {
                return Ok(batch);
            }
            batch.position.since = change.sequence;
            if is_kept {
                write_row(served, snapshot, request, change, batch.position.count, &mut batch.text)?;
                batch.position.count += 1;
            }
        }
        // Downwards there is no position to go on from: all of it is one batch.
        if batch.text.len() >= TEXT_BYTES && !request.descending {
            batch.is_last = false;
            return Ok(batch);
        }
    }
    if batch.position.count < request.limit && !request.descending {
        batch.position.since = newest.max(from.since);
    }
    Ok(batch)
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
