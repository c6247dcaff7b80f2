//! Calls of one trigger: attempts, dead letters, redelivery, and the state that clients see.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use stemmadb::messages::TriggerError;
use stemmadb::{Change, Document, Sequence, all_of, field};
use stemmadb_client::AnyDatabase;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::definition::parse_url;
use super::function::TriggerFunction;
use super::webhook::{Secret, Webhook};
use super::{TriggerContext, TriggerDefinition};
use crate::design::document_json;
use crate::directory::ServedDatabase;
use crate::documents::format_rfc3339;
use crate::error::{Failure, Result};

/// What a trigger does with a change.
enum Action {
    Webhook(Webhook),
    Function(TriggerFunction),
}

/// Calls one trigger.
pub(super) struct Runner {
    context: Arc<TriggerContext>,
    served: Arc<ServedDatabase>,
    name: String,
    action: Action,
    attempts_max: Option<u32>,
    dead_letters: Option<String>,
    cancelled: watch::Receiver<bool>,
    runtime: Handle,
    status: Mutex<Status>,
}

#[derive(Default)]
struct Status {
    handled_count: u64,
    failure_count: u64,
    dead_letter_count: u64,
    /// The change whose call failed last, and its failed calls, if it is going to be repeated.
    failing: Option<(Sequence, u32)>,
    error: Option<String>,
    /// In seconds since 1970.
    handled_at: Option<u64>,
}

/// Letters that one redelivery handles.
const LETTERS_MAX: u64 = 1_000;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Runner {
    pub(super) fn new(
        context: &Arc<TriggerContext>,
        served: Arc<ServedDatabase>,
        name: &str,
        definition: &TriggerDefinition,
        cancelled: watch::Receiver<bool>,
        runtime: &Handle,
    ) -> Result<Self> {
        let action = match (&definition.url, &definition.function) {
            (Some(url), _) => Action::Webhook(Webhook {
                uri: parse_url(url)?,
                secret: Secret::parse(definition.secret.as_deref().unwrap_or_default())?,
            }),
            (None, function) => Action::Function(TriggerFunction { name: function.clone().unwrap_or_default() }),
        };
        Ok(Runner {
            context: context.clone(),
            served,
            name: name.to_owned(),
            action,
            attempts_max: definition.attempts,
            dead_letters: definition.dead_letters.clone(),
            cancelled,
            runtime: runtime.clone(),
            status: Mutex::default(),
        })
    }

    pub(super) fn served(&self) -> &Arc<ServedDatabase> {
        &self.served
    }

    /// Handles a change; an error means that the call is to be repeated. Blocks.
    pub(super) fn handle(&self, change: &Change) -> Result<(), TriggerError> {
        let event = self.event(change.id.as_str(), change.sequence, change.document.as_ref(), change.deleted);
        let called = event.and_then(|event| self.call(change.sequence, &event));
        let Err(failure) = called else {
            let mut status = self.status.lock();
            status.handled_count += 1;
            status.handled_at = Some(now());
            (status.failing, status.error) = (None, None);
            return Ok(());
        };
        if self.is_cancelled() {
            // The next start repeats it; it is no failure of the receiver.
            return Err(failure.into());
        }
        let attempt_count = {
            let mut status = self.status.lock();
            let before = status.failing.filter(|(sequence, _)| *sequence == change.sequence);
            let attempt_count = before.map_or(0, |(_, count)| count).saturating_add(1);
            status.failing = Some((change.sequence, attempt_count));
            status.failure_count += 1;
            status.error = Some(failure.reason().to_owned());
            attempt_count
        };
        let (database, name) = (self.served.name(), &self.name);
        tracing::warn!(target: "stemma::trigger", "{database}/{name}: attempt {attempt_count}: {}", failure.reason());
        if self.attempts_max.is_none_or(|attempts_max| attempt_count < attempts_max) {
            return Err(failure.into());
        }
        self.put_dead_letter(change, attempt_count, &failure)?;
        let mut status = self.status.lock();
        status.dead_letter_count += 1;
        status.failing = None;
        Ok(())
    }

    /// What a webhook sends and a function receives.
    fn event(&self, id: &str, sequence: Sequence, document: Option<&Document>, deleted: bool) -> Result<Json> {
        let shown = match document.filter(|_| !deleted) {
            Some(document) => serde_json::from_str(&document_json(&self.served, document)?)
                .map_err(|error| Failure::internal(error.to_string()))?,
            None => Json::Null,
        };
        Ok(json!({
            "type": "change",
            "database": self.served.name(),
            "trigger": self.name,
            "seq": self.served.sequence_text(sequence),
            "id": id,
            "rev": document.map(|document| document.revision().to_string()),
            "deleted": deleted,
            "doc": shown,
        }))
    }

    fn call(&self, sequence: Sequence, event: &Json) -> Result<()> {
        let stopped = || Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "the trigger is stopped");
        let permit = self.runtime.block_on(async {
            let mut cancelled = self.cancelled.clone();
            tokio::select! {
                permit = self.context.calls.acquire() => permit.map_err(|_| stopped()),
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(stopped()),
            }
        })?;
        let outcome = match &self.action {
            Action::Function(function) => {
                let author = format!("trigger:{}", self.name);
                function.call(&self.context, &self.served, &author, event)
            }
            Action::Webhook(webhook) => {
                // The same in all attempts, so that a receiver recognizes what it has handled.
                let id = format!("{}-{}-{sequence}", self.served.instance_id(), self.name);
                self.runtime.block_on(async {
                    let mut cancelled = self.cancelled.clone();
                    tokio::select! {
                        sent = webhook.send(&self.context, &id, event) => sent,
                        _ = cancelled.wait_for(|cancelled| *cancelled) => Err(stopped()),
                    }
                })
            }
        };
        drop(permit);
        outcome
    }

    fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    fn open_dead_letters(&self) -> Result<AnyDatabase> {
        let name = self.dead_letters.as_deref();
        let name = name.ok_or_else(|| Failure::bad_request("the trigger has no `dead_letters`"))?;
        self.runtime.block_on(self.context.servers.database(name))
    }

    /// Stores a change that failed. A later failure of the same document replaces it, because a redelivery sends the
    /// newest state.
    fn put_dead_letter(&self, change: &Change, attempt_count: u32, failure: &Failure) -> Result<()> {
        let letters = self.open_dead_letters()?;
        let id = format!("{}/{}/{}", self.served.name(), self.name, change.id);
        letters.upsert(
            &id,
            &json!({
                "type": "dead_letter",
                "database": self.served.name(),
                "trigger": self.name,
                "document": change.id.as_str(),
                "rev": change.revision.to_string(),
                "sequence": change.sequence.get(),
                "deleted": change.deleted,
                "attempts": attempt_count,
                "error": failure.reason(),
                "at": format_rfc3339(now()),
            }),
        )?;
        Ok(())
    }

    /// Calls the trigger for its dead letters; returns how many succeeded and failed, and the last error. Blocks.
    pub(super) fn redeliver(&self, id: Option<&str>) -> Result<(usize, usize, Option<String>)> {
        let letters = self.open_dead_letters()?;
        let mut all = vec![field("trigger").eq(self.name.as_str()), field("database").eq(self.served.name())];
        all.extend(id.map(|id| field("document").eq(id)));
        let found = letters.find(all_of(all)).limit(LETTERS_MAX).documents()?;
        let (mut redelivered, mut failed, mut last) = (0, 0, None);
        for letter in found {
            let document = letter.get("document")?;
            let Some(id) = document.as_ref().and_then(stemmadb::Value::as_str) else { continue };
            let sequence = letter.get("sequence")?.and_then(|sequence| sequence.as_u64()).unwrap_or(0);
            let sequence = Sequence::new(sequence);
            let current = self.served.database().get(id)?;
            let event = self.event(id, sequence, current.as_ref(), current.is_none())?;
            match self.call(sequence, &event) {
                Ok(()) => {
                    redelivered += 1;
                    // If it failed again meanwhile, the newer letter stays.
                    letters.delete(letter.id().as_str(), letter.revision()).ok();
                }
                Err(failure) => {
                    failed += 1;
                    last = Some(failure.reason().to_owned());
                }
            }
        }
        Ok((redelivered, failed, last))
    }

    /// The counts since the server started, and the current failure.
    pub(super) fn status(&self) -> Json {
        let status = self.status.lock();
        json!({
            "state": if status.failing.is_some() { "failing" } else { "running" },
            "handled": status.handled_count,
            "failures": status.failure_count,
            "dead_letters": status.dead_letter_count,
            "attempts": status.failing.map_or(0, |(_, count)| count),
            "error": status.error,
            "handled_at": status.handled_at.map(format_rfc3339),
        })
    }
}
