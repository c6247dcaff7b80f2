//! A wire between two servers that fails as wires do: it refuses, swallows, passes one direction only, is slow, breaks within a message.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::random::Random;

/// How a wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Whole,
    /// Whoever connects is sent away, and what was connected is cut.
    Refusing,
    /// Nothing passes, and nobody is told.
    Swallowing,
    /// Requests pass, answers don't.
    Mute,
    /// Answers pass, requests don't.
    Deaf,
    /// Each piece takes so many milliseconds.
    Slow(u64),
    /// Each connection is cut after so many bytes of its answers.
    Breaking(u64),
}

impl Wire {
    /// A broken one.
    pub(crate) fn at_random(random: &mut Random) -> Self {
        match random.below(7) {
            0 => Wire::Refusing,
            1 => Wire::Swallowing,
            2 => Wire::Mute,
            3 => Wire::Deaf,
            4 => Wire::Slow(1 + random.below(10)),
            // Within a head, and within a body.
            5 => Wire::Breaking(1 + random.below(300)),
            _ => Wire::Breaking(1 + random.below(8000)),
        }
    }
}

/// A wire to a server, which others reach by its own address. Its threads end with the process.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    wire: Mutex<Wire>,
    /// Connections of an older cut are to end.
    cut: AtomicU64,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

const BEAT: Duration = Duration::from_millis(5);

impl Proxy {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { target, wire: Mutex::new(Wire::Whole), cut: AtomicU64::new(0) });
        let accepting = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = accepting.clone();
                // Without a thread there is no connection, as with a wire that is cut.
                drop(thread::Builder::new().spawn(move || connect(&stream, &shared)));
            }
        });
        Proxy { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes the wire another. One that refuses cuts what there is; a whole one too, if `cuts`, else what was swallowed passes then.
    pub(crate) fn set(&self, wire: Wire, cuts: bool) {
        *self.shared.wire.lock().unwrap_or_else(PoisonError::into_inner) = wire;
        if cuts || wire == Wire::Refusing {
            self.shared.cut.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn wire(&self) -> Wire {
        *self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(client: &TcpStream, shared: &Arc<Shared>) {
    let cut = shared.cut.load(Ordering::SeqCst);
    let mut wire = shared.wire();
    while matches!(wire, Wire::Swallowing | Wire::Deaf) && cut == shared.cut.load(Ordering::SeqCst) {
        thread::sleep(BEAT);
        wire = shared.wire();
    }
    if wire == Wire::Refusing || cut != shared.cut.load(Ordering::SeqCst) {
        return;
    }
    let Ok(server) = TcpStream::connect_timeout(&shared.target, Duration::from_secs(5)) else { return };
    thread::scope(|scope| {
        scope.spawn(|| pass(client, &server, Way::Request, cut, shared));
        pass(&server, client, Way::Answer, cut, shared);
    });
}

/// Passes bytes on, one way, until either side ends or the wire is cut; then both ways are at their end.
fn pass(mut from: &TcpStream, mut to: &TcpStream, way: Way, cut: u64, shared: &Shared) {
    let mut piece = [0; 4096];
    let mut passed = 0;
    from.set_read_timeout(Some(BEAT)).ok();
    to.set_nodelay(true).ok();
    while cut == shared.cut.load(Ordering::SeqCst) {
        let wire = shared.wire();
        if is_held(wire, way) {
            thread::sleep(BEAT);
            continue;
        }
        let count = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        // What was read while the wire broke waits with it.
        while is_held(shared.wire(), way) && cut == shared.cut.load(Ordering::SeqCst) {
            thread::sleep(BEAT);
        }
        let mut passing = count;
        match shared.wire() {
            Wire::Slow(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
            Wire::Breaking(after) if way == Way::Answer => {
                passing = count.min(usize::try_from(after.saturating_sub(passed)).unwrap_or(usize::MAX));
            }
            _ => {}
        }
        passed += passing as u64;
        if to.write_all(&piece[..passing]).is_err() || passing < count {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

fn is_held(wire: Wire, way: Way) -> bool {
    match wire {
        Wire::Swallowing => true,
        Wire::Mute => way == Way::Answer,
        Wire::Deaf => way == Way::Request,
        _ => false,
    }
}
