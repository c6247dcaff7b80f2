//! A proxy between driver and node that loses responses, delays requests, sends them twice, and cuts connections.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stemmadb::testing::Random;

/// How late delayed requests reach the node, in milliseconds at most.
const DELAY_MS_MAX: u64 = 400;

/// Streams from here on are those of requests that the proxy sends.
const OWN_STREAMS: u16 = 0x7000;

const BYTES_OF_HEADER: usize = 9;
const EXECUTE: u8 = 0x0a;
const BATCH: u8 = 0x0d;

/// How many requests had a fault.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) lost: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) twice: AtomicU64,
    pub(crate) cut: AtomicU64,
}

impl Faults {
    pub(crate) fn sum(&self) -> u64 {
        [&self.lost, &self.late, &self.twice, &self.cut].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            f,
            "{} responses lost, {} requests late, {} twice, {} connections cut",
            count(&self.lost),
            count(&self.late),
            count(&self.twice),
            count(&self.cut)
        )
    }
}

/// Starts a proxy of a node, and returns its address. Faults begin once `per_mille` is not zero.
pub(crate) fn start(node: SocketAddr, seed: u64, per_mille: Arc<AtomicU64>, faults: Arc<Faults>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(node)) else { continue };
            client.set_nodelay(true).ok();
            server.set_nodelay(true).ok();
            let random = Random::new(seed << 32 | number as u64);
            let connection = Connection {
                server: Mutex::new(server.try_clone().unwrap()),
                unanswered: Mutex::default(),
                per_mille: per_mille.clone(),
                faults: faults.clone(),
            };
            let connection = Arc::new(connection);
            let (requests, responses) = (connection.clone(), connection);
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                requests.pass_requests(&from, random).ok();
                from.shutdown(Shutdown::Both).ok();
                to.shutdown(Shutdown::Both).ok();
            });
            std::thread::spawn(move || {
                responses.pass_responses(&server, &client).ok();
                server.shutdown(Shutdown::Both).ok();
                client.shutdown(Shutdown::Both).ok();
            });
        }
    });
    address
}

struct Connection {
    server: Mutex<TcpStream>,
    /// Streams whose next response is dropped.
    unanswered: Mutex<HashSet<u16>>,
    per_mille: Arc<AtomicU64>,
    faults: Arc<Faults>,
}

impl Connection {
    fn pass_requests(self: &Arc<Self>, mut client: &TcpStream, mut random: Random) -> io::Result<()> {
        let mut own_stream = OWN_STREAMS;
        loop {
            let mut frame = read_frame(&mut client)?;
            let is_request = [EXECUTE, BATCH].contains(&frame[4]);
            let stream = stream_of(&frame);
            if !is_request || !random.chance(self.per_mille.load(Ordering::Relaxed) as u32) {
                self.send(&frame)?;
                continue;
            }
            let count = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
            match random.below(10) {
                0..=2 => {
                    count(&self.faults.lost);
                    self.unanswered.lock().unwrap().insert(stream);
                    self.send(&frame)?;
                }
                3..=5 => {
                    count(&self.faults.late);
                    self.unanswered.lock().unwrap().insert(stream);
                    let (connection, delay) = (self.clone(), Duration::from_millis(random.below(DELAY_MS_MAX)));
                    std::thread::spawn(move || {
                        std::thread::sleep(delay);
                        connection.send(&frame)
                    });
                }
                6..=8 => {
                    count(&self.faults.twice);
                    self.send(&frame)?;
                    own_stream = if own_stream == 0x7fff { OWN_STREAMS } else { own_stream + 1 };
                    frame[2..4].copy_from_slice(&own_stream.to_be_bytes());
                    self.unanswered.lock().unwrap().insert(own_stream);
                    self.send(&frame)?;
                }
                _ => {
                    count(&self.faults.cut);
                    self.send(&frame)?;
                    return Ok(());
                }
            }
        }
    }

    fn pass_responses(&self, mut server: &TcpStream, mut client: &TcpStream) -> io::Result<()> {
        loop {
            let frame = read_frame(&mut server)?;
            if !self.unanswered.lock().unwrap().remove(&stream_of(&frame)) {
                client.write_all(&frame)?;
            }
        }
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.server.lock().unwrap().write_all(frame)
    }
}

fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; BYTES_OF_HEADER];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
    frame.resize(BYTES_OF_HEADER + length, 0);
    from.read_exact(&mut frame[BYTES_OF_HEADER..])?;
    Ok(frame)
}

fn stream_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[2], frame[3]])
}
