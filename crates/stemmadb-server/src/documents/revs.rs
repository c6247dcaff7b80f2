//! Parsing of revisions in requests, and opening of the requested leaf revisions.

use std::borrow::Cow;

use stemmadb::{Branch, Document, Revision, Snapshot, Value};
use stemmadb_http::foundation::parse_revision;

use super::outgoing::{DocumentPrinter, ShowOptions};
use crate::auth::Restriction;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};

/// Parses a JSON array of revisions.
///
/// # Errors
/// 400 if it is not an array of revisions.
pub(crate) fn parse_revisions(value: &Value) -> Result<Vec<Revision>> {
    let invalid = || Failure::bad_request("Invalid rev format");
    let list = value.as_array().ok_or_else(invalid)?;
    list.iter().map(|text| parse_revision(text.as_str().ok_or_else(invalid)?)).collect()
}

/// Which revisions a request opens: the parameter `open_revs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpenRevs {
    All,
    These(Vec<Revision>),
}

/// A requested revision, or that the database does not have its body.
pub(crate) enum OpenedRevision {
    Document(Box<Document>),
    Missing(Revision),
}

/// A request for leaf revisions of a document.
pub(crate) struct LeavesRequest {
    pub(crate) id: String,
    pub(crate) revisions: OpenRevs,
    /// Whether a revision stands for the leaves that descend from it.
    pub(crate) latest: bool,
    pub(crate) show: ShowOptions,
    /// The documents that the user may read; `None`: all.
    pub(crate) restriction: Option<Restriction>,
}

/// The branches of a document in one snapshot, from which leaf revisions were opened.
pub(crate) struct OpenedLeaves<'a> {
    served: &'a ServedDatabase,
    show: &'a ShowOptions,
    snapshot: Snapshot,
    pub(crate) branches: Vec<Branch>,
}

impl LeavesRequest {
    /// Opens the revisions in the current snapshot. Blocks.
    ///
    /// # Errors
    /// 404 if all leaves are requested and the document does not exist.
    pub(crate) fn open<'a>(&'a self, served: &'a ServedDatabase) -> Result<(OpenedLeaves<'a>, Vec<OpenedRevision>)> {
        let snapshot = served.database().snapshot()?;
        let restriction = self.restriction.as_ref();
        let visible = visible_branches(&snapshot, &self.id, restriction)?;
        if visible.branches.is_empty() && self.revisions == OpenRevs::All {
            return Err(Failure::missing());
        }
        let opened = open_revs(&snapshot, &self.id, &visible, &self.revisions, self.latest, restriction)?;
        Ok((OpenedLeaves { served, show: &self.show, snapshot, branches: visible.branches }, opened))
    }
}

impl OpenedLeaves<'_> {
    /// The printer for the opened revisions.
    pub(crate) fn printer(&self) -> DocumentPrinter<'_> {
        DocumentPrinter { served: self.served, snapshot: &self.snapshot, show: self.show }
    }
}

/// Whether a user may read the winning revision of a document, which may be a deletion. A document that does not exist
/// can't be read.
pub(crate) fn is_readable(
    snapshot: &Snapshot,
    id: &str,
    branches: &[Branch],
    restriction: Option<&Restriction>,
) -> Result<bool> {
    let Some(restriction) = restriction else { return Ok(true) };
    let Some(winner) = branches.first().and_then(|branch| branch.revisions.first()) else { return Ok(false) };
    match snapshot.get_revision(id, winner)? {
        Some(document) => restriction.allows(&document),
        None => Ok(false),
    }
}

/// The branches of a document that a user sees. Made by [`visible_branches`].
pub(crate) struct VisibleBranches {
    pub(crate) branches: Vec<Branch>,
    /// Whether the user may read the winning revision. If not, only deletions are visible.
    pub(crate) is_readable: bool,
}

/// The branches of a document that a user sees: all, if the user may read the winning revision. Otherwise those on
/// which a revision was deleted that the user could read, when it was replaced by one that the user may not read.
pub(crate) fn visible_branches(
    snapshot: &Snapshot,
    id: &str,
    restriction: Option<&Restriction>,
) -> Result<VisibleBranches> {
    let mut branches = snapshot.revisions(id)?;
    let is_readable = is_readable(snapshot, id, &branches, restriction)?;
    let Some(restriction) = restriction.filter(|_| !is_readable) else {
        return Ok(VisibleBranches { branches, is_readable });
    };
    let mut failure = None;
    branches.retain(|branch| {
        let leaf = branch.revisions.first().filter(|_| branch.deleted);
        let read = leaf.map_or(Ok(None), |leaf| snapshot.get_leaf(id, leaf));
        let is_visible =
            read.map_err(Failure::from).and_then(|leaf| leaf.map_or(Ok(false), |leaf| restriction.allows(&leaf)));
        is_visible.unwrap_or_else(|error| {
            failure.get_or_insert(error);
            false
        })
    });
    failure.map_or(Ok(VisibleBranches { branches, is_readable }), Err)
}

/// The leaves of a document that a user may read, of those that the changes feed reports.
pub(crate) fn readable_leaves<'a>(
    snapshot: &Snapshot,
    id: &str,
    leaves: &'a [Revision],
    restriction: Option<&Restriction>,
) -> Result<Cow<'a, [Revision]>> {
    let Some(restriction) = restriction.filter(|_| leaves.len() > 1) else { return Ok(Cow::Borrowed(leaves)) };
    let mut readable = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        if snapshot.get_leaf(id, leaf)?.map_or(Ok(false), |document| restriction.allows(&document))? {
            readable.push(*leaf);
        }
    }
    // None, if the document has changed since the feed was read.
    Ok(if readable.is_empty() { Cow::Borrowed(&leaves[..1]) } else { Cow::Owned(readable) })
}

/// Opens revisions of the document `id`, of which the user sees these branches: the requested ones or, if `latest`, the
/// leaves that descend from them. A leaf that descends from several requested revisions is returned once. What the user
/// may not read is missing.
pub(crate) fn open_revs(
    snapshot: &Snapshot,
    id: &str,
    visible: &VisibleBranches,
    requested: &OpenRevs,
    latest: bool,
    restriction: Option<&Restriction>,
) -> Result<Vec<OpenedRevision>> {
    let branches = &visible.branches;
    if branches.is_empty() {
        return Ok(match requested {
            OpenRevs::All => Vec::new(),
            OpenRevs::These(revisions) => revisions.iter().copied().map(OpenedRevision::Missing).collect(),
        });
    }
    let is_leaf = |revision: &Revision| branches.iter().any(|branch| branch.revisions.first() == Some(revision));
    let mut opened = Vec::new();
    let mut seen: Vec<Revision> = Vec::new();
    let mut open = |revision: &Revision| {
        if !seen.contains(revision) {
            seen.push(*revision);
            let document = match visible.is_readable || is_leaf(revision) {
                true => snapshot.get_revision(id, revision)?,
                false => None,
            };
            let is_allowed = match (&document, restriction) {
                (Some(document), Some(restriction)) => restriction.allows(document)?,
                _ => true,
            };
            match document.filter(|_| is_allowed) {
                Some(document) => opened.push(OpenedRevision::Document(Box::new(document))),
                // A branch that the user may not read is not listed.
                None if !is_allowed && *requested == OpenRevs::All => {}
                None => opened.push(OpenedRevision::Missing(*revision)),
            }
        }
        Ok::<_, Failure>(())
    };
    match requested {
        OpenRevs::All => branches.iter().filter_map(|branch| branch.revisions.first()).try_for_each(open)?,
        OpenRevs::These(revisions) => {
            for revision in revisions {
                let leaves: Vec<_> = branches
                    .iter()
                    .filter(|branch| latest && branch.revisions.contains(revision))
                    .filter_map(|branch| branch.revisions.first())
                    .collect();
                match leaves.is_empty() {
                    true => open(revision)?,
                    false => leaves.into_iter().try_for_each(&mut open)?,
                }
            }
        }
    }
    Ok(opened)
}
