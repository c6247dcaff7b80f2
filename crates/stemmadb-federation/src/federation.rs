//! The federation: its members, and what is asked of all of them at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use stemmadb::{Database, Document, Error, ErrorKind, Object, Query, Result, Snapshot, Value};
use stemmadb_client::{AnyDatabase, Pending, RemoteDatabase};

use crate::changes::FederatedChanges;
use crate::find::{FederatedAggregation, FederatedFind};
use crate::member::{Member, OpenMember};
use crate::missing::MissingMembers;
use crate::overlap::Overlap;
use crate::tiers::TierGate;
use crate::view::{self, MemberView, View};
use crate::virtual_database::{Gate, VirtualPast};
use crate::watch::FederatedWatch;

/// How often figures are read while copies of common documents come and go on other servers.
const FIGURES_READ_MAX: usize = 5;

/// Several databases that are read as one. See the [crate](crate) for an example.
///
/// Cloning is cheap; clones share what is known about common documents.
#[derive(Clone, Debug)]
pub struct Federation {
    pub(crate) members: Arc<[OpenMember]>,
    is_disjoint: bool,
    overlap: Arc<Mutex<Overlap>>,
    /// Of a virtual database: which of its shards have which documents.
    gate: Option<Arc<RwLock<Gate>>>,
    /// Of a tiered database: which copies do not count.
    tiers: Option<Arc<TierGate>>,
    /// Of a virtual database: the state of the past that is read.
    past: Option<VirtualPast>,
}

/// What bounds one read, and whether members may be missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) deadline: Option<Instant>,
    pub(crate) missing: Option<MissingMembers>,
}

impl Federation {
    /// A federation of these members. Opens those that are given by paths and URLs.
    ///
    /// # Errors
    /// `Invalid` if there is no member, or if two have the same name; those of
    /// [`AnyDatabase::open`](stemmadb_client::AnyDatabase::open), with the member's name.
    pub fn over<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self> {
        let members = members.into_iter().enumerate().map(|(at, member)| member.into().open(at));
        let members = members.collect::<Result<Vec<OpenMember>>>()?;
        if members.is_empty() {
            return Err(Error::invalid("a federation has at least one member"));
        }
        for (at, member) in members.iter().enumerate() {
            if members[..at].iter().any(|other| other.name == member.name) {
                return Err(Error::invalid(format!("two members are named `{}`", member.name))
                    .with_hint("give them names: Member::from(…).named(…)"));
            }
        }
        let overlap = Arc::new(Mutex::new(Overlap::new(members.len())));
        Ok(Federation { members: members.into(), is_disjoint: false, overlap, gate: None, tiers: None, past: None })
    }

    /// Declares that no document is in two members, as with shards. Then no read has to find out which copy of a
    /// document counts: nothing is kept in memory, and no changes are read. If members have common documents after all,
    /// each copy is a row of its own.
    #[must_use]
    pub fn disjoint(self, is_disjoint: bool) -> Self {
        Federation { is_disjoint, ..self }
    }

    /// The names of the members, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// The database of a member.
    pub fn member(&self, name: &str) -> Option<&AnyDatabase> {
        self.members.iter().find(|member| member.name == name).map(|member| &member.database)
    }

    /// Builds a query over all members, from a selector or a whole [`Query`]. See [`FederatedFind`].
    pub fn find(&self, query: impl Into<Query>) -> FederatedFind {
        FederatedFind::new(self.clone(), query.into())
    }

    /// Returns the document `id`: of several copies, the one with the greatest revision. `None` if no member has it, or
    /// all have deleted it.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::Federation;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let (north, south) = (Database::in_memory(), Database::in_memory());
    /// south.insert("dune", &serde_json::json!({"year": 1965}))?;
    /// let books = Federation::over([north, south])?;
    /// assert!(books.get("dune")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Database::get`], with the name of the member.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let mut newest: Option<Document> = None;
        let pending = self.members.iter().map(|member| match &member.database {
            AnyDatabase::Remote(database) => Some((member, database.send_get(id))),
            AnyDatabase::Embedded(_) => None,
        });
        let pending: Vec<_> = pending.flatten().collect();
        let mut keep = |document: Option<Document>| {
            if document.as_ref().map(Document::revision) > newest.as_ref().map(Document::revision) {
                newest = document;
            }
        };
        for member in self.members.iter() {
            if let AnyDatabase::Embedded(database) = &member.database {
                let document = database.get(id).map_err(|error| member.error(error))?;
                if self.is_disjoint && document.is_some() && pending.is_empty() {
                    return Ok(document);
                }
                keep(document);
            }
        }
        for (member, pending) in pending {
            keep(pending.wait(None).map_err(|error| member.error(error))?);
        }
        Ok(newest)
    }

    /// Computes the rows of an aggregation, given as [`Aggregation::parse`](stemmadb::Aggregation::parse) reads it.
    /// Figures are exact: sums are rounded once, over all members.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::Federation;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let (north, south) = (Database::in_memory(), Database::in_memory());
    /// north.insert("a", &serde_json::json!({"city": "Oslo", "price": 5}))?;
    /// south.insert("b", &serde_json::json!({"city": "Oslo", "price": 7}))?;
    /// let request = r#"{"group_by": "city", "figures": {"mean": {"average": "price"}}}"#.parse()?;
    /// let rows = Federation::over([north, south])?.aggregate(&request)?;
    /// assert_eq!(rows[0].1.get("mean").and_then(|mean| mean.as_f64()), Some(6.0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Aggregation::rows`](stemmadb::Aggregation::rows), with the name of the member.
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        self.aggregation(aggregation).rows()
    }

    /// As [`Federation::aggregate`], with a deadline, or with members that may be missing: see
    /// [`FederatedAggregation`].
    pub fn aggregation(&self, aggregation: &Value) -> FederatedAggregation {
        FederatedAggregation::new(self.clone(), aggregation.clone())
    }

    /// Reads the changes of all members after a position: see [`FederatedChanges`].
    pub fn changes(&self) -> FederatedChanges {
        FederatedChanges::new(self.clone())
    }

    /// Starts a live query over all members: see [`FederatedWatch`].
    ///
    /// # Errors
    /// `Invalid` if the query has a sort order, limit or fields; those of [`FederatedFind::run`].
    pub fn watch(&self, query: impl Into<Query>) -> Result<FederatedWatch> {
        FederatedWatch::start(self, &query.into())
    }

    /// Whether a document can be in two members.
    pub(crate) fn may_overlap(&self) -> bool {
        !self.is_disjoint && self.members.len() > 1
    }

    /// The shards of a virtual database.
    pub(crate) fn gated(self, gate: Arc<RwLock<Gate>>) -> Self {
        Federation { gate: Some(gate), ..self }
    }

    /// The tiers of a tiered database.
    pub(crate) fn tiered(self, tiers: Arc<TierGate>) -> Self {
        Federation { tiers: Some(tiers), ..self }
    }

    /// The shards of a virtual database as they were.
    pub(crate) fn at(self, past: &VirtualPast) -> Self {
        Federation { past: Some(past.clone()), ..self }
    }

    /// Whether this is a virtual or a tiered database, whose documents move between members.
    pub(crate) fn is_virtual(&self) -> bool {
        self.gate.is_some() || self.tiers.is_some()
    }

    /// The members to which tokens belong: none for a virtual database, whose pages continue after a row in whatever
    /// shards there are.
    pub(crate) fn token_members(&self) -> &[OpenMember] {
        if self.is_virtual() { &[] } else { &self.members }
    }

    /// The federation with its members as they are now.
    pub(crate) fn current(&self) -> Self {
        match &self.gate {
            Some(gate) => Federation { members: gate.read().members.clone(), ..self.clone() },
            None => self.clone(),
        }
    }

    /// The federation with its members as they are now, and what one read sees of them.
    pub(crate) fn open(&self, sequences: Option<&[Option<stemmadb::Sequence>]>, terms: &Terms) -> Result<(Self, View)> {
        if let Some(tiers) = &self.tiers {
            return Ok((self.clone(), tiers.view(terms)?));
        }
        let Some(gate) = &self.gate else { return Ok((self.clone(), self.view(sequences, terms)?)) };
        if let Some(past) = &self.past {
            return Ok((Federation { members: past.members.clone(), ..self.clone() }, past_view(past, terms)?));
        }
        let gate = gate.read();
        let federation = Federation { members: gate.members.clone(), ..self.clone() };
        let mut members = Vec::with_capacity(gate.members.len());
        for (at, member) in gate.members.iter().enumerate() {
            members.push(match gate.placement.is_owner(at) {
                true => match view::open(&member.database, None) {
                    Ok(view) => view,
                    Err(error) => terms.without(member, error).map(|()| MemberView::Missing)?,
                },
                false => MemberView::Missing,
            });
        }
        Ok((federation, View { members, losers: Some(gate.losers.clone()), has_stubs: false }))
    }

    /// Reads figures of all members. If copies of common documents came or went on other servers meanwhile, a document
    /// may be counted twice, or not at all: the figures are read again then, a few times.
    pub(crate) fn figures<T>(&self, terms: &Terms, read: impl Fn(&Federation, &View) -> Result<T>) -> Result<T> {
        let (mut federation, mut view) = self.open(None, terms)?;
        let may_change = self.may_overlap() && !self.is_virtual() && view.has_newest_of_servers();
        for _ in 1..FIGURES_READ_MAX {
            let figures = read(&federation, &view)?;
            if !may_change {
                return Ok(figures);
            }
            let (current, next) = self.open(None, terms)?;
            if next.losers == view.losers {
                return Ok(figures);
            }
            (federation, view) = (current, next);
        }
        read(&federation, &view)
    }

    /// The members, and which copies of common documents do not count, at one moment or at the sequences of a token.
    fn view(&self, sequences: Option<&[Option<stemmadb::Sequence>]>, terms: &Terms) -> Result<View> {
        if !self.may_overlap() {
            return Ok(View { members: self.open_views(sequences, terms)?, losers: None, has_stubs: false });
        }
        // Under the lock, so that what is known about common documents belongs to the snapshots.
        let mut overlap = self.overlap.lock();
        let mut members = self.open_views(sequences, terms)?;
        let losers = overlap.losers(&self.members, &mut members, terms)?;
        Ok(View { members, losers: Some(losers), has_stubs: false })
    }

    fn open_views(&self, sequences: Option<&[Option<stemmadb::Sequence>]>, terms: &Terms) -> Result<Vec<MemberView>> {
        let mut views = Vec::with_capacity(self.members.len());
        for (at, member) in self.members.iter().enumerate() {
            let sequence = sequences.and_then(|sequences| sequences[at]);
            let view = match view::open(&member.database, sequence) {
                Ok(view) => view,
                Err(error) => terms.without(member, error).map(|()| MemberView::Missing)?,
            };
            views.push(view);
        }
        Ok(views)
    }

    /// Asks every member: servers first, then the embedded ones on this thread, then reads the servers' answers.
    pub(crate) fn ask<T>(
        &self,
        view: &View,
        terms: &Terms,
        send: impl Fn(usize, &RemoteDatabase) -> Result<Pending<T>>,
        read: impl Fn(usize, &Snapshot) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut answers = Vec::with_capacity(self.members.len());
        let mut pending = Vec::new();
        for (at, (member, seen)) in self.members.iter().zip(&view.members).enumerate() {
            if let (AnyDatabase::Remote(database), MemberView::Remote(_)) = (&member.database, seen) {
                match send(at, database) {
                    Ok(sent) => pending.push((member, sent)),
                    Err(error) => terms.without(member, error)?,
                }
            }
        }
        for (at, (member, seen)) in self.members.iter().zip(&view.members).enumerate() {
            if let MemberView::Local(snapshot) = seen {
                match terms.check().and_then(|()| read(at, snapshot)) {
                    Ok(answer) => answers.push(answer),
                    Err(error) => terms.without(member, error)?,
                }
            }
        }
        for (member, sent) in pending {
            match sent.wait(terms.deadline) {
                Ok(answer) => answers.push(answer),
                Err(error) => terms.without(member, terms.timeout(error))?,
            }
        }
        Ok(answers)
    }
}

/// What is seen of the shards of a virtual database in the past.
fn past_view(past: &VirtualPast, terms: &Terms) -> Result<View> {
    let (mut members, mut losers) = (Vec::new(), Vec::new());
    for (at, member) in past.members.iter().enumerate() {
        let opened = match past.has_documents(at) {
            true => past
                .read_sequence(at)
                .and_then(|sequence| Ok((view::open(&member.database, Some(sequence))?, past.losers(at)?))),
            false => Ok((MemberView::Missing, HashSet::new())),
        };
        let (view, losers_of_shard) = match opened {
            Ok(opened) => opened,
            Err(error) => terms.without(member, error).map(|()| (MemberView::Missing, HashSet::new()))?,
        };
        members.push(view);
        losers.push(losers_of_shard);
    }
    Ok(View { members, losers: Some(Arc::new(losers)), has_stubs: false })
}

impl Terms {
    /// The time that is left.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Fails once the deadline has passed.
    pub(crate) fn check(&self) -> Result<()> {
        match self.time_left() {
            Some(Duration::ZERO) => Err(deadline_passed()),
            _ => Ok(()),
        }
    }

    /// An error of waiting: that of the deadline, once it has passed.
    pub(crate) fn timeout(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Unavailable if self.time_left() == Some(Duration::ZERO) => deadline_passed(),
            _ => error,
        }
    }

    /// Notes that a member is missing.
    ///
    /// # Errors
    /// The member's, with its name, if the answer may not be partial. Malformed queries and cancellations are errors in
    /// any case.
    pub(crate) fn without(&self, member: &OpenMember, error: Error) -> Result<()> {
        let error = member.error(error);
        match &self.missing {
            Some(missing) if error.kind() != ErrorKind::Invalid => {
                missing.add(&member.name, &error);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// The query with the time that is left.
    pub(crate) fn bounded(&self, query: Query) -> Query {
        match self.time_left() {
            Some(time) => query.time_limit(time),
            None => query,
        }
    }
}

fn deadline_passed() -> Error {
    Error::stopped("the deadline has passed").with_hint("allow more time, or a partial answer")
}

/// The same query, prepared: its plans are kept for all members.
pub(crate) fn prepared(query: Query, members: &[OpenMember]) -> Result<Query> {
    let embedded = |member: &OpenMember| match &member.database {
        AnyDatabase::Embedded(database) => Some(Database::clone(database)),
        AnyDatabase::Remote(_) => None,
    };
    match members.iter().find_map(embedded) {
        Some(database) => database.prepare(query),
        None => query.check().map(|()| query),
    }
}
