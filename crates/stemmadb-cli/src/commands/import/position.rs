//! How far an import of an input got: a `_local` document of the database, written in the same transaction as each
//! batch, so that it agrees with the documents even after the process was killed.

use stemmadb::{Object, Value};

use crate::database::Database;
use crate::failure::Result;
use crate::input::{InputIdentity, fnv_1a};

/// A place between two documents of an input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InputPlace {
    /// The number of bytes before it.
    pub(super) bytes: u64,
    /// The line of the document before it.
    pub(super) line: u64,
}

/// The stored position of one input.
pub(super) struct StoredPosition {
    id: String,
    identity: InputIdentity,
}

/// How far an import got.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ImportState {
    pub(super) place: InputPlace,
    /// The number of documents imported.
    pub(super) document_count: u64,
    /// Whether the input was imported to its end.
    pub(super) is_finished: bool,
}

impl StoredPosition {
    /// The position of the input with this identity.
    pub(super) fn of(identity: InputIdentity) -> Self {
        let InputIdentity { name, bytes, hash } = &identity;
        let key = fnv_1a(format!("{name}\0{bytes:?}\0{hash:x}").as_bytes());
        StoredPosition { id: format!("_local/import-{key:016x}"), identity }
    }

    /// The id of the document.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Reads how far an earlier import got.
    pub(super) fn read(&self, db: &Database) -> Result<Option<ImportState>> {
        let Some(body) = db.local_document(&self.id)? else { return Ok(None) };
        let number = |name| body.get(name).and_then(Value::as_u64).unwrap_or(0);
        Ok(Some(ImportState {
            place: InputPlace { bytes: number("position"), line: number("line") },
            document_count: number("documents"),
            is_finished: body.get("finished").and_then(Value::as_bool).unwrap_or(false),
        }))
    }

    /// The body of the document for `state`.
    pub(super) fn body(&self, state: &ImportState) -> Object {
        let mut body = Object::with_capacity(6);
        body.insert("input", self.identity.name.as_str());
        body.insert("bytes", self.identity.bytes.map_or(Value::Null, Value::from));
        body.insert("position", state.place.bytes);
        body.insert("line", state.place.line);
        body.insert("documents", state.document_count);
        body.insert("finished", state.is_finished);
        body
    }
}
