//! A database of this server as a replication peer. Writes take the same path as clients' writes, so its validation
//! functions apply.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, TransferFile, WriteOutcome,
};
use stemmadb::{Error, Sequence, Value};
use stemmadb_http::library_error;
use stemmadb_http::runtime::BlockingRuntime;
use tokio::sync::watch;

use crate::directory::ServedDatabase;
use crate::documents::{IncomingContent, IncomingDocument, IncomingFile};
use crate::http::{blocking, server_runtime};
use crate::writes::{WriteOptions, write};

/// A database of this server as a replication peer.
pub(super) struct LocalPeer {
    pub(super) served: Arc<ServedDatabase>,
    pub(super) options: WriteOptions,
    pub(super) runtime: BlockingRuntime,
    /// Becomes true when the job is cancelled.
    pub(super) cancelled: watch::Receiver<bool>,
    /// The sequence that was last seen, of [`document_changes`]. The waits react to notifications, not to sequence
    /// numbers, because checkpoints have sequences, too.
    pub(super) published: Mutex<watch::Receiver<Sequence>>,
}

/// The newest sequence of a document, computed once for all replications from a database: a checkpoint that one of them
/// writes wakes no other.
#[derive(Default)]
struct DocumentChanges(Mutex<Option<watch::Receiver<Sequence>>>);

/// A receiver of the newest sequence of a document of a database, which ends when the database is closed. It may be
/// late, and is never early.
pub(super) fn document_changes(served: &Arc<ServedDatabase>) -> watch::Receiver<Sequence> {
    let shared = served.extension::<DocumentChanges>();
    let mut receiver = shared.0.lock();
    if let Some(receiver) = receiver.as_ref().filter(|receiver| receiver.has_changed().is_ok()) {
        return receiver.clone();
    }
    // Subscribed before the sequence is read.
    let mut published = served.published();
    published.borrow_and_update();
    let (sender, new_receiver) = watch::channel(served.database().sequence());
    *receiver = Some(new_receiver.clone());
    server_runtime().spawn(follow_documents(Arc::downgrade(served), published, sender));
    new_receiver
}

async fn follow_documents(
    served: Weak<ServedDatabase>,
    mut published: watch::Receiver<Sequence>,
    sender: watch::Sender<Sequence>,
) {
    while published.changed().await.is_ok() {
        let (Some(served), since) = (served.upgrade(), *sender.borrow()) else { return };
        let newest = blocking(move || {
            let changes = served.database().changes(since)?;
            Ok((changes.count_up_to(1)? > 0).then(|| changes.last_sequence()))
        });
        match newest.await {
            Ok(None) => {}
            Ok(Some(newest)) => drop(sender.send_replace(newest)),
            // A replication that reads reports the error.
            Err(_) => drop(sender.send_replace(since)),
        }
    }
}

impl LocalPeer {
    /// Waits until a document may have changed since `changes` was called. Holds no thread.
    pub(super) async fn changed(&self) -> stemmadb::Result<()> {
        let mut published = self.published.lock().clone();
        published.changed().await.map_err(|_| Error::closed("the database is closed"))
    }
}

/// Writes transferred documents. Blocks.
pub(super) fn write_transfers(
    served: &ServedDatabase,
    transfers: Vec<Transfer>,
    options: &WriteOptions,
    written: &mut WriteOutcome,
) -> stemmadb::Result<()> {
    let documents = transfers.into_iter().filter_map(|transfer| incoming(served, transfer).transpose());
    let documents = documents.collect::<stemmadb::Result<Vec<_>>>()?;
    for document in write(served, documents, options).map_err(|failure| library_error(&failure))? {
        written.add(document.outcome.map_err(|failure| library_error(&failure)));
    }
    Ok(())
}

/// Converts a transferred document into a write. Returns `None` if one of its files no longer exists at the source.
fn incoming(served: &ServedDatabase, transfer: Transfer) -> stemmadb::Result<Option<IncomingDocument>> {
    let Transfer { id, revisions, deleted, mut body, files, .. } = transfer;
    let files: Option<stemmadb::Result<_>> =
        files.into_iter().map(|file| store_file(served, file).transpose()).collect();
    let Some(files) = files.transpose()? else { return Ok(None) };
    let revision = revisions.first().copied();
    let (id, ancestry) = (Some(id.as_str().to_owned()), Some(revisions));
    let replication_state = IncomingDocument::extract_replication_state(&mut body);
    let refusal = None;
    Ok(Some(IncomingDocument { id, revision, ancestry, deleted, body, files, replication_state, refusal }))
}

/// Stores the content of a transferred file. Returns `None` if the file no longer exists at the source.
fn store_file(served: &ServedDatabase, file: TransferFile) -> stemmadb::Result<Option<IncomingFile>> {
    let TransferFile { name, content_type, generation, open, .. } = file;
    let Some(content) = open()? else { return Ok(None) };
    let (blob, md5) = served.store(content).map_err(|failure| library_error(&failure))?;
    let content = IncomingContent::Stored { blob, md5 };
    Ok(Some(IncomingFile { name, content_type, revpos: Some(generation), content }))
}

impl Peer for LocalPeer {
    fn identity(&self) -> stemmadb::Result<String> {
        self.served.database().identity()
    }

    fn get_checkpoint(&self, id: &str) -> stemmadb::Result<Option<Value>> {
        self.served.database().get_checkpoint(id)
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> stemmadb::Result<()> {
        self.served.database().put_checkpoint(id, body)
    }

    fn changes(
        &self,
        since: Option<&Value>,
        count: usize,
        selection: &ReplicationScope,
    ) -> stemmadb::Result<ChangesPage> {
        self.published.lock().borrow_and_update();
        Peer::changes(self.served.database(), since, count, selection)
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> stemmadb::Result<Vec<MissingRevisions>> {
        self.served.database().missing_revisions(leaves)
    }

    fn read(
        &self,
        wanted: &[MissingRevisions],
        take: &mut dyn FnMut(Transfer) -> stemmadb::Result<()>,
    ) -> stemmadb::Result<()> {
        self.served.database().read(wanted, take)
    }

    fn write(&self, transfers: Vec<Transfer>, written: &mut WriteOutcome) -> stemmadb::Result<()> {
        write_transfers(&self.served, transfers, &self.options, written)
    }

    fn wait(&self, _since: &Value, timeout: Duration) -> stemmadb::Result<()> {
        let (mut published, mut cancelled) = (self.published.lock().clone(), self.cancelled.clone());
        self.runtime.block_on(async {
            tokio::select! {
                changed = published.changed() => changed.map_err(|_| Error::closed("the database is closed")),
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Error::stopped("the replication was cancelled")),
                () = tokio::time::sleep(timeout) => Ok(()),
            }
        })
    }
}
