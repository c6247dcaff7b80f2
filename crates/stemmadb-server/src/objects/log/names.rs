//! The names of a log: a chain of objects, each with all names.
//!
//! The object with the greatest number counts. Objects before it are deleted, so a deposed owner may succeed in
//! creating one of them again. Two rules make that harmless:
//! - The object with the greatest number is never deleted, not even when the log is: it says so then.
//! - A creation counts only if no greater number exists after it. A number that was deleted is always below one that
//!   exists, so an owner that creates it again finds that one, and was deposed.
//!
//! So each object that counts has the number after the one it was made from: no change is lost.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stemmadb::log_storage::{Deposed, FileId, FileState, NameChange, StoredFile, StoredLog};
use uuid::Uuid;

use super::contents::Written;
use super::{Creation, PAUSES, Requests, malformed};

/// The version of the objects of a log.
const FORMAT: u32 = 1;

const DIRECTORY: &str = "log/names";

/// How many objects stay behind the newest: one that has listed them can still read it.
pub(super) const KEPT_COUNT: u64 = 3;

/// All names of a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Names {
    format: u32,
    /// A random number, another one for each attempt to store names.
    attempt: String,
    /// What identifies the log; none if it was deleted.
    log: Option<String>,
    /// The number of the owner that has stored them.
    pub(super) epoch: u64,
    files: BTreeMap<String, NamedFile>,
    /// Files that have lost their last name, and wait for their deletion.
    unnamed: BTreeMap<String, State>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NamedFile {
    id: String,
    bytes: u64,
    state: State,
    /// Of a file that is written once: which of the attempts to write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    writing: Option<String>,
}

/// A [`FileState`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Open,
    Sealed,
    Whole,
}

impl State {
    fn of(state: FileState) -> Self {
        match state {
            FileState::Open => State::Open,
            FileState::Sealed => State::Sealed,
            FileState::Whole => State::Whole,
        }
    }

    fn stored(self) -> FileState {
        match self {
            State::Open => FileState::Open,
            State::Sealed => FileState::Sealed,
            State::Whole => FileState::Whole,
        }
    }
}

/// The names as an owner has stored them.
#[derive(Clone)]
pub(super) struct OwnedNames {
    pub(super) number: u64,
    pub(super) names: Arc<Names>,
}

impl OwnedNames {
    /// Removes a file from those that wait for their deletion.
    pub(super) fn forget(&mut self, file: FileId) {
        Arc::make_mut(&mut self.names).unnamed.remove(&id_text(file));
    }
}

impl Names {
    fn empty(epoch: u64, log: Option<String>) -> Self {
        let (attempt, files, unnamed) = Default::default();
        Names { format: FORMAT, attempt, log, epoch, files, unnamed }
    }

    /// Those of a log that was deleted.
    pub(super) fn deleted(epoch: u64) -> Self {
        Self::empty(epoch, None)
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let names: Names = serde_json::from_slice(bytes).map_err(|_| malformed("the names of a log"))?;
        match names.format {
            FORMAT => Ok(names),
            format => {
                let what = format!("the log in the bucket has format {format}: open it with a newer version of Stemma");
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
        }
    }

    /// The log with the lengths that its names have.
    ///
    /// # Errors
    /// `InvalidData` if it is malformed, or deleted.
    pub(super) fn stored(&self) -> io::Result<StoredLog> {
        let id = self.log.as_deref().and_then(|id| Uuid::parse_str(id).ok());
        let id = id.ok_or_else(|| malformed("the id of a log"))?;
        let files = self.files.iter().map(|(name, file)| {
            let (id, bytes, state) = (parse_id(&file.id)?, file.bytes, file.state.stored());
            Ok(StoredFile { name: name.clone(), id, bytes, state })
        });
        Ok(StoredLog { id, files: files.collect::<io::Result<_>>()? })
    }

    /// Files that wait for their deletion.
    pub(super) fn unnamed_files(&self) -> io::Result<Vec<StoredFile>> {
        let file = |(id, state): (&String, &State)| {
            Ok(StoredFile { name: String::new(), id: parse_id(id)?, bytes: 0, state: state.stored() })
        };
        self.unnamed.iter().map(file).collect()
    }

    /// Whether a file has a name.
    pub(super) fn has(&self, file: FileId) -> bool {
        let id = id_text(file);
        self.files.values().any(|named| named.id == id)
    }

    /// The files that are written once.
    pub(super) fn written(&self) -> impl Iterator<Item = (FileId, Written)> {
        self.files.values().filter_map(|file| {
            Some((parse_id(&file.id).ok()?, Written { writing: file.writing.clone()?, bytes: file.bytes }))
        })
    }

    /// Whether they say that the log was deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.log.is_none()
    }

    fn apply(
        &mut self,
        changes: &[NameChange],
        unnamed: &[StoredFile],
        writings: &HashMap<FileId, String>,
    ) -> io::Result<()> {
        let known: HashMap<FileId, String> = self.written().map(|(id, file)| (id, file.writing)).collect();
        for change in changes {
            match change {
                NameChange::Set(file) => {
                    let writing = writings.get(&file.id).or_else(|| known.get(&file.id)).cloned();
                    let (state, is_whole) = (State::of(file.state), file.state == FileState::Whole);
                    if is_whole && file.bytes > 0 && writing.is_none() {
                        return Err(io::Error::other(format!("{} was not written", file.name)));
                    }
                    let named = NamedFile { id: id_text(file.id), bytes: file.bytes, state, writing };
                    self.files.insert(file.name.clone(), named);
                }
                NameChange::Remove(name) => _ = self.files.remove(name),
            }
        }
        self.unnamed.extend(unnamed.iter().map(|file| (id_text(file.id), State::of(file.state))));
        Ok(())
    }
}

impl Requests {
    /// Stores names under the next number, unless there is one already or a greater one. Then they don't count.
    ///
    /// # Errors
    /// It is unknown whether they count.
    pub(super) async fn advance(&self, number: u64, names: &mut Names) -> io::Result<bool> {
        names.attempt = Uuid::new_v4().simple().to_string();
        let bytes = Bytes::from(serde_json::to_vec(&names)?);
        if let Creation::Collided(_) = self.create(&object_name(number), bytes).await? {
            return Ok(false);
        }
        let deadline = Instant::now() + self.bucket.timeout;
        loop {
            match self.list(DIRECTORY, Some(&object_name(number))).await {
                Ok(greater) => return Ok(greater.is_empty()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(PAUSES.1).await,
            }
        }
    }

    /// The newest names, with their number.
    pub(super) async fn newest(&self) -> io::Result<Option<(u64, Arc<Names>)>> {
        loop {
            let seen = self.seen.lock().clone();
            // The listing includes the names that were seen.
            let after = seen.as_ref().map(|(number, _)| object_name(number.saturating_sub(1)));
            let listed = self.list(DIRECTORY, after.as_deref()).await?;
            let number = match listed.iter().filter_map(|(name, _)| number_of(name)).max() {
                Some(number) => number,
                // Somebody has emptied the bucket.
                None if seen.is_some() => {
                    *self.seen.lock() = None;
                    continue;
                }
                None => return Ok(None),
            };
            if let Some((_, names)) = seen.filter(|(known, _)| *known == number) {
                return Ok(Some((number, names)));
            }
            let name = object_name(number);
            let stored = self.bucket.read_if_any(&name).await.map_err(|error| self.failed("read", &name, error))?;
            // It was deleted meanwhile: there are newer ones.
            let Some(stored) = stored else { continue };
            let names = Arc::new(Names::parse(&stored)?);
            *self.seen.lock() = Some((number, names.clone()));
            return Ok(Some((number, names)));
        }
    }

    /// Takes the next epoch: from now on, names can't be changed in earlier ones. Creates a log if there is none.
    pub(super) async fn advance_epoch(&self) -> io::Result<OwnedNames> {
        loop {
            let (number, mut names) = match self.newest().await? {
                Some((number, names)) => (number + 1, Names::clone(&names)),
                None => (1, Names::empty(0, None)),
            };
            names.epoch += 1;
            names.log.get_or_insert_with(|| Uuid::new_v4().simple().to_string());
            if self.advance(number, &mut names).await? {
                return Ok(OwnedNames { number, names: Arc::new(names) });
            }
        }
    }

    /// Changes names that this owner has stored.
    pub(super) async fn store_changes(
        &self,
        mut before: OwnedNames,
        changes: &[NameChange],
        unnamed: &[StoredFile],
        writings: &HashMap<FileId, String>,
    ) -> io::Result<OwnedNames> {
        let owner = before.names.clone();
        loop {
            let mut names = Names::clone(&before.names);
            names.apply(changes, unnamed, writings)?;
            let number = before.number + 1;
            if self.advance(number, &mut names).await? {
                self.delete_names(number.saturating_sub(KEPT_COUNT)).await;
                return Ok(OwnedNames { number, names: Arc::new(names) });
            }
            // An earlier change of this owner whose outcome it did not learn, or one of another owner.
            let (found, newest) = self.newest().await?.ok_or(Deposed)?;
            if newest.epoch != owner.epoch || newest.log != owner.log || found < number {
                return Err(Deposed.into());
            }
            before = OwnedNames { number: found, names: newest };
        }
    }

    /// Deletes the names with this number. That may fail: the next owner does it.
    async fn delete_names(&self, number: u64) {
        self.bucket.delete(&object_name(number)).await.ok();
    }

    /// Deletes all names that are [`KEPT_COUNT`] or more before this number.
    pub(super) async fn delete_names_before(&self, number: u64) {
        let Ok(listed) = self.list(DIRECTORY, None).await else { return };
        let is_old = |name: &String| number_of(name).is_some_and(|old| old + KEPT_COUNT <= number);
        self.delete_listed(listed.into_iter().map(|(name, _)| name).filter(is_old)).await.ok();
    }
}

fn object_name(number: u64) -> String {
    format!("{DIRECTORY}/{number:020}")
}

fn number_of(name: &str) -> Option<u64> {
    name.rsplit('/').next()?.parse().ok()
}

pub(super) fn id_text(file: FileId) -> String {
    file.0.simple().to_string()
}

pub(super) fn parse_id(text: &str) -> io::Result<FileId> {
    Uuid::parse_str(text).map(FileId).map_err(|_| malformed("the id of a file"))
}
