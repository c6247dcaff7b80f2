//! The distinct values of a path in order: the tree's rows, or their copy in memory, and the memtables' terms, merged. The documents
//! of a value are only decoded if they are asked for.

use smallvec::SmallVec;

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::index::{Container, DocumentNumber, DocumentSet, PostingKey, Union};
use crate::memtable::{Overlay, Walk};
use crate::store::columns::Column;
use crate::store::postings::lay_over;
use crate::tree::{Direction, Rows};

/// What the tree has of one path, a term at a time.
pub(super) enum Terms<'a> {
    Tree(TreeTerms<'a>),
    Column(ColumnTerms),
}

/// Values of a column.
pub(super) struct ColumnTerms {
    column: Arc<Column>,
    /// The values that are left, in the order in which they come.
    ranks: Ranks,
    next: Option<usize>,
    /// The documents of the value that was taken last.
    taken: Range<usize>,
}

enum Ranks {
    All(Range<usize>, Direction),
    Some(std::vec::IntoIter<u32>),
}

impl ColumnTerms {
    /// The values of a span; of those, if a literal is given, only such as may hold it.
    pub(super) fn new(column: Arc<Column>, span: Range<usize>, direction: Direction, literal: Option<&[u8]>) -> Self {
        let ranks = match literal {
            None => Ranks::All(span, direction),
            Some(literal) => {
                let mut holding = column.holding(literal, &span);
                if direction == Direction::Descending {
                    holding.reverse();
                }
                Ranks::Some(holding.into_iter())
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

impl<'a> Terms<'a> {
    /// The key of the next term.
    fn peek(&self) -> Option<&[u8]> {
        match self {
            Terms::Tree(terms) => terms.peek(),
            Terms::Column(terms) => terms.peek(),
        }
    }
}

/// The tree's rows of one path, a term at a time.
pub(super) struct TreeTerms<'a> {
    rows: Rows<'a>,
    /// The row that is next: its chunk and container; none at the end.
    next: Option<(u64, &'a [u8])>,
    /// The key of its value.
    next_key: Vec<u8>,
}

impl<'a> TreeTerms<'a> {
    pub(super) fn begin(rows: Rows<'a>) -> Result<Self> {
        let mut terms = TreeTerms { rows, next: None, next_key: Vec::new() };
        terms.advance()?;
        Ok(terms)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = None;
        if let Some((row_key, container)) = self.rows.next()? {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            self.next_key.clear();
            self.next_key.extend_from_slice(value);
            self.next = Some((chunk, container));
        }
        Ok(())
    }

    /// The key of the next term.
    fn peek(&self) -> Option<&[u8]> {
        self.next.map(|_| self.next_key.as_slice())
    }

    /// Collects the containers of the value `key`, if it is next, by chunk.
    fn take(&mut self, key: &[u8], direction: Direction, chunks: &mut Chunks<'a>) -> Result<()> {
        chunks.clear();
        while let Some(next) = self.next.filter(|_| self.next_key == key) {
            chunks.push(next);
            self.advance()?;
        }
        if direction == Direction::Descending {
            chunks.reverse();
        }
        Ok(())
    }
}

/// Stored containers by chunk.
type Chunks<'a> = SmallVec<[(u64, &'a [u8]); 4]>;

/// Walks the distinct values of a path in order.
pub(crate) struct TermWalk<'a> {
    terms: Terms<'a>,
    /// Oldest first.
    memtables: SmallVec<[std::iter::Peekable<Walk>; 4]>,
    direction: Direction,
    /// The lower bound, when it is itself excluded.
    excluded: Option<Vec<u8>>,
    key: Vec<u8>,
    chunks: Chunks<'a>,
}

/// A value and its documents.
pub(crate) struct Term<'w, 'a> {
    pub(crate) key: &'w [u8],
    documents: Documents<'w, 'a>,
}

enum Documents<'w, 'a> {
    /// As the tree has them: at least one.
    Stored(&'w Chunks<'a>),
    /// As a column has them: at least one.
    Listed(&'w [u32]),
    /// With what memtables change.
    Made(DocumentSet),
}

impl Term<'_, '_> {
    /// How many documents have it.
    pub(crate) fn len(&self) -> Result<u64> {
        match &self.documents {
            Documents::Stored(chunks) => {
                chunks.iter().map(|(_, stored)| Container::stored_len(stored).map(u64::from)).sum()
            }
            Documents::Listed(numbers) => Ok(numbers.len() as u64),
            Documents::Made(set) => Ok(set.len()),
        }
    }

    /// The documents that have it; to be asked once.
    pub(crate) fn take(&mut self) -> Result<DocumentSet> {
        match &mut self.documents {
            Documents::Stored(chunks) => set_of(chunks),
            Documents::Listed(numbers) => Ok(set_of_listed(numbers)),
            Documents::Made(set) => Ok(std::mem::take(set)),
        }
    }

    /// Adds the documents that have it.
    pub(crate) fn add_to(&self, union: &mut Union) -> Result<()> {
        match &self.documents {
            Documents::Stored(chunks) => chunks.iter().try_for_each(|(chunk, stored)| union.add_stored(*chunk, stored)),
            Documents::Listed(numbers) => {
                numbers.iter().for_each(|number| union.add(DocumentNumber(u64::from(*number))));
                Ok(())
            }
            Documents::Made(set) => {
                union.add_set(set);
                Ok(())
            }
        }
    }
}

fn set_of(chunks: &Chunks<'_>) -> Result<DocumentSet> {
    let mut set = DocumentSet::new();
    for (chunk, stored) in chunks {
        set.push(*chunk, Container::decode(stored)?);
    }
    Ok(set)
}

fn set_of_listed(numbers: &[u32]) -> DocumentSet {
    DocumentSet::from_sorted(numbers.iter().map(|number| DocumentNumber(u64::from(*number))))
}

impl<'a> TermWalk<'a> {
    pub(super) fn begin(
        terms: Terms<'a>,
        memtables: SmallVec<[std::iter::Peekable<Walk>; 4]>,
        direction: Direction,
        excluded: Option<Vec<u8>>,
    ) -> Self {
        TermWalk { terms, memtables, direction, excluded, key: Vec::new(), chunks: Chunks::new() }
    }

    /// Whether it reads the tree, not a column.
    pub(crate) fn reads_tree(&self) -> bool {
        matches!(self.terms, Terms::Tree(_))
    }

    /// The next value that some document has.
    pub(crate) fn next_term(&mut self) -> Result<Option<Term<'_, 'a>>> {
        let mut made = DocumentSet::new();
        while self.find_key() {
            match &mut self.terms {
                Terms::Tree(terms) => terms.take(&self.key, self.direction, &mut self.chunks)?,
                Terms::Column(terms) => terms.take(&self.key),
            }
            let mut overlay = Overlay::default();
            for memtable in &mut self.memtables {
                if let Some((_, newer)) = memtable.next_if(|(next, _)| *next == self.key) {
                    overlay.stack(newer);
                }
            }
            if self.excluded.as_ref() == Some(&self.key) {
                continue;
            }
            if overlay.is_empty() {
                let documents = match &self.terms {
                    Terms::Tree(_) => Documents::Stored(&self.chunks),
                    Terms::Column(terms) => Documents::Listed(terms.column.documents_within(&terms.taken)),
                };
                return Ok(Some(Term { key: &self.key, documents }));
            }
            made = match &self.terms {
                Terms::Tree(_) => set_of(&self.chunks)?,
                Terms::Column(terms) => set_of_listed(terms.column.documents_within(&terms.taken)),
            };
            lay_over(&mut made, &overlay);
            if !made.is_empty() {
                break;
            }
        }
        Ok((!made.is_empty()).then_some(Term { key: &self.key, documents: Documents::Made(made) }))
    }

    /// Finds the nearest key that the tree or a memtable has; false at the end.
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
