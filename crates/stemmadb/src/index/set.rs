//! Sets of document numbers with set algebra, as queries need them: one [`Container`] per chunk of 65,536 numbers.
//!
//! **Invariant.** Chunks are strictly ascending and none is empty.

mod probe;
#[cfg(test)]
mod tests;
mod union;

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::container::Container;
use super::number::{DocumentNumber, Window};
pub(crate) use probe::{Probe, ProbeCount};
pub(crate) use union::Union;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    number: u64,
    members: Container,
}

/// A set of document numbers. A clone shares large chunks until either is modified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DocumentSet {
    chunks: SmallVec<[Chunk; 1]>,
}

impl DocumentSet {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The set of these numbers, which must be strictly ascending.
    pub(crate) fn from_sorted(documents: impl IntoIterator<Item = DocumentNumber>) -> Self {
        let mut set = Self::new();
        let mut lows: Vec<u16> = Vec::new();
        let mut number = 0;
        for document in documents {
            if document.chunk() != number && !lows.is_empty() {
                set.push(number, Container::from_sorted(&lows));
                lows.clear();
            }
            number = document.chunk();
            lows.push(document.low());
        }
        set.push(number, Container::from_sorted(&lows));
        set
    }

    /// Appends a chunk after all others. An empty container is ignored.
    pub(crate) fn push(&mut self, chunk: u64, members: Container) {
        debug_assert!(
            self.chunks.last().is_none_or(|last| last.number < chunk),
            "the chunks of a set are strictly ascending"
        );
        if !members.is_empty() {
            self.chunks.push(Chunk { number: chunk, members });
        }
    }

    /// The chunks in ascending order.
    pub(crate) fn chunks(&self) -> impl DoubleEndedIterator<Item = (u64, &Container)> + ExactSizeIterator {
        self.chunks.iter().map(|chunk| (chunk.number, &chunk.members))
    }

    /// The cardinality. Costs one step per chunk.
    pub(crate) fn len(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.members.len())).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<DocumentNumber> {
        let chunk = self.chunks.first()?;
        Some(DocumentNumber::from_parts(chunk.number, chunk.members.first()?))
    }

    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<DocumentNumber> {
        let chunk = self.chunks.last()?;
        Some(DocumentNumber::from_parts(chunk.number, chunk.members.last()?))
    }

    pub(crate) fn contains(&self, document: DocumentNumber) -> bool {
        self.find(document.chunk()).is_ok_and(|at| self.chunks[at].members.contains(document.low()))
    }

    /// Adds a member. Returns whether it is new.
    pub(crate) fn insert(&mut self, document: DocumentNumber) -> bool {
        let number = document.chunk();
        match self.find(number) {
            Ok(at) => self.chunks[at].members.insert(document.low()),
            Err(at) => {
                self.chunks.insert(at, Chunk { number, members: Container::of_one(document.low()) });
                true
            }
        }
    }

    /// Removes a member. Returns whether it was present.
    pub(crate) fn remove(&mut self, document: DocumentNumber) -> bool {
        let Ok(at) = self.find(document.chunk()) else { return false };
        let removed = self.chunks[at].members.remove(document.low());
        if self.chunks[at].members.is_empty() {
            self.chunks.remove(at);
        }
        removed
    }

    /// The intersection.
    pub(crate) fn and(&self, other: &DocumentSet) -> DocumentSet {
        let mut both = Self::new();
        self.for_each_pair(other, |a, b| {
            both.push(a.number, a.members.and(&b.members));
        });
        both
    }

    /// The approximate size in bytes. Costs one step per chunk.
    pub(crate) fn byte_count(&self) -> usize {
        self.chunks.iter().map(|chunk| size_of::<Chunk>() + chunk.members.byte_count()).sum()
    }

    /// The cardinality of the intersection, without building it.
    pub(crate) fn and_len(&self, other: &DocumentSet) -> u64 {
        let mut len = 0;
        self.for_each_pair(other, |a, b| len += u64::from(a.members.and_len(&b.members)));
        len
    }

    /// Keeps only the members of `other`.
    pub(crate) fn and_with(&mut self, other: &DocumentSet) {
        let mut rest = &other.chunks[..];
        self.chunks.retain(|chunk| {
            rest = &rest[rest.partition_point(|other| other.number < chunk.number)..];
            let Some(found) = rest.first().filter(|other| other.number == chunk.number) else { return false };
            chunk.members.and_with(&found.members);
            !chunk.members.is_empty()
        });
    }

    /// The union.
    #[cfg(test)]
    pub(crate) fn or(&self, other: &DocumentSet) -> DocumentSet {
        let mut either = self.clone();
        either.or_with(other);
        either
    }

    /// Adds the members of `other`.
    pub(crate) fn or_with(&mut self, other: &DocumentSet) {
        if other.chunks.len() * 8 < self.chunks.len() || self.last_chunk() < other.first_chunk() {
            return other.chunks.iter().for_each(|chunk| self.or_chunk(chunk.number, &chunk.members));
        }
        let mut either = SmallVec::with_capacity(self.chunks.len() + other.chunks.len());
        let mut added = other.chunks.iter().peekable();
        for mut chunk in std::mem::take(&mut self.chunks) {
            while let Some(before) = added.next_if(|other| other.number < chunk.number) {
                either.push(before.clone());
            }
            if let Some(same) = added.next_if(|other| other.number == chunk.number) {
                chunk.members.or_with(&same.members);
            }
            either.push(chunk);
        }
        either.extend(added.cloned());
        self.chunks = either;
        debug_assert!(
            self.chunks.is_sorted_by(|a, b| a.number < b.number),
            "the chunks of a set are strictly ascending"
        );
    }

    /// Adds the members of one chunk.
    pub(crate) fn or_chunk(&mut self, number: u64, members: &Container) {
        match self.find(number) {
            Ok(at) => self.chunks[at].members.or_with(members),
            Err(_) if members.is_empty() => {}
            Err(at) => self.chunks.insert(at, Chunk { number, members: members.clone() }),
        }
    }

    /// The members of this set that are not in the other.
    pub(crate) fn and_not(&self, other: &DocumentSet) -> DocumentSet {
        let mut rest = self.clone();
        rest.and_not_with(other);
        rest
    }

    /// Removes the members of `other`.
    pub(crate) fn and_not_with(&mut self, other: &DocumentSet) {
        let mut rest = &other.chunks[..];
        self.chunks.retain(|chunk| {
            rest = &rest[rest.partition_point(|other| other.number < chunk.number)..];
            if let Some(found) = rest.first().filter(|other| other.number == chunk.number) {
                chunk.members.and_not_with(&found.members);
            }
            !chunk.members.is_empty()
        });
    }

    /// The members in a window. Large chunks are shared with this set.
    pub(crate) fn within(&self, window: Window) -> DocumentSet {
        DocumentSet { chunks: self.chunks.iter().filter(|chunk| window.has(chunk.number)).cloned().collect() }
    }

    /// The members in ascending order; reversible.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = DocumentNumber> + '_ {
        self.range(DocumentNumber::MIN, DocumentNumber::MAX)
    }

    /// The members from `lowest` to `highest`, both inclusive; reversible.
    pub(crate) fn range(
        &self,
        lowest: DocumentNumber,
        highest: DocumentNumber,
    ) -> impl DoubleEndedIterator<Item = DocumentNumber> + '_ {
        let from = self.chunks.partition_point(|chunk| chunk.number < lowest.chunk());
        let to = self.chunks.partition_point(|chunk| chunk.number <= highest.chunk());
        self.chunks.get(from..to).unwrap_or_default().iter().flat_map(move |Chunk { number, members }| {
            let first = if *number == lowest.chunk() { lowest.low() } else { 0 };
            let last = if *number == highest.chunk() { highest.low() } else { u16::MAX };
            members.range(first, last).map(|low| DocumentNumber::from_parts(*number, low))
        })
    }

    /// The first `count` members that are not less than `lowest`.
    pub(crate) fn first_from(&self, lowest: DocumentNumber, count: usize) -> Vec<DocumentNumber> {
        let mut numbers = Vec::with_capacity(count.min(usize::try_from(self.len()).unwrap_or(usize::MAX)));
        let from = self.chunks.partition_point(|chunk| chunk.number < lowest.chunk());
        for Chunk { number, members } in &self.chunks[from..] {
            let first = if *number == lowest.chunk() { lowest.low() } else { 0 };
            let left = count - numbers.len();
            let lows = members.range(first, u16::MAX).take(left);
            numbers.extend(lows.map(|low| DocumentNumber::from_parts(*number, low)));
            if numbers.len() == count {
                break;
            }
        }
        numbers
    }

    fn find(&self, chunk: u64) -> Result<usize, usize> {
        match self.chunks.last() {
            Some(last) => match last.number.cmp(&chunk) {
                Ordering::Less => Err(self.chunks.len()),
                Ordering::Equal => Ok(self.chunks.len() - 1),
                Ordering::Greater => self.chunks.binary_search_by_key(&chunk, |chunk| chunk.number),
            },
            None => Err(0),
        }
    }

    fn first_chunk(&self) -> Option<u64> {
        self.chunks.first().map(|chunk| chunk.number)
    }

    fn last_chunk(&self) -> Option<u64> {
        self.chunks.last().map(|chunk| chunk.number)
    }

    /// Calls `visit` for each pair of chunks with the same number.
    fn for_each_pair<'a>(&'a self, other: &'a DocumentSet, mut visit: impl FnMut(&'a Chunk, &'a Chunk)) {
        let (mut a, mut b) = (&self.chunks[..], &other.chunks[..]);
        while let ([x, ..], [y, ..]) = (a, b) {
            match x.number.cmp(&y.number) {
                Ordering::Less => a = &a[a.partition_point(|chunk| chunk.number < y.number)..],
                Ordering::Greater => b = &b[b.partition_point(|chunk| chunk.number < x.number)..],
                Ordering::Equal => {
                    visit(x, y);
                    (a, b) = (&a[1..], &b[1..]);
                }
            }
        }
    }
}

impl FromIterator<DocumentNumber> for DocumentSet {
    /// Collects numbers in any order, with duplicates.
    fn from_iter<I: IntoIterator<Item = DocumentNumber>>(documents: I) -> Self {
        let mut union = Union::new();
        documents.into_iter().for_each(|document| union.add(document));
        union.finish()
    }
}
