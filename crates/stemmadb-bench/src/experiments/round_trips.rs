//! Round trips of one client: reading a document by each transport, beside raw peers on the same machine.
//!
//! The echoes exchange about as many bytes as reading the document does, between two threads; one sleeps until bytes
//! arrive, as most programs do, and one polls, as Stemma's client and server do while they are in use.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::{RecvFlags, recv};
use serde_json::json;
use stemmadb_client::RemoteDatabase;

use super::Bench;
use super::http::heading;
use crate::Result;
use crate::engine::shop::{PostgresServer, Transport};
use crate::harness::{Contender, ResultRow, Samples, Unit, alternate};
use crate::server::{Connection, Endpoint, ServerProcess};

const DATABASE: &str = "trips";
const ID: &str = "solaris";

/// The bytes of a request and of its response over the wire protocol.
const WIRE_BYTES: (usize, usize) = (33, 400);
/// The same by HTTP.
const HTTP_BYTES: (usize, usize) = (110, 600);

/// Targets: microseconds that a read may take more than an echo, and pipelined reads per second.
const OVER_TCP: f64 = 12.0;
const OVER_SOCKET: f64 = 8.0;
const OVER_HTTP: f64 = 20.0;
const PIPELINED_PER_SECOND: f64 = 150_000.0;
/// Reads under way at a time.
const PIPELINED: usize = 64;

/// Round trips per turn of a contender, of which the first are not counted.
const TURN_COUNT: usize = 2_200;
const WARM_UP_COUNT: usize = 200;

/// Names of the raw peers.
const ECHO: &str = "echo";
const POLLING_ECHO: &str = "echo-polling";

const TCP_ROW: &str = "one read over TCP";
const SOCKET_ROW: &str = "one read over a Unix socket";
const HTTP_ROW: &str = "one read by HTTP";
const PIPELINED_ROW: &str = "reads over TCP, 64 under way on 1 connection";

pub(super) fn run(bench: &mut Bench, server: &ServerProcess) -> Result<()> {
    let rows = [TCP_ROW, SOCKET_ROW, HTTP_ROW, PIPELINED_ROW];
    if !rows.iter().any(|row| bench.is_selected(row)) {
        return Ok(());
    }
    let database = server.connect(Transport::Tcp)?.create_database(DATABASE)?;
    let body = json!({"title": "Solaris", "text": "x".repeat(250), "year": 1961});
    database.insert(ID, &body)?;
    let postgres = PostgresServer::start_if_installed(&bench.scratch)?;
    if let Some(postgres) = &postgres {
        postgres.create_database(DATABASE)?;
        let mut client = postgres.connect(DATABASE, Transport::Socket)?;
        client.batch_execute("CREATE TABLE documents (id text PRIMARY KEY, body text NOT NULL)")?;
        client.execute("INSERT INTO documents VALUES ($1, $2)", &[&ID, &body.to_string()])?;
    }
    let socket = server.connect(Transport::Socket)?.database(DATABASE);
    let postgres = postgres.as_ref();
    wire_row(bench, (TCP_ROW, OVER_TCP), &database, tcp_pair, postgres.map(|one| (one, Transport::Tcp)))?;
    let pair = || Ok(UnixStream::pair()?);
    wire_row(bench, (SOCKET_ROW, OVER_SOCKET), &socket, pair, postgres.map(|one| (one, Transport::Socket)))?;
    http_row(bench, &server.endpoint(), postgres)?;
    pipelined_row(bench, &database)
}

/// Measures a read over the wire protocol.
fn wire_row<S: Read + Write + AsFd + Send + 'static>(
    bench: &mut Bench,
    (row, over_echo): (&str, f64),
    database: &RemoteDatabase,
    pair: impl Fn() -> Result<(S, S)>,
    postgres: Option<(&PostgresServer, Transport)>,
) -> Result<()> {
    if !bench.is_selected(row) {
        return Ok(());
    }
    let (polling, sleeping) = (Echo::start(pair()?, WIRE_BYTES, true)?, Echo::start(pair()?, WIRE_BYTES, false)?);
    let mut contenders = vec![
        reading("stemma", || {
            database.get(ID)?.ok_or("the document is gone")?;
            Ok(())
        }),
        polling.contender(POLLING_ECHO),
        sleeping.contender(ECHO),
    ];
    contenders.extend(postgres.map(|(server, transport)| postgres_reads(server, transport)).transpose()?);
    push(bench, row, contenders, over_echo)
}

/// Measures a read by HTTP.
fn http_row(bench: &mut Bench, endpoint: &Endpoint, postgres: Option<&PostgresServer>) -> Result<()> {
    if !bench.is_selected(HTTP_ROW) {
        return Ok(());
    }
    let hello = Hello::start()?;
    let gets = |endpoint: &Endpoint, path: &str| -> Result<_> {
        let mut connection = Connection::open(endpoint.address)?;
        let request = endpoint.request("GET", path, None);
        Ok(move || match connection.send(&request)?.status {
            200 => Ok(()),
            status => Err(format!("GET: {status}").into()),
        })
    };
    let at_hello = Endpoint { address: hello.address, ..endpoint.clone() };
    let mut contenders = vec![
        reading("stemma", gets(endpoint, &format!("/{DATABASE}/{ID}"))?),
        Echo::start(tcp_pair()?, HTTP_BYTES, false)?.contender(ECHO),
        reading("hyper-hello", gets(&at_hello, "/")?),
    ];
    contenders.extend(postgres.map(|server| postgres_reads(server, Transport::Tcp)).transpose()?);
    push(bench, HTTP_ROW, contenders, OVER_HTTP)
}

/// Measures many reads that one connection has under way.
fn pipelined_row(bench: &mut Bench, database: &RemoteDatabase) -> Result<()> {
    if !bench.is_selected(PIPELINED_ROW) {
        return Ok(());
    }
    let ids = [ID; PIPELINED];
    let turn = |_, samples: &mut Samples| {
        for trip in 0..TURN_COUNT {
            let start = Instant::now();
            let found = database.get_pipelined(ids)?.into_iter().flatten().count();
            if found != PIPELINED {
                return Err(format!("{found} of {PIPELINED} documents").into());
            }
            if trip >= WARM_UP_COUNT {
                samples.push(start.elapsed().as_nanos() as f64 / PIPELINED as f64);
            }
        }
        Ok(())
    };
    let samples = alternate(bench.scale.repetition_count, &mut [Contender::new("stemma", turn)])?;
    let mut heading = heading(bench, PIPELINED_ROW, Unit::PerSecond("reads/s"));
    heading.documents = 1;
    heading.targets = vec![("bound", 1.0)];
    let bound = Samples::from_costs([1e9 / PIPELINED_PER_SECOND]);
    bench.push(ResultRow::new(heading, &samples[0], &[("bound", &bound)]))
}

/// Measures contenders in turns; the target is `over_echo` microseconds more than the fastest echo takes.
fn push(bench: &mut Bench, row: &str, mut contenders: Vec<Contender<'_>>, over_echo: f64) -> Result<()> {
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    let mut peers: Vec<_> = contenders.iter().map(|contender| contender.name).zip(&samples).skip(1).collect();
    let echoes = peers.iter().filter(|(name, _)| name.starts_with(ECHO));
    let fastest = echoes.map(|(_, samples)| samples.summary(Unit::Amount("ns")).p50).fold(f64::INFINITY, f64::min);
    let bound = Samples::from_costs([fastest + over_echo * 1e3]);
    peers.push(("bound", &bound));
    let mut heading = heading(bench, row, Unit::Microseconds);
    heading.documents = 1;
    heading.targets = vec![("bound", 1.0)];
    bench.push(ResultRow::new(heading, &samples[0], &peers))
}

/// A contender whose turn is many round trips.
fn reading<'a>(name: &'static str, mut round_trip: impl FnMut() -> Result<()> + 'a) -> Contender<'a> {
    Contender::new(name, move |_, samples| {
        for trip in 0..TURN_COUNT {
            let start = Instant::now();
            round_trip()?;
            if trip >= WARM_UP_COUNT {
                samples.push(start.elapsed().as_nanos() as f64);
            }
        }
        Ok(())
    })
}

fn postgres_reads(server: &PostgresServer, transport: Transport) -> Result<Contender<'_>> {
    let mut client = server.connect(DATABASE, transport)?;
    let get = client.prepare("SELECT body FROM documents WHERE id = $1")?;
    let name = match transport {
        Transport::Tcp => "postgresql-tcp",
        Transport::Socket => "postgresql",
    };
    Ok(reading(name, move || {
        let row = client.query_one(&get, &[&ID])?;
        if row.get::<_, &str>(0).is_empty() { Err("an empty document".into()) } else { Ok(()) }
    }))
}

/// A raw echo: a thread that answers each request with a number of bytes. It ends with its stream.
struct Echo<S> {
    client: S,
    bytes: (usize, usize),
    is_polling: bool,
}

impl<S: Read + Write + AsFd + Send + 'static> Echo<S> {
    fn start((client, mut server): (S, S), bytes: (usize, usize), is_polling: bool) -> Result<Self> {
        let serve = move || {
            let mut request = vec![0; bytes.0];
            let answer = vec![1; bytes.1];
            while receive(&server, &mut request, is_polling).is_ok() && server.write_all(&answer).is_ok() {}
        };
        std::thread::Builder::new().name("echo".to_owned()).spawn(serve)?;
        Ok(Echo { client, bytes, is_polling })
    }

    fn contender<'a>(mut self, name: &'static str) -> Contender<'a>
    where
        S: 'a,
    {
        let (request, mut answer) = (vec![2; self.bytes.0], vec![0; self.bytes.1]);
        reading(name, move || {
            self.client.write_all(&request)?;
            receive(&self.client, &mut answer, self.is_polling)
        })
    }
}

/// Fills `buffer`, sleeping or polling until the bytes are there.
fn receive<S: AsFd>(stream: &S, buffer: &mut [u8], is_polling: bool) -> Result<()> {
    let flags = if is_polling { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let mut filled = 0;
    while filled < buffer.len() {
        match recv(stream, &mut buffer[filled..], flags) {
            Ok((0, _)) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok((count, _)) => filled += count,
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn tcp_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

/// A server that is nothing but hyper: it answers every request with the same bytes.
struct Hello {
    address: SocketAddr,
    /// Dropping it ends the server.
    _runtime: tokio::runtime::Runtime,
}

impl Hello {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let answer = |_: hyper::Request<Incoming>| async {
            Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(Bytes::from_static(&[b'x'; 400]))))
        };
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                _ = stream.set_nodelay(true);
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
            }
        });
        Ok(Hello { address, _runtime: runtime })
    }
}
