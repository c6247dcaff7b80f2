//! Moves of buckets between the shards of a virtual database, while requests are served.
//!
//! A move runs in the background, step by step, and continues after a restart. For the steps that change which shard
//! has a document it takes the fence. New requests wait for them, so it waits only briefly for those that run,
//! and otherwise copies what was written since, and tries again.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use stemmadb::{ErrorKind, Value};
use stemmadb_federation::{MoveControl, MoveEstimate, MoveStep, ShardMap, ShardMove};
use tokio::time::{Instant, sleep, timeout};

use super::remote::Shard;
use super::{OpenVirtual, VirtualDatabases, VirtualSlot, create_shard, keep_write_records};
use crate::directory::Place;
use crate::error::{Failure, Result};
use crate::http::{blocking, server_runtime};
use crate::servers::HERE;

/// How long a move waits at first for the requests that run, and at most.
const FENCE_WAIT: Duration = Duration::from_millis(20);
const FENCE_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long requests may read a shard that was merged away before its database is deleted.
const READS_WAIT: Duration = Duration::from_secs(60);
/// The references to a shard's database that are no request: that of the directory, and the caller's.
const SLOT_COUNT: usize = 2;

/// The request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MoveRequest {
    /// Half of a shard's buckets, to a new shard.
    Split { shard: String, to: MoveTarget },
    /// All buckets of a shard, which is removed then.
    Merge { shard: String, to: MoveTarget },
    /// Some buckets of a shard.
    Buckets { buckets: Vec<u16>, to: MoveTarget },
    /// The move that was interrupted by an error.
    Resume,
}

/// The shard that gets buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MoveTarget {
    Shard(String),
    /// A new one on this server.
    New(String),
}

/// The state of a move, as it is shown.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MoveStatus {
    from: String,
    to: String,
    /// `copying`, `waiting` for requests that run, `removing` the copies that are left, `canceling`, or `stopped`.
    state: &'static str,
    /// The documents that move, as far as they are known.
    documents: u64,
    /// The revisions that this run has copied.
    copied: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The move of a virtual database.
#[derive(Default)]
pub(super) struct Mover {
    running: Option<Running>,
    is_stopped: bool,
}

struct Running {
    status: MoveStatus,
    control: MoveControl,
    /// Whether a task runs it; otherwise it was interrupted by an error.
    is_active: bool,
    is_canceled: bool,
}

impl Mover {
    /// Ends the running step soon.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(running) = &self.running {
            running.control.stop();
        }
    }

    fn status(&self) -> Option<MoveStatus> {
        let running = self.running.as_ref()?;
        Some(MoveStatus { copied: running.control.copied_count(), ..running.status.clone() })
    }

    fn begin(&mut self, moving: &ShardMove) {
        let (from, to) = moving.shards();
        let (from, to) = (from.to_owned(), to.to_owned());
        let status = MoveStatus { from, to, state: "copying", documents: 0, copied: 0, error: None };
        self.running = Some(Running { status, control: moving.control(), is_active: true, is_canceled: false });
    }

    fn show(&mut self, state: &'static str, documents: Option<u64>) {
        if let Some(running) = &mut self.running {
            running.status.state = state;
            running.status.documents = documents.unwrap_or(running.status.documents);
        }
    }

    fn fail(&mut self, reason: String) {
        if let Some(running) = &mut self.running {
            running.is_active = false;
            running.status.state = "stopped";
            running.status.error = Some(reason);
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_active)
    }

    fn is_canceled(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_canceled)
    }
}

impl MoveRequest {
    /// Parses a request body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        const KNOWN: [&str; 7] = ["split", "merge", "into", "move", "to", "server", "resume"];
        let object = body.as_object().ok_or_else(|| Failure::bad_request("the body is an object"))?;
        if let Some(other) = object.names().find(|name| !KNOWN.contains(name) && *name != "estimate") {
            return Err(Failure::bad_request(format!(
                "there is no option `{other}`; there are `split`, `merge` with \
                 `into`, `move` with `to`, `server` for a new shard, `resume`, and `estimate`"
            )));
        }
        let text = |name: &str| match body.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) if name == "server" => Err(Failure::bad_request("`server` is the name of a server")),
            Some(_) => Err(Failure::bad_request(format!("`{name}` is the name of a shard"))),
        };
        let server = text("server")?;
        let target = |shard: Option<String>| match (shard, &server) {
            (Some(_), Some(_)) => Err(Failure::bad_request("`server` is for a new shard: leave `into` and `to` out")),
            (Some(shard), None) => Ok(MoveTarget::Shard(shard)),
            (None, server) => Ok(MoveTarget::New(server.clone().unwrap_or_else(|| HERE.to_owned()))),
        };
        match (text("split")?, text("merge")?, body.get("move"), body.get("resume")) {
            (Some(shard), None, None, None) => Ok(MoveRequest::Split { shard, to: target(None)? }),
            (None, Some(shard), None, None) => match (text("into")?, &server) {
                (None, None) => {
                    let reason = "`merge` needs `into`, another shard, or `server`, where a new one gets the documents";
                    Err(Failure::bad_request(reason))
                }
                (into, _) => Ok(MoveRequest::Merge { shard, to: target(into)? }),
            },
            (None, None, Some(buckets), None) => {
                Ok(MoveRequest::Buckets { buckets: parse_buckets(buckets)?, to: target(text("to")?)? })
            }
            (None, None, None, Some(Value::Bool(true))) => Ok(MoveRequest::Resume),
            _ => Err(Failure::bad_request("the body has one of `split`, `merge`, `move` and `\"resume\": true`")),
        }
    }
}

/// Parses a list of buckets, and of ranges of them: `[[0, 99], 512]`.
fn parse_buckets(value: &Value) -> Result<Vec<u16>> {
    let invalid = || Failure::bad_request("`move` is a list of buckets below 4,096 and of ranges, as [[0, 99], 512]");
    let number = |value: &Value| value.as_u64().filter(|number| *number < 4_096).map(|number| number as u16);
    let mut buckets = Vec::new();
    for entry in value.as_array().ok_or_else(invalid)? {
        match entry.as_array() {
            None => buckets.push(number(entry).ok_or_else(invalid)?),
            Some([first, last]) => {
                let range = number(first).zip(number(last)).ok_or_else(invalid)?;
                buckets.extend(range.0..=range.1);
            }
            Some(_) => return Err(invalid()),
        }
    }
    if buckets.is_empty() { Err(invalid()) } else { Ok(buckets) }
}

/// The buckets that a request moves.
fn buckets_of(request: &MoveRequest, map: &ShardMap) -> Result<Vec<u16>> {
    let all = |shard: &str| {
        let index = map.names().iter().position(|name| name == shard);
        let index = index.ok_or_else(|| Failure::not_found(format!("there is no shard `{shard}`")))?;
        Ok::<_, Failure>(map.buckets_of(index))
    };
    match request {
        MoveRequest::Split { shard, .. } => {
            let mut buckets = all(shard)?;
            if buckets.len() < 2 {
                return Err(Failure::bad_request(format!("the shard `{shard}` has no two buckets to divide")));
            }
            Ok(buckets.split_off(buckets.len() / 2))
        }
        MoveRequest::Merge { shard, .. } => all(shard),
        MoveRequest::Buckets { buckets, .. } => Ok(buckets.clone()),
        MoveRequest::Resume => Err(Failure::bad_request("`estimate` needs `split`, `merge` or `move`")),
    }
}

impl VirtualDatabases {
    /// The state of the move that runs or was interrupted.
    pub(crate) fn move_status(&self, name: &str) -> Result<Option<MoveStatus>> {
        Ok(self.slot(name)?.mover.lock().status())
    }

    /// What a move would have to copy.
    ///
    /// # Errors
    /// 400 if the move is invalid.
    pub(crate) async fn estimate(&self, name: &str, request: &MoveRequest) -> Result<MoveEstimate> {
        let open = self.open(name).await?;
        let buckets = buckets_of(request, &open.database.map())?;
        blocking(move || Ok(open.database.estimate(buckets)?)).await
    }

    /// Starts a move in the background.
    ///
    /// # Errors
    /// 409 if another one is not complete; 400 if the move is invalid.
    pub(crate) async fn start_move(&self, name: &str, request: MoveRequest) -> Result<()> {
        let slot = self.slot(name)?;
        if slot.mover.lock().is_active() {
            return Err(is_moving());
        }
        let changing = slot.changing.clone().lock_owned().await;
        let open = slot.open_locked(&changing).await?;
        let is_pending = open.database.map().planned_move().is_some();
        let moving = match (request, is_pending) {
            (_, _) if slot.mover.lock().is_active() => return Err(is_moving()),
            (MoveRequest::Resume, true) => {
                let resumed = open.clone();
                blocking(move || Ok(resumed.database.pending_move()?)).await?.ok_or_else(no_move)?
            }
            (MoveRequest::Resume, false) => return Err(no_move()),
            (_, true) => {
                let reason = "a move was interrupted: send {\"resume\": true}, or DELETE to take it back";
                return Err(Failure::new(StatusCode::CONFLICT, "conflict", reason));
            }
            (request, false) => slot.plan(&open, request).await?,
        };
        slot.spawn(open, moving);
        Ok(())
    }

    /// Cancels a move whose buckets still belong to their former shard.
    ///
    /// # Errors
    /// 404 if there is no move; 409 if it is too late.
    pub(crate) async fn cancel_move(&self, name: &str) -> Result<()> {
        let slot = self.slot(name)?;
        let open = slot.open().await?;
        let is_switched = open.database.map().planned_move().map(|(_, _, is_switched)| is_switched);
        match is_switched {
            None => return Err(no_move()),
            Some(true) => {
                let reason = "the documents are in their new shard already: let the move end";
                return Err(Failure::new(StatusCode::CONFLICT, "conflict", reason));
            }
            Some(false) => {}
        }
        let is_active = {
            let mut mover = slot.mover.lock();
            if let Some(running) = &mut mover.running {
                running.is_canceled = true;
                running.control.stop();
            }
            mover.is_active()
        };
        if !is_active {
            let changing = slot.changing.clone().lock_owned().await;
            let open = slot.open_locked(&changing).await?;
            let resumed = open.clone();
            let moving = blocking(move || Ok(resumed.database.pending_move()?)).await?.ok_or_else(no_move)?;
            slot.spawn(open, moving);
            slot.mover.lock().running.iter_mut().for_each(|running| running.is_canceled = true);
        }
        Ok(())
    }

    /// Opens all virtual databases, which continues their moves; in a cluster, those that this server is to have.
    pub(crate) async fn continue_moves(&self) {
        for name in self.directory.virtual_names() {
            if let Ok(Place::There(_)) = self.directory.place(&name, false, false).await {
                continue;
            }
            if let Err(failure) = self.open(&name).await {
                tracing::warn!(target: "stemma::database", "opening the virtual database {name}: {failure}");
            }
        }
    }
}

fn is_moving() -> Failure {
    Failure::new(StatusCode::CONFLICT, "conflict", "a move is in progress: wait for its end, or DELETE it")
}

fn no_move() -> Failure {
    Failure::not_found("there is no move")
}

impl VirtualSlot {
    /// Stores a new move.
    async fn plan(&self, open: &Arc<OpenVirtual>, request: MoveRequest) -> Result<ShardMove> {
        let buckets = buckets_of(&request, &open.database.map())?;
        let target = match &request {
            MoveRequest::Split { to, .. } | MoveRequest::Merge { to, .. } | MoveRequest::Buckets { to, .. } => to,
            MoveRequest::Resume => return Err(no_move()),
        };
        let to = match target {
            MoveTarget::Shard(to) => to.clone(),
            MoveTarget::New(server) => {
                // Before a shard is created.
                let (checked, buckets) = (open.clone(), buckets.clone());
                blocking(move || Ok(checked.database.estimate(buckets)?)).await?;
                self.add_shard(open, server).await?
            }
        };
        let open = open.clone();
        blocking(move || match request {
            MoveRequest::Merge { shard, .. } => Ok(open.database.merge(&shard, &to)?),
            _ => Ok(open.database.move_buckets(buckets, &to)?),
        })
        .await
    }

    /// Creates a shard without buckets on a server; returns its name.
    async fn add_shard(&self, open: &Arc<OpenVirtual>, server: &str) -> Result<String> {
        let known: Vec<String> = open.shards.read().keys().cloned().collect();
        let record = self.record();
        let shard = blocking(move || record.new_name(&known)).await?;
        if server != HERE {
            // Before its database exists, which would be forgotten otherwise.
            let remote = open.remote_shard(&shard, self.servers.get(server)?);
            let (record, shard) = (self.record(), shard.clone());
            blocking(move || record.change(|locations| locations.add(&shard, &remote))).await?;
        }
        let part = create_shard(&self.directory, &self.servers, &self.name, &shard, server).await?;
        if let Err(failure) = open.keep_past_in(&part).await {
            self.delete_shard(&shard, part).await.ok();
            return Err(failure);
        }
        open.shards.write().insert(shard.clone(), part.clone());
        let (added, member) = (open.clone(), part.member(&shard));
        let added = blocking(move || Ok(added.database.add_shard(member)?)).await;
        if let Err(failure) = added {
            open.shards.write().remove(&shard);
            self.delete_shard(&shard, part).await.ok();
            return Err(failure);
        }
        Ok(shard)
    }

    /// Continues the interrupted move once the database is open.
    pub(super) fn continue_later(self: Arc<Self>) {
        server_runtime().spawn(async move {
            let _changing = self.changing.clone().lock_owned().await;
            let Some(open) = self.opened.read().clone() else { return };
            if self.mover.lock().is_active() {
                return;
            }
            let resumed = open.clone();
            match blocking(move || Ok(resumed.database.pending_move()?)).await {
                Ok(Some(moving)) => self.spawn(open, moving),
                Ok(None) => {}
                Err(failure) => {
                    tracing::error!(target: "stemma::database", "continuing a move of {}: {failure}", self.name);
                }
            }
        });
    }

    fn spawn(self: &Arc<Self>, open: Arc<OpenVirtual>, moving: ShardMove) {
        self.mover.lock().begin(&moving);
        let this = self.clone();
        server_runtime().spawn(async move {
            match this.run(&open, moving).await {
                Ok(()) => this.mover.lock().running = None,
                Err(failure) => {
                    tracing::error!(target: "stemma::database", "a move of {} has stopped: {failure}", this.name);
                    this.mover.lock().fail(failure.reason().to_owned());
                }
            }
        });
    }

    /// Runs a move to its end, or until the server stops or opens the shards again.
    async fn run(self: &Arc<Self>, open: &Arc<OpenVirtual>, mut moving: ShardMove) -> Result<()> {
        let mut wait = FENCE_WAIT;
        loop {
            let changing = self.changing.clone().lock_owned().await;
            if *self.stopping.borrow() || self.mover.lock().is_stopped {
                return Err(Failure::internal("the server is stopping"));
            }
            if !open.own.is_owned() {
                // The server of the cluster that has it now continues the move.
                self.mover.lock().running = None;
                return Ok(());
            }
            if !self.is_current(open) {
                drop(moving);
                // With the shards that are open now.
                self.mover.lock().running = None;
                if self.opened.read().is_some() {
                    self.clone().continue_later();
                }
                return Ok(());
            }
            let cancels = self.mover.lock().is_canceled() && !moving.is_switched();
            let mut fence = None;
            if cancels || moving.is_fence_next() {
                match timeout(wait, self.fence.clone().write_owned()).await {
                    Ok(guard) => fence = Some(guard),
                    Err(_) => {
                        self.mover.lock().show("waiting", None);
                        drop(changing);
                        sleep(wait).await;
                        wait = (wait * 2).min(FENCE_WAIT_MAX);
                        moving.copy_again();
                        continue;
                    }
                }
            }
            if cancels {
                moving = blocking(move || Ok(moving.cancel()?)).await?;
                let mut mover = self.mover.lock();
                mover.begin(&moving);
                mover.show("canceling", None);
                continue;
            }
            let documents = moving.document_count();
            self.mover.lock().show(if moving.is_switched() { "removing" } else { "copying" }, Some(documents));
            let (moved, outcome) = blocking(move || {
                let outcome = moving.step();
                Ok((moving, outcome))
            })
            .await?;
            moving = moved;
            open.epoch.send_replace(open.database.epoch());
            match outcome {
                Ok(MoveStep::Done) => {
                    for (name, shard) in removed_shards(open) {
                        keep_write_records(&open.own, &name, &shard).await?;
                    }
                    let former = take_former(open);
                    drop(fence);
                    self.tend_replicas(open, &changing).await?;
                    drop(changing);
                    self.remove(former).await;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Stopped && self.mover.lock().is_canceled() => {}
                Err(error) => return Err(error.into()),
            }
            drop(fence);
        }
    }

    /// Deletes the databases of former shards, once the requests that read them have ended.
    async fn remove(&self, former: Vec<(String, Shard)>) {
        for (shard, part) in former {
            // Requests to shards on other servers hold the fence to their end.
            if let Shard::Here(served) = &part {
                let until = Instant::now() + READS_WAIT;
                while Arc::strong_count(served) > SLOT_COUNT && Instant::now() < until {
                    sleep(FENCE_WAIT).await;
                }
            }
            // What can't be removed is removed when the shards are opened the next time.
            if let Err(failure) = self.delete_shard(&shard, part).await {
                tracing::warn!(target: "stemma::database", "removing the shard {shard} of {}: {failure}", self.name);
            }
        }
    }
}

/// The databases that are no shards any more. Nothing is written to them.
fn removed_shards(open: &OpenVirtual) -> Vec<(String, Shard)> {
    let map = open.database.map();
    let shards = open.shards.read();
    let removed = shards.iter().filter(|(name, _)| !map.names().contains(name));
    removed.map(|(name, shard)| (name.clone(), shard.clone())).collect()
}

/// Takes the databases that are no shards any more. No new request uses them.
fn take_former(open: &OpenVirtual) -> Vec<(String, Shard)> {
    let names = removed_shards(open).into_iter().map(|(name, _)| name);
    let mut shards = open.shards.write();
    let former = names.filter_map(|name| shards.remove_entry(&name)).collect();
    drop(shards);
    open.layout();
    former
}
