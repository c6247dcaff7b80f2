//! Which shard has which documents: 4,096 buckets, each of which belongs to a shard.
//!
//! The bucket of a document is a hash of its id that never changes; only the owners of buckets do. Every change of a
//! placement increases its epoch, and the placement with the highest epoch counts.

use std::sync::Arc;

use stemmadb::{Error, Object, Result, Value};

use super::past::{PastOwners, now_us};

/// The number of buckets.
pub(crate) const BUCKETS: u16 = 4_096;

/// Which documents are in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grouping {
    /// Each document is placed by its whole id.
    ById,
    /// Documents whose ids are equal up to the first occurrence of this character are in one, so that a transaction
    /// can write them: `order-7:line-1` and `order-7:line-2` with `:`. An id without it is placed by its whole id.
    ByPrefix(char),
}

impl Grouping {
    /// The bucket of a document, of 4,096. It never changes.
    ///
    /// ```
    /// use stemmadb_federation::Grouping;
    ///
    /// let by_prefix = Grouping::ByPrefix(':');
    /// assert_eq!(by_prefix.bucket("order-7:line-1"), by_prefix.bucket("order-7"));
    /// ```
    pub fn bucket(self, id: &str) -> u16 {
        bucket_of(self, id)
    }
}

/// The owners of the buckets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    pub(crate) epoch: u64,
    pub(crate) grouping: Grouping,
    /// The names of the shards.
    pub(crate) shards: Vec<String>,
    /// For each bucket, the index of its shard.
    pub(crate) owners: Vec<u16>,
    /// The move that is in progress.
    pub(crate) planned: Option<PlannedMove>,
    /// Buckets that left a shard and whose documents were deleted there: they can't return, because a deletion
    /// follows the revisions that would be copied.
    pub(crate) former: Vec<(String, Vec<u16>)>,
    /// The owners before each change of them, the oldest first.
    pub(crate) history: Vec<PastOwners>,
    /// The time before which the owners are not known any more, in microseconds of Unix time.
    pub(crate) past_since_us: u64,
}

/// A move of buckets from one shard to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedMove {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) buckets: Vec<u16>,
    /// Whether the target owns the buckets already, and only the source's copies are left to be removed.
    pub(crate) is_switched: bool,
    /// Whether the source is no shard any more after the move.
    pub(crate) removes_source: bool,
}

/// Which shard has which documents, as of one epoch. Cloning is cheap.
///
/// ```
/// # use stemmadb::Database;
/// # use stemmadb_federation::{Grouping, VirtualDatabase};
/// # fn main() -> stemmadb::Result<()> {
/// let shards = [("one", Database::in_memory()), ("two", Database::in_memory())];
/// let map = VirtualDatabase::create(shards, Grouping::ById)?.map();
/// assert_eq!(map.names(), ["one", "two"]);
/// assert_eq!(map.buckets_of(map.shard_of("solaris")).len(), 2_048);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ShardMap(pub(super) Arc<Placement>);

impl ShardMap {
    /// The names of the shards.
    pub fn names(&self) -> &[String] {
        &self.0.shards
    }

    /// The index, within the names, of the shard that has a document.
    pub fn shard_of(&self, id: &str) -> usize {
        self.0.shard_of(id)
    }

    /// The bucket of a document, of 4,096.
    pub fn bucket(&self, id: &str) -> u16 {
        self.0.bucket(id)
    }

    /// The buckets of the shard at an index, in order.
    pub fn buckets_of(&self, shard: usize) -> Vec<u16> {
        self.0.buckets_of(shard)
    }

    /// The version of the placement.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// How documents are placed.
    pub fn grouping(&self) -> Grouping {
        self.0.grouping
    }

    /// Whether a bucket has ever left a shard, which then has deletions of documents that other shards have.
    pub fn has_moved(&self) -> bool {
        !self.0.former.is_empty() || self.0.planned.is_some()
    }

    /// The move that is in progress or was interrupted: the source, the target, and whether the target has the buckets.
    pub fn planned_move(&self) -> Option<(&str, &str, bool)> {
        let planned = self.0.planned.as_ref()?;
        Some((&planned.from, &planned.to, planned.is_switched))
    }
}

/// The bucket of a document.
pub(crate) fn bucket_of(grouping: Grouping, id: &str) -> u16 {
    let hashed = match grouping {
        Grouping::ById => id,
        Grouping::ByPrefix(separator) => id.split(separator).next().unwrap_or(id),
    };
    // Stored data depends on this: it must not change.
    let hash = crc32c::crc32c(hashed.as_bytes()).wrapping_mul(0x9E37_79B1);
    (hash >> 20) as u16
}

/// Sorted buckets as ranges: the first and the last of each.
fn ranges(buckets: &[u16]) -> Value {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for bucket in buckets {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *bucket => *last = *bucket,
            _ => ranges.push((*bucket, *bucket)),
        }
    }
    let range = |(first, last): (u16, u16)| Value::Array(vec![u64::from(first).into(), u64::from(last).into()]);
    Value::Array(ranges.into_iter().map(range).collect())
}

fn malformed() -> Error {
    Error::invalid("the placement of a virtual database is malformed")
        .with_hint("it was written by a newer version, or by another program")
}

fn buckets(ranges: Option<&Value>) -> Result<Vec<u16>> {
    let mut buckets = Vec::new();
    for range in ranges.and_then(Value::as_array).ok_or_else(malformed)? {
        let number = |at| range.get_index(at).and_then(|number| u16::try_from(number).ok());
        let (first, last) = number(0).zip(number(1)).ok_or_else(malformed)?;
        if last >= BUCKETS {
            return Err(malformed());
        }
        buckets.extend(first..=last);
    }
    Ok(buckets)
}

/// Reads numbers of arrays.
trait Numbers {
    fn get_index(&self, at: usize) -> Option<u64>;
}

impl Numbers for Value {
    fn get_index(&self, at: usize) -> Option<u64> {
        self.as_array()?.get(at)?.as_u64()
    }
}

fn text(value: &Value, name: &str) -> Result<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(malformed)
}

impl Placement {
    /// Divides the buckets equally.
    pub(crate) fn equal(shards: Vec<String>, grouping: Grouping) -> Self {
        let count = shards.len();
        let owners = (0..usize::from(BUCKETS)).map(|bucket| (bucket * count / usize::from(BUCKETS)) as u16).collect();
        let (former, history) = (Vec::new(), Vec::new());
        Placement { epoch: 1, grouping, shards, owners, planned: None, former, history, past_since_us: 0 }
    }

    /// The bucket of a document.
    pub(crate) fn bucket(&self, id: &str) -> u16 {
        bucket_of(self.grouping, id)
    }

    /// The index of the shard that has a document.
    pub(crate) fn shard_of(&self, id: &str) -> usize {
        usize::from(self.owners[usize::from(self.bucket(id))])
    }

    /// The index of a shard.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name.
    pub(crate) fn index(&self, shard: &str) -> Result<usize> {
        let index = self.shards.iter().position(|name| name == shard);
        index.ok_or_else(|| Error::not_found(format!("no shard is named `{shard}`")))
    }

    /// The buckets of a shard.
    pub(crate) fn buckets_of(&self, shard: usize) -> Vec<u16> {
        (0..BUCKETS).filter(|bucket| usize::from(self.owners[usize::from(*bucket)]) == shard).collect()
    }

    /// The name of the shard that has all of these buckets.
    ///
    /// # Errors
    /// `Invalid` if there are none, or they are of several shards.
    pub(crate) fn owner_of_all(&self, buckets: &[u16]) -> Result<&str> {
        let mut owners = buckets.iter().map(|bucket| self.owners.get(usize::from(*bucket)).copied());
        let first = owners.next().flatten();
        match first.filter(|_| owners.all(|owner| owner == first)) {
            Some(owner) => Ok(&self.shards[usize::from(owner)]),
            None => Err(Error::invalid("a move has buckets below 4,096, all of one shard")),
        }
    }

    /// Whether a shard has any bucket.
    pub(crate) fn is_owner(&self, shard: usize) -> bool {
        self.owners.iter().any(|owner| usize::from(*owner) == shard)
    }

    /// The next placement.
    pub(crate) fn next(&self, change: impl FnOnce(&mut Placement)) -> Placement {
        let mut next = self.clone();
        next.epoch += 1;
        change(&mut next);
        next
    }

    /// Puts another database, which has another name and another past, in the place of a shard.
    pub(crate) fn rename_shard(&mut self, shard: usize, name: &str) {
        let before = std::mem::replace(&mut self.shards[shard], name.to_owned());
        self.forget_past_of(&before);
        let renamed = |known: &mut String| {
            if *known == before {
                *known = name.to_owned();
            }
        };
        self.former.iter_mut().for_each(|(shard, _)| renamed(shard));
        if let Some(planned) = &mut self.planned {
            renamed(&mut planned.from);
            renamed(&mut planned.to);
        }
    }

    /// Removes a shard that has no buckets.
    pub(crate) fn remove_shard(&mut self, shard: usize) {
        let removed = self.shards.remove(shard);
        self.former.retain(|(name, _)| *name != removed);
        self.forget_past_of(&removed);
        let after = |owner: &mut u16| *owner -= u16::from(usize::from(*owner) > shard);
        self.owners.iter_mut().for_each(after);
    }

    /// As it is stored.
    pub(crate) fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("epoch", self.epoch);
        if let Grouping::ByPrefix(separator) = self.grouping {
            object.insert("separator", separator.to_string());
        }
        object.insert("shards", owners_value(&self.shards, &self.owners));
        if let Some(planned) = &self.planned {
            object.insert("move", planned.to_value());
        }
        let former = |(name, buckets): &(String, Vec<u16>)| {
            let entry = [("name", Value::from(name.as_str())), ("buckets", ranges(buckets))];
            Value::Object(entry.into_iter().collect())
        };
        object.insert("former", Value::Array(self.former.iter().map(former).collect()));
        object.insert("history", Value::Array(self.history.iter().map(PastOwners::to_value).collect()));
        object.insert("past_since_us", self.past_since_us);
        Value::Object(object)
    }

    /// Reads what [`Placement::to_value`] wrote.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub(crate) fn parse(value: &Value) -> Result<Self> {
        let list = |name| value.get(name).and_then(Value::as_array).ok_or_else(malformed);
        let grouping = match value.get("separator").and_then(Value::as_str) {
            Some(separator) => Grouping::ByPrefix(separator.chars().next().ok_or_else(malformed)?),
            None => Grouping::ById,
        };
        let (shards, owners) = parse_owners(list("shards")?)?;
        let former = list("former")?.iter();
        let former = former.map(|one| Ok((text(one, "name")?, buckets(one.get("buckets"))?))).collect::<Result<_>>()?;
        let planned = value.get("move").map(PlannedMove::parse).transpose()?;
        let epoch = value.get("epoch").and_then(Value::as_u64).ok_or_else(malformed)?;
        let (history, past_since_us) = match value.get("history") {
            Some(history) => {
                let history = history.as_array().ok_or_else(malformed)?.iter().map(PastOwners::parse);
                (history.collect::<Result<_>>()?, number(value, "past_since_us")?)
            }
            // An earlier version changed the owners and did not keep them.
            None => (Vec::new(), if epoch == 1 { 0 } else { now_us() }),
        };
        Ok(Placement { epoch, grouping, shards, owners, planned, former, history, past_since_us })
    }
}

/// The owners of all buckets, by shard.
fn owners_value(shards: &[String], owners: &[u16]) -> Value {
    let shard = |(at, name): (usize, &String)| {
        let of_shard = (0..BUCKETS).filter(|bucket| usize::from(owners[usize::from(*bucket)]) == at);
        let of_shard: Vec<u16> = of_shard.collect();
        let entry = [("name", Value::from(name.as_str())), ("buckets", ranges(&of_shard))];
        Value::Object(entry.into_iter().collect())
    };
    Value::Array(shards.iter().enumerate().map(shard).collect())
}

/// Reads what [`owners_value`] wrote.
fn parse_owners(value: &[Value]) -> Result<(Vec<String>, Vec<u16>)> {
    let (mut shards, mut owners) = (Vec::new(), vec![u16::MAX; usize::from(BUCKETS)]);
    for (at, shard) in value.iter().enumerate() {
        shards.push(text(shard, "name")?);
        for bucket in buckets(shard.get("buckets"))? {
            owners[usize::from(bucket)] = at as u16;
        }
    }
    if owners.contains(&u16::MAX) { Err(malformed()) } else { Ok((shards, owners)) }
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value.get(name).and_then(Value::as_u64).ok_or_else(malformed)
}

impl PastOwners {
    fn to_value(&self) -> Value {
        let at = |(name, sequence): &(String, u64)| {
            let entry = [("name", Value::from(name.as_str())), ("sequence", (*sequence).into())];
            Value::Object(entry.into_iter().collect())
        };
        let shards = owners_value(&self.shards, &self.owners);
        let fields = [
            ("until_us", Value::from(self.until_us)),
            ("shards", shards),
            ("from", at(&self.from)),
            ("to", at(&self.to)),
        ];
        Value::Object(fields.into_iter().collect())
    }

    fn parse(value: &Value) -> Result<Self> {
        let shards = value.get("shards").and_then(Value::as_array).ok_or_else(malformed)?;
        let (shards, owners) = parse_owners(shards)?;
        let at = |name| -> Result<(String, u64)> {
            let of_shard = value.get(name).ok_or_else(malformed)?;
            Ok((text(of_shard, "name")?, number(of_shard, "sequence")?))
        };
        Ok(PastOwners { until_us: number(value, "until_us")?, shards, owners, from: at("from")?, to: at("to")? })
    }
}

impl PlannedMove {
    fn to_value(&self) -> Value {
        let fields = [
            ("from", Value::from(self.from.as_str())),
            ("to", self.to.as_str().into()),
            ("buckets", ranges(&self.buckets)),
            ("switched", self.is_switched.into()),
            ("removes_source", self.removes_source.into()),
        ];
        Value::Object(fields.into_iter().collect())
    }

    fn parse(value: &Value) -> Result<Self> {
        let flag = |name| value.get(name).and_then(Value::as_bool).ok_or_else(malformed);
        Ok(PlannedMove {
            from: text(value, "from")?,
            to: text(value, "to")?,
            buckets: buckets(value.get("buckets"))?,
            is_switched: flag("switched")?,
            removes_source: flag("removes_source")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_ids_never_change() {
        let of = |id: &str| bucket_of(Grouping::ById, id);
        assert_eq!((of(""), of("a"), of("solaris"), of("order-7:line-1")), (0, 2049, 3253, 3102));
        let by_prefix = |id: &str| bucket_of(Grouping::ByPrefix(':'), id);
        assert_eq!((by_prefix("order-7:line-1"), by_prefix("order-7")), (of("order-7"), of("order-7")));
        let mut counts = [0; 8];
        (0..8_000).for_each(|n| counts[usize::from(of(&format!("d{n:05}"))) / 512] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn placements_are_read_as_written() {
        let names = |count| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
        let mut placement = Placement::equal(names(3), Grouping::ByPrefix(':'));
        assert_eq!(Placement::parse(&placement.to_value()).unwrap(), placement);
        placement = placement.next(|next| {
            next.remember(("s0", 5), ("s2", 7));
            next.owners[7] = 2;
            next.former.push(("s0".into(), vec![1, 2, 3, 9]));
            let (from, to) = ("s0".into(), "s2".into());
            let buckets = vec![7, 8, 9, 4_095];
            next.planned = Some(PlannedMove { from, to, buckets, is_switched: true, removes_source: false });
        });
        assert_eq!(Placement::parse(&placement.to_value()).unwrap(), placement);
        let sizes: Vec<usize> = (0..3).map(|shard| placement.buckets_of(shard).len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 4_096);
        assert!(Placement::parse(&Value::Object(Object::new())).is_err());
    }
}
