//! The native object behind databases, transactions and earlier states.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use stemmadb::{Error, Options, Result};
use stemmadb_client::bindings::Reader;
use stemmadb_client::{AnyDatabase, Client, ClientOptions};

use crate::arguments::Arguments;
use crate::calls::{Answer, Calls};
use crate::operations;
use crate::pool::CALLS;

/// The location of a database that is gone when it is closed.
const IN_MEMORY: &str = ":memory:";

/// A state of a database that calls can be made to.
#[napi]
pub struct Handle {
    /// Only `None` while it is dropped.
    state: Option<Arc<State>>,
}

/// What the calls of a handle share.
pub(crate) struct State {
    reader: Reader,
    is_closed: AtomicBool,
}

impl State {
    /// What is read.
    ///
    /// # Errors
    /// `Closed` after `close`.
    pub(crate) fn reader(&self) -> Result<&Reader> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::closed("the database is closed")),
            false => Ok(&self.reader),
        }
    }

    /// Closes the database. Closing it again does nothing.
    pub(crate) fn close(&self) -> Result<()> {
        match &self.reader {
            Reader::Database(database) if !self.is_closed.swap(true, Ordering::AcqRel) => match database {
                AnyDatabase::Embedded(database) => database.clone().close(),
                AnyDatabase::Remote(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl Handle {
    pub(crate) fn new(reader: Reader) -> Self {
        Handle { state: Some(Arc::new(State { reader, is_closed: AtomicBool::new(false) })) }
    }

    fn state(&self) -> napi::Result<Arc<State>> {
        self.state.clone().ok_or_else(|| napi::Error::from_reason("the object was dropped"))
    }
}

/// A database may have to flush when it is dropped: not on the event loop.
impl Drop for Handle {
    fn drop(&mut self) {
        let state = self.state.take();
        CALLS.run(Box::new(move || drop(state)));
    }
}

#[napi]
impl Handle {
    /// Opens a database; the answer is its handle.
    #[napi]
    pub fn open(calls: &Calls, number: f64, arguments: String) {
        calls.run(&CALLS, number, move || {
            let database = open(&mut Arguments::parse(&arguments)?)?;
            Ok(Answer::Handle(Handle::new(Reader::Database(database))))
        });
    }

    /// Makes a call; see `operations`.
    #[napi]
    pub fn call(&self, calls: &Calls, number: f64, operation: String, arguments: String) -> napi::Result<()> {
        let state = self.state()?;
        calls.run(&CALLS, number, move || operations::run(&state, &operation, Arguments::parse(&arguments)?));
        Ok(())
    }

    /// Attaches a file to a document.
    #[napi]
    pub fn attach(&self, calls: &Calls, number: f64, arguments: String, content: Buffer) -> napi::Result<()> {
        let (state, content) = (self.state()?, content.to_vec());
        calls.run(&CALLS, number, move || {
            operations::documents::attach(state.reader()?.database()?, Arguments::parse(&arguments)?, content)
        });
        Ok(())
    }
}

fn durability(arguments: &mut Arguments) -> Result<stemmadb::Durability> {
    let interval = arguments.milliseconds("interval")?.unwrap_or(std::time::Duration::from_millis(100));
    Ok(match arguments.optional_text("durability")?.as_deref() {
        None | Some("sync") => stemmadb::Durability::Sync,
        Some("none") => stemmadb::Durability::None,
        Some("interval") => stemmadb::Durability::Interval(interval),
        Some(name) => {
            let error = Error::invalid(format!("there is no durability {name:?}"));
            return Err(error.with_hint("\"sync\", \"interval\" or \"none\""));
        }
    })
}

/// The key of an encrypted database: a passphrase, or the 32 bytes of a key as hexadecimal digits.
fn key(arguments: &mut Arguments) -> Result<Option<stemmadb::encryption::EncryptionKey>> {
    if let Some(passphrase) = arguments.optional_text("passphrase")? {
        return stemmadb::encryption::EncryptionKey::from_passphrase(&passphrase).map(Some);
    }
    let Some(digits) = arguments.optional_text("key")? else { return Ok(None) };
    let byte = |at: usize| digits.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..digits.len() / 2).map(byte).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| Error::invalid("a key has 32 bytes; a passphrase is a string"))?;
    Ok(Some(stemmadb::encryption::EncryptionKey::from_callback(move || Ok(bytes))))
}

fn open(arguments: &mut Arguments) -> Result<AnyDatabase> {
    let location = arguments.text("location")?;
    let durability = durability(arguments)?;
    if location.contains("://") {
        let mut options = ClientOptions::new();
        if let Some(timeout) = arguments.milliseconds("timeout")? {
            options = options.timeout(timeout);
        }
        let database = Client::connect_with(&location, options)?
            .default_database()
            .ok_or_else(|| Error::invalid("the URL names no database").with_hint("stemma://host:5985/database"))?;
        return Ok(AnyDatabase::Remote(match durability {
            stemmadb::Durability::None => database.with_durability(durability),
            _ => database,
        }));
    }
    let mut options = Options::new()
        .durability(durability)
        .create(!arguments.flag("existing")?)
        .read_only(arguments.flag("readOnly")?);
    if let Some(key) = key(arguments)? {
        options = options.encryption(key);
    }
    if let Some(bytes) = arguments.count("cacheBytes")? {
        options = options.cache_bytes(bytes);
    }
    let database = match location.as_str() {
        IN_MEMORY => stemmadb::Database::in_memory_with(options),
        path => stemmadb::Database::open_with(path, options),
    };
    database.map(AnyDatabase::Embedded)
}
