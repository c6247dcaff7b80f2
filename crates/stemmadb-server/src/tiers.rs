//! Tiered databases: databases of the server whose documents move to other ones, by definitions that the directory
//! remembers, so that migrations go on after a restart.
//!
//! The databases of a definition stay open. While one of them can't be opened, requests for documents are refused,
//! because a document that moved would seem to be deleted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use stemmadb::past::At;
use stemmadb::{Revision, Value};
use stemmadb_federation::{MigrationReport, Tier, TierPolicy, TieredDatabase};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::directory::{Directory, KnownRecords, ServedDatabase, check_plain_name};
use crate::error::{Failure, Result};
use crate::http::{blocking, server_runtime};
use crate::settings::SettingStore;

/// The kind of the directory's records of tiers.
const RECORDS: &str = "tier";

const NAME_BYTES_MAX: usize = 64;
const TIERS_MAX: usize = 8;

/// How often the server looks for migrations that are due, and for databases that were closed.
const TENDING_INTERVAL: Duration = Duration::from_secs(1);

/// How long databases that move to this server are waited for, and how often they are looked for.
const MOVING_TIMEOUT: Duration = Duration::from_secs(20);
const MOVING_POLL: Duration = Duration::from_millis(50);

/// How long a document does not move again after a request began to write it.
const HOLD: Duration = Duration::from_secs(60);

/// The tiers of a database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierDefinition {
    /// The tiers below the database, from the warmest to the coldest.
    tiers: Vec<LowerTier>,
    /// The time between migrations, such as `1h`.
    #[serde(default = "default_interval")]
    interval: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
}

fn default_interval() -> String {
    "1h".to_owned()
}

/// A tier: another database of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LowerTier {
    name: String,
    database: String,
    #[serde(default)]
    policy: Json,
}

impl LowerTier {
    fn policy(&self) -> Result<TierPolicy> {
        let policy = if self.policy.is_null() { json!({}) } else { self.policy.clone() };
        Ok(TierPolicy::parse(&Value::from(policy))?)
    }
}

impl TierDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        body.deserialize_into().map_err(|error| Failure::bad_request(format!("these are no tiers: {error}")))
    }

    fn interval(&self) -> Result<Duration> {
        match format!("-{}", self.interval).parse() {
            Ok(At::Ago(time)) if time >= Duration::from_secs(1) => Ok(time),
            _ => Err(Failure::bad_request("`interval` is a time such as 90s, 30m, 12h, 30d or 4w")),
        }
    }

    fn check(&self, database: &str) -> Result<()> {
        if !(1..=TIERS_MAX).contains(&self.tiers.len()) {
            return Err(Failure::bad_request(format!("a database has 1 to {TIERS_MAX} tiers below it")));
        }
        self.interval()?;
        for tier in &self.tiers {
            check_plain_name("a tier", &tier.name, NAME_BYTES_MAX)?;
            tier.policy()?;
            if tier.database == database {
                return Err(Failure::bad_request(format!("the tier {:?} is the database itself", tier.name)));
            }
        }
        Ok(())
    }
}

/// A database with its tiers.
pub(crate) struct OpenTiers {
    pub(crate) database: TieredDatabase,
    /// The database, and those of its tiers, in their order.
    served: Vec<Arc<ServedDatabase>>,
    state: Mutex<RunState>,
}

/// What is known about the migrations of a database.
#[derive(Default)]
struct RunState {
    next: Option<Instant>,
    is_running: bool,
    last_run_ms: Option<u64>,
    last: Option<MigrationReport>,
    error: Option<String>,
}

impl OpenTiers {
    fn is_closed(&self) -> bool {
        self.served.iter().any(|served| served.is_closed())
    }

    /// The database that has a document; the first one if there is no such document. Blocks.
    pub(crate) fn of(&self, id: &str) -> Result<Arc<ServedDatabase>> {
        let tier = self.database.tier_of(id)?;
        let at = tier.and_then(|tier| self.database.names().position(|name| name == tier));
        Ok(self.served[at.unwrap_or(0)].clone())
    }

    /// Brings a document back, for a request that writes it, and returns the revision that stands for the one that the
    /// client has read. Blocks.
    pub(crate) fn bring_back(&self, id: &str, read: Option<Revision>) -> Result<Option<Revision>> {
        self.database.hold(id, HOLD)?;
        Ok(read.map(|read| self.database.current_revision(id, &read)).transpose()?)
    }

    /// Moves documents by the policies of the tiers, after [`Tiers::begin_run`]. Blocks.
    fn run(&self, interval: Duration, is_stopped: &dyn Fn() -> bool) {
        let result = self.database.migrate_at(SystemTime::now(), is_stopped);
        let mut state = self.state.lock();
        state.is_running = false;
        state.next = Some(Instant::now() + interval);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        state.last_run_ms = now.ok().and_then(|time| u64::try_from(time.as_millis()).ok());
        state.error = result.as_ref().err().map(ToString::to_string);
        if let Ok(report) = result {
            state.last = Some(report);
        }
    }
}

/// A definition, with its databases if they are open.
struct Defined {
    definition: TierDefinition,
    open: Option<Arc<OpenTiers>>,
    /// When its databases could not be opened, and why.
    failed: Option<(Instant, String)>,
}

impl Defined {
    fn new(definition: TierDefinition) -> Self {
        Defined { definition, open: None, failed: None }
    }

    /// The databases, if they are open; none if they are to be opened.
    ///
    /// # Errors
    /// 503 if opening them has just failed.
    fn usable(&self) -> Result<Option<Arc<OpenTiers>>> {
        match &self.failed {
            Some((at, reason)) if at.elapsed() < TENDING_INTERVAL => {
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "tiers_unavailable", reason.clone()))
            }
            _ => Ok(self.open.clone().filter(|open| !open.is_closed())),
        }
    }

    fn is_running(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.state.lock().is_running)
    }
}

/// The tiered databases of a server. In a cluster, the server that owns a database owns its tiers too.
pub(crate) struct Tiers {
    directory: Arc<Directory>,
    records: KnownRecords,
    by_name: RwLock<BTreeMap<String, Defined>>,
    /// Held while databases are opened, a definition is changed, and a migration is begun.
    changing: Mutex<()>,
    /// Becomes true when the server starts to shut down.
    stopping: watch::Receiver<bool>,
}

impl Tiers {
    pub(crate) fn new(directory: Arc<Directory>, stopping: watch::Receiver<bool>) -> Self {
        let records = KnownRecords::new(RECORDS);
        Tiers { directory, records, by_name: RwLock::default(), changing: Mutex::default(), stopping }
    }

    /// Reads what is recorded, and has changed since the last call. Blocks.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let mut by_name = self.by_name.write();
        for (name, record) in self.records.changes(&self.directory)? {
            match record.map(TierDefinition::parse) {
                None => drop(by_name.remove(&name)),
                Some(Ok(definition)) => match by_name.get_mut(&name) {
                    Some(defined) if defined.definition.tiers == definition.tiers => defined.definition = definition,
                    _ => drop(by_name.insert(name, Defined::new(definition))),
                },
                Some(Err(failure)) => drop(logged(&name, &failure)),
            }
        }
        self.directory.place_with(places(&by_name, None));
        Ok(())
    }

    fn open(&self, name: &str, definition: &TierDefinition, runtime: &Handle) -> Result<Arc<OpenTiers>> {
        let hot = runtime.block_on(self.directory.open_database(name))?;
        let (mut served, mut tiers) = (vec![hot.clone()], Vec::new());
        for tier in &definition.tiers {
            let lower = runtime.block_on(self.directory.open_database(&tier.database));
            let lower = lower.map_err(|failure| failure.within(&format!("the tier `{}`", tier.name)))?;
            tiers.push(Tier::new(&tier.name, lower.database(), tier.policy()?));
            served.push(lower);
        }
        let database = TieredDatabase::open(hot.database(), tiers)?;
        let state = RunState { next: Some(Instant::now()), ..RunState::default() };
        Ok(Arc::new(OpenTiers { database, served, state: Mutex::new(state) }))
    }

    /// As [`Tiers::open`]; in a cluster, waits for databases that move to this server.
    fn open_moving(&self, name: &str, definition: &TierDefinition, runtime: &Handle) -> Result<Arc<OpenTiers>> {
        let deadline = Instant::now() + MOVING_TIMEOUT;
        loop {
            match self.open(name, definition, runtime) {
                Err(failure)
                    if failure.status() == StatusCode::MISDIRECTED_REQUEST
                        && Instant::now() < deadline
                        && !*self.stopping.borrow() =>
                {
                    std::thread::sleep(MOVING_POLL);
                }
                opened => return opened,
            }
        }
    }

    /// Stores a definition, in place of another one of the database. Blocks.
    ///
    /// # Errors
    /// 400 if it is not valid, or if a database can't be a tier; 404 if one does not exist; 409 if it is a tier
    /// already; 503 if it can't be stored.
    pub(crate) fn define(&self, name: &str, definition: TierDefinition, runtime: &Handle) -> Result<()> {
        definition.check(name)?;
        let _changing = self.changing.lock();
        self.catch_up()?;
        self.check_is_free(name, &definition)?;
        for tier in &definition.tiers {
            if !self.directory.exists(&tier.database)? {
                return Err(Failure::no_database().within(&format!("the tier `{}`", tier.name)));
            }
        }
        let former = {
            let by_name = self.by_name.read();
            let former = by_name.get(name);
            if former.is_some_and(Defined::is_running) {
                return Err(busy());
            }
            self.directory.place_with(places(&by_name, Some((name, &definition))));
            former.map(|former| former.definition.clone())
        };
        // Other servers of a cluster give up the databases of the tiers when they know it.
        let stored = self.record(name, Some(&definition)).and_then(|()| self.open_moving(name, &definition, runtime));
        if stored.is_err() {
            self.record(name, former.as_ref()).ok();
        }
        let mut by_name = self.by_name.write();
        let result = match (stored, former) {
            (Ok(open), _) => {
                by_name.insert(name.to_owned(), Defined { definition, open: Some(open), failed: None });
                Ok(())
            }
            (Err(failure), former) => {
                match former {
                    None => drop(by_name.remove(name)),
                    Some(former) if by_name.get(name).is_some_and(|defined| defined.definition == former) => {}
                    Some(former) => drop(by_name.insert(name.to_owned(), Defined::new(former))),
                }
                Err(failure)
            }
        };
        self.directory.place_with(places(&by_name, None));
        result
    }

    /// Checks that the databases of a definition belong to no others.
    fn check_is_free(&self, name: &str, definition: &TierDefinition) -> Result<()> {
        for (other, defined) in self.by_name.read().iter() {
            let has = |database: &str| defined.definition.tiers.iter().any(|tier| tier.database == database);
            let is_new = |tier: &&LowerTier| other == &tier.database || other != name && has(&tier.database);
            if let Some(tier) = definition.tiers.iter().find(is_new) {
                return Err(Failure::new(
                    StatusCode::CONFLICT,
                    "conflict",
                    format!("{:?} belongs to the tiers of {other:?}", tier.database),
                ));
            }
            if has(name) {
                return Err(Failure::new(StatusCode::CONFLICT, "conflict", format!("it is a tier of {other:?}")));
            }
        }
        Ok(())
    }

    /// Stores the definition of a database, or that it has none.
    fn record(&self, name: &str, definition: Option<&TierDefinition>) -> Result<()> {
        let Some(definition) = definition else { return self.directory.remove_record(RECORDS, name) };
        let record = serde_json::to_value(definition).map_err(|error| Failure::internal(error.to_string()))?;
        self.directory.put_record(RECORDS, name, &record)
    }

    /// Forgets the tiers of a database. Documents stay where they are. Blocks.
    ///
    /// # Errors
    /// 404 if it has none; 503 if that can't be stored, or while documents are moved.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let _changing = self.changing.lock();
        self.catch_up()?;
        match self.by_name.read().get(name) {
            None => return Err(no_tiers()),
            Some(defined) if defined.is_running() => return Err(busy()),
            Some(_) => {}
        }
        self.record(name, None)?;
        let mut by_name = self.by_name.write();
        by_name.remove(name);
        self.directory.place_with(places(&by_name, None));
        Ok(())
    }

    /// Pauses or resumes the migrations of a database. Blocks.
    ///
    /// # Errors
    /// 404 if it has no tiers; 503 if that can't be stored.
    pub(crate) fn set_paused(&self, name: &str, paused: bool) -> Result<()> {
        let _changing = self.changing.lock();
        self.catch_up()?;
        let definition = self.by_name.read().get(name).map(|defined| defined.definition.clone());
        let definition = TierDefinition { paused, ..definition.ok_or_else(no_tiers)? };
        self.record(name, Some(&definition))?;
        if let Some(defined) = self.by_name.write().get_mut(name) {
            defined.definition = definition;
        }
        Ok(())
    }

    /// The tiers of a database, if it has any.
    ///
    /// # Errors
    /// 503 if one of its databases can't be opened.
    pub(crate) async fn get(self: &Arc<Self>, name: &str) -> Result<Option<Arc<OpenTiers>>> {
        if self.records.are_newest(&self.directory) {
            match self.by_name.read().get(name) {
                None => return Ok(None),
                Some(defined) => {
                    if let Some(open) = defined.usable()? {
                        return Ok(Some(open));
                    }
                }
            }
        }
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || this.get_blocking(&name)).await
    }

    /// As [`Tiers::get`]. Blocks.
    fn get_blocking(&self, name: &str) -> Result<Option<Arc<OpenTiers>>> {
        self.catch_up()?;
        if self.by_name.read().get(name).is_none() {
            return Ok(None);
        }
        let _changing = self.changing.lock();
        self.opened(name, &server_runtime())
    }

    /// Opens the databases of a definition, unless they are open. The caller holds `changing`.
    fn opened(&self, name: &str, runtime: &Handle) -> Result<Option<Arc<OpenTiers>>> {
        let definition = match self.by_name.read().get(name) {
            None => return Ok(None),
            Some(defined) => match defined.usable()? {
                Some(open) => return Ok(Some(open)),
                None => defined.definition.clone(),
            },
        };
        let opened = self.open_moving(name, &definition, runtime).map_err(|failure| logged(name, &failure));
        let mut by_name = self.by_name.write();
        let Some(defined) = by_name.get_mut(name) else { return Ok(None) };
        match opened {
            Ok(open) => (defined.open, defined.failed) = (Some(open), None),
            Err(reason) => (defined.open, defined.failed) = (None, Some((Instant::now(), reason))),
        }
        defined.usable()
    }

    /// As [`Tiers::get`], for a database that must have tiers.
    ///
    /// # Errors
    /// 404 if it has none.
    pub(crate) async fn existing(self: &Arc<Self>, name: &str) -> Result<Arc<OpenTiers>> {
        self.get(name).await?.ok_or_else(no_tiers)
    }

    /// Marks that a migration runs: until it has ended, the definition is not changed.
    fn begin_run(&self, open: &OpenTiers) {
        let _changing = self.changing.lock();
        open.state.lock().is_running = true;
    }

    /// Runs a migration now, and returns its report. Blocks.
    ///
    /// # Errors
    /// 404 if the database has no tiers; the error of the migration.
    pub(crate) fn run(&self, name: &str) -> Result<Json> {
        let open = self.get_blocking(name)?.ok_or_else(no_tiers)?;
        self.begin_run(&open);
        let stopping = self.stopping.clone();
        open.run(self.interval(name), &|| *stopping.borrow());
        let state = open.state.lock();
        match &state.error {
            Some(error) => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "migration_failed", error.clone())),
            None => Ok(state.last.as_ref().map(shown).unwrap_or_default()),
        }
    }

    fn interval(&self, name: &str) -> Duration {
        let by_name = self.by_name.read();
        let interval = by_name.get(name).and_then(|defined| defined.definition.interval().ok());
        interval.unwrap_or(Duration::from_secs(3_600))
    }

    /// The definition, what the tiers hold, and the state of the migrations. Blocks.
    ///
    /// # Errors
    /// 404 if the database has no tiers; 503 if one of its databases can't be read.
    pub(crate) fn status(&self, name: &str) -> Result<Json> {
        let open = self.get_blocking(name)?.ok_or_else(no_tiers)?;
        let mut shown_tiers = Vec::new();
        let (mut status, paused) = {
            let by_name = self.by_name.read();
            let defined = by_name.get(name).ok_or_else(no_tiers)?;
            (serde_json::to_value(&defined.definition).unwrap_or_default(), defined.definition.paused)
        };
        for (at, tier) in open.database.status()?.into_iter().enumerate() {
            let mut shown = json!({
                "name": tier.name,
                "database": open.served[at].name(),
                "documents": tier.document_count,
                "stubs": tier.stub_count,
                "bytes": tier.byte_count,
            });
            if at > 0 {
                shown["policy"] = status["tiers"][at - 1]["policy"].clone();
            }
            shown_tiers.push(shown);
        }
        let state = open.state.lock();
        status["paused"] = json!(paused);
        status["tiers"] = json!(shown_tiers);
        status["running"] = json!(state.is_running);
        status["last_run_ms"] = json!(state.last_run_ms);
        status["last"] = state.last.as_ref().map(shown).unwrap_or_default();
        status["error"] = json!(state.error);
        let wait = state.next.filter(|_| !paused).map(|next| next.saturating_duration_since(Instant::now()).as_secs());
        status["next_run_in_s"] = json!(wait);
        Ok(status)
    }

    /// Runs the migrations that are due, opens databases again that were closed, and forgets the definitions of deleted
    /// ones. Blocks.
    fn tend(&self, runtime: &Handle) -> Result<()> {
        self.catch_up()?;
        let names: Vec<String> = self.by_name.read().keys().cloned().collect();
        for name in names {
            if *self.stopping.borrow() {
                return Ok(());
            }
            if !self.directory.exists(&name)? {
                self.by_name.write().remove(&name);
                self.directory.remove_record(RECORDS, &name)?;
                continue;
            }
            if runtime.block_on(self.directory.open_own_database(&name))?.is_none() {
                // Another server of the cluster has it.
                if let Some(defined) = self.by_name.write().get_mut(&name) {
                    *defined = Defined::new(defined.definition.clone());
                }
                continue;
            }
            let Some(changing) = self.changing.try_lock() else { continue };
            let Ok(Some(open)) = self.opened(&name, runtime) else { continue };
            drop(changing);
            let Some(definition) = self.by_name.read().get(&name).map(|defined| defined.definition.clone()) else {
                continue;
            };
            let is_due = {
                let state = open.state.lock();
                !state.is_running && state.next.is_some_and(|next| next <= Instant::now())
            };
            if is_due && !definition.paused {
                self.begin_run(&open);
                let stopping = self.stopping.clone();
                open.run(definition.interval()?, &|| *stopping.borrow());
                if let Some(error) = &open.state.lock().error {
                    tracing::error!(target: "stemma::tiers", "{name}: {error}");
                }
            }
        }
        Ok(())
    }
}

/// The databases of all tiers, each with the one that has the tiers; `newest` in place of its own definition.
fn places(by_name: &BTreeMap<String, Defined>, newest: Option<(&str, &TierDefinition)>) -> HashMap<String, String> {
    let defined = by_name.iter().map(|(name, defined)| (name.as_str(), &defined.definition));
    let defined = defined.filter(|(name, _)| newest.is_none_or(|(newest, _)| newest != *name)).chain(newest);
    let places = defined.flat_map(|(name, definition)| {
        definition.tiers.iter().map(move |tier| (tier.database.clone(), name.to_owned()))
    });
    places.collect()
}

/// Runs the migrations until the server stops.
pub(crate) async fn tend(tiers: Arc<Tiers>, mut stopped: watch::Receiver<bool>) {
    loop {
        let (tended, runtime) = (tiers.clone(), Handle::current());
        if let Err(failure) = blocking(move || tended.tend(&runtime)).await {
            tracing::error!(target: "stemma::tiers", "tiers: {}", failure.reason());
        }
        if timeout(TENDING_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
            return;
        }
    }
}

fn shown(report: &MigrationReport) -> Json {
    json!({"moved": report.moved_count, "deleted": report.deleted_count, "refused": report.refused_count})
}

fn logged(name: &str, failure: &Failure) -> String {
    tracing::error!(target: "stemma::tiers", "{name}: {}", failure.reason());
    failure.reason().to_owned()
}

fn no_tiers() -> Failure {
    Failure::not_found("the database has no tiers")
}

fn busy() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "migration_running", "documents are being moved; try again later")
}
