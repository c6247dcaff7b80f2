//! Access to a database of users, and the driver that uses HTTP. Drivers return data as an application would hold it.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::json;

use crate::Result;
use crate::server::{Connection, Endpoint, Response};
use crate::workload::{Corpus, Users};

/// Access to a database of users.
pub(super) trait Driver {
    fn name(&self) -> &'static str;

    /// Writes documents (ids and JSON) in one batch.
    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()>;

    /// Builds the user with this number, to be inserted later.
    fn prepare(&mut self, number: usize) -> Result<()>;

    /// Inserts the prepared user with this number.
    fn insert(&mut self, number: usize) -> Result<()>;

    /// Reads a user and checks that it is the right one.
    fn read(&mut self, number: usize) -> Result<()>;

    /// Reads a user, sets its update time, and writes it.
    fn update(&mut self, number: usize) -> Result<()>;

    /// Deletes a user that [`Driver::insert`] wrote.
    fn delete(&mut self, number: usize) -> Result<()>;

    /// Reads a user that does not exist.
    fn read_missing(&mut self, number: usize) -> Result<()>;

    /// Checks the number of users, and how often the first ones were updated.
    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()>;

    /// Returns the number of users, or active users, up to a limit; all documents are read in full.
    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize>;

    /// Returns the number of documents in the changes feed.
    fn change_count(&mut self) -> Result<usize>;

    /// Returns the next changes after a position, or from the beginning.
    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch>;

    /// Writes documents starting at number `first`; returns each one's nanoseconds until it was notified.
    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>>;
}

/// A batch of changes.
pub(super) struct Batch {
    pub(super) count: usize,
    pub(super) reached: String,
}

/// Returns a user's id and JSON.
pub(super) fn user(number: usize) -> (String, String) {
    let corpus = Corpus::generate_range(Users, number as u64..number as u64 + 1);
    (corpus.id(0).to_owned(), corpus.json(0).to_owned())
}

pub(super) fn id(number: usize) -> String {
    format!("user_{number}")
}

/// Checks the number of users and the update counts of the first and the last updated one.
pub(super) fn check_state((found, ends): (usize, (usize, usize)), (count, expected): (usize, usize)) -> Result<()> {
    if (found, ends) == (count, (expected, expected)) {
        return Ok(());
    }
    failure(format!("{found} users of {count}, written {ends:?} times of {expected}"))
}

pub(super) fn failure(what: impl std::fmt::Display) -> Result<()> {
    Err(what.to_string().into())
}

/// Access over HTTP.
pub(super) struct HttpDriver {
    endpoint: Endpoint,
    name: &'static str,
    database: String,
    /// `None` opens a new connection for each request.
    connection: Option<Connection>,
    revisions: HashMap<usize, String>,
    prepared: HashMap<usize, String>,
}

impl HttpDriver {
    /// Creates a database with this name; `parameters` are those of its creation.
    pub(super) fn open(
        endpoint: Endpoint,
        name: &'static str,
        parameters: &str,
        is_new_each_time: bool,
    ) -> Result<Self> {
        let database = format!("/{name}");
        endpoint.expect_status(201, "PUT", &format!("{database}{parameters}"), None)?;
        let connection = if is_new_each_time { None } else { Some(Connection::open(endpoint.address)?) };
        Ok(HttpDriver { endpoint, name, database, connection, revisions: HashMap::new(), prepared: HashMap::new() })
    }

    fn call(&mut self, method: &str, what: &str, body: Option<&str>) -> Result<Response> {
        let request = self.endpoint.request(method, &format!("{}{what}", self.database), body);
        match &mut self.connection {
            Some(connection) => connection.send(&request),
            None => Connection::open(self.endpoint.address)?.send(&request),
        }
    }

    /// Sends a request and parses the response, which must have the given status.
    fn expect_json(&mut self, status: u16, method: &str, what: &str, body: Option<&str>) -> Result<serde_json::Value> {
        let response = self.call(method, what, body)?;
        if response.status != status {
            let text = String::from_utf8_lossy(&response.body);
            return Err(format!("{method} {what}: {} instead of {status}: {text}", response.status).into());
        }
        Ok(serde_json::from_slice(&response.body)?)
    }
}

impl Driver for HttpDriver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()> {
        let document = |(id, json): &(&str, &str)| format!("{{\"_id\":\"{id}\",{}", &json[1..]);
        let documents: Vec<String> = documents.iter().map(document).collect();
        let body = format!("{{\"docs\":[{}]}}", documents.join(","));
        self.expect_json(201, "POST", "/_bulk_docs", Some(&body)).map(|_| ())
    }

    fn prepare(&mut self, number: usize) -> Result<()> {
        self.prepared.insert(number, user(number).1);
        Ok(())
    }

    fn insert(&mut self, number: usize) -> Result<()> {
        let body = self.prepared.remove(&number).ok_or("this user was not prepared")?;
        let body = self.expect_json(201, "PUT", &format!("/{}", id(number)), Some(&body))?;
        self.revisions.insert(number, body["rev"].as_str().ok_or("no revision")?.to_owned());
        Ok(())
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let body = self.expect_json(200, "GET", &format!("/{}", id(number)), None)?;
        if body["created_at"] == number { Ok(()) } else { failure("another user") }
    }

    fn update(&mut self, number: usize) -> Result<()> {
        let what = format!("/{}", id(number));
        let mut body = self.expect_json(200, "GET", &what, None)?;
        body["updated_at"] = number.into();
        self.expect_json(201, "PUT", &what, Some(&body.to_string())).map(|_| ())
    }

    fn delete(&mut self, number: usize) -> Result<()> {
        let revision = self.revisions.remove(&number).ok_or("this user was not written")?;
        self.expect_json(200, "DELETE", &format!("/{}?rev={revision}", id(number)), None).map(|_| ())
    }

    fn read_missing(&mut self, number: usize) -> Result<()> {
        self.expect_json(404, "GET", &format!("/{}", id(number)), None).map(|_| ())
    }

    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()> {
        let found = self.expect_json(200, "GET", "", None)?["doc_count"].as_u64().unwrap_or(0) as usize;
        let mut generation = |number: usize| -> Result<usize> {
            let body = self.expect_json(200, "GET", &format!("/{}", id(number)), None)?;
            Ok(body["_rev"].as_str().and_then(|rev| rev.split('-').next()).ok_or("no revision")?.parse()?)
        };
        let ends = (generation(0)?, generation(updated_count - 1)?);
        check_state((found, ends), (count, 1 + update_count))
    }

    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize> {
        let mut selector = json!({"type": "user"});
        if is_active {
            selector["status"] = "active".into();
        }
        let query = json!({"selector": selector, "limit": limit}).to_string();
        let body = self.expect_json(200, "POST", "/_find", Some(&query))?;
        Ok(body["docs"].as_array().map_or(0, Vec::len))
    }

    fn change_count(&mut self) -> Result<usize> {
        let info = self.expect_json(200, "GET", "", None)?;
        let count = |name: &str| info[name].as_u64().unwrap_or(0) as usize;
        Ok(count("doc_count") + count("doc_del_count"))
    }

    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch> {
        let limit = if limit == usize::MAX { String::new() } else { format!("&limit={limit}") };
        let body = self.expect_json(200, "GET", &format!("/_changes?since={}{limit}", since.unwrap_or("0")), None)?;
        let reached = body["last_seq"].as_str().ok_or("no sequence")?.to_owned();
        Ok(Batch { count: body["results"].as_array().map_or(0, Vec::len), reached })
    }

    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>> {
        let mut watching = Connection::open(self.endpoint.address)?;
        // {"bench":{"$exists":true}}
        let watch = "/_watch?selector=%7B%22bench%22%3A%7B%22%24exists%22%3Atrue%7D%7D&since=now";
        watching.upgrade_to_websocket(&self.endpoint, &format!("{}{watch}", self.database))?;
        let mut costs = Vec::with_capacity(count);
        for number in first..first + count {
            let id = format!("sub_{number}");
            let body = json!({"bench": {"data": number, "timestamp": number}}).to_string();
            let start = Instant::now();
            let heard = std::thread::scope(|scope| -> Result<Instant> {
                let listening = scope.spawn(|| watching.wait_for_change(&id));
                self.expect_json(201, "PUT", &format!("/{id}"), Some(&body))?;
                listening.join().map_err(|_| "a client failed")?
            })?;
            costs.push((heard - start).as_nanos() as f64);
        }
        Ok(costs)
    }
}
