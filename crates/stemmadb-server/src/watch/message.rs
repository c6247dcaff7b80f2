//! What a client is told: JSON objects, each of a type.

use std::sync::Arc;

use stemmadb::{Document, Object, Path, Sequence, Snapshot, Value};

use crate::directory::Served;
use crate::documents::{Printer, Show};
use crate::error::{Failure, Result};
use crate::http::write_string;

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    /// Its type.
    kind: &'static str,
    /// The object, its type included.
    pub(super) json: Vec<u8>,
    /// What to come back with: only where a step from one answer to the next is whole.
    sequence: Option<String>,
}

impl Message {
    /// Everything the client has is void: the whole answer follows.
    pub(super) fn reset() -> Self {
        Message { kind: "reset", json: b"{\"type\":\"reset\"}".to_vec(), sequence: None }
    }

    /// A row is no more.
    pub(super) fn leave(id: &str, deleted: bool) -> Self {
        let mut json = head("leave", id);
        json.extend_from_slice(format!(",\"deleted\":{deleted}}}").as_bytes());
        Message { kind: "leave", json, sequence: None }
    }

    /// Everything up to a sequence was told.
    pub(super) fn state(sequence: String) -> Self {
        let json = format!("{{\"type\":\"state\",\"seq\":\"{sequence}\"}}").into_bytes();
        Message { kind: "state", json, sequence: Some(sequence) }
    }

    /// The watch is over.
    pub(super) fn failure(failure: &Failure) -> Self {
        let told = serde_json::json!({"type": "failure", "error": failure.error(), "reason": failure.reason()});
        Message { kind: "failure", json: told.to_string().into_bytes(), sequence: None }
    }

    /// Appends it as a server-sent event.
    pub(super) fn write_event(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("event: {}\ndata: ", self.kind).as_bytes());
        out.extend_from_slice(&self.json);
        if let Some(sequence) = &self.sequence {
            out.extend_from_slice(format!("\nid: {sequence}").as_bytes());
        }
        out.extend_from_slice(b"\n\n");
    }
}

fn head(kind: &str, id: &str) -> Vec<u8> {
    let mut json = format!("{{\"type\":\"{kind}\",\"id\":").into_bytes();
    write_string(&mut json, id);
    json
}

/// Tells of documents of one database.
#[derive(Clone)]
pub(super) struct MessageWriter {
    pub(super) served: Arc<Served>,
    /// What is told of each; none: all.
    pub(super) fields: Option<Arc<Vec<Path>>>,
}

impl MessageWriter {
    /// A row that came (`enter`) or became another (`change`), and its place in a window.
    pub(super) fn row(
        &self,
        kind: &'static str,
        snapshot: &Snapshot,
        document: &Document,
        at: Option<usize>,
    ) -> Result<Message> {
        let mut json = head(kind, document.id().as_str());
        json.extend_from_slice(format!(",\"rev\":\"{}\"", document.revision()).as_bytes());
        if let Some(at) = at {
            json.extend_from_slice(format!(",\"at\":{at}").as_bytes());
        }
        json.extend_from_slice(b",\"doc\":");
        match &self.fields {
            Some(fields) => projected(document, fields)?.write_json(&mut json),
            None => Printer { served: &self.served, snapshot, show: &Show::default() }.print(document, &mut json)?,
        }
        json.push(b'}');
        Ok(Message { kind, json, sequence: None })
    }

    /// Everything up to `sequence` was told.
    pub(super) fn state(&self, sequence: Sequence) -> Message {
        Message::state(self.served.sequence_text(sequence))
    }
}

/// The fields of a document, nested as they are in it.
fn projected(document: &Document, fields: &[Path]) -> Result<Value> {
    let mut whole = document.value()?;
    if let Some(whole) = whole.as_object_mut() {
        whole.insert("_id", document.id().as_str());
        whole.insert("_rev", document.revision().to_string());
    }
    let mut shown = Object::new();
    for field in fields {
        if let Some(value) = field.get(&whole) {
            insert(&mut shown, field, value.clone());
        }
    }
    Ok(shown.into())
}

fn insert(target: &mut Object, path: &Path, value: Value) {
    let mut segments: Vec<&str> = path.segments().collect();
    let Some(last) = segments.pop() else { return };
    let mut here = target;
    for segment in segments {
        if !here.contains(segment) {
            here.insert(segment, Object::new());
        }
        // What is there and no object came by a shorter path, with all that is in it.
        let Some(Value::Object(next)) = here.get_mut(segment) else { return };
        here = next;
    }
    here.insert(last, value);
}
