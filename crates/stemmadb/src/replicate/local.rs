//! A local database as a replication peer.

use std::io::Read;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::peer::{
    ChangesPage, ContentOpener, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, TransferFile,
    WriteOutcome,
};
use crate::changes::Changes;
use crate::database::Database;
use crate::document::{Attachment, Document, File, FileContent};
use crate::engine::Edit;
use crate::query::{Cancellation, Selector};
use crate::read::Snapshot;
use crate::revision::{Revision, Sequence};
use crate::value::Value;
use crate::{Blob, Error, Result};

impl Peer for Database {
    fn identity(&self) -> Result<String> {
        Ok(uuid::Uuid::from_bytes(self.store().parts.identity).simple().to_string())
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        Ok(self.local_documents().get(id)?.map(|(_, body)| body))
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.flush()?;
        self.local_documents().put(id, None, body).map(|_| ())
    }

    fn changes(&self, since: Option<&Value>, count: usize, scope: &ReplicationScope) -> Result<ChangesPage> {
        let since = since.map_or(Ok(Sequence::ZERO), position_sequence)?;
        let changes = self.changes(since)?;
        // Writing a checkpoint also advances the newest sequence. If nothing else changed, report no progress, so that
        // no further checkpoint is written.
        if changes.count_up_to(1)? == 0 {
            let (position, pending_count) = (Value::from(since.get()), Some(0));
            return Ok(ChangesPage { leaves: Vec::new(), position, is_last: true, pending_count });
        }
        let changes = apply_scope(changes, scope)?.limit(count);
        let newest = changes.last_sequence();
        let (mut leaves, mut reached) = (Vec::new(), newest);
        for change in changes.run() {
            let change = change?;
            reached = change.sequence;
            leaves.push(DocumentLeaves { id: change.id, revisions: change.leaves });
        }
        let is_last = leaves.len() < count;
        let position = if is_last { newest } else { reached };
        // An upper bound: replaced changes and `_local` documents took sequences, too.
        let pending_count = Some(newest.get().saturating_sub(position.get()));
        Ok(ChangesPage { leaves, position: Value::from(position.get()), is_last, pending_count })
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>> {
        let snapshot = self.snapshot()?;
        let mut all_missing = Vec::new();
        for leaves in leaves {
            let missing = snapshot.missing(leaves.id.as_str(), &leaves.revisions)?;
            if !missing.missing.is_empty() {
                let (revisions, possible_ancestors) = (missing.missing, missing.possible_ancestors);
                all_missing.push(MissingRevisions { id: leaves.id.clone(), revisions, possible_ancestors });
            }
        }
        Ok(all_missing)
    }

    fn read(&self, missing: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        let snapshot = self.snapshot()?;
        for missing in missing {
            let branches = snapshot.revisions(missing.id.as_str())?;
            for revision in &missing.revisions {
                let Some(document) = snapshot.get_leaf(missing.id.as_str(), revision)? else { continue };
                let branch = branches.iter().find(|branch| branch.revisions.first() == Some(revision));
                let path = branch.map_or_else(|| vec![*revision], |branch| branch.revisions.clone());
                let files = document.attachments()?.into_iter();
                let files: Vec<_> =
                    files.map(|file| Ok((snapshot.pin_content(&file)?, file))).collect::<Result<_>>()?;
                if files.iter().any(|(held, _)| held.is_none())
                    && self.snapshot()?.get_leaf(missing.id.as_str(), revision)?.is_none()
                {
                    // The revision was replaced since and its files were swept: the feed lists its successor.
                    continue;
                }
                take(revision_transfer(&snapshot, &document, path, files)?)?;
            }
        }
        Ok(())
    }

    fn write(&self, transfers: Vec<Transfer>, outcome: &mut WriteOutcome) -> Result<()> {
        let mut edits = Vec::with_capacity(transfers.len());
        for transfer in transfers {
            let Transfer { id, revisions, deleted, body, files, .. } = transfer;
            let files: Option<Result<_>> = files.into_iter().map(|file| self.store_file(file).transpose()).collect();
            let Some(files) = files.transpose()? else { continue };
            edits.push(Edit::Foreign { id, revisions, deleted, body, files });
        }
        self.bulk(edits)?.into_iter().for_each(|result| outcome.add(result));
        Ok(())
    }

    fn wait(&self, since: &Value, timeout: Duration) -> Result<()> {
        let mut subscription = self.subscribe(position_sequence(since)?);
        let Some(cancellation) = Cancellation::current() else {
            return subscription.next_within(timeout).map(|_| ());
        };
        let (changed, woken) = mpsc::channel();
        let cancelled = changed.clone();
        subscription.on_change(move || {
            changed.send(()).ok();
        });
        let _registered = cancellation.on_cancel(move || {
            cancelled.send(()).ok();
        });
        let deadline = Instant::now() + timeout;
        loop {
            if cancellation.is_cancelled() {
                return Err(Error::stopped("the replication was cancelled"));
            }
            if subscription.next_within(Duration::ZERO)?.is_some() {
                return Ok(());
            }
            if subscription.is_closed() {
                return Err(Error::closed("the database is closed"));
            }
            match woken.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(_) => return Ok(()),
            }
        }
    }
}

impl Database {
    /// Stores the content of a transferred file; `None` if the content no longer exists at the source.
    fn store_file(&self, file: TransferFile) -> Result<Option<File>> {
        let TransferFile { name, content_type, generation, md5, open, .. } = file;
        let Some(content) = open()? else { return Ok(None) };
        let blob = self.files().store(content)?;
        let generation = Some(generation);
        Ok(Some(File { name, content: FileContent::Stored { content_type, blob, md5, generation } }))
    }
}

/// The sequence of a position: a number, or the form that CouchDB uses (`17-5f1e…`).
pub(super) fn position_sequence(position: &Value) -> Result<Sequence> {
    let leading_number = || position.as_str()?.split('-').next()?.parse().ok();
    position
        .as_u64()
        .or_else(leading_number)
        .map(Sequence::new)
        .ok_or_else(|| Error::invalid(format!("`{}` is not a position in this database's feed", position.to_json())))
}

fn apply_scope(changes: Changes, scope: &ReplicationScope) -> Result<Changes> {
    match scope {
        ReplicationScope::All => Ok(changes),
        ReplicationScope::Ids(ids) => Ok(changes.ids(ids.iter().cloned())),
        ReplicationScope::Selector(selector) => changes.selector(&Selector::parse(selector)?),
        ReplicationScope::Filter(name, _) => Err(Error::invalid(format!("the filter `{name}` can't be run here"))
            .with_hint("use a selector; filters of design documents are run by the server")),
    }
}

/// `files` are the document's attachments, each with a hold on its content if that still exists.
fn revision_transfer(
    snapshot: &Snapshot,
    document: &Document,
    revisions: Vec<Revision>,
    files: Vec<(Option<Blob>, Attachment)>,
) -> Result<Transfer> {
    let files = files.into_iter().map(|(held, file)| transfer_file(snapshot, document, file, held)).collect();
    let body = document.value()?;
    Ok(Transfer {
        id: document.id().clone(),
        revisions,
        deleted: document.is_deleted(),
        body,
        files,
        byte_count: document.byte_count(),
    })
}

fn transfer_file(snapshot: &Snapshot, document: &Document, file: Attachment, held: Option<Blob>) -> TransferFile {
    let (snapshot, document, name) = (snapshot.clone(), document.clone(), file.name.clone());
    let open: ContentOpener = Box::new(move || {
        let opened = snapshot.open_attachment(&document, &name)?;
        // An open file stays readable without the hold.
        drop(held);
        match opened {
            Some(content) => Ok(Some(Box::new(content) as Box<dyn Read + Send>)),
            None => Err(Error::corrupt(format!("the file `{name}` of `{}` is lost", document.id()))),
        }
    });
    TransferFile {
        name: file.name,
        content_type: file.content_type,
        generation: file.generation,
        length: file.length,
        md5: file.md5,
        open,
    }
}
