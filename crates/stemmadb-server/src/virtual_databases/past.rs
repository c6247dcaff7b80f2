//! Reads of a virtual database as of a time: the shards that had the documents then, and the state of each.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::Method;
use stemmadb::past::{At, Retention};
use stemmadb::{ErrorKind, Object, Value};
use stemmadb_federation::VirtualPast;

use super::databases::Layout;
use super::remote::Shard;
use super::{EnteredVirtual, OpenVirtual};
use crate::documents::format_rfc3339_us;
use crate::error::{Failure, Result};
use crate::http::blocking;

/// What a request reads of the past.
pub(super) struct PastShards {
    past: VirtualPast,
    /// The parameter `as_of` for each shard, in the order of the layout; `None` for one that is not read.
    states: Vec<Option<String>>,
}

impl EnteredVirtual {
    /// Reads the shards as they were at a time from now on; with an id, only the shard of this document.
    ///
    /// # Errors
    /// 404 if a shard that had documents then is lost, or does not keep its past; 503 if one does not answer.
    pub(crate) async fn read_past(&mut self, time: SystemTime, id: Option<&str>) -> Result<()> {
        let (open, id) = (self.open.clone(), id.map(str::to_owned));
        let (past, layout) = blocking(move || {
            let lost = |error: stemmadb::Error| match error.kind() {
                ErrorKind::NotFound => Failure::not_found(error.message().to_owned()),
                _ => error.into(),
            };
            let past = open.database.past(time).map_err(lost)?;
            let layout = open.layout_of_past(&past);
            let read = |shard: usize| match &id {
                Some(id) => layout.index_of(id) == shard,
                None => past.has_documents(shard),
            };
            let state = |shard| read(shard).then(|| text_of(past.state(shard).map_err(lost)?)).transpose();
            let states = (0..layout.all().len()).map(state).collect::<Result<_>>()?;
            Ok((PastShards { past, states }, layout))
        })
        .await?;
        self.layout = Arc::new(layout);
        self.past = Some(Arc::new(past));
        Ok(())
    }

    /// The past that is read.
    pub(crate) fn past(&self) -> Option<&VirtualPast> {
        self.past.as_ref().map(|shards| &shards.past)
    }

    /// Whether the shard at an index is read: shards that had no documents then are not.
    pub(crate) fn is_read(&self, shard: usize) -> bool {
        self.past.as_ref().is_none_or(|shards| shards.states[shard].is_some())
    }

    /// The state of a shard that is read, if it is not the newest.
    ///
    /// # Errors
    /// 404 if its past is not kept.
    pub(crate) fn state_of(&self, shard: &Shard) -> Result<Option<At>> {
        let Some(past) = &self.past else { return Ok(None) };
        let index = self.layout.all().iter().position(|known| known.is_same(shard));
        let index = index.ok_or_else(|| Failure::internal("the shard is not one of then"))?;
        Ok(Some(past.past.state(index)?))
    }

    /// The parameter `as_of` of a request to a shard.
    pub(crate) fn as_of(&self, shard: &Shard) -> Option<&str> {
        let index = self.layout.all().iter().position(|known| known.is_same(shard))?;
        self.past.as_ref()?.states[index].as_deref()
    }
}

impl OpenVirtual {
    fn layout_of_past(&self, past: &VirtualPast) -> Layout {
        Layout::of_shards(past.map(), self.own.clone(), &self.shards.read())
    }
}

impl OpenVirtual {
    /// Lets a new shard keep as much of the past as the others.
    ///
    /// # Errors
    /// 503 if no shard answers.
    pub(super) async fn keep_past_in(&self, part: &Shard) -> Result<()> {
        let mut unanswered = None;
        for shard in self.layout().all() {
            match shard.retention().await {
                Ok(kept) => return part.keep_past(kept).await,
                Err(failure) => unanswered = Some(failure),
            }
        }
        unanswered.map_or(Ok(()), Err)
    }
}

impl Shard {
    /// How much of the past it keeps, as the body of a `PUT` of `_retention`.
    async fn retention(&self) -> Result<Value> {
        let mut kept = Object::new();
        match self {
            Shard::Here(served) => {
                let history = served.database().history();
                let prefixes = history.prefixes().into_iter();
                let prefixes: Object = prefixes.map(|(prefix, kept)| (prefix, kept.to_value())).collect();
                kept.insert("retention", history.retention().to_value());
                kept.insert("prefixes", prefixes);
            }
            Shard::There(remote) => {
                let answer = Value::parse(&remote.ask(Method::GET, "/_retention", None, None).await?.1)?;
                for name in ["retention", "prefixes"] {
                    kept.insert(name, answer.get(name).cloned().unwrap_or_else(|| Object::new().into()));
                }
            }
        }
        Ok(Value::Object(kept))
    }

    async fn keep_past(&self, kept: Value) -> Result<()> {
        match self {
            Shard::Here(served) => {
                let served = served.clone();
                blocking(move || {
                    let history = served.database().history();
                    for (prefix, kept) in kept.get("prefixes").and_then(Value::as_object).into_iter().flatten() {
                        history.keep_of_prefix(prefix, Some(Retention::parse(kept)?))?;
                    }
                    let kept = kept.get("retention").map(Retention::parse).transpose()?;
                    Ok(kept.map_or(Ok(()), |kept| history.keep(kept))?)
                })
                .await
            }
            Shard::There(remote) => {
                remote.ask(Method::PUT, "/_retention", Some(kept.to_json().into()), None).await.map(drop)
            }
        }
    }
}

/// A point in the past as the parameter `as_of` names it.
fn text_of(at: At) -> Result<String> {
    match at {
        At::Sequence(sequence) => Ok(sequence.to_string()),
        At::Time(time) => {
            let us = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
            Ok(format_rfc3339_us(u64::try_from(us).unwrap_or(u64::MAX)))
        }
        _ => Err(Failure::internal("a state of a shard is a time or a sequence")),
    }
}
