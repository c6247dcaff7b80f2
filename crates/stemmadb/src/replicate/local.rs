//! A database of this process as a peer.

use std::io::Read;
use std::time::Duration;

use super::peer::{Content, Leaves, Page, Peer, Selection, Transfer, TransferFile, Wanted, Written};
use crate::changes::Changes;
use crate::database::Database;
use crate::document::{Attachment, Document, File, FileContent};
use crate::engine::Edit;
use crate::query::Selector;
use crate::read::Snapshot;
use crate::revision::{Revision, Sequence};
use crate::value::Value;
use crate::{Blob, Error, Result};

impl Peer for Database {
    fn identity(&self) -> Result<String> {
        let id = self.store().parts.log.database_id();
        Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        Ok(self.local_documents().get(id)?.map(|(_, body)| body))
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.flush()?;
        self.local_documents().put(id, None, body).map(|_| ())
    }

    fn changes(&self, since: Option<&Value>, count: usize, selection: &Selection) -> Result<Page> {
        let since = sequence(since)?;
        let changes = self.changes(since)?;
        // Checkpoints move the newest sequence too: where nothing else happened, it is as if nothing did.
        if changes.count_up_to(1)? == 0 {
            return Ok(Page { leaves: Vec::new(), position: Value::from(since.get()), is_last: true });
        }
        let changes = selected(changes, selection)?.limit(count);
        let newest = changes.last_sequence();
        let (mut leaves, mut reached) = (Vec::new(), newest);
        for change in changes.run() {
            let change = change?;
            reached = change.sequence;
            leaves.push(Leaves { id: change.id, revisions: change.leaves });
        }
        let is_last = leaves.len() < count;
        let position = if is_last { newest } else { reached };
        Ok(Page { leaves, position: Value::from(position.get()), is_last })
    }

    fn lacking(&self, leaves: &[Leaves]) -> Result<Vec<Wanted>> {
        let snapshot = self.snapshot()?;
        let mut wanted = Vec::new();
        for leaves in leaves {
            let missing = snapshot.missing(leaves.id.as_str(), &leaves.revisions)?;
            if !missing.missing.is_empty() {
                let (revisions, known) = (missing.missing, missing.possible_ancestors);
                wanted.push(Wanted { id: leaves.id.clone(), revisions, known });
            }
        }
        Ok(wanted)
    }

    fn read(&self, wanted: &[Wanted], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        let snapshot = self.snapshot()?;
        for wanted in wanted {
            let branches = snapshot.revisions(wanted.id.as_str())?;
            for revision in &wanted.revisions {
                let Some(document) = snapshot.get_revision(wanted.id.as_str(), revision)? else { continue };
                let branch = branches.iter().find(|branch| branch.revisions.first() == Some(revision));
                let path = branch.map_or_else(|| vec![*revision], |branch| branch.revisions.clone());
                let files = document.attachments()?.into_iter();
                let files: Vec<_> = files.map(|file| (snapshot.hold_content(&file), file)).collect();
                if files.iter().any(|(held, _)| held.is_none())
                    && self.snapshot()?.get_revision(wanted.id.as_str(), revision)?.is_none()
                {
                    // It was replaced since, and its files were swept: the feed tells of what took its place.
                    continue;
                }
                take(transfer(&snapshot, &document, path, files)?)?;
            }
        }
        Ok(())
    }

    fn write(&self, transfers: Vec<Transfer>, written: &mut Written) -> Result<()> {
        let mut edits = Vec::with_capacity(transfers.len());
        for transfer in transfers {
            let Transfer { id, revisions, deleted, body, files, .. } = transfer;
            let files: Option<Result<_>> = files.into_iter().map(|file| self.stored(file).transpose()).collect();
            let Some(files) = files.transpose()? else { continue };
            edits.push(Edit::Foreign { id, revisions, deleted, body, files });
        }
        self.bulk(edits)?.into_iter().for_each(|outcome| written.add(outcome));
        Ok(())
    }

    fn wait(&self, since: &Value, patience: Duration) -> Result<()> {
        let mut subscription = self.subscribe(sequence(Some(since))?);
        subscription.next_within(patience).map(|_| ())
    }
}

impl Database {
    /// A file whose content is here; none if it is gone.
    fn stored(&self, file: TransferFile) -> Result<Option<File>> {
        let TransferFile { name, content_type, generation, md5, open, .. } = file;
        let Some(content) = open()? else { return Ok(None) };
        let blob = self.files().store(content)?;
        let generation = Some(generation);
        Ok(Some(File { name, content: FileContent::Stored { content_type, blob, md5, generation } }))
    }
}

/// The sequence that a position names, here or as a server told it (`17-5f1e…`).
fn sequence(position: Option<&Value>) -> Result<Sequence> {
    let Some(position) = position else { return Ok(Sequence::ZERO) };
    let told = || position.as_str()?.split('-').next()?.parse().ok();
    position
        .as_u64()
        .or_else(told)
        .map(Sequence::new)
        .ok_or_else(|| Error::invalid(format!("`{}` is not a position in this database's feed", position.to_json())))
}

fn selected(changes: Changes, selection: &Selection) -> Result<Changes> {
    match selection {
        Selection::All => Ok(changes),
        Selection::Ids(ids) => Ok(changes.ids(ids.iter().cloned())),
        Selection::Selector(selector) => changes.selector(&Selector::parse(selector)?),
        Selection::Filter(name, _) => Err(Error::invalid(format!("the filter `{name}` can't be run here"))
            .with_hint("use a selector; filters of design documents are run by the server")),
    }
}

/// `files` are its files, each with its content held, if that is there.
fn transfer(
    snapshot: &Snapshot,
    document: &Document,
    revisions: Vec<Revision>,
    files: Vec<(Option<Blob>, Attachment)>,
) -> Result<Transfer> {
    let files = files.into_iter().map(|(held, file)| file_of(snapshot, document, file, held)).collect();
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

fn file_of(snapshot: &Snapshot, document: &Document, file: Attachment, held: Option<Blob>) -> TransferFile {
    let (snapshot, document, name) = (snapshot.clone(), document.clone(), file.name.clone());
    let open: Content = Box::new(move || {
        let opened = snapshot.open_attachment(&document, &name)?;
        // What is open stays readable.
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
