//! QUIC: a client has one QUIC connection, and each connection of its pool is a bidirectional stream of that.
//!
//! QUIC runs on a thread of its own. It carries a stream's bytes to and from a local socket, which the calling threads
//! read and write like a Unix socket's connection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, TokioRuntime, TransportConfig};
use stemmadb::{Error, Result};
use stemmadb_wire::QUIC_PROTOCOL;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// How often an idle connection shows the server that the client lives, which waits for it for 30 seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The time after which a server that is not heard is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long closing the connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens streams, over a connection that is opened again when it is lost.
pub(crate) struct QuicConnector {
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
    config: ClientConfig,
    current: Arc<Mutex<Current>>,
}

/// The socket, once there was a connection, and the newest connection.
#[derive(Default)]
struct Current {
    endpoint: Option<Endpoint>,
    connection: Option<Connection>,
}

impl Drop for QuicConnector {
    fn drop(&mut self) {
        let (endpoint, runtime) = (self.current.lock().endpoint.take(), self.runtime.take());
        let close = move || {
            if let (Some(endpoint), Some(runtime)) = (endpoint, &runtime) {
                endpoint.close(0_u8.into(), b"");
                runtime.block_on(async { timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await.ok() });
            }
            drop(runtime);
        };
        // Closes the connection. A client may be dropped within another runtime, where waiting is not allowed.
        std::thread::Builder::new().name("stemma-quic-end".to_owned()).spawn(close).ok();
    }
}

impl QuicConnector {
    /// # Errors
    /// `Unavailable` if no thread can be started.
    pub(crate) fn new(tls: &rustls::ClientConfig) -> Result<Self> {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![QUIC_PROTOCOL.to_vec()];
        let tls = QuicClientConfig::try_from(tls).map_err(|error| Error::internal(error.to_string()))?;
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(KEEP_ALIVE_INTERVAL)).max_idle_timeout(SILENCE_MAX.try_into().ok());
        transport.congestion_controller_factory(Arc::new(quinn::congestion::BbrConfig::default()));
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("stemma-quic").enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::unavailable(format!("cannot start a thread for QUIC: {error}")))?;
        Ok(QuicConnector { runtime: Some(runtime), config, current: Arc::default() })
    }

    /// Opens a stream to a server.
    ///
    /// # Errors
    /// `TimedOut` at the deadline.
    pub(crate) fn open(&self, host: &str, port: u16, deadline: Instant) -> io::Result<StdStream> {
        let Some(runtime) = &self.runtime else { return Err(io::ErrorKind::NotConnected.into()) };
        let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let (ours, carried) = StdStream::pair()?;
        carried.set_nonblocking(true)?;
        let (sender, opened) = mpsc::channel();
        let (current, config, host) = (self.current.clone(), self.config.clone(), host.to_owned());
        runtime.spawn(async move {
            let stream = UnixStream::from_std(carried);
            let connected = match stream {
                Ok(stream) => connect(&current, config, address, &host).await.map(|connection| (connection, stream)),
                Err(error) => Err(error),
            };
            match connected {
                // Nobody waits for it anymore if this fails.
                Ok((connection, stream)) if sender.send(Ok(())).is_ok() => carry(&connection, stream).await,
                Ok(_) => {}
                Err(error) => drop(sender.send(Err(error))),
            }
        });
        let left = deadline.saturating_duration_since(Instant::now());
        opened.recv_timeout(left).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(ours)
    }
}

/// Returns the open connection, or opens one.
async fn connect(
    current: &Mutex<Current>,
    config: ClientConfig,
    address: SocketAddr,
    host: &str,
) -> io::Result<Connection> {
    let endpoint = {
        let mut current = current.lock();
        if let Some(connection) = current.connection.clone().filter(|connection| connection.close_reason().is_none()) {
            return Ok(connection);
        }
        let local = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        match &current.endpoint {
            // The server's name may have got an address of the other family.
            Some(endpoint) if endpoint.local_addr().is_ok_and(|bound| bound.is_ipv4() == local.is_ipv4()) => {
                endpoint.clone()
            }
            _ => {
                let socket = std::net::UdpSocket::bind(local)?;
                let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
                current.endpoint.insert(endpoint).clone()
            }
        }
    };
    let connecting = endpoint.connect_with(config, address, host).map_err(io::Error::other)?;
    let connection = connecting.await.map_err(io::Error::other)?;
    // Another thread may have connected at the same time; both connections serve the streams that they have.
    current.lock().connection = Some(connection.clone());
    Ok(connection)
}

/// Carries bytes in both directions until either side closes.
async fn carry(connection: &Connection, mut stream: UnixStream) {
    let Ok((to_server, from_server)) = connection.open_bi().await else { return };
    let mut remote = tokio::io::join(from_server, to_server);
    tokio::io::copy_bidirectional(&mut stream, &mut remote).await.ok();
}
