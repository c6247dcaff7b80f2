//! The changes of all members.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stemmadb::replication::Peer;
use stemmadb::{Change, Changes, Database, Error, Object, Result, Selector, Sequence, Value};
use stemmadb_client::{AnyDatabase, RemoteChanges, RemoteDatabase};

use crate::federation::{Federation, Terms};
use crate::member::OpenMember;
use crate::missing::MissingMembers;
use crate::token::{damaged, decode, encode};

/// A read of the changes of all members after a position. Building it reads nothing.
///
/// Each member's changes are in the order of its sequences; those of different members alternate. A document that
/// several members hold is reported by each of them.
///
/// ```
/// # use stemmadb::Database;
/// # use stemmadb_federation::Federation;
/// # fn main() -> stemmadb::Result<()> {
/// # let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({}))?;
/// let all = Federation::over([("north", north), ("south", south.clone())])?;
/// let mut changes = all.changes().run()?;
/// assert_eq!(changes.next().expect("one change")?.member, "north");
/// let token = changes.token();
/// south.insert("b", &serde_json::json!({}))?;
/// let later = all.changes().after(token).run()?.next().expect("one change")?;
/// assert_eq!((later.member.as_str(), later.change.id.as_str()), ("south", "b"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a read of the feed does nothing until it is run"]
pub struct FederatedChanges {
    federation: Federation,
    after: Option<String>,
    limit: Option<usize>,
    documents: bool,
    descending: bool,
    readable: Option<Readable>,
    missing: Option<MissingMembers>,
}

/// The documents whose changes are returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readable {
    pub(crate) selector: Option<Selector>,
    /// Whether documents that left those of the selector are returned as deleted.
    pub(crate) departures: bool,
    /// Patterns of paths, one of which a document has; none: any document.
    pub(crate) paths: Vec<String>,
    /// The ids of the documents; without it, any.
    pub(crate) ids: Option<Vec<String>>,
}

impl Readable {
    /// Whether documents of this id are chosen.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.iter().any(|chosen| chosen == id))
    }

    /// Leaves out other changes of an embedded database.
    pub(crate) fn choose(&self, changes: Changes) -> Result<Changes> {
        let changes = match &self.selector {
            Some(selector) => changes.selector(selector)?.departures(self.departures),
            None => changes,
        };
        let changes = match &self.ids {
            Some(ids) => changes.ids(ids),
            None => changes,
        };
        if self.paths.is_empty() { Ok(changes) } else { changes.paths(&self.paths) }
    }

    /// Leaves out other changes of a database on a server.
    pub(crate) fn choose_remote(&self, changes: RemoteChanges) -> Result<RemoteChanges> {
        let changes = match &self.selector {
            Some(selector) => changes.selector(selector)?.departures(self.departures),
            None => changes,
        };
        let changes = match &self.ids {
            Some(ids) => changes.ids(ids),
            None => changes,
        };
        if self.paths.is_empty() { Ok(changes) } else { changes.paths(&self.paths) }
    }
}

/// A change of one member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FederatedChange {
    /// The name of the member.
    pub member: String,
    /// The change, with the member's sequence.
    pub change: Change,
}

/// The changes of all members. An iterator; after an error it returns no further changes.
pub struct FederatedChangeRows {
    federation: Federation,
    feeds: Vec<Option<Feed>>,
    /// The last returned sequence of each member.
    sequences: Vec<Sequence>,
    /// Where each member's feed began.
    begin: Vec<Sequence>,
    terms: Terms,
    next: usize,
    /// The member of the last returned change, if the newest come first.
    descended: Option<usize>,
    descending: bool,
    limit_left: Option<usize>,
    is_failed: bool,
}

/// The changes of a member.
struct Feed {
    rows: Box<dyn Iterator<Item = Result<Change>> + Send>,
    /// The sequence that is reached at their end, if that is not the last change's.
    end: Arc<AtomicU64>,
}

/// The changes of a server that are asked for at once.
const REMOTE_PAGE: usize = 1_000;

/// The changes of a member on a server, read in pages.
struct RemoteFeed {
    database: RemoteDatabase,
    since: Sequence,
    documents: bool,
    descending: bool,
    readable: Option<Readable>,
    end: Arc<AtomicU64>,
    page: VecDeque<Result<Change>>,
    /// The number of changes that are asked for next.
    page_len: usize,
    is_last_page: bool,
}

impl FederatedChanges {
    pub(crate) fn new(federation: Federation) -> Self {
        FederatedChanges {
            federation,
            after: None,
            limit: None,
            documents: false,
            descending: false,
            readable: None,
            missing: None,
        }
    }

    /// Continues after the position of a token: see [`FederatedChangeRows::token`]. Members that the token does not
    /// name are read from their beginning.
    pub fn after(self, token: impl Into<String>) -> Self {
        FederatedChanges { after: Some(token.into()), ..self }
    }

    /// Returns at most `count` changes, of all members together.
    pub fn limit(self, count: usize) -> Self {
        FederatedChanges { limit: Some(count), ..self }
    }

    /// The token after the newest changes of all members. A server that does not answer is read from its beginning.
    pub(crate) fn newest_token(&self) -> String {
        let members = self.federation.current().members;
        let newest = |member: &OpenMember| match &member.database {
            AnyDatabase::Embedded(database) => {
                Some((member.name.clone(), position(&member.database, database.sequence())))
            }
            AnyDatabase::Remote(database) => {
                let sequence = database.sequence().ok()?;
                Some((member.name.clone(), position(&member.database, sequence)))
            }
        };
        let since: Object = members.iter().filter_map(newest).collect();
        encode([("since", Value::Object(since))].into_iter().collect())
    }

    /// Whether to return the documents, too.
    pub fn documents(self, documents: bool) -> Self {
        FederatedChanges { documents, ..self }
    }

    /// Returns the newest changes of each member first. A token then stands before the change.
    pub(crate) fn descending(self, descending: bool) -> Self {
        FederatedChanges { descending, ..self }
    }

    /// Returns only changes of some documents.
    pub(crate) fn readable(self, readable: Option<Readable>) -> Self {
        FederatedChanges { readable, ..self }
    }

    /// Leaves out members that fail, and adds them to `missing`. The token keeps their position.
    pub fn partial(self, missing: &MissingMembers) -> Self {
        FederatedChanges { missing: Some(missing.clone()), ..self }
    }

    /// Reads the changes.
    ///
    /// # Errors
    /// Those of [`Database::changes`](stemmadb::Database::changes), with the name of the member; `Invalid` for a
    /// malformed token.
    pub fn run(mut self) -> Result<FederatedChangeRows> {
        self.federation = self.federation.current();
        let terms = Terms { deadline: None, missing: self.missing.clone() };
        let begin = self.sequences()?;
        let sequences = if self.descending { self.newest_sequences(&begin)? } else { begin.clone() };
        let mut feeds = Vec::with_capacity(sequences.len());
        for (member, since) in self.federation.members.iter().zip(&begin) {
            feeds.push(match self.feed(&member.database, *since) {
                Ok(feed) => Some(feed),
                Err(error) => terms.without(member, error).map(|()| None)?,
            });
        }
        let FederatedChanges { federation, limit, descending, .. } = self;
        Ok(FederatedChangeRows {
            federation,
            feeds,
            sequences,
            begin,
            terms,
            next: 0,
            descended: None,
            descending,
            limit_left: limit,
            is_failed: false,
        })
    }

    /// The newest sequences of the members. A server that does not answer stays at its position.
    fn newest_sequences(&self, begin: &[Sequence]) -> Result<Vec<Sequence>> {
        let newest = |(member, begin): (&OpenMember, &Sequence)| match &member.database {
            AnyDatabase::Embedded(database) => database.sequence(),
            AnyDatabase::Remote(database) => database.sequence().unwrap_or(*begin),
        };
        Ok(self.federation.members.iter().zip(begin).map(newest).collect())
    }

    fn sequences(&self) -> Result<Vec<Sequence>> {
        let members = &self.federation.members;
        let Some(token) = &self.after else { return Ok(vec![Sequence::ZERO; members.len()]) };
        let token = decode(token)?;
        let Some(Value::Object(known)) = token.get("since") else { return Err(damaged()) };
        let sequence = |member: &OpenMember| match known.get(&member.name) {
            None => Ok(Sequence::ZERO),
            Some(position) => read_position(&member.database, position),
        };
        members.iter().map(sequence).collect()
    }

    fn feed(&self, database: &AnyDatabase, since: Sequence) -> Result<Feed> {
        let end = Arc::new(AtomicU64::new(0));
        let rows: Box<dyn Iterator<Item = Result<Change>> + Send> = match database {
            AnyDatabase::Embedded(database) => {
                let mut changes = database.changes(since)?.documents(self.documents).descending(self.descending);
                if let Some(readable) = &self.readable {
                    changes = readable.choose(changes)?;
                }
                match self.limit {
                    Some(limit) => Box::new(changes.limit(limit).run()),
                    None => {
                        end.store(changes.last_sequence().get(), Ordering::Relaxed);
                        Box::new(changes.run())
                    }
                }
            }
            AnyDatabase::Remote(database) => {
                let page_len = self.limit.unwrap_or(REMOTE_PAGE).clamp(1, REMOTE_PAGE);
                let mut feed = RemoteFeed {
                    database: database.clone(),
                    since,
                    documents: self.documents,
                    descending: self.descending,
                    readable: self.readable.clone(),
                    end: end.clone(),
                    page: VecDeque::new(),
                    // A page before another one of the newest changes can't be named.
                    page_len: if self.descending { self.limit.unwrap_or(usize::MAX) } else { page_len },
                    is_last_page: false,
                };
                feed.read_page()?;
                Box::new(feed)
            }
        };
        Ok(Feed { rows, end })
    }
}

/// A member's position in a token: its sequence, and for an embedded database its identity, by which another database
/// in its place is recognized.
fn position(database: &AnyDatabase, sequence: Sequence) -> Value {
    let sequence = Value::from(sequence.get());
    match database {
        AnyDatabase::Embedded(database) => match Database::identity(database) {
            Ok(identity) => Value::Array(vec![sequence, identity.into()]),
            Err(_) => sequence,
        },
        AnyDatabase::Remote(_) => sequence,
    }
}

/// The sequence of a position. Another database, and an older copy of the same one, are read from the beginning.
fn read_position(database: &AnyDatabase, position: &Value) -> Result<Sequence> {
    let (number, identity) = match position.as_array() {
        Some([number, identity]) => (number.as_u64(), identity.as_str()),
        _ => (position.as_u64(), None),
    };
    let sequence = Sequence::new(number.ok_or_else(damaged)?);
    match (database, identity) {
        (AnyDatabase::Embedded(database), Some(identity))
            if sequence > database.sequence() || Database::identity(database)? != identity =>
        {
            Ok(Sequence::ZERO)
        }
        _ => Ok(sequence),
    }
}

impl RemoteFeed {
    fn read_page(&mut self) -> Result<()> {
        let mut changes = self.database.changes(self.since).documents(self.documents).descending(self.descending);
        if let Some(readable) = &self.readable {
            changes = readable.choose_remote(changes)?;
        }
        let (rows, last) = changes.limit(self.page_len).run_to_last()?;
        self.page = rows.collect();
        self.is_last_page = self.descending || self.page.len() < self.page_len;
        if self.is_last_page {
            self.end.store(last.get(), Ordering::Relaxed);
        }
        self.page_len = REMOTE_PAGE;
        if let Some(Ok(last)) = self.page.back() {
            self.since = last.sequence;
        }
        Ok(())
    }
}

impl Iterator for RemoteFeed {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && !self.is_last_page
            && let Err(error) = self.read_page()
        {
            self.is_last_page = true;
            return Some(Err(error));
        }
        self.page.pop_front()
    }
}

impl FederatedChangeRows {
    /// The token that continues after the last returned change. It names each member's sequence, so it survives
    /// restarts, and members may be added.
    pub fn token(&self) -> String {
        let sequence =
            |(member, sequence): (&OpenMember, &Sequence)| (member.name.clone(), position(&member.database, *sequence));
        let since: Object = self.federation.members.iter().zip(&self.sequences).map(sequence).collect();
        encode([("since", Value::Object(since))].into_iter().collect())
    }

    /// The sum of the members' sequences after the last returned change.
    pub(crate) fn sequence_sum(&self) -> u64 {
        self.sequences.iter().map(|sequence| sequence.get()).fold(0, u64::saturating_add)
    }

    /// Where the feed of a member began.
    pub(crate) fn begin_of(&self, member: &str) -> Sequence {
        let at = self.federation.members.iter().position(|known| known.name == member);
        at.map_or(Sequence::ZERO, |at| self.begin[at])
    }

    /// The number of further changes: exact for each embedded member up to `count_max`, above that and for remote ones
    /// bounded by its sequences.
    pub(crate) fn pending(&self, count_max: u64) -> Result<u64> {
        let mut pending = 0;
        for (member, since) in self.federation.members.iter().zip(&self.sequences) {
            let newest = |sequence: Sequence| sequence.get().saturating_sub(since.get());
            pending += match &member.database {
                AnyDatabase::Embedded(database) => {
                    let count = database.changes(*since).and_then(|changes| changes.count_up_to(count_max));
                    let count = count.map_err(|error| member.error(error))?;
                    if count == count_max { newest(database.sequence()) } else { count }
                }
                AnyDatabase::Remote(database) => newest(database.sequence().map_err(|error| member.error(error))?),
            };
        }
        Ok(pending)
    }

    fn next_change(&mut self) -> Result<Option<FederatedChange>> {
        let count = self.feeds.len();
        for _ in 0..count {
            if self.limit_left == Some(0) {
                return Ok(None);
            }
            let at = self.next;
            self.next = (self.next + 1) % count;
            let Some(feed) = &mut self.feeds[at] else { continue };
            let member = &self.federation.members[at];
            match feed.rows.next().transpose() {
                Ok(Some(change)) => {
                    if let Some(descended) = self.descended.take() {
                        let before = self.sequences[descended].get().saturating_sub(1);
                        self.sequences[descended] = Sequence::new(before);
                    }
                    self.descended = self.descending.then_some(at);
                    self.sequences[at] = change.sequence;
                    self.limit_left = self.limit_left.map(|left| left - 1);
                    return Ok(Some(FederatedChange { member: member.name.clone(), change }));
                }
                Ok(None) => {
                    // Those at the end may have been left out.
                    let end = Sequence::new(feed.end.load(Ordering::Relaxed));
                    if !self.descending {
                        self.sequences[at] = self.sequences[at].max(end);
                    }
                    self.feeds[at] = None;
                }
                Err(error) => {
                    let error: Error = error;
                    self.terms.without(member, error)?;
                    self.feeds[at] = None;
                }
            }
        }
        Ok(None)
    }
}

impl Iterator for FederatedChangeRows {
    type Item = Result<FederatedChange>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_failed {
            return None;
        }
        let change = self.next_change();
        self.is_failed = change.is_err();
        change.transpose()
    }
}

impl std::fmt::Debug for FederatedChangeRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FederatedChangeRows").field("sequences", &self.sequences).finish_non_exhaustive()
    }
}
