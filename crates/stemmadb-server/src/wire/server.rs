//! Listeners of the wire protocol, their connections, and shutdown.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::runtime::Handle;

use super::connection::Connection;
use super::monitor::Monitor;
use super::parking::serve_soon;
use super::pool::Pool;
#[cfg(all(unix, feature = "quic"))]
use super::quic::QuicListener;
use super::snapshots::Snapshots;
use super::transport::{Socket, Transport};
use crate::app::ServerState;
use crate::auth::refuse_if_open;
use crate::connections::CountedConnection;
use crate::error::{Failure, Result};

/// The time that an accepting thread waits if the process has no file descriptor left.
const NO_DESCRIPTOR_WAIT: Duration = Duration::from_millis(50);

/// The wire protocol's part of a server.
pub(crate) struct WireServer {
    pub(super) state: Arc<ServerState>,
    pub(super) pool: Arc<Pool>,
    pub(super) monitor: Arc<Monitor>,
    pub(super) runtime: Handle,
    pub(super) snapshots: Snapshots,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next_number: AtomicU64,
    pub(super) is_stopping: AtomicBool,
    address: Option<SocketAddr>,
    #[cfg(all(unix, feature = "quic"))]
    quic: Option<QuicListener>,
    /// Whether the monitor's thread runs; the first connection starts it.
    has_monitor: AtomicBool,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl WireServer {
    /// Starts the listeners that the configuration names, and accepts connections over WebSockets if it allows that.
    /// `None` if it does neither. Blocks for a short time.
    ///
    /// # Errors
    /// 500 if an address can't be bound; 400 if the server would be reachable from other machines without a configured
    /// administrator, or for QUIC without a certificate.
    pub(crate) fn start(state: &Arc<ServerState>, runtime: Handle) -> Result<Option<Arc<Self>>> {
        let wire = &state.config.wire;
        if wire.address.is_none() && wire.unix.is_none() && wire.quic.is_none() && !wire.websocket {
            return Ok(None);
        }
        let tcp = wire.address.map(|address| listen(state, address)).transpose()?;
        let tls = match (&state.config.tls, wire.is_plain) {
            (Some(tls), false) => Some(Arc::new(crate::tls::server_config(tls)?)),
            _ => None,
        };
        #[cfg(not(all(unix, feature = "quic")))]
        if wire.quic.is_some() {
            return Err(Failure::bad_request("this program was built without QUIC: wire.quic can't be used"));
        }
        #[cfg(all(unix, feature = "quic"))]
        let quic = wire.quic.map(|address| listen_quic(state, address, &runtime)).transpose()?;
        let address = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let server = Arc::new(WireServer {
            state: state.clone(),
            pool: Pool::new(wire.thread_count.max(1), runtime.clone()),
            monitor: Arc::default(),
            runtime,
            snapshots: Snapshots::default(),
            connections: Mutex::default(),
            next_number: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            address,
            #[cfg(all(unix, feature = "quic"))]
            quic,
            has_monitor: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        if let Some(listener) = tcp {
            let weak = Arc::downgrade(&server);
            server.spawn("stemma-accept", move || accept_tcp(&listener, tls.as_ref(), &weak))?;
        }
        #[cfg(unix)]
        if let Some(path) = &wire.unix {
            let (listener, weak) = (listen_unix(path)?, Arc::downgrade(&server));
            server.spawn("stemma-accept", move || accept_unix(&listener, &weak))?;
        }
        #[cfg(all(unix, feature = "quic"))]
        if let Some(quic) = &server.quic {
            quic.serve(&server);
        }
        #[cfg(unix)]
        if wire.websocket {
            let weak = Arc::downgrade(&server);
            let open = move |peer| {
                let server = weak.upgrade().ok_or(io::ErrorKind::NotConnected)?;
                server.open_local(peer)
            };
            state.wire.set(Box::new(open)).ok();
        }
        Ok(Some(server))
    }

    /// Waits for a future on this thread. Most are ready at once, which costs no switch of context.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => self.runtime.block_on(future),
        }
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads
            .lock()
            .push(thread.map_err(|error| Failure::internal(format!("no thread can be started: {error}")))?);
        Ok(())
    }

    /// The address that it listens on, if it does on TCP.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The UDP address that it listens on for QUIC, if it does.
    #[cfg(feature = "quic")]
    pub(crate) fn quic_address(&self) -> Option<SocketAddr> {
        #[cfg(unix)]
        return self.quic.as_ref().map(QuicListener::address);
        #[cfg(not(unix))]
        None
    }

    /// Serves a connection on a thread of the pool.
    pub(super) fn admit(
        self: &Arc<Self>,
        socket: Socket,
        tls: Option<&Arc<ServerConfig>>,
        peer: SocketAddr,
        counted: Option<CountedConnection>,
    ) {
        let timeout = self.state.config.limits.stall_timeout;
        let Ok(transport) = socket.set_write_timeout(timeout).and_then(|()| Transport::new(socket, tls)) else {
            return;
        };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections.lock();
        let is_full = connections.len() >= self.state.config.wire.connection_count;
        let connection = Arc::new(Connection::new(self, transport, peer, number, counted));
        connections.insert(number, connection.clone());
        drop(connections);
        if is_full || self.is_stopping.load(Ordering::SeqCst) || !self.has_started_monitor() {
            connection.refuse();
            self.forget(number);
            return;
        }
        let served = connection.clone();
        if !self.pool.run(move || served.serve_from_handshake()) {
            self.runtime.spawn(async move {
                serve_soon(&connection, |connection| connection.serve_from_handshake()).await;
            });
        }
    }

    /// Opens a connection for a client whose bytes reach the server by another transport: the end of a pair of sockets,
    /// of which the other one is served like a Unix socket's connection. Must be called within the runtime.
    #[cfg(unix)]
    pub(super) fn open_local(self: &Arc<Self>, peer: SocketAddr) -> io::Result<tokio::net::UnixStream> {
        let (carried, served) = UnixStream::pair()?;
        carried.set_nonblocking(true)?;
        self.admit(Socket::Unix(served), None, peer, None);
        tokio::net::UnixStream::from_std(carried)
    }

    /// Starts the monitor if it does not run. Returns whether it does.
    fn has_started_monitor(self: &Arc<Self>) -> bool {
        if self.has_monitor.swap(true, Ordering::SeqCst) {
            return true;
        }
        let (monitor, weak) = (self.monitor.clone(), Arc::downgrade(self));
        let is_started = self.spawn("stemma-monitor", move || monitor.run(&weak)).is_ok();
        self.has_monitor.store(is_started, Ordering::SeqCst);
        is_started
    }

    /// Forgets a connection that is closed.
    pub(super) fn forget(&self, number: u64) {
        self.connections.lock().remove(&number);
    }

    /// Lets other threads read the connections whose thread executes a request for long. Returns whether requests run.
    pub(super) fn hand_over_reading(&self) -> bool {
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        // Every connection is looked at, also after a busy one.
        connections.iter().filter(|connection| connection.hand_over_if_busy()).count() > 0
    }

    /// Stops accepting, lets running requests finish until `deadline`, and closes all connections. Blocks.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting threads.
        if let Some(mut address) = self.address {
            if address.ip().is_unspecified() {
                address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
            }
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok();
        }
        #[cfg(unix)]
        if let Some(path) = &self.state.config.wire.unix {
            UnixStream::connect(path).ok();
            std::fs::remove_file(path).ok();
        }
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        connections.iter().for_each(|connection| connection.stop_when_idle());
        while self.pool.thread_count() > 0 && Instant::now() < deadline && !self.connections.lock().is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        connections.iter().for_each(|connection| connection.close());
        #[cfg(all(unix, feature = "quic"))]
        if let Some(quic) = &self.quic {
            quic.close(&self.runtime);
        }
        self.monitor.stop();
        for thread in self.threads.lock().drain(..) {
            thread.join().ok();
        }
    }
}

#[cfg(all(unix, feature = "quic"))]
fn listen_quic(state: &ServerState, address: SocketAddr, runtime: &Handle) -> Result<QuicListener> {
    refuse_if_open(&state.config, address)?;
    let tls = state.config.tls.as_ref();
    let tls = tls.ok_or_else(|| Failure::bad_request("QUIC is always encrypted: wire.quic needs tls.certificate"))?;
    QuicListener::bind(address, tls, runtime)
}

fn listen(state: &ServerState, address: SocketAddr) -> Result<TcpListener> {
    refuse_if_open(&state.config, address)?;
    TcpListener::bind(address).map_err(|error| Failure::internal(format!("cannot listen on {address}: {error}")))
}

#[cfg(unix)]
fn listen_unix(path: &Path) -> Result<UnixListener> {
    let failed = |error| Failure::internal(format!("cannot listen on {}: {error}", path.display()));
    // The socket of a server that was killed; anything else is left alone, so that binding fails.
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(failed(std::io::ErrorKind::AddrInUse.into()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Users of the server's group may connect; they authenticate like all others.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

fn accept_tcp(listener: &TcpListener, tls: Option<&Arc<ServerConfig>>, server: &Weak<WireServer>) {
    let accept = || {
        let (stream, peer) = listener.accept()?;
        stream.set_nodelay(true).ok();
        Ok((Socket::Tcp(stream), peer))
    };
    accept_all(accept, tls, |server| server.state.config.limits.connection_count_per_address, server);
}

#[cfg(unix)]
fn accept_unix(listener: &UnixListener, server: &Weak<WireServer>) {
    // Wrong passwords are counted for this machine's own address.
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let accept = || listener.accept().map(|(stream, _)| (Socket::Unix(stream), peer));
    accept_all(accept, None, |_| usize::MAX, server);
}

/// Admits connections until the server stops, at most so many of an address.
fn accept_all(
    accept: impl Fn() -> io::Result<(Socket, SocketAddr)>,
    tls: Option<&Arc<ServerConfig>>,
    count_max: impl Fn(&WireServer) -> usize,
    server: &Weak<WireServer>,
) {
    loop {
        let accepted = accept();
        let Some(server) = server.upgrade().filter(|server| !server.is_stopping.load(Ordering::SeqCst)) else { return };
        let Ok((socket, peer)) = accepted else {
            server.state.directory.release_descriptors();
            std::thread::sleep(NO_DESCRIPTOR_WAIT);
            continue;
        };
        let Some(counted) = server.state.connections.admit(peer.ip(), count_max(&server)) else { continue };
        server.admit(socket, tls, peer, Some(counted));
    }
}
