//! Servers for tests, with the wire protocol over each transport, and a proxy that cuts connections.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stemmadb_client::{AnyDatabase, Client, ClientOptions, Encoding, TlsTrust};
use stemmadb_server::{Administrator, Config, Server, ServerBuilder, Tls, Wire};

/// How long a condition may take on an overloaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How a test reaches its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Embedded,
    Tcp,
    Packed,
    Tls,
    Unix,
    WebSocket,
    SecureWebSocket,
    Quic,
    /// TCP, to a virtual database of several shards.
    Virtual,
}

/// Defines a test for each transport.
#[allow(unused_macros, reason = "each test program uses a part")]
macro_rules! conformance {
    (virtual_database: $($name:ident)+) => {
        conformance!(@ virtual_database Virtual $($name)+);
    };
    ($($name:ident)+) => {
        conformance!(@ embedded Embedded $($name)+);
        conformance!(@ tcp Tcp $($name)+);
        conformance!(@ packed Packed $($name)+);
        conformance!(@ tls Tls $($name)+);
        #[cfg(unix)]
        conformance!(@ unix Unix $($name)+);
        #[cfg(unix)]
        conformance!(@ websocket WebSocket $($name)+);
        #[cfg(unix)]
        conformance!(@ quic Quic $($name)+);
    };
    (@ $module:ident $transport:ident $($name:ident)+) => {
        mod $module {
            $(#[test]
            fn $name() {
                crate::support::with_database(crate::support::Transport::$transport, super::$name);
            })+
        }
    };
}
#[allow(unused_imports, reason = "each test program uses a part")]
pub(crate) use conformance;

/// Defines a test for each transport whose connections can be cut by a proxy.
#[allow(unused_macros, reason = "each test program uses a part")]
macro_rules! over_each_transport {
    ($($name:ident)+) => {
        over_each_transport!(@ tcp Tcp $($name)+);
        #[cfg(unix)]
        over_each_transport!(@ websocket WebSocket $($name)+);
    };
    (@ $module:ident $transport:ident $($name:ident)+) => {
        mod $module {
            $(#[test]
            fn $name() {
                super::$name(crate::support::Transport::$transport);
            })+
        }
    };
}
#[allow(unused_imports, reason = "each test program uses a part")]
pub(crate) use over_each_transport;

/// A server that ends with the test.
pub(crate) struct TestServer {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    transport: Transport,
    pub(crate) config: Config,
    directory: tempfile::TempDir,
    build: fn(Config) -> ServerBuilder,
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl TestServer {
    pub(crate) fn start(transport: Transport) -> Self {
        Self::start_with(transport, |_| ())
    }

    pub(crate) fn start_with(transport: Transport, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_built(transport, change, Server::builder)
    }

    /// Starts a server that `build` makes of its configuration.
    pub(crate) fn start_built(
        transport: Transport,
        change: impl FnOnce(&mut Config),
        build: fn(Config) -> ServerBuilder,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config {
            address: loopback(),
            administrator: Some(Administrator { name: "root".into(), password: "geheim".into() }),
            wire: Wire { address: Some(loopback()), ..Wire::default() },
            ..Config::new(directory.path().join("databases"))
        };
        if transport == Transport::Unix {
            config.wire = Wire { unix: Some(directory.path().join("socket")), ..Wire::default() };
        }
        if matches!(transport, Transport::WebSocket | Transport::SecureWebSocket | Transport::Quic) {
            config.wire.address = None;
        }
        if transport == Transport::Quic {
            config.wire.quic = Some(loopback());
        }
        if matches!(transport, Transport::Tls | Transport::SecureWebSocket | Transport::Quic) {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let (certificate, key) = (directory.path().join("certificate.pem"), directory.path().join("key.pem"));
            std::fs::write(&certificate, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
            config.tls = Some(Tls { certificate, key });
        }
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut server = TestServer { runtime, server: None, transport, config, directory, build };
        server.restart();
        server
    }

    /// Starts the server, at the same address as before.
    pub(crate) fn restart(&mut self) {
        assert!(self.server.is_none());
        let begun = Instant::now();
        let server = loop {
            match self.runtime.block_on((self.build)(self.config.clone()).start()) {
                Ok(server) => break server,
                // The runtime closes the UDP socket of the stopped server a moment later; another test's connection
                // may have the port meanwhile.
                Err(failure) if format!("{failure:?}").contains("cannot listen") && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(failure) => panic!("the server does not start: {failure:?}"),
            }
        };
        self.config.address = server.address();
        if let Some(address) = server.quic_address() {
            self.config.wire.quic = Some(address);
        }
        if let Some(address) = server.wire_address() {
            self.config.wire.address = Some(address);
        }
        self.server = Some(server);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The address that clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.config.wire.address.or(self.config.wire.quic).unwrap_or(self.config.address)
    }

    /// The URL of a client with these credentials, `user:password@` or nothing.
    pub(crate) fn url(&self, credentials: &str) -> String {
        if let Some(path) = &self.config.wire.unix {
            assert_eq!(credentials, "", "a URL of a Unix socket has no user");
            return format!("stemma+unix://{}", path.display());
        }
        self.url_at(self.address(), credentials)
    }

    /// As [`TestServer::url`], of a proxy at this address.
    pub(crate) fn url_at(&self, address: SocketAddr, credentials: &str) -> String {
        let scheme = match self.transport {
            Transport::Tls => "stemma+tls",
            Transport::WebSocket => "http",
            Transport::SecureWebSocket => "stemma+wss",
            Transport::Quic => "stemma+quic",
            _ => "stemma",
        };
        match self.config.tls {
            Some(_) => format!("{scheme}://{credentials}localhost:{}", address.port()),
            None => format!("{scheme}://{credentials}{address}"),
        }
    }

    fn certificate(&self) -> PathBuf {
        self.directory.path().join("certificate.pem")
    }

    pub(crate) fn options(&self) -> ClientOptions {
        let options = ClientOptions::new().timeout(PATIENCE);
        if self.config.tls.is_some() { options.trust(TlsTrust::File(self.certificate())) } else { options }
    }

    /// Sends an administrator's request over HTTP; returns the whole answer, which must be a success.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.server.as_ref().unwrap().address()).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Basic cm9vdDpnZWhlaW0=\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        answer
    }

    /// Sets the administrators and members of a database.
    pub(crate) fn set_security(&self, database: &str, security: &stemmadb::Value) {
        self.http("PUT", &format!("/{database}/_security"), &security.to_json());
    }

    /// A client of the administrator.
    pub(crate) fn client(&self) -> Client {
        self.client_with(self.options())
    }

    pub(crate) fn client_with(&self, options: ClientOptions) -> Client {
        let credentials = stemmadb_client::Credentials::Password { user: "root".into(), password: "geheim".into() };
        Client::connect_with(&self.url(""), options.credentials(credentials)).unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a test with a new database over a transport.
pub(crate) fn with_database(transport: Transport, test: impl FnOnce(&AnyDatabase)) {
    if transport == Transport::Embedded {
        return test(&stemmadb::Database::in_memory().into());
    }
    let server = TestServer::start(transport);
    let encoding = match transport {
        Transport::Packed => Encoding::Packed,
        Transport::Unix => Encoding::Json,
        _ => Encoding::default(),
    };
    let client = server.client_with(server.options().encoding(encoding));
    let database = match transport {
        Transport::Virtual => {
            server.http("PUT", "/shop?shards=3", "");
            client.database("shop")
        }
        _ => client.create_database("shop").unwrap(),
    };
    test(&database.into());
}

/// Waits until `condition` is true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A proxy before a server. Each connection forwards so many bytes in all as the budget says, and is cut then.
pub(crate) struct CuttingProxy {
    pub(crate) address: SocketAddr,
    /// The bytes that the next connection forwards, in both directions.
    pub(crate) budget: Arc<AtomicUsize>,
    /// The connections that were cut because their budget was used up.
    pub(crate) cut_count: Arc<AtomicUsize>,
}

impl CuttingProxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let (budget, cut_count) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(AtomicUsize::new(0)));
        let (next, cuts) = (budget.clone(), cut_count.clone());
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) else { continue };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                // Only one connection is cut; those after it live.
                let left = Arc::new(AtomicUsize::new(next.swap(usize::MAX, Ordering::SeqCst)));
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server.try_clone().unwrap(), client.try_clone().unwrap()),
                ] {
                    let (left, cuts) = (left.clone(), cuts.clone());
                    std::thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            let before = left.load(Ordering::SeqCst);
                            let allowed = count.min(before);
                            if before != usize::MAX {
                                left.fetch_sub(allowed, Ordering::SeqCst);
                            }
                            if to.write_all(&buffer[..allowed]).is_err() || allowed < count || before == allowed {
                                if before != usize::MAX {
                                    cuts.fetch_add(1, Ordering::SeqCst);
                                }
                                break;
                            }
                        }
                        from.shutdown(std::net::Shutdown::Both).ok();
                        to.shutdown(std::net::Shutdown::Both).ok();
                    });
                }
            }
        });
        CuttingProxy { address, budget, cut_count }
    }
}
