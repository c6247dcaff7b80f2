//! What a virtual database was at a time: the shards that had the documents then, and their states.
//!
//! Placements of the past are kept with the time at which they ended. The clocks of servers may differ, so each also
//! keeps the sequences of the two shards at its end: later states of the shard that lost buckets do not have their
//! documents, and earlier ones of the shard that got them do not have them yet.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use stemmadb::past::At;
use stemmadb::{DocumentId, Error, ErrorKind, Result, Selector, Sequence};
use stemmadb_client::AnyDatabase;

use super::VirtualDatabase;
use super::placement::{Placement, ShardMap, bucket_of};
use crate::member::OpenMember;

/// The most placements of the past that are kept.
const KEPT_MAX: usize = 64;

/// Which shards had which buckets until they changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastOwners {
    /// When the next owners got their buckets, in microseconds of Unix time.
    pub(crate) until_us: u64,
    /// The names of the shards; empty for one that is no shard any more, so that its past is lost.
    pub(crate) shards: Vec<String>,
    /// For each bucket, the index of its shard.
    pub(crate) owners: Vec<u16>,
    /// The shard that lost buckets, and its sequence then.
    pub(crate) from: (String, u64),
    /// The shard that got them, and its sequence then.
    pub(crate) to: (String, u64),
}

impl Placement {
    /// Keeps the owners, which change now.
    pub(crate) fn remember(&mut self, from: (&str, u64), to: (&str, u64)) {
        let last = self.history.last().map_or(0, |past| past.until_us);
        let until_us = now_us().max(last + 1);
        let (shards, owners) = (self.shards.clone(), self.owners.clone());
        let named = |(name, sequence): (&str, u64)| (name.to_owned(), sequence);
        self.history.push(PastOwners { until_us, shards, owners, from: named(from), to: named(to) });
        if self.history.len() > KEPT_MAX {
            self.past_since_us = self.history.remove(0).until_us;
        }
    }

    /// Forgets the past of a database that is no shard any more.
    pub(crate) fn forget_past_of(&mut self, shard: &str) {
        for past in &mut self.history {
            past.shards.iter_mut().filter(|name| *name == shard).for_each(String::clear);
            for (name, _) in [&mut past.from, &mut past.to] {
                if name == shard {
                    name.clear();
                }
            }
        }
    }

    /// The owners at a time among today's shards.
    ///
    /// # Errors
    /// `NotFound` if a shard of then is no shard any more, or the placement of then was not kept.
    fn owners_at(&self, time_us: u64) -> Result<Vec<u16>> {
        let lost = |why: String| {
            Err(Error::not_found(format!("the virtual database can't be read as of this time: {why}"))
                .with_hint("name a later time"))
        };
        if time_us < self.past_since_us {
            return lost("it is not known any more which shards had which documents".to_owned());
        }
        let Some(past) = self.history.iter().find(|past| time_us < past.until_us) else {
            return Ok(self.owners.clone());
        };
        let index = |name: &String| self.shards.iter().position(|shard| shard == name && !name.is_empty());
        let indexes: Vec<Option<usize>> = past.shards.iter().map(index).collect();
        let owners = past.owners.iter().map(|owner| indexes.get(usize::from(*owner)).copied().flatten());
        match owners.map(|owner| owner.map(|owner| owner as u16)).collect::<Option<Vec<u16>>>() {
            Some(owners) => Ok(owners),
            None => lost("a shard that had documents then was merged into another one or replaced".to_owned()),
        }
    }

    /// The least and the greatest sequence that a state of a shard can have at a time.
    fn bounds_at(&self, shard: &str, time_us: u64) -> (Option<u64>, Option<u64>) {
        let (ended, later): (Vec<_>, Vec<_>) = self.history.iter().partition(|past| past.until_us <= time_us);
        let got = ended.iter().filter(|past| past.to.0 == shard).map(|past| past.to.1).max();
        let lost = later.iter().filter(|past| past.from.0 == shard).map(|past| past.from.1).min();
        (got, lost)
    }

    /// Whether a shard may have, or have had, copies of documents that another one owns.
    fn may_have_copies(&self, shard: &str) -> bool {
        let in_history = self.history.iter().any(|past| past.from.0 == shard || past.to.0 == shard);
        let in_plan = self.planned.as_ref().is_some_and(|planned| planned.from == shard || planned.to == shard);
        in_history || in_plan || self.former.iter().any(|(name, _)| name == shard)
    }
}

/// The current time in microseconds of Unix time.
pub(crate) fn now_us() -> u64 {
    us_of(SystemTime::now())
}

fn us_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// A virtual database as it was at a time: see [`VirtualDatabase::past`]. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct VirtualPast {
    time: SystemTime,
    /// Today's shards, with the buckets that they had then.
    placement: Arc<Placement>,
    pub(crate) members: Arc<[OpenMember]>,
    sequences: Arc<[OnceLock<Sequence>]>,
}

impl VirtualDatabase {
    /// The virtual database as it was at a time: the shards that had the documents then, as they were. What moves, or
    /// moved since, changes no answer.
    ///
    /// ```
    /// # use std::time::SystemTime;
    /// # use stemmadb::{Database, Selector, past::Retention};
    /// # use stemmadb_federation::{Grouping, VirtualDatabase};
    /// # fn main() -> stemmadb::Result<()> {
    /// let shard = Database::in_memory();
    /// shard.history().keep(Retention::Everything)?;
    /// let db = VirtualDatabase::create([("one", shard)], Grouping::ById)?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let then = SystemTime::now();
    /// # std::thread::sleep(std::time::Duration::from_millis(2));
    /// db.insert("dune", &serde_json::json!({"year": 1965}))?;
    /// db.split("one", ("two", Database::in_memory()))?.run()?;
    /// assert_eq!(db.find(Selector::everything()).as_of(&db.past(then)?).count()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` if a shard of then is no shard any more, because it was merged into another one or replaced, or if
    /// the placement of then was not kept: that is done for the last 64 changes.
    pub fn past(&self, time: SystemTime) -> Result<VirtualPast> {
        let gate = self.gate.read();
        let owners = gate.placement.owners_at(us_of(time))?;
        let placement = Arc::new(Placement { owners, ..(*gate.placement).clone() });
        let sequences = gate.members.iter().map(|_| OnceLock::new()).collect();
        Ok(VirtualPast { time, placement, members: gate.members.clone(), sequences })
    }
}

impl VirtualPast {
    /// Which shard had which documents.
    pub fn map(&self) -> ShardMap {
        ShardMap(self.placement.clone())
    }

    /// Whether a shard may have had copies of documents that another one owned.
    pub fn has_copies(&self) -> bool {
        (0..self.members.len()).any(|shard| self.may_have_copies(shard))
    }

    /// Whether the shard at an index had any bucket.
    pub fn has_documents(&self, shard: usize) -> bool {
        self.placement.is_owner(shard)
    }

    fn may_have_copies(&self, shard: usize) -> bool {
        self.placement.may_have_copies(&self.placement.shards[shard])
    }

    /// The state of the shard at an index, in the order of the map's names: a time, or a sequence if documents moved
    /// from or to it.
    ///
    /// # Errors
    /// Those of [`VirtualPast::sequence`].
    pub fn state(&self, shard: usize) -> Result<At> {
        match self.placement.bounds_at(&self.placement.shards[shard], us_of(self.time)) {
            (None, None) => Ok(At::Time(self.time)),
            _ => self.sequence(shard).map(At::Sequence),
        }
    }

    /// The sequence of the shard at an index, which is read once.
    ///
    /// # Errors
    /// Those of [`Database::as_of`](stemmadb::Database::as_of), with the name of the shard.
    pub fn sequence(&self, shard: usize) -> Result<Sequence> {
        self.read_sequence(shard).map_err(|error| self.members[shard].error(error))
    }

    /// As [`VirtualPast::sequence`], with errors that don't name the shard.
    pub(crate) fn read_sequence(&self, shard: usize) -> Result<Sequence> {
        if let Some(known) = self.sequences[shard].get() {
            return Ok(*known);
        }
        let member = &self.members[shard];
        let at_time = self.sequence_at_time(&member.database)?;
        let (least, greatest) = self.placement.bounds_at(&member.name, us_of(self.time));
        let sequence = at_time.get().max(least.unwrap_or(0)).min(greatest.unwrap_or(u64::MAX));
        Ok(*self.sequences[shard].get_or_init(|| Sequence::new(sequence)))
    }

    fn sequence_at_time(&self, database: &AnyDatabase) -> Result<Sequence> {
        match database {
            AnyDatabase::Embedded(database) => match database.as_of(self.time) {
                Ok(snapshot) => Ok(snapshot.sequence()),
                // The bounds may name a later state, which is kept.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Sequence::ZERO),
                Err(error) => Err(error),
            },
            AnyDatabase::Remote(database) => {
                let find = database.as_of(self.time).find(Selector::everything()).sort("_id").limit(1);
                match find.send_keys().and_then(|sent| sent.wait(None)) {
                    Ok(keys) => keys.page_sequence.map_or_else(|| database.sequence(), Ok),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(Sequence::ZERO),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// The documents that a shard had at its state although another shard owned them. Reads the ids of all documents of
    /// a shard from or to which documents moved.
    pub(crate) fn losers(&self, shard: usize) -> Result<HashSet<DocumentId>> {
        if !self.may_have_copies(shard) || !self.has_documents(shard) {
            return Ok(HashSet::new());
        }
        let sequence = self.read_sequence(shard)?;
        let (grouping, owners) = (self.placement.grouping, &self.placement.owners);
        let is_copy = |id: &DocumentId| usize::from(owners[usize::from(bucket_of(grouping, id.as_str()))]) != shard;
        let is_listed = |id: &Result<DocumentId>| id.as_ref().map_or(true, is_copy);
        match &self.members[shard].database {
            AnyDatabase::Embedded(database) => {
                let ids = database.as_of(sequence)?.list().run().map(|listed| Ok(listed?.id));
                ids.filter(is_listed).collect()
            }
            AnyDatabase::Remote(database) => {
                database.as_of(sequence).find(Selector::everything()).ids()?.filter(is_listed).collect()
            }
        }
    }
}
