//! Measures round trips: raw echoes, blocking and polling, and reads of a document, over TCP and a Unix socket.
//!
//! `cargo run --release -p stemmadb-client --example round_trips`. The echoes exchange as many bytes as the reads.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use serde_json::json;
use stemmadb_client::{Client, ClientOptions, Credentials, RemoteDatabase};
use stemmadb_server::{Administrator, Config, Server, Wire};

/// The bytes of a request and of its answer: those of reading the document.
const REQUEST_BYTES: usize = 33;
const ANSWER_BYTES: usize = 400;

const WARM_UP: usize = 2_000;
const ROUNDS: usize = 20_000;
const PIPELINED: usize = 64;

/// Runs `round` many times; returns the median and the 99th percentile in microseconds.
fn measure(mut round: impl FnMut()) -> (f64, f64) {
    (0..WARM_UP).for_each(|_| round());
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            round();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[ROUNDS * part / 100].as_nanos() as f64 / 1000.0;
    (at(50), at(99))
}

/// Reads exactly `buffer`, sleeping or polling.
fn receive<S: AsFd>(stream: &S, buffer: &mut [u8], is_polling: bool) -> io::Result<()> {
    let flags = if is_polling { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let mut filled = 0;
    while filled < buffer.len() {
        match recv(stream, &mut buffer[filled..], flags) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => filled += count,
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The round trips of a raw echo between two threads.
fn echo<S: Read + Write + AsFd + Send + 'static>(mut client: S, mut server: S, is_polling: bool) -> (f64, f64) {
    let thread = std::thread::spawn(move || {
        let mut request = [0; REQUEST_BYTES];
        while receive(&server, &mut request, is_polling).is_ok() {
            if server.write_all(&[1; ANSWER_BYTES]).is_err() {
                break;
            }
        }
    });
    let mut answer = [0; ANSWER_BYTES];
    let times = measure(|| {
        client.write_all(&[2; REQUEST_BYTES]).expect("the echo lives");
        receive(&client, &mut answer, is_polling).expect("the echo answers");
    });
    drop(client);
    thread.join().expect("the echo ends");
    times
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn print(name: &str, (p50, p99): (f64, f64)) {
    println!("{name:<28} p50 {p50:>7.1} µs   p99 {p99:>7.1} µs");
}

fn get(db: &RemoteDatabase) -> (f64, f64) {
    measure(|| {
        let found = db.get("solaris").expect("the server answers");
        assert!(found.is_some());
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("socket");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        address: loopback,
        administrator: Some(Administrator { name: "root".into(), password: "secret".into() }),
        wire: Wire { address: Some(loopback), unix: Some(socket.clone()), ..Wire::default() },
        ..Config::new(directory.path().join("databases"))
    };
    let server = runtime.block_on(Server::start(config))?;
    let address = server.wire_address().ok_or("the server listens")?;
    let credentials = Credentials::Password { user: "root".into(), password: "secret".into() };
    let options = ClientOptions::new().credentials(credentials);
    let connect = |url: String, options: ClientOptions| Client::connect_with(&url, options);
    let tcp = connect(format!("stemma://{address}"), options.clone())?.create_database("shop")?;
    let unix = connect(format!("stemma+unix://{}", socket.display()), options.clone())?.database("shop");
    let sleeping = connect(format!("stemma://{address}"), options.poll_time(Duration::ZERO))?.database("shop");
    tcp.insert("solaris", &json!({"title": "Solaris", "text": "x".repeat(250), "year": 1961}))?;

    let (client, peer) = tcp_pair()?;
    let tcp_blocking = echo(client, peer, false);
    let (client, peer) = tcp_pair()?;
    let tcp_polling = echo(client, peer, true);
    let (client, peer) = UnixStream::pair()?;
    let unix_blocking = echo(client, peer, false);
    let (client, peer) = UnixStream::pair()?;
    let unix_polling = echo(client, peer, true);
    print("TCP echo, blocking", tcp_blocking);
    print("TCP echo, polling", tcp_polling);
    print("Unix echo, blocking", unix_blocking);
    print("Unix echo, polling", unix_polling);
    let (tcp_get, unix_get) = (get(&tcp), get(&unix));
    print("TCP get", tcp_get);
    print("TCP get, client sleeps", get(&sleeping));
    print("Unix get", unix_get);
    let ids = ["solaris"; PIPELINED];
    let mut count = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        count += tcp.get_pipelined(ids)?.len();
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    println!("TCP, {PIPELINED} pipelined gets     {rate:>9.0} a second");
    let found = measure(|| drop(tcp.get_many(["solaris"; 20]).expect("the server answers")));
    print("TCP get_many of 20", found);
    println!(
        "get - echo: TCP {:.1} µs (polling), {:.1} µs (blocking), Unix {:.1} µs (polling), {:.1} µs (blocking)",
        tcp_get.0 - tcp_polling.0,
        tcp_get.0 - tcp_blocking.0,
        unix_get.0 - unix_polling.0,
        unix_get.0 - unix_blocking.0
    );
    runtime.block_on(server.stop());
    Ok(())
}
