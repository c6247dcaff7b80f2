//! The distinct values of a path in order: the tree's rows, or their copy in memory, and the memtables' terms, merged. The documents
//! of a value are only decoded if they are asked for.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Result;
use crate::cache::columns::Column;
use crate::index::{Container, DocumentNumber, DocumentSet, PostingKey, Union};
use crate::memtable::{MemtableTermWalk, PostingOverlay};
use crate::read::postings::lay_over;
use crate::tree::{Direction, Rows};

/// What the tree has of one path, a term at a time.
pub(crate) enum Terms<'a> {
    Tree(TreeTerms<'a>),
    Column(ColumnTerms),
}

/// Values of a column.
pub(crate) struct ColumnTerms {
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
    pub(crate) fn new(column: Arc<Column>, span: Range<usize>, direction: Direction, literal: Option<&[u8]>) -> Self {
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

    /// The documents of the value that was taken last.
    fn documents(&mut self) -> Documents<'_, 'a> {
        match self {
            Terms::Tree(terms) => Documents::Stored(terms),
            Terms::Column(terms) => Documents::Listed(terms.column.documents_within(&terms.taken)),
        }
    }
}

/// The tree's rows of one path, a term at a time.
pub(crate) struct TreeTerms<'a> {
    rows: Rows<'a>,
    direction: Direction,
    /// The row that is next: its chunk and container; none at the end.
    next: Option<(u64, &'a [u8])>,
    /// The key of its value.
    next_key: Vec<u8>,
    /// The key of the value that was taken last.
    key: Vec<u8>,
    /// Its containers by chunk, as far as they were read, in the order of the walk.
    read: SmallVec<[(u64, &'a [u8]); 4]>,
    /// How many of them were handed out.
    given_count: usize,
}

impl<'a> TreeTerms<'a> {
    pub(crate) fn begin(rows: Rows<'a>, direction: Direction) -> Result<Self> {
        let (next_key, key) = (Vec::new(), Vec::new());
        let mut terms = TreeTerms { rows, direction, next: None, next_key, key, read: SmallVec::new(), given_count: 0 };
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

    /// Begins with the value `key`; it has no documents here if it is not next.
    fn take(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.read.clear();
        self.given_count = 0;
    }

    /// Reads the next row of the value taken; false if it has no more.
    fn read_row(&mut self) -> Result<bool> {
        match self.next {
            Some(row) if self.next_key == self.key => self.read.push(row),
            _ => return Ok(false),
        }
        self.advance()?;
        Ok(true)
    }

    /// All containers of the value taken.
    fn read_all(&mut self) -> Result<&[(u64, &'a [u8])]> {
        while self.read_row()? {}
        Ok(&self.read)
    }

    fn set(&mut self) -> Result<DocumentSet> {
        let is_reversed = self.direction == Direction::Descending;
        let read = self.read_all()?;
        let mut set = DocumentSet::new();
        for at in 0..read.len() {
            let (chunk, stored) = read[if is_reversed { read.len() - 1 - at } else { at }];
            set.push(chunk, Container::decode(stored)?);
        }
        Ok(set)
    }

    /// Whole chunks of the value taken until there are `count` documents in them, those before `from`'s left out; and whether there are more.
    /// Each chunk is given once.
    fn some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        if self.direction == Direction::Descending {
            return Ok((self.set()?, false));
        }
        let mut set = DocumentSet::new();
        loop {
            if self.given_count == self.read.len() && !self.read_row()? {
                return Ok((set, false));
            }
            if set.len() >= count {
                return Ok((set, true));
            }
            let (chunk, stored) = self.read[self.given_count];
            self.given_count += 1;
            if chunk >= from.chunk() {
                set.push(chunk, Container::decode(stored)?);
            }
        }
    }
}

/// Walks the distinct values of a path in order.
pub(crate) struct TermWalk<'a> {
    terms: Terms<'a>,
    /// Oldest first.
    memtables: SmallVec<[std::iter::Peekable<MemtableTermWalk>; 4]>,
    direction: Direction,
    /// The lower bound, when it is itself excluded.
    excluded: Option<Vec<u8>>,
    key: Vec<u8>,
}

/// A value and its documents, which are read when they are asked for, once.
pub(crate) struct Term<'w, 'a> {
    pub(crate) key: &'w [u8],
    documents: Documents<'w, 'a>,
}

enum Documents<'w, 'a> {
    /// As the tree has them: at least one.
    Stored(&'w mut TreeTerms<'a>),
    /// As a column has them: at least one.
    Listed(&'w [u32]),
    /// With what memtables change.
    Made(DocumentSet),
}

impl Term<'_, '_> {
    /// How many documents have it.
    pub(crate) fn len(&mut self) -> Result<u64> {
        match &mut self.documents {
            Documents::Stored(terms) => {
                terms.read_all()?.iter().map(|(_, stored)| Container::stored_len(stored).map(u64::from)).sum()
            }
            Documents::Listed(numbers) => Ok(numbers.len() as u64),
            Documents::Made(set) => Ok(set.len()),
        }
    }

    /// The documents that have it; to be asked once.
    pub(crate) fn take(&mut self) -> Result<DocumentSet> {
        self.documents.take()
    }

    /// Some of them by number: at least `count` from the chunk of `from` on, unless there are no more; and whether there may be more, which
    /// are given when it is asked again.
    pub(crate) fn take_some(&mut self, from: DocumentNumber, count: u64) -> Result<(DocumentSet, bool)> {
        match &mut self.documents {
            Documents::Stored(terms) => terms.some(from, count),
            others => Ok((others.take()?, false)),
        }
    }

    /// Adds the documents that have it.
    pub(crate) fn add_to(&mut self, union: &mut Union) -> Result<()> {
        match &mut self.documents {
            Documents::Stored(terms) => {
                terms.read_all()?.iter().try_for_each(|(chunk, stored)| union.add_stored(*chunk, stored))?;
            }
            Documents::Listed(numbers) => union.add_listed(numbers),
            Documents::Made(set) => union.add_set(set),
        }
        Ok(())
    }
}

impl Documents<'_, '_> {
    fn take(&mut self) -> Result<DocumentSet> {
        match self {
            Documents::Stored(terms) => terms.set(),
            Documents::Listed(numbers) => {
                Ok(DocumentSet::from_sorted(numbers.iter().map(|number| DocumentNumber(u64::from(*number)))))
            }
            Documents::Made(set) => Ok(std::mem::take(set)),
        }
    }
}

impl<'a> TermWalk<'a> {
    pub(crate) fn begin(
        terms: Terms<'a>,
        memtables: SmallVec<[std::iter::Peekable<MemtableTermWalk>; 4]>,
        direction: Direction,
        excluded: Option<Vec<u8>>,
    ) -> Self {
        TermWalk { terms, memtables, direction, excluded, key: Vec::new() }
    }

    /// Whether it reads the tree, not a column.
    pub(crate) fn reads_tree(&self) -> bool {
        matches!(self.terms, Terms::Tree(_))
    }

    /// The next value that some document has.
    pub(crate) fn next_term(&mut self) -> Result<Option<Term<'_, 'a>>> {
        loop {
            if let Terms::Tree(terms) = &mut self.terms {
                // What nobody asked for of the value before.
                terms.read_all()?;
            }
            if !self.find_key() {
                return Ok(None);
            }
            match &mut self.terms {
                Terms::Tree(terms) => terms.take(&self.key),
                Terms::Column(terms) => terms.take(&self.key),
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
            let mut made = self.terms.documents().take()?;
            lay_over(&mut made, &overlay);
            if !made.is_empty() {
                return Ok(Some(Term { key: &self.key, documents: Documents::Made(made) }));
            }
        }
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
