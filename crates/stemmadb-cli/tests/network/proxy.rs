//! Proxy between two servers that injects network faults: refused connections, lost data, one-way traffic, delays, and
//! connections cut within a message.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::random::Random;

/// State of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Healthy,
    /// New connections are refused and existing ones are cut.
    Refusing,
    /// No data passes; connections stay open.
    Withholding,
    /// Requests pass, responses do not.
    NoResponses,
    /// Responses pass, requests do not.
    NoRequests,
    /// Each chunk is delayed by this number of milliseconds.
    Slow(u64),
    /// Each connection is cut after this number of response bytes.
    Truncating(u64),
}

impl LinkState {
    /// A random faulty state.
    pub(crate) fn at_random(random: &mut Random) -> Self {
        match random.below(7) {
            0 => LinkState::Refusing,
            1 => LinkState::Withholding,
            2 => LinkState::NoResponses,
            3 => LinkState::NoRequests,
            4 => LinkState::Slow(1 + random.below(10)),
            // Within the head, or within the body.
            5 => LinkState::Truncating(1 + random.below(300)),
            _ => LinkState::Truncating(1 + random.below(8000)),
        }
    }
}

/// A proxy to a server, with its own address. Its threads end with the process.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<LinkState>,
    /// Incremented to cut all existing connections.
    cut: AtomicU64,
}

/// Direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Request,
    Response,
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Proxy {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { target, state: Mutex::new(LinkState::Healthy), cut: AtomicU64::new(0) });
        let accepting = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = accepting.clone();
                // If no thread can be started, the connection is dropped, as by a cut.
                drop(thread::Builder::new().spawn(move || connect(&stream, &shared)));
            }
        });
        Proxy { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the state of the network. `Refusing`, or `cuts`, cuts existing connections; otherwise withheld data passes
    /// when the state permits it.
    pub(crate) fn set(&self, state: LinkState, cuts: bool) {
        *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        if cuts || state == LinkState::Refusing {
            self.shared.cut.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn state(&self) -> LinkState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(client: &TcpStream, shared: &Arc<Shared>) {
    let cut = shared.cut.load(Ordering::SeqCst);
    let mut state = shared.state();
    while matches!(state, LinkState::Withholding | LinkState::NoRequests) && cut == shared.cut.load(Ordering::SeqCst) {
        thread::sleep(POLL_INTERVAL);
        state = shared.state();
    }
    if state == LinkState::Refusing || cut != shared.cut.load(Ordering::SeqCst) {
        return;
    }
    let Ok(server) = TcpStream::connect_timeout(&shared.target, Duration::from_secs(5)) else { return };
    thread::scope(|scope| {
        scope.spawn(|| forward(client, &server, Flow::Request, cut, shared));
        forward(&server, client, Flow::Response, cut, shared);
    });
}

/// Forwards data in one direction until either side closes or the connections are cut; then closes both directions.
fn forward(mut from: &TcpStream, mut to: &TcpStream, flow: Flow, cut: u64, shared: &Shared) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    from.set_read_timeout(Some(POLL_INTERVAL)).ok();
    to.set_nodelay(true).ok();
    while cut == shared.cut.load(Ordering::SeqCst) {
        let state = shared.state();
        if is_withheld(state, flow) {
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        // Data read before the state changed is withheld too.
        while is_withheld(shared.state(), flow) && cut == shared.cut.load(Ordering::SeqCst) {
            thread::sleep(POLL_INTERVAL);
        }
        let mut passing = count;
        match shared.state() {
            LinkState::Slow(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
            LinkState::Truncating(after) if flow == Flow::Response => {
                passing = count.min(usize::try_from(after.saturating_sub(passed)).unwrap_or(usize::MAX));
            }
            _ => {}
        }
        passed += passing as u64;
        if to.write_all(&buffer[..passing]).is_err() || passing < count {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

fn is_withheld(state: LinkState, flow: Flow) -> bool {
    match state {
        LinkState::Withholding => true,
        LinkState::NoResponses => flow == Flow::Response,
        LinkState::NoRequests => flow == Flow::Request,
        _ => false,
    }
}
