//! A wire that is made up: each connection carries one request, and what becomes of it is drawn.
//!
//! Requests and answers are those of the real client and of the real server, each held until it is whole, then passed on: late, in part, twice
//! or not at all. So how many pieces they came in does not matter, and what the server does is either not begun or over when something is cut.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use stemmadb::testing::Random;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::clients::Clients;
use crate::server::Server;

/// More than any message: who writes one never waits for its reader.
const PIPE_BYTES: usize = 4 << 20;
/// The longest that something comes late: longer than an answer is waited for.
const LATE_MS_MAX: u64 = 100_000;
/// What a server says that did what it was asked.
const DONE: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]";

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    /// There is no connection.
    Refused,
    /// So many bytes of it arrive, and no answer comes: none of them is that it is lost.
    RequestCut(usize),
    /// It is done, and so many bytes of the answer come.
    AnswerCut(usize),
    /// It is lost, and whoever waits for an answer is not told.
    Silence,
    /// It comes so many milliseconds late, and the answer too.
    Late(u64, u64),
    /// It is done, and done once more so many milliseconds later.
    Twice(u64),
    /// What it wants written is not passed on, and said to be done.
    Lie,
}

/// All wires, and who writes meanwhile.
pub(super) struct Net {
    random: Random,
    pub(super) clients: Clients,
    /// So many of a hundred connections fail somehow.
    fault_percent: u64,
    /// At so many of a hundred requests somebody writes.
    write_percent: u64,
    lies: bool,
    /// Until when each node is away.
    away: Vec<Instant>,
    begun: Instant,
    pub(super) trace: Vec<String>,
    pub(super) request_count: u64,
    pub(super) fault_count: u64,
    /// What is still on its way.
    on_the_way: JoinSet<()>,
}

impl Net {
    pub(super) fn new(mut random: Random, clients: Clients, node_count: usize, lies: bool) -> Self {
        let (fault_percent, write_percent) = (random.below(60), random.below(15));
        let (begun, trace) = (Instant::now(), Vec::new());
        let away = vec![begun; node_count];
        let on_the_way = JoinSet::new();
        let (request_count, fault_count) = (0, 0);
        Net {
            random,
            clients,
            fault_percent,
            write_percent,
            lies,
            away,
            begun,
            trace,
            request_count,
            fault_count,
            on_the_way,
        }
    }

    /// Notes what happened, with the time.
    pub(super) fn note(&mut self, what: &str) {
        self.trace.push(format!("{} {what}", self.begun.elapsed().as_millis()));
    }

    /// Somebody writes something.
    pub(super) fn write(&mut self) {
        let told = self.clients.write(&mut self.random);
        self.note(&told);
    }

    /// A node is away for a while.
    pub(super) fn take_away(&mut self, node: usize) {
        let pause = Duration::from_millis(self.random.below(5_000));
        self.away[node] = Instant::now() + pause;
        self.fault_count += 1;
        self.note(&format!("{node} is away for {pause:?}"));
    }

    /// From now on nothing fails and nobody writes; returns what is still on its way.
    pub(super) fn calm(&mut self) -> JoinSet<()> {
        (self.fault_percent, self.write_percent, self.lies) = (0, 0, false);
        self.away.fill(self.begun);
        self.note("calm");
        std::mem::take(&mut self.on_the_way)
    }

    fn draw(&mut self, from: usize, to: usize) -> Fate {
        self.request_count += 1;
        while self.random.below(100) < self.write_percent {
            self.write();
        }
        let now = Instant::now();
        let random = &mut self.random;
        let fate = match () {
            () if self.away[from] > now || self.away[to] > now => Fate::Refused,
            () if random.below(100) >= self.fault_percent => {
                return if self.lies && random.below(4) == 0 { Fate::Lie } else { Fate::Passes };
            }
            () => match random.below(8) {
                0 => Fate::Refused,
                1 => Fate::RequestCut(0),
                2 => Fate::RequestCut(somewhere(random)),
                3 => Fate::AnswerCut(0),
                4 => Fate::AnswerCut(somewhere(random)),
                5 => Fate::Silence,
                6 => Fate::Late(random.below(LATE_MS_MAX), random.below(LATE_MS_MAX)),
                _ => Fate::Twice(random.below(LATE_MS_MAX)),
            },
        };
        self.fault_count += 1;
        fate
    }
}

/// A place in a message: in its head, in JSON, or in a file.
fn somewhere(random: &mut Random) -> usize {
    let bytes_max = [300, 3000, 100_000][random.below(3) as usize];
    random.below(bytes_max) as usize
}

/// What connects a node to others.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) from: usize,
    pub(super) net: Arc<Mutex<Net>>,
    pub(super) server: Arc<Server>,
}

impl Service<Uri> for Wire {
    type Response = TokioIo<End>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Nodes are told by their ports.
    fn call(&mut self, to: Uri) -> Self::Future {
        let to = usize::from(to.port_u16().unwrap_or_default()) - 1;
        let mut net = self.net.lock();
        let fate = net.draw(self.from, to);
        let hop = format!("{} to {to}", self.from);
        if fate == Fate::Refused {
            net.note(&format!("{hop}: refused"));
            return std::future::ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let (near, far) = duplex(PIPE_BYTES);
        net.on_the_way.spawn(self.clone().carry(far, fate, hop));
        while net.on_the_way.try_join_next().is_some() {}
        std::future::ready(Ok(TokioIo::new(End(near))))
    }
}

impl Wire {
    async fn carry(self, mut client: DuplexStream, fate: Fate, hop: String) {
        let Some(request) = message(&mut client, false).await else { return };
        let what = shown(&request);
        let note = |told: &str| self.net.lock().note(&format!("{hop}: {what}, {}: {fate:?}: {told}", request.len()));
        let (mut request_bytes, mut answer_bytes) = (usize::MAX, usize::MAX);
        match fate {
            Fate::RequestCut(count) => request_bytes = count,
            Fate::AnswerCut(count) => answer_bytes = count,
            Fate::Late(request, _) => sleep(Duration::from_millis(request)).await,
            Fate::Lie if is_of_documents(&what) => {
                note("a lie");
                client.write_all(DONE).await.ok();
                return;
            }
            Fate::Silence => {
                note("nothing");
                // Until whoever waits has enough.
                client.read_u8().await.ok();
                return;
            }
            _ => {}
        }
        let answer = self.pass(&request[..request.len().min(request_bytes)]).await;
        if let Fate::Late(_, answer) = fate {
            sleep(Duration::from_millis(answer)).await;
        }
        note(&format!("{}, {}", shown(&answer), answer.len()));
        client.write_all(&answer[..answer.len().min(answer_bytes)]).await.ok();
        drop(client);
        if let Fate::Twice(pause) = fate {
            sleep(Duration::from_millis(pause)).await;
            let answer = self.pass(&request).await;
            note(&format!("again: {}, {}", shown(&answer), answer.len()));
        }
    }

    /// What the server answers, once it is done with it: nothing, if it is not asked for all.
    async fn pass(&self, request: &[u8]) -> Vec<u8> {
        let (mut near, far) = duplex(PIPE_BYTES);
        let serving = tokio::spawn(self.server.attend_to(far));
        near.write_all(request).await.ok();
        let answer = match is_whole(request, false) {
            true => message(&mut near, true).await.unwrap_or_default(),
            false => Vec::new(),
        };
        drop(near);
        serving.await.ok();
        answer
    }
}

/// One whole message; none if it ends before.
async fn message(from: &mut DuplexStream, is_answer: bool) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    while !is_whole(&message, is_answer) {
        match from.read_buf(&mut message).await {
            Ok(1..) => {}
            _ => return None,
        }
    }
    Some(message)
}

/// Whether a message is whole, by the length that it tells, or by its last chunk.
fn is_whole(message: &[u8], is_answer: bool) -> bool {
    let Some(end) = memchr::memmem::find(message, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&message[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    match length {
        Some(length) => message.len() >= end + 4 + length,
        None if is_answer => message.ends_with(b"\r\n0\r\n\r\n"),
        None => true,
    }
}

/// The first line of a message, without what is different each time: sessions, and the marks of databases.
fn shown(message: &[u8]) -> String {
    let line = message.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let end = line.find('?').into_iter().chain(line.find("/_local/")).min();
    line[..end.unwrap_or(line.len())].to_owned()
}

/// Whether a request wants documents written.
fn is_of_documents(shown: &str) -> bool {
    shown.contains("_bulk_docs") || (shown.starts_with("PUT") && shown.contains("/d"))
}

/// One end of a connection.
pub(super) struct End(DuplexStream);

impl Connection for End {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for End {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
