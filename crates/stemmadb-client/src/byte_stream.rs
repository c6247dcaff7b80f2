//! The byte stream below a connection: TCP, TLS or a Unix socket, with deadlines.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use stemmadb::{Error, Result};

use crate::answer_wait::{AnswerWait, Expected};
use crate::options::{ClientOptions, TlsTrust};
use crate::url::Address;

enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let received = match self {
            Socket::Tcp(stream) => recv(stream, buffer, flags),
            #[cfg(unix)]
            Socket::Unix(stream) => recv(stream, buffer, flags),
        };
        Ok(received?.0)
    }

    /// Sleeps until bytes arrive, at most for `time`.
    fn sleep(&self, time: Duration) -> io::Result<()> {
        let events = match self {
            Socket::Tcp(stream) => PollFd::new(stream, PollFlags::IN),
            #[cfg(unix)]
            Socket::Unix(stream) => PollFd::new(stream, PollFlags::IN),
        };
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        poll(&mut [events], Some(&time))?;
        Ok(())
    }
}

/// A connected byte stream.
pub(crate) struct ByteStream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
    /// Bytes that were received and not decrypted yet.
    received: Vec<u8>,
    read_timeout: Option<Duration>,
    wait: AnswerWait,
}

/// The bytes read from the network at once, if they have to be decrypted.
const ENCRYPTED_BYTES: usize = 17 * 1024;

/// The TLS configuration of a client.
///
/// # Errors
/// `Invalid` if certificates can't be read.
pub(crate) fn tls_config(trust: &TlsTrust) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match trust {
        TlsTrust::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        TlsTrust::File(path) => {
            let wrong = |error: &dyn std::fmt::Display| Error::invalid(format!("{}: {error}", path.display()));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))? {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Error::internal(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

impl ByteStream {
    /// Connects to a server.
    pub(crate) fn connect(
        address: &Address,
        options: &ClientOptions,
        tls: Option<&Arc<ClientConfig>>,
        timeout: Duration,
    ) -> io::Result<Self> {
        let (socket, tls) = match address {
            Address::Tcp { host, port, is_encrypted } | Address::WebSocket { host, port, is_encrypted, .. } => {
                let stream = connect_tcp(host, *port, timeout)?;
                stream.set_nodelay(true)?;
                let tls = match (is_encrypted, tls) {
                    (true, Some(config)) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
                        tls.set_buffer_limit(None);
                        Some(Box::new(tls))
                    }
                    _ => None,
                };
                (Socket::Tcp(stream), tls)
            }
            #[cfg(unix)]
            Address::Unix(path) => (Socket::Unix(UnixStream::connect(path)?), None),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
            // Its streams come from a connector.
            Address::Quic { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self::new(socket, tls, options))
    }

    fn new(socket: Socket, tls: Option<Box<ClientConnection>>, options: &ClientOptions) -> Self {
        let wait = AnswerWait::new(options.poll_time);
        ByteStream { socket, tls, received: Vec::new(), read_timeout: None, wait }
    }

    /// The end of a pair of sockets, whose other end is carried to the server.
    #[cfg(all(unix, feature = "quic"))]
    pub(crate) fn local(stream: UnixStream, options: &ClientOptions) -> Self {
        Self::new(Socket::Unix(stream), None, options)
    }

    /// Returns a function that closes the connection from another thread.
    pub(crate) fn closer(&self) -> io::Result<impl Fn() + Send + Sync + 'static> {
        let socket = match &self.socket {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            #[cfg(unix)]
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
        };
        Ok(move || {
            // It may be closed already.
            match &socket {
                Socket::Tcp(stream) => stream.shutdown(Shutdown::Both).ok(),
                #[cfg(unix)]
                Socket::Unix(stream) => stream.shutdown(Shutdown::Both).ok(),
            };
        })
    }

    /// Notes that a request of this kind was sent, whose answer comes next.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.wait.expect(expected);
    }

    /// Sets how long sends may make no progress.
    pub(crate) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        // A system call is saved if the difference does not matter.
        if self.read_timeout.is_some_and(|current| current.abs_diff(timeout) < timeout / 8) {
            return Ok(());
        }
        self.read_timeout = Some(timeout);
        match &self.socket {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => (&*stream).write_all(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    /// Sends all bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.send(bytes),
            Some(tls) => {
                tls.writer().write_all(bytes)?;
                self.send_pending()
            }
        }
    }

    fn send_pending(&mut self) -> io::Result<()> {
        let mut encrypted = Vec::new();
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut encrypted)?;
            }
        }
        self.send(&encrypted)
    }

    /// Reads bytes; 0 at the end.
    ///
    /// # Errors
    /// `TimedOut` at the deadline.
    pub(crate) fn read(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.receive_until(buffer, deadline);
        }
        loop {
            if let Some(tls) = &mut self.tls {
                match tls.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return result,
                }
            }
            if self.received.is_empty() {
                let mut received = std::mem::take(&mut self.received);
                received.resize(ENCRYPTED_BYTES, 0);
                let count = self.receive_until(&mut received, deadline);
                received.truncate(*count.as_ref().unwrap_or(&0));
                self.received = received;
                if count? == 0 {
                    return Ok(0);
                }
            }
            // Decrypts a part: rustls refuses more while what was decrypted is not read.
            if let Some(tls) = &mut self.tls {
                let taken = tls.read_tls(&mut &self.received[..])?;
                self.received.drain(..taken);
                tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                if tls.wants_write() {
                    self.send_pending()?;
                }
            }
        }
    }

    /// Polls when bytes are likely to arrive, then sleeps until some do or the deadline passes. Returns bytes that are
    /// there already also after the deadline.
    fn receive_until(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let socket = &self.socket;
        let sleep = |time: Duration| socket.sleep(time.min(deadline.saturating_duration_since(Instant::now())));
        let received = self.wait.poll(sleep, || socket.receive(buffer, RecvFlags::DONTWAIT));
        if let Some(result) = received {
            return result;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let received = match left.is_zero() {
                true => self.socket.receive(buffer, RecvFlags::DONTWAIT),
                false => {
                    self.set_read_timeout(left)?;
                    self.socket.receive(buffer, RecvFlags::empty())
                }
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && left.is_zero() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                result => {
                    self.wait.note_received();
                    return result;
                }
            }
        }
    }
}

fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
