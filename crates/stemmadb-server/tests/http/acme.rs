//! Certificates from an ACME server: a real one, Pebble, which connects to the server to verify its address.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use stemmadb_server::{Acme, Config};

use crate::client::TestServer;
use crate::go;

const MODULE: &str = "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.8.0";
/// Much longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running ACME server, whose own certificate is in its directory.
struct Pebble {
    process: Child,
    port: u16,
    management_port: u16,
    directory: tempfile::TempDir,
}

impl Pebble {
    /// Starts a server that verifies addresses at `tls_port`; `None`, with a message, if it can't be built here.
    fn start(tls_port: u16) -> Option<Self> {
        let program = go::program(MODULE)?;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(path("certificate.pem"), made.cert.pem()).unwrap();
        std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let (port, management_port) = (free_port(), free_port());
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management_port}"),
            "certificate": path("certificate.pem"),
            "privateKey": path("key.pem"),
            "httpPort": free_port(),
            "tlsPort": tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "profiles": {"default": {"description": "", "validityPeriod": 7_776_000}},
        }});
        std::fs::write(path("config.json"), config.to_string()).unwrap();
        let log = std::fs::File::create(path("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("-config").arg(path("config.json")).env("PEBBLE_VA_NOSLEEP", "1");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let pebble = Pebble { process: command.spawn().unwrap(), port, management_port, directory };
        let start = Instant::now();
        while [port, management_port].iter().any(|port| TcpStream::connect(("127.0.0.1", *port)).is_err()) {
            assert!(start.elapsed() < TIMEOUT, "{}", pebble.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(pebble)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The root of the certificates that it issues.
    fn root(&self) -> CertificateDer<'static> {
        let own = CertificateDer::from_pem_file(self.directory.path().join("certificate.pem")).unwrap();
        let answer = ask(self.management_port, "localhost", own, "/roots/0").unwrap();
        CertificateDer::from_pem_slice(answer.as_bytes()).unwrap()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends a request over TLS to a server with this name, trusting only this certificate and what it signed.
fn ask(port: u16, name: &'static str, trusted: CertificateDer<'static>, path: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(("127.0.0.1", port))?);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Waits until the server has a certificate that this one signed.
fn wait_for_certificate(port: u16, root: &CertificateDer<'static>, pebble: &Pebble) {
    let start = Instant::now();
    while let Err(error) = ask(port, "127.0.0.1", root.clone(), "/_up") {
        assert!(start.elapsed() < TIMEOUT, "{error}: {}", pebble.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn certificate_is_obtained_kept_and_renewed() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let port = free_port();
    let Some(pebble) = Pebble::start(port) else { return };
    let acme = Acme {
        domains: vec!["127.0.0.1".to_owned()],
        contact: vec!["admin@example.org".to_owned()],
        directory: Some(format!("https://localhost:{}/dir", pebble.port)),
        ca: Some(pebble.directory.path().join("certificate.pem")),
    };
    let mut server = TestServer::with(|config| Config { address: ([127, 0, 0, 1], port).into(), acme, ..config });
    let root = pebble.root();
    wait_for_certificate(port, &root, &pebble);
    let files = server.directory().join(".acme");
    let read = |name: &str| std::fs::read_to_string(files.join(name)).unwrap();
    let (account, certificate) = (read("account.json"), read("certificate.pem"));
    assert_private(&files.join("key.pem"));
    assert_private(&files.join("account.json"));
    // The directory is not a database.
    assert!(!ask(port, "127.0.0.1", root.clone(), "/_all_dbs").unwrap().contains("acme"));
    // A restarted server has one.
    server.restart();
    wait_for_certificate(port, &root, &pebble);
    assert_eq!(read("certificate.pem"), certificate);
    // One that is lost is obtained again, with the same account.
    std::fs::remove_file(files.join("certificate.pem")).unwrap();
    server.restart();
    wait_for_certificate(port, &root, &pebble);
    assert_ne!(read("certificate.pem"), certificate);
    assert_eq!(read("account.json"), account);
}

fn assert_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
}
