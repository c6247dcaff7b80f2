//! How far did it come? A `_local` document on both sides, in CouchDB's form.
//!
//! Each run is a session. Where both sides name the same session, its position is believed; else the newest session in both histories.

use uuid::Uuid;

use super::Replicated;
use super::peer::{Peer, Selection};
use crate::Result;
use crate::value::{Object, Value};

/// Sessions that are remembered.
const HISTORY_COUNT: usize = 50;

const SESSION: &str = "session_id";
const POSITION: &str = "source_last_seq";
const HISTORY: &str = "history";
const RECORDED: &str = "recorded_seq";

pub(super) struct Checkpoints<'a> {
    source: &'a dyn Peer,
    target: &'a dyn Peer,
    id: String,
    session: String,
    /// The sessions before this one, newest first.
    history: Vec<Value>,
    position: Option<Value>,
}

impl<'a> Checkpoints<'a> {
    pub(super) fn open(source: &'a dyn Peer, target: &'a dyn Peer, selection: &Selection) -> Result<Self> {
        let name = format!("{}\n{}\n{}", source.identity()?, target.identity()?, selection.text());
        let id = format!("_local/{}", &blake3::hash(name.as_bytes()).to_hex()[..32]);
        let (here, there) = (source.get_checkpoint(&id)?, target.get_checkpoint(&id)?);
        let agreed = match (&here, &there) {
            (Some(here), Some(there)) => agreed(here, there),
            _ => None,
        };
        let history = match &agreed {
            Some(_) => here.as_ref().map(sessions).unwrap_or_default().to_vec(),
            None => Vec::new(),
        };
        let session = Uuid::new_v4().simple().to_string();
        Ok(Checkpoints { source, target, id, session, history, position: agreed })
    }

    /// The position of the source that both sides agree on.
    pub(super) fn position(&self) -> Option<Value> {
        self.position.clone()
    }

    /// Notes on both sides how far this session came: at the target first, since it is the one to have everything.
    pub(super) fn write(&mut self, done: &Replicated) -> Result<()> {
        let mut entry = Object::new();
        entry.insert(SESSION, self.session.as_str());
        entry.insert(RECORDED, done.source_position.clone());
        entry.insert("missing_checked", done.checked_count);
        entry.insert("missing_found", done.missing_count);
        entry.insert("docs_read", done.read_count);
        entry.insert("docs_written", done.written_count);
        entry.insert("doc_write_failures", done.failed_count);
        let history = std::iter::once(Value::Object(entry)).chain(self.history.iter().cloned());
        let mut body = Object::new();
        body.insert(SESSION, self.session.as_str());
        body.insert(POSITION, done.source_position.clone());
        body.insert("replication_id_version", 4);
        body.insert(HISTORY, Value::Array(history.take(HISTORY_COUNT).collect()));
        let body = Value::Object(body);
        self.target.put_checkpoint(&self.id, &body)?;
        self.source.put_checkpoint(&self.id, &body)
    }
}

fn sessions(checkpoint: &Value) -> &[Value] {
    checkpoint.get(HISTORY).and_then(Value::as_array).unwrap_or_default()
}

/// The position that two checkpoints agree on.
fn agreed(here: &Value, there: &Value) -> Option<Value> {
    if here.get(SESSION)? == there.get(SESSION)? && here.get(POSITION) == there.get(POSITION) {
        return here.get(POSITION).cloned();
    }
    // One side may have been written and not the other: then the older position of the session they share.
    let known = |session: &Value| sessions(there).iter().any(|other| other.get(SESSION) == session.get(SESSION));
    let shared = sessions(here).iter().find(|session| known(session))?;
    // The target is written first, so of one session the source's position is never the newer.
    shared.get(RECORDED).cloned()
}
