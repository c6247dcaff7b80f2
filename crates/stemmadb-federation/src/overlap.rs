//! Common documents: which of several copies of a document counts.
//!
//! The winner is chosen as CouchDB chooses among the leaves of a document: a document that is not deleted before one
//! that is, then the higher generation, then the greater hash. Equal revisions are the same document, of which the copy
//! of the first member counts.
//!
//! The revisions of all documents are read once, from the changes feeds, and kept; later reads add the changes since.
//! So a read costs what the members' queries cost, and the changes that it is the first to see. Memory: about 100 bytes
//! a document, and its id.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stemmadb::{DocumentId, Error, Query, Result, Revision, Selector, Sequence, Value};
use stemmadb_client::{AnyDatabase, AnyFind};

use crate::federation::Terms;
use crate::member::OpenMember;
use crate::view::{self, Losers, MemberView};

/// How many states of the past are kept, for pages.
const PAST_MAX: usize = 4;

/// What is known about common documents.
#[derive(Debug)]
pub(crate) struct Overlap {
    newest: Copies,
    /// The losers of earlier states, by the members' sequences. Pages of a query need them.
    past: Vec<(Vec<Option<Sequence>>, Losers)>,
}

/// The live revisions of all documents.
#[derive(Debug)]
struct Copies {
    /// How much of each member's changes is contained.
    sequences: Vec<Sequence>,
    revisions: HashMap<DocumentId, Held>,
    losers: Losers,
}

/// Which members have a document that is not deleted.
#[derive(Debug, Clone)]
enum Held {
    Once(u32, Revision),
    Several(Vec<(u32, Revision)>),
}

impl Overlap {
    pub(crate) fn new(member_count: usize) -> Self {
        Overlap { newest: Copies::new(member_count), past: Vec::new() }
    }

    /// The copies that do not count in these states of the members. Members that fail become missing.
    pub(crate) fn losers(&mut self, members: &[OpenMember], views: &mut [MemberView], terms: &Terms) -> Result<Losers> {
        let sequences: Vec<Option<Sequence>> = views.iter().map(sequence_of).collect();
        let is_past = |(at, view): (usize, &MemberView)| match view {
            MemberView::Local(snapshot) => snapshot.sequence() < self.newest.sequences[at],
            MemberView::Remote(at) => at.is_some(),
            MemberView::Missing => false,
        };
        let losers = if views.iter().enumerate().any(is_past) {
            match self.past.iter().find(|(at, _)| *at == sequences) {
                Some((_, losers)) => losers.clone(),
                None => {
                    let mut copies = Copies::new(members.len());
                    copies.read_states(members, views, terms)?;
                    self.remember(sequences, copies.losers.clone());
                    copies.losers
                }
            }
        } else {
            self.newest.follow(members, views, terms)?;
            let losers = self.newest.losers.clone();
            if sequences.iter().all(Option::is_some) && self.past.last().is_none_or(|(at, _)| *at != sequences) {
                self.remember(sequences, losers.clone());
            }
            losers
        };
        Ok(losers)
    }

    fn remember(&mut self, sequences: Vec<Option<Sequence>>, losers: Losers) {
        if self.past.len() == PAST_MAX {
            self.past.remove(0);
        }
        self.past.push((sequences, losers));
    }
}

fn sequence_of(view: &MemberView) -> Option<Sequence> {
    match view {
        MemberView::Local(snapshot) => Some(snapshot.sequence()),
        MemberView::Remote(at) => *at,
        MemberView::Missing => None,
    }
}

impl Copies {
    fn new(member_count: usize) -> Self {
        Copies {
            sequences: vec![Sequence::ZERO; member_count],
            revisions: HashMap::new(),
            losers: Arc::new(vec![HashSet::new(); member_count]),
        }
    }

    /// Adds the changes of the members up to these states.
    fn follow(&mut self, members: &[OpenMember], views: &mut [MemberView], terms: &Terms) -> Result<()> {
        for (at, (member, view)) in members.iter().zip(views.iter_mut()).enumerate() {
            if let Err(error) = self.follow_member(at, &member.database, view) {
                terms.without(member, error)?;
                *view = MemberView::Missing;
            }
        }
        for (at, view) in views.iter().enumerate() {
            // A copy of a member that does not answer does not take the place of others.
            if matches!(view, MemberView::Missing) && self.sequences[at] > Sequence::ZERO {
                self.forget(at);
            }
        }
        Ok(())
    }

    fn follow_member(&mut self, at: usize, database: &AnyDatabase, view: &MemberView) -> Result<()> {
        let since = self.sequences[at];
        match (view, database) {
            (MemberView::Local(snapshot), _) => {
                if snapshot.sequence() == since {
                    return Ok(());
                }
                for change in snapshot.changes(since).run() {
                    let change = change?;
                    self.set(at, change.id, (!change.deleted).then_some(change.revision));
                }
                self.sequences[at] = snapshot.sequence();
            }
            (MemberView::Remote(_), AnyDatabase::Remote(database)) => {
                for change in database.changes(since).run()? {
                    let change = change?;
                    self.sequences[at] = change.sequence;
                    self.set(at, change.id, (!change.deleted).then_some(change.revision));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the revisions of all documents in states of the past.
    fn read_states(&mut self, members: &[OpenMember], views: &mut [MemberView], terms: &Terms) -> Result<()> {
        for (at, (member, view)) in members.iter().zip(views.iter_mut()).enumerate() {
            if let Err(error) = self.read_state(at, &member.database, view) {
                terms.without(member, error)?;
                *view = MemberView::Missing;
            }
        }
        Ok(())
    }

    fn read_state(&mut self, at: usize, database: &AnyDatabase, view: &MemberView) -> Result<()> {
        if let MemberView::Local(snapshot) = view {
            for listed in snapshot.list().run() {
                let listed = listed?;
                self.set(at, listed.id, Some(listed.revision));
            }
            return Ok(());
        }
        let query = Query::new(Selector::everything()).fields(["_id", "_rev"]);
        let Some(AnyFind::Remote(find)) = view::find(database, view, query) else { return Ok(()) };
        for row in find.values()? {
            let row = row?;
            let text = |name| row.get(name).and_then(Value::as_str);
            let (Some(id), Some(revision)) = (text("_id"), text("_rev")) else {
                return Err(Error::invalid("malformed frame: a row has no id and revision"));
            };
            self.set(at, DocumentId::new(id)?, Some(revision.parse()?));
        }
        Ok(())
    }

    /// Sets the live revision that a member has of a document.
    fn set(&mut self, member: usize, id: DocumentId, revision: Option<Revision>) {
        let number = member as u32;
        let held = self.revisions.remove(&id);
        let was_single = matches!(held, None | Some(Held::Once(..)));
        let mut copies = match held {
            None => Vec::new(),
            // The common case: a document that no other member has.
            Some(Held::Once(of, _)) if of == number => {
                if let Some(revision) = revision {
                    self.revisions.insert(id, Held::Once(number, revision));
                }
                return;
            }
            Some(Held::Once(of, known)) => vec![(of, known)],
            Some(Held::Several(copies)) => copies,
        };
        copies.retain(|(of, _)| *of != number);
        copies.extend(revision.map(|revision| (number, revision)));
        if copies.len() > 1 || !was_single {
            self.choose(&id, &copies);
        }
        match copies.as_slice() {
            [] => {}
            [(of, revision)] => drop(self.revisions.insert(id, Held::Once(*of, *revision))),
            _ => drop(self.revisions.insert(id, Held::Several(copies))),
        }
    }

    /// Chooses the copy that counts.
    fn choose(&mut self, id: &DocumentId, copies: &[(u32, Revision)]) {
        let losers = Arc::make_mut(&mut self.losers);
        let winner = copies.iter().max_by_key(|(of, revision)| (*revision, std::cmp::Reverse(*of)));
        for (member, ids) in losers.iter_mut().enumerate() {
            let loses = copies.iter().any(|copy| copy.0 as usize == member && Some(copy) != winner);
            match loses {
                true => drop(ids.insert(id.clone())),
                false => drop(ids.remove(id)),
            }
        }
    }

    /// Removes the copies of a member; they are read again once it answers.
    fn forget(&mut self, member: usize) {
        let has = |held: &Held| match held {
            Held::Once(of, _) => *of as usize == member,
            Held::Several(copies) => copies.iter().any(|(of, _)| *of as usize == member),
        };
        let ids: Vec<DocumentId> =
            self.revisions.iter().filter(|(_, held)| has(held)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.set(member, id, None);
        }
        self.sequences[member] = Sequence::ZERO;
    }
}
