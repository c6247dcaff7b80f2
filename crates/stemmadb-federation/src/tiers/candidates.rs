//! Which documents a policy moves.

use std::collections::HashSet;
use std::time::SystemTime;

use stemmadb::{Change, Database, DocumentId, Query, Result, Selector, Sequence};

use super::access::AccessTimes;
use super::marker::is_marker;
use super::policy::TierPolicy;
use super::without_stubs;

/// The most documents that are chosen at once.
const CHOSEN_MAX: usize = 10_000;

/// Chooses documents of a tier that move to the next one.
pub(super) struct Chooser<'a> {
    pub(super) source: &'a Database,
    pub(super) policy: &'a TierPolicy,
    pub(super) access: &'a AccessTimes,
    pub(super) now: SystemTime,
    /// Documents that could not be moved in this run.
    pub(super) refused: &'a HashSet<DocumentId>,
    /// How much of the changes was searched for large documents.
    pub(super) sized: &'a mut Sequence,
}

impl Chooser<'_> {
    /// The next documents that move, those that were written first before others; empty if there are none.
    pub(super) fn choose(&mut self) -> Result<Vec<DocumentId>> {
        let mut chosen = Vec::new();
        if let Some(dated) = self.policy.dated_before(self.now) {
            let query = Query::new(self.movable().and(dated)).limit((CHOSEN_MAX + self.refused.len()) as u64);
            for id in self.source.find(query).ids()? {
                self.take(id?, &mut chosen);
            }
        }
        if let Some(time) = self.policy.written_before(self.now) {
            self.written_before(time, |_| true, &mut chosen)?;
        }
        if let Some(time) = self.policy.unused_since(self.now) {
            let access = self.access;
            self.written_before(time, |id| !access.is_used_since(id.as_str(), time), &mut chosen)?;
        }
        if let Some(bytes) = self.policy.larger_than {
            self.larger_than(bytes, &mut chosen)?;
        }
        if chosen.is_empty() {
            self.over_capacity(&mut chosen)?;
        }
        let mut seen = HashSet::new();
        chosen.retain(|id| seen.insert(id.clone()));
        Ok(chosen)
    }

    /// A selector of the documents that may move.
    fn movable(&self) -> Selector {
        match &self.policy.only {
            Some(only) => only.clone().and(without_stubs()),
            None => without_stubs(),
        }
    }

    fn take(&self, id: DocumentId, chosen: &mut Vec<DocumentId>) {
        if chosen.len() < CHOSEN_MAX && !id.as_str().starts_with("_design/") && !self.refused.contains(&id) {
            chosen.push(id);
        }
    }

    /// The documents that may move, in the order of their last writes.
    fn in_order(&self, since: Sequence) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        let changes = self.source.changes(since)?.documents(self.needs_documents());
        let changes = match &self.policy.only {
            Some(only) => changes.selector(only)?,
            None => changes,
        };
        let may_move = |change: &Change| !change.deleted && !is_marker(&change.revision);
        Ok(changes.run().filter(move |change| change.as_ref().map_or(true, may_move)))
    }

    fn needs_documents(&self) -> bool {
        self.policy.larger_than.is_some() || self.policy.bytes_max.is_some()
    }

    fn written_before(
        &self,
        time: SystemTime,
        is_chosen: impl Fn(&DocumentId) -> bool,
        chosen: &mut Vec<DocumentId>,
    ) -> Result<()> {
        let last = self.source.history().sequence_at(time)?;
        for change in self.in_order(Sequence::ZERO)? {
            let change = change?;
            if change.sequence > last || chosen.len() >= CHOSEN_MAX {
                break;
            }
            if is_chosen(&change.id) {
                self.take(change.id, chosen);
            }
        }
        Ok(())
    }

    /// Sizes only change with writes, so each change is looked at once.
    fn larger_than(&mut self, bytes: u64, chosen: &mut Vec<DocumentId>) -> Result<()> {
        for change in self.in_order(*self.sized)? {
            let change = change?;
            if chosen.len() >= CHOSEN_MAX {
                break;
            }
            *self.sized = change.sequence;
            if byte_count(&change)? > bytes {
                self.take(change.id, chosen);
            }
        }
        Ok(())
    }

    fn over_capacity(&self, chosen: &mut Vec<DocumentId>) -> Result<()> {
        let excess_documents = match self.policy.documents_max {
            Some(most) => self.source.find(without_stubs()).count()?.saturating_sub(most),
            None => 0,
        };
        let mut excess_bytes = match self.policy.bytes_max {
            Some(most) => {
                // The statistics are those of the last checkpoint.
                self.source.maintenance().checkpoint()?;
                self.source.info()?.live_bytes.saturating_sub(most)
            }
            None => 0,
        };
        if excess_documents == 0 && excess_bytes == 0 {
            return Ok(());
        }
        for change in self.in_order(Sequence::ZERO)? {
            let change = change?;
            if chosen.len() as u64 >= excess_documents && excess_bytes == 0 || chosen.len() >= CHOSEN_MAX {
                break;
            }
            if excess_bytes > 0 {
                excess_bytes = excess_bytes.saturating_sub(byte_count(&change)?.max(1));
            }
            self.take(change.id, chosen);
        }
        Ok(())
    }
}

/// The bytes of a document: of its JSON, and of its attachments.
fn byte_count(change: &Change) -> Result<u64> {
    let Some(document) = &change.document else { return Ok(0) };
    let files: u64 = document.attachments()?.iter().map(|file| file.length).sum();
    Ok(document.to_json()?.len() as u64 + files)
}
