//! A set of documents prepared for intersections with many stored postings, as a sum or a group over a filter needs
//! them.

use super::DocumentSet;
use crate::Result;
use crate::index::container::ContainerProbe;

/// The chunks of a set, each in a form in which testing a member costs about a nanosecond.
pub(crate) struct Probe {
    /// Strictly ascending by chunk number.
    chunks: Vec<(u64, ContainerProbe)>,
}

/// How much of a posting a probe found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProbeCount {
    /// Documents of the posting that are in the set.
    pub(crate) documents: u64,
    /// Chunks of the posting, whether or not they have such documents.
    pub(crate) chunks: u64,
}

impl Probe {
    /// Costs at most 8 KiB and a few microseconds for each chunk of the set.
    pub(crate) fn new(set: &DocumentSet) -> Self {
        Probe { chunks: set.chunks().map(|(chunk, members)| (chunk, ContainerProbe::new(members))).collect() }
    }

    /// The number of members of a stored container that are in the set.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a container.
    pub(crate) fn stored_len(&self, chunk: u64, stored: &[u8]) -> Result<u64> {
        self.find(chunk).map_or(Ok(0), |probe| probe.stored_len(stored).map(u64::from))
    }

    /// As [`Probe::stored_len`], for all chunks of a set.
    pub(crate) fn count(&self, set: &DocumentSet) -> ProbeCount {
        let both = |(chunk, members)| self.find(chunk).map_or(0, |probe| u64::from(probe.len(members)));
        ProbeCount { documents: set.chunks().map(both).sum(), chunks: set.chunks().len() as u64 }
    }

    fn find(&self, chunk: u64) -> Option<&ContainerProbe> {
        let at = self.chunks.binary_search_by_key(&chunk, |(number, _)| *number).ok()?;
        Some(&self.chunks[at].1)
    }
}
