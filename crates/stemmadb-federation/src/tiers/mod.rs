//! One database whose documents move to other databases when they are old, unused or large.

mod access;
mod candidates;
mod changes;
mod gate;
mod marker;
mod migration;
mod policy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use stemmadb::replication::Peer;
use stemmadb::{
    Database, Document, DocumentId, Edit, Error, Object, Patch, Query, Result, Revision, Selector, Sequence, Value,
    field,
};
use stemmadb_client::{AnyDatabase, AnyFile};

use crate::federation::Federation;
use crate::find::{FederatedAggregation, FederatedFind};
use crate::member::Member;
use access::AccessTimes;
pub use changes::TieredChanges;
use gate::HOT;
pub(crate) use gate::TierGate;
pub use migration::{MigrationReport, TierStatus};
pub use policy::TierPolicy;

/// The namespace of what the hot tier stores about tiers. Keys are neither documents nor replicated.
const NAMESPACE: &str = "stemma.tiers";
/// The key of the documents that are being moved.
const MOVING: &str = "moving";
/// The key of the sequence of the hot tier up to which all copies that do not count were deleted.
const SETTLED: &str = "settled";
/// The id of the local document by which a database is recognized as a tier.
const TIER_RECORD: &str = "_local/stemma-tier";
/// The number of held documents from which those whose time has passed are forgotten.
const HELD_MAX: usize = 10_000;
/// The name of the hot tier.
const HOT_NAME: &str = "hot";

/// A selector of documents that are no stubs.
pub(crate) fn without_stubs() -> Selector {
    field(marker::FIELD).missing()
}

/// A tier below the hot one: a database of this process or of a server, and the policy by which documents move to it.
#[derive(Clone)]
pub struct Tier {
    name: String,
    database: AnyDatabase,
    peer: Arc<dyn Peer>,
    policy: TierPolicy,
}

impl Tier {
    /// A tier of this process. Its database is empty, or was a tier of the same name before.
    pub fn new(name: impl Into<String>, database: &Database, policy: TierPolicy) -> Self {
        let (database, peer) = (AnyDatabase::from(database.clone()), Arc::new(database.clone()));
        Tier { name: name.into(), database, peer, policy }
    }

    /// A tier on a server, which must be the lowest one: `database` reads its documents, and `peer` writes them, as
    /// replication does.
    pub fn remote(name: impl Into<String>, database: AnyDatabase, peer: Arc<dyn Peer>, policy: TierPolicy) -> Self {
        Tier { name: name.into(), database, peer, policy }
    }
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// One database whose documents move to lower tiers when they are old, unused or large.
///
/// Documents are written in the *hot* tier. [`TieredDatabase::migrate`] moves those that the policies name to the next
/// tier: it copies them, flushes the copies, and then replaces them in the hot tier by a deletion or by a stub, in one
/// transaction. Reads see each document once, at any time, also after a crash at any step. A write to a document of a
/// lower tier first brings it back.
///
/// ```
/// use std::time::Duration;
/// use serde_json::json;
/// use stemmadb::{Database, field};
/// use stemmadb_federation::{Tier, TierPolicy, TieredDatabase};
///
/// # fn main() -> stemmadb::Result<()> {
/// let (hot, cold) = (Database::in_memory(), Database::in_memory());
/// let policy = TierPolicy::new().older_than(Duration::from_secs(86_400)).date_field("day");
/// let orders = TieredDatabase::open(&hot, [Tier::new("cold", &cold, policy)])?;
/// let first = orders.insert("order-1", &json!({"day": "2020-01-31", "total": 20}))?;
/// orders.migrate()?;
/// assert_eq!((hot.get("order-1")?.is_some(), cold.get("order-1")?.is_some()), (false, true));
/// assert_eq!(orders.find(field("total").gt(0)).count()?, 1);
///
/// orders.replace("order-1", &first, &json!({"day": "2020-01-31", "total": 25}))?;
/// assert!(hot.get("order-1")?.is_some());
/// assert_eq!(orders.find(field("total").gt(0)).sum("total")?.as_f64(), 25.0);
/// # Ok(())
/// # }
/// ```
///
/// Cloning is cheap. The lower tiers are written only through clones of one handle. The hot tier may be written
/// directly, but a direct write does not find a document that moved: it begins a new one.
#[derive(Clone)]
pub struct TieredDatabase {
    federation: Federation,
    inner: Arc<Inner>,
}

struct Inner {
    gate: Arc<TierGate>,
    hot: Database,
    /// The tiers below the hot one.
    tiers: Vec<Tier>,
    access: AccessTimes,
    /// Documents that do not move before a time.
    held: Mutex<HashMap<DocumentId, Instant>>,
    /// Held while documents are moved.
    migration: Mutex<migration::Progress>,
    /// Called after each step of a move, by tests.
    on_step: Mutex<Option<StepHook>>,
}

type StepHook = Box<dyn FnMut(&'static str) + Send>;

impl TieredDatabase {
    /// Opens a tiered database: the hot tier, and the others from the warmest to the coldest.
    ///
    /// A move that was interrupted is completed by the next [`TieredDatabase::migrate`]; reads are right before it.
    ///
    /// # Errors
    /// `Invalid` if there is no lower tier, if one of them has documents and was no tier before, or if one that is not
    /// the lowest is on a server; `Conflict` if a database was a tier of another name.
    pub fn open(hot: &Database, tiers: impl IntoIterator<Item = Tier>) -> Result<Self> {
        let tiers: Vec<Tier> = tiers.into_iter().collect();
        let Some((_, upper)) = tiers.split_last() else {
            return Err(Error::invalid("a tiered database has a tier below the hot one"));
        };
        if let Some(tier) = upper.iter().find(|tier| matches!(tier.database, AnyDatabase::Remote(_))) {
            return Err(Error::invalid(format!("the tier `{}` is on a server, but not the lowest", tier.name)));
        }
        let members = std::iter::once(Member::from(hot).named(HOT_NAME));
        let members = members.chain(tiers.iter().map(|tier| Member::from(tier.database.clone()).named(&tier.name)));
        let federation = Federation::over(members)?;
        let keys = hot.keys(NAMESPACE)?;
        let settled = keys.get::<u64>(SETTLED)?.map_or(Sequence::ZERO, Sequence::new);
        let has_stubs = hot.find(field(marker::FIELD).exists()).exists()?;
        let gate = Arc::new(TierGate::new(federation.members.clone(), settled.min(hot.sequence()), has_stubs));
        let access = AccessTimes::open(&keys, &tiers)?;
        let (hot, migration) = (hot.clone(), Mutex::new(migration::Progress::new(tiers.len())));
        let (held, on_step) = (Mutex::default(), Mutex::new(None));
        let inner = Inner { gate: gate.clone(), hot, tiers, access, held, migration, on_step };
        let this = TieredDatabase { federation: federation.tiered(gate), inner: Arc::new(inner) };
        this.recover()?;
        Ok(this)
    }

    /// The names of the tiers, from the hot one to the coldest.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.federation.names()
    }

    /// The database of a tier.
    pub fn tier(&self, name: &str) -> Option<&AnyDatabase> {
        self.federation.member(name)
    }

    /// The name of the tier that has a document; `None` if there is no such document.
    ///
    /// # Errors
    /// Those of [`TieredDatabase::get`].
    pub fn tier_of(&self, id: &str) -> Result<Option<&str>> {
        let found = self.locate(id)?;
        Ok(found.map(|(at, _)| self.federation.members[at].name.as_str()))
    }

    /// Returns the document `id`, from whichever tier has it. A document of a lower tier stays there.
    ///
    /// # Errors
    /// Those of [`Database::get`], with the name of the tier.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let found = self.locate(id)?;
        if found.is_some() {
            self.inner.access.note(id);
        }
        Ok(found.map(|(_, document)| document))
    }

    /// Opens an attachment of a document; `None` if there is no such document, or no such attachment.
    ///
    /// # Errors
    /// Those of [`TieredDatabase::get`].
    pub fn open_file(&self, id: &str, name: &str) -> Result<Option<AnyFile>> {
        let Some((at, _)) = self.locate(id)? else { return Ok(None) };
        self.inner.access.note(id);
        let member = &self.federation.members[at];
        member.database.files().open(id, name).map_err(|error| member.error(error))
    }

    /// The tier that has a document, and the document.
    fn locate(&self, id: &str) -> Result<Option<(usize, Document)>> {
        let mut before = None;
        loop {
            let snapshot = self.inner.hot.snapshot()?;
            if let Some(document) = snapshot.get(id)?
                && !marker::is_marker(document.revision())
            {
                return Ok(Some((HOT, document)));
            }
            let branches = snapshot.revisions(id)?;
            let Some((newest, _)) = gate::winner(&branches).filter(|_| gate::is_moved(&branches)) else {
                return Ok(None);
            };
            if before == Some(newest) {
                return Ok(None);
            }
            for (at, member) in self.federation.members.iter().enumerate().skip(HOT + 1) {
                if let Some(document) = member.database.get(id).map_err(|error| member.error(error))? {
                    return Ok(Some((at, document)));
                }
            }
            // It may have returned since the hot tier was read.
            before = Some(newest);
        }
    }

    /// Creates a document. See [`Database::insert`].
    ///
    /// # Errors
    /// Those of [`Database::insert`].
    pub fn insert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces a document. See [`Database::replace`].
    ///
    /// # Errors
    /// Those of [`Database::replace`].
    pub fn replace<B: Serialize + ?Sized>(&self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        let (id, body) = (DocumentId::new(id)?, Value::from_serialize(body)?);
        self.edit(Edit::Replace { id, revision: *revision, body })
    }

    /// Creates or replaces a document. See [`Database::upsert`].
    ///
    /// # Errors
    /// Those of [`Database::upsert`].
    pub fn upsert<B: Serialize + ?Sized>(&self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of a document. See [`Database::update`].
    ///
    /// # Errors
    /// Those of [`Database::update`].
    pub fn update(&self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Deletes a document. See [`Database::delete`].
    ///
    /// # Errors
    /// Those of [`Database::delete`].
    pub fn delete(&self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit; a document of a lower tier is brought back before. See [`Database::edit`].
    ///
    /// # Errors
    /// Those of [`Database::edit`], and those of the document's tier.
    pub fn edit(&self, edit: Edit) -> Result<Revision> {
        let _no_moves = self.inner.gate.moves.read();
        let edit = self.brought_back(edit)?;
        self.inner.hot.edit(edit)
    }

    /// Applies several edits independently, in one transaction; returns the outcomes in their order. See
    /// [`Database::bulk`].
    ///
    /// # Errors
    /// For the whole call: those of [`Database::bulk`], and those of the documents' tiers.
    pub fn bulk(&self, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        let _no_moves = self.inner.gate.moves.read();
        let edits = edits.into_iter().map(|edit| self.brought_back(edit)).collect::<Result<Vec<_>>>()?;
        self.inner.hot.bulk(edits)
    }

    /// Brings a document back to the hot tier without changing it. Returns whether it was in another one. The next
    /// migration may move it again.
    ///
    /// # Errors
    /// Those of the document's tier, and those of writing it.
    pub fn bring_back(&self, id: &str) -> Result<bool> {
        let _no_moves = self.inner.gate.moves.read();
        self.return_document(&DocumentId::new(id)?)
    }

    /// Brings a document back to the hot tier, and keeps it there for a time: for programs that then write it in the
    /// hot tier's database themselves.
    ///
    /// # Errors
    /// Those of [`TieredDatabase::bring_back`].
    pub fn hold(&self, id: &str, time: Duration) -> Result<()> {
        let _no_moves = self.inner.gate.moves.read();
        let (id, now) = (DocumentId::new(id)?, Instant::now());
        {
            let mut held = self.inner.held.lock();
            if held.len() >= HELD_MAX {
                held.retain(|_, end| *end > now);
            }
            held.insert(id.clone(), now + time);
        }
        self.return_document(&id).map(drop)
    }

    /// The revision that stands for one which a client has read: the same one, or that with which the document came
    /// back since.
    ///
    /// # Errors
    /// Those of [`Database::get`].
    pub fn current_revision(&self, id: &str, read: &Revision) -> Result<Revision> {
        match self.inner.hot.get(id)? {
            Some(newest)
                if newest.revision().generation() == read.generation().saturating_add(2)
                    && *newest.revision() == marker::returned(read)? =>
            {
                Ok(*newest.revision())
            }
            _ => Ok(*read),
        }
    }

    /// Brings the document of an edit back. The revision that moved, which the caller may know, becomes the one with
    /// which the document returned.
    fn brought_back(&self, mut edit: Edit) -> Result<Edit> {
        let id = edit.id().clone();
        self.return_document(&id)?;
        let expected = match &mut edit {
            Edit::Replace { revision, .. }
            | Edit::Delete { revision, .. }
            | Edit::Attach { revision, .. }
            | Edit::Detach { revision, .. }
            | Edit::Update { revision: Some(revision), .. }
            | Edit::Put { parent: Some(revision), .. } => revision,
            _ => return Ok(edit),
        };
        *expected = self.current_revision(id.as_str(), expected)?;
        Ok(edit)
    }

    /// Builds a query over all tiers. Without a sort, rows are in the order of their ids, so that pages stay right
    /// while documents move.
    pub fn find(&self, query: impl Into<Query>) -> FederatedFind {
        self.federation.find(query)
    }

    /// Computes an aggregation over all tiers. See [`Federation::aggregate`].
    ///
    /// # Errors
    /// Those of [`Federation::aggregate`].
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        self.federation.aggregate(aggregation)
    }

    /// An aggregation with a deadline, or with tiers that may be missing. See [`Federation::aggregation`].
    pub fn aggregation(&self, aggregation: &Value) -> FederatedAggregation {
        self.federation.aggregation(aggregation)
    }

    /// Reads the changes after a sequence of the hot tier: see [`TieredChanges`].
    pub fn changes(&self, since: Sequence) -> TieredChanges {
        TieredChanges::new(self.clone(), since)
    }

    /// Calls a function after each step of a move; tests stop or copy the databases there.
    #[doc(hidden)]
    pub fn on_step(&self, hook: impl FnMut(&'static str) + Send + 'static) {
        *self.inner.on_step.lock() = Some(Box::new(hook));
    }

    fn step(&self, name: &'static str) {
        let hook = self.inner.on_step.lock().take();
        if let Some(mut hook) = hook {
            hook(name);
            self.inner.on_step.lock().get_or_insert(hook);
        }
    }
}

impl std::fmt::Debug for TieredDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TieredDatabase").field("tiers", &self.inner.tiers).finish_non_exhaustive()
    }
}
