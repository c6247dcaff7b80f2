//! What reads of a tiered database see: which copies do not count.
//!
//! The hot tier decides where a document is. If its newest revision there is a marker, the document is in a lower tier;
//! otherwise the hot tier has it, or has deleted it, and a copy in a lower tier does not count. Such copies exist while
//! documents are copied, and after they returned. Their ids are known from the record of the running move, and from the
//! changes of the hot tier: a document whose history contains a marker has returned.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use stemmadb::{Branch, DocumentId, Result, Revision, Sequence, Snapshot};

use super::marker::is_marker;
use crate::federation::Terms;
use crate::member::OpenMember;
use crate::view::{self, Losers, MemberView, View};

/// The hot tier's place among the members.
pub(super) const HOT: usize = 0;

#[derive(Debug)]
pub(crate) struct TierGate {
    pub(super) members: Arc<[OpenMember]>,
    pub(super) state: Mutex<TierState>,
    /// Held for reading by writes, and for writing while documents are marked.
    pub(super) moves: RwLock<()>,
}

#[derive(Debug)]
pub(super) struct TierState {
    /// For each tier, the documents that it has although they are elsewhere.
    pub(super) hidden: Losers,
    /// How much of the hot tier's changes is contained.
    pub(super) followed: Sequence,
    /// Whether the hot tier has stubs.
    pub(super) has_stubs: bool,
}

impl TierGate {
    pub(super) fn new(members: Arc<[OpenMember]>, followed: Sequence, has_stubs: bool) -> Self {
        let hidden = Arc::new(vec![HashSet::new(); members.len()]);
        let state = Mutex::new(TierState { hidden, followed, has_stubs });
        TierGate { members, state, moves: RwLock::new(()) }
    }

    /// What one read sees. The hot tier is read first: a document that returns afterwards is still in its tier.
    pub(crate) fn view(&self, terms: &Terms) -> Result<View> {
        let mut state = self.state.lock();
        let mut views = Vec::with_capacity(self.members.len());
        for (at, member) in self.members.iter().enumerate() {
            let opened = view::open(&member.database, None);
            if at == HOT
                && let Ok(MemberView::Local(snapshot)) = &opened
            {
                state.follow(snapshot)?;
            }
            views.push(match opened {
                Ok(view) => view,
                Err(error) => terms.without(member, error).map(|()| MemberView::Missing)?,
            });
        }
        Ok(View { members: views, losers: Some(state.hidden.clone()), has_stubs: state.has_stubs })
    }
}

impl TierState {
    /// Adds the changes of the hot tier up to a snapshot: copies of documents that returned do not count.
    pub(super) fn follow(&mut self, hot: &Snapshot) -> Result<()> {
        if hot.sequence() <= self.followed {
            return Ok(());
        }
        for change in hot.changes(self.followed).run() {
            let change = change?;
            if !is_marker(&change.revision) && has_returned(hot, &change.id, &change.revision, &change.leaves)? {
                (HOT + 1..self.hidden.len()).for_each(|tier| self.hide(tier, [change.id.clone()]));
            }
        }
        self.followed = hot.sequence();
        Ok(())
    }

    /// Adds documents of a tier that do not count.
    pub(super) fn hide(&mut self, tier: usize, ids: impl IntoIterator<Item = DocumentId>) {
        Arc::make_mut(&mut self.hidden)[tier].extend(ids);
    }

    /// Removes documents that count, or that the tier does not have any more.
    pub(super) fn unhide<'a>(&mut self, tier: usize, ids: impl IntoIterator<Item = &'a DocumentId>) {
        let hidden = &mut Arc::make_mut(&mut self.hidden)[tier];
        for id in ids {
            hidden.remove(id);
        }
    }
}

/// Whether a document with this newest revision was in a lower tier before.
fn has_returned(hot: &Snapshot, id: &DocumentId, newest: &Revision, leaves: &[Revision]) -> Result<bool> {
    if leaves.iter().any(is_marker) {
        return Ok(true);
    }
    // A marker succeeds the first revision at the earliest.
    if newest.generation() < 3 {
        return Ok(false);
    }
    Ok(hot.revisions(id.as_str())?.iter().any(|branch| branch.revisions.iter().any(is_marker)))
}

/// The newest revision of a document, and whether it is deleted.
pub(super) fn winner(branches: &[Branch]) -> Option<(Revision, bool)> {
    let branch = branches.first()?;
    Some((*branch.revisions.first()?, branch.deleted))
}

/// Whether the hot tier says that a document is in a lower tier.
pub(super) fn is_moved(branches: &[Branch]) -> bool {
    winner(branches).is_some_and(|(revision, _)| is_marker(&revision))
}

/// The only revision of a document that is not deleted and no marker; `None` for conflicts.
pub(super) fn only_revision(branches: &[Branch]) -> Option<Revision> {
    let mut live = branches.iter().filter(|branch| !branch.deleted).filter_map(|branch| branch.revisions.first());
    let only = live.next()?;
    (live.next().is_none() && !is_marker(only)).then_some(*only)
}
