//! What clients wrote, and was acknowledged: which leaves each document has to come to, wherever it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use stemmadb::testing::Random;
use stemmadb::{Branch, Database, Document, DocumentId, Edit, File, FileContent, Object, Revision, Sequence, Value};

use crate::directory::Served;

/// Documents that are written to: few, so that they are written at several places at once.
const DOCUMENT_COUNT: u64 = 6;
/// The longest file: more than is read of one at once.
const FILE_BYTES_MAX: u64 = 90_000;

/// What a revision says: its body, and its files by name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    body: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// A revision that was acknowledged.
struct Written {
    parent: Option<Revision>,
    deleted: bool,
    content: Content,
}

/// Clients of all nodes.
pub(super) struct Clients {
    nodes: Vec<Arc<Served>>,
    written: BTreeMap<String, BTreeMap<Revision, Written>>,
    pub(super) write_count: u64,
}

impl Clients {
    pub(super) fn new(nodes: Vec<Arc<Served>>) -> Self {
        Clients { nodes, written: BTreeMap::new(), write_count: 0 }
    }

    /// Somebody writes a document somewhere: a new one, or what comes after one of its leaves; a deletion, or files. Returns what is
    /// told of it.
    pub(super) fn write(&mut self, random: &mut Random) -> String {
        let node = random.below(self.nodes.len() as u64) as usize;
        let db = self.nodes[node].database();
        let id = format!("d{}", random.below(DOCUMENT_COUNT));
        let branches = db.revisions(&id).expect("a database in order");
        let live: Vec<&Branch> = branches.iter().filter(|branch| !branch.deleted).collect();
        // The winner is the first, and mostly meant.
        let after = match random.below(4) {
            0 if !live.is_empty() => Some(live[random.below(live.len() as u64) as usize].revisions[0]),
            _ => live.first().map(|branch| branch.revisions[0]),
        };
        let deleted = after.is_some() && random.below(5) == 0;
        let mut body = Object::new();
        body.insert("n", random.below(1000));
        let content = Content { body: Value::Object(body.clone()).to_json(), files: some_files(random, deleted) };
        let files = content.files.iter().map(|(name, bytes)| stored(db, name, bytes)).collect();
        let document = DocumentId::new(id.as_str()).expect("an id");
        let edit = Edit::Put { id: document, parent: after, deleted, body: body.into(), files };
        let revision = db.edit(edit).expect("an edit of a leaf");
        let branches = db.revisions(&id).expect("a database in order");
        let branch =
            branches.iter().find(|branch| branch.revisions[0] == revision).expect("what was written is a leaf");
        let parent = branch.revisions.get(1).copied();
        self.write_count += 1;
        self.written.entry(id.clone()).or_default().insert(revision, Written { parent, deleted, content });
        format!("at {node}: {id} {revision} after {parent:?}, deleted: {deleted}")
    }

    /// Whether all nodes have all that was acknowledged and nothing else, and choose the same winners.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut winners = BTreeMap::new();
        for (node, served) in self.nodes.iter().enumerate() {
            let db = served.database();
            for change in db.changes(Sequence::ZERO).expect("a feed").run() {
                let id = change.expect("a change").id;
                if !self.written.contains_key(id.as_str()) {
                    return Err(format!("nobody wrote {}, which is at {node}", id.as_str()));
                }
            }
            for (id, revisions) in &self.written {
                verify_leaves(db, id, revisions).map_err(|wrong| format!("at {node}: {id}: {wrong}"))?;
                let winner = db.get(id).expect("a database in order").map(|document| *document.revision());
                let other = winners.entry(id).or_insert(winner);
                if *other != winner {
                    return Err(format!("diverged: of {id} {winner:?} wins at {node}, and {other:?} before it"));
                }
            }
        }
        Ok(())
    }
}

/// Leaves are what nothing was written after; each says what it was written with.
fn verify_leaves(db: &Database, id: &str, revisions: &BTreeMap<Revision, Written>) -> Result<(), String> {
    let parents: BTreeSet<Revision> = revisions.values().filter_map(|written| written.parent).collect();
    let found: BTreeSet<Revision> =
        db.revisions(id).expect("a database in order").iter().map(|branch| branch.revisions[0]).collect();
    for (revision, written) in revisions.iter().filter(|(revision, _)| !parents.contains(revision)) {
        if !found.contains(revision) {
            return Err(format!("missing: {revision}, which was acknowledged"));
        }
        let document = db.get_revision(id, revision).expect("a database in order");
        let document = document.ok_or_else(|| format!("missing: the content of {revision}"))?;
        if document.is_deleted() != written.deleted || content_of(db, &document) != written.content {
            return Err(format!("diverged: {revision} is not what was written"));
        }
    }
    match found.iter().find(|revision| !revisions.contains_key(revision) || parents.contains(revision)) {
        Some(revision) => Err(format!("resurrected: {revision}, which something was written after")),
        None => Ok(()),
    }
}

fn content_of(db: &Database, document: &Document) -> Content {
    let snapshot = db.snapshot().expect("a snapshot");
    let files = document.attachments().expect("its files").into_iter().map(|file| {
        let mut bytes = Vec::new();
        let content = snapshot.open_attachment(document, &file.name).expect("a file in order");
        content.expect("a file's content").read_to_end(&mut bytes).expect("a file that can be read");
        (file.name, bytes)
    });
    Content { body: document.value().expect("a body").to_json(), files: files.collect() }
}

fn some_files(random: &mut Random, deleted: bool) -> BTreeMap<String, Vec<u8>> {
    let count = if deleted { 0 } else { [0, 0, 0, 1, 2][random.below(5) as usize] };
    let file = |at: u64| {
        let length = [0, 10, 3000, FILE_BYTES_MAX][random.below(4) as usize];
        let letter = b'a' + random.below(26) as u8;
        (format!("f{at}"), vec![letter; length as usize])
    };
    (0..count).map(file).collect()
}

fn stored(db: &Database, name: &str, bytes: &[u8]) -> File {
    let blob = db.files().store(bytes).expect("content is stored");
    let content = FileContent::Stored { content_type: "text/plain".to_owned(), blob, md5: None, generation: None };
    File { name: name.to_owned(), content }
}
