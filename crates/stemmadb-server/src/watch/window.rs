//! Sorted or limited results of a live query: computes the difference between two results.

use std::collections::{HashMap, HashSet};

use stemmadb::{Document, Query, Revision, Snapshot};

use super::message::{MessageWriter, WatchMessage};
use crate::error::Result;

/// The rows that the client has.
#[derive(Default)]
pub(super) struct WatchWindow {
    rows: HashMap<String, Revision>,
}

impl WatchWindow {
    /// Runs the query in a snapshot and returns the messages that turn the client's rows into its result: first the
    /// rows that leave, then the rows that enter or change, in order and with their positions. Blocks.
    pub(super) fn update(
        &mut self,
        writer: &MessageWriter,
        query: &Query,
        snapshot: &Snapshot,
    ) -> Result<Vec<WatchMessage>> {
        let found: Vec<Document> = snapshot.find(query).run()?.collect::<stemmadb::Result<_>>()?;
        let ids: HashSet<&str> = found.iter().map(|document| document.id().as_str()).collect();
        let mut messages = Vec::new();
        let mut removed: Vec<&String> = self.rows.keys().filter(|id| !ids.contains(id.as_str())).collect();
        removed.sort_unstable();
        for id in removed {
            messages.push(WatchMessage::leave(id, snapshot.get(id)?.is_none()));
        }
        for (position, document) in found.iter().enumerate() {
            match self.rows.get(document.id().as_str()) {
                Some(revision) if revision == document.revision() => {}
                Some(_) => messages.push(writer.row("change", snapshot, document, Some(position))?),
                None => messages.push(writer.row("enter", snapshot, document, Some(position))?),
            }
        }
        self.rows = found.iter().map(|document| (document.id().to_string(), *document.revision())).collect();
        Ok(messages)
    }
}
