//! Transactions whose steps are calls: a thread runs an optimistic transaction of the library, and the calls are jobs
//! that it does.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use stemmadb::{Aggregation, Attempt, Document, Edit, Error, Object, Query, Result, Revision, Value};

use super::ReadyFind;
use crate::{AnyDatabase, AnyFind, RemoteAttempt};

/// The attempt of either database.
enum AnyAttempt<'a, 'b> {
    Embedded(&'a mut Attempt<'b>),
    Remote(&'a mut RemoteAttempt),
}

type Job = Box<dyn for<'a, 'b> FnOnce(AnyAttempt<'a, 'b>) + Send>;

/// A request to the transaction's thread.
enum Message {
    Run(Job),
    Commit,
}

/// The hints of a transaction's errors, which say what to do in the words of the language.
#[derive(Debug, Clone, Copy)]
pub struct TransactionHints {
    /// For a call after the end of the transaction.
    pub ended: &'static str,
    /// If another write changed what the transaction read.
    pub changed: &'static str,
}

impl TransactionHints {
    /// The error of a call after the end of the transaction.
    pub fn ended(&self) -> Error {
        Error::invalid("the transaction has ended").with_hint(self.ended)
    }

    fn changed(&self) -> Error {
        Error::conflict("another write changed what this transaction read, so nothing of it was written")
            .with_hint(self.changed)
    }
}

/// A transaction that has not ended yet. It is rolled back if it is dropped.
///
/// Any thread may call it; the calls are made one after the other. Waits for the database block the calling thread.
pub struct OpenTransaction {
    hints: TransactionHints,
    jobs: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

/// The error by which an attempt ends without a commit.
fn rolled_back() -> Error {
    Error::invalid("the transaction was rolled back")
}

/// Does jobs until the transaction ends. `Ok` commits.
fn serve(jobs: &Receiver<Message>, mut attempt: impl FnMut(Job)) -> Result<()> {
    loop {
        match jobs.recv() {
            Ok(Message::Run(job)) => attempt(job),
            Ok(Message::Commit) => return Ok(()),
            Err(_) => return Err(rolled_back()),
        }
    }
}

fn run(database: &AnyDatabase, jobs: &Receiver<Message>, hints: TransactionHints) -> Result<()> {
    let mut attempt_count = 0;
    // The library would run it again, but those who made the calls of the first attempt would not.
    let mut first = || {
        attempt_count += 1;
        if attempt_count > 1 { Err(hints.changed()) } else { Ok(()) }
    };
    match database {
        AnyDatabase::Embedded(database) => database.optimistic(|attempt| {
            first()?;
            serve(jobs, |job| job(AnyAttempt::Embedded(attempt)))
        }),
        AnyDatabase::Remote(database) => database.optimistic(|attempt| {
            first()?;
            serve(jobs, |job| job(AnyAttempt::Remote(attempt)))
        }),
    }
}

impl OpenTransaction {
    /// Begins a transaction, and starts its thread.
    ///
    /// # Errors
    /// `Unavailable` if there can be no further thread.
    pub fn begin(database: AnyDatabase, hints: TransactionHints) -> Result<Self> {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("stemma-transaction".to_owned());
        let thread = thread.spawn(move || run(&database, &receiver, hints)).map_err(Error::no_thread)?;
        Ok(OpenTransaction { hints, jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread do `work`; returns its result.
    fn ask<T: Send + 'static>(
        &self,
        work: impl for<'a, 'b> FnOnce(AnyAttempt<'a, 'b>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered): (SyncSender<Result<T>>, _) = sync_channel(1);
        let job: Job = Box::new(move |attempt| {
            // Nobody waits if the asking thread ended.
            answer.send(work(attempt)).ok();
        });
        {
            let jobs = self.jobs.lock().map_err(|_| self.hints.ended())?;
            let jobs = jobs.as_ref().ok_or_else(|| self.hints.ended())?;
            if jobs.send(Message::Run(job)).is_err() {
                return Err(self.early_end());
            }
        }
        answered.recv().unwrap_or_else(|_| Err(self.early_end()))
    }

    /// Why the thread ended before the transaction did, such as since the database was closed.
    fn early_end(&self) -> Error {
        self.join().err().unwrap_or_else(|| self.hints.ended())
    }

    fn join(&self) -> Result<()> {
        let Ok(mut thread) = self.thread.lock() else { return Err(self.hints.ended()) };
        let Some(thread) = thread.take() else { return Err(self.hints.ended()) };
        thread.join().unwrap_or_else(|_| Err(Error::internal("the thread of a transaction failed")))
    }

    /// Ends the transaction: commits it, or rolls it back.
    ///
    /// # Errors
    /// `Conflict` if another write changed what it read, and the errors of a write.
    pub fn end(&self, commits: bool) -> Result<()> {
        let ended = || self.hints.ended();
        let jobs = self.jobs.lock().map_err(|_| ended())?.take().ok_or_else(ended)?;
        if commits {
            // If the thread ended already, its result says why.
            jobs.send(Message::Commit).ok();
        }
        drop(jobs);
        let result = self.join();
        if commits { result } else { Ok(()) }
    }

    /// Reads a document, with what the transaction wrote if the database is embedded.
    ///
    /// # Errors
    /// `Invalid` after the end; those of the database.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.get(&id),
            AnyAttempt::Remote(attempt) => attempt.get(&id),
        })
    }

    /// Prepares a query.
    ///
    /// # Errors
    /// `Invalid` after the end; those of the database.
    pub fn find(&self, query: Query) -> Result<ReadyFind> {
        self.ask(move |attempt| {
            Ok(match attempt {
                AnyAttempt::Embedded(attempt) => ReadyFind::Find(Box::new(AnyFind::Embedded(attempt.find(query)?))),
                AnyAttempt::Remote(attempt) => ReadyFind::Rows(attempt.find(query)?),
            })
        })
    }

    /// Computes the figures of an aggregation, as [`Aggregation::parse`] reads it.
    ///
    /// # Errors
    /// `Invalid` after the end, if the aggregation is malformed, and for a remote database.
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        let aggregation = Aggregation::parse(aggregation)?;
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.aggregate(&aggregation),
            AnyAttempt::Remote(_) => Err(Error::invalid("a transaction of a remote database can't aggregate")),
        })
    }

    /// Applies an edit. A remote database assigns the revision at the commit: there is none yet.
    ///
    /// # Errors
    /// `Invalid` after the end; those of the edit.
    pub fn edit(&self, edit: Edit) -> Result<Option<Revision>> {
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.edit(edit).map(Some),
            AnyAttempt::Remote(attempt) => attempt.edit(edit).map(|()| None),
        })
    }

    /// Applies edits, each of which may fail, as [`OpenTransaction::edit`] does.
    ///
    /// # Errors
    /// `Invalid` after the end.
    pub fn edits(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
        self.ask(move |attempt| {
            Ok(match attempt {
                AnyAttempt::Embedded(attempt) => edits.into_iter().map(|edit| attempt.edit(edit).map(Some)).collect(),
                AnyAttempt::Remote(attempt) => {
                    edits.into_iter().map(|edit| attempt.edit(edit).map(|()| None)).collect()
                }
            })
        })
    }
}

impl std::fmt::Debug for OpenTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTransaction").finish_non_exhaustive()
    }
}
