//! Triggers of databases: webhooks, and JavaScript functions of design documents, called for each matching change.
//!
//! ```text
//! writer ─ changes feed ─ stemmadb::Trigger: stored position, retries ─ webhook: request with a signature
//!                                                                     └ function: documents to write
//! ```
//!
//! Definitions are records of the directory, because they contain secrets, so they run again with the server. Each
//! running trigger has a thread of its own, which follows the feed; writers never wait for it.
//!
//! Invariant: a change is skipped only after it was handled, or stored as a dead letter.

mod definition;
mod function;
mod runner;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use stemmadb::Sequence;
use stemmadb::messages::{Trigger, TriggerOptions};
use stemmadb::replication::Retry;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::config::Triggers as Limits;
use crate::directory::{Directory, ServedDatabase};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::outbound::OutboundClient;
use crate::script::Scripts;
use crate::servers::OtherServers;
use crate::settings::SettingStore;
pub(crate) use definition::TriggerDefinition;
use runner::Runner;

/// The kind of the directory's records of triggers.
const RECORDS: &str = "trigger";

/// How often triggers are looked after: those whose database was closed or deleted.
const TENDING_INTERVAL: Duration = Duration::from_secs(5);

/// What running triggers share.
pub(crate) struct TriggerContext {
    pub(crate) directory: Arc<Directory>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) outbound: Arc<OutboundClient>,
    /// Of a cluster, which may have the databases of dead letters.
    pub(crate) servers: Arc<OtherServers>,
    pub(crate) durability: stemmadb::Durability,
    pub(crate) limits: Limits,
    /// Permits for calls, over all triggers.
    pub(crate) calls: Semaphore,
    /// Becomes true when the server starts to shut down.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The triggers of a server.
pub(crate) struct Triggers {
    context: Arc<TriggerContext>,
    running: Mutex<BTreeMap<Name, Running>>,
}

/// The names of a database and of its trigger.
type Name = (String, String);

struct Running {
    trigger: Trigger,
    runner: Arc<Runner>,
    definition: TriggerDefinition,
    /// Ends a call that is running.
    cancel: watch::Sender<bool>,
}

impl Running {
    /// Starts a trigger. Blocks.
    fn start(
        context: &Arc<TriggerContext>,
        served: Arc<ServedDatabase>,
        name: &str,
        definition: &TriggerDefinition,
        runtime: &Handle,
    ) -> Result<Self> {
        let (cancel, cancelled) = watch::channel(false);
        let runner = Runner::new(context, served.clone(), name, definition, cancelled, runtime)?;
        let runner = Arc::new(runner);
        // The runner counts attempts itself, because a change is skipped only if its dead letter is stored.
        let retry = Retry { first: context.limits.retry_wait, max: context.limits.retry_wait_max, attempts: u32::MAX };
        let mut options = TriggerOptions::new().retry(retry).paths(definition.paths.iter().cloned());
        if let Some(selector) = definition.selector()? {
            options = options.selector(selector);
        }
        if let Some(since) = definition.since {
            options = options.since(Sequence::new(since));
        }
        let called = runner.clone();
        let trigger = served.database().trigger(&position_name(name), options, move |change| called.handle(change))?;
        Ok(Running { trigger, runner, definition: definition.clone(), cancel })
    }

    fn is_running(&self) -> bool {
        self.trigger.failure().is_none() && !self.runner.served().is_closed()
    }

    /// Stops it after the call that is running, which is ended. Blocks.
    fn stop(self) {
        self.cancel.send_replace(true);
        self.trigger.stop();
    }
}

/// The name of a trigger's position in its database. Triggers of programs that open the database have other names.
fn position_name(name: &str) -> String {
    format!("server-{name}")
}

fn record_name(database: &str, name: &str) -> String {
    // The name of a trigger has no slash.
    format!("{database}/{name}")
}

impl Triggers {
    pub(crate) fn new(context: TriggerContext) -> Self {
        Triggers { context: Arc::new(context), running: Mutex::default() }
    }

    /// Stores a definition, in place of another one of the name, and starts it at the position that the name has.
    /// Blocks.
    ///
    /// # Errors
    /// 400 if the definition is not valid; 403 if its host is not allowed; 503 if it can't be stored.
    pub(crate) fn define(
        &self,
        served: Arc<ServedDatabase>,
        name: &str,
        definition: TriggerDefinition,
        runtime: &Handle,
    ) -> Result<()> {
        let definition = TriggerDefinition { instance: served.instance_id().to_owned(), ..definition };
        definition.check(name, &self.context, &served)?;
        let database = served.name().to_owned();
        let mut running = self.running.lock();
        let key = (database.clone(), name.to_owned());
        let count_max = self.context.limits.count;
        if !running.contains_key(&key) && running.len() >= count_max {
            let reason = format!("There are {count_max} triggers: delete some, or raise triggers.count");
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        if running.get(&key).is_some_and(|other| other.is_running() && other.definition == definition) {
            return Ok(());
        }
        if let Some(other) = running.remove(&key) {
            other.stop();
        }
        let started = Running::start(&self.context, served, name, &definition, runtime)?;
        let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
        self.context.directory.put_record(RECORDS, &record_name(&database, name), &record)?;
        running.insert(key, started);
        Ok(())
    }

    /// Ends a trigger and forgets its definition and position. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn remove(&self, served: &ServedDatabase, name: &str) -> Result<()> {
        let mut running = self.running.lock();
        let key = (served.name().to_owned(), name.to_owned());
        let ended = running.remove(&key);
        let record = record_name(served.name(), name);
        let is_recorded = self.context.directory.records(RECORDS)?.iter().any(|(recorded, _)| *recorded == record);
        if ended.is_none() && !is_recorded {
            return Err(no_trigger());
        }
        self.context.directory.remove_record(RECORDS, &record)?;
        if let Some(ended) = ended {
            ended.stop();
        }
        served.database().local_documents().delete(&format!("_local/trigger-{}", position_name(name)), None).or_else(
            |error| match error.kind() {
                stemmadb::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            },
        )?;
        Ok(())
    }

    /// The triggers of a database with their states, by name, without secrets.
    pub(crate) fn list(&self, served: &ServedDatabase) -> BTreeMap<String, Json> {
        let running = self.running.lock();
        let of_database = running.iter().filter(|((database, _), _)| database == served.name());
        of_database.map(|((_, name), running)| (name.clone(), running.state())).collect()
    }

    /// The definition and state of one trigger.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn get(&self, served: &ServedDatabase, name: &str) -> Result<Json> {
        let running = self.running.lock();
        let running = running.get(&(served.name().to_owned(), name.to_owned())).ok_or_else(no_trigger)?;
        Ok(running.state())
    }

    /// Calls the trigger for its dead letters, or that of one document, and deletes those that succeed; returns how
    /// many succeeded and failed. Blocks.
    ///
    /// # Errors
    /// 404 if there is no such trigger; 400 if it has no dead letters.
    pub(crate) fn redeliver(&self, served: &ServedDatabase, name: &str, id: Option<&str>) -> Result<Json> {
        let key = (served.name().to_owned(), name.to_owned());
        let runner = self.running.lock().get(&key).map(|running| running.runner.clone()).ok_or_else(no_trigger)?;
        let (redelivered, failed, error) = runner.redeliver(id)?;
        let mut answer = json!({"ok": failed == 0, "redelivered": redelivered, "failed": failed});
        if let Some(error) = error {
            answer["error"] = error.into();
        }
        Ok(answer)
    }

    /// Ends all triggers; the calls that are running are ended. Blocks.
    pub(crate) fn stop(&self) {
        let all = std::mem::take(&mut *self.running.lock());
        for running in all.values() {
            running.cancel.send_replace(true);
        }
        all.into_values().for_each(Running::stop);
    }

    /// Starts what is recorded and does not run: at the start of the server, and after a database was opened again.
    /// Forgets what belongs to deleted databases. Blocks.
    fn tend(&self, runtime: &Handle) -> Result<()> {
        let context = &self.context;
        for (recorded, record) in context.directory.records(RECORDS)? {
            let Some((database, name)) = recorded.rsplit_once('/') else { continue };
            let key = (database.to_owned(), name.to_owned());
            let mut running = self.running.lock();
            // A trigger that was defined or removed meanwhile is not touched.
            if *context.stopping.borrow() || running.get(&key).is_some_and(Running::is_running) {
                continue;
            }
            if let Some(ended) = running.remove(&key) {
                ended.stop();
            }
            if !context.directory.exists(database)? {
                context.directory.remove_record(RECORDS, &recorded)?;
                continue;
            }
            let started =
                record.deserialize_into::<TriggerDefinition>().map_err(Failure::from).and_then(|definition| {
                    // Another server of the cluster may have it, and runs its triggers.
                    let opened = runtime.block_on(context.directory.open_own_database(database))?;
                    let Some(served) = opened else { return Ok(None) };
                    match definition.instance == served.instance_id() {
                        true => Running::start(context, served, name, &definition, runtime).map(Some),
                        // Another database has the name now.
                        false => context.directory.remove_record(RECORDS, &recorded).map(|()| None),
                    }
                });
            match started {
                Ok(Some(started)) => drop(running.insert(key, started)),
                Ok(None) => {}
                Err(failure) => tracing::error!(target: "stemma::trigger", "{recorded}: {}", failure.reason()),
            }
        }
        Ok(())
    }
}

impl Running {
    /// The definition without its secret, and the state.
    fn state(&self) -> Json {
        let position = self.trigger.position();
        let newest = self.runner.served().database().sequence();
        let mut shown = self.definition.shown();
        let mut status = self.runner.status();
        status["state"] = if self.is_running() { status["state"].take() } else { "stopped".into() };
        status["seq"] = self.runner.served().sequence_text(position).into();
        // Writes that the trigger does not match, and positions, are counted as well.
        status["lag"] = newest.get().saturating_sub(position.get()).into();
        shown["status"] = status;
        shown
    }
}

fn no_trigger() -> Failure {
    Failure::not_found("the database has no trigger of this name")
}

/// Keeps the triggers running until the server stops.
pub(crate) async fn tend_triggers(triggers: Arc<Triggers>, mut stopped: watch::Receiver<bool>) {
    loop {
        let (tended, runtime) = (triggers.clone(), Handle::current());
        if let Err(failure) = blocking(move || tended.tend(&runtime)).await {
            tracing::error!(target: "stemma::trigger", "triggers: {}", failure.reason());
        }
        if timeout(TENDING_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
            return;
        }
    }
}
