//! The rows of a federated query.
//!
//! Sorted rows are merged in two phases: the members' row keys, read lazily in their order, then the documents of the
//! rows that are returned, in batches.

use std::collections::VecDeque;

use stemmadb::merging::RowKey;
use stemmadb::{Document, Error, Query, Result, Sequence};
use stemmadb_client::AnyRows;

use crate::federation::{Federation, Terms, prepared};
use crate::find::FederatedFind;
use crate::stream::{KeyStream, TakenRow};
use crate::token::{Position, Token, query_hash};
use crate::unsorted::UnsortedRows;
use crate::view::{self, MemberView, View};

/// The most documents of the first batch that are read together, and of later ones.
const BATCH_FIRST: u64 = 16;
const BATCH_MAX: u64 = 256;
/// The most row keys of a member that are read before the first row is chosen.
const KEYS_FIRST_MAX: u64 = 16;

/// The rows of a federated query, in order. An iterator over documents; after an error it returns no further rows.
///
/// If all members keep their past, all pages show the state that the first one showed, also after a restart; of members
/// that do not, each page shows the newest state. While rows of a server are read without its past, a document that
/// changes between the two phases is returned as it is, or left out if it no longer matches.
pub struct FederatedRows {
    rows: Rows,
    terms: Terms,
    /// What the rows of all members together must not exceed.
    rows_max: Option<u64>,
    row_count: u64,
    is_failed: bool,
}

enum Rows {
    /// Of the only member, which is asked unchanged.
    Single(Federation, Option<AnyRows<Document>>),
    Merged(Box<MergedRows>),
    Unsorted(Box<UnsortedRows>),
}

/// Rows in the order of a sort.
struct MergedRows {
    federation: Federation,
    view: View,
    streams: Vec<KeyStream>,
    hash: u32,
    skip_left: u64,
    limit_left: u64,
    batch: u64,
    ready: VecDeque<(RowKey, Document)>,
    /// The last row that was returned.
    last: Option<RowKey>,
    is_limited: bool,
    is_finished: bool,
}

impl FederatedRows {
    pub(crate) fn start(find: FederatedFind) -> Result<Self> {
        let terms = find.terms();
        let FederatedFind { federation, mut query, .. } = find;
        let is_unsorted = |query: &Query| query.sort_order().to_value().as_array().is_some_and(<[_]>::is_empty);
        if federation.is_virtual() && is_unsorted(&query) {
            query = query.sort("_id");
        }
        query.clone().without_continuation().check()?;
        let rows_max = query.execution_limits().1;
        let rows = if let [member] = &*federation.members
            && !federation.is_virtual()
        {
            let seen = match query.continuation() {
                Some(_) => None,
                None => Some(view::open(&member.database, None)),
            };
            let asked = match seen {
                // A page may be one of the past, which the member finds by its token.
                None => member.database.find(terms.bounded(query)).run(),
                Some(seen) => seen.and_then(|seen| {
                    let find = view::find(&member.database, &seen, terms.bounded(query));
                    find.ok_or_else(|| Error::invalid("a member has no state"))?.run()
                }),
            };
            match asked {
                Ok(rows) => Rows::Single(federation, Some(rows)),
                Err(error) => {
                    terms.without(member, error)?;
                    Rows::Single(federation, None)
                }
            }
        } else if is_unsorted(&query) {
            Rows::Unsorted(Box::new(UnsortedRows::start(federation, query, &terms)?))
        } else {
            Rows::Merged(Box::new(MergedRows::start(federation, query, &terms)?))
        };
        Ok(FederatedRows { rows, terms, rows_max, row_count: 0, is_failed: false })
    }

    /// Returns the token that continues after the last returned row: `None` before the first row and at the end of the
    /// result. It names the sequence of each member that keeps its past, and survives restarts; pass it to
    /// [`FederatedFind::after`] of the same query of a federation of the same members.
    ///
    /// # Errors
    /// `Invalid` if the selector cannot be serialized.
    pub fn token(&self) -> Result<Option<String>> {
        if self.is_failed {
            return Ok(None);
        }
        match &self.rows {
            Rows::Single(_, rows) => rows.as_ref().map_or(Ok(None), AnyRows::token),
            Rows::Merged(rows) => Ok(rows.token()),
            Rows::Unsorted(rows) => rows.token(),
        }
    }

    fn next_row(&mut self) -> Result<Option<Document>> {
        match &mut self.rows {
            Rows::Single(_, None) => Ok(None),
            Rows::Single(federation, Some(rows)) => {
                rows.next().transpose().map_err(|error| federation.members[0].error(error))
            }
            Rows::Merged(rows) => rows.next_row(&self.terms),
            Rows::Unsorted(rows) => rows.next_row(&self.terms),
        }
    }
}

impl Iterator for FederatedRows {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_failed {
            return None;
        }
        let row = self.next_row().and_then(|row| {
            self.row_count += u64::from(row.is_some());
            match self.rows_max {
                Some(most) if self.row_count > most => {
                    Err(Error::stopped(format!("the query has more than its {most} rows")))
                }
                _ => Ok(row),
            }
        });
        self.is_failed = row.is_err();
        row.transpose()
    }
}

impl std::fmt::Debug for FederatedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FederatedRows").finish_non_exhaustive()
    }
}

impl MergedRows {
    fn start(federation: Federation, query: Query, terms: &Terms) -> Result<Self> {
        let hash = query_hash(federation.token_members(), &query)?;
        let (limit, mut skip) = query.row_range();
        let mut member_query = Query::new(query.selector().clone()).order(query.sort_order().clone());
        if let Some(cancellation) = query.cancellation() {
            member_query = member_query.cancelled_by(cancellation);
        }
        if let Some(bytes) = query.execution_limits().2 {
            member_query = member_query.memory_max(bytes);
        }
        let mut sequences: Option<Vec<Option<Sequence>>> = None;
        let mut last = None;
        if let Some(token) = query.continuation() {
            let token = Token::decode(token, hash, federation.token_members().len())?;
            let Position::After(key) = token.position else { return Err(crate::token::damaged()) };
            (last, skip, sequences) = (Some(key), 0, Some(token.sequences));
        }
        let mut member_query = prepared(terms.bounded(member_query), &federation.members)?;
        if let Some(key) = &last {
            member_query = member_query.after_key(key.clone());
        }
        let (federation, view) = federation.open(sequences.as_deref(), terms)?;
        let mut rows = MergedRows {
            federation,
            view,
            streams: Vec::new(),
            hash,
            skip_left: skip,
            limit_left: limit.unwrap_or(u64::MAX),
            batch: BATCH_FIRST,
            ready: VecDeque::new(),
            last: None,
            is_limited: limit.is_some(),
            is_finished: false,
        };
        rows.open(&member_query, limit.map(|limit| limit.saturating_add(skip)), terms)?;
        Ok(rows)
    }

    /// Starts the streams: servers first, so that they work while embedded members are read.
    fn open(&mut self, query: &Query, rows_needed: Option<u64>, terms: &Terms) -> Result<()> {
        let members = self.federation.members.clone();
        let count = members.len() as u64;
        let first_count = rows_needed.map_or(KEYS_FIRST_MAX, |rows| (rows / count + 1).min(KEYS_FIRST_MAX)) as usize;
        self.streams = members.iter().map(|_| KeyStream::Missing).collect();
        for is_remote in [true, false] {
            for (at, member) in members.iter().enumerate() {
                let seen = &self.view.members[at];
                if matches!(seen, MemberView::Remote(_)) != is_remote {
                    continue;
                }
                // Of a member with copies that do not count, more rows may be needed.
                let rows_needed = rows_needed
                    .map(|rows| rows.saturating_add(self.view.losers_of(at).map_or(0, |ids| ids.len() as u64)));
                let without_stubs = self.view.without_stubs(at).map(|selector| query.clone().within(selector));
                let query = without_stubs.as_ref().unwrap_or(query);
                let opened = terms.check().and_then(|()| {
                    KeyStream::start(&member.database, seen, query, rows_needed, first_count, terms.deadline)
                });
                match opened {
                    Ok(stream) => self.streams[at] = stream,
                    Err(error) => terms.without(member, error)?,
                }
            }
        }
        Ok(())
    }

    fn next_row(&mut self, terms: &Terms) -> Result<Option<Document>> {
        while self.ready.is_empty() && !self.is_finished {
            self.fill(terms)?;
        }
        let Some((key, document)) = self.ready.pop_front() else { return Ok(None) };
        self.last = Some(key);
        Ok(Some(document))
    }

    /// Chooses the next rows and reads their documents.
    fn fill(&mut self, terms: &Terms) -> Result<()> {
        terms.check()?;
        let want = self.batch.min(self.limit_left);
        self.batch = (self.batch * 4).min(BATCH_MAX);
        let mut chosen: Vec<(usize, TakenRow)> = Vec::with_capacity(want as usize);
        while (chosen.len() as u64) < want {
            let Some(at) = self.first(terms)? else {
                self.is_finished = true;
                break;
            };
            let row = match self.streams[at].take() {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                Err(error) => {
                    self.lose(at, error, terms)?;
                    continue;
                }
            };
            if self.view.losers_of(at).is_some_and(|ids| ids.contains(row.key.id())) {
                continue;
            }
            match self.skip_left {
                0 => chosen.push((at, row)),
                _ => self.skip_left -= 1,
            }
        }
        self.limit_left -= chosen.len() as u64;
        self.is_finished |= self.limit_left == 0;
        self.load(chosen, terms)
    }

    /// The stream with the first row.
    fn first(&mut self, terms: &Terms) -> Result<Option<usize>> {
        let mut failed = Vec::new();
        let mut first: Option<(usize, &RowKey)> = None;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            match stream.head() {
                Ok(Some(key)) => {
                    if first.is_none_or(|(_, first)| key < first) {
                        first = Some((at, key));
                    }
                }
                Ok(None) => {}
                Err(error) => failed.push((at, error)),
            }
        }
        let first = first.map(|(at, _)| at);
        if failed.is_empty() {
            return Ok(first);
        }
        for (at, error) in failed {
            self.lose(at, error, terms)?;
        }
        Ok(first)
    }

    fn lose(&mut self, at: usize, error: Error, terms: &Terms) -> Result<()> {
        terms.without(&self.federation.members[at], terms.timeout(error))?;
        self.streams[at] = KeyStream::Missing;
        Ok(())
    }

    /// Reads the documents of rows, each member's together.
    fn load(&mut self, chosen: Vec<(usize, TakenRow)>, terms: &Terms) -> Result<()> {
        let mut documents: Vec<Option<Document>> = chosen.iter().map(|_| None).collect();
        let of_member = |at: usize| chosen.iter().enumerate().filter(move |(_, (of, _))| *of == at);
        let mut pending = Vec::new();
        let mut failed = Vec::new();
        for (at, stream) in self.streams.iter().enumerate() {
            let keys: Vec<&RowKey> = of_member(at).map(|(_, (_, row))| &row.key).collect();
            if keys.is_empty() {
                continue;
            }
            match stream.send_load(&keys) {
                Ok(sent) => pending.extend(sent.map(|sent| (at, sent))),
                Err(error) => failed.push((at, error)),
            }
        }
        for (at, stream) in self.streams.iter().enumerate() {
            let (places, rows): (Vec<usize>, Vec<_>) =
                of_member(at).filter_map(|(place, (_, row))| Some((place, row.local.clone()?))).unzip();
            if rows.is_empty() {
                continue;
            }
            match stream.load(&rows) {
                Ok(loaded) => places.into_iter().zip(loaded).for_each(|(place, one)| documents[place] = Some(one)),
                Err(error) => failed.push((at, error)),
            }
        }
        for (at, sent) in pending {
            match sent.wait(terms.deadline) {
                Ok(loaded) => {
                    for document in loaded {
                        let place = of_member(at).find(|(_, (_, row))| row.key.id() == document.id());
                        if let Some((place, _)) = place {
                            documents[place] = Some(document);
                        }
                    }
                }
                Err(error) => failed.push((at, error)),
            }
        }
        for (at, error) in failed {
            self.lose(at, error, terms)?;
        }
        let rows = chosen.into_iter().zip(documents);
        self.ready.extend(rows.filter_map(|((_, row), document)| Some((row.key, document?))));
        Ok(())
    }

    fn token(&self) -> Option<String> {
        let is_at_end = self.is_finished && self.ready.is_empty() && !(self.is_limited && self.limit_left == 0);
        let last = self.last.clone().filter(|_| !is_at_end)?;
        let sequences = match self.federation.is_virtual() {
            true => Vec::new(),
            false => self.streams.iter().map(KeyStream::page_sequence).collect(),
        };
        Some(Token { sequences, position: Position::After(last) }.encode(self.hash))
    }
}
