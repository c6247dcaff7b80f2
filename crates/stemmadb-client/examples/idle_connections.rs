//! Measures what connections cost a server while thousands are open: memory and threads of the process while they are
//! idle, requests a second and the slowest answer while all of them ask at once.
//!
//! `cargo run --release -p stemmadb-client --example idle_connections -- 10000`. The clients are sockets of the same
//! process, which hold no memory of it besides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use stemmadb_server::{Config, Server, Wire};
use stemmadb_wire::{Credentials, Encoding, FrameKind, Hello, VERSION, write_frame};

/// How often all connections ask at once.
const ROUNDS: usize = 50;

/// A line of `/proc/self/status` in its unit: KiB or a number.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = text.lines().find(|line| line.starts_with(name)).expect("the line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let hello = Hello { versions: (VERSION, VERSION), encoding: Encoding::Json, credentials: Credentials::Anonymous };
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Hello, 0, |out| hello.write(out));
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&bytes)?;
    ask(&mut stream)?;
    Ok(stream)
}

/// Pings and waits for the answer, whatever precedes it.
fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    ping(stream)?;
    await_pong(stream)
}

fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Ping, 7, |_| ());
    stream.write_all(&bytes)
}

fn await_pong(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 512]);
    while !seen.windows(5).any(|window| window == [FrameKind::Pong as u8, 7, 0, 0, 0]) {
        match stream.read(&mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => seen.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

fn main() {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1000);
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = Config {
        address: ([127, 0, 0, 1], 0).into(),
        wire: Wire { address: Some(([127, 0, 0, 1], 0).into()), connection_count: count + 10, ..Wire::default() },
        ..Config::new(directory.path())
    };
    (config.limits.connection_count, config.limits.connection_count_per_address) = (count + 10, count + 10);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::start(config)).expect("a server");
    let address = server.wire_address().expect("an address");
    drop(connect(address).expect("a connection"));
    let (memory, threads) = (status("VmRSS"), status("Threads"));
    let begun = Instant::now();
    let mut streams: Vec<_> = (0..count).map(|_| connect(address).expect("a connection")).collect();
    println!("{count} connections in {:.1} s, at most {} threads", begun.elapsed().as_secs_f64(), status("Threads"));
    // Threads of the pool end ten seconds after their last work.
    std::thread::sleep(Duration::from_secs(13));
    let grown = status("VmRSS").saturating_sub(memory);
    println!("idle: {:.2} KiB for each, {} threads more", grown as f64 / count as f64, status("Threads") - threads);
    let begun = Instant::now();
    streams.iter_mut().for_each(|stream| ask(stream).expect("an answer"));
    println!("each asks once: {:.0} us a request", begun.elapsed().as_secs_f64() * 1e6 / count as f64);
    let (begun, mut slowest, mut threads_max) = (Instant::now(), Duration::ZERO, 0);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        streams.iter_mut().for_each(|stream| ping(stream).expect("a request"));
        threads_max = threads_max.max(status("Threads") - threads);
        streams.iter_mut().for_each(|stream| await_pong(stream).expect("an answer"));
        slowest = slowest.max(begun.elapsed());
    }
    let rate = (ROUNDS * count) as f64 / begun.elapsed().as_secs_f64();
    println!("all ask at once: {rate:.0} requests/s, slowest {} ms, {threads_max} threads more", slowest.as_millis());
    drop(streams);
    runtime.block_on(server.stop());
}
