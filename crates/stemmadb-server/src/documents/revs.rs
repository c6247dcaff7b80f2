//! Revisions as they are named in requests, and the leaves that a request opens.

use stemmadb::{Branch, Document, Revision, Snapshot, Value};

use super::outgoing::{Printer, Show};
use crate::directory::Served;
use crate::error::{Failure, Result};

/// The revision that `text` names.
///
/// # Errors
/// 400 if it names none.
pub(crate) fn parse_revision(text: &str) -> Result<Revision> {
    text.parse().map_err(|_| Failure::bad_request("Invalid rev format"))
}

/// The revisions that a JSON list names.
///
/// # Errors
/// 400 if it is no list of revisions.
pub(crate) fn revision_list(value: &Value) -> Result<Vec<Revision>> {
    let wrong = || Failure::bad_request("Invalid rev format");
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter().map(|text| parse_revision(text.as_str().ok_or_else(wrong)?)).collect()
}

/// Which revisions are to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpenRevs {
    All,
    These(Vec<Revision>),
}

/// What was found of a revision.
pub(crate) enum Opened {
    Document(Box<Document>),
    Missing(Revision),
}

/// Which leaves of a document are asked for, and what is shown of them.
pub(crate) struct Leaves {
    pub(crate) id: String,
    pub(crate) wanted: OpenRevs,
    /// Whether what descends from a revision is meant, too.
    pub(crate) latest: bool,
    pub(crate) show: Show,
}

/// Leaves of a document in one state.
pub(crate) struct OpenedLeaves<'a> {
    served: &'a Served,
    show: &'a Show,
    snapshot: Snapshot,
    pub(crate) branches: Vec<Branch>,
}

impl Leaves {
    /// Opens them, as they are now. Blocks.
    ///
    /// # Errors
    /// 404 if all are wanted, and there are none.
    pub(crate) fn open<'a>(&'a self, served: &'a Served) -> Result<(OpenedLeaves<'a>, Vec<Opened>)> {
        let snapshot = served.database().snapshot()?;
        let branches = snapshot.revisions(&self.id)?;
        if branches.is_empty() && self.wanted == OpenRevs::All {
            return Err(Failure::missing());
        }
        let opened = open_revs(&snapshot, &self.id, &branches, &self.wanted, self.latest)?;
        Ok((OpenedLeaves { served, show: &self.show, snapshot, branches }, opened))
    }
}

impl OpenedLeaves<'_> {
    /// What prints them.
    pub(crate) fn printer(&self) -> Printer<'_> {
        Printer { served: self.served, snapshot: &self.snapshot, show: self.show }
    }
}

/// Opens revisions of the document `id`: those named, or, if `latest`, the leaves that descend from them. A leaf that descends from
/// several comes once.
pub(crate) fn open_revs(
    snapshot: &Snapshot,
    id: &str,
    branches: &[Branch],
    wanted: &OpenRevs,
    latest: bool,
) -> Result<Vec<Opened>> {
    let mut opened = Vec::new();
    let mut seen: Vec<Revision> = Vec::new();
    let mut open = |revision: &Revision| {
        if !seen.contains(revision) {
            seen.push(*revision);
            opened.push(match snapshot.get_revision(id, revision)? {
                Some(document) => Opened::Document(Box::new(document)),
                None => Opened::Missing(*revision),
            });
        }
        Ok::<_, Failure>(())
    };
    match wanted {
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
