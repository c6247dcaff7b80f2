//! Model test: random operations on a database and on a naive oracle must give the same results, through reopening,
//! rebuilding and maintenance.
//!
//! `STEMMA_MODEL_CASES` sets the number of cases (default 120, each of about 120 operations), `STEMMA_MODEL_SEED` the
//! seed. Equal seeds run equal cases; a failing case is printed minimized. With `STEMMA_MODEL_BACKGROUND=1` every case
//! has background maintenance threads, whose timing does not depend on the seed.

mod oracle;

use std::path::PathBuf;

use oracle::Oracle;
use oracle::bodies::{Random, body};
use oracle::compare::{Outcome, ok, sound};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use stemmadb::{
    Compression, Database, DocumentId, Durability, Edit, Error, IndexPolicy, Options, Revision, Sequence, Snapshot,
    Subscription, Value, testing,
};

/// Database settings of a case.
#[derive(Debug, Clone)]
struct Settings {
    on_disk: bool,
    background: bool,
    memory_bytes: usize,
    segment_bytes: u32,
    file_rows: usize,
    cache: bool,
    revs_limit: usize,
    policy: u8,
    sync: bool,
    compression: Option<Compression>,
}

/// One edit, independent of the current state: `id`, `leaf` and `revision` are indices modulo what exists.
#[derive(Debug, Clone)]
struct Change {
    id: usize,
    body: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Insert,
    Upsert,
    Replace {
        leaf: usize,
    },
    Delete {
        leaf: usize,
    },
    /// Names a revision that is not a leaf, or does not exist.
    NotALeaf {
        revision: usize,
        deletes: bool,
    },
    /// A revision of another replica, from a revision tree on which all replicas agree.
    Family {
        member: u32,
        length: usize,
    },
    /// Another replica's edit of a known revision, with part of its ancestry.
    Branch {
        revision: usize,
        length: usize,
        steps: u32,
    },
    /// A known revision, sent again.
    Known {
        revision: usize,
        length: usize,
    },
    /// An ancestry with a gap.
    Gap,
    /// A deletion beside the revision that replaced a known one.
    Depart {
        revision: usize,
    },
}

#[derive(Debug, Clone)]
struct LocalWrite {
    id: usize,
    body: Option<u64>,
    /// Names its current number, a wrong one, or none.
    expected: Expected,
}

#[derive(Debug, Clone)]
enum Expected {
    Any,
    Right,
    Wrong,
}

#[derive(Debug, Clone)]
enum Operation {
    Edit(Change),
    Bulk(Vec<Change>),
    Transaction { changes: Vec<Change>, locals: Vec<LocalWrite>, aborts: bool },
    Local(LocalWrite),
    Reopen,
    ReopenWithoutTree,
    Rebuild,
    ChangePolicy(u8),
    ChangeCompression(Option<Compression>),
    LimitRevisions(usize),
    Checkpoint,
    Compact,
    Flush,
    TakeSnapshot,
    DropSnapshot,
    CompareSnapshots,
    Subscribe,
    ReceiveChanges,
    Feed { since: u64, limit: usize },
    Compare,
    Check,
}

fn settings() -> impl Strategy<Value = Settings> {
    let sizes = (
        prop_oneof![Just(6 << 10), Just(20 << 10), Just(200 << 10)],
        prop_oneof![Just(4 << 10), Just(16 << 10), Just(256 << 10)],
    );
    let switches = (prop::bool::weighted(0.6), prop::bool::weighted(0.15), any::<bool>(), prop::bool::weighted(0.2));
    (
        switches,
        sizes,
        prop_oneof![Just(4usize), Just(30), Just(6000)],
        prop_oneof![4 => Just(1000usize), 1 => 1..6usize],
        (0..4u8, compression()),
    )
        .prop_map(|(switches, (memory_bytes, segment_bytes), file_rows, revs_limit, (policy, compression))| {
            let (on_disk, background, cache, sync) = switches;
            Settings {
                on_disk,
                background,
                memory_bytes,
                segment_bytes,
                file_rows,
                cache,
                revs_limit,
                policy,
                sync,
                compression,
            }
        })
}

/// None keeps what the database has.
fn compression() -> impl Strategy<Value = Option<Compression>> {
    let every = [None, Some(Compression::None), Some(Compression::Lz4), Some(Compression::Zstd)];
    prop_oneof![2 => Just(None), 1 => prop::sample::select(every.to_vec())]
}

fn change() -> impl Strategy<Value = Change> {
    let small = 0..8usize;
    let kind = prop_oneof![
        4 => Just(Kind::Insert),
        3 => Just(Kind::Upsert),
        6 => small.clone().prop_map(|leaf| Kind::Replace { leaf }),
        3 => small.clone().prop_map(|leaf| Kind::Delete { leaf }),
        1 => (0..30usize, any::<bool>()).prop_map(|(revision, deletes)| Kind::NotALeaf { revision, deletes }),
        2 => (1..16u32, 1..6usize).prop_map(|(member, length)| Kind::Family { member, length }),
        2 => (0..30usize, 1..6usize, 1..4u32)
            .prop_map(|(revision, length, steps)| Kind::Branch { revision, length, steps }),
        1 => (0..30usize, 1..8usize).prop_map(|(revision, length)| Kind::Known { revision, length }),
        1 => Just(Kind::Gap),
        2 => (0..30usize).prop_map(|revision| Kind::Depart { revision }),
    ];
    (0..IDS.len(), 0..200u64, kind).prop_map(|(id, body, kind)| Change { id, body, kind })
}

fn local_write() -> impl Strategy<Value = LocalWrite> {
    let expected = prop_oneof![2 => Just(Expected::Any), 2 => Just(Expected::Right), 1 => Just(Expected::Wrong)];
    (0..3usize, prop::option::weighted(0.8, 0..200u64), expected).prop_map(|(id, body, expected)| LocalWrite {
        id,
        body,
        expected,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let changes = || prop::collection::vec(change(), 0..7);
    let locals = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(local_write(), 1..3)];
    prop_oneof![
        40 => change().prop_map(Operation::Edit),
        8 => changes().prop_map(Operation::Bulk),
        10 => (changes(), locals, prop::bool::weighted(0.25))
            .prop_map(|(changes, locals, aborts)| Operation::Transaction { changes, locals, aborts }),
        4 => local_write().prop_map(Operation::Local),
        2 => Just(Operation::Reopen),
        1 => Just(Operation::ReopenWithoutTree),
        1 => Just(Operation::Rebuild),
        1 => (0..4u8).prop_map(Operation::ChangePolicy),
        1 => compression().prop_map(Operation::ChangeCompression),
        1 => prop_oneof![Just(1000), 1..6usize].prop_map(Operation::LimitRevisions),
        4 => Just(Operation::Checkpoint),
        3 => Just(Operation::Compact),
        1 => Just(Operation::Flush),
        3 => Just(Operation::TakeSnapshot),
        1 => Just(Operation::DropSnapshot),
        2 => Just(Operation::CompareSnapshots),
        1 => Just(Operation::Subscribe),
        3 => Just(Operation::ReceiveChanges),
        3 => (0..200u64, 1..12usize).prop_map(|(since, limit)| Operation::Feed { since, limit }),
        2 => Just(Operation::Compare),
        2 => Just(Operation::Check),
    ]
}

/// Few ids, so that edits conflict: plain ones, one that needs escaping, and two that are longer than a tree key and
/// differ only at their ends.
const IDS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "_design/views", "ü \"quoted\"\n", "A", "LONG1", "LONG2"];

fn id_text(index: usize) -> String {
    match IDS[index] {
        long if long.starts_with("LONG") => "x".repeat(700) + long,
        id => id.to_owned(),
    }
}

fn policy(number: u8) -> IndexPolicy {
    match number {
        0 => IndexPolicy::default(),
        1 => IndexPolicy::new([], ["tags", "deep"]).expect("well-formed paths"),
        2 => IndexPolicy::new(["year", "shelf"], []).expect("well-formed paths"),
        _ => IndexPolicy::default().with_document_terms_max(5).expect("in bounds"),
    }
}

struct Case {
    settings: Settings,
    directory: Option<tempfile::TempDir>,
    db: Option<Database>,
    oracle: Oracle,
    /// The revision that each edit got so far: the same edit must always get the same one.
    names: std::collections::BTreeMap<String, Revision>,
    /// The body of every revision ever made, by id and revision, so that a replica can send it again.
    bodies: std::collections::BTreeMap<(String, Revision), (bool, Value)>,
    snapshots: Vec<(Snapshot, Oracle)>,
    subscription: Option<(Subscription, u64, std::collections::BTreeMap<String, stemmadb::Change>)>,
    operations: u64,
}

fn options(settings: &Settings) -> Options {
    let options = Options::new()
        .durability(if settings.sync { Durability::Sync } else { Durability::None })
        .background(settings.background)
        .cache_bytes(if settings.cache { 1 << 20 } else { 0 })
        .revs_limit(settings.revs_limit);
    let options =
        testing::with_small_limits(options, settings.memory_bytes, settings.segment_bytes, settings.file_rows);
    settings.compression.into_iter().fold(options, Options::compression)
}

impl Case {
    fn new(settings: Settings) -> Outcome<Self> {
        let directory = if settings.on_disk { Some(tempfile::tempdir().expect("a temporary directory")) } else { None };
        let mut case = Case {
            oracle: Oracle::new(settings.revs_limit),
            directory,
            db: None,
            names: Default::default(),
            bodies: Default::default(),
            snapshots: Vec::new(),
            subscription: None,
            operations: 0,
            settings,
        };
        let options = options(&case.settings).index(policy(case.settings.policy));
        let db = match case.path() {
            Some(path) => Database::open_with(path, options),
            None => Database::in_memory_with(options),
        };
        case.db = Some(ok(|| "open".into(), db)?);
        Ok(case)
    }

    fn path(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.path().join("model.stemma"))
    }

    fn db(&self) -> &Database {
        self.db.as_ref().expect("open between operations")
    }

    fn ids(&self) -> Vec<String> {
        (0..IDS.len()).map(id_text).collect()
    }

    fn compare(&self) -> Outcome {
        self.oracle.compare(self.db(), &self.ids(), &(0..3).map(local_id).collect::<Vec<_>>())
    }

    fn run(&mut self, operation: &Operation) -> Outcome {
        self.operations += 1;
        match operation {
            Operation::Edit(change) => self.edit(change),
            Operation::Bulk(changes) => self.bulk(changes),
            Operation::Transaction { changes, locals, aborts } => self.transaction(changes, locals, *aborts),
            Operation::Local(write) => self.local(write),
            Operation::Reopen => self.reopen(|_| Ok(()), None),
            Operation::ReopenWithoutTree => self.reopen(without_tree, None),
            Operation::Rebuild => {
                let options = options(&self.settings);
                self.reopen(|path| ok(|| "rebuild".into(), Database::rebuild(path, options, |_| ())).map(drop), None)
            }
            Operation::ChangePolicy(number) => self.reopen(|_| Ok(()), Some(*number)),
            Operation::ChangeCompression(compression) => {
                self.settings.compression = *compression;
                self.reopen(|_| Ok(()), None)
            }
            Operation::LimitRevisions(revs_limit) => {
                self.db().maintenance().set_revs_limit(*revs_limit);
                (self.settings.revs_limit, self.oracle.revs_limit) = (*revs_limit, *revs_limit);
                Ok(())
            }
            Operation::Checkpoint => ok(|| "checkpoint".into(), self.db().maintenance().checkpoint()),
            Operation::Compact => ok(|| "compact".into(), self.db().maintenance().compact()).map(|_| ()),
            Operation::Flush => ok(|| "flush".into(), self.db().flush()),
            Operation::TakeSnapshot => {
                if self.snapshots.len() < 4 {
                    self.snapshots.push((ok(|| "snapshot".into(), self.db().snapshot())?, self.oracle.clone()));
                }
                Ok(())
            }
            Operation::DropSnapshot => {
                if !self.snapshots.is_empty() {
                    self.snapshots.remove(0);
                }
                Ok(())
            }
            Operation::CompareSnapshots => self.compare_snapshots(),
            Operation::Subscribe => {
                let since = self.oracle.sequence / 2;
                let subscription = self.db().subscribe(Sequence::new(since)).documents(self.settings.cache);
                self.subscription = Some((subscription, since, Default::default()));
                Ok(())
            }
            Operation::ReceiveChanges => self.receive_changes(),
            Operation::Feed { since, limit } => self.feed(*since, *limit),
            Operation::Compare => self.compare(),
            Operation::Check => sound(self.db()),
        }
    }

    /// Converts a change to an edit in the oracle's current state.
    fn resolve(&self, oracle: &Oracle, change: &Change) -> Edit {
        let text = id_text(change.id);
        let id = DocumentId::new(&text).expect("a good id");
        let value = body(change.body);
        let document = oracle.documents.get(&text);
        let leaf = |leaf: usize| match document {
            Some(document) => {
                let leaves = document.leaves();
                leaves[leaf % leaves.len()].0
            }
            None => revision("1-none"),
        };
        let known = |index: usize| {
            document.and_then(|document| document.parents.keys().nth(index % document.parents.len()).copied())
        };
        let path_from = |start: Revision, length: usize| {
            document.map_or(vec![start], |document| document.ancestry(&start).into_iter().take(length).collect())
        };
        match change.kind {
            Kind::Insert => Edit::Insert { id, body: value },
            Kind::Upsert => Edit::Upsert { id, body: value },
            Kind::Replace { leaf: at } => Edit::Replace { id, revision: leaf(at), body: value },
            Kind::Delete { leaf: at } => Edit::Delete { id, revision: leaf(at) },
            Kind::NotALeaf { revision: at, deletes } => {
                let revision = known(at).filter(|_| at % 3 != 0).unwrap_or_else(|| revision("7-nobody"));
                if deletes { Edit::Delete { id, revision } } else { Edit::Replace { id, revision, body: value } }
            }
            Kind::Family { member, length } => {
                let line = std::iter::successors(Some(member), |member| (*member > 1).then_some(member / 2));
                let path: Vec<_> = line.map(|member| revision(&format!("{}-u{member}", member.ilog2() + 1))).collect();
                self.foreign(id, path[..length.min(path.len())].to_vec())
            }
            Kind::Branch { revision: at, length, steps } => {
                let mut path = known(at).map_or_else(Vec::new, |start| path_from(start, length));
                for _ in 0..steps {
                    path.insert(0, child(path.first(), change.body));
                }
                self.foreign(id, path)
            }
            Kind::Known { revision: at, length } => match known(at) {
                Some(start) => self.foreign(id, path_from(start, length)),
                None => self.foreign(id, vec![revision("1-again")]),
            },
            Kind::Gap => Edit::Foreign {
                id,
                revisions: vec![revision("3-gap"), revision("1-gap")],
                deleted: false,
                body: value,
                files: Vec::new(),
            },
            Kind::Depart { revision: at } => {
                Edit::Depart { id, replaced: known(at).unwrap_or_else(|| revision("1-none")), body: value }
            }
        }
    }

    /// An edit by a replica, with the content that every replica has for this revision.
    fn foreign(&self, id: DocumentId, revisions: Vec<Revision>) -> Edit {
        let newest = revisions[0];
        let (deleted, body) = match self.bodies.get(&(id.as_str().to_owned(), newest)) {
            Some((deleted, body)) => (*deleted, body.clone()),
            None => {
                let seed = hash(&format!("{id} {newest}"));
                (seed.is_multiple_of(5), body(seed % 1000))
            }
        };
        Edit::Foreign { id, revisions, deleted, body, files: Vec::new() }
    }

    /// Checks the result of one edit and applies it to `oracle`.
    fn check_edit(&mut self, oracle: &mut Oracle, edit: &Edit, result: &stemmadb::Result<Revision>) -> Outcome {
        self.operations += 1;
        let expected = oracle.expect(edit);
        let (parent, made) = match (expected, result) {
            (Ok(parent), Ok(made)) => (parent, *made),
            (Err(kind), Err(error)) if error.kind() == kind => return Ok(()),
            (expected, result) => return Err(format!("{edit:?}: found {result:?}, expected {expected:?}")),
        };
        let value = match edit {
            Edit::Foreign { revisions, .. } => {
                if made != revisions[0] {
                    return Err(format!("{edit:?} became {made}"));
                }
                None
            }
            Edit::Insert { body, .. }
            | Edit::Replace { body, .. }
            | Edit::Upsert { body, .. }
            | Edit::Depart { body, .. } => Some(body.clone()),
            Edit::Delete { .. } => Some(Value::Object(Default::default())),
            Edit::Update { .. } => unreachable!("{}", oracle::NO_UPDATES),
            Edit::Attach { .. } | Edit::Detach { .. } | Edit::Put { .. } => unreachable!("{}", oracle::NO_FILES),
        };
        if let Some(value) = value {
            let deleted = matches!(edit, Edit::Delete { .. } | Edit::Depart { .. });
            let key = format!("{parent:?} {deleted} {}", value.to_json());
            let name = self.names.entry(key).or_insert(made);
            if *name != made || made.generation() != parent.map_or(1, |parent| parent.generation() + 1) {
                return Err(format!("{edit:?} of {parent:?} became {made}, was {name} before"));
            }
            self.bodies.insert((edit.id().as_str().to_owned(), made), (deleted, value));
        }
        oracle.apply(edit, parent, made);
        Ok(())
    }

    fn edit(&mut self, change: &Change) -> Outcome {
        let edit = self.resolve(&self.oracle, change);
        let result = self.db().edit(edit.clone());
        let mut oracle = self.oracle.clone();
        self.check_edit(&mut oracle, &edit, &result)?;
        self.oracle = oracle;
        self.oracle.compare_document(self.db(), edit.id().as_str())
    }

    fn bulk(&mut self, changes: &[Change]) -> Outcome {
        let edits: Vec<Edit> = changes.iter().map(|change| self.resolve(&self.oracle, change)).collect();
        let results = ok(|| "bulk".into(), self.db().bulk(edits.clone()))?;
        let mut oracle = self.oracle.clone();
        for (edit, result) in edits.iter().zip(&results) {
            self.check_edit(&mut oracle, edit, result)?;
        }
        self.oracle = oracle;
        Ok(())
    }

    fn transaction(&mut self, changes: &[Change], locals: &[LocalWrite], aborts: bool) -> Outcome {
        let mut oracle = self.oracle.clone();
        let db = self.db().clone();
        let mut wrong = Ok(());
        let written = db.write(|transaction| {
            wrong = (|| {
                for change in changes {
                    let edit = self.resolve(&oracle, change);
                    let result = transaction.edit(edit.clone());
                    self.check_edit(&mut oracle, &edit, &result)?;
                    let id = edit.id().as_str();
                    let found = ok(|| format!("get {id} in a transaction"), transaction.get(id))?;
                    let expected = oracle.documents.get(id).filter(|document| document.is_live());
                    match (&found, expected) {
                        (None, None) => {}
                        (Some(found), Some(expected))
                            if *found.revision() == expected.winner().0
                                && found.value().ok().as_ref() == Some(&expected.winner().1.value) => {}
                        _ => return Err(format!("{id} in a transaction: found {found:?}, expected {expected:?}")),
                    }
                }
                Ok(())
            })();
            if aborts || wrong.is_err() { Err(Error::invalid("aborted")) } else { Ok(()) }
        });
        wrong?;
        match written {
            Ok(()) if !aborts => self.oracle = oracle,
            Err(error) if aborts && error.message() == "aborted" => {}
            other => return Err(format!("transaction: {other:?}")),
        }
        if let Some(last) = changes.last() {
            self.oracle.compare_document(self.db(), &id_text(last.id))?;
        }
        locals.iter().try_for_each(|write| self.local(write))
    }

    fn local(&mut self, write: &LocalWrite) -> Outcome {
        self.operations += 1;
        let id = local_id(write.id);
        let current = self.oracle.locals.get(&id).map(|(number, _)| *number);
        let expected = match write.expected {
            Expected::Any => None,
            Expected::Right => current,
            Expected::Wrong => Some(current.unwrap_or(0) + 3),
        };
        let value = write.body.map(body);
        let result = match &value {
            Some(value) => self.db().local_documents().put(&id, expected, value),
            None => self.db().local_documents().delete(&id, expected).map(|()| 0),
        };
        match (self.oracle.expect_local(&id, expected, value.is_none()), result) {
            (Ok(number), Ok(found)) if value.is_none() || number == found => {
                self.oracle.apply_local(&id, number, value);
                self.oracle.sequence += 1;
                Ok(())
            }
            (Err(kind), Err(error)) if error.kind() == kind => Ok(()),
            (expected, found) => Err(format!("{write:?}: found {found:?}, expected {expected:?}")),
        }
    }

    fn reopen(&mut self, between: impl FnOnce(&std::path::Path) -> Outcome, new_policy: Option<u8>) -> Outcome {
        let Some(path) = self.path() else { return Ok(()) };
        self.snapshots.clear();
        self.subscription = None;
        let db = self.db.take().expect("open between operations");
        if self.oracle.sequence.is_multiple_of(2) {
            ok(|| "close".into(), db.close())?;
        } else {
            drop(db);
        }
        between(&path)?;
        let mut options = options(&self.settings);
        if let Some(number) = new_policy {
            options = options.index(policy(number));
        }
        self.db = Some(ok(|| "reopen".into(), Database::open_with(&path, options))?);
        self.compare()
    }

    fn compare_snapshots(&self) -> Outcome {
        for (snapshot, oracle) in &self.snapshots {
            if snapshot.sequence().get() != oracle.sequence {
                return Err(format!("a snapshot of {} is at {}", oracle.sequence, snapshot.sequence()));
            }
            for id in self.ids() {
                oracle
                    .compare_document(snapshot, &id)
                    .map_err(|what| format!("snapshot of {}: {what}", oracle.sequence))?;
            }
        }
        Ok(())
    }

    /// After listening, the subscriber knows the latest change of every document changed since it subscribed.
    fn receive_changes(&mut self) -> Outcome {
        let Some((subscription, since, received)) = &mut self.subscription else { return Ok(()) };
        let mut last = 0;
        let before = subscription.reached().get();
        while let Some(change) = ok(|| "listen".into(), subscription.next_within(std::time::Duration::ZERO))? {
            let sequence = change.sequence.get();
            if sequence <= last.max(before) {
                return Err(format!("a subscriber at {before} receives {sequence} after {last}"));
            }
            last = sequence;
            received.insert(change.id.to_string(), change);
        }
        if subscription.reached().get() != self.oracle.sequence {
            let (position, sequence) = (subscription.reached(), self.oracle.sequence);
            return Err(format!("a subscriber is at {position} after receiving everything up to {sequence}"));
        }
        for (id, document) in &self.oracle.documents {
            match received.get(id) {
                Some(change) => document.compare_change(change)?,
                None if document.sequence > *since => return Err(format!("a subscriber never received {id}")),
                None => {}
            }
        }
        Ok(())
    }

    fn feed(&self, since: u64, limit: usize) -> Outcome {
        let since = since % (self.oracle.sequence + 2);
        self.oracle.compare_feed(self.db(), since)?;
        let what = || format!("changes since {since} in pages of {limit}");
        let mut position = since;
        let mut found = Vec::new();
        loop {
            let request = ok(what, self.db().changes(Sequence::new(position)))?.limit(limit);
            let page: Vec<_> = ok(what, request.run().collect())?;
            let Some(last) = page.last() else { break };
            position = last.sequence.get();
            found.extend(page.into_iter().map(|change| change.sequence.get()));
        }
        let feed = self.oracle.feed();
        let expected: Vec<u64> = feed.range(since + 1..).map(|(sequence, _)| *sequence).collect();
        if found != expected {
            return Err(format!("{}: found {found:?}, expected {expected:?}", what()));
        }
        let ids = ["a", "nobody", "_design/views"];
        let request = ok(what, self.db().changes(Sequence::new(since)))?.ids(ids);
        let found: Vec<_> = ok(what, request.run().map(|change| change.map(|it| it.sequence.get())).collect())?;
        let expected: Vec<u64> = feed
            .range(since + 1..)
            .filter(|(_, (id, _))| ids.contains(&id.as_str()))
            .map(|(sequence, _)| *sequence)
            .collect();
        if found == expected { Ok(()) } else { Err(format!("changes of {ids:?}: {found:?}, not {expected:?}")) }
    }

    fn finish(mut self) -> Outcome<u64> {
        self.compare()?;
        self.compare_snapshots()?;
        self.receive_changes()?;
        sound(self.db())?;
        self.reopen(|_| Ok(()), None)?;
        self.reopen(without_tree, None)?;
        sound(self.db())?;
        Ok(self.operations)
    }
}

fn without_tree(path: &std::path::Path) -> Outcome {
    std::fs::remove_dir_all(path.join("tree")).map_err(|error| error.to_string())
}

fn local_id(index: usize) -> String {
    format!("_local/{index}")
}

fn revision(text: &str) -> Revision {
    text.parse().expect("a good revision")
}

/// A hash of a text.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(Random(text.len() as u64), |random, byte| Random(Random(random.0 ^ u64::from(byte)).next()))
        .next()
}

/// The revision that another replica makes of `parent`; the seed selects one of several.
fn child(parent: Option<&Revision>, seed: u64) -> Revision {
    let generation = parent.map_or(1, |parent| parent.generation() + 1);
    let name = hash(&format!("{parent:?} {}", seed % 3)) >> 32;
    revision(&format!("{generation}-{name:08x}"))
}

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn run_cases(cases: u64, seed: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let config = Config { cases: cases as u32, failure_persistence: None, max_shrink_iters: 3000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let always_background = number_from("STEMMA_MODEL_BACKGROUND", 0) > 0;
    let total = std::cell::Cell::new(0);
    let outcome = runner.run(&(settings(), prop::collection::vec(operation(), 1..200)), |(settings, operations)| {
        let settings = Settings { background: settings.background || always_background, ..settings };
        let outcome = Case::new(settings).and_then(|mut case| {
            for (at, operation) in operations.iter().enumerate() {
                case.run(operation).map_err(|what| format!("operation {at}: {what}"))?;
            }
            case.finish()
        });
        match outcome {
            Ok(count) => {
                total.set(total.get() + count);
                Ok(())
            }
            Err(what) => Err(TestCaseError::fail(what)),
        }
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    println!("{} operations in {cases} cases, seed {seed}", total.get());
}

#[test]
fn database_matches_the_oracle() {
    run_cases(number_from("STEMMA_MODEL_CASES", 120), number_from("STEMMA_MODEL_SEED", 1));
}
