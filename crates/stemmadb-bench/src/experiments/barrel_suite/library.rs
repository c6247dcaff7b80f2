//! The driver that uses the library: one database, or a virtual one with shards.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::{
    Database, Document, DocumentId, Durability, Edit, Options, PathSubscription, Revision, Selector, Sequence, Value,
    field,
};
use stemmadb_federation::{Grouping, VirtualDatabase};

use super::driver::{Batch, Driver, check_state, failure, id, user};
use crate::Result;
use crate::experiments::insert_edit;

/// Maximum wait for a notification.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// A database in this process.
enum Store {
    One(Database),
    Sharded { all: VirtualDatabase, shards: Vec<Database> },
}

impl Store {
    fn get(&self, id: &str) -> Result<Option<Document>> {
        Ok(match self {
            Store::One(database) => database.get(id)?,
            Store::Sharded { all, .. } => all.get(id)?,
        })
    }

    fn edit(&self, edit: Edit) -> Result<Revision> {
        Ok(match self {
            Store::One(database) => database.edit(edit)?,
            Store::Sharded { all, .. } => all.edit(edit)?,
        })
    }

    fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<stemmadb::Result<Revision>>> {
        Ok(match self {
            Store::One(database) => database.bulk(edits)?,
            Store::Sharded { all, .. } => all.bulk(edits)?,
        })
    }

    /// All documents with values that a query finds.
    fn find(&self, wanted: Selector, limit: usize) -> Result<usize> {
        let limit = limit as u64;
        let count = |found: &mut dyn Iterator<Item = stemmadb::Result<Document>>| -> Result<usize> {
            let mut count = 0;
            for document in found {
                count += usize::from(document?.value()?.as_object().is_some());
            }
            Ok(count)
        };
        match self {
            Store::One(database) => count(&mut database.find(wanted).limit(limit).run()?),
            Store::Sharded { all, .. } => count(&mut all.find(wanted).limit(limit).run()?),
        }
    }

    /// The databases with the documents.
    fn databases(&self) -> &[Database] {
        match self {
            Store::One(database) => std::slice::from_ref(database),
            Store::Sharded { shards, .. } => shards,
        }
    }
}

/// Access through the library.
pub(super) struct LibraryDriver {
    name: &'static str,
    store: Store,
    revisions: HashMap<usize, Revision>,
    /// Users built before timing, as an application would have them.
    prepared: HashMap<usize, Value>,
}

impl LibraryDriver {
    /// One database.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let database = Database::open_with(path, Options::new().durability(Durability::None))?;
        Ok(Self::of("stemma", Store::One(database)))
    }

    /// A virtual database with a shard at each path.
    pub(super) fn open_shards(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| Database::open_with(path, Options::new().durability(Durability::None));
        let shards = paths.iter().map(open).collect::<stemmadb::Result<Vec<_>>>()?;
        let named = shards.iter().enumerate().map(|(number, shard)| (number.to_string(), shard.clone()));
        let all = VirtualDatabase::create(named, Grouping::ById)?;
        Ok(Self::of("4-shards", Store::Sharded { all, shards }))
    }

    fn of(name: &'static str, store: Store) -> Self {
        LibraryDriver { name, store, revisions: HashMap::new(), prepared: HashMap::new() }
    }
}

impl Driver for LibraryDriver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn load(&mut self, documents: &[(&str, &str)]) -> Result<()> {
        let edits = documents.iter().map(|(id, json)| insert_edit(id, json)).collect::<Result<Vec<_>>>()?;
        for outcome in self.store.bulk(edits)? {
            outcome?;
        }
        Ok(())
    }

    fn prepare(&mut self, number: usize) -> Result<()> {
        self.prepared.insert(number, Value::parse(user(number).1.as_bytes())?);
        Ok(())
    }

    fn insert(&mut self, number: usize) -> Result<()> {
        let body = self.prepared.get(&number).ok_or("this user was not prepared")?;
        let edit = Edit::Insert { id: DocumentId::new(id(number))?, body: body.clone() };
        self.revisions.insert(number, self.store.edit(edit)?);
        Ok(())
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let document = self.store.get(&id(number))?.ok_or("no such user")?;
        let body = document.value()?;
        if body.get("created_at").and_then(Value::as_u64) == Some(number as u64) {
            Ok(())
        } else {
            failure("another user")
        }
    }

    fn update(&mut self, number: usize) -> Result<()> {
        let document = self.store.get(&id(number))?.ok_or("no such user")?;
        let mut body = document.value()?;
        body.as_object_mut().ok_or("no object")?.insert("updated_at", number as u64);
        let (id, revision) = (document.id().clone(), *document.revision());
        self.store.edit(Edit::Replace { id, revision, body })?;
        Ok(())
    }

    fn delete(&mut self, number: usize) -> Result<()> {
        let revision = self.revisions.remove(&number).ok_or("this user was not written")?;
        self.store.edit(Edit::Delete { id: DocumentId::new(id(number))?, revision })?;
        Ok(())
    }

    fn read_missing(&mut self, number: usize) -> Result<()> {
        if self.store.get(&id(number))?.is_none() { Ok(()) } else { failure("there is such a user") }
    }

    fn check(&mut self, count: usize, updated_count: usize, update_count: usize) -> Result<()> {
        let counts = self.store.databases().iter().map(|database| Ok(database.info()?.document_count as usize));
        let found = counts.sum::<Result<usize>>()?;
        let generation = |number: usize| -> Result<usize> {
            Ok(self.store.get(&id(number))?.ok_or("no such user")?.revision().generation() as usize)
        };
        let ends = (generation(0)?, generation(updated_count - 1)?);
        check_state((found, ends), (count, 1 + update_count))
    }

    fn find(&mut self, is_active: bool, limit: usize) -> Result<usize> {
        let of_type = field("type").eq("user");
        let wanted = if is_active { of_type.and(field("status").eq("active")) } else { of_type };
        self.store.find(wanted, limit)
    }

    fn change_count(&mut self) -> Result<usize> {
        let count = |database: &Database| {
            let info = database.info()?;
            Ok((info.document_count + info.deleted_count) as usize)
        };
        self.store.databases().iter().map(count).sum()
    }

    fn changes(&mut self, since: Option<&str>, limit: usize) -> Result<Batch> {
        match &self.store {
            Store::One(database) => {
                let since = since.map_or(Ok(0), str::parse)?;
                let (mut count, mut reached) = (0, since);
                for change in database.changes(Sequence::new(since))?.limit(limit).run() {
                    (count, reached) = (count + 1, change?.sequence.get());
                }
                Ok(Batch { count, reached: reached.to_string() })
            }
            Store::Sharded { all, .. } => {
                let changes = match since {
                    Some(since) => all.changes().after(since),
                    None => all.changes(),
                };
                let mut rows = changes.limit(limit).run()?;
                let mut count = 0;
                for change in &mut rows {
                    change?;
                    count += 1;
                }
                Ok(Batch { count, reached: rows.token() })
            }
        }
    }

    fn notices(&mut self, first: usize, count: usize) -> Result<Vec<f64>> {
        let Store::One(database) = &self.store else { return Err("shards have no subscription of all".into()) };
        let mut subscription: PathSubscription = database.subscribe_paths(["bench/#"])?;
        let mut costs = Vec::with_capacity(count);
        for number in first..first + count {
            let id = format!("sub_{number}");
            let body = json!({"bench": {"data": number, "timestamp": number}});
            let start = Instant::now();
            database.insert(&id, &body)?;
            let heard = subscription.next_within(NOTIFICATION_TIMEOUT)?.ok_or("no notification arrived")?;
            costs.push(start.elapsed().as_nanos() as f64);
            if heard.id.as_str() != id {
                return Err(format!("heard of {} instead of {id}", heard.id).into());
            }
        }
        Ok(costs)
    }
}
