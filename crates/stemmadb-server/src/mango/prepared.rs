//! Prepared queries: checked once, asked again with other parameters.
//!
//! `{"$param": "name"}` stands for a value, wherever a selector has one; never for an operator or a selector, so that what a client puts
//! in its place can't mean anything else than a value.
//!
//! Handles are the server's memory: they are forgotten when it stops, and when too many others were used since.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb::{Database, Object, Value};
use uuid::Uuid;

use super::Request;
use crate::design;
use crate::error::{Failure, Result};

/// Handles of one user in one database.
const OF_ONE_MAX: usize = 100;
/// Handles of all users in one database.
const OF_ALL_MAX: usize = 1_000;
/// The longest query that is kept, in bytes.
const QUERY_BYTES_MAX: usize = 64 << 10;
/// Queries with values in their places that are kept for each handle, and the longest values.
const BOUND_MAX: usize = 8;
const BOUND_BYTES_MAX: usize = 4 << 10;

/// The prepared queries of a database.
#[derive(Default)]
pub(crate) struct PreparedQueries(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By handle, with when each was used last.
    queries: HashMap<String, (u64, Arc<PreparedQuery>)>,
    /// Counts uses.
    now: u64,
}

/// One prepared query.
pub(crate) struct PreparedQuery {
    /// Who may ask it; none: whoever did not say who they are.
    owner: Option<String>,
    body: Value,
    pub(crate) parameters: BTreeSet<String>,
    /// With values in their places, by the values.
    bound: Mutex<VecDeque<(String, Request)>>,
}

impl PreparedQueries {
    /// Keeps the query that `body` is, and returns its handle.
    ///
    /// # Errors
    /// 400 if it can't be one; 413 if it is too long.
    pub(crate) fn prepare(
        &self,
        database: &Database,
        owner: Option<String>,
        body: Value,
    ) -> Result<(String, Arc<PreparedQuery>)> {
        if body.to_json().len() > QUERY_BYTES_MAX {
            return Err(Failure::too_large(format!("A prepared query has at most {QUERY_BYTES_MAX} bytes")));
        }
        let mut parameters = BTreeSet::new();
        let sampled = with_selector(&body, &mut |name, operator| {
            parameters.insert(name.to_owned());
            Ok(sample(operator))
        })?;
        // What is wrong whatever the parameters are, is told now.
        Request::parse(&sampled)?.prepared(database, true)?;
        let query = Arc::new(PreparedQuery { owner, body, parameters, bound: Mutex::default() });
        let handle = Uuid::new_v4().simple().to_string();
        let mut known = self.0.lock();
        known.make_room(&query.owner);
        let now = known.tick();
        known.queries.insert(handle.clone(), (now, query.clone()));
        Ok((handle, query))
    }

    /// The query with this handle.
    ///
    /// # Errors
    /// 404 if there is none of this owner.
    pub(crate) fn get(&self, handle: &str, owner: &Option<String>) -> Result<Arc<PreparedQuery>> {
        let mut known = self.0.lock();
        let now = known.tick();
        let (used, query) =
            known.queries.get_mut(handle).filter(|(_, query)| query.owner == *owner).ok_or_else(unknown)?;
        *used = now;
        Ok(query.clone())
    }

    /// Forgets the query with this handle.
    ///
    /// # Errors
    /// 404 if there is none of this owner.
    pub(crate) fn forget(&self, handle: &str, owner: &Option<String>) -> Result<()> {
        self.get(handle, owner)?;
        self.0.lock().queries.remove(handle);
        Ok(())
    }
}

fn unknown() -> Failure {
    let reason = "There is no such prepared query: handles belong to who made them, and are forgotten when the server stops or when too \
                  many others were used since. Prepare it again.";
    Failure::new(StatusCode::NOT_FOUND, "unknown_query", reason)
}

impl Known {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Forgets what was not used for longest, if one more would be too many.
    fn make_room(&mut self, owner: &Option<String>) {
        let of_one = self.queries.values().filter(|(_, query)| query.owner == *owner).count();
        let is_counted = |query: &PreparedQuery| of_one < OF_ONE_MAX || query.owner == *owner;
        if of_one < OF_ONE_MAX && self.queries.len() < OF_ALL_MAX {
            return;
        }
        let counted = self.queries.iter().filter(|(_, (_, query))| is_counted(query));
        let oldest = counted.min_by_key(|(_, (used, _))| *used).map(|(handle, _)| handle.clone());
        oldest.map(|handle| self.queries.remove(&handle));
    }
}

impl PreparedQuery {
    /// The page that `body` asks for: `parameters`, and which part of the result. Blocks for planning.
    ///
    /// # Errors
    /// 400 if a parameter is missing, unknown or unfit.
    pub(crate) fn request(&self, database: &Database, mut body: Object) -> Result<Request> {
        let parameters = match body.remove("parameters") {
            None => Object::new(),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => return Err(Failure::bad_request("`parameters` must be an object")),
        };
        if let Some(name) = parameters.names().find(|name| !self.parameters.contains(*name)) {
            return Err(Failure::bad_request(format!("The query has no parameter `{name}`")));
        }
        self.bind(database, parameters)?.page(&body)
    }

    fn bind(&self, database: &Database, parameters: Object) -> Result<Request> {
        let key = Value::Object(parameters.clone()).to_json();
        if let Some((_, request)) = self.bound.lock().iter().find(|(known, _)| *known == key) {
            return Ok(request.clone());
        }
        let body = with_selector(&self.body, &mut |name, _| {
            let value = parameters.get(name).cloned();
            value.ok_or_else(|| Failure::bad_request(format!("The parameter `{name}` is missing")))
        })?;
        let has_design_documents = design::has_any(&database.snapshot()?)?;
        let request = Request::parse(&body)?.prepared(database, has_design_documents)?;
        if key.len() <= BOUND_BYTES_MAX {
            let mut bound = self.bound.lock();
            bound.truncate(BOUND_MAX - 1);
            bound.push_front((key, request.clone()));
        }
        Ok(request)
    }
}

/// Gives the value of a parameter, which stands after an operator.
type Resolve<'a> = &'a mut dyn FnMut(&str, &str) -> Result<Value>;

/// The query with values for the parameters of its selector.
fn with_selector(body: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let mut body = body.clone();
    if let Some(selector) = body.as_object_mut().and_then(|body| body.get_mut("selector")) {
        *selector = bound(selector, resolve)?;
    }
    Ok(body)
}

/// A selector, or the conditions on a field, with values for its parameters.
fn bound(conditions: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let Value::Object(object) = conditions else { return Ok(conditions.clone()) };
    let mut told = Object::new();
    for (name, value) in object.iter() {
        let value = match (name, value) {
            ("$and" | "$or" | "$nor", Value::Array(parts)) => {
                parts.iter().map(|part| bound(part, resolve)).collect::<Result<Vec<_>>>()?.into()
            }
            ("$not" | "$elemMatch" | "$allMatch" | "$keyMapMatch", value) => condition(value, resolve)?,
            (operator, value) if operator.starts_with('$') => operand(operator, value, resolve)?,
            (_, value) => condition(value, resolve)?,
        };
        told.insert(name, value);
    }
    Ok(told.into())
}

/// What a field must meet: a value, which it equals, or conditions.
fn condition(value: &Value, resolve: Resolve<'_>) -> Result<Value> {
    match parameter(value) {
        // Spelled out, so that a value with operators in it is a value still.
        Some(name) => Ok(Object::from_iter([("$eq", resolve(name, "$eq")?)]).into()),
        None => bound(value, resolve),
    }
}

fn operand(operator: &str, value: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let element = |element: &Value| match parameter(element) {
        Some(name) => resolve(name, if operator == "$mod" { "$size" } else { "$eq" }),
        None => Ok(element.clone()),
    };
    match (parameter(value), value) {
        (Some(name), _) => resolve(name, operator),
        (None, Value::Array(elements)) => Ok(elements.iter().map(element).collect::<Result<Vec<_>>>()?.into()),
        (None, value) => Ok(value.clone()),
    }
}

/// The parameter that a value stands for, if it stands for one.
fn parameter(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get("$param")?.as_str()
}

/// A value that an operator takes: what a query is checked with before its parameters are known.
fn sample(operator: &str) -> Value {
    match operator {
        "$in" | "$nin" | "$all" => Value::Array(Vec::new()),
        "$mod" => [1_u64, 0].into(),
        "$size" => 1_u64.into(),
        "$exists" => true.into(),
        "$regex" | "$beginsWith" => "".into(),
        "$type" => "string".into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound_to(selector: &str, value: &str) -> String {
        let body = Value::parse(format!("{{\"selector\":{selector}}}").as_bytes()).unwrap();
        let value = Value::parse(value.as_bytes()).unwrap();
        with_selector(&body, &mut |_, _| Ok(value.clone())).unwrap().get("selector").unwrap().to_json()
    }

    #[test]
    fn parameters_are_values_and_nothing_else() {
        for (selector, value, expected) in [
            (r#"{"a":{"$param":"x"}}"#, r#"{"$gt":null}"#, r#"{"a":{"$eq":{"$gt":null}}}"#),
            (r#"{"a":{"$gte":{"$param":"x"},"$lt":9}}"#, "3", r#"{"a":{"$gte":3,"$lt":9}}"#),
            (r#"{"a":{"b":{"$param":"x"}}}"#, "1", r#"{"a":{"b":{"$eq":1}}}"#),
            (r#"{"a":{"$in":[1,{"$param":"x"}]}}"#, "2", r#"{"a":{"$in":[1,2]}}"#),
            (r#"{"a":{"$in":{"$param":"x"}}}"#, "[2]", r#"{"a":{"$in":[2]}}"#),
            (r#"{"$or":[{"a":{"$param":"x"}},{"b":1}]}"#, "2", r#"{"$or":[{"a":{"$eq":2}},{"b":1}]}"#),
            (r#"{"a":{"$elemMatch":{"$param":"x"}}}"#, "2", r#"{"a":{"$elemMatch":{"$eq":2}}}"#),
            (r#"{"a":{"$not":{"$param":"x"}}}"#, r#"{"$gt":0}"#, r#"{"a":{"$not":{"$eq":{"$gt":0}}}}"#),
        ] {
            assert_eq!(bound_to(selector, value), expected);
        }
    }

    #[test]
    fn the_least_used_are_forgotten() {
        let (database, queries) = (Database::in_memory(), PreparedQueries::default());
        let prepare = |owner: &str| {
            let body = Value::parse(br#"{"selector": {"a": {"$param": "x"}}}"#).unwrap();
            queries.prepare(&database, Some(owner.to_owned()), body).unwrap().0
        };
        let (ada, bob) = (Some("ada".to_owned()), Some("bob".to_owned()));
        let handles: Vec<_> = (0..OF_ONE_MAX).map(|_| prepare("ada")).collect();
        let of_bob = prepare("bob");
        queries.get(&handles[0], &ada).unwrap();
        prepare("ada");
        assert!(queries.get(&handles[0], &ada).is_ok());
        assert_eq!(queries.get(&handles[1], &ada).err().unwrap().error(), "unknown_query");
        assert!(queries.get(&of_bob, &bob).is_ok() && queries.get(&of_bob, &ada).is_err());
        queries.forget(&of_bob, &bob).unwrap();
        assert!(queries.get(&of_bob, &bob).is_err());
    }
}
