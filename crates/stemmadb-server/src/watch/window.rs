//! The first rows of an order: what is told of them when they change.

use std::collections::{HashMap, HashSet};

use stemmadb::{Document, Query, Revision, Snapshot};

use super::message::{Message, MessageWriter};
use crate::error::Result;

/// The rows that a client has.
#[derive(Default)]
pub(super) struct Window {
    rows: HashMap<String, Revision>,
}

impl Window {
    /// What makes the rows that the client has those of the query in this state: what leaves, and then what comes or changes, with its
    /// place, in order. Blocks.
    pub(super) fn step(&mut self, writer: &MessageWriter, query: &Query, snapshot: &Snapshot) -> Result<Vec<Message>> {
        let found: Vec<Document> = snapshot.find(query).run()?.collect::<stemmadb::Result<_>>()?;
        let kept: HashSet<&str> = found.iter().map(|document| document.id().as_str()).collect();
        let mut messages = Vec::new();
        let mut gone: Vec<&String> = self.rows.keys().filter(|id| !kept.contains(id.as_str())).collect();
        gone.sort_unstable();
        for id in gone {
            messages.push(Message::leave(id, snapshot.get(id)?.is_none()));
        }
        for (at, document) in found.iter().enumerate() {
            match self.rows.get(document.id().as_str()) {
                Some(known) if known == document.revision() => {}
                Some(_) => messages.push(writer.row("change", snapshot, document, Some(at))?),
                None => messages.push(writer.row("enter", snapshot, document, Some(at))?),
            }
        }
        self.rows = found.iter().map(|document| (document.id().to_string(), *document.revision())).collect();
        Ok(messages)
    }
}
