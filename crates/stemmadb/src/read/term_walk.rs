//! Walks the distinct values of a path in order, merging the tree's rows (or a column) with the memtables' terms. The
//! documents of a value are decoded only when they are requested.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Result;
use crate::cache::columns::Column;
use crate::index::{Container, DocumentNumber, DocumentSet, PostingKey, Probe, ProbeCount, Union};
use crate::memtable::{MemtableTermWalk, PostingOverlay};
use crate::read::postings::apply_overlay;
use crate::tree::{Direction, Scan};

/// A container as it is stored; most are short.
type StoredContainer = SmallVec<[u8; 16]>;

/// The stored terms of one path, one at a time.
pub(crate) enum StoredTerms {
    Tree(Box<TreeTerms>),
    Column(ColumnTerms),
}

/// The values of a column.
pub(crate) struct ColumnTerms {
    column: Arc<Column>,
    /// The remaining values, in the order of the walk.
    ranks: Ranks,
    next: Option<usize>,
    /// The documents of the current value.
    taken: Range<usize>,
}

enum Ranks {
    All(Range<usize>, Direction),
    Some(std::vec::IntoIter<u32>),
}

impl ColumnTerms {
    /// The values of a span; if a literal is given, only those that may contain it.
    pub(crate) fn new(column: Arc<Column>, span: Range<usize>, direction: Direction, literal: Option<&[u8]>) -> Self {
        let ranks = match literal {
            None => Ranks::All(span, direction),
            Some(literal) => {
                let mut containing = column.containing(literal, &span);
                if direction == Direction::Descending {
                    containing.reverse();
                }
                Ranks::Some(containing.into_iter())
            }
        };
        let mut terms = ColumnTerms { column, ranks, next: None, taken: 0..0 };
        terms.advance();
        terms
    }

    fn advance(&mut self) {
        self.next = match &mut self.ranks {
            Ranks::All(span, Direction::Ascending) => span.next(),
            Ranks::All(span, Direction::Descending) => span.next_back(),
            Ranks::Some(ranks) => ranks.next().map(|rank| rank as usize),
        };
    }

    fn peek(&self) -> Option<&[u8]> {
        self.next.map(|rank| self.column.key(rank))
    }

    fn take(&mut self, key: &[u8]) {
        self.taken = 0..0;
        if let Some(rank) = self.next.filter(|rank| self.column.key(*rank) == key) {
            self.taken = rank..rank + 1;
            self.advance();
        }
    }
}

impl StoredTerms {
    /// The key of the next term.
    fn peek(&self) -> Option<&[u8]> {
        match self {
            StoredTerms::Tree(terms) => terms.peek(),
            StoredTerms::Column(terms) => terms.peek(),
        }
    }

    /// The documents of the current value.
    fn documents(&mut self) -> TermDocuments<'_> {
        match self {
            StoredTerms::Tree(terms) => TermDocuments::Stored(terms),
            StoredTerms::Column(terms) => TermDocuments::Listed(terms.column.documents_within(&terms.taken)),
        }
    }
}

/// The tree's rows of one path, one term at a time.
pub(crate) struct TreeTerms {
    rows: Scan,
    direction: Direction,
    /// The chunk of the next row; none at the end.
    next: Option<u64>,
    /// The value's key of the next row, and its container.
    next_key: Vec<u8>,
    next_container: Vec<u8>,
    /// The key of the current value.
    key: Vec<u8>,
    /// The containers read so far for the current value, with their chunks, in the order of the walk.
    read: SmallVec<[(u64, StoredContainer); 2]>,
    /// How many of them were returned.
    returned_count: usize,
}

impl TreeTerms {
    pub(crate) fn begin(rows: Scan, direction: Direction) -> Result<Self> {
        let mut terms = TreeTerms {
            rows,
            direction,
            next: None,
            next_key: Vec::new(),
            next_container: Vec::new(),
            key: Vec::new(),
            read: SmallVec::new(),
            returned_count: 0,
        };
        terms.advance()?;
        Ok(terms)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = None;
        if let Some((row_key, container)) = self.rows.next()? {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            self.next_key.clear();
            self.next_key.extend_from_slice(value);
            self.next_container.clear();
            self.next_container.extend_from_slice(container);
            self.next = Some(chunk);
        }
        Ok(())
    }

    /// The key of the next term.
    fn peek(&self) -> Option<&[u8]> {
        self.next.as_ref().map(|_| self.next_key.as_slice())
    }

    /// Makes `key` the current value; it has no documents here if it is not the next one.
    fn take(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.read.clear();
        self.returned_count = 0;
    }

    /// Reads the next row of the current value; returns false if there is none.
    fn read_row(&mut self) -> Result<bool> {
        if self.next_key != self.key {
            return Ok(false);
        }
        let Some(chunk) = self.next.take() else { return Ok(false) };
        self.read.push((chunk, StoredContainer::from_slice(&self.next_container)));
        self.advance()?;
        Ok(true)
    }

    /// Passes each container of the current value to `visit`. Those that were not read before are not kept.
    fn for_each(&mut self, mut visit: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        for (chunk, stored) in &self.read {
            visit(*chunk, stored)?;
        }
        while let Some(chunk) = self.next.filter(|_| self.next_key == self.key) {
            visit(chunk, &self.next_container)?;
            self.advance()?;
        }
        Ok(())
    }

    /// All containers of the current value.
    fn read_all(&mut self) -> Result<&[(u64, StoredContainer)]> {
        while self.read_row()? {}
        Ok(&self.read)
    }

    fn set(&mut self) -> Result<DocumentSet> {
        let is_reversed = self.direction == Direction::Descending;
        let read = self.read_all()?;
        let mut set = DocumentSet::new();
        for at in 0..read.len() {
            let (chunk, stored) = &read[if is_reversed { read.len() - 1 - at } else { at }];
            set.push(*chunk, Container::decode(stored)?);
        }
        Ok(set)
    }

    /// Returns whole chunks of the current value until they have `count` documents, skipping chunks before that of
    /// `from`, and whether there are more. Each chunk is returned once.
    fn some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        if self.direction == Direction::Descending {
            return Ok((self.set()?, false));
        }
        let mut set = DocumentSet::new();
        loop {
            if self.returned_count == self.read.len() && !self.read_row()? {
                return Ok((set, false));
            }
            debug_assert!(self.returned_count < self.read.len(), "only containers that were read are returned");
            if set.len() >= count {
                return Ok((set, true));
            }
            let (chunk, stored) = &self.read[self.returned_count];
            self.returned_count += 1;
            if *chunk >= from.chunk() {
                set.push(*chunk, Container::decode(stored)?);
            }
        }
    }
}

/// Walks the distinct values of a path in order.
pub(crate) struct TermWalk {
    terms: StoredTerms,
    /// Oldest first.
    memtables: SmallVec<[std::iter::Peekable<MemtableTermWalk>; 4]>,
    direction: Direction,
    /// The lower bound, if it is excluded.
    excluded: Option<Vec<u8>>,
    key: Vec<u8>,
}

/// A value and its documents, which can be read once.
pub(crate) struct Term<'w> {
    pub(crate) key: &'w [u8],
    documents: TermDocuments<'w>,
}

enum TermDocuments<'w> {
    /// The tree's documents: at least one.
    Stored(&'w mut TreeTerms),
    /// The column's documents: at least one.
    Listed(&'w [u32]),
    /// The documents after the memtables' changes.
    Merged(DocumentSet),
}

impl Term<'_> {
    /// The number of documents that have the value. Call it instead of [`Term::take`].
    pub(crate) fn len(&mut self) -> Result<u64> {
        match &mut self.documents {
            TermDocuments::Stored(terms) => {
                let mut len = 0;
                terms.for_each(|_, stored| {
                    len += u64::from(Container::stored_len(stored)?);
                    Ok(())
                })?;
                Ok(len)
            }
            TermDocuments::Listed(numbers) => Ok(numbers.len() as u64),
            TermDocuments::Merged(set) => Ok(set.len()),
        }
    }

    /// How many of the documents that have the value are in `others`. Call it instead of [`Term::take`].
    pub(crate) fn count_in(&mut self, others: &Probe) -> Result<ProbeCount> {
        match &mut self.documents {
            TermDocuments::Stored(terms) => {
                let mut count = ProbeCount::default();
                terms.for_each(|chunk, stored| {
                    count.documents += others.stored_len(chunk, stored)?;
                    count.chunks += 1;
                    Ok(())
                })?;
                Ok(count)
            }
            listed_or_merged => Ok(others.count(&listed_or_merged.take()?)),
        }
    }

    /// The documents that have the value. Call it once.
    pub(crate) fn take(&mut self) -> Result<DocumentSet> {
        self.documents.take()
    }

    /// Some of the documents in number order: at least `count` from the chunk of `from` on, unless there are fewer; and
    /// whether there may be more, which the next call returns.
    pub(crate) fn take_some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        match &mut self.documents {
            TermDocuments::Stored(terms) => terms.some(from, count),
            others => Ok((others.take()?, false)),
        }
    }

    /// Adds the documents that have the value to `union`.
    pub(crate) fn add_to(&mut self, union: &mut Union) -> Result<()> {
        match &mut self.documents {
            TermDocuments::Stored(terms) => {
                terms.for_each(|chunk, stored| union.add_stored(chunk, stored))?;
            }
            TermDocuments::Listed(numbers) => union.add_listed(numbers),
            TermDocuments::Merged(set) => union.add_set(set),
        }
        Ok(())
    }
}

impl TermDocuments<'_> {
    fn take(&mut self) -> Result<DocumentSet> {
        match self {
            TermDocuments::Stored(terms) => terms.set(),
            TermDocuments::Listed(numbers) => {
                Ok(DocumentSet::from_sorted(numbers.iter().map(|number| DocumentNumber(u64::from(*number)))))
            }
            TermDocuments::Merged(set) => Ok(std::mem::take(set)),
        }
    }
}

impl TermWalk {
    pub(crate) fn begin(
        terms: StoredTerms,
        memtables: SmallVec<[std::iter::Peekable<MemtableTermWalk>; 4]>,
        direction: Direction,
        excluded: Option<Vec<u8>>,
    ) -> Self {
        TermWalk { terms, memtables, direction, excluded, key: Vec::new() }
    }

    /// Whether the walk reads the tree instead of a column.
    pub(crate) fn reads_tree(&self) -> bool {
        matches!(self.terms, StoredTerms::Tree(_))
    }

    /// The next value that some document has.
    pub(crate) fn next_term(&mut self) -> Result<Option<Term<'_>>> {
        loop {
            if let StoredTerms::Tree(terms) = &mut self.terms {
                // Skip the rows of the previous value that were not requested.
                terms.for_each(|_, _| Ok(()))?;
            }
            if !self.find_key() {
                return Ok(None);
            }
            match &mut self.terms {
                StoredTerms::Tree(terms) => terms.take(&self.key),
                StoredTerms::Column(terms) => terms.take(&self.key),
            }
            let mut overlay = PostingOverlay::default();
            for memtable in &mut self.memtables {
                if let Some((_, newer)) = memtable.next_if(|(next, _)| *next == self.key) {
                    overlay.stack(newer);
                }
            }
            if self.excluded.as_ref() == Some(&self.key) {
                continue;
            }
            if overlay.is_empty() {
                return Ok(Some(Term { key: &self.key, documents: self.terms.documents() }));
            }
            let mut merged = self.terms.documents().take()?;
            apply_overlay(&mut merged, &overlay);
            if !merged.is_empty() {
                return Ok(Some(Term { key: &self.key, documents: TermDocuments::Merged(merged) }));
            }
        }
    }

    /// Finds the nearest key in the tree or a memtable; returns false at the end.
    fn find_key(&mut self) -> bool {
        let mut nearest = self.terms.peek();
        for memtable in &mut self.memtables {
            if let Some((key, _)) = memtable.peek() {
                let is_nearer = nearest.is_none_or(|nearest| match self.direction {
                    Direction::Ascending => key.as_slice() < nearest,
                    Direction::Descending => key.as_slice() > nearest,
                });
                if is_nearer {
                    nearest = Some(key);
                }
            }
        }
        let Some(nearest) = nearest else { return false };
        self.key.clear();
        self.key.extend_from_slice(nearest);
        true
    }
}
