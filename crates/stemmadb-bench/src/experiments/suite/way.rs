//! How is a database reached? By the library, or over HTTP; both hand out what an application would hold in its hands.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::{Database, Durability, Options, PathSubscription, Revision, Sequence, Value, field};

use crate::Result;
use crate::engine::insert_json;
use crate::served::{Answer, Connection, Site};
use crate::workload::{Corpus, Users};

/// How long a notice may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One way to a database of users.
pub(super) trait Way {
    fn name(&self) -> &'static str;

    /// Writes documents, ids and JSON, at once.
    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()>;

    /// Makes the user of this number, to be written later.
    fn make(&mut self, number: usize) -> Result<()>;

    /// Writes the user of this number, who is new.
    fn insert(&mut self, number: usize) -> Result<()>;

    /// Reads a user, who has to be the right one.
    fn read(&mut self, number: usize) -> Result<()>;

    /// Reads a user, sets when it was updated, and writes it.
    fn update(&mut self, number: usize) -> Result<()>;

    /// Deletes a user that [`Way::insert`] wrote.
    fn delete(&mut self, number: usize) -> Result<()>;

    /// Reads a user that is not there.
    fn miss(&mut self, number: usize) -> Result<()>;

    /// So many users are there, of which the first were updated so often.
    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()>;

    /// How many users, or active users, come up to a limit; each of them in full.
    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize>;

    /// How many documents the feed has to tell of.
    fn change_count(&mut self) -> Result<usize>;

    /// The next changes after a position, or from the beginning.
    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch>;

    /// Writes documents from a number on that somebody waits for; nanoseconds of each until it was heard of.
    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>>;
}

/// Some changes.
pub(super) struct Batch {
    pub(super) count: usize,
    pub(super) reached: String,
}

/// The id and JSON of a user.
fn user(number: usize) -> (String, String) {
    let corpus = Corpus::generate_range(Users, number as u64..number as u64 + 1);
    (corpus.id(0).to_owned(), corpus.json(0).to_owned())
}

fn id(number: usize) -> String {
    format!("user_{number}")
}

/// Whether as many users were found, and the first and last that were updated as often written, as there should be.
fn judged((found, ends): (usize, (usize, usize)), (count, expected): (usize, usize)) -> Result<()> {
    if (found, ends) == (count, (expected, expected)) {
        return Ok(());
    }
    wrong(format!("{found} users of {count}, written {ends:?} times of {expected}"))
}

fn wrong(what: impl std::fmt::Display) -> Result<()> {
    Err(what.to_string().into())
}

/// By the library.
pub(super) struct Direct {
    database: Database,
    revisions: HashMap<usize, Revision>,
    /// Users to come are made beforehand, as an application has them.
    made: HashMap<usize, Value>,
}

impl Direct {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let database = Database::open_with(path, Options::new().durability(Durability::None))?;
        Ok(Direct { database, revisions: HashMap::new(), made: HashMap::new() })
    }
}

impl Way for Direct {
    fn name(&self) -> &'static str {
        "stemma"
    }

    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()> {
        insert_json(&self.database, Durability::None, documents)
    }

    fn make(&mut self, number: usize) -> Result<()> {
        self.made.insert(number, Value::parse(user(number).1.as_bytes())?);
        Ok(())
    }

    fn insert(&mut self, number: usize) -> Result<()> {
        let body = self.made.get(&number).ok_or("nobody made this user")?;
        self.revisions.insert(number, self.database.insert(&id(number), body)?);
        Ok(())
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let document = self.database.get(&id(number))?.ok_or("no such user")?;
        let body = document.value()?;
        if body.get("created_at").and_then(Value::as_u64) == Some(number as u64) {
            Ok(())
        } else {
            wrong("another user")
        }
    }

    fn update(&mut self, number: usize) -> Result<()> {
        let document = self.database.get(&id(number))?.ok_or("no such user")?;
        let mut body = document.value()?;
        body.as_object_mut().ok_or("no object")?.insert("updated_at", number as u64);
        self.database.replace(&id(number), document.revision(), &body)?;
        Ok(())
    }

    fn delete(&mut self, number: usize) -> Result<()> {
        let revision = self.revisions.remove(&number).ok_or("nobody wrote this user")?;
        self.database.delete(&id(number), &revision)?;
        Ok(())
    }

    fn miss(&mut self, number: usize) -> Result<()> {
        if self.database.get(&id(number))?.is_none() { Ok(()) } else { wrong("there is such a user") }
    }

    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()> {
        let found = self.database.info()?.document_count as usize;
        let generation = |number: usize| -> Result<usize> {
            Ok(self.database.get(&id(number))?.ok_or("no such user")?.revision().generation() as usize)
        };
        let ends = (generation(0)?, generation(updated_count - 1)?);
        judged((found, ends), (count, 1 + update_count))
    }

    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize> {
        let of_type = field("type").eq("user");
        let wanted = if is_active { of_type.and(field("status").eq("active")) } else { of_type };
        let mut count = 0;
        for document in self.database.find(wanted).limit(limit as u64).run()? {
            count += usize::from(document?.value()?.as_object().is_some());
        }
        Ok(count)
    }

    fn change_count(&mut self) -> Result<usize> {
        let info = self.database.info()?;
        Ok((info.document_count + info.deleted_count) as usize)
    }

    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch> {
        let since = since.map_or(Ok(0), str::parse)?;
        let (mut count, mut reached) = (0, since);
        for change in self.database.changes(Sequence::new(since))?.limit(limit).run() {
            (count, reached) = (count + 1, change?.sequence.get());
        }
        Ok(Batch { count, reached: reached.to_string() })
    }

    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>> {
        let mut subscription: PathSubscription = self.database.subscribe_paths(["bench/#"])?;
        let mut costs = Vec::with_capacity(count);
        for number in first..first + count {
            let id = format!("sub_{number}");
            let body = json!({"bench": {"data": number, "timestamp": number}});
            let start = Instant::now();
            self.database.insert(&id, &body)?;
            let heard = subscription.next_within(PATIENCE)?.ok_or("nobody heard of it")?;
            costs.push(start.elapsed().as_nanos() as f64);
            if heard.id.as_str() != id {
                return Err(format!("heard of {} instead of {id}", heard.id).into());
            }
        }
        Ok(costs)
    }
}

/// Over HTTP.
pub(super) struct Http {
    site: Site,
    name: &'static str,
    database: String,
    /// None: a new one for each request.
    connection: Option<Connection>,
    revisions: HashMap<usize, String>,
    made: HashMap<usize, String>,
}

impl Http {
    pub(super) fn open(site: Site, name: &'static str, is_new_each_time: bool) -> Result<Self> {
        let database = format!("/{name}");
        site.expect(201, "PUT", &database, None)?;
        let connection = if is_new_each_time { None } else { Some(Connection::open(site.address)?) };
        Ok(Http { site, name, database, connection, revisions: HashMap::new(), made: HashMap::new() })
    }

    fn ask(&mut self, method: &str, what: &str, body: Option<&str>) -> Result<Answer> {
        let request = self.site.request(method, &format!("{}{what}", self.database), body);
        match &mut self.connection {
            Some(connection) => connection.ask(&request),
            None => Connection::open(self.site.address)?.ask(&request),
        }
    }

    /// What it says, if its status is this one.
    fn told(&mut self, status: u16, method: &str, what: &str, body: Option<&str>) -> Result<serde_json::Value> {
        let answer = self.ask(method, what, body)?;
        if answer.status != status {
            let text = String::from_utf8_lossy(&answer.body);
            return Err(format!("{method} {what}: {} instead of {status}: {text}", answer.status).into());
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }
}

impl Way for Http {
    fn name(&self) -> &'static str {
        self.name
    }

    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()> {
        let document = |(id, json): &(&str, &str)| format!("{{\"_id\":\"{id}\",{}", &json[1..]);
        let documents: Vec<String> = documents.iter().map(document).collect();
        let body = format!("{{\"docs\":[{}]}}", documents.join(","));
        self.told(201, "POST", "/_bulk_docs", Some(&body)).map(|_| ())
    }

    fn make(&mut self, number: usize) -> Result<()> {
        self.made.insert(number, user(number).1);
        Ok(())
    }

    fn insert(&mut self, number: usize) -> Result<()> {
        let body = self.made.remove(&number).ok_or("nobody made this user")?;
        let told = self.told(201, "PUT", &format!("/{}", id(number)), Some(&body))?;
        self.revisions.insert(number, told["rev"].as_str().ok_or("no revision")?.to_owned());
        Ok(())
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let body = self.told(200, "GET", &format!("/{}", id(number)), None)?;
        if body["created_at"] == number { Ok(()) } else { wrong("another user") }
    }

    fn update(&mut self, number: usize) -> Result<()> {
        let what = format!("/{}", id(number));
        let mut body = self.told(200, "GET", &what, None)?;
        body["updated_at"] = number.into();
        self.told(201, "PUT", &what, Some(&body.to_string())).map(|_| ())
    }

    fn delete(&mut self, number: usize) -> Result<()> {
        let revision = self.revisions.remove(&number).ok_or("nobody wrote this user")?;
        self.told(200, "DELETE", &format!("/{}?rev={revision}", id(number)), None).map(|_| ())
    }

    fn miss(&mut self, number: usize) -> Result<()> {
        self.told(404, "GET", &format!("/{}", id(number)), None).map(|_| ())
    }

    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()> {
        let found = self.told(200, "GET", "", None)?["doc_count"].as_u64().unwrap_or(0) as usize;
        let mut generation = |number: usize| -> Result<usize> {
            let body = self.told(200, "GET", &format!("/{}", id(number)), None)?;
            Ok(body["_rev"].as_str().and_then(|rev| rev.split('-').next()).ok_or("no revision")?.parse()?)
        };
        let ends = (generation(0)?, generation(updated_count - 1)?);
        judged((found, ends), (count, 1 + update_count))
    }

    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize> {
        let mut selector = json!({"type": "user"});
        if is_active {
            selector["status"] = "active".into();
        }
        let asked = json!({"selector": selector, "limit": limit}).to_string();
        let told = self.told(200, "POST", "/_find", Some(&asked))?;
        Ok(told["docs"].as_array().map_or(0, Vec::len))
    }

    fn change_count(&mut self) -> Result<usize> {
        let info = self.told(200, "GET", "", None)?;
        let count = |name: &str| info[name].as_u64().unwrap_or(0) as usize;
        Ok(count("doc_count") + count("doc_del_count"))
    }

    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch> {
        let limit = if limit == usize::MAX { String::new() } else { format!("&limit={limit}") };
        let told = self.told(200, "GET", &format!("/_changes?since={}{limit}", since.unwrap_or("0")), None)?;
        let reached = told["last_seq"].as_str().ok_or("no sequence")?.to_owned();
        Ok(Batch { count: told["results"].as_array().map_or(0, Vec::len), reached })
    }

    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>> {
        let mut watching = Connection::open(self.site.address)?;
        // {"bench":{"$exists":true}}
        let watch = "/_watch?selector=%7B%22bench%22%3A%7B%22%24exists%22%3Atrue%7D%7D&since=now";
        watching.upgrade(&self.site, &format!("{}{watch}", self.database))?;
        let mut costs = Vec::with_capacity(count);
        for number in first..first + count {
            let id = format!("sub_{number}");
            let body = json!({"bench": {"data": number, "timestamp": number}}).to_string();
            let start = Instant::now();
            let heard = std::thread::scope(|scope| -> Result<Instant> {
                let hearing = scope.spawn(|| watching.hear_of(&id));
                self.told(201, "PUT", &format!("/{id}"), Some(&body))?;
                hearing.join().map_err(|_| "a client failed")?
            })?;
            costs.push((heard - start).as_nanos() as f64);
        }
        Ok(costs)
    }
}
