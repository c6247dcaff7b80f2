//! Prepared queries: checked once, then executed with different parameters.
//!
//! `{"$param": "name"}` may appear wherever a selector has a value, but not in place of an operator or a selector. A
//! bound value is therefore never interpreted as a condition: parameters prevent query injection.
//!
//! Prepared queries are kept in memory only. They are lost when the server stops, and the least recently used are
//! evicted.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb::{Database, Object, Value};
use uuid::Uuid;

use super::FindRequest;
use crate::design;
use crate::error::{Failure, Result};

/// The most prepared queries of one user in one database.
const QUERIES_PER_USER_MAX: usize = 100;
/// The most prepared queries of all users in one database.
const QUERIES_MAX: usize = 1_000;
/// The most bytes of the prepared queries of all users in one database.
const QUERIES_BYTES_MAX: usize = 4 << 20;
/// The longest query in bytes.
const QUERY_BYTES_MAX: usize = 64 << 10;
/// The number of bound queries that are cached for each prepared query, and the most bytes of their parameters.
const BOUND_MAX: usize = 8;
const BOUND_BYTES_MAX: usize = 4 << 10;

/// The prepared queries of a database.
#[derive(Default)]
pub(crate) struct PreparedQueries(Mutex<QueryTable>);

#[derive(Default)]
struct QueryTable {
    /// By handle, with the clock value of the last use.
    queries: HashMap<String, (u64, Arc<PreparedQuery>)>,
    /// A logical clock that counts uses.
    clock: u64,
}

/// One prepared query.
pub(crate) struct PreparedQuery {
    /// The user who may execute it; `None` for anonymous clients.
    owner: Option<String>,
    body: Value,
    /// The length of the body as JSON.
    byte_count: usize,
    pub(crate) parameters: BTreeSet<String>,
    /// A cache of bound queries by their parameters as JSON.
    bound: Mutex<VecDeque<(String, FindRequest)>>,
}

impl PreparedQueries {
    /// Checks and stores a query; returns its handle.
    ///
    /// # Errors
    /// 400 if the query is invalid; 413 if it is too long.
    pub(crate) fn prepare(
        &self,
        database: &Database,
        owner: Option<String>,
        body: Value,
    ) -> Result<(String, Arc<PreparedQuery>)> {
        let byte_count = body.to_json().len();
        if byte_count > QUERY_BYTES_MAX {
            return Err(Failure::too_large(format!("A prepared query can have at most {QUERY_BYTES_MAX} bytes")));
        }
        let mut parameters = BTreeSet::new();
        let sampled = bind_body(&body, &mut |name, operator| {
            parameters.insert(name.to_owned());
            Ok(sample_operand(operator))
        })?;
        // Check the query with sample values, to report errors that do not depend on the parameters now.
        FindRequest::parse(&sampled)?.prepared(database, true)?;
        let query = Arc::new(PreparedQuery { owner, body, byte_count, parameters, bound: Mutex::default() });
        let handle = Uuid::new_v4().simple().to_string();
        let mut table = self.0.lock();
        table.make_room(&query);
        let now = table.tick();
        table.queries.insert(handle.clone(), (now, query.clone()));
        Ok((handle, query))
    }

    /// Returns the query with this handle.
    ///
    /// # Errors
    /// 404 if the owner has no such query.
    pub(crate) fn get(&self, handle: &str, owner: &Option<String>) -> Result<Arc<PreparedQuery>> {
        let mut table = self.0.lock();
        let now = table.tick();
        let (last_use, query) =
            table.queries.get_mut(handle).filter(|(_, query)| query.owner == *owner).ok_or_else(unknown_query)?;
        *last_use = now;
        Ok(query.clone())
    }

    /// Removes the query with this handle.
    ///
    /// # Errors
    /// 404 if the owner has no such query.
    pub(crate) fn remove(&self, handle: &str, owner: &Option<String>) -> Result<()> {
        self.get(handle, owner)?;
        self.0.lock().queries.remove(handle);
        Ok(())
    }
}

fn unknown_query() -> Failure {
    let reason = "There is no such prepared query: a handle belongs to the user who created it, and is lost when the \
                  server stops or when many other handles are used. Prepare it again.";
    Failure::new(StatusCode::NOT_FOUND, "unknown_query", reason)
}

impl QueryTable {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Evicts the least recently used queries until no limit is exceeded with `added`: those of its owner, or of all
    /// users.
    fn make_room(&mut self, added: &PreparedQuery) {
        loop {
            let owned = self.queries.values().filter(|(_, query)| query.owner == added.owner).count();
            let byte_count: usize = self.queries.values().map(|(_, query)| query.byte_count).sum();
            let is_owner_full = owned >= QUERIES_PER_USER_MAX;
            let is_full = self.queries.len() >= QUERIES_MAX || byte_count + added.byte_count > QUERIES_BYTES_MAX;
            if !is_owner_full && !is_full {
                return;
            }
            let may_evict = |query: &PreparedQuery| !is_owner_full || query.owner == added.owner;
            let candidates = self.queries.iter().filter(|(_, (_, query))| may_evict(query));
            let oldest = candidates.min_by_key(|(_, (last_use, _))| *last_use).map(|(handle, _)| handle.clone());
            let Some(oldest) = oldest else { return };
            self.queries.remove(&oldest);
        }
    }
}

impl PreparedQuery {
    /// Binds the `parameters` of a request body, and applies its pagination. Blocks for planning.
    ///
    /// # Errors
    /// 400 if a parameter is missing, unknown or invalid.
    pub(crate) fn request(&self, database: &Database, body: Object) -> Result<FindRequest> {
        let (parameters, page) = self.split_parameters(body)?;
        self.bind(database, parameters)?.page(&page)
    }

    /// As [`PreparedQuery::request`], for several databases, which plan the query themselves.
    ///
    /// # Errors
    /// As [`PreparedQuery::request`].
    pub(crate) fn unplanned_request(&self, body: Object) -> Result<FindRequest> {
        let (parameters, page) = self.split_parameters(body)?;
        FindRequest::parse(&self.bound_body(&parameters)?)?.page(&page)
    }

    /// The parameters of a request body, and the rest of it.
    fn split_parameters(&self, mut body: Object) -> Result<(Object, Object)> {
        let parameters = match body.remove("parameters") {
            None => Object::new(),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => return Err(Failure::bad_request("`parameters` must be an object")),
        };
        if let Some(name) = parameters.names().find(|name| !self.parameters.contains(*name)) {
            return Err(Failure::bad_request(format!("The query has no parameter `{name}`")));
        }
        Ok((parameters, body))
    }

    /// The body of the query with the values of its parameters.
    fn bound_body(&self, parameters: &Object) -> Result<Value> {
        bind_body(&self.body, &mut |name, _| {
            let value = parameters.get(name).cloned();
            value.ok_or_else(|| Failure::bad_request(format!("The parameter `{name}` is missing")))
        })
    }

    fn bind(&self, database: &Database, parameters: Object) -> Result<FindRequest> {
        let key = Value::Object(parameters.clone()).to_json();
        if let Some((_, request)) = self.bound.lock().iter().find(|(parameters, _)| *parameters == key) {
            return Ok(request.clone());
        }
        let body = self.bound_body(&parameters)?;
        let has_design_documents = design::has_any(&database.snapshot()?)?;
        let request = FindRequest::parse(&body)?.prepared(database, has_design_documents)?;
        if key.len() <= BOUND_BYTES_MAX {
            let mut bound = self.bound.lock();
            bound.truncate(BOUND_MAX - 1);
            bound.push_front((key, request.clone()));
        }
        Ok(request)
    }
}

/// Returns the value of a parameter, given its name and the operator that it is the operand of.
type Resolve<'a> = &'a mut dyn FnMut(&str, &str) -> Result<Value>;

/// Replaces the parameters in the selector of a query.
fn bind_body(body: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let mut body = body.clone();
    if let Some(selector) = body.as_object_mut().and_then(|body| body.get_mut("selector")) {
        *selector = bind_conditions(selector, resolve)?;
    }
    Ok(body)
}

/// Replaces the parameters in a selector or in the conditions of a field.
fn bind_conditions(conditions: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let Value::Object(object) = conditions else { return Ok(conditions.clone()) };
    let mut result = Object::new();
    for (name, value) in object.iter() {
        let value = match (name, value) {
            ("$and" | "$or" | "$nor", Value::Array(parts)) => {
                parts.iter().map(|part| bind_conditions(part, resolve)).collect::<Result<Vec<_>>>()?.into()
            }
            ("$not" | "$elemMatch" | "$allMatch" | "$keyMapMatch", value) => bind_condition(value, resolve)?,
            (operator, value) if operator.starts_with('$') => bind_operand(operator, value, resolve)?,
            (_, value) => bind_condition(value, resolve)?,
        };
        result.insert(name, value);
    }
    Ok(result.into())
}

/// Replaces the parameters in the condition of a field, which is a value to compare with or an object of operators.
fn bind_condition(value: &Value, resolve: Resolve<'_>) -> Result<Value> {
    match parameter_name(value) {
        // Use an explicit `$eq`, so that a bound object that looks like operators is compared as a value.
        Some(name) => Ok(Object::from_iter([("$eq", resolve(name, "$eq")?)]).into()),
        None => bind_conditions(value, resolve),
    }
}

fn bind_operand(operator: &str, value: &Value, resolve: Resolve<'_>) -> Result<Value> {
    let element = |element: &Value| match parameter_name(element) {
        Some(name) => resolve(name, if operator == "$mod" { "$size" } else { "$eq" }),
        None => Ok(element.clone()),
    };
    match (parameter_name(value), value) {
        (Some(name), _) => resolve(name, operator),
        (None, Value::Array(elements)) => Ok(elements.iter().map(element).collect::<Result<Vec<_>>>()?.into()),
        (None, value) => Ok(value.clone()),
    }
}

/// The name of the parameter if the value is `{"$param": name}`.
fn parameter_name(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get("$param")?.as_str()
}

/// A valid operand of an operator, to check a query before its parameters are known.
fn sample_operand(operator: &str) -> Value {
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

    fn bind(selector: &str, value: &str) -> String {
        let body = Value::parse(format!("{{\"selector\":{selector}}}").as_bytes()).unwrap();
        let value = Value::parse(value.as_bytes()).unwrap();
        bind_body(&body, &mut |_, _| Ok(value.clone())).unwrap().get("selector").unwrap().to_json()
    }

    #[test]
    fn parameters_bind_only_values() {
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
            assert_eq!(bind(selector, value), expected);
        }
    }

    #[test]
    fn least_recently_used_queries_are_evicted() {
        let (database, queries) = (Database::in_memory(), PreparedQueries::default());
        let prepare = |owner: &str| {
            let body = Value::parse(br#"{"selector": {"a": {"$param": "x"}}}"#).unwrap();
            queries.prepare(&database, Some(owner.to_owned()), body).unwrap().0
        };
        let (ada, bob) = (Some("ada".to_owned()), Some("bob".to_owned()));
        let handles: Vec<_> = (0..QUERIES_PER_USER_MAX).map(|_| prepare("ada")).collect();
        let handle_of_bob = prepare("bob");
        queries.get(&handles[0], &ada).unwrap();
        prepare("ada");
        assert!(queries.get(&handles[0], &ada).is_ok());
        assert_eq!(queries.get(&handles[1], &ada).err().unwrap().error(), "unknown_query");
        assert!(queries.get(&handle_of_bob, &bob).is_ok() && queries.get(&handle_of_bob, &ada).is_err());
        queries.remove(&handle_of_bob, &bob).unwrap();
        assert!(queries.get(&handle_of_bob, &bob).is_err());
    }
}
