//! The logs of databases of test builds whose options say nothing about them: whole test suites run with all logs in a
//! store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use uuid::Uuid;

use super::MemoryLogStorage;
use super::log_server::LogClient;
use crate::vfs::LogStorage;

/// The variable of the environment that puts the logs of databases of test builds into a store, if their options set
/// none: `memory`, or the address of [`serve_logs`](super::serve_logs).
///
/// A directory that belongs to no log yet gets a new one, and every database in memory. A directory that has its log in
/// it, because a test has put it there, keeps that.
pub const LOG_STORAGE_VARIABLE: &str = "STEMMA_TEST_LOG_STORAGE";

/// The log storage of the database at `path`, or of a new one in memory, if test builds use one.
pub(crate) fn default_log_storage(path: Option<&Path>) -> Option<Arc<dyn LogStorage>> {
    static STORE: OnceLock<Option<Store>> = OnceLock::new();
    let store = STORE.get_or_init(|| match std::env::var(LOG_STORAGE_VARIABLE).ok()?.as_str() {
        "memory" => Some(Store::Memory(Mutex::default())),
        address => Some(Store::Server(LogClient::new(address))),
    });
    let store = store.as_ref().filter(|_| path.is_none_or(|path| !path.join("log").exists()))?;
    // The directory says which log it belongs to.
    let id = path.and_then(|path| std::fs::read_to_string(path.join("LOG")).ok());
    let id = id.and_then(|id| Uuid::parse_str(&id).ok());
    Some(match store {
        Store::Memory(logs) => in_memory(&mut logs.lock().unwrap_or_else(PoisonError::into_inner), id),
        Store::Server(client) => client.open(id).expect("the process that serves the logs of tests answers"),
    })
}

enum Store {
    Memory(Mutex<HashMap<Uuid, MemoryLogStorage>>),
    Server(Arc<LogClient>),
}

/// The log with this id, or a new one.
fn in_memory(logs: &mut HashMap<Uuid, MemoryLogStorage>, id: Option<Uuid>) -> Arc<dyn LogStorage> {
    if let Some(log) = id.and_then(|id| logs.get(&id)) {
        return Arc::new(log.another_owner());
    }
    let log = MemoryLogStorage::new();
    let owner = Arc::new(log.another_owner());
    logs.insert(log.id(), log);
    owner
}
