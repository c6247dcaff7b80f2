//! Union of many postings in any order, as a range query needs it: thousands of small containers.

use super::{Container, DocumentSet};
use crate::Result;
use crate::index::container::ContainerUnion;
use crate::index::number::DocumentNumber;

/// Accumulates the union of postings. A posting of one document costs a push.
#[derive(Default)]
pub(crate) struct Union {
    /// Strictly ascending by chunk number.
    chunks: Vec<(u64, ContainerUnion)>,
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

    /// Adds documents in any order.
    pub(crate) fn add_listed(&mut self, documents: &[u32]) {
        for run in documents.chunk_by(|a, b| a >> 16 == b >> 16) {
            let members = self.at(u64::from(run[0] >> 16));
            run.iter().for_each(|number| members.add(*number as u16));
        }
    }

    /// Adds a stored container.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a container.
    pub(crate) fn add_stored(&mut self, chunk: u64, stored: &[u8]) -> Result<()> {
        self.at(chunk).add_stored(stored)
    }

    pub(crate) fn finish(self) -> DocumentSet {
        let mut set = DocumentSet::new();
        for (chunk, members) in self.chunks {
            set.push(chunk, members.finish());
        }
        set
    }

    fn at(&mut self, chunk: u64) -> &mut ContainerUnion {
        let at = self.chunks.partition_point(|(number, _)| *number < chunk);
        if self.chunks.get(at).is_none_or(|(number, _)| *number != chunk) {
            self.chunks.insert(at, (chunk, ContainerUnion::default()));
        }
        &mut self.chunks[at].1
    }
}
