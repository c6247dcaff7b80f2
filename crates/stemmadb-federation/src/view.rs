//! What one read sees of the members.

use std::collections::HashSet;
use std::sync::Arc;

use stemmadb::{Database, DocumentId, Query, Result, Selector, Sequence, Snapshot, field, not};
use stemmadb_client::{AnyDatabase, AnyFind, RemoteDatabase, RemoteFind};

/// The copies of common documents that do not count: for each member, the ids of documents of which another member has
/// a greater revision, or the same one and comes first.
pub(crate) type Losers = Arc<Vec<HashSet<DocumentId>>>;

/// What one read sees.
pub(crate) struct View {
    pub(crate) members: Vec<MemberView>,
    /// `None` if no document can be in two members.
    pub(crate) losers: Option<Losers>,
    /// Whether the first member, the hot tier of a tiered database, has stubs of documents of other tiers.
    pub(crate) has_stubs: bool,
}

/// What one read sees of a member.
#[derive(Clone)]
pub(crate) enum MemberView {
    Local(Snapshot),
    /// The newest state, or an earlier one.
    Remote(Option<Sequence>),
    /// Nothing: it failed.
    Missing,
}

/// The state of a database at a sequence, or the newest one.
pub(crate) fn open(database: &AnyDatabase, sequence: Option<Sequence>) -> Result<MemberView> {
    Ok(match database {
        AnyDatabase::Embedded(database) => MemberView::Local(snapshot(database, sequence)?),
        AnyDatabase::Remote(_) => MemberView::Remote(sequence),
    })
}

fn snapshot(database: &Database, sequence: Option<Sequence>) -> Result<Snapshot> {
    let newest = database.snapshot()?;
    match sequence {
        Some(sequence) if sequence != newest.sequence() => database.as_of(sequence),
        _ => Ok(newest),
    }
}

impl View {
    /// Whether a member is read on its server as it is then.
    pub(crate) fn has_newest_of_servers(&self) -> bool {
        self.members.iter().any(|member| matches!(member, MemberView::Remote(None)))
    }

    /// The ids of a member whose copies do not count.
    pub(crate) fn losers_of(&self, member: usize) -> Option<&HashSet<DocumentId>> {
        self.losers.as_ref().map(|losers| &losers[member]).filter(|ids| !ids.is_empty())
    }

    /// A selector of the documents of a member that count; `None` for all of them.
    pub(crate) fn counted(&self, member: usize) -> Option<Selector> {
        let losers = self.losers_of(member);
        let counted = losers.map(|losers| not(field("_id").one_of(losers.iter().map(DocumentId::as_str))));
        match (counted, self.without_stubs(member)) {
            (Some(counted), Some(without_stubs)) => Some(counted.and(without_stubs)),
            (counted, without_stubs) => counted.or(without_stubs),
        }
    }

    /// A query on what is seen of a member on a server.
    pub(crate) fn remote_find(&self, member: usize, database: &RemoteDatabase, query: Query) -> RemoteFind {
        match &self.members[member] {
            MemberView::Remote(Some(at)) => database.as_of(*at).find(query),
            _ => database.find(query),
        }
    }

    /// A selector of the documents of a member that are no stubs; `None` if it has none.
    pub(crate) fn without_stubs(&self, member: usize) -> Option<Selector> {
        (self.has_stubs && member == 0).then(crate::tiers::without_stubs)
    }

    /// The query for the documents of a member that count.
    pub(crate) fn narrowed(&self, member: usize, query: &Query) -> Query {
        match self.counted(member) {
            Some(counted) => query.clone().within(counted),
            None => query.clone(),
        }
    }
}

/// A query on what is seen of a member; `None` if that is nothing.
pub(crate) fn find(database: &AnyDatabase, seen: &MemberView, query: Query) -> Option<AnyFind> {
    Some(match (database, seen) {
        (_, MemberView::Local(snapshot)) => AnyFind::Embedded(snapshot.find(query)),
        (AnyDatabase::Remote(database), MemberView::Remote(Some(at))) => {
            AnyFind::Remote(database.as_of(*at).find(query))
        }
        (AnyDatabase::Remote(database), MemberView::Remote(None)) => AnyFind::Remote(database.find(query)),
        _ => return None,
    })
}
