//! The simulated network: each connection carries one request, whose delivery is drawn at random.
//!
//! Requests and responses are those of the real client and server. Each is buffered until it is complete, then
//! delivered: late, in part, twice or not at all. So the number of chunks does not matter, and when a connection is cut
//! the server has either not started the request or has finished it.

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

/// Larger than any message, so that writing one never blocks.
const PIPE_BYTES: usize = 4 << 20;
/// The longest delay; longer than the timeout for a response.
const LATE_MS_MAX: u64 = 100_000;
/// A successful response to a write.
const DONE: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]";

/// How a request and its response are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Passes,
    /// The connection is refused.
    Refused,
    /// Only this many bytes of the request arrive, and no response comes. Zero: the request is lost.
    RequestCut(usize),
    /// The request is executed; only this many bytes of the response arrive.
    ResponseCut(usize),
    /// The request is lost, and the connection stays open without a response.
    Silence,
    /// The delays of the request and of the response, in milliseconds.
    Late(u64, u64),
    /// The request is executed, and once more this many milliseconds later.
    Twice(u64),
    /// A write is not delivered but acknowledged.
    FalseAck,
}

/// The network between all nodes, and the clients that write concurrently.
pub(super) struct SimulatedNetwork {
    random: Random,
    pub(super) clients: Clients,
    /// The percentage of connections with a fault.
    fault_percent: u64,
    /// The percentage of requests during which a client writes.
    write_percent: u64,
    false_acks: bool,
    /// Until when each node is unavailable.
    unavailable_until: Vec<Instant>,
    /// On which side of a divided network each node is.
    sides: Vec<bool>,
    divided_until: Instant,
    begun: Instant,
    pub(super) trace: Vec<String>,
    pub(super) request_count: u64,
    pub(super) fault_count: u64,
    /// Messages in transit.
    in_transit: JoinSet<()>,
}

impl SimulatedNetwork {
    pub(super) fn new(mut random: Random, clients: Clients, node_count: usize, false_acks: bool) -> Self {
        let (fault_percent, write_percent) = (random.below(60), random.below(15));
        let (begun, trace) = (Instant::now(), Vec::new());
        let unavailable_until = vec![begun; node_count];
        let in_transit = JoinSet::new();
        let (request_count, fault_count) = (0, 0);
        SimulatedNetwork {
            random,
            clients,
            fault_percent,
            write_percent,
            false_acks,
            unavailable_until,
            sides: vec![false; node_count],
            divided_until: begun,
            begun,
            trace,
            request_count,
            fault_count,
            in_transit,
        }
    }

    /// Adds a line with the time to the trace.
    pub(super) fn trace_event(&mut self, what: &str) {
        self.trace.push(format!("{} {what}", self.begun.elapsed().as_millis()));
    }

    /// A random client writes.
    pub(super) fn write(&mut self) {
        let event = self.clients.write(&mut self.random);
        self.trace_event(&event);
    }

    /// Makes a node unavailable for a while.
    pub(super) fn make_unavailable(&mut self, node: usize) {
        let pause = Duration::from_millis(self.random.below(5_000));
        self.unavailable_until[node] = Instant::now() + pause;
        self.fault_count += 1;
        self.trace_event(&format!("{node} is unavailable for {pause:?}"));
    }

    /// Divides the network for a while: nodes of different sides don't reach each other.
    pub(super) fn divide(&mut self) {
        let pause = Duration::from_millis(self.random.below(20_000));
        self.divided_until = Instant::now() + pause;
        self.sides.iter_mut().for_each(|side| *side = self.random.below(2) == 0);
        self.fault_count += 1;
        self.trace_event(&format!("the network is divided into {:?} for {pause:?}", self.sides));
    }

    /// Stops faults and client writes. Returns the messages in transit.
    pub(super) fn stop_faults(&mut self) -> JoinSet<()> {
        (self.fault_percent, self.write_percent, self.false_acks) = (0, 0, false);
        self.unavailable_until.fill(self.begun);
        self.divided_until = self.begun;
        self.trace_event("faults stop");
        std::mem::take(&mut self.in_transit)
    }

    fn draw(&mut self, from: usize, to: usize) -> Delivery {
        self.request_count += 1;
        while self.random.below(100) < self.write_percent {
            self.write();
        }
        let now = Instant::now();
        let random = &mut self.random;
        let delivery = match () {
            () if self.unavailable_until[from] > now || self.unavailable_until[to] > now => Delivery::Refused,
            () if self.divided_until > now && self.sides[from] != self.sides[to] => Delivery::Refused,
            () if random.below(100) >= self.fault_percent => {
                return if self.false_acks && random.below(4) == 0 { Delivery::FalseAck } else { Delivery::Passes };
            }
            () => match random.below(8) {
                0 => Delivery::Refused,
                1 => Delivery::RequestCut(0),
                2 => Delivery::RequestCut(random_offset(random)),
                3 => Delivery::ResponseCut(0),
                4 => Delivery::ResponseCut(random_offset(random)),
                5 => Delivery::Silence,
                6 => Delivery::Late(random.below(LATE_MS_MAX), random.below(LATE_MS_MAX)),
                _ => Delivery::Twice(random.below(LATE_MS_MAX)),
            },
        };
        self.fault_count += 1;
        delivery
    }
}

/// A random offset in a message: in its head, in JSON, or in a file.
fn random_offset(random: &mut Random) -> usize {
    let bytes_max = [300, 3000, 100_000][random.below(3) as usize];
    random.below(bytes_max) as usize
}

/// The connector of one node's HTTP client.
#[derive(Clone)]
pub(super) struct SimulatedConnector {
    pub(super) from: usize,
    pub(super) network: Arc<Mutex<SimulatedNetwork>>,
    pub(super) server: Arc<Server>,
}

impl Service<Uri> for SimulatedConnector {
    type Response = TokioIo<ClientStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Nodes are identified by their ports.
    fn call(&mut self, to: Uri) -> Self::Future {
        let to = usize::from(to.port_u16().unwrap_or_default()) - 1;
        let mut network = self.network.lock();
        let delivery = network.draw(self.from, to);
        let hop = format!("{} to {to}", self.from);
        if delivery == Delivery::Refused {
            network.trace_event(&format!("{hop}: refused"));
            return std::future::ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let (near, far) = duplex(PIPE_BYTES);
        network.in_transit.spawn(self.clone().carry(far, delivery, hop));
        while network.in_transit.try_join_next().is_some() {}
        std::future::ready(Ok(TokioIo::new(ClientStream(near))))
    }
}

impl SimulatedConnector {
    async fn carry(self, mut client: DuplexStream, delivery: Delivery, hop: String) {
        let Some(request) = read_message(&mut client, false).await else { return };
        let what = request_line(&request);
        let note = |event: &str| {
            self.network.lock().trace_event(&format!("{hop}: {what}, {}: {delivery:?}: {event}", request.len()))
        };
        let (mut request_bytes, mut response_bytes) = (usize::MAX, usize::MAX);
        match delivery {
            Delivery::RequestCut(count) => request_bytes = count,
            Delivery::ResponseCut(count) => response_bytes = count,
            Delivery::Late(request, _) => sleep(Duration::from_millis(request)).await,
            Delivery::FalseAck if is_document_write(&what) => {
                note("false acknowledgement");
                client.write_all(DONE).await.ok();
                return;
            }
            Delivery::Silence => {
                note("no response");
                // Until the client gives up.
                client.read_u8().await.ok();
                return;
            }
            _ => {}
        }
        let response = self.pass(&request[..request.len().min(request_bytes)]).await;
        if let Delivery::Late(_, response) = delivery {
            sleep(Duration::from_millis(response)).await;
        }
        note(&format!("{}, {}", request_line(&response), response.len()));
        client.write_all(&response[..response.len().min(response_bytes)]).await.ok();
        drop(client);
        if let Delivery::Twice(pause) = delivery {
            sleep(Duration::from_millis(pause)).await;
            let response = self.pass(&request).await;
            note(&format!("again: {}, {}", request_line(&response), response.len()));
        }
    }

    /// Sends bytes to the server and returns its response, once it has finished. Returns nothing if the request is
    /// incomplete.
    async fn pass(&self, request: &[u8]) -> Vec<u8> {
        let (mut near, far) = duplex(PIPE_BYTES);
        let serving = tokio::spawn(self.server.serve_stream(far));
        near.write_all(request).await.ok();
        let response = match is_complete(request, false) {
            true => read_message(&mut near, true).await.unwrap_or_default(),
            false => Vec::new(),
        };
        drop(near);
        serving.await.ok();
        response
    }
}

/// Reads one complete message. Returns `None` if the stream ends before.
async fn read_message(from: &mut DuplexStream, is_response: bool) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    while !is_complete(&message, is_response) {
        match from.read_buf(&mut message).await {
            Ok(1..) => {}
            _ => return None,
        }
    }
    Some(message)
}

/// Whether a message is complete, by its `Content-Length` or its last chunk.
fn is_complete(message: &[u8], is_response: bool) -> bool {
    let Some(end) = memchr::memmem::find(message, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&message[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    match length {
        Some(length) => message.len() >= end + 4 + length,
        None if is_response => message.ends_with(b"\r\n0\r\n\r\n"),
        None => true,
    }
}

/// The first line of a message, without the parts that differ between runs: session ids and database instance ids.
fn request_line(message: &[u8]) -> String {
    let line = message.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let end = line.find('?').into_iter().chain(line.find("/_local/")).min();
    line[..end.unwrap_or(line.len())].to_owned()
}

/// Whether a request writes documents.
fn is_document_write(request_line: &str) -> bool {
    request_line.contains("_bulk_docs") || (request_line.starts_with("PUT") && request_line.contains("/d"))
}

/// The client's end of a connection.
pub(super) struct ClientStream(DuplexStream);

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl AsyncWrite for ClientStream {
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
