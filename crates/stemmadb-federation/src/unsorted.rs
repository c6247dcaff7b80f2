//! Rows without a sort: those of one member after the other.

use stemmadb::{Document, Query, Result, Sequence};
use stemmadb_client::AnyRows;

use crate::federation::{Federation, Terms};
use crate::token::{Position, Token, damaged, query_hash};
use crate::view::{self, MemberView, View};

/// The most rows that a server is asked for at once, if their number is not limited.
const REMOTE_PAGE: u64 = 1_000;

/// Rows in the order of the members.
pub(crate) struct UnsortedRows {
    federation: Federation,
    view: View,
    /// Without continuation, limit and skip.
    query: Query,
    hash: u32,
    /// The member that is read, and where its current page began.
    member: usize,
    page_token: Option<String>,
    page: Option<Page>,
    /// Rows that are dropped: those that were asked to be skipped, and those that earlier pages returned.
    skip_left: u64,
    limit_left: Option<u64>,
    has_returned: bool,
}

struct Page {
    rows: AnyRows<Document>,
    /// The rows of the page that were read and count.
    counted: u64,
    is_exhausted: bool,
}

impl UnsortedRows {
    pub(crate) fn start(federation: Federation, query: Query, terms: &Terms) -> Result<Self> {
        let hash = query_hash(&federation.members, &query)?;
        let (limit, skip) = query.row_range();
        let (mut member, mut page_token, mut skip_left) = (0, None, skip);
        let mut sequences: Option<Vec<Option<Sequence>>> = None;
        if let Some(token) = query.continuation() {
            let token = Token::decode(token, hash, federation.members.len())?;
            sequences = Some(token.sequences);
            let Position::In { member: at, token, skip } = token.position else { return Err(damaged()) };
            (member, page_token, skip_left) = (at, token, skip);
        }
        let (federation, view) = federation.open(sequences.as_deref(), terms)?;
        let mut member_query = Query::new(query.selector().clone());
        if let Some(cancellation) = query.cancellation() {
            member_query = member_query.cancelled_by(cancellation);
        }
        Ok(UnsortedRows {
            federation,
            view,
            query: member_query,
            hash,
            member,
            page_token,
            page: None,
            skip_left,
            limit_left: limit,
            has_returned: false,
        })
    }

    pub(crate) fn next_row(&mut self, terms: &Terms) -> Result<Option<Document>> {
        while self.limit_left != Some(0) && self.member < self.federation.members.len() {
            match self.member_row(terms) {
                Ok(Some(document)) => {
                    let losers = self.view.losers_of(self.member);
                    if losers.is_some_and(|ids| ids.contains(document.id())) {
                        continue;
                    }
                    if let Some(page) = &mut self.page {
                        page.counted += 1;
                    }
                    if self.skip_left > 0 {
                        self.skip_left -= 1;
                        continue;
                    }
                    self.limit_left = self.limit_left.map(|left| left - 1);
                    self.has_returned = true;
                    return Ok(Some(document));
                }
                Ok(None) => self.next_member(),
                Err(error) => {
                    terms.without(&self.federation.members[self.member], terms.timeout(error))?;
                    self.next_member();
                }
            }
        }
        Ok(None)
    }

    fn next_member(&mut self) {
        (self.page, self.page_token) = (None, None);
        self.member += 1;
    }

    /// The next row of the current member.
    fn member_row(&mut self, terms: &Terms) -> Result<Option<Document>> {
        loop {
            terms.check()?;
            if self.page.is_none() {
                self.page = self.open_page(terms)?;
            }
            let Some(page) = &mut self.page else { return Ok(None) };
            if let Some(row) = page.rows.next().transpose()? {
                return Ok(Some(row));
            }
            page.is_exhausted = true;
            // A page ends at its limit, or with the member.
            match page.rows.token()? {
                Some(token) => (self.page_token, self.page) = (Some(token), None),
                None => return Ok(None),
            }
        }
    }

    fn open_page(&self, terms: &Terms) -> Result<Option<Page>> {
        let (database, seen) = (&self.federation.members[self.member].database, &self.view.members[self.member]);
        let page_len = match (self.limit_left, seen) {
            (Some(left), _) => Some(left.saturating_add(self.skip_left)),
            (None, MemberView::Remote(_)) => Some(REMOTE_PAGE),
            (None, _) => None,
        };
        let mut query = terms.bounded(self.query.clone());
        if let Some(count) = page_len {
            query = query.limit(count);
        }
        if let Some(token) = &self.page_token {
            query = query.after(token.as_str());
        }
        let Some(find) = view::find(database, seen, query) else { return Ok(None) };
        Ok(Some(Page { rows: find.run()?, counted: 0, is_exhausted: false }))
    }

    pub(crate) fn token(&self) -> Result<Option<String>> {
        if !self.has_returned || self.member >= self.federation.members.len() {
            return Ok(None);
        }
        let Some(page) = &self.page else { return Ok(None) };
        let position = match page.rows.token()? {
            Some(token) => Position::In { member: self.member, token: Some(token), skip: 0 },
            // The last row of the member.
            None if page.is_exhausted => Position::In { member: self.member + 1, token: None, skip: 0 },
            None => Position::In { member: self.member, token: self.page_token.clone(), skip: page.counted },
        };
        if matches!(position, Position::In { member, .. } if member >= self.federation.members.len()) {
            return Ok(None);
        }
        let sequence = |seen: &MemberView| match seen {
            MemberView::Local(snapshot) => snapshot.page_sequence(),
            MemberView::Remote(at) => *at,
            MemberView::Missing => None,
        };
        let sequences = self.view.members.iter().map(sequence).collect();
        Ok(Some(Token { sequences, position }.encode(self.hash)))
    }
}
