//! Acknowledged writes of simulated clients, and the leaves that every node must have once replication has converged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use stemmadb::testing::Random;
use stemmadb::{Branch, Database, Document, DocumentId, Edit, File, FileContent, Object, Revision, Sequence, Value};

use crate::directory::ServedDatabase;

/// The number of documents; few, so that several nodes write the same ones concurrently.
const DOCUMENT_COUNT: u64 = 6;
/// The largest file: larger than the chunk that is read at a time.
const FILE_BYTES_MAX: u64 = 90_000;

/// The content of a revision: its body, and its files by name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RevisionContent {
    body: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// An acknowledged revision.
struct AcknowledgedWrite {
    parent: Option<Revision>,
    deleted: bool,
    content: RevisionContent,
}

/// The clients of all nodes.
pub(super) struct Clients {
    nodes: Vec<Arc<ServedDatabase>>,
    /// The times of the nodes' clocks, if the documents have the fields that conflict rules read.
    times: Option<Vec<i64>>,
    written: BTreeMap<String, BTreeMap<Revision, AcknowledgedWrite>>,
    pub(super) write_count: u64,
}

impl Clients {
    pub(super) fn new(nodes: Vec<Arc<ServedDatabase>>) -> Self {
        Clients { nodes, times: None, written: BTreeMap::new(), write_count: 0 }
    }

    /// Clients whose documents have a time, by the clock of the node, and further fields.
    pub(super) fn with_times(nodes: Vec<Arc<ServedDatabase>>, times: Vec<i64>) -> Self {
        Clients { times: Some(times), ..Self::new(nodes) }
    }

    /// Writes a document on a random node: a new one, or a successor of a leaf; possibly a deletion, possibly with
    /// files. Returns a description for the trace.
    pub(super) fn write(&mut self, random: &mut Random) -> String {
        let node = random.below(self.nodes.len() as u64) as usize;
        let db = self.nodes[node].database();
        let id = format!("d{}", random.below(DOCUMENT_COUNT));
        let branches = db.revisions(&id).expect("an undamaged database");
        let live: Vec<&Branch> = branches.iter().filter(|branch| !branch.deleted).collect();
        // The first branch is the winner; most writes replace it.
        let after = match random.below(4) {
            0 if !live.is_empty() => Some(live[random.below(live.len() as u64) as usize].revisions[0]),
            _ => live.first().map(|branch| branch.revisions[0]),
        };
        let deleted = after.is_some() && random.below(5) == 0;
        let mut body = Object::new();
        body.insert("n", random.below(1000));
        if let Some(times) = &self.times {
            let before = after.map(|revision| db.get_revision(&id, &revision).expect("an undamaged database"));
            let before = before.flatten().map(|document| document.value().expect("a body"));
            body = changed_fields(random, before, times[node] + self.write_count as i64 * 1000);
        }
        let content =
            RevisionContent { body: Value::Object(body.clone()).to_json(), files: random_files(random, deleted) };
        let files = content.files.iter().map(|(name, bytes)| store_file(db, name, bytes)).collect();
        let document = DocumentId::new(id.as_str()).expect("an id");
        let edit = Edit::Put { id: document, parent: after, deleted, body: body.into(), files };
        let revision = db.edit(edit).expect("an edit of a leaf");
        let branches = db.revisions(&id).expect("an undamaged database");
        let branch =
            branches.iter().find(|branch| branch.revisions[0] == revision).expect("what was written is a leaf");
        let parent = branch.revisions.get(1).copied();
        self.write_count += 1;
        self.written.entry(id.clone()).or_default().insert(revision, AcknowledgedWrite { parent, deleted, content });
        format!("at {node}: {id} {revision} after {parent:?}, deleted: {deleted}")
    }

    /// Checks that all nodes have exactly the acknowledged leaves and agree on the winners.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut winners = BTreeMap::new();
        for (node, served) in self.nodes.iter().enumerate() {
            let db = served.database();
            for change in db.changes(Sequence::ZERO).expect("a feed").run() {
                let id = change.expect("a change").id;
                if !self.written.contains_key(id.as_str()) {
                    return Err(format!("unexpected: {} at {node}, which no client wrote", id.as_str()));
                }
            }
            for (id, revisions) in &self.written {
                verify_leaves(db, id, revisions).map_err(|wrong| format!("at {node}: {id}: {wrong}"))?;
                let winner = db.get(id).expect("an undamaged database").map(|document| *document.revision());
                let other = winners.entry(id).or_insert(winner);
                if *other != winner {
                    return Err(format!("diverged: of {id} {winner:?} wins at {node}, and {other:?} before it"));
                }
            }
        }
        Ok(())
    }

    /// Checks that all nodes have the same leaves and winners, and that no document has a conflict.
    pub(super) fn verify_resolved(&self) -> Result<(), String> {
        let mut agreed: BTreeMap<&String, Leaves> = BTreeMap::new();
        for (node, served) in self.nodes.iter().enumerate() {
            let db = served.database();
            for id in self.written.keys() {
                let branches = db.revisions(id).expect("an undamaged database");
                let leaves: BTreeSet<_> = branches.iter().map(|branch| (branch.revisions[0], branch.deleted)).collect();
                if leaves.iter().filter(|(_, deleted)| !deleted).count() > 1 {
                    return Err(format!("unresolved: {id} at {node}: {leaves:?}"));
                }
                let winner = db.get(id).expect("an undamaged database");
                let body = winner.map(|winner| winner.value().expect("a body").to_json());
                let other = agreed.entry(id).or_insert_with(|| (body.clone(), leaves.clone()));
                if *other != (body.clone(), leaves.clone()) {
                    return Err(format!("diverged: {id} is {body:?} {leaves:?} at {node}, and {other:?} before it"));
                }
            }
        }
        Ok(())
    }
}

/// The fields of a document after a change of one of them.
fn changed_fields(random: &mut Random, before: Option<Value>, time: i64) -> Object {
    let mut body = before.and_then(|before| before.as_object().cloned()).unwrap_or_default();
    body.insert("at", time);
    let value = random.below(5);
    match random.below(4) {
        0 => drop(body.insert("n", value)),
        1 => drop(body.insert(format!("f{}", random.below(3)), value)),
        2 => drop(body.remove(&format!("f{}", random.below(3)))),
        _ => {
            let mut nested = body.get("o").and_then(Value::as_object).cloned().unwrap_or_default();
            nested.insert(format!("g{}", random.below(3)), value);
            body.insert("o", nested);
        }
    }
    body
}

/// The winner's body, and all leaves, each with whether it is a deletion.
type Leaves = (Option<String>, BTreeSet<(Revision, bool)>);

/// Checks that the leaves are the acknowledged revisions without a successor, each with its content.
fn verify_leaves(db: &Database, id: &str, revisions: &BTreeMap<Revision, AcknowledgedWrite>) -> Result<(), String> {
    let parents: BTreeSet<Revision> = revisions.values().filter_map(|written| written.parent).collect();
    let found: BTreeSet<Revision> =
        db.revisions(id).expect("an undamaged database").iter().map(|branch| branch.revisions[0]).collect();
    for (revision, written) in revisions.iter().filter(|(revision, _)| !parents.contains(revision)) {
        if !found.contains(revision) {
            return Err(format!("missing: {revision}, which was acknowledged"));
        }
        let document = db.get_revision(id, revision).expect("an undamaged database");
        let document = document.ok_or_else(|| format!("missing: the content of {revision}"))?;
        if document.is_deleted() != written.deleted || content_of(db, &document) != written.content {
            return Err(format!("diverged: {revision} is not what was written"));
        }
    }
    match found.iter().find(|revision| !revisions.contains_key(revision) || parents.contains(revision)) {
        Some(revision) => Err(format!("resurrected: {revision}, which has a successor")),
        None => Ok(()),
    }
}

fn content_of(db: &Database, document: &Document) -> RevisionContent {
    let snapshot = db.snapshot().expect("a snapshot");
    let files = document.attachments().expect("its files").into_iter().map(|file| {
        let mut bytes = Vec::new();
        let content = snapshot.open_attachment(document, &file.name).expect("a file in order");
        content.expect("a file's content").read_to_end(&mut bytes).expect("a file that can be read");
        (file.name, bytes)
    });
    RevisionContent { body: document.value().expect("a body").to_json(), files: files.collect() }
}

fn random_files(random: &mut Random, deleted: bool) -> BTreeMap<String, Vec<u8>> {
    let count = if deleted { 0 } else { [0, 0, 0, 1, 2][random.below(5) as usize] };
    let file = |at: u64| {
        let length = [0, 10, 3000, FILE_BYTES_MAX][random.below(4) as usize];
        let letter = b'a' + random.below(26) as u8;
        (format!("f{at}"), vec![letter; length as usize])
    };
    (0..count).map(file).collect()
}

fn store_file(db: &Database, name: &str, bytes: &[u8]) -> File {
    let blob = db.files().store(bytes).expect("content is stored");
    let content = FileContent::Stored { content_type: "text/plain".to_owned(), blob, md5: None, generation: None };
    File { name: name.to_owned(), content }
}
