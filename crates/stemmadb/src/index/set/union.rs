//! The union of many postings, as a range query needs it: thousands of small containers, in no order.

use std::collections::BTreeMap;

use super::{Container, DocumentSet};
use crate::Result;
use crate::index::number::DocumentNumber;

/// So many members are collected before they are sorted and merged.
const PENDING_MAX: usize = 8192;

/// Collects postings and makes one set of them. Members are buffered per chunk, so a posting of one
/// document costs a push.
#[derive(Debug, Default)]
pub(crate) struct Union {
    chunks: BTreeMap<u64, Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    merged: Container,
    pending: Vec<u16>,
}

impl Union {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&mut self, document: DocumentNumber) {
        self.chunks.entry(document.chunk()).or_default().add(document.low());
    }

    pub(crate) fn add_container(&mut self, chunk: u64, members: &Container) {
        self.chunks.entry(chunk).or_default().add_container(members);
    }

    pub(crate) fn add_set(&mut self, set: &DocumentSet) {
        set.chunks().for_each(|(chunk, members)| self.add_container(chunk, members));
    }

    /// Adds a stored container.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn add_stored(&mut self, chunk: u64, stored: &[u8]) -> Result<()> {
        let collected = self.chunks.entry(chunk).or_default();
        match *stored {
            [high, low] => collected.add(u16::from_be_bytes([high, low])),
            _ => collected.add_container(&Container::decode(stored)?),
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> DocumentSet {
        let mut set = DocumentSet::new();
        for (chunk, mut collected) in self.chunks {
            collected.merge();
            set.push(chunk, collected.merged);
        }
        set
    }
}

impl Collected {
    fn add(&mut self, low: u16) {
        self.pending.push(low);
        if self.pending.len() >= PENDING_MAX {
            self.merge();
        }
    }

    fn add_container(&mut self, members: &Container) {
        // A small one is cheaper to push than to merge.
        if members.len() as usize <= 64 {
            members.iter().for_each(|low| self.add(low));
        } else {
            self.merged.or_with(members);
        }
    }

    fn merge(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.pending.sort_unstable();
        self.pending.dedup();
        self.merged.apply(&self.pending, &[]);
        self.pending.clear();
    }
}
