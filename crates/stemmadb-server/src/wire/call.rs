//! One request: its arguments, the client's rights, and the frames that answer it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use hyper::StatusCode;
use stemmadb::past::At;
use stemmadb::{Durability, Error, Object, Revision, Sequence, Snapshot, Value};
use stemmadb_wire::{Encoding, FrameKind, Operation, Request, write_frame};

use super::connection::Connection;
use super::failure::{Result, WireError};
use super::opened::OpenedDatabase;
use super::rights::{self, RightsOf};
use super::running::Running;
use super::server::WireServer;
use crate::accounts::{Identity, SessionCheck};
use crate::auth::{Restriction, User, refused};
use crate::design::WriteValidator;
use crate::directory::{Place, ServedDatabase};
use crate::virtual_databases::DelegatedRequest;
use crate::writes::WriteOptions;

/// The argument with the user in whose name the server of a virtual database sends a request.
pub(super) const ON_BEHALF: &str = "on_behalf";

/// A request that is executed.
pub(super) struct Call<'a> {
    pub(super) server: &'a Arc<WireServer>,
    pub(super) connection: &'a Arc<Connection>,
    pub(super) running: &'a Arc<Running>,
    pub(super) request: Request<'a>,
    pub(super) arguments: Value,
    pub(super) identity: Arc<Identity>,
    /// The user of a virtual database, of which this one is a shard, whose server has checked the rights.
    pub(super) delegated: Option<DelegatedRequest>,
    pub(super) id: u32,
    /// The reading role of this thread.
    pub(super) role: u64,
    /// The database, if it is one of a cluster.
    pub(super) opened: OnceCell<Arc<ServedDatabase>>,
}

fn missing(name: &str, what: &str) -> Error {
    Error::invalid(format!("the argument `{name}` is {what}"))
}

impl Call<'_> {
    /// Checks that the client may do what a route does, with the whole database or server.
    ///
    /// # Errors
    /// `Forbidden` if it may not, or only with some documents; `NotFound` if there is no such database.
    pub(super) fn allow(&self, rights: RightsOf, document: Option<&str>) -> Result<()> {
        match self.restriction(rights, document)? {
            None => Ok(()),
            Some(_) => Err(refused(&format!("the operation {:?}", self.request.operation)).into()),
        }
    }

    /// Checks that the client may do what a route does. Returns the restriction that the operation has to apply.
    ///
    /// # Errors
    /// `Forbidden` if it may not; `NotFound` if there is no such database.
    pub(super) fn restriction(&self, rights: RightsOf, document: Option<&str>) -> Result<Option<Restriction>> {
        let of_caller = rights::check(self.server, &self.identity, rights, self.request.database, document)?;
        Ok(self.delegated.as_ref().map_or(of_caller, |delegated| delegated.restriction.clone()))
    }

    /// Checks rights and opens the database, for an operation that can't be limited to some documents.
    ///
    /// # Errors
    /// Those of [`Call::allow`] and [`Call::open_part`].
    pub(super) fn open(&self, rights: RightsOf, document: Option<&str>) -> Result<OpenedDatabase> {
        self.allow(rights, document)?;
        self.open_allowed(rights, document, None)
    }

    /// Checks rights and opens the database. The operation has to apply the restriction, if there is one.
    ///
    /// # Errors
    /// Those of [`Call::restriction`] and [`Call::open_part`]; `Forbidden` if a restricted user reads the past.
    pub(super) fn open_restricted(
        &self,
        rights: RightsOf,
        document: Option<&str>,
    ) -> Result<(OpenedDatabase, Option<Restriction>)> {
        let restriction = self.restriction(rights, document)?;
        if restriction.is_some() && self.arguments.get("as_of").is_some() {
            return Err(refused("a state of the past (`as_of`)").into());
        }
        Ok((self.open_allowed(rights, document, restriction.as_ref())?, restriction))
    }

    /// Opens the database, or the part of a virtual one that a route is about, after rights were checked.
    fn open_allowed(
        &self,
        rights: RightsOf,
        document: Option<&str>,
        restriction: Option<&Restriction>,
    ) -> Result<OpenedDatabase> {
        let (directory, database) = (&self.server.state.directory, self.request.database);
        if self.identity.user.is_cluster_server()
            && let Some(shard) = self.server.wait(directory.open_cluster_shard(database))?
        {
            return self.checked(shard);
        }
        match self.server.wait(directory.open_unless_virtual(database))? {
            Some(served) => self.checked(served),
            None => self.open_part(rights, document, restriction),
        }
    }

    /// The database, if it is the shard that a request in the name of another user is for.
    fn checked(&self, served: Arc<ServedDatabase>) -> Result<OpenedDatabase> {
        match self.delegated.as_ref().map_or(Ok(()), |delegated| delegated.check(&served)) {
            Ok(()) => Ok(OpenedDatabase::new(served, None)),
            Err(failure) => Err(Error::unavailable(failure.reason().to_owned()).into()),
        }
    }

    /// The user whose request this is.
    pub(super) fn user(&self) -> &User {
        self.delegated.as_ref().map_or(&self.identity.user, |delegated| &delegated.user)
    }

    /// In a cluster: claims the database of the request, unless another server has it.
    ///
    /// # Errors
    /// `Unavailable` with the URL of the server that has it; `Closed`, so that clients ask another server, if this one
    /// does not reach the cluster or can't open it now; those of opening it.
    pub(super) fn find_database(&self) -> Result<()> {
        let (directory, database) = (&self.server.state.directory, self.request.database);
        if !directory.is_in_cluster() || database.is_empty() {
            return Ok(());
        }
        let creates = self.request.operation == Operation::CreateDatabase;
        // Clients keep an owner's URL, and ask this server again only after that owner has not answered.
        directory.forget_place(database);
        let placed =
            self.server.wait(directory.place(database, false, creates)).map_err(|failure| match failure.status() {
                StatusCode::SERVICE_UNAVAILABLE => Error::closed(failure.reason().to_owned()).into(),
                _ => WireError::from(failure),
            });
        match placed? {
            Place::Here(served) => served.into_iter().for_each(|served| drop(self.opened.set(served))),
            Place::There(owner) => return Err(WireError::elsewhere(database, owner)),
        }
        Ok(())
    }

    /// Checks, after the request was executed, that its database still belongs to this server.
    ///
    /// # Errors
    /// `Closed`, which clients answer by repeating reads and writes with keys, if another server of the cluster has
    /// taken it over.
    pub(super) fn check_owned(&self) -> Result<()> {
        match self.opened.get().is_none_or(|served| served.is_owned()) {
            true => Ok(()),
            false => Err(Error::closed("another server of the cluster has taken over the database").into()),
        }
    }

    /// The state that the request reads, if it is not the newest: an open snapshot, or one of the past.
    ///
    /// # Errors
    /// `Stopped` if the snapshot was closed; `NotFound` if the past is not kept.
    pub(super) fn past(&self, served: &OpenedDatabase) -> Result<Option<Snapshot>> {
        if let Some(state) = served.past_state()? {
            return Ok(Some(served.database().as_of(state)?));
        }
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
    /// `Forbidden` if it was, or the restriction that the stream applies has changed; `Stopped` if the request was
    /// cancelled; `Closed` if the server stops.
    pub(super) fn check_stream(&self, rights: RightsOf, restriction: Option<&Restriction>) -> Result<()> {
        self.running.refuse_if_cancelled()?;
        if self.server.is_stopping.load(Ordering::SeqCst) {
            return Err(Error::closed("the server is stopping").into());
        }
        let identity = self.connection.verified_identity(self.server)?;
        match rights::check(self.server, &identity, rights, self.request.database, None)?.as_ref() == restriction {
            true => Ok(()),
            false => Err(SessionCheck::refusal().into()),
        }
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

    /// The durability of this request's writes.
    pub(super) fn durability(&self) -> Durability {
        match self.optional_text("durability") {
            Some("none") => Durability::None,
            _ => self.server.state.config.durability,
        }
    }

    /// How documents are written for this client, who may read and write those of the restriction. `is_of_whole`:
    /// whether they are those of a virtual database.
    pub(super) fn write_options(&self, restriction: Option<Restriction>, is_of_whole: bool) -> WriteOptions {
        let (user, scripts) = (self.user().clone(), self.server.state.scripts.clone());
        let is_of_whole = is_of_whole || self.delegated.is_some();
        let validator = WriteValidator { user, scripts, restriction, is_of_whole };
        WriteOptions { validator, new_edits: true, durability: self.durability() }
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
