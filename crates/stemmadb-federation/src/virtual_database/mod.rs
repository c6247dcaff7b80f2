//! One database whose documents are stored in several.

mod changes;
mod gate;
mod holder;
mod moves;
mod past;
mod peer;
mod placement;
mod transact;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;
use serde::Serialize;
use stemmadb::{
    Document, DocumentId, Edit, Error, ErrorKind, Object, Patch, Query, Result, Revision, Selector, Sequence, Value,
};
use stemmadb_client::AnyDatabase;

use crate::federation::Federation;
use crate::find::{FederatedAggregation, FederatedFind};
use crate::member::{Member, OpenMember};
pub use changes::{VirtualChangeRows, VirtualChanges};
pub(crate) use gate::Gate;
use gate::ShownPlacement;
use holder::Holder;
pub use holder::PlacementStore;
pub use moves::{MoveControl, MoveEstimate, MoveStep, ShardMove};
pub use past::VirtualPast;
use placement::Placement;
pub use placement::{Grouping, ShardMap};
pub use transact::VirtualTransact;

/// The namespace and the key of the placement in each shard. Keys are neither documents nor replicated.
const NAMESPACE: &str = "stemma.virtual";
const KEY: &str = "placement";

/// One database whose documents are stored in several shards, by a hash of their ids.
///
/// Shards are databases of this process or of servers. Single documents are read and written in their shard; queries,
/// figures and changes are those of all shards together, as of a [`Federation`].
///
/// ```
/// use serde_json::json;
/// use stemmadb::{Database, field};
/// use stemmadb_federation::{Grouping, VirtualDatabase};
///
/// # fn main() -> stemmadb::Result<()> {
/// let shards = [("one", Database::in_memory()), ("two", Database::in_memory())];
/// let books = VirtualDatabase::create(shards, Grouping::ById)?;
/// let first = books.insert("solaris", &json!({"year": 1961}))?;
/// books.insert("dune", &json!({"year": 1965}))?;
/// books.replace("solaris", &first, &json!({"year": 1961, "author": "Lem"}))?;
/// let found = books.find(field("year").gt(1900)).sort_descending("year").documents()?;
/// assert_eq!(found.iter().map(|book| book.id().as_str()).collect::<Vec<_>>(), ["dune", "solaris"]);
/// # Ok(())
/// # }
/// ```
///
/// Cloning is cheap. Embedded shards are written only through clones of one handle: another handle would not notice
/// that buckets move.
#[derive(Clone, Debug)]
pub struct VirtualDatabase {
    federation: Federation,
    gate: Arc<RwLock<Gate>>,
    placement: ShownPlacement,
    is_moving: Arc<AtomicBool>,
}

impl VirtualDatabase {
    /// Creates a virtual database over empty databases, each of which gets an equal part of the documents. Their names
    /// are stored.
    ///
    /// # Errors
    /// `Invalid` if there is no shard, two have the same name, or one has documents; `Conflict` if one is a shard
    /// already.
    pub fn create<M: Into<Member>>(shards: impl IntoIterator<Item = M>, grouping: Grouping) -> Result<Self> {
        Self::create_held(None, shards, grouping)
    }

    /// As [`VirtualDatabase::create`], with a database that keeps the placement: [`VirtualDatabase::open_in`].
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::create`].
    pub fn create_in<M: Into<Member>>(
        holder: Arc<dyn PlacementStore>,
        shards: impl IntoIterator<Item = M>,
        grouping: Grouping,
    ) -> Result<Self> {
        Self::create_held(Some(Holder(holder)), shards, grouping)
    }

    fn create_held<M: Into<Member>>(
        holder: Option<Holder>,
        shards: impl IntoIterator<Item = M>,
        grouping: Grouping,
    ) -> Result<Self> {
        let federation = Federation::over(shards)?;
        federation.members.iter().try_for_each(check_is_empty)?;
        let names = federation.names().map(str::to_owned).collect();
        let placement = Placement::equal(names, grouping);
        for member in federation.members.iter() {
            store(member, &placement)?;
        }
        holder.iter().try_for_each(|holder| holder.store(&placement))?;
        Ok(Self::with(federation, placement, holder))
    }

    /// Opens a virtual database, of which all shards are given by the names under which it was created or they were
    /// added. A move that was interrupted is continued by [`VirtualDatabase::pending_move`].
    ///
    /// # Errors
    /// `NotFound` if none of the databases is a shard; `Invalid` if one is missing, or is no shard.
    pub fn open<M: Into<Member>>(shards: impl IntoIterator<Item = M>) -> Result<Self> {
        let federation = Federation::over(shards)?;
        let placement = newest_placement(&federation)?;
        Self::open_placed(federation, placement, None)
    }

    /// Opens a virtual database whose placement is kept by `holder`: see [`PlacementStore`]. It opens although shards
    /// on servers do not answer. A virtual database that had no holder before gets one.
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::open`].
    pub fn open_in<M: Into<Member>>(
        holder: Arc<dyn PlacementStore>,
        shards: impl IntoIterator<Item = M>,
    ) -> Result<Self> {
        let (federation, holder) = (Federation::over(shards)?, Holder(holder));
        let placement = held_placement(&holder, &federation)?;
        Self::open_placed(federation, placement, Some(holder))
    }

    fn open_placed(federation: Federation, placement: Placement, holder: Option<Holder>) -> Result<Self> {
        let given: Vec<&str> = federation.names().collect();
        if let Some(missing) = placement.shards.iter().find(|name| !given.contains(&name.as_str())) {
            return Err(Error::invalid(format!("the shard `{missing}` is missing")));
        }
        if let Some(other) = given.iter().find(|name| !placement.shards.iter().any(|shard| shard == *name)) {
            return Err(Error::invalid(format!("`{other}` is no shard")).with_hint("add it with add_shard"));
        }
        let this = Self::with(federation, placement, holder);
        this.hide_copies()?;
        Ok(this)
    }

    /// The names of the shards, as databases that were or are shards have them: those that [`VirtualDatabase::open`]
    /// needs. The others do not belong to it any more, or not yet, because adding or removing a shard was interrupted.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::{Grouping, VirtualDatabase};
    /// # fn main() -> stemmadb::Result<()> {
    /// let (one, other) = (Database::in_memory(), Database::in_memory());
    /// VirtualDatabase::create([("one", one.clone())], Grouping::ById)?;
    /// assert_eq!(VirtualDatabase::shards_among([("one", one), ("other", other)])?, ["one"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` if none of the databases is a shard.
    pub fn shards_among<M: Into<Member>>(databases: impl IntoIterator<Item = M>) -> Result<Vec<String>> {
        Ok(newest_placement(&Federation::over(databases)?)?.shards)
    }

    /// As [`VirtualDatabase::shards_among`], for a virtual database whose placement is kept by `holder`.
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::shards_among`].
    pub fn shards_in<M: Into<Member>>(
        holder: Arc<dyn PlacementStore>,
        databases: impl IntoIterator<Item = M>,
    ) -> Result<Vec<String>> {
        Ok(held_placement(&Holder(holder), &Federation::over(databases)?)?.shards)
    }

    fn with(federation: Federation, placement: Placement, holder: Option<Holder>) -> Self {
        let member = |name: &String| federation.members.iter().find(|member| member.name == *name).cloned();
        let members: Vec<OpenMember> = placement.shards.iter().filter_map(member).collect();
        let gate = Gate::new(placement, members, holder);
        let (placement, gate) = (gate.shown(), Arc::new(RwLock::new(gate)));
        VirtualDatabase { federation: federation.gated(gate.clone()), gate, placement, is_moving: Arc::default() }
    }

    /// The names of the shards, and how many of the 4,096 buckets each has.
    pub fn shards(&self) -> Vec<(String, usize)> {
        let placement = self.placement.get();
        let count = |(at, name): (usize, &String)| (name.clone(), placement.buckets_of(at).len());
        placement.shards.iter().enumerate().map(count).collect()
    }

    /// Which shard has which documents now. Does not wait for a move that is about to change it.
    pub fn map(&self) -> ShardMap {
        ShardMap(self.placement.get())
    }

    /// The version of the placement, which each change of it increases.
    pub fn epoch(&self) -> u64 {
        self.placement.get().epoch
    }

    /// The bucket of a document, of 4,096.
    pub fn bucket(&self, id: &str) -> u16 {
        self.placement.get().bucket(id)
    }

    /// The name of the shard that has a document.
    pub fn shard_of(&self, id: &str) -> String {
        let placement = self.placement.get();
        placement.shards[placement.shard_of(id)].clone()
    }

    /// Runs an operation in the shard of a document.
    fn at<T>(&self, id: &str, operation: impl FnOnce(&AnyDatabase) -> Result<T>) -> Result<T> {
        let gate = self.gate.read();
        let owner = gate.owner(id);
        operation(&owner.database).map_err(|error| match error.kind() {
            // These are about the document, whatever its shard is.
            ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Duplicate => error,
            _ => owner.error(error),
        })
    }

    /// Returns the document `id`. See [`Database::get`](stemmadb::Database::get).
    ///
    /// # Errors
    /// Those of [`Database::get`](stemmadb::Database::get).
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        self.at(id, |shard| shard.get(id))
    }

    /// Returns several documents. Those of one shard are read as of one moment.
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::get`].
    pub fn get_many<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<Option<Document>>> {
        let ids: Vec<I> = ids.into_iter().collect();
        self.divided(&ids, AsRef::as_ref, |shard, ids| shard.get_many(ids.iter().map(|id| id.as_ref())))
    }

    /// Creates a document. See [`Database::insert`](stemmadb::Database::insert).
    ///
    /// # Errors
    /// Those of [`Database::insert`](stemmadb::Database::insert).
    pub fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.at(id, |shard| shard.insert(id, body))
    }

    /// Replaces a document. See [`Database::replace`](stemmadb::Database::replace).
    ///
    /// # Errors
    /// Those of [`Database::replace`](stemmadb::Database::replace).
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.at(id, |shard| shard.replace(id, revision, body))
    }

    /// Creates or replaces a document. See [`Database::upsert`](stemmadb::Database::upsert).
    ///
    /// # Errors
    /// Those of [`Database::upsert`](stemmadb::Database::upsert).
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.at(id, |shard| shard.upsert(id, body))
    }

    /// Changes parts of a document. See [`Database::update`](stemmadb::Database::update).
    ///
    /// # Errors
    /// Those of [`Database::update`](stemmadb::Database::update).
    pub fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        self.at(id, |shard| shard.update(id, patch))
    }

    /// Deletes a document. See [`Database::delete`](stemmadb::Database::delete).
    ///
    /// # Errors
    /// Those of [`Database::delete`](stemmadb::Database::delete).
    pub fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        self.at(id, |shard| shard.delete(id, revision))
    }

    /// Applies one edit. See [`Database::edit`](stemmadb::Database::edit).
    ///
    /// # Errors
    /// Those of [`Database::edit`](stemmadb::Database::edit).
    pub fn edit(&self, edit: Edit) -> Result<Revision> {
        let id = edit.id().as_str().to_owned();
        self.at(&id, |shard| shard.edit(edit))
    }

    /// Applies several edits independently, those of each shard together; returns the outcomes in their order.
    ///
    /// # Errors
    /// For the whole call, if a shard fails: edits in other shards may have been applied.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.divided(
            &edits,
            |edit| edit.id().as_str(),
            |shard, edits| shard.bulk(edits.iter().copied().cloned().collect()),
        )
    }

    /// Runs an operation for the items of each shard, and returns the results in the order of the items.
    fn divided<I, T>(
        &self,
        items: &[I],
        id: impl Fn(&I) -> &str,
        operation: impl Fn(&AnyDatabase, &[&I]) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let gate = self.gate.read();
        let mut positions: Vec<Vec<usize>> = vec![Vec::new(); gate.members.len()];
        for (at, item) in items.iter().enumerate() {
            positions[gate.placement.shard_of(id(item))].push(at);
        }
        let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
        for (shard, positions) in gate.members.iter().zip(positions).filter(|(_, positions)| !positions.is_empty()) {
            let of_shard: Vec<&I> = positions.iter().map(|at| &items[*at]).collect();
            let outcomes = operation(&shard.database, &of_shard).map_err(|error| shard.error(error))?;
            positions.into_iter().zip(outcomes).for_each(|(at, outcome)| results[at] = Some(outcome));
        }
        results.into_iter().map(|result| result.ok_or_else(|| Error::invalid("a shard returned no result"))).collect()
    }

    /// Flushes what was written to all shards.
    ///
    /// # Errors
    /// Those of [`Database::flush`](stemmadb::Database::flush), with the name of the shard.
    pub fn flush(&self) -> Result<()> {
        let shards = self.gate.read().members.clone();
        shards.iter().try_for_each(|shard| shard.database.flush().map_err(|error| shard.error(error)))
    }

    /// Begins a transaction on documents of one bucket: see [`VirtualTransact`].
    pub fn transact(&self) -> VirtualTransact {
        VirtualTransact::new(self.clone())
    }

    /// Builds a query over all shards. Without a sort, rows are in the order of their ids, so that pages stay right
    /// while buckets move.
    pub fn find(&self, query: impl Into<Query>) -> FederatedFind {
        self.federation.find(query)
    }

    /// Computes an aggregation over all shards. See [`Federation::aggregate`].
    ///
    /// # Errors
    /// Those of [`Federation::aggregate`].
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        self.federation.aggregate(aggregation)
    }

    /// An aggregation with a deadline, or with shards that may be missing. See [`Federation::aggregation`].
    pub fn aggregation(&self, aggregation: &Value) -> FederatedAggregation {
        self.federation.aggregation(aggregation)
    }

    /// Reads the changes of all shards after a position: see [`VirtualChanges`].
    pub fn changes(&self) -> VirtualChanges {
        VirtualChanges::new(self.clone())
    }
}

/// The placement that counts, of those that databases have.
fn newest_placement(federation: &Federation) -> Result<Placement> {
    let mut newest: Option<Placement> = None;
    for member in federation.members.iter() {
        let found = load(member)?;
        if found.as_ref().map(|found| found.epoch) > newest.as_ref().map(|newest| newest.epoch) {
            newest = found;
        }
    }
    newest.ok_or_else(|| Error::not_found("none of the databases is a shard"))
}

/// The placement that a database keeps for a virtual one; at first, that of the shards, which is stored in it.
fn held_placement(holder: &Holder, federation: &Federation) -> Result<Placement> {
    if let Some(placement) = holder.load()? {
        return Ok(placement);
    }
    let placement = newest_placement(federation)?;
    holder.store(&placement)?;
    Ok(placement)
}

/// Stores the placement in a shard.
fn store(member: &OpenMember, placement: &Placement) -> Result<()> {
    let value = placement.to_value();
    let stored = match &member.database {
        AnyDatabase::Embedded(database) => database.keys(NAMESPACE).and_then(|keys| keys.set(KEY, &value)),
        AnyDatabase::Remote(database) => database.keys(NAMESPACE).and_then(|keys| keys.set(KEY, &value)),
    };
    stored.map_err(|error| member.error(error))
}

/// The placement that a shard has.
fn load(member: &OpenMember) -> Result<Option<Placement>> {
    let loaded: Result<Option<Value>> = match &member.database {
        AnyDatabase::Embedded(database) => database.keys(NAMESPACE).and_then(|keys| keys.get(KEY)),
        AnyDatabase::Remote(database) => database.keys(NAMESPACE).and_then(|keys| keys.get(KEY)),
    };
    let placement = loaded.and_then(|value| value.as_ref().map(Placement::parse).transpose());
    placement.map_err(|error| member.error(error))
}

/// Checks that a database can become a shard.
fn check_is_empty(member: &OpenMember) -> Result<()> {
    if load(member)?.is_some() {
        return Err(Error::conflict(format!("`{}` is, or was, a shard", member.name)));
    }
    let changes = match &member.database {
        AnyDatabase::Embedded(database) => database.changes(Sequence::ZERO)?.limit(1).run().next().transpose(),
        AnyDatabase::Remote(database) => database.changes(Sequence::ZERO).limit(1).run()?.next().transpose(),
    };
    match changes.map_err(|error| member.error(error))? {
        Some(_) => Err(Error::invalid(format!("`{}` has documents", member.name))
            .with_hint("a shard begins empty: create the virtual database, and replicate or write into it")),
        None => Ok(()),
    }
}

/// The ids of the documents of a database that belong to these buckets.
fn ids_in(database: &AnyDatabase, grouping: Grouping, buckets: &[u16]) -> Result<Vec<DocumentId>> {
    let is_in = |id: &DocumentId| buckets.binary_search(&placement::bucket_of(grouping, id.as_str())).is_ok();
    match database {
        AnyDatabase::Embedded(database) => {
            let ids = database.snapshot()?.list().run().map(|listed| Ok(listed?.id));
            ids.filter(|id| id.as_ref().map_or(true, is_in)).collect()
        }
        AnyDatabase::Remote(database) => {
            let ids = database.find(Selector::everything()).ids()?;
            ids.filter(|id| id.as_ref().map_or(true, is_in)).collect()
        }
    }
}
