//! Tiered databases: databases of the server whose documents move to other ones, by definitions that the directory
//! remembers, so that migrations go on after a restart.
//!
//! The databases of a definition stay open. While one of them can't be opened, requests for documents are refused,
//! because a document that moved would seem to be deleted.

use std::collections::BTreeMap;
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

use crate::directory::{Directory, ServedDatabase, check_plain_name};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::settings::SettingStore;

/// The kind of the directory's records of tiers.
const RECORDS: &str = "tier";

const NAME_BYTES_MAX: usize = 64;
const TIERS_MAX: usize = 8;

/// How often the server looks for migrations that are due, and for databases that were closed.
const TENDING_INTERVAL: Duration = Duration::from_secs(1);

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

    /// Moves what is due. Blocks.
    fn run(&self, interval: Duration, is_stopped: &dyn Fn() -> bool) {
        self.state.lock().is_running = true;
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
    open: Result<Arc<OpenTiers>, String>,
}

/// The tiered databases of a server.
pub(crate) struct Tiers {
    directory: Arc<Directory>,
    by_name: RwLock<BTreeMap<String, Defined>>,
    /// Becomes true when the server starts to shut down.
    stopping: watch::Receiver<bool>,
}

impl Tiers {
    pub(crate) fn new(directory: Arc<Directory>, stopping: watch::Receiver<bool>) -> Self {
        Tiers { directory, by_name: RwLock::default(), stopping }
    }

    /// Reads what is recorded, and opens the databases. Blocks.
    pub(crate) fn load(&self, runtime: &Handle) -> Result<()> {
        for (name, record) in self.directory.records(RECORDS)? {
            match TierDefinition::parse(record) {
                Ok(definition) => {
                    let open = self.open(&name, &definition, runtime).map_err(|failure| logged(&name, &failure));
                    self.by_name.write().insert(name, Defined { definition, open });
                }
                Err(failure) => drop(logged(&name, &failure)),
            }
        }
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

    /// Stores a definition, in place of another one of the database. Blocks.
    ///
    /// # Errors
    /// 400 if it is not valid, or if a database can't be a tier; 404 if one does not exist; 409 if it is a tier
    /// already; 503 if it can't be stored.
    pub(crate) fn define(&self, name: &str, definition: TierDefinition, runtime: &Handle) -> Result<()> {
        definition.check(name)?;
        let mut by_name = self.by_name.write();
        for (other, defined) in by_name.iter() {
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
        // A migration of the replaced definition must not go on.
        let replaced = by_name.remove(name);
        if let Some(Defined { open: Ok(open), .. }) = &replaced
            && open.state.lock().is_running
        {
            by_name.extend(replaced.map(|replaced| (name.to_owned(), replaced)));
            return Err(busy());
        }
        let opened = self.open(name, &definition, runtime).and_then(|open| {
            let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
            self.directory.put_record(RECORDS, name, &record)?;
            Ok(open)
        });
        match opened {
            Ok(open) => {
                by_name.insert(name.to_owned(), Defined { definition, open: Ok(open) });
                Ok(())
            }
            Err(failure) => {
                by_name.extend(replaced.map(|replaced| (name.to_owned(), replaced)));
                Err(failure)
            }
        }
    }

    /// Forgets the tiers of a database. Documents stay where they are. Blocks.
    ///
    /// # Errors
    /// 404 if it has none; 503 if that can't be stored, or while documents are moved.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut by_name = self.by_name.write();
        match by_name.get(name) {
            None => return Err(no_tiers()),
            Some(Defined { open: Ok(open), .. }) if open.state.lock().is_running => return Err(busy()),
            Some(_) => {}
        }
        self.directory.remove_record(RECORDS, name)?;
        by_name.remove(name);
        Ok(())
    }

    /// Pauses or resumes the migrations of a database. Blocks.
    ///
    /// # Errors
    /// 404 if it has no tiers; 503 if that can't be stored.
    pub(crate) fn set_paused(&self, name: &str, paused: bool) -> Result<()> {
        let mut by_name = self.by_name.write();
        let defined = by_name.get_mut(name).ok_or_else(no_tiers)?;
        let definition = TierDefinition { paused, ..defined.definition.clone() };
        let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
        self.directory.put_record(RECORDS, name, &record)?;
        defined.definition = definition;
        Ok(())
    }

    /// The tiers of a database, if it has any.
    ///
    /// # Errors
    /// 503 if one of its databases can't be opened.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Arc<OpenTiers>>> {
        match self.by_name.read().get(name) {
            None => Ok(None),
            Some(Defined { open: Ok(open), .. }) => Ok(Some(open.clone())),
            Some(Defined { open: Err(reason), .. }) => {
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "tiers_unavailable", reason.clone()))
            }
        }
    }

    /// As [`Tiers::get`], for a database that must have tiers.
    ///
    /// # Errors
    /// 404 if it has none.
    pub(crate) fn existing(&self, name: &str) -> Result<Arc<OpenTiers>> {
        self.get(name)?.ok_or_else(no_tiers)
    }

    /// Runs a migration now, and returns its report. Blocks.
    ///
    /// # Errors
    /// 404 if the database has no tiers; the error of the migration.
    pub(crate) fn run(&self, name: &str) -> Result<Json> {
        let open = self.existing(name)?;
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
        let open = self.existing(name)?;
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
        let names: Vec<String> = self.by_name.read().keys().cloned().collect();
        for name in names {
            if *self.stopping.borrow() {
                return Ok(());
            }
            if !self.directory.contains(&name) {
                self.by_name.write().remove(&name);
                self.directory.remove_record(RECORDS, &name)?;
                continue;
            }
            let (definition, open) = match self.by_name.read().get(&name) {
                Some(defined) => (defined.definition.clone(), defined.open.clone().ok()),
                None => continue,
            };
            let open = match open.filter(|open| !open.is_closed()) {
                Some(open) => open,
                None => {
                    let opened = self.open(&name, &definition, runtime).map_err(|failure| logged(&name, &failure));
                    if let Some(defined) = self.by_name.write().get_mut(&name) {
                        defined.open = opened;
                    }
                    continue;
                }
            };
            let is_due = {
                let state = open.state.lock();
                !state.is_running && state.next.is_some_and(|next| next <= Instant::now())
            };
            if is_due && !definition.paused {
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
