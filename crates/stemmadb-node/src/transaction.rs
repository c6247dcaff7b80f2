//! Transactions: a thread runs an optimistic transaction of the library, and the methods of JavaScript's object are
//! jobs that it does, since the function of the program is asynchronous.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use stemmadb::{Aggregation, Attempt, Document, Edit, Error, Object, Query, Result, Revision, Value};
use stemmadb_client::{AnyDatabase, AnyFind, RemoteAttempt};

use crate::reader::ReadyFind;

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

/// A transaction. It is rolled back if it is dropped before it ends.
pub(crate) struct OpenTransaction {
    jobs: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

fn ended() -> Error {
    Error::invalid("the transaction has ended").with_hint("await every call within the transaction's function")
}

/// The error by which an attempt ends without a commit.
fn rolled_back() -> Error {
    Error::invalid("the transaction was rolled back")
}

fn changed() -> Error {
    Error::conflict("another write changed what this transaction read, so nothing of it was written")
        .with_hint("run it again")
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

fn run(database: &AnyDatabase, jobs: &Receiver<Message>) -> Result<()> {
    let mut attempt_count = 0;
    // The library would run it again; the function that did the jobs of the first attempt is in JavaScript.
    let mut first = || {
        attempt_count += 1;
        if attempt_count > 1 { Err(changed()) } else { Ok(()) }
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
    /// Starts the thread.
    pub(crate) fn begin(database: AnyDatabase) -> Result<Self> {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("stemma-transaction".to_owned());
        let thread = thread.spawn(move || run(&database, &receiver)).map_err(Error::no_thread)?;
        Ok(OpenTransaction { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
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
            let jobs = self.jobs.lock().map_err(|_| ended())?;
            let jobs = jobs.as_ref().ok_or_else(ended)?;
            if jobs.send(Message::Run(job)).is_err() {
                return Err(self.early_end());
            }
        }
        answered.recv().unwrap_or_else(|_| Err(self.early_end()))
    }

    /// Why the thread ended before the transaction did, such as since the database was closed.
    fn early_end(&self) -> Error {
        self.join().err().unwrap_or_else(ended)
    }

    fn join(&self) -> Result<()> {
        let Ok(mut thread) = self.thread.lock() else { return Err(ended()) };
        let Some(thread) = thread.take() else { return Err(ended()) };
        thread.join().unwrap_or_else(|_| Err(Error::internal("the thread of a transaction failed")))
    }

    /// Ends the transaction.
    ///
    /// # Errors
    /// `Conflict` if another write changed what it read, and the errors of a write.
    pub(crate) fn end(&self, commits: bool) -> Result<()> {
        let jobs = self.jobs.lock().map_err(|_| ended())?.take().ok_or_else(ended)?;
        if commits {
            // If the thread ended already, its result says why.
            jobs.send(Message::Commit).ok();
        }
        drop(jobs);
        let result = self.join();
        if commits { result } else { Ok(()) }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.get(&id),
            AnyAttempt::Remote(attempt) => attempt.get(&id),
        })
    }

    pub(crate) fn find(&self, query: Query) -> Result<ReadyFind> {
        self.ask(move |attempt| {
            Ok(match attempt {
                AnyAttempt::Embedded(attempt) => ReadyFind::Find(Box::new(AnyFind::Embedded(attempt.find(query)?))),
                AnyAttempt::Remote(attempt) => ReadyFind::Rows(attempt.find(query)?),
            })
        })
    }

    pub(crate) fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        let aggregation = Aggregation::parse(aggregation)?;
        self.ask(move |attempt| match attempt {
            AnyAttempt::Embedded(attempt) => attempt.aggregate(&aggregation),
            AnyAttempt::Remote(_) => Err(Error::invalid("a transaction of a remote database can't aggregate")),
        })
    }

    /// Applies edits, each of which may fail. A remote database assigns revisions at the commit: there are none yet.
    pub(crate) fn edits(&self, edits: Vec<Edit>) -> Result<Vec<Result<Option<Revision>>>> {
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
