//! One request: its arguments, the client's rights, and the frames that answer it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use stemmadb::past::At;
use stemmadb::{Error, Object, Revision, Sequence, Snapshot, Value};
use stemmadb_wire::{Encoding, FrameKind, Request, write_frame};

use super::connection::Connection;
use super::failure::Result;
use super::rights::{self, RightsOf};
use super::running::Running;
use super::server::WireServer;
use crate::accounts::Identity;
use crate::design::WriteValidator;
use crate::directory::ServedDatabase;
use crate::writes::WriteOptions;

/// A request that is executed.
pub(super) struct Call<'a> {
    pub(super) server: &'a Arc<WireServer>,
    pub(super) connection: &'a Arc<Connection>,
    pub(super) running: &'a Arc<Running>,
    pub(super) request: Request<'a>,
    pub(super) arguments: Value,
    pub(super) identity: Arc<Identity>,
    pub(super) id: u32,
    /// The reading role of this thread.
    pub(super) role: u64,
}

fn missing(name: &str, what: &str) -> Error {
    Error::invalid(format!("the argument `{name}` is {what}"))
}

impl Call<'_> {
    /// Checks that the client may do what a route does.
    ///
    /// # Errors
    /// `Forbidden` if it may not; `NotFound` if there is no such database.
    pub(super) fn allow(&self, rights: RightsOf, document: Option<&str>) -> Result<()> {
        rights::check(self.server, &self.identity, rights, self.request.database, document)
    }

    /// Checks rights and opens the database.
    ///
    /// # Errors
    /// Those of [`Call::allow`].
    pub(super) fn open(&self, rights: RightsOf, document: Option<&str>) -> Result<Arc<ServedDatabase>> {
        self.allow(rights, document)?;
        Ok(self.server.wait(self.server.state.directory.open_database(self.request.database))?)
    }

    /// The state that the request reads, if it is not the newest: an open snapshot, or one of the past.
    ///
    /// # Errors
    /// `Stopped` if the snapshot was closed; `NotFound` if the past is not kept.
    pub(super) fn past(&self, served: &ServedDatabase) -> Result<Option<Snapshot>> {
        if let Some(number) = self.optional_number("snapshot")? {
            let user = self.identity.user.name.as_deref();
            return self.server.snapshots.get(number, self.request.database, user).map(Some);
        }
        match self.arguments.get("as_of") {
            Some(_) => Ok(Some(served.database().as_of(self.point("as_of")?)?)),
            None => Ok(None),
        }
    }

    /// Refuses to continue a long stream if the client's access was revoked.
    ///
    /// # Errors
    /// `Forbidden` if it was; `Stopped` if the request was cancelled; `Closed` if the server stops.
    pub(super) fn check_stream(&self, rights: RightsOf) -> Result<()> {
        self.running.refuse_if_cancelled()?;
        if self.server.is_stopping.load(Ordering::SeqCst) {
            return Err(Error::closed("the server is stopping").into());
        }
        let identity = self.connection.verified_identity(self.server)?;
        rights::check(self.server, &identity, rights, self.request.database, None)
    }

    /// Takes a credit of the request's stream; waits until the client grants one.
    ///
    /// # Errors
    /// `Stopped` if the request is cancelled, or the client stops reading.
    pub(super) fn take_credit(&self) -> Result<()> {
        self.running.refuse_if_cancelled()?;
        if self.running.try_take_credit() {
            return Ok(());
        }
        // The credit arrives on this connection, which another thread has to read.
        self.release_reading();
        self.running.take_credit(self.server.state.config.wire.idle_timeout)
    }

    /// Lets another thread read the connection, because this request lasts long. Returns whether one does.
    pub(super) fn release_reading(&self) -> bool {
        self.connection.hand_over(self.role)
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.connection.encoding()
    }

    /// A text argument.
    pub(super) fn text(&self, name: &str) -> Result<&str> {
        self.arguments.get(name).and_then(Value::as_str).ok_or_else(|| missing(name, "no string").into())
    }

    /// A text argument that may be absent.
    pub(super) fn optional_text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).and_then(Value::as_str)
    }

    /// A number argument that may be absent.
    pub(super) fn optional_number(&self, name: &str) -> Result<Option<u64>> {
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Ok(Some(value.as_u64().ok_or_else(|| missing(name, "no whole number"))?)),
        }
    }

    /// A Boolean argument, false if it is absent.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.arguments.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// An array argument, empty if it is absent.
    pub(super) fn list(&self, name: &str) -> Result<&[Value]> {
        match self.arguments.get(name) {
            None => Ok(&[]),
            Some(value) => Ok(value.as_array().ok_or_else(|| missing(name, "no array"))?),
        }
    }

    /// An array of strings.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>> {
        let texts = self.list(name)?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>();
        texts.ok_or_else(|| missing(name, "no array of strings").into())
    }

    /// A point in the past: a sequence, `{"time_us": …}` or `{"ago_us": …}`.
    pub(super) fn point(&self, name: &str) -> Result<At> {
        let value = self.arguments.get(name).ok_or_else(|| missing(name, "missing"))?;
        if let Some(sequence) = value.as_u64() {
            return Ok(At::Sequence(Sequence::new(sequence)));
        }
        let duration = |field| value.get(field).and_then(Value::as_u64).map(Duration::from_micros);
        let time = duration("time_us").map(|time| At::Time(UNIX_EPOCH + time));
        time.or(duration("ago_us").map(At::Ago)).ok_or_else(|| missing(name, "no point in the past").into())
    }

    /// How documents are written for this client.
    pub(super) fn write_options(&self) -> WriteOptions {
        let state = &self.server.state;
        let durability = match self.optional_text("durability") {
            Some("none") => stemmadb::Durability::None,
            _ => state.config.durability,
        };
        let validator =
            WriteValidator { user: self.identity.user.clone(), scripts: state.scripts.clone(), restriction: None };
        WriteOptions { validator, new_edits: true, durability }
    }

    /// The last frame of the request, with a value.
    pub(super) fn reply(&self, value: &Value) -> Vec<u8> {
        self.reply_with(|out| self.encoding().write(value, out))
    }

    /// The last frame of the request, with an encoded value.
    pub(super) fn reply_with(&self, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        write_frame(&mut bytes, FrameKind::Reply, self.id, write);
        bytes
    }
}

/// An object of these fields.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().collect::<Object>())
}

/// Parses a revision.
///
/// # Errors
/// `Invalid` if it is malformed.
pub(super) fn revision(text: &str) -> Result<Revision> {
    Ok(text.parse::<Revision>()?)
}
