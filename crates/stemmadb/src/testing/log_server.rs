//! Logs that another process has: the log storage of test suites that don't link the store.
//!
//! A call is a JSON object and bytes, each after its length, and so is its result. A connection has one call at a time;
//! callers that find none that is idle open another one.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::memory_cluster::MakeLog;
use crate::vfs::{Deposed, FileId, FileState, LogStorage, NameChange, StoredFile, StoredLog};

/// A call of a log storage. `log` is the number that opening it returned.
#[derive(Serialize, Deserialize)]
enum Call {
    Open { id: Option<String> },
    Close { log: u64 },
    TakeOver { log: u64 },
    Look { log: u64 },
    Length { log: u64, file: String },
    Append { log: u64, file: String, offset: u64 },
    Write { log: u64, file: String, offset: u64 },
    Read { log: u64, file: String, offset: u64, length: usize },
    ChangeNames { log: u64, changes: Vec<Change>, unnamed: Vec<File> },
    Delete { log: u64, file: File },
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Number(Option<u64>),
    Log { id: String, files: Vec<File> },
    Done,
    Deposed,
    NotFound(String),
    TimedOut(String),
    Failed(String),
}

/// A [`NameChange`].
#[derive(Serialize, Deserialize)]
enum Change {
    Set(File),
    Remove(String),
}

/// A [`StoredFile`].
#[derive(Serialize, Deserialize)]
struct File {
    name: String,
    id: String,
    bytes: u64,
    state: u8,
}

const STATES: [FileState; 3] = [FileState::Open, FileState::Sealed, FileState::Whole];

impl File {
    fn of(file: &StoredFile) -> Self {
        let state = STATES.iter().position(|state| *state == file.state).unwrap_or_default() as u8;
        File { name: file.name.clone(), id: file.id.0.to_string(), bytes: file.bytes, state }
    }

    fn stored(self) -> io::Result<StoredFile> {
        let File { name, id, bytes, state } = self;
        let state = *STATES.get(usize::from(state)).ok_or_else(malformed)?;
        Ok(StoredFile { name, id: file_id(&id)?, bytes, state })
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a call to the logs of tests is malformed")
}

fn uuid(text: &str) -> io::Result<Uuid> {
    Uuid::parse_str(text).map_err(|_| malformed())
}

fn file_id(text: &str) -> io::Result<FileId> {
    uuid(text).map(FileId)
}

fn send(stream: &mut TcpStream, head: &impl Serialize, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let lengths = [(head.len() as u32).to_le_bytes(), (body.len() as u32).to_le_bytes()].concat();
    stream.write_all(&[&*lengths, &*head, body].concat())
}

fn receive<T: for<'d> Deserialize<'d>>(stream: &mut TcpStream) -> io::Result<(T, Vec<u8>)> {
    let mut part = |bytes: usize| {
        let mut part = vec![0; bytes];
        stream.read_exact(&mut part).map(|()| part)
    };
    let lengths = part(8)?;
    let length = |at: usize| lengths[at..at + 4].iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (head, body) = (part(length(0))?, part(length(4))?);
    Ok((serde_json::from_slice(&head)?, body))
}

/// Serves the logs that `make` makes to test suites in other processes, which have the listener's address in
/// [`LOG_STORAGE_VARIABLE`](super::LOG_STORAGE_VARIABLE), as long as this process runs.
pub fn serve_logs(listener: TcpListener, make: impl Fn(&str) -> Arc<dyn LogStorage> + Send + Sync + 'static) {
    let server = Arc::new(LogServer { make: Box::new(make), served: Mutex::default() });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = server.clone();
            // It ends when the client does.
            std::thread::spawn(move || server.serve(stream));
        }
    });
}

struct LogServer {
    make: Box<MakeLog>,
    served: Mutex<Served>,
}

#[derive(Default)]
struct Served {
    /// The names of logs, by their ids.
    names: HashMap<Uuid, String>,
    /// The logs that clients have open, by their numbers.
    opened: HashMap<u64, (String, Arc<dyn LogStorage>)>,
    last_number: u64,
}

impl LogServer {
    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let (call, mut body) = receive(&mut stream)?;
            let reply = self.reply(call, &mut body).unwrap_or_else(|error| {
                body.clear();
                let is_deposed = error.get_ref().is_some_and(|cause| cause.is::<Deposed>());
                match error.kind() {
                    _ if is_deposed => Reply::Deposed,
                    ErrorKind::NotFound => Reply::NotFound(error.to_string()),
                    ErrorKind::TimedOut => Reply::TimedOut(error.to_string()),
                    _ => Reply::Failed(error.to_string()),
                }
            });
            send(&mut stream, &reply, &body)?;
        }
    }

    /// Executes a call; `body` becomes that of the reply.
    fn reply(&self, call: Call, body: &mut Vec<u8>) -> io::Result<Reply> {
        let bytes = std::mem::take(body);
        let log = |number: u64| Ok::<_, io::Error>(self.served().opened.get(&number).ok_or_else(malformed)?.1.clone());
        let done = |()| Reply::Done;
        match call {
            Call::Open { id } => self.open(id.as_deref()).map(|number| Reply::Number(Some(number))),
            Call::Close { log } => {
                self.served().opened.remove(&log);
                Ok(Reply::Done)
            }
            Call::TakeOver { log: number } => {
                let found = log(number)?.take_over()?;
                let mut served = self.served();
                let name = served.opened.get(&number).ok_or_else(malformed)?.0.clone();
                served.names.insert(found.id, name);
                Ok(reply_with(&found))
            }
            Call::Look { log: number } => Ok(reply_with(&log(number)?.look()?)),
            Call::Length { log: number, file } => log(number)?.length(file_id(&file)?).map(Reply::Number),
            Call::Append { log: number, file, offset } => {
                log(number)?.append(file_id(&file)?, offset, &bytes).map(done)
            }
            Call::Write { log: number, file, offset } => log(number)?.write(file_id(&file)?, offset, &bytes).map(done),
            Call::Read { log: number, file, offset, length } => {
                body.resize(length, 0);
                let count = log(number)?.read(file_id(&file)?, offset, body)?;
                body.truncate(count);
                Ok(Reply::Done)
            }
            Call::ChangeNames { log: number, changes, unnamed } => {
                let change = |change| match change {
                    Change::Set(file) => file.stored().map(NameChange::Set),
                    Change::Remove(name) => Ok(NameChange::Remove(name)),
                };
                let changes = changes.into_iter().map(change).collect::<io::Result<Vec<_>>>()?;
                let unnamed = unnamed.into_iter().map(File::stored).collect::<io::Result<Vec<_>>>()?;
                log(number)?.change_names(&changes, &unnamed).map(done)
            }
            Call::Delete { log: number, file } => log(number)?.delete(&file.stored()?).map(done),
        }
    }

    /// Opens the log with this id, or a new one.
    fn open(&self, id: Option<&str>) -> io::Result<u64> {
        let id = id.map(uuid).transpose()?;
        let mut served = self.served();
        let known = id.and_then(|id| served.names.get(&id).cloned());
        let name = known.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        served.last_number += 1;
        let number = served.last_number;
        served.opened.insert(number, (name.clone(), (self.make)(&name)));
        Ok(number)
    }
}

fn reply_with(log: &StoredLog) -> Reply {
    Reply::Log { id: log.id.to_string(), files: log.files.iter().map(File::of).collect() }
}

/// The client of [`serve_logs`].
pub(super) struct LogClient {
    address: String,
    idle: Mutex<Vec<TcpStream>>,
}

impl LogClient {
    pub(super) fn new(address: &str) -> Arc<Self> {
        Arc::new(LogClient { address: address.to_owned(), idle: Mutex::default() })
    }

    /// Opens the log with this id, or a new one.
    pub(super) fn open(self: &Arc<Self>, id: Option<Uuid>) -> io::Result<Arc<dyn LogStorage>> {
        let (reply, _) = self.call(&Call::Open { id: id.map(|id| id.to_string()) }, &[])?;
        let Reply::Number(Some(number)) = reply else { return Err(malformed()) };
        Ok(Arc::new(ServedLog { client: self.clone(), number }))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, call: &Call, body: &[u8]) -> io::Result<(Reply, Vec<u8>)> {
        let idle = self.idle().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(&self.address)?,
        };
        stream.set_nodelay(true)?;
        send(&mut stream, call, body)?;
        let received = receive(&mut stream)?;
        self.idle().push(stream);
        match received {
            (Reply::Deposed, _) => Err(Deposed.into()),
            (Reply::NotFound(message), _) => Err(io::Error::new(ErrorKind::NotFound, message)),
            (Reply::TimedOut(message), _) => Err(io::Error::new(ErrorKind::TimedOut, message)),
            (Reply::Failed(message), _) => Err(io::Error::other(message)),
            received => Ok(received),
        }
    }
}

/// A log of another process.
struct ServedLog {
    client: Arc<LogClient>,
    number: u64,
}

impl ServedLog {
    fn found(&self, call: &Call) -> io::Result<StoredLog> {
        let (Reply::Log { id, files }, _) = self.client.call(call, &[])? else { return Err(malformed()) };
        Ok(StoredLog { id: uuid(&id)?, files: files.into_iter().map(File::stored).collect::<io::Result<_>>()? })
    }

    fn change(&self, call: &Call, body: &[u8]) -> io::Result<()> {
        self.client.call(call, body).map(drop)
    }
}

impl LogStorage for ServedLog {
    fn take_over(&self) -> io::Result<StoredLog> {
        self.found(&Call::TakeOver { log: self.number })
    }

    fn look(&self) -> io::Result<StoredLog> {
        self.found(&Call::Look { log: self.number })
    }

    fn length(&self, file: FileId) -> io::Result<Option<u64>> {
        let (reply, _) = self.client.call(&Call::Length { log: self.number, file: file.0.to_string() }, &[])?;
        let Reply::Number(length) = reply else { return Err(malformed()) };
        Ok(length)
    }

    fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(&Call::Append { log: self.number, file: file.0.to_string(), offset }, bytes)
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(&Call::Write { log: self.number, file: file.0.to_string(), offset }, bytes)
    }

    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let call = Call::Read { log: self.number, file: file.0.to_string(), offset, length: buffer.len() };
        let (_, bytes) = self.client.call(&call, &[])?;
        buffer.get_mut(..bytes.len()).ok_or_else(malformed)?.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn change_names(&self, changes: &[NameChange], unnamed: &[StoredFile]) -> io::Result<()> {
        let change = |change: &NameChange| match change {
            NameChange::Set(file) => Change::Set(File::of(file)),
            NameChange::Remove(name) => Change::Remove(name.clone()),
        };
        let changes = changes.iter().map(change).collect();
        self.change(
            &Call::ChangeNames { log: self.number, changes, unnamed: unnamed.iter().map(File::of).collect() },
            &[],
        )
    }

    fn delete(&self, file: &StoredFile) -> io::Result<()> {
        self.change(&Call::Delete { log: self.number, file: File::of(file) }, &[])
    }
}

impl Drop for ServedLog {
    fn drop(&mut self) {
        // The other process may have ended.
        self.client.call(&Call::Close { log: self.number }, &[]).ok();
    }
}
