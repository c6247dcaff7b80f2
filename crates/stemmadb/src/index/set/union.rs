//! The union of many postings, as a range query needs it: thousands of small containers, in no order.

use super::{Container, DocumentSet};
use crate::Result;
use crate::index::number::DocumentNumber;

/// So many members are collected before they are merged.
const PENDING_MAX: usize = 4096;

/// Collects postings and makes one set of them. Members are buffered per chunk, so a posting of one
/// document costs a push.
#[derive(Debug, Default)]
pub(crate) struct Union {
    /// Ascending.
    chunks: Vec<Collected>,
}

#[derive(Debug)]
struct Collected {
    chunk: u64,
    merged: Container,
    pending: Vec<u16>,
}

impl Union {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&mut self, document: DocumentNumber) {
        self.at(document.chunk()).add(document.low());
    }

    pub(crate) fn add_container(&mut self, chunk: u64, members: &Container) {
        self.at(chunk).add_container(members);
    }

    pub(crate) fn add_set(&mut self, set: &DocumentSet) {
        set.chunks().for_each(|(chunk, members)| self.add_container(chunk, members));
    }

    /// Adds a stored container.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn add_stored(&mut self, chunk: u64, stored: &[u8]) -> Result<()> {
        match *stored {
            [high, low] => self.at(chunk).add(u16::from_be_bytes([high, low])),
            _ => self.at(chunk).add_container(&Container::decode(stored)?),
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> DocumentSet {
        let mut set = DocumentSet::new();
        for mut collected in self.chunks {
            collected.merge();
            set.push(collected.chunk, collected.merged);
        }
        set
    }

    fn at(&mut self, chunk: u64) -> &mut Collected {
        let at = self.chunks.partition_point(|collected| collected.chunk < chunk);
        if self.chunks.get(at).is_none_or(|collected| collected.chunk != chunk) {
            self.chunks.insert(at, Collected { chunk, merged: Container::new(), pending: Vec::new() });
        }
        &mut self.chunks[at]
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
        if !self.pending.is_empty() {
            self.merged.or_with(&Container::from_unsorted(&mut self.pending));
            self.pending.clear();
        }
    }
}
