//! Topologies: several databases, on this and on other servers, and the replications between them, which this server
//! runs.
//!
//! Definitions are records of the directory, because they contain credentials, so they run again with the server. A
//! changed definition starts and ends only the replications in which it differs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use stemmadb::Value;
use stemmadb::replication::{ReplicationScope, Topology, TopologyEdge};
use tokio::sync::watch;
use tokio::time::timeout;

use super::conflicts::ConflictDefinition;
use super::jobs::{Job, JobOwner, Jobs, now};
use super::request::{Endpoint, ReplicationRequest};
use crate::directory::{KnownRecords, check_plain_name};
use crate::documents::format_rfc3339;
use crate::error::{Failure, Result};
use crate::http::{blocking, server_runtime};
use crate::settings::SettingStore;

/// The kind of the directory's records of topologies.
const RECORDS: &str = "topology";

const NAME_BYTES_MAX: usize = 64;

/// Databases and the replications between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyDefinition {
    nodes: Vec<Node>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Shape>,
    #[serde(default, skip_serializing_if = "Direction::is_forward")]
    direction: Direction,
    /// Which documents the replications of the shape copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<Json>,
    /// Further replications, or other selectors for those of the shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    edges: Vec<EdgeDefinition>,
    /// The conflict rule that all databases get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conflicts: Option<ConflictDefinition>,
    /// Whether missing targets are created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    create: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
}

/// A database of a topology.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    /// A database of this server, a URL, or an object with a URL and credentials, as in `_replicate`.
    database: Json,
    /// 0 is the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    Chain,
    Ring,
    Group,
    FanOut,
    FanIn,
    Tiered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Direction {
    #[default]
    Forward,
    Both,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeDefinition {
    source: String,
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<Json>,
}

impl Direction {
    fn is_forward(&self) -> bool {
        *self == Direction::Forward
    }
}

fn only(selector: &Json) -> Result<ReplicationScope> {
    let selector = Value::from_serialize(selector)?;
    stemmadb::Selector::parse(&selector)?;
    Ok(ReplicationScope::Selector(selector))
}

impl TopologyDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no topology: {error}")))
    }

    /// The databases and replications.
    ///
    /// # Errors
    /// 400 with the reason if the definition contradicts itself.
    fn topology(&self) -> Result<Topology> {
        let names = self.nodes.iter().map(|node| node.name.as_str());
        if self.shape != Some(Shape::Tiered)
            && let Some(node) = self.nodes.iter().find(|node| node.tier.is_some())
        {
            let reason = format!("{:?} has a `tier`, which only the shape \"tiered\" knows", node.name);
            return Err(Failure::bad_request(reason));
        }
        let mut topology = match self.shape {
            None => Topology::new(names),
            Some(Shape::Chain) => Topology::chain(names),
            Some(Shape::Ring) => Topology::ring(names),
            Some(Shape::Group) => Topology::group(names),
            Some(Shape::FanOut) => Topology::fan_out(names),
            Some(Shape::FanIn) => Topology::fan_in(names),
            Some(Shape::Tiered) => Topology::tiered(self.tiers()?),
        }?;
        if self.direction == Direction::Both {
            topology = topology.both_ways();
        }
        if let Some(selector) = &self.selector {
            topology = topology.only(only(selector)?);
        }
        for EdgeDefinition { source, target, selector } in &self.edges {
            let is_in_shape = topology.edges().iter().any(|edge| edge.source == *source && edge.target == *target);
            if !is_in_shape || selector.is_none() {
                topology = topology.edge(source, target)?;
            }
            if let Some(selector) = selector {
                topology = topology.only_between(source, target, only(selector)?)?;
            }
        }
        if topology.edges().is_empty() {
            return Err(Failure::bad_request("the topology replicates nothing: give a `shape` or `edges`"));
        }
        Ok(topology)
    }

    /// The names of the databases by tier.
    fn tiers(&self) -> Result<Vec<Vec<&str>>> {
        let mut tiers: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for node in &self.nodes {
            let without = || Failure::bad_request(format!("{:?} needs a `tier`, from 0 at the top", node.name));
            tiers.entry(node.tier.ok_or_else(without)?).or_default().push(&node.name);
        }
        Ok(tiers.into_values().collect())
    }

    /// The replications, each with its request.
    ///
    /// # Errors
    /// 400 with the reason if the definition is not valid.
    fn replications(&self) -> Result<Vec<(TopologyEdge, ReplicationRequest)>> {
        let topology = self.topology()?;
        self.conflicts.as_ref().map_or(Ok(()), ConflictDefinition::check)?;
        let mut databases: BTreeMap<&str, Endpoint> = BTreeMap::new();
        for node in &self.nodes {
            let endpoint = Endpoint::parse(&Value::from_serialize(&node.database)?, "database")?;
            if let Some((other, _)) =
                databases.iter().find(|(_, other)| other.display_name() == endpoint.display_name())
            {
                let reason = format!("{other:?} and {:?} are the same database", node.name);
                return Err(Failure::bad_request(reason));
            }
            databases.insert(&node.name, endpoint);
        }
        let request = |edge: &TopologyEdge| ReplicationRequest {
            source: databases[edge.source.as_str()].clone(),
            target: databases[edge.target.as_str()].clone(),
            continuous: true,
            create_target: self.create,
            selection: edge.scope.clone(),
            since: None,
            batch_count: None,
            conflicts: self.conflicts.clone(),
        };
        Ok(topology.edges().iter().map(|edge| (edge.clone(), request(edge))).collect())
    }

    /// The definition without credentials.
    fn shown(&self) -> Json {
        let mut shown = self.clone();
        for node in &mut shown.nodes {
            let endpoint = Value::from_serialize(&node.database).map_err(Failure::from);
            let endpoint = endpoint.and_then(|database| Endpoint::parse(&database, "database"));
            node.database = endpoint.map_or(Json::Null, |endpoint| endpoint.display_name().into());
        }
        serde_json::to_value(shown).unwrap_or_default()
    }
}

/// The topologies of a server. In a cluster, each server runs the replications of the databases that it owns.
pub(crate) struct Topologies {
    jobs: Arc<Jobs>,
    records: KnownRecords,
    by_name: Mutex<BTreeMap<String, TopologyDefinition>>,
}

/// How often a server of a cluster looks which replications it should run.
const TENDING_INTERVAL: Duration = Duration::from_secs(1);

impl Topologies {
    pub(crate) fn new(jobs: Arc<Jobs>) -> Self {
        Topologies { jobs, records: KnownRecords::new(RECORDS), by_name: Mutex::default() }
    }

    /// Starts and ends what is recorded, and has changed since the last call. Blocks.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let mut by_name = self.by_name.lock();
        for (name, record) in self.records.changes(&self.jobs.context.directory)? {
            let Some(record) = record else {
                by_name.remove(&name);
                self.end_jobs(&name, |_| true);
                continue;
            };
            let started = TopologyDefinition::parse(record).and_then(|definition| {
                let applied = self.apply(&name, &definition);
                by_name.insert(name.clone(), definition);
                applied
            });
            if let Err(failure) = started {
                tracing::error!(target: "stemma::replicator", "the topology {name:?}: {}", failure.reason());
            }
        }
        Ok(())
    }

    /// Starts what this server of a cluster should run by now, and ends what others should. Blocks.
    fn tend(&self) -> Result<()> {
        self.catch_up()?;
        for (name, definition) in self.by_name.lock().iter() {
            if let Err(failure) = self.apply(name, definition) {
                tracing::error!(target: "stemma::replicator", "the topology {name:?}: {}", failure.reason());
            }
        }
        Ok(())
    }

    /// Stores a definition, in place of another one of the name, and runs it. Blocks.
    ///
    /// # Errors
    /// 400 if it is not valid; 403 if a host is not allowed; 503 if there are too many replications, or the definition
    /// can't be stored. The former definition then runs on.
    pub(crate) fn define(&self, name: &str, definition: TopologyDefinition) -> Result<()> {
        check_plain_name("a topology", name, NAME_BYTES_MAX)?;
        self.replace(&mut self.by_name.lock(), name, definition)
    }

    fn replace(
        &self,
        by_name: &mut BTreeMap<String, TopologyDefinition>,
        name: &str,
        definition: TopologyDefinition,
    ) -> Result<()> {
        let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
        let applied = self.apply(name, &definition);
        let stored = applied.and_then(|()| self.jobs.context.directory.put_record(RECORDS, name, &record));
        if let Err(failure) = stored {
            let restored = match by_name.get(name) {
                Some(former) => self.apply(name, former),
                None => {
                    self.end_jobs(name, |_| true);
                    Ok(())
                }
            };
            restored?;
            return Err(failure);
        }
        by_name.insert(name.to_owned(), definition);
        Ok(())
    }

    /// Ends a topology and forgets it. What was replicated stays. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut by_name = self.by_name.lock();
        if !by_name.contains_key(name) {
            return Err(no_topology());
        }
        self.jobs.context.directory.remove_record(RECORDS, name)?;
        by_name.remove(name);
        self.end_jobs(name, |_| true);
        Ok(())
    }

    /// Ends the replications of a topology until it is resumed, or resumes them. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; those of [`Topologies::define`].
    pub(crate) fn set_paused(&self, name: &str, paused: bool) -> Result<()> {
        let mut by_name = self.by_name.lock();
        let definition = by_name.get(name).ok_or_else(no_topology)?;
        let definition = TopologyDefinition { paused, ..definition.clone() };
        self.replace(&mut by_name, name, definition)
    }

    /// All topologies with their states, by name, without credentials.
    pub(crate) fn list(&self) -> BTreeMap<String, Json> {
        let by_name = self.by_name.lock();
        by_name.iter().map(|(name, definition)| (name.clone(), self.state(name, definition))).collect()
    }

    /// The definition and state of one topology, without credentials.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn get(&self, name: &str) -> Result<Json> {
        let by_name = self.by_name.lock();
        Ok(self.state(name, by_name.get(name).ok_or_else(no_topology)?))
    }

    /// The name of the target of a topology's replication.
    pub(super) fn target_name(&self, topology: &str, request: &ReplicationRequest) -> Option<String> {
        let replications = self.by_name.lock().get(topology)?.replications().ok()?;
        replications.into_iter().find(|(_, other)| other == request).map(|(edge, _)| edge.target)
    }

    /// Starts and ends replications so that those of the definition run.
    fn apply(&self, name: &str, definition: &TopologyDefinition) -> Result<()> {
        let mut wanted: Vec<ReplicationRequest> =
            definition.replications()?.into_iter().map(|(_, request)| request).collect();
        for host in wanted.iter().flat_map(|request| [&request.source, &request.target]).filter_map(Endpoint::host) {
            self.jobs.context.outbound.check(host)?;
        }
        if definition.paused {
            wanted.clear();
        }
        if self.jobs.context.directory.is_in_cluster() {
            let mut own = Vec::with_capacity(wanted.len());
            for request in wanted {
                if server_runtime().block_on(self.jobs.other_runner(&request))?.is_none() {
                    own.push(request);
                }
            }
            wanted = own;
        }
        self.end_jobs(name, |request| !wanted.contains(request));
        let owner = JobOwner::Topology(name.to_owned());
        wanted.into_iter().try_for_each(|request| self.jobs.start(request, owner.clone()).map(|_| ()))
    }

    /// Ends those replications of a topology that `is_ended` selects.
    fn end_jobs(&self, name: &str, is_ended: impl Fn(&ReplicationRequest) -> bool) {
        for job in self.owned_jobs(name).filter(|job| is_ended(&job.request)) {
            self.jobs.cancel(&job.id);
        }
    }

    fn owned_jobs(&self, name: &str) -> impl Iterator<Item = Arc<Job>> {
        let owner = JobOwner::Topology(name.to_owned());
        self.jobs.all().into_iter().filter(move |job| job.owner == owner)
    }

    fn state(&self, name: &str, definition: &TopologyDefinition) -> Json {
        let owner = JobOwner::Topology(name.to_owned());
        let edges = definition.replications().unwrap_or_default().into_iter().map(|(edge, request)| {
            let mut state = self.jobs.find(&request, &owner).map_or_else(
                || json!({"state": if definition.paused { "paused" } else { "stopped" }}),
                |job| edge_state(&job),
            );
            state["source"] = edge.source.into();
            state["target"] = edge.target.into();
            state
        });
        let edges: Vec<Json> = edges.collect();
        let mut shown = definition.shown();
        shown["replications"] = edges.into();
        shown
    }
}

/// Looks after the topologies of a cluster until the server stops.
pub(crate) async fn tend_topologies(topologies: Arc<Topologies>, mut stopped: watch::Receiver<bool>) {
    if !topologies.jobs.context.directory.is_in_cluster() {
        return;
    }
    while timeout(TENDING_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        let tended = topologies.clone();
        if let Err(failure) = blocking(move || tended.tend()).await {
            tracing::warn!(target: "stemma::replicator", "topologies: {}", failure.reason());
        }
    }
}

/// What a running replication does, and how far its target is behind.
fn edge_state(job: &Job) -> Json {
    let status = job.status();
    let state = match status.state {
        "running" if status.is_caught_up => "caught_up",
        state => state,
    };
    let lag_s = match status.is_caught_up {
        true => 0,
        false => now().saturating_sub(status.caught_up_at.unwrap_or(job.started)),
    };
    json!({
        "state": state,
        "pending": if status.is_caught_up { Some(0) } else { status.done.pending_count },
        "lag_s": lag_s,
        "written": status.done.written_count,
        "refused": status.done.failed_count,
        "error": status.error.or(status.rule_error),
        "retry_at": status.retry_at.map(format_rfc3339),
    })
}

fn no_topology() -> Failure {
    Failure::not_found("there is no topology of this name")
}
