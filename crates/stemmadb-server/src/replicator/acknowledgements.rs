//! Synchronous replication: a write that waits until targets of the database's replications have it durably.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stemmadb::Sequence;
use tokio::time::Instant;

use super::jobs::{Job, JobOwner, Jobs};
use super::request::Endpoint;
use super::topologies::Topologies;
use crate::error::{Failure, Result};

/// The deadline if a request names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// The targets that a write waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedTargets {
    Named(Vec<String>),
    Count(usize),
}

/// What a write waits for: targets of replications, and until when.
pub(crate) struct TargetWait {
    wanted: WantedTargets,
    timeout: Duration,
    /// The jobs by the name of their target.
    targets: BTreeMap<String, Arc<Job>>,
}

/// The targets that have a write durably, and those that did not confirm it in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Acknowledgements {
    pub(crate) confirmed: Vec<String>,
    pub(crate) missing: Vec<String>,
    #[serde(skip)]
    pub(crate) is_complete: bool,
}

impl WantedTargets {
    /// Parses the parameter `wait_for`: a number of targets, or their names with commas between them.
    ///
    /// # Errors
    /// 400 if it is empty or 0.
    fn parse(text: &str) -> Result<Self> {
        let wrong = || Failure::bad_request("`wait_for` is a number of targets, or their names, separated by commas");
        if let Ok(count) = text.parse::<usize>() {
            return if count == 0 { Err(wrong()) } else { Ok(WantedTargets::Count(count)) };
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) { Err(wrong()) } else { Ok(WantedTargets::Named(names)) }
    }
}

impl TargetWait {
    /// Finds the replications from a database that a write is to wait for. Call it before the write.
    ///
    /// # Errors
    /// 400 if the parameters are malformed, or this server runs no such replications from the database.
    pub(crate) fn new(
        topologies: &Topologies,
        jobs: &Jobs,
        database: &str,
        wait_for: &str,
        timeout_ms: Option<u64>,
    ) -> Result<Self> {
        let wanted = WantedTargets::parse(wait_for)?;
        let timeout = timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis).min(TIMEOUT_MAX);
        let is_source = |job: &Arc<Job>| {
            job.request.continuous && matches!(&job.request.source, Endpoint::Local(name) if name == database)
        };
        let mut targets = BTreeMap::new();
        for job in jobs.all().into_iter().filter(is_source) {
            let name = match &job.owner {
                JobOwner::Topology(topology) => topologies.target_name(topology, &job.request),
                JobOwner::Document(id) => Some(id.clone()),
                JobOwner::Request => None,
            };
            let name = name.unwrap_or_else(|| job.request.target.display_name().to_owned());
            let name = match (&job.owner, targets.contains_key(&name)) {
                (JobOwner::Topology(topology), true) => format!("{topology}/{name}"),
                _ => name,
            };
            targets.insert(name, job);
        }
        let known = || targets.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match &wanted {
            WantedTargets::Named(names) => {
                if let Some(name) = names.iter().find(|name| !targets.contains_key(*name)) {
                    let reason = format!("no replication of this server from {database:?} to {name:?}; there are: ");
                    return Err(Failure::bad_request(reason + &known()));
                }
                targets.retain(|name, _| names.contains(name));
            }
            WantedTargets::Count(count) if *count > targets.len() => {
                let reason = format!("this server runs {} replications from {database:?}: {}", targets.len(), known());
                return Err(Failure::bad_request(reason));
            }
            WantedTargets::Count(_) => {}
        }
        Ok(TargetWait { wanted, timeout, targets })
    }

    /// Waits until the targets have everything up to a sequence, or the time is over.
    pub(crate) async fn wait(self, sequence: Sequence) -> Acknowledgements {
        let deadline = Instant::now() + self.timeout;
        let needed = match &self.wanted {
            WantedTargets::Named(_) => self.targets.len(),
            WantedTargets::Count(count) => *count,
        };
        let (sender, mut confirmations) = tokio::sync::mpsc::unbounded_channel();
        for (name, job) in &self.targets {
            let (name, mut confirmed, sender) = (name.clone(), job.confirmed(), sender.clone());
            // Ends with the request, because the sender is then closed.
            tokio::spawn(async move {
                tokio::select! {
                    reached = confirmed.wait_for(|reached| *reached >= sequence) => {
                        if reached.is_ok() {
                            sender.send(name).ok();
                        }
                    }
                    () = sender.closed() => {}
                }
            });
        }
        drop(sender);
        let mut confirmed = Vec::new();
        while confirmed.len() < needed {
            match tokio::time::timeout_at(deadline, confirmations.recv()).await {
                Ok(Some(name)) => confirmed.push(name),
                // Late, or a replication has ended.
                Ok(None) | Err(_) => break,
            }
        }
        confirmed.sort();
        let is_complete = confirmed.len() >= needed;
        let missing = match is_complete {
            true => Vec::new(),
            false => self.targets.into_keys().filter(|name| !confirmed.contains(name)).collect(),
        };
        Acknowledgements { confirmed, missing, is_complete }
    }
}
