//! Replicas of shards on other servers: each follows its shard by replication, and takes its place when asked.
//!
//! A replica has a name of its own, as a shard has, because positions of feeds in it are not those of its shard. The
//! directory's record says that it is a replica until the placement names it as a shard; a crash in between leaves
//! either.

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::StatusCode;
use serde::Serialize;
use stemmadb::replication::{BackgroundReplication, Replication, ReplicationState};
use tokio::sync::OwnedMutexGuard;

use super::remote::{Locations, ReplicaLocation, Shard};
use super::{OpenVirtual, VirtualDatabases, VirtualSlot, create_shard, open_shard_here};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::servers::HERE;

/// A replica of a shard.
pub(super) struct Replica {
    name: String,
    /// The shard that it follows.
    of: String,
    part: Shard,
    /// None if it can't be started.
    following: Option<BackgroundReplication>,
}

/// A replica, as it is shown.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ReplicaStatus {
    name: String,
    server: String,
    /// Whether it had everything when it was last compared.
    caught_up: bool,
    /// About how many changes it lacks, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The replica that takes the place of a shard.
pub(crate) struct PromoteRequest {
    pub(crate) shard: String,
    /// Its server, if the shard has several replicas; else the one that has most is taken.
    pub(crate) server: Option<String>,
    /// Whether it may lack what was written last, because the shard's server does not answer.
    pub(crate) may_be_incomplete: bool,
}

/// What a replica that took the place of a shard had.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Promotion {
    /// Its name, which is the shard's now.
    shard: String,
    server: String,
    /// Whether it had everything: the former shard answered.
    complete: bool,
}

impl Replica {
    fn status(&self) -> ReplicaStatus {
        let status = self.following.as_ref().map(BackgroundReplication::status);
        let (caught_up, pending, error) = match status {
            None => (false, None, Some("it is not followed".to_owned())),
            Some(status) => {
                let error = match &status.state {
                    ReplicationState::Waiting { error, .. } => Some(error.message().to_owned()),
                    ReplicationState::Failed(error) => Some(error.message().to_owned()),
                    _ => None,
                };
                (matches!(status.state, ReplicationState::CaughtUp), status.stats.pending_count, error)
            }
        };
        ReplicaStatus { name: self.name.clone(), server: self.part.server().to_owned(), caught_up, pending, error }
    }

    /// Follows its shard from now on.
    fn follow(&mut self, shard: &Shard) {
        let (source, target) = (shard.peer(), self.part.peer());
        self.following = BackgroundReplication::start(source, target, |replication| replication).ok();
    }
}

impl OpenVirtual {
    /// The replicas of a shard.
    pub(crate) fn replicas_of(&self, shard: &str) -> Vec<ReplicaStatus> {
        self.replicas.lock().iter().filter(|replica| replica.of == shard).map(Replica::status).collect()
    }

    /// Ends the replications to all replicas.
    pub(super) async fn stop_replicas(self: &Arc<Self>) -> Result<()> {
        let open = self.clone();
        blocking(move || {
            open.replicas.lock().clear();
            Ok(())
        })
        .await
    }

    /// Takes the replica of a shard, on this server or the one that has most, and ends its replication. Blocks.
    fn take_replica(&self, shard: &str, server: Option<&str>) -> Option<Replica> {
        let mut replicas = self.replicas.lock();
        let fits =
            |replica: &&Replica| replica.of == shard && server.is_none_or(|server| replica.part.server() == server);
        let best = replicas.iter().filter(fits).max_by_key(|replica| {
            let stats = replica.following.as_ref().map(|following| following.status().stats);
            stats.and_then(|stats| stats.source_position.as_u64())
        });
        let name = best?.name.clone();
        let at = replicas.iter().position(|replica| replica.name == name)?;
        let mut replica = replicas.remove(at);
        replica.following = None;
        Some(replica)
    }
}

impl VirtualDatabases {
    /// Puts a replica in the place of its shard.
    ///
    /// # Errors
    /// 404 if the shard has no replica, on this server; 409 if a move is running; 503 if the shard does not answer and
    /// the replica may not be incomplete.
    pub(crate) async fn promote(&self, name: &str, request: &PromoteRequest) -> Result<Promotion> {
        let slot = self.slot(name)?;
        let changing = slot.changing.clone().lock_owned().await;
        let open = slot.open_locked(&changing).await?;
        slot.promote(&open, request, &changing).await
    }

    /// Sets how many replicas each shard has.
    ///
    /// # Errors
    /// 400 if there are not enough servers.
    pub(crate) async fn set_replica_count(&self, name: &str, count: usize, servers: Vec<String>) -> Result<()> {
        let slot = self.slot(name)?;
        let changing = slot.changing.clone().lock_owned().await;
        let open = slot.open_locked(&changing).await?;
        servers.iter().filter(|server| *server != HERE).try_for_each(|server| self.servers.get(server).map(drop))?;
        let record = slot.record();
        blocking(move || record.change(|locations| locations.set_replicas(count, servers))?).await?;
        slot.tend_replicas(&open, &changing).await
    }
}

impl Locations {
    /// # Errors
    /// 400 if there are fewer servers than copies.
    pub(super) fn set_replicas(&mut self, count: usize, servers: Vec<String>) -> Result<()> {
        let servers = if servers.is_empty() { self.servers.clone() } else { servers };
        let distinct: BTreeSet<&String> = servers.iter().collect();
        if count > 0 && distinct.len() <= count {
            return Err(Failure::bad_request(format!(
                "{count} replicas of each shard need {} servers: name them by `servers`",
                count + 1
            )));
        }
        (self.replica_count, self.servers) = (count, servers);
        Ok(())
    }
}

impl VirtualSlot {
    /// Creates the replicas that are missing, removes those of former shards, and lets all follow. A server that does
    /// not answer gets none; it is tried again at the next occasion.
    pub(super) async fn tend_replicas(&self, open: &OpenVirtual, _changing: &OwnedMutexGuard<()>) -> Result<()> {
        let record = self.record();
        let shards: Vec<(String, Shard)> = open.shards.read().clone().into_iter().collect();
        let placed: Vec<String> = shards.iter().map(|(shard, _)| shard.clone()).collect();
        let locations = blocking(move || {
            let locations = record.locations()?;
            match locations.replicas.keys().any(|name| placed.contains(name)) {
                // Those that took the place of their shards before the record said so.
                true => record.change(|locations| {
                    locations.replicas.retain(|name, _| !placed.contains(name));
                    locations.clone()
                }),
                false => Ok(locations),
            }
        })
        .await?;
        self.remove_abandoned(&locations, &shards).await;
        let mut kept = Vec::new();
        for (name, location) in &locations.replicas {
            let followed = shards.iter().find(|(shard, _)| *shard == location.of);
            let of_shard = kept.iter().filter(|(of, _)| *of == location.of).count();
            match followed.filter(|_| of_shard < locations.replica_count) {
                Some((of, shard)) => {
                    kept.push((of.clone(), location.server.clone()));
                    self.follow(open, name, location, shard).await;
                }
                None => self.remove_replica(open, name, location).await,
            }
        }
        for (of, shard) in &shards {
            for _ in kept.iter().filter(|(known, _)| known == of).count()..locations.replica_count {
                let Some(server) = self.server_for_replica(&locations, of, shard, &kept) else { break };
                if let Err(failure) = self.add_replica(open, of, shard, &server).await {
                    tracing::warn!(target: "stemma::database", "a replica of {of} of {}: {failure}", self.name);
                }
                kept.push((of.clone(), server));
            }
        }
        Ok(())
    }

    /// Deletes the databases on other servers that are no shards: deleting them failed before.
    async fn remove_abandoned(&self, locations: &Locations, shards: &[(String, Shard)]) {
        let is_shard = |name: &String| shards.iter().any(|(shard, _)| shard == name);
        for (name, location) in &locations.shards {
            if is_shard(name) || locations.replicas.contains_key(name) {
                continue;
            }
            let removed = match location.open(&self.servers) {
                Ok(part) => self.delete_shard(name, part).await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = removed {
                tracing::warn!(target: "stemma::database", "removing {name} of {}: {failure}", self.name);
            }
        }
    }

    /// The server for a further replica of a shard: in another zone if possible, and with few replicas.
    fn server_for_replica(
        &self,
        locations: &Locations,
        of: &str,
        shard: &Shard,
        kept: &[(String, String)],
    ) -> Option<String> {
        let zone = |server: &str| self.servers.get(server).ok().and_then(|server| server.zone().map(str::to_owned));
        let has = |server: &str| server == shard.server() || kept.iter().any(|(known, at)| known == of && at == server);
        let candidates = locations.servers.iter().filter(|server| !has(server));
        let order = |server: &&String| {
            let is_same_zone = zone(server) == zone(shard.server());
            (is_same_zone, kept.iter().filter(|(_, at)| at == *server).count())
        };
        candidates.min_by_key(order).cloned()
    }

    async fn add_replica(&self, open: &OpenVirtual, of: &str, shard: &Shard, server: &str) -> Result<()> {
        let known: Vec<String> = open.shards.read().keys().cloned().collect();
        let (record, of_shard, at) = (self.record(), of.to_owned(), server.to_owned());
        let database = open.own.name().to_owned();
        // Before its database exists, which would be forgotten otherwise.
        let name = blocking(move || {
            let name = record.new_name(&known)?;
            record.change(|locations| locations.add_replica(&name, &of_shard, &at, &database))?;
            Ok(name)
        })
        .await?;
        let part = match create_shard(&self.directory, &self.servers, &self.name, &name, server).await {
            Ok(part) => part,
            Err(failure) => {
                let (record, name) = (self.record(), name.clone());
                blocking(move || record.change(|locations| locations.abandon_replica(&name))).await?;
                return Err(failure);
            }
        };
        if let Err(failure) = open.keep_past_in(&part).await {
            tracing::warn!(target: "stemma::database", "the past of a replica of {of} of {}: {failure}", self.name);
        }
        let mut replica = Replica { name, of: of.to_owned(), part, following: None };
        replica.follow(shard);
        open.replicas.lock().push(replica);
        Ok(())
    }

    /// Lets a replica that exists follow its shard, if it does not.
    async fn follow(&self, open: &OpenVirtual, name: &str, location: &ReplicaLocation, shard: &Shard) {
        let is_following = |replica: &Replica| replica.name == name && replica.following.is_some();
        if open.replicas.lock().iter().any(is_following) {
            return;
        }
        match self.open_replica(name, location).await {
            Ok(part) => {
                let mut replica = Replica { name: name.to_owned(), of: location.of.clone(), part, following: None };
                replica.follow(shard);
                let mut replicas = open.replicas.lock();
                replicas.retain(|replica| replica.name != name);
                replicas.push(replica);
            }
            Err(failure) => {
                tracing::warn!(target: "stemma::database", "the replica {name} of {}: {failure}", self.name);
            }
        }
    }

    /// Opens a replica, whose creation may have been interrupted.
    async fn open_replica(&self, name: &str, location: &ReplicaLocation) -> Result<Shard> {
        match location.server == HERE && self.directory.contains(&location.database) {
            true => open_shard_here(&self.directory, &self.servers, &location.database).await,
            false => create_shard(&self.directory, &self.servers, &self.name, name, &location.server).await,
        }
    }

    async fn remove_replica(&self, open: &OpenVirtual, name: &str, location: &ReplicaLocation) {
        if open.shards.read().contains_key(name) {
            return;
        }
        open.replicas.lock().retain(|replica| replica.name != name);
        let removed = match self.open_replica(name, location).await {
            Ok(part) => self.delete_shard(name, part).await,
            Err(failure) => Err(failure),
        };
        let (record, name) = (self.record(), name.to_owned());
        let forgotten = match removed {
            Ok(()) => blocking(move || record.change(|locations| drop(locations.replicas.remove(&name)))).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = forgotten {
            tracing::warn!(target: "stemma::database", "removing a replica of {}: {failure}", self.name);
        }
    }

    async fn promote(
        &self,
        open: &Arc<OpenVirtual>,
        request: &PromoteRequest,
        changing: &OwnedMutexGuard<()>,
    ) -> Result<Promotion> {
        let shard = request.shard.as_str();
        let former = open.shards.read().get(shard).cloned();
        let former = former.ok_or_else(|| Failure::not_found(format!("there is no shard `{shard}`")))?;
        let (taken, of, at) = (open.clone(), shard.to_owned(), request.server.clone());
        let replica = blocking(move || Ok(taken.take_replica(&of, at.as_deref()))).await?.ok_or_else(|| {
            Failure::not_found(format!("the shard `{shard}` has no replica there: {{\"replicas\": 1}} makes one"))
        })?;
        // Requests to a server that does not answer end after their timeout.
        let fence = self.fence.clone().write_owned().await;
        let promoted = self.replace(open, request, &former, &replica).await;
        match promoted {
            Ok(complete) => {
                if complete {
                    // It would be removed at the next opening otherwise.
                    self.delete_shard(shard, former).await.ok();
                }
                drop(fence);
                self.tend_replicas(open, changing).await?;
                Ok(Promotion { shard: replica.name, server: replica.part.server().to_owned(), complete })
            }
            Err(failure) => {
                let mut replica = replica;
                replica.follow(&former);
                open.replicas.lock().push(replica);
                Err(failure)
            }
        }
    }

    /// Puts a replica in the place of its shard; returns whether it has everything.
    async fn replace(
        &self,
        open: &Arc<OpenVirtual>,
        request: &PromoteRequest,
        former: &Shard,
        replica: &Replica,
    ) -> Result<bool> {
        let shard = request.shard.as_str();
        let (source, target) = (former.peer(), replica.part.peer());
        let copied = blocking(move || Ok(Replication::new(&*source, &*target).run())).await?;
        if let Err(error) = &copied
            && !request.may_be_incomplete
        {
            let reason = format!(
                "The shard `{shard}` does not answer ({}), so its replica may lack what was written last: send \
                 \"incomplete\": true to use it nevertheless.",
                error.message()
            );
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        if let Shard::There(remote) = &replica.part {
            let (record, name, remote) = (self.record(), replica.name.clone(), remote.clone());
            blocking(move || record.change(|locations| locations.add(&name, &remote))).await?;
        }
        let (replaced, shard, member) = (open.clone(), shard.to_owned(), replica.part.member(&replica.name));
        let record = self.record();
        let (former, name, part) = (shard.clone(), replica.name.clone(), replica.part.clone());
        blocking(move || {
            replaced.database.replace_shard(&shard, member)?;
            record.change(|locations| drop(locations.replicas.remove(&name)))?;
            let mut shards = replaced.shards.write();
            shards.remove(&former);
            shards.insert(name, part);
            drop(shards);
            replaced.layout();
            replaced.epoch.send_replace(replaced.database.epoch());
            Ok(())
        })
        .await?;
        open.forget_designs().await?;
        Ok(copied.is_ok_and(|stats| stats.failed_count == 0))
    }
}
