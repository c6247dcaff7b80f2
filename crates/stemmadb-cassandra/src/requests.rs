//! Requests to the cluster for one log, by one owner.
//!
//! Outcomes of conditional writes are never guessed: one that fails, for example by a timeout, is repeated unchanged.
//! It either applies then, which makes the first attempt inapplicable, or finds what the first attempt has written.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use scylla::serialize::SerializationError;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::Row;
use stemmadb::log_storage::{Deposed, FileId, FileState, NameChange, StoredFile, StoredLog};
use uuid::Uuid;

use crate::cluster::Shared;
use crate::membership::MemberRow;
use crate::rows::{Reassembled, part_of, rows_of};
use crate::schema::{ROW_BYTES, Statements};

/// A group of at most this many bytes is written together with the new length, in one conditional batch; the rows of a
/// longer one are written first.
const BATCH_BYTES: usize = 32 << 10;

/// How many rows are written at the same time.
const CONCURRENT_ROWS: usize = 16;

/// How long a failed request waits before it is repeated, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// The name, in the table of names, under which files wait for their deletion.
const REMOVED: &str = "removed/";

/// The epochs that wrote a file, and where each began.
pub(crate) type Starts = BTreeMap<i64, i64>;

/// The requests of one owner of a log.
pub(crate) struct Requests {
    cluster: Arc<Shared>,
    log: String,
    pub(crate) epoch: i64,
}

/// The state of a file that is appended to.
pub(crate) struct SegmentState {
    epoch: i64,
    pub(crate) length: i64,
    pub(crate) starts: Starts,
}

impl Requests {
    pub(crate) fn new(cluster: &Arc<Shared>, log: &str, epoch: i64) -> Self {
        Requests { cluster: cluster.clone(), log: log.to_owned(), epoch }
    }

    fn statements(&self) -> &Statements {
        &self.cluster.statements
    }

    /// Takes the next epoch: from now on, names can't be changed in earlier ones. Returns the id of the log as well.
    pub(crate) async fn advance_epoch(&self) -> io::Result<(Uuid, i64)> {
        let statements = self.statements();
        loop {
            let found = self.read(&statements.find_log, (&self.log,)).await?;
            let known = found.maybe_first_row::<(Option<Uuid>, Option<i64>)>().map_err(io::Error::other)?;
            // If an attempt whose outcome is unknown was applied, this takes one epoch more.
            let (id, epoch, is_applied) = match known {
                Some((Some(id), Some(known))) => {
                    let values = (known + 1, &self.log, known);
                    (id, known + 1, self.try_conditionally(&statements.change_epoch, values).await?)
                }
                _ => {
                    let id = Uuid::new_v4();
                    (id, 1, self.try_conditionally(&statements.create_log, (&self.log, id, 1_i64)).await?)
                }
            };
            if is_applied {
                return Ok((id, epoch));
            }
        }
    }

    /// The names of all logs, in order.
    pub(crate) async fn logs(&self) -> io::Result<Vec<String>> {
        let found = self.read(&self.statements().logs, ()).await?;
        let names = found.rows::<(String,)>().map_err(io::Error::other)?;
        let mut names = names.map(|row| Ok(row.map_err(io::Error::other)?.0)).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes the log: its files, then their names. It is of this owner's epoch, so no earlier one can write.
    pub(crate) async fn delete_log(&self, log: &StoredLog) -> io::Result<()> {
        let names: Vec<_> = log.files.iter().map(|file| NameChange::Remove(file.name.clone())).collect();
        self.change_names(&names, &log.files).await?;
        for file in &log.files {
            self.delete(file).await?;
        }
        self.write(&self.statements().delete_log, (&self.log,)).await
    }

    /// Reads the names, and takes over the files that may still be appended to.
    pub(crate) async fn fence(&self, id: Uuid) -> io::Result<(StoredLog, HashMap<FileId, Arc<Starts>>)> {
        let (mut files, mut fenced) = (Vec::new(), HashMap::new());
        for mut file in self.named_files().await? {
            if file.name.starts_with(REMOVED) {
                self.delete(&file).await?;
                continue;
            }
            if file.state == FileState::Open {
                let state = self.fence_segment(file.id).await?;
                file.bytes = state.length as u64;
                fenced.insert(file.id, Arc::new(state.starts));
            }
            files.push(file);
        }
        Ok((StoredLog { id, files }, fenced))
    }

    /// Reads the names, and the lengths of the files that are appended to, as they are after everything that was
    /// acknowledged before.
    pub(crate) async fn look(&self) -> io::Result<(StoredLog, HashMap<FileId, Arc<Starts>>)> {
        // A serial read: changes of names that are under way are completed, or not applied later.
        let found = self.read(&self.statements().find_log, (&self.log,)).await?;
        let known = found.maybe_first_row::<(Option<Uuid>, Option<i64>)>().map_err(io::Error::other)?;
        let Some((Some(id), _)) = known else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the cluster has no such log"));
        };
        let (mut files, mut starts) = (Vec::new(), HashMap::new());
        for mut file in self.named_files().await?.into_iter().filter(|file| !file.name.starts_with(REMOVED)) {
            if file.state == FileState::Open {
                let state = self.segment_state(file.id).await?;
                file.bytes = state.as_ref().map_or(0, |state| state.length as u64);
                starts.extend(state.map(|state| (file.id, Arc::new(state.starts))));
            }
            files.push(file);
        }
        Ok((StoredLog { id, files }, starts))
    }

    /// The files that have names, also those that wait for their deletion. Without the lengths of open ones.
    async fn named_files(&self) -> io::Result<Vec<StoredFile>> {
        let listed = self.read(&self.statements().list_names, (&self.log,)).await?;
        let mut files = Vec::new();
        for row in listed.rows::<(Option<String>, Option<Uuid>, Option<i64>, Option<i8>)>().map_err(io::Error::other)? {
            // A log without names has one row, with its id.
            let (Some(name), Some(file), Some(bytes), Some(state)) = row.map_err(io::Error::other)? else { continue };
            files.push(StoredFile { name, id: FileId(file), bytes: bytes as u64, state: state_of(state)? });
        }
        Ok(files)
    }

    /// Makes appends of earlier epochs to a file impossible.
    async fn fence_segment(&self, file: FileId) -> io::Result<SegmentState> {
        let statements = self.statements();
        loop {
            let known = self.segment_state(file).await?;
            let length = known.as_ref().map_or(0, |state| state.length);
            let start = HashMap::from([(self.epoch, length)]);
            let is_fenced = match &known {
                Some(state) if state.epoch == self.epoch => true,
                Some(state) if state.epoch > self.epoch => return Err(Deposed.into()),
                Some(state) => {
                    let values = (self.epoch, start, file.0, state.epoch, length);
                    self.try_conditionally(&statements.fence_segment, values).await?
                }
                None => self.try_conditionally(&statements.begin_segment, (self.epoch, length, start, file.0)).await?,
            };
            if is_fenced {
                let mut starts = known.map(|state| state.starts).unwrap_or_default();
                starts.insert(self.epoch, length);
                return Ok(SegmentState { epoch: self.epoch, length, starts });
            }
        }
    }

    pub(crate) async fn segment_state(&self, file: FileId) -> io::Result<Option<SegmentState>> {
        let found = self.read(&self.statements().segment_state, (file.0,)).await?;
        let row = found.maybe_first_row::<(Option<i64>, Option<i64>, Option<HashMap<i64, i64>>)>();
        let state = row.map_err(io::Error::other)?.and_then(|(epoch, length, starts)| {
            let starts = starts.unwrap_or_default().into_iter().collect();
            Some(SegmentState { epoch: epoch?, length: length?, starts })
        });
        Ok(state)
    }

    /// Appends to a file that has `offset` bytes.
    pub(crate) async fn append(&self, file: FileId, offset: i64, bytes: &[u8], is_new: bool) -> io::Result<()> {
        let length = offset + bytes.len() as i64;
        let rows = rows_of(offset as u64, bytes).map(|(at, row)| (file.0, at as i64, self.epoch, row.to_vec()));
        let condition = match is_new {
            true => (
                &self.statements().begin_segment,
                Values::Begin((self.epoch, length, HashMap::from([(self.epoch, 0)]), file.0)),
            ),
            false => (&self.statements().advance, Values::Advance((length, file.0, self.epoch, offset))),
        };
        let mut batch = vec![condition];
        let put_frames = &self.statements().put_frames;
        if bytes.len() > BATCH_BYTES {
            self.write_all(put_frames, rows.collect()).await?;
        } else {
            batch.extend(rows.map(|row| (put_frames, Values::Frames(row))));
        }
        if self.try_batch(batch).await? {
            return Ok(());
        }
        match self.segment_state(file).await? {
            Some(state) if state.epoch != self.epoch => Err(Deposed.into()),
            // An earlier attempt was applied.
            Some(state) if state.length == length => Ok(()),
            Some(SegmentState { length, .. }) => {
                Err(io::Error::other(format!("an append at offset {offset}, but the file has {length} bytes")))
            }
            None => Err(io::Error::other("an append to a file that does not exist")),
        }
    }

    /// Writes part of a file that is not appended to.
    pub(crate) async fn write_content(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let row = |(at, row): (u64, &[u8])| (file.0, part_of(at), at as i64, row.to_vec());
        self.write_all(&self.statements().put_content, rows_of(offset, bytes).map(row).collect()).await
    }

    pub(crate) async fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        let set = |name: String, file: &StoredFile| {
            let values = (self.log.clone(), name, file.id.0, file.bytes as i64, number_of(file.state));
            (&self.statements().set_name, Values::Set(values))
        };
        let condition = Values::Epoch((self.epoch, self.log.clone(), self.epoch));
        let mut batch = vec![(&self.statements().change_epoch, condition)];
        batch.extend(changes.iter().map(|change| match change {
            NameChange::Set(file) => set(file.name.clone(), file),
            NameChange::Remove(name) => {
                (&self.statements().remove_name, Values::Remove((self.log.clone(), name.clone())))
            }
        }));
        batch.extend(unnamed.iter().map(|file| set(removed_name(file.id), file)));
        match self.try_batch(batch).await? {
            true => Ok(()),
            false => Err(Deposed.into()),
        }
    }

    pub(crate) async fn delete(&self, file: &StoredFile) -> io::Result<()> {
        let statements = self.statements();
        match file.state {
            FileState::Whole => {
                for part in 0..=part_of(file.bytes) {
                    self.write(&statements.delete_content, (file.id.0, part)).await?;
                }
            }
            FileState::Open | FileState::Sealed => self.write(&statements.delete_segment, (file.id.0,)).await?,
        }
        self.write(&statements.remove_name, (&self.log, removed_name(file.id))).await
    }

    pub(crate) async fn read_frames(
        &self,
        file: FileId,
        offset: u64,
        length: u64,
        starts: &Starts,
    ) -> io::Result<Vec<u8>> {
        let values = (file.0, offset as i64 - ROW_BYTES as i64, (offset + length) as i64);
        let found = self.read(&self.statements().read_frames, values).await?;
        let mut out = Reassembled::new(offset, length);
        for row in found.rows::<(i64, i64, &[u8])>().map_err(io::Error::other)? {
            let (at, writer, bytes) = row.map_err(io::Error::other)?;
            // Rows beyond the length at which the next owner took over were never part of the file.
            let next = starts.range(writer + 1..).next();
            if next.is_none_or(|(_, &start)| at < start) {
                out.add(at as u64, bytes);
            }
        }
        Ok(out.finish())
    }

    pub(crate) async fn read_content(&self, file: FileId, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut out = Reassembled::new(offset, length);
        let first = offset.saturating_sub(ROW_BYTES - 1);
        for part in part_of(first)..=part_of(offset + length) {
            let values = (file.0, part, offset as i64 - ROW_BYTES as i64, (offset + length) as i64);
            let found = self.read(&self.statements().read_content, values).await?;
            for row in found.rows::<(i64, &[u8])>().map_err(io::Error::other)? {
                let (at, bytes) = row.map_err(io::Error::other)?;
                out.add(at as u64, bytes);
            }
        }
        Ok(out.finish())
    }

    /// Stores that a member is alive.
    pub(crate) async fn beat(&self, member: Uuid, address: &str, beat: i64, lease: Duration) -> io::Result<()> {
        self.write(&self.statements().beat, (member, address, beat, lease.as_millis() as i64)).await
    }

    pub(crate) async fn members(&self) -> io::Result<Vec<MemberRow>> {
        let found = self.read(&self.statements().members, ()).await?;
        let mut members = Vec::new();
        for row in found.rows::<(Uuid, Option<String>, Option<i64>, Option<i64>)>().map_err(io::Error::other)? {
            let (id, Some(address), Some(beat), Some(lease_ms)) = row.map_err(io::Error::other)? else { continue };
            members.push(MemberRow { id, address, beat, lease: Duration::from_millis(lease_ms.max(0) as u64) });
        }
        Ok(members)
    }

    pub(crate) async fn forget_member(&self, member: Uuid) -> io::Result<()> {
        self.write(&self.statements().forget_member, (member,)).await
    }

    /// The member that owns a database, and its address.
    pub(crate) async fn owner(&self, database: &str) -> io::Result<Option<(Uuid, String)>> {
        let found = self.read(&self.statements().owner, (database,)).await?;
        let row = found.maybe_first_row::<(Option<Uuid>, Option<String>)>().map_err(io::Error::other)?;
        Ok(row.and_then(|(member, address)| member.zip(address)))
    }

    /// Makes a member the owner of a database, if `before` still is. The outcome has to be read.
    pub(crate) async fn replace_owner(
        &self,
        database: &str,
        before: Option<Uuid>,
        member: Uuid,
        address: &str,
    ) -> io::Result<()> {
        let statements = self.statements();
        match before {
            Some(before) => {
                let values = (member, address, database, before);
                self.try_conditionally(&statements.next_owner, values).await.map(drop)
            }
            None => self.try_conditionally(&statements.first_owner, (database, member, address)).await.map(drop),
        }
    }

    /// Takes a database from a member, if it still owns it.
    pub(crate) async fn release(&self, database: &str, member: Uuid) -> io::Result<()> {
        self.try_conditionally(&self.statements().release, (database, member)).await.map(drop)
    }

    /// Executes a read, repeatedly if it fails.
    async fn read(&self, statement: &PreparedStatement, values: impl SerializeRow) -> io::Result<QueryRowsResult> {
        let result = self.repeat(|| self.cluster.session.execute_unpaged(statement, &values)).await?;
        result.into_rows_result().map_err(io::Error::other)
    }

    /// Executes an unconditional write, repeatedly if it fails: it may be executed twice.
    async fn write(&self, statement: &PreparedStatement, values: impl SerializeRow) -> io::Result<()> {
        self.repeat(|| self.cluster.session.execute_unpaged(statement, &values)).await.map(drop)
    }

    /// Executes an unconditional write with each of these values.
    async fn write_all<R: SerializeRow>(&self, statement: &PreparedStatement, rows: Vec<R>) -> io::Result<()> {
        let writes = rows.into_iter().map(|row| self.write(statement, row));
        stream::iter(writes).buffer_unordered(CONCURRENT_ROWS).try_collect().await
    }

    /// Executes a conditional write, repeatedly if it fails; returns whether the last attempt was applied. An earlier
    /// one may have been.
    async fn try_conditionally(&self, statement: &PreparedStatement, values: impl SerializeRow) -> io::Result<bool> {
        is_applied(self.repeat(|| self.cluster.session.execute_unpaged(statement, &values)).await?)
    }

    /// Like [`Requests::try_conditionally`], with several writes in one partition: all of them or none. The first has
    /// the condition.
    async fn try_batch(&self, writes: Vec<(&PreparedStatement, Values)>) -> io::Result<bool> {
        let (statements, values): (Vec<_>, Vec<_>) = writes.into_iter().unzip();
        let statements = statements.into_iter().map(|statement| statement.clone().into()).collect();
        let batch = Batch::new_with_statements(BatchType::Unlogged, statements);
        is_applied(self.repeat(|| self.cluster.session.batch(&batch, &values)).await?)
    }

    /// Repeats a request that fails, until it succeeds, or fails in a way that a repetition does not change, or too
    /// much time has passed.
    async fn repeat<F>(&self, request: impl Fn() -> F) -> io::Result<QueryResult>
    where
        F: Future<Output = Result<QueryResult, ExecutionError>>,
    {
        let deadline = Instant::now() + self.cluster.patience;
        let mut pause = PAUSES.0;
        loop {
            match request().await {
                Ok(result) => return Ok(result),
                Err(error) if is_permanent(&error) => return Err(io::Error::other(error)),
                Err(error) if Instant::now() > deadline => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, error));
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// The values of a statement of a batch.
enum Values {
    Epoch((i64, String, i64)),
    Set((String, String, Uuid, i64, i8)),
    Remove((String, String)),
    Begin((i64, i64, HashMap<i64, i64>, Uuid)),
    Advance((i64, Uuid, i64, i64)),
    Frames((Uuid, i64, i64, Vec<u8>)),
}

impl SerializeRow for Values {
    fn serialize(
        &self,
        context: &RowSerializationContext<'_>,
        writer: &mut RowWriter,
    ) -> Result<(), SerializationError> {
        match self {
            Values::Epoch(values) => values.serialize(context, writer),
            Values::Set(values) => values.serialize(context, writer),
            Values::Remove(values) => values.serialize(context, writer),
            Values::Begin(values) => values.serialize(context, writer),
            Values::Advance(values) => values.serialize(context, writer),
            Values::Frames(values) => values.serialize(context, writer),
        }
    }

    fn is_empty(&self) -> bool {
        false
    }
}

/// Whether a conditional write was applied: the first column of its result.
fn is_applied(result: QueryResult) -> io::Result<bool> {
    let result = result.into_rows_result().map_err(io::Error::other)?;
    let row: Row = result.first_row().map_err(io::Error::other)?;
    let applied = row.columns.first().and_then(|column| column.as_ref()?.as_boolean());
    applied.ok_or_else(|| io::Error::other("the cluster does not say whether a conditional write was applied"))
}

/// Whether a repetition would fail, too.
fn is_permanent(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_) | ExecutionError::PrepareError(_) => true,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => matches!(
            error,
            DbError::SyntaxError
                | DbError::Invalid
                | DbError::Unauthorized
                | DbError::AuthenticationError
                | DbError::ConfigError
        ),
        ExecutionError::LastAttemptError(RequestAttemptError::SerializationError(_)) => true,
        _ => false,
    }
}

/// The name of a file that waits for its deletion.
fn removed_name(file: FileId) -> String {
    format!("{REMOVED}{}", file.0)
}

fn number_of(state: FileState) -> i8 {
    match state {
        FileState::Open => 0,
        FileState::Sealed => 1,
        FileState::Whole => 2,
    }
}

fn state_of(number: i8) -> io::Result<FileState> {
    match number {
        0 => Ok(FileState::Open),
        1 => Ok(FileState::Sealed),
        2 => Ok(FileState::Whole),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a file has a state that this version does not know")),
    }
}
