//! How far did it come? A `_local` document on both sides, in CouchDB's form.
//!
//! Each run is a session. Where both sides name the same session, its position is believed; else the newest session in both histories.
//!
//! A database may be deleted and made anew under a running session, or put back from an older copy. Then its checkpoint is not the one
//! that was left there, and the session ends with an error: the next one begins where both sides agree, mostly at the beginning.

use uuid::Uuid;

use super::Replicated;
use super::peer::{Peer, Selection};
use crate::value::{Object, Value};
use crate::{Error, Result};

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
    /// What the source and the target had as they were left.
    left: [Option<Mark>; 2],
}

/// What tells a checkpoint from another: its session and position.
#[derive(Clone, PartialEq)]
struct Mark(Option<Value>, Option<Value>);

impl Mark {
    fn of(checkpoint: &Value) -> Self {
        Mark(checkpoint.get(SESSION).cloned(), checkpoint.get(POSITION).cloned())
    }
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
        let left = [&here, &there].map(|found| found.as_ref().map(Mark::of));
        Ok(Checkpoints { source, target, id, session, history, position: agreed, left })
    }

    /// The position of the source that both sides agree on.
    pub(super) fn position(&self) -> Option<Value> {
        self.position.clone()
    }

    /// Notes on both sides how far this session came: at the target first, since it is the one to have everything.
    ///
    /// # Errors
    /// `Unavailable` if a side has not what was left there; those of the peers.
    pub(super) fn write(&mut self, done: &Replicated) -> Result<()> {
        self.verify()?;
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
        self.left[1] = Some(Mark::of(&body));
        self.source.put_checkpoint(&self.id, &body)?;
        self.left[0] = Some(Mark::of(&body));
        Ok(())
    }

    /// Looks whether both sides still have what was left there.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn verify(&self) -> Result<()> {
        self.refuse_if_replaced(self.target, self.left[1].as_ref(), "target")?;
        self.refuse_if_replaced(self.source, self.left[0].as_ref(), "source")
    }

    /// Refuses to go on where a checkpoint is gone, or is an older one of ours.
    fn refuse_if_replaced(&self, side: &dyn Peer, left: Option<&Mark>, which: &str) -> Result<()> {
        let Some(left) = left else { return Ok(()) };
        let found = side.get_checkpoint(&self.id)?.as_ref().map(Mark::of);
        match &found {
            Some(found) if found == left || self.is_of_another(found) => Ok(()),
            _ => Err(Error::unavailable(format!(
                "the {which} has not the checkpoint that was left there: it was made anew, or put back"
            ))
            .with_hint("begin again: that is done from where both sides agree")),
        }
    }

    /// Whether somebody who does the same left it: a session that is not known here, or one before this that went on since.
    fn is_of_another(&self, found: &Mark) -> bool {
        let Some(session) = &found.0 else { return true };
        let known = self.history.iter().find(|known| known.get(SESSION) == Some(session));
        let went_on = |known: &Value| number(found.1.as_ref()) > number(known.get(RECORDED));
        session.as_str() != Some(&self.session) && known.is_none_or(went_on)
    }
}

/// The number that a position is, or begins with.
fn number(position: Option<&Value>) -> Option<u64> {
    let position = position?;
    let leading = |text: &str| text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok();
    position.as_u64().or_else(|| leading(position.as_str()?))
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
