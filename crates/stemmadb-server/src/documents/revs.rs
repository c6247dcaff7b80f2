//! Parsing of revisions in requests, and opening of the requested leaf revisions.

use stemmadb::{Branch, Document, Revision, Snapshot, Value};
use stemmadb_http::foundation::parse_revision;

use super::outgoing::{DocumentPrinter, ShowOptions};
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
        let branches = snapshot.revisions(&self.id)?;
        if branches.is_empty() && self.revisions == OpenRevs::All {
            return Err(Failure::missing());
        }
        let opened = open_revs(&snapshot, &self.id, &branches, &self.revisions, self.latest)?;
        Ok((OpenedLeaves { served, show: &self.show, snapshot, branches }, opened))
    }
}

impl OpenedLeaves<'_> {
    /// The printer for the opened revisions.
    pub(crate) fn printer(&self) -> DocumentPrinter<'_> {
        DocumentPrinter { served: self.served, snapshot: &self.snapshot, show: self.show }
    }
}

/// Opens revisions of the document `id`: the requested ones or, if `latest`, the leaves that descend from them. A leaf
/// that descends from several requested revisions is returned once.
pub(crate) fn open_revs(
    snapshot: &Snapshot,
    id: &str,
    branches: &[Branch],
    requested: &OpenRevs,
    latest: bool,
) -> Result<Vec<OpenedRevision>> {
    let mut opened = Vec::new();
    let mut seen: Vec<Revision> = Vec::new();
    let mut open = |revision: &Revision| {
        if !seen.contains(revision) {
            seen.push(*revision);
            opened.push(match snapshot.get_revision(id, revision)? {
                Some(document) => OpenedRevision::Document(Box::new(document)),
                None => OpenedRevision::Missing(*revision),
            });
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
