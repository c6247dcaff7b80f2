//! Messages of a live query: JSON objects with a `type` field.

use std::sync::Arc;

use stemmadb::messages::Message;
use stemmadb::{Document, Object, Path, PathChange, PathEvent, Sequence, Snapshot, Value};

use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions};
use crate::error::{Failure, Result};
use crate::http::write_string;

/// A message to the client of a live query.
#[derive(Debug)]
pub(super) struct WatchMessage {
    /// The value of `type`.
    kind: &'static str,
    /// The whole object, including its type.
    pub(super) json: Vec<u8>,
    /// The sequence from which a client can resume; only on messages that complete a result.
    sequence: Option<String>,
}

impl WatchMessage {
    /// Tells the client to discard its result: the whole result follows.
    pub(super) fn reset() -> Self {
        WatchMessage { kind: "reset", json: b"{\"type\":\"reset\"}".to_vec(), sequence: None }
    }

    /// A row with its document as another server has printed it.
    pub(super) fn printed(kind: &'static str, document: &Document, text: &[u8]) -> Self {
        let mut json = row_head(kind, document);
        json.extend_from_slice(b",\"doc\":");
        json.extend_from_slice(text);
        json.push(b'}');
        WatchMessage { kind, json, sequence: None }
    }

    /// A row with some fields of its document.
    pub(super) fn projected(kind: &'static str, document: &Document, fields: &[Path]) -> Result<Self> {
        let mut text = Vec::new();
        project(document, fields)?.write_json(&mut text);
        Ok(Self::printed(kind, document, &text))
    }

    /// A row left the result.
    pub(super) fn leave(id: &str, deleted: bool) -> Self {
        let mut json = head("leave", id);
        json.extend_from_slice(format!(",\"deleted\":{deleted}}}").as_bytes());
        WatchMessage { kind: "leave", json, sequence: None }
    }

    /// The client's result is complete as of a sequence.
    pub(super) fn state(sequence: String) -> Self {
        let json = format!("{{\"type\":\"state\",\"seq\":\"{sequence}\"}}").into_bytes();
        WatchMessage { kind: "state", json, sequence: Some(sequence) }
    }

    /// The subscription has begun: later messages are received.
    pub(super) fn subscribed() -> Self {
        WatchMessage { kind: "subscribed", json: b"{\"type\":\"subscribed\"}".to_vec(), sequence: None }
    }

    /// A message that was published to a topic.
    pub(super) fn published(message: &Message) -> Self {
        let mut json = b"{\"type\":\"message\",\"topic\":".to_vec();
        write_string(&mut json, &message.topic);
        json.extend_from_slice(b",\"payload\":");
        message.payload.write_json(&mut json);
        json.push(b'}');
        WatchMessage { kind: "message", json, sequence: None }
    }

    /// The client reads too slowly: this many messages were dropped since the subscription began.
    pub(super) fn dropped(count: u64) -> Self {
        let json = format!("{{\"type\":\"dropped\",\"count\":{count}}}").into_bytes();
        WatchMessage { kind: "dropped", json, sequence: None }
    }

    /// The live query ends with an error.
    pub(super) fn failure(failure: &Failure) -> Self {
        let object = serde_json::json!({"type": "failure", "error": failure.error(), "reason": failure.reason()});
        WatchMessage { kind: "failure", json: object.to_string().into_bytes(), sequence: None }
    }

    /// Appends the message as a server-sent event.
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

/// The beginning of a row, with its revision.
fn row_head(kind: &str, document: &Document) -> Vec<u8> {
    let mut json = head(kind, document.id().as_str());
    json.extend_from_slice(format!(",\"rev\":\"{}\"", document.revision()).as_bytes());
    json
}

/// Creates the messages of a live query.
#[derive(Clone)]
pub(super) struct MessageWriter {
    pub(super) served: Arc<ServedDatabase>,
    /// The fields to return; `None` for whole documents.
    pub(super) fields: Option<Arc<Vec<Path>>>,
}

impl MessageWriter {
    /// A row that entered the result (`enter`) or changed (`change`), with its position in a sorted result.
    pub(super) fn row(
        &self,
        kind: &'static str,
        snapshot: &Snapshot,
        document: &Document,
        position: Option<usize>,
    ) -> Result<WatchMessage> {
        let mut json = row_head(kind, document);
        if let Some(position) = position {
            json.extend_from_slice(format!(",\"at\":{position}").as_bytes());
        }
        json.extend_from_slice(b",\"doc\":");
        match &self.fields {
            Some(fields) => project(document, fields)?.write_json(&mut json),
            None => DocumentPrinter { served: &self.served, snapshot, show: &ShowOptions::default() }
                .print(document, &mut json)?,
        }
        json.push(b'}');
        Ok(WatchMessage { kind, json, sequence: None })
    }

    /// A document in which values at matching paths changed.
    pub(super) fn path_change(&self, snapshot: &Snapshot, change: &PathChange) -> Result<WatchMessage> {
        let mut message = match &change.document {
            Some(document) => self.row("change", snapshot, document, None)?,
            None => {
                let mut json = head("change", change.id.as_str());
                json.extend_from_slice(b",\"deleted\":true}");
                WatchMessage { kind: "change", json, sequence: None }
            }
        };
        if !change.paths.is_empty() {
            message.json.pop();
            message.json.extend_from_slice(b",\"paths\":[");
            for (at, event) in change.paths.iter().enumerate() {
                let (kind, path) = match event {
                    PathEvent::Added(path) => ("added", path),
                    PathEvent::Changed(path) => ("changed", path),
                    PathEvent::Removed(path) => ("removed", path),
                };
                let separator = if at == 0 { "" } else { "," };
                message.json.extend_from_slice(format!("{separator}{{\"type\":\"{kind}\",\"path\":").as_bytes());
                write_string(&mut message.json, path);
                message.json.push(b'}');
            }
            message.json.extend_from_slice(b"]}");
        }
        Ok(message)
    }

    /// The client's result is complete as of `sequence`.
    pub(super) fn state(&self, sequence: Sequence) -> WatchMessage {
        WatchMessage::state(self.served.sequence_text(sequence))
    }
}

/// Extracts fields from a document, keeping their nesting.
fn project(document: &Document, fields: &[Path]) -> Result<Value> {
    let mut whole = document.value()?;
    if let Some(whole) = whole.as_object_mut() {
        whole.insert("_id", document.id().as_str());
        whole.insert("_rev", document.revision().to_string());
    }
    let mut projection = Object::new();
    for field in fields {
        if let Some(value) = field.get(&whole) {
            insert(&mut projection, field, value.clone());
        }
    }
    Ok(projection.into())
}

fn insert(target: &mut Object, path: &Path, value: Value) {
    let mut segments: Vec<&str> = path.segments().collect();
    let Some(last) = segments.pop() else { return };
    let mut object = target;
    for segment in segments {
        if !object.contains(segment) {
            object.insert(segment, Object::new());
        }
        // A shorter path has already inserted this value as a whole, if it is not an object.
        let Some(Value::Object(next)) = object.get_mut(segment) else { return };
        object = next;
    }
    object.insert(last, value);
}
