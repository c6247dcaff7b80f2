//! Conflict rules of databases: each database that has one is followed by a task, which resolves documents with several
//! branches as they arrive, whoever wrote them. A waiting task holds no thread.
//!
//! Definitions are records of the directory. The position up to which a database was examined is stored in a `_local`
//! document with the rule, so another rule examines all documents again. Documents that could not be resolved are tried
//! again, because the function may arrive later than they do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use stemmadb::replication::{Conflict, ConflictRule};
use stemmadb::{Document, Durability, Object, Sequence, Value};
use stemmadb_http::library_error;
use tokio::sync::watch;

use crate::design::{self, DesignFunctions, document_json};
use crate::directory::{Directory, KnownRecords, ServedDatabase};
use crate::error::{Failure, Result};
use crate::http::{blocking, server_runtime};
use crate::script::{CallKind, Scripts};
use crate::settings::SettingStore;
use crate::writes::apply_resolution;

/// The kind of the directory's records of rules.
const RECORDS: &str = "conflict-rule";
/// The document with the position.
const POSITION_ID: &str = "_local/conflict-rule";
/// The changes after which the position is stored if nothing was resolved.
const POSITION_INTERVAL: u64 = 10_000;
/// The most documents that are remembered for another attempt.
const FAILED_MAX: usize = 1_000;
/// When documents that could not be resolved, or a database that could not be opened, are tried again.
const RETRY_WAIT: Duration = Duration::from_secs(30);

/// When a database that was closed, or belongs to another server of the cluster, is opened again.
const REOPEN_WAIT: Duration = Duration::from_secs(1);

/// The author of resolved revisions.
const AUTHOR: &str = "conflict-rule";

/// A rule as clients define it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConflictDefinition {
    rule: RuleKind,
    /// The field that orders branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// `design document/name`: a function of the design document's `conflicts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    /// The instance id of its database, which another database of the same name does not have.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    instance: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuleKind {
    LastWriter,
    Merge,
    Function,
}

impl ConflictDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        let definition: Self = body
            .deserialize_into()
            .map_err(|error| Failure::bad_request(format!("this is no conflict rule: {error}")))?;
        let definition = ConflictDefinition { instance: String::new(), ..definition };
        definition.check()?;
        Ok(definition)
    }

    /// Checks that the rule has what it needs.
    ///
    /// # Errors
    /// 400 with the reason.
    pub(super) fn check(&self) -> Result<()> {
        let reason = match (self.rule, &self.field, &self.function) {
            (RuleKind::LastWriter, Some(_), None) | (RuleKind::Merge, _, None) => return Ok(()),
            (RuleKind::Function, None, Some(function)) => return split(function).map(|_| ()),
            (RuleKind::LastWriter, ..) => "the rule \"last-writer\" needs `field`, and nothing else",
            (RuleKind::Merge, ..) => "the rule \"merge\" has no `function`",
            (RuleKind::Function, ..) => "the rule \"function\" needs `function`, as \"design document/name\"",
        };
        Err(Failure::bad_request(reason))
    }

    /// The definition as clients see it.
    pub(super) fn shown(&self) -> Json {
        let shown = ConflictDefinition { instance: String::new(), ..self.clone() };
        serde_json::to_value(shown).unwrap_or_default()
    }

    fn rule(&self, served: &Arc<ServedDatabase>, scripts: &Arc<Scripts>) -> ConflictRule {
        match self.rule {
            RuleKind::LastWriter => ConflictRule::LastWriter { field: self.field.clone().unwrap_or_default() },
            RuleKind::Merge => ConflictRule::Merge { field: self.field.clone() },
            RuleKind::Function => {
                let (served, scripts) = (served.clone(), scripts.clone());
                let name = self.function.clone().unwrap_or_default();
                ConflictRule::Function(Arc::new(move |conflict| {
                    call(&served, &scripts, &name, conflict).map_err(|failure| library_error(&failure))
                }))
            }
        }
    }
}

fn split(function: &str) -> Result<(&str, &str)> {
    match function.split_once('/') {
        Some((design, name)) if !design.is_empty() && !name.is_empty() => Ok((design, name)),
        _ => Err(Failure::bad_request("`function` is \"design document/name\"")),
    }
}

/// Calls the function of a design document with the versions and their ancestor; returns the body. Blocks.
fn call(served: &Arc<ServedDatabase>, scripts: &Arc<Scripts>, name: &str, conflict: &Conflict) -> Result<Value> {
    let (design, function) = split(name)?;
    let design = design::open(&served.database().snapshot()?, design)?;
    let functions = DesignFunctions::new(served, scripts, &design)?;
    let shown = |document: &Document| Ok::<_, Failure>(document_json(served, document)?);
    let versions = conflict.versions.iter().map(shown).collect::<Result<Vec<_>>>()?;
    let ancestor = conflict.ancestor.as_ref().map(shown).transpose()?.unwrap_or_else(|| "null".to_owned());
    let arguments = [format!("[{}]", versions.join(",")), ancestor];
    let answers = functions.call(CallKind::Conflict, &["conflicts", function], &[arguments])?;
    let answer = answers.into_iter().next().ok_or_else(|| Failure::internal("a function returned nothing"))?;
    let mut body = Value::parse(answer.map_err(design::thrown_failure)?.as_bytes())?;
    if let Some(body) = body.as_object_mut() {
        // A version may be returned as it is.
        body.retain(|name, _| !name.starts_with('_'));
    }
    Ok(body)
}

/// A rule that is applied to a database.
struct RunningRule {
    definition: ConflictDefinition,
    status: Mutex<RuleStatus>,
    /// Becomes true when the rule is replaced or removed.
    cancelled: watch::Sender<bool>,
}

#[derive(Default)]
struct RuleStatus {
    resolved_count: u64,
    /// The documents whose resolution failed, and the last error.
    failed: BTreeSet<String>,
    error: Option<String>,
    position: Sequence,
}

/// The conflict rules of the server's databases.
pub(crate) struct ConflictRules {
    directory: Arc<Directory>,
    scripts: Arc<Scripts>,
    durability: Durability,
    records: KnownRecords,
    running: Mutex<BTreeMap<String, Arc<RunningRule>>>,
    /// Becomes true when the server stops.
    stopping: watch::Receiver<bool>,
}

impl ConflictRules {
    pub(crate) fn new(
        directory: Arc<Directory>,
        scripts: Arc<Scripts>,
        durability: Durability,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (records, running) = (KnownRecords::new(RECORDS), Mutex::default());
        ConflictRules { directory, scripts, durability, records, running, stopping }
    }

    /// Applies the recorded rules that have changed since the last call. Blocks.
    ///
    /// # Errors
    /// 500 if the records can't be read.
    pub(crate) fn catch_up(self: &Arc<Self>) -> Result<()> {
        let mut running = self.running.lock();
        for (database, record) in self.records.changes(&self.directory)? {
            let definition = match record.map(|record| record.deserialize_into::<ConflictDefinition>()) {
                Some(Ok(definition)) => definition,
                Some(Err(error)) => {
                    tracing::error!(target: "stemma::replicator", "the conflict rule of {database}: {error}");
                    continue;
                }
                None => {
                    if let Some(ended) = running.remove(&database) {
                        ended.cancelled.send_replace(true);
                    }
                    continue;
                }
            };
            if running.get(&database).is_none_or(|running| running.definition != definition) {
                self.run(&mut running, &database, definition);
            }
        }
        Ok(())
    }

    /// Stores the rule of a database in place of another one, and applies it. Blocks.
    ///
    /// # Errors
    /// 503 if it can't be stored.
    pub(crate) fn define(self: &Arc<Self>, served: &ServedDatabase, definition: ConflictDefinition) -> Result<()> {
        let definition = ConflictDefinition { instance: served.instance_id().to_owned(), ..definition };
        self.catch_up()?;
        let mut running = self.running.lock();
        if running.get(served.name()).is_some_and(|running| running.definition == definition) {
            return Ok(());
        }
        let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
        self.directory.put_record(RECORDS, served.name(), &record)?;
        self.run(&mut running, served.name(), definition);
        Ok(())
    }

    /// Removes the rule of a database. What it resolved stays. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn remove(self: &Arc<Self>, served: &ServedDatabase) -> Result<()> {
        let removed = self.of(served)?;
        self.running.lock().remove(served.name());
        removed.cancelled.send_replace(true);
        self.directory.remove_record(RECORDS, served.name())
    }

    /// The rule of a database and what it has done since the server started.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn get(self: &Arc<Self>, served: &ServedDatabase) -> Result<Json> {
        let running = self.of(served)?;
        let mut shown = running.definition.shown();
        let status = running.status.lock();
        shown["status"] = json!({
            "resolved": status.resolved_count,
            "failed": status.failed.len(),
            "error": status.error,
            "seq": served.sequence_text(status.position),
        });
        Ok(shown)
    }

    fn of(self: &Arc<Self>, served: &ServedDatabase) -> Result<Arc<RunningRule>> {
        self.catch_up()?;
        let running = self.running.lock().get(served.name()).cloned();
        running.filter(|running| running.definition.instance == served.instance_id()).ok_or_else(no_rule)
    }

    fn run(
        self: &Arc<Self>,
        running: &mut BTreeMap<String, Arc<RunningRule>>,
        database: &str,
        definition: ConflictDefinition,
    ) {
        let cancelled = watch::channel(false).0;
        let rule = Arc::new(RunningRule { definition, status: Mutex::default(), cancelled });
        if let Some(other) = running.insert(database.to_owned(), rule.clone()) {
            other.cancelled.send_replace(true);
        }
        server_runtime().spawn(self.clone().keep_applying(database.to_owned(), rule));
    }

    /// Applies a rule until it is cancelled, the server stops, or the database is deleted.
    async fn keep_applying(self: Arc<Self>, database: String, rule: Arc<RunningRule>) {
        let (mut cancelled, mut stopping) = (rule.cancelled.subscribe(), self.stopping.clone());
        loop {
            let applied = tokio::select! {
                applied = self.apply(&database, &rule) => applied,
                _ = cancelled.wait_for(|cancelled| *cancelled) => return,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            let wait = match applied {
                Ok(true) => REOPEN_WAIT,
                Ok(false) => return self.forget(database, &rule).await,
                Err(failure) => {
                    tracing::warn!(target: "stemma::replicator", "conflicts of {database}: {}", failure.reason());
                    RETRY_WAIT
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = cancelled.wait_for(|cancelled| *cancelled) => return,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    /// Removes the rule of a database that does not exist any more.
    async fn forget(self: Arc<Self>, database: String, rule: &Arc<RunningRule>) {
        {
            let mut running = self.running.lock();
            if !running.get(&database).is_some_and(|running| Arc::ptr_eq(running, rule)) {
                return;
            }
            running.remove(&database);
        }
        let (rules, name) = (self.clone(), database.clone());
        if let Err(failure) = blocking(move || rules.directory.remove_record(RECORDS, &name)).await {
            tracing::warn!(target: "stemma::replicator", "the conflict rule of {database}: {}", failure.reason());
        }
    }

    /// Applies a rule until the database is closed, unless another server of the cluster does; false if there is no
    /// such database.
    async fn apply(&self, database: &str, rule: &Arc<RunningRule>) -> Result<bool> {
        let served = match self.directory.open_own_database(database).await {
            Ok(Some(served)) => served,
            Ok(None) => return Ok(true),
            Err(failure) if failure.status() == StatusCode::NOT_FOUND => return Ok(false),
            Err(failure) => return Err(failure),
        };
        if served.instance_id() != rule.definition.instance {
            return Ok(false);
        }
        let mut published = served.published();
        let (read, reading) = (served.clone(), rule.clone());
        let mut position = blocking(move || stored_position(&read, &reading.definition)).await?;
        loop {
            published.borrow_and_update();
            let (read, applied) = (served.clone(), rule.clone());
            let (scripts, durability) = (self.scripts.clone(), self.durability);
            position = blocking(move || resolve_changes(&read, &scripts, durability, &applied, position)).await?;
            let has_failed = !rule.status.lock().failed.is_empty();
            tokio::select! {
                changed = published.changed() => if changed.is_err() { return Ok(true) },
                () = tokio::time::sleep(RETRY_WAIT), if has_failed => {}
            }
        }
    }
}

/// The position up to which a database was examined with this rule. Blocks.
fn stored_position(served: &ServedDatabase, definition: &ConflictDefinition) -> Result<Sequence> {
    let Some((_, stored)) = served.database().local_documents().get(POSITION_ID)? else { return Ok(Sequence::ZERO) };
    let is_same = stored.get("rule") == Some(&Value::from_serialize(&definition.shown())?);
    let position = stored.get("sequence").and_then(Value::as_u64).filter(|_| is_same);
    Ok(Sequence::new(position.unwrap_or(0)))
}

/// Resolves the documents that changed after a position, and those that failed before; returns the new position.
/// Blocks.
fn resolve_changes(
    served: &Arc<ServedDatabase>,
    scripts: &Arc<Scripts>,
    durability: Durability,
    running: &RunningRule,
    since: Sequence,
) -> Result<Sequence> {
    let rule = running.definition.rule(served, scripts);
    let failed = std::mem::take(&mut running.status.lock().failed);
    let changes = served.database().changes(since)?;
    let reached = changes.last_sequence();
    let mut resolved_count = 0;
    let mut resolve = |id: &str| {
        if *running.cancelled.borrow() {
            return;
        }
        let resolved = resolve(served, &rule, durability, id);
        let mut status = running.status.lock();
        match resolved {
            Ok(false) => {}
            Ok(true) => {
                resolved_count += 1;
                status.resolved_count += 1;
            }
            Err(failure) => {
                tracing::warn!(target: "stemma::replicator", "{}: {id}: {}", served.name(), failure.reason());
                status.error = Some(format!("{id}: {}", failure.reason()));
                if status.failed.len() < FAILED_MAX {
                    status.failed.insert(id.to_owned());
                }
            }
        }
    };
    failed.iter().for_each(|id| resolve(id));
    for change in changes.run() {
        let change = change?;
        if change.leaves.len() > 1 && !change.id.is_design() {
            resolve(change.id.as_str());
        }
    }
    let mut status = running.status.lock();
    if status.failed.is_empty() {
        status.error = None;
    }
    let has_failed = !status.failed.is_empty();
    status.position = reached;
    drop(status);
    let is_far = reached.get() - since.get() >= POSITION_INTERVAL;
    // After a restart, what failed is found again from an earlier position.
    if (resolved_count > 0 || is_far) && !has_failed && !*running.cancelled.borrow() {
        let mut body = Object::new();
        body.insert("rule", Value::from_serialize(&running.definition.shown())?);
        body.insert("sequence", reached.get());
        served.database().local_documents().put(POSITION_ID, None, &Value::Object(body))?;
    }
    Ok(reached)
}

fn resolve(served: &ServedDatabase, rule: &ConflictRule, durability: Durability, id: &str) -> Result<bool> {
    let edits = rule.edits(&served.database().snapshot()?, id)?;
    if edits.is_empty() {
        return Ok(false);
    }
    apply_resolution(served, edits, AUTHOR, durability)?;
    Ok(true)
}

fn no_rule() -> Failure {
    Failure::not_found("the database has no conflict rule")
}
