//! The union of many postings, as a range query needs it: thousands of small containers, in no order.

use super::{Container, DocumentSet};
use crate::Result;
use crate::index::container::Gather;
use crate::index::number::DocumentNumber;

/// Collects postings and makes one set of them. A posting of one document costs a push.
#[derive(Default)]
pub(crate) struct Union {
    /// Ascending.
    chunks: Vec<(u64, Gather)>,
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

    /// Adds documents in no order.
    pub(crate) fn add_listed(&mut self, documents: &[u32]) {
        for run in documents.chunk_by(|a, b| a >> 16 == b >> 16) {
            let members = self.at(u64::from(run[0] >> 16));
            run.iter().for_each(|number| members.add(*number as u16));
        }
    }

    /// Adds a stored container.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn add_stored(&mut self, chunk: u64, stored: &[u8]) -> Result<()> {
        self.at(chunk).add_stored(stored)
    }

    pub(crate) fn finish(self) -> DocumentSet {
        let mut set = DocumentSet::new();
        for (chunk, gathered) in self.chunks {
            set.push(chunk, gathered.finish());
        }
        set
    }

    fn at(&mut self, chunk: u64) -> &mut Gather {
        let at = self.chunks.partition_point(|(known, _)| *known < chunk);
        if self.chunks.get(at).is_none_or(|(known, _)| *known != chunk) {
            self.chunks.insert(at, (chunk, Gather::default()));
        }
        &mut self.chunks[at].1
    }
}
