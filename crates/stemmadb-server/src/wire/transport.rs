//! The byte streams of connections: TCP, TLS and Unix sockets. One thread reads while others write.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{RecvFlags, recv};
use rustls::{ServerConfig, ServerConnection};

/// The bytes read from the network at once, if they have to be decrypted.
const ENCRYPTED_BYTES: usize = 17 * 1024;

/// A connected socket.
pub(super) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Receives bytes; with `is_polling`, returns `WouldBlock` instead of waiting.
    fn receive(&self, buffer: &mut [u8], is_polling: bool) -> io::Result<usize> {
        let flags = if is_polling { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let received = match self {
            Socket::Tcp(stream) => recv(stream, buffer, flags),
            #[cfg(unix)]
            Socket::Unix(stream) => recv(stream, buffer, flags),
        };
        Ok(received?.0)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => (&*stream).write_all(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    /// Sets how long sends may make no progress.
    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn shut_down(&self) {
        match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both).ok(),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both).ok(),
        };
    }
}

/// A socket, with the state of its encryption.
pub(super) struct Transport {
    socket: Socket,
    tls: Option<Mutex<ServerConnection>>,
    /// Bytes that were received and not decrypted yet; only the reading thread uses them.
    received: Mutex<Vec<u8>>,
    /// Held while bytes are sent, so that frames and TLS records stay whole and in order.
    sending: Mutex<()>,
}

#[cfg(unix)]
impl std::os::fd::AsFd for Transport {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Transport {
    /// Frees memory that only a busy connection needs. Nothing may be reading.
    pub(super) fn release_memory(&self) {
        let mut received = self.received.lock();
        if received.is_empty() {
            *received = Vec::new();
        }
    }

    pub(super) fn new(socket: Socket, tls: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        let tls = tls.map(|config| {
            let mut connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            connection.set_buffer_limit(None);
            Ok::<_, io::Error>(Mutex::new(connection))
        });
        Ok(Transport { socket, tls: tls.transpose()?, received: Mutex::default(), sending: Mutex::new(()) })
    }

    /// Sets how long [`Transport::read`] waits before it fails with `WouldBlock` or `TimedOut`.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Reads bytes; 0 at the end. With `is_polling`, returns `WouldBlock` instead of waiting. Only one thread reads at
    /// a time.
    pub(super) fn read(&self, buffer: &mut [u8], is_polling: bool) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.receive(buffer, is_polling) };
        let mut received = self.received.lock();
        loop {
            match tls.lock().reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if received.is_empty() {
                received.resize(ENCRYPTED_BYTES, 0);
                let count = self.socket.receive(&mut received, is_polling);
                received.truncate(*count.as_ref().unwrap_or(&0));
                if count? == 0 {
                    return Ok(0);
                }
            }
            // Decrypts a part: rustls refuses more while what was decrypted is not read.
            let mut connection = tls.lock();
            let taken = connection.read_tls(&mut &received[..])?;
            received.drain(..taken);
            let processed = connection.process_new_packets();
            let must_answer = connection.wants_write();
            drop(connection);
            if let Err(error) = processed {
                // The peer is told why.
                self.send_pending(tls).ok();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            if must_answer {
                self.send_pending(tls)?;
            }
        }
    }

    /// Sends all bytes.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let sending = self.sending.lock();
        let Some(tls) = &self.tls else { return self.socket.send(bytes) };
        tls.lock().writer().write_all(bytes)?;
        drop(sending);
        self.send_pending(tls)
    }

    fn send_pending(&self, tls: &Mutex<ServerConnection>) -> io::Result<()> {
        let _sending = self.sending.lock();
        let mut encrypted = Vec::new();
        {
            let mut connection = tls.lock();
            while connection.wants_write() {
                connection.write_tls(&mut encrypted)?;
            }
        }
        self.socket.send(&encrypted)
    }

    /// Ends the connection: reads and writes of all threads fail.
    pub(super) fn shut_down(&self) {
        if let Some(tls) = &self.tls
            && let Some(mut connection) = tls.try_lock()
        {
            connection.send_close_notify();
            drop(connection);
            self.send_pending(tls).ok();
        }
        self.socket.shut_down();
    }
}
