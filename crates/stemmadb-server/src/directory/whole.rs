//! What a shard takes from its virtual database: the name, the `_security`, and the design documents with validation
//! functions or indexes, wherever these are stored.
//!
//! A shard on the server of its virtual database is given it. On another server it is a local document, which only
//! administrators write: it marks a database as a shard.

use std::collections::VecDeque;
use std::sync::Arc;

use md5::{Digest as _, Md5};
use parking_lot::RwLock;
use stemmadb::{Database, Object, Value};

use crate::auth::Security;
use crate::error::{Failure, Result};

/// The local document of a shard on another server.
pub(crate) const WHOLE_DOCUMENT: &str = "_local/virtual-database";

/// The prefix of the local documents with the results of writes of the wire protocol that may be repeated.
pub(crate) const WRITE_RECORDS: &str = "_local/wire/";

/// How many former versions requests may still name.
const FORMER_VERSIONS: usize = 16;

/// What a shard takes from its virtual database.
#[derive(Debug)]
pub(crate) struct WholeDatabase {
    /// The name of the virtual database.
    pub(crate) name: String,
    pub(crate) security: Arc<Security>,
    /// The design documents with validation functions or indexes.
    pub(crate) designs: Vec<Value>,
    /// A hash of the rest.
    pub(crate) version: String,
}

impl WholeDatabase {
    pub(crate) fn new(name: &str, security: Arc<Security>, designs: Vec<Value>) -> Self {
        let mut whole = WholeDatabase { name: name.to_owned(), security, designs, version: String::new() };
        let digest = Md5::digest(whole.to_value().to_json());
        whole.version = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        whole
    }

    /// As it is stored.
    pub(crate) fn to_value(&self) -> Value {
        let mut stored = Object::new();
        stored.insert("name", self.name.as_str());
        stored.insert("security", self.security.value().clone());
        stored.insert("designs", self.designs.clone());
        stored.into()
    }

    fn parse(stored: &Value) -> Result<Self> {
        let damaged = || Failure::internal(format!("{WHOLE_DOCUMENT} is malformed"));
        let name = stored.get("name").and_then(Value::as_str).ok_or_else(damaged)?;
        let security = Security::parse(stored.get("security").cloned().ok_or_else(damaged)?)?;
        let designs = stored.get("designs").and_then(Value::as_array).ok_or_else(damaged)?;
        Ok(WholeDatabase::new(name, Arc::new(security), designs.to_vec()))
    }
}

/// The virtual database of a database, if it is a shard.
#[derive(Default)]
pub(super) struct WholeSlot(RwLock<WholeState>);

#[derive(Default)]
struct WholeState {
    is_known: bool,
    whole: Option<Arc<WholeDatabase>>,
    former: VecDeque<String>,
}

impl WholeSlot {
    /// Reads the local document, unless it was read or given before.
    pub(super) fn get(&self, database: &Database) -> Option<Arc<WholeDatabase>> {
        {
            let state = self.0.read();
            if state.is_known {
                return state.whole.clone();
            }
        }
        match stored(database) {
            Ok(whole) => {
                let mut state = self.0.write();
                if !state.is_known {
                    (state.is_known, state.whole) = (true, whole.map(Arc::new));
                }
                state.whole.clone()
            }
            Err(failure) => {
                tracing::error!(target: "stemma::database", "reading the virtual database of a shard: {failure}");
                None
            }
        }
    }

    pub(super) fn set(&self, whole: Arc<WholeDatabase>) {
        let mut state = self.0.write();
        let former = state.whole.replace(whole);
        state.former.extend(former.map(|former| former.version.clone()));
        if state.former.len() > FORMER_VERSIONS {
            state.former.pop_front();
        }
        state.is_known = true;
    }

    /// Reads the local document again, which was written.
    pub(super) fn read_again(&self, database: &Database) -> Result<()> {
        match stored(database)? {
            Some(whole) => self.set(Arc::new(whole)),
            None => *self.0.write() = WholeState { is_known: true, ..WholeState::default() },
        }
        Ok(())
    }

    /// Whether requests may name a version: the current one, or a former one, in whose place the current one is used.
    pub(super) fn has(&self, database: &Database, version: &str) -> bool {
        self.get(database).is_some_and(|whole| whole.version == version)
            || self.0.read().former.iter().any(|former| former == version)
    }
}

fn stored(database: &Database) -> Result<Option<WholeDatabase>> {
    let stored = database.local_documents().get(WHOLE_DOCUMENT)?;
    stored.map(|(_, stored)| WholeDatabase::parse(&stored)).transpose()
}
