//! Arguments of calls: JSON objects that the package writes.

use std::time::{Duration, UNIX_EPOCH};

use stemmadb::past::{At, Retention};
use stemmadb::{DocumentId, Error, Object, Patch, Query, Result, Revision, Selector, Sequence, Value};

/// The arguments of one call, by name. One that is `null` is missing.
pub(crate) struct Arguments(Object);

fn wrong(name: &str, what: &str) -> Error {
    Error::invalid(format!("`{name}` is not {what}"))
}

impl Arguments {
    /// Parses the JSON text that the package made of the arguments.
    ///
    /// # Errors
    /// `Invalid` for what JSON text of JavaScript can have and documents can't, such as halves of surrogate pairs.
    pub(crate) fn parse(json: &str) -> Result<Self> {
        match Value::parse(json)? {
            Value::Object(arguments) => Ok(Arguments(arguments)),
            _ => Err(Error::internal("the arguments of a call are no object")),
        }
    }

    /// Takes an argument.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| *value != Value::Null)
    }

    pub(crate) fn required(&mut self, name: &str) -> Result<Value> {
        self.take(name).ok_or_else(|| Error::invalid(format!("`{name}` is missing")))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<String> {
        match self.required(name)? {
            Value::String(text) => Ok(text),
            _ => Err(wrong(name, "a string")),
        }
    }

    pub(crate) fn optional_text(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(name, "a string")),
        }
    }

    pub(crate) fn id(&mut self) -> Result<DocumentId> {
        DocumentId::new(self.text("id")?)
    }

    pub(crate) fn revision(&mut self) -> Result<Option<Revision>> {
        self.optional_text("revision")?.map(|revision| revision.parse()).transpose()
    }

    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u64>> {
        let whole = |value: Value| match value {
            Value::Number(number) => number.as_u64(),
            _ => None,
        };
        match self.take(name) {
            None => Ok(None),
            Some(value) => whole(value).map(Some).ok_or_else(|| wrong(name, "a whole number from 0")),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    /// A time in milliseconds, as JavaScript's timers take it.
    pub(crate) fn milliseconds(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Value::Number(number) = value else { return Err(wrong(name, "a number of milliseconds")) };
        let time = Duration::try_from_secs_f64(number.as_f64() / 1000.0);
        time.map(Some).map_err(|_| wrong(name, "a number of milliseconds from 0"))
    }

    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            _ => Err(wrong(name, "an array of strings")),
        };
        match value {
            Value::Array(elements) => elements.into_iter().map(text).collect::<Result<_>>().map(Some),
            one => text(one).map(|text| Some(vec![text])),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Object> {
        match self.required(name)? {
            Value::Object(object) => Ok(object),
            _ => Err(wrong(name, "an object")),
        }
    }

    pub(crate) fn patch(&mut self) -> Result<Patch> {
        Patch::parse(&self.required("patch")?)
    }

    pub(crate) fn selector(&mut self) -> Result<Option<Selector>> {
        self.take("selector").map(|selector| Selector::parse(&selector)).transpose()
    }

    /// A query in Mango's form, and its time limit.
    pub(crate) fn query(&mut self) -> Result<Query> {
        let query = Query::parse(&self.required("query")?)?;
        Ok(match self.milliseconds("timeout")? {
            Some(time) => query.time_limit(time),
            None => query,
        })
    }

    /// A point in the past: a sequence, text, or `{"ms": …}` of a `Date`.
    pub(crate) fn point(&mut self, name: &str) -> Result<At> {
        match self.required(name)? {
            Value::String(text) => text.parse(),
            Value::Number(number) if number.as_u64().is_some() => {
                Ok(At::Sequence(Sequence::new(number.as_u64().unwrap_or_default())))
            }
            Value::Object(date) => {
                let Some(Value::Number(ms)) = date.get("ms") else { return Err(wrong(name, "a valid date")) };
                let ms = ms.as_u64().ok_or_else(|| wrong(name, "a date since 1970"))?;
                Ok(At::Time(UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)))
            }
            _ => Err(wrong(name, "a point in the past")
                .with_hint("give a sequence, a Date, or text such as \"-2h\" or \"2026-11-24T12:00:00Z\"")),
        }
    }

    /// How much of the past is kept.
    pub(crate) fn retention(&mut self) -> Result<Retention> {
        let error = || {
            wrong("keep", "an amount of history")
                .with_hint("give {days: 7}, {hours: 12}, a number of revisions, \"everything\", or null")
        };
        match self.take("keep") {
            None => Ok(Retention::Nothing),
            Some(Value::String(text)) if text == "everything" => Ok(Retention::Everything),
            Some(Value::Number(count)) => {
                let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
                count.map(Retention::Revisions).ok_or_else(error)
            }
            Some(Value::Object(time)) => {
                let mut seconds = 0.0;
                for (unit, count) in time.iter() {
                    let Value::Number(count) = count else { return Err(error()) };
                    seconds += count.as_f64()
                        * match unit {
                            "days" => 86_400.0,
                            "hours" => 3_600.0,
                            "minutes" => 60.0,
                            "seconds" => 1.0,
                            _ => return Err(error()),
                        };
                }
                Duration::try_from_secs_f64(seconds).map(Retention::For).map_err(|_| error())
            }
            Some(_) => Err(error()),
        }
    }
}
