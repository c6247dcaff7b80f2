//! Comparison of a database with the oracle, through every method of the public API.

use std::fmt::Debug;

use stemmadb::{Database, Document as DatabaseDocument, Revision, Sequence, Snapshot};

use super::{Document, Oracle};

/// A description of the difference.
pub(crate) type Outcome<T = ()> = Result<T, String>;

fn same<T: PartialEq + Debug>(what: impl FnOnce() -> String, found: &T, expected: &T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{}: found {found:?}, expected {expected:?}", what())) }
}

/// Converts an error of the library to a description.
pub(crate) fn ok<T>(what: impl FnOnce() -> String, result: stemmadb::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{}: {error:?}", what()))
}

/// Read access to a database or a snapshot.
pub(crate) trait ReadDocuments {
    fn get(&self, id: &str) -> stemmadb::Result<Option<DatabaseDocument>>;
    fn get_revision(&self, id: &str, revision: &Revision) -> stemmadb::Result<Option<DatabaseDocument>>;
    fn revisions(&self, id: &str) -> stemmadb::Result<Vec<stemmadb::Branch>>;
}

macro_rules! impl_read_documents {
    ($type:ty) => {
        impl ReadDocuments for $type {
            fn get(&self, id: &str) -> stemmadb::Result<Option<DatabaseDocument>> {
                <$type>::get(self, id)
            }
            fn get_revision(&self, id: &str, revision: &Revision) -> stemmadb::Result<Option<DatabaseDocument>> {
                <$type>::get_revision(self, id, revision)
            }
            fn revisions(&self, id: &str) -> stemmadb::Result<Vec<stemmadb::Branch>> {
                <$type>::revisions(self, id)
            }
        }
    };
}
impl_read_documents!(Database);
impl_read_documents!(Snapshot);

impl Oracle {
    /// Compares everything: documents, revisions, feed, local documents of `local_ids`, counts.
    pub(crate) fn compare(&self, db: &Database, ids: &[String], local_ids: &[String]) -> Outcome {
        same(|| "sequence".into(), &db.sequence().get(), &self.sequence)?;
        for id in ids {
            self.compare_document(db, id)?;
        }
        for id in local_ids {
            let found = ok(|| format!("get {id}"), db.local_documents().get(id))?;
            same(|| format!("local document {id}"), &found, &self.locals.get(id).cloned())?;
        }
        self.compare_feed(db, 0)?;
        let info = ok(|| "info".into(), db.info())?;
        same(|| "document count".into(), &info.document_count, &(self.live_count() as u64))?;
        let deleted_count = (self.documents.len() - self.live_count()) as u64;
        same(|| "deleted count".into(), &info.deleted_count, &deleted_count)
    }

    /// Compares one document in every respect.
    pub(crate) fn compare_document(&self, db: &impl ReadDocuments, id: &str) -> Outcome {
        let found = ok(|| format!("get {id}"), db.get(id))?;
        let Some(document) = self.documents.get(id) else {
            same(|| format!("document {id}"), &found.is_some(), &false)?;
            let branches = ok(|| format!("revisions of {id}"), db.revisions(id))?;
            return same(|| format!("branches of {id}"), &branches.len(), &0);
        };
        same(|| format!("{id} is alive"), &found.is_some(), &document.is_live())?;
        if let Some(found) = found {
            document.compare_revision(&found, id, &document.winner().0)?;
        }
        let branches = ok(|| format!("revisions of {id}"), db.revisions(id))?;
        document.compare_branches(&branches, id)?;
        for (revision, _) in document.leaves() {
            let what = || format!("{id} at {revision}");
            let found = ok(what, db.get_revision(id, &revision))?;
            let found = found.ok_or_else(|| format!("{id} has no revision {revision}"))?;
            document.compare_revision(&found, id, &revision)?;
        }
        Ok(())
    }

    /// Compares the feed after `since`, ascending, descending and in pages.
    pub(crate) fn compare_feed(&self, db: &Database, since: u64) -> Outcome {
        let what = || format!("changes since {since}");
        let request = ok(what, db.changes(Sequence::new(since)))?.documents(true);
        same(what, &request.last_sequence().get(), &self.sequence)?;
        let feed = self.feed();
        let mut expected = feed.range(since + 1..);
        for change in request.clone().run() {
            let change = ok(what, change)?;
            let Some((sequence, (id, document))) = expected.next() else {
                return Err(format!("{}: unexpected {change:?}", what()));
            };
            same(what, &(change.sequence.get(), change.id.as_str()), &(*sequence, id.as_str()))?;
            document.compare_change(&change)?;
        }
        if let Some((sequence, (id, _))) = expected.next() {
            return Err(format!("{}: sequence {sequence} of {id} is missing", what()));
        }
        let descending =
            request.descending(true).documents(false).run().map(|change| change.map(|it| it.sequence.get()));
        let descending: Vec<u64> = ok(what, descending.collect())?;
        let backwards: Vec<u64> = feed.range(since + 1..).rev().map(|(sequence, _)| *sequence).collect();
        same(|| format!("{}, newest first", what()), &descending, &backwards)
    }
}

impl Document {
    fn compare_revision(&self, found: &DatabaseDocument, id: &str, revision: &Revision) -> Outcome {
        let body = &self.bodies[revision];
        let what = || format!("{id} at {revision}");
        same(what, &(found.id().as_str(), found.revision()), &(id, revision))?;
        same(what, &found.sequence().get(), &self.sequence)?;
        same(what, &found.is_deleted(), &body.deleted)?;
        same(what, &ok(what, found.value())?, &body.value)
    }

    fn compare_branches(&self, found: &[stemmadb::Branch], id: &str) -> Outcome {
        let winner = self.winner().0;
        let mut expected: Vec<_> = self
            .leaves()
            .into_iter()
            .map(|(revision, body)| stemmadb::Branch { deleted: body.deleted, revisions: self.ancestry(&revision) })
            .collect();
        expected.sort_by_key(|branch| (branch.revisions[0] != winner, std::cmp::Reverse(branch.revisions[0])));
        same(|| format!("branches of {id}"), &found, &&expected[..])
    }

    /// Compares a change of the feed with this document.
    pub(crate) fn compare_change(&self, change: &stemmadb::Change) -> Outcome {
        let what = || format!("change of {}", change.id);
        let leaves: Vec<Revision> = self.leaves().into_iter().map(|(revision, _)| revision).collect();
        same(what, &change.leaves, &leaves)?;
        same(what, &(change.revision, change.deleted), &(leaves[0], !self.is_live()))?;
        match &change.document {
            Some(document) => self.compare_revision(document, change.id.as_str(), &leaves[0]),
            None => Ok(()),
        }
    }
}

/// Checks the consistency of a database at the end of a test.
pub(crate) fn sound(db: &Database) -> Outcome {
    let report = ok(|| "check".into(), db.maintenance().check())?;
    if report.is_sound() { Ok(()) } else { Err(format!("check: {:#?}", report.damages)) }
}
