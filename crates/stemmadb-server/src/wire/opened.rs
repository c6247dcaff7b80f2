//! The database that an operation reads or writes: one with documents of its own, or a part of a virtual one.
//!
//! The part is that of the HTTP route whose rights the operation needs: the shard of its document, or what the virtual
//! database stores itself. Operations about all documents of a virtual database are in `operations::shards`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use stemmadb::past::At;

use super::call::Call;
use super::failure::{Result, ShardElsewhere, WireError};
use super::rights::RightsOf;
use crate::auth::{Restriction, refused};
use crate::directory::ServedDatabase;
use crate::error::Failure;
use crate::routes::{VirtualUse, time_of_all_shards, virtual_use};
use crate::virtual_databases::{EnteredVirtual, RemoteShard, Shard};

/// An open database, or a part of a virtual one, where documents stay as long as this exists.
pub(super) struct OpenedDatabase {
    served: Arc<ServedDatabase>,
    entered: Option<EnteredVirtual>,
}

impl Deref for OpenedDatabase {
    type Target = Arc<ServedDatabase>;

    fn deref(&self) -> &Arc<ServedDatabase> {
        &self.served
    }
}

impl OpenedDatabase {
    /// A database with documents of its own, or a part of a virtual one.
    pub(super) fn new(served: Arc<ServedDatabase>, entered: Option<EnteredVirtual>) -> Self {
        OpenedDatabase { served, entered }
    }

    /// What a virtual database stores itself.
    pub(super) fn own_of(entered: EnteredVirtual) -> Self {
        OpenedDatabase { served: entered.open.own.clone(), entered: Some(entered) }
    }

    /// The virtual database of which this is a part.
    pub(super) fn entered(&self) -> Option<&EnteredVirtual> {
        self.entered.as_ref()
    }

    /// The database that stays the same whatever moves: of a virtual one, what it stores itself.
    pub(super) fn own(&self) -> &Arc<ServedDatabase> {
        self.entered.as_ref().map_or(&self.served, |entered| &entered.open.own)
    }

    /// Its shards on other servers, if it is virtual.
    pub(super) fn shards_there(&self) -> Vec<Arc<RemoteShard>> {
        let layout = self.entered.as_ref().map(EnteredVirtual::layout);
        let remote = |shard: &Shard| match shard {
            Shard::Here(_) => None,
            Shard::There(remote) => Some(remote.clone()),
        };
        layout.map_or_else(Vec::new, |layout| layout.all().iter().filter_map(remote).collect())
    }

    /// This database; of a virtual one, its shards on this server, and what it stores itself.
    pub(super) fn all_here(&self) -> Vec<Arc<ServedDatabase>> {
        match &self.entered {
            None => vec![self.served.clone()],
            // The shards come first: records of one that is removed during the look-up are there, or in the last one.
            Some(entered) => {
                let mut all = entered.open.shards_here();
                all.push(entered.open.own.clone());
                all
            }
        }
    }

    /// The state of the past that is read of the shard, if it is not the newest.
    ///
    /// # Errors
    /// `NotFound` if the past is not kept.
    pub(super) fn past_state(&self) -> Result<Option<At>> {
        let Some(entered) = &self.entered else { return Ok(None) };
        Ok(entered.state_of(&Shard::Here(self.served.clone()))?)
    }

    /// The database alone: documents may change their shards from now on.
    pub(super) fn into_served(self) -> Arc<ServedDatabase> {
        self.served
    }
}

impl Call<'_> {
    /// Whether the database of the request is virtual.
    pub(super) fn is_virtual(&self) -> bool {
        self.server.state.directory.is_virtual(self.request.database)
    }

    /// Enters the virtual database of the request, which keeps documents in their shards.
    fn enter(&self) -> Result<EnteredVirtual> {
        if self.delegated.is_some() {
            return Err(Failure::bad_request("a virtual database is no shard").into());
        }
        let databases = &self.server.state.virtual_databases;
        Ok(self.server.wait(Box::pin(databases.enter(self.request.database)))?)
    }

    /// Opens the part of the virtual database that a route is about, after rights were checked.
    ///
    /// # Errors
    /// `Invalid` if virtual databases don't have the operation; `Unavailable` if the shard can't be opened.
    pub(super) fn open_part(
        &self,
        rights: RightsOf,
        document: Option<&str>,
        restriction: Option<&Restriction>,
    ) -> Result<OpenedDatabase> {
        match (rights.route().map(virtual_use), document) {
            (Some(VirtualUse::Own), _) => Ok(OpenedDatabase::own_of(self.enter()?)),
            (Some(VirtualUse::Document), Some(id)) => self.open_past_of(id, "as_of", restriction),
            _ => Err(self.unsupported("replicate it into a database that is not virtual for that")),
        }
    }

    /// The shard of a document as the database.
    ///
    /// # Errors
    /// `Invalid` if it is on another server, with the shard, for operations that are passed on.
    pub(super) fn part_of(
        &self,
        entered: EnteredVirtual,
        id: &str,
        restriction: Option<&Restriction>,
    ) -> Result<OpenedDatabase> {
        match entered.shard_of(id) {
            Shard::Here(served) => Ok(OpenedDatabase::new(served, Some(entered))),
            Shard::There(remote) => {
                let shard = ShardElsewhere { entered, remote, restriction: restriction.cloned() };
                Err(WireError { shard: Some(Box::new(shard)), ..self.unsupported_there() })
            }
        }
    }

    /// The shard of a document, in its state of then if the argument `at_name` names a time. Rights were checked.
    ///
    /// # Errors
    /// Those of [`Call::open_part`].
    pub(super) fn open_past_of(
        &self,
        id: &str,
        at_name: &str,
        restriction: Option<&Restriction>,
    ) -> Result<OpenedDatabase> {
        let mut entered = self.enter()?;
        if let Some(time) = self.time_of_past(at_name)? {
            self.server.wait(Box::pin(entered.read_past(time, Some(id))))?;
        }
        self.part_of(entered, id, restriction)
    }

    /// The shard of a document. Rights were checked.
    ///
    /// # Errors
    /// Those of [`Call::open_part`].
    pub(super) fn open_shard_of(&self, id: &str, restriction: Option<&Restriction>) -> Result<OpenedDatabase> {
        self.part_of(self.enter()?, id, restriction)
    }

    /// Checks rights and enters a virtual database, for an operation about all of its documents, which has to apply the
    /// restriction. With `as_of`, the shards are those of then.
    ///
    /// # Errors
    /// Those of [`Call::restriction`] and [`Call::open_part`]; `Forbidden` if a restricted user reads the past.
    pub(super) fn enter_restricted(&self, rights: RightsOf) -> Result<(EnteredVirtual, Option<Restriction>)> {
        let restriction = self.restriction(rights, None)?;
        if restriction.is_some() && self.arguments.get("as_of").is_some() {
            return Err(refused("a state of the past (`as_of`)").into());
        }
        let mut entered = self.enter()?;
        if let Some(time) = self.time_of_past("as_of")? {
            self.server.wait(Box::pin(entered.read_past(time, None)))?;
        }
        Ok((entered, restriction))
    }

    /// As [`Call::enter_restricted`], for an operation that can't be limited to some documents.
    ///
    /// # Errors
    /// Those of [`Call::enter_restricted`]; `Forbidden` if the user may read only some documents.
    pub(super) fn enter_all(&self, rights: RightsOf) -> Result<EnteredVirtual> {
        self.allow(rights, None)?;
        self.enter()
    }

    /// A point in the past as all shards understand it; `None` if the request has no such argument.
    ///
    /// # Errors
    /// `Invalid` for a sequence, and for a snapshot that was opened.
    pub(super) fn time_of_past(&self, name: &str) -> Result<Option<SystemTime>> {
        if self.arguments.get("snapshot").is_some() {
            return Err(self.unsupported(NO_SNAPSHOT));
        }
        match self.arguments.get(name) {
            Some(_) => Ok(Some(time_of_all_shards(self.point(name)?)?)),
            None => Ok(None),
        }
    }

    /// The error for an operation that virtual databases don't have. `instead` says what to do.
    pub(super) fn unsupported(&self, instead: &str) -> WireError {
        let (database, operation) = (self.request.database, self.request.operation.name());
        Failure::not_implemented(format!("The virtual database `{database}` has no operation {operation}: {instead}."))
            .into()
    }

    /// The error for an operation that needs a shard on another server.
    pub(super) fn unsupported_there(&self) -> WireError {
        let (database, operation) = (self.request.database, self.request.operation.name());
        Failure::not_implemented(format!(
            "The virtual database `{database}` has shards on other servers, for which the wire protocol has no \
             operation {operation}: send the request over HTTP."
        ))
        .into()
    }
}

/// What to do instead of opening a snapshot.
pub(super) const NO_SNAPSHOT: &str =
    "its shards have no common snapshot, so send a transaction with the revisions that were read as checks";
