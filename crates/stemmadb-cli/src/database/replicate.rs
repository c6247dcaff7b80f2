//! Replicates between databases on this machine and on servers.

use std::path::Path;

use stemmadb::replication::{Peer, ReplicationEvent, ReplicationScope, Retry};
use stemmadb::{Cancellation, Replication, Value};
use stemmadb_http::{HttpOptions, HttpPeer, SigningKey};

use super::Database;
use crate::failure::{Failure, Result};

/// One side of a replication.
pub(crate) enum ReplicationSide {
    Local(Database),
    Remote(Box<HttpPeer>),
}

/// What is replicated, and how.
pub(crate) struct ReplicationRequest {
    pub(crate) selector: Option<Value>,
    pub(crate) ids: Vec<String>,
    pub(crate) filter: Option<String>,
    pub(crate) batch: Option<usize>,
    pub(crate) is_continuous: bool,
    /// The attempts after failures, if it is not continuous.
    pub(crate) retries: u32,
    pub(crate) cancellation: Cancellation,
}

/// What happens during a replication.
pub(crate) enum ReplicationNotice<'a> {
    /// Revisions written so far.
    Progress(u64),
    /// Revisions written, and refused by the target.
    CaughtUp(u64, u64),
    /// A failure, and the seconds until the next attempt.
    Failed(&'a str, f64),
}

impl ReplicationSide {
    /// The database of a server, reached with a bearer token or by requests that a key signs; connects when it is used.
    pub(crate) fn remote(
        url: &str,
        token: Option<&str>,
        key: Option<SigningKey>,
        certificates: Option<&Path>,
    ) -> Result<Self> {
        let mut options = HttpOptions::new();
        if let Some(token) = token {
            options = options.bearer_token(token);
        }
        if let Some(key) = key {
            options = options.signed_by(key);
        }
        if let Some(file) = certificates {
            options = options.certificates(file);
        }
        Ok(ReplicationSide::Remote(Box::new(HttpPeer::with(url, options)?)))
    }

    /// Creates the database on the server if it does not exist; fails if it does not exist and is not to be created.
    /// A server that can't be reached is no failure here: the replication may retry.
    pub(crate) fn prepare(&self, create: bool) -> Result<()> {
        let ReplicationSide::Remote(peer) = self else { return Ok(()) };
        match peer.database_id() {
            Err(error) if error.kind() == stemmadb::ErrorKind::NotFound => match create {
                true => Ok(peer.create()?),
                false => Err(Failure::of(&error).with_hint("--create creates the target")),
            },
            _ => Ok(()),
        }
    }

    fn peer(&self) -> &dyn Peer {
        match self {
            ReplicationSide::Local(database) => &database.inner,
            ReplicationSide::Remote(peer) => &**peer,
        }
    }

    /// Closes a database of this machine.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            ReplicationSide::Local(database) => database.close(),
            ReplicationSide::Remote(_) => Ok(()),
        }
    }
}

impl ReplicationRequest {
    /// Replicates; returns how many revisions were written, and how many the target refused.
    pub(crate) fn run(
        self,
        source: &ReplicationSide,
        target: &ReplicationSide,
        mut on_notice: impl FnMut(ReplicationNotice<'_>),
    ) -> Result<(u64, u64)> {
        let scope = match (self.selector, self.filter) {
            (Some(selector), _) => ReplicationScope::Selector(selector),
            (None, Some(filter)) => ReplicationScope::Filter(filter, Vec::new()),
            (None, None) if !self.ids.is_empty() => ReplicationScope::Ids(self.ids.into_iter().collect()),
            (None, None) => ReplicationScope::All,
        };
        let replication = Replication::new(source.peer(), target.peer()).only(scope).cancelled_by(&self.cancellation);
        let replication = match self.batch {
            Some(count) => replication.batch(count),
            None => replication,
        };
        let on_event = |event: ReplicationEvent<'_>| match event {
            ReplicationEvent::Progress(stats) => on_notice(ReplicationNotice::Progress(stats.written_count)),
            ReplicationEvent::CaughtUp(stats) => {
                on_notice(ReplicationNotice::CaughtUp(stats.written_count, stats.failed_count));
            }
            ReplicationEvent::Failed { error, retry_after } => {
                on_notice(ReplicationNotice::Failed(error.message(), retry_after.as_secs_f64()));
            }
            _ => {}
        };
        let stats = match self.is_continuous {
            true => replication.follow(on_event)?,
            false => replication.retry(Retry { attempts: self.retries, ..Retry::default() }).run_showing(on_event)?,
        };
        Ok((stats.written_count, stats.failed_count))
    }
}
