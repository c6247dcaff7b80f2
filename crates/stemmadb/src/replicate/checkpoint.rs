//! Replication checkpoints: `_local` documents on both sides, in CouchDB's format.
//!
//! Each run is a session. If both checkpoints name the same session, its position is used; otherwise that of the newest
//! session in both histories.
//!
//! A database may be deleted and recreated during a session, or restored from an older copy. Then its checkpoint
//! differs from the one this session wrote, and the session ends with an error: the next one starts where both sides
//! agree, usually at the beginning.

use uuid::Uuid;

use super::peer::{Peer, ReplicationScope};
use super::{PeerRef, ReplicationStats};
use crate::value::{Object, Value};
use crate::{Error, Result};

/// Maximum number of sessions kept in the history.
const HISTORY_COUNT: usize = 50;

const SESSION: &str = "session_id";
const POSITION: &str = "source_last_seq";
const HISTORY: &str = "history";
const RECORDED: &str = "recorded_seq";

pub(super) struct Checkpoints<'a> {
    source: PeerRef<'a>,
    target: PeerRef<'a>,
    id: String,
    session: String,
    /// Earlier sessions, newest first.
    history: Vec<Value>,
    position: Option<Value>,
    /// The checkpoints of the source and the target as this session last read or wrote them.
    expected: [Option<CheckpointMark>; 2],
}

/// Identifies a version of a checkpoint: its session and position.
#[derive(Clone, PartialEq)]
struct CheckpointMark(Option<Value>, Option<Value>);

impl CheckpointMark {
    fn from_checkpoint(checkpoint: &Value) -> Self {
        CheckpointMark(checkpoint.get(SESSION).cloned(), checkpoint.get(POSITION).cloned())
    }
}

impl<'a> Checkpoints<'a> {
    pub(super) fn open(
        source: PeerRef<'a>,
        target: PeerRef<'a>,
        scope: &ReplicationScope,
        filter_code: &str,
    ) -> Result<Self> {
        let scope = scope.checkpoint_key(filter_code);
        let name = format!("{}\n{}\n{scope}", source.identity()?, target.identity()?);
        let id = format!("_local/{}", &blake3::hash(name.as_bytes()).to_hex()[..32]);
        let (here, there) = (source.get_checkpoint(&id)?, target.get_checkpoint(&id)?);
        let agreed = match (&here, &there) {
            (Some(here), Some(there)) => agreed_position(here, there),
            _ => None,
        };
        let history = match &agreed {
            Some(_) => here.as_ref().map(sessions).unwrap_or_default().to_vec(),
            None => Vec::new(),
        };
        let session = Uuid::new_v4().simple().to_string();
        let expected = [&here, &there].map(|found| found.as_ref().map(CheckpointMark::from_checkpoint));
        Ok(Checkpoints { source, target, id, session, history, position: agreed, expected })
    }

    /// The id of this session.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// The source position that both sides agree on.
    pub(super) fn position(&self) -> Option<Value> {
        self.position.clone()
    }

    /// Records this session's progress on both sides: at the target first, because it is the side that must have all
    /// documents.
    ///
    /// # Errors
    /// `Unavailable` if a side no longer has its expected checkpoint; the errors of the peers.
    pub(super) fn write(&mut self, stats: &ReplicationStats) -> Result<()> {
        self.verify_unchanged()?;
        let mut entry = Object::new();
        entry.insert(SESSION, self.session.as_str());
        entry.insert(RECORDED, stats.source_position.clone());
        entry.insert("missing_checked", stats.checked_count);
        entry.insert("missing_found", stats.missing_count);
        entry.insert("docs_read", stats.read_count);
        entry.insert("docs_written", stats.written_count);
        entry.insert("doc_write_failures", stats.failed_count);
        let history = std::iter::once(Value::Object(entry)).chain(self.history.iter().cloned());
        let mut body = Object::new();
        body.insert(SESSION, self.session.as_str());
        body.insert(POSITION, stats.source_position.clone());
        body.insert("replication_id_version", 4);
        body.insert(HISTORY, Value::Array(history.take(HISTORY_COUNT).collect()));
        let body = Value::Object(body);
        self.target.put_checkpoint(&self.id, &body)?;
        self.expected[1] = Some(CheckpointMark::from_checkpoint(&body));
        self.source.put_checkpoint(&self.id, &body)?;
        self.expected[0] = Some(CheckpointMark::from_checkpoint(&body));
        Ok(())
    }

    /// Verifies that both sides still have the expected checkpoint.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn verify_unchanged(&self) -> Result<()> {
        self.verify_side(&*self.target, self.expected[1].as_ref(), "target")?;
        self.verify_side(&*self.source, self.expected[0].as_ref(), "source")
    }

    /// Fails if a checkpoint is missing, or is an older one of this session or its predecessors.
    fn verify_side(&self, side: &dyn Peer, expected: Option<&CheckpointMark>, which: &str) -> Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        let found = side.get_checkpoint(&self.id)?.as_ref().map(CheckpointMark::from_checkpoint);
        match &found {
            Some(found) if found == expected || self.is_from_another_session(found) => Ok(()),
            _ => Err(Error::unavailable(format!(
                "the {which} does not have the checkpoint written last: it was recreated, or restored from an older \
                copy"
            ))
            .with_hint("start again: it continues where both sides agree")),
        }
    }

    /// Whether a concurrent replication wrote the checkpoint: by a session unknown here, or by an earlier session that
    /// has progressed since.
    fn is_from_another_session(&self, found: &CheckpointMark) -> bool {
        let Some(session) = &found.0 else { return true };
        let known = self.history.iter().find(|known| known.get(SESSION) == Some(session));
        let has_progressed = |known: &Value| leading_number(found.1.as_ref()) > leading_number(known.get(RECORDED));
        session.as_str() != Some(&self.session) && known.is_none_or(has_progressed)
    }
}

/// The leading number of a position.
fn leading_number(position: Option<&Value>) -> Option<u64> {
    let position = position?;
    let leading = |text: &str| text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok();
    position.as_u64().or_else(|| leading(position.as_str()?))
}

fn sessions(checkpoint: &Value) -> &[Value] {
    checkpoint.get(HISTORY).and_then(Value::as_array).unwrap_or_default()
}

/// The position that two checkpoints agree on.
fn agreed_position(here: &Value, there: &Value) -> Option<Value> {
    if here.get(SESSION)? == there.get(SESSION)? && here.get(POSITION) == there.get(POSITION) {
        return here.get(POSITION).cloned();
    }
    // One side may have been written without the other: use the older position of their common session.
    let known = |session: &Value| sessions(there).iter().any(|other| other.get(SESSION) == session.get(SESSION));
    let shared = sessions(here).iter().find(|session| known(session))?;
    // The target is written first, so the source's position of a common session is never the newer one.
    shared.get(RECORDED).cloned()
}
