//! TLS connections, and certificates that are renewed while the server runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use stemmadb_server::{Config, Limits, Tls};

use crate::client::TestServer;

/// Much longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a new certificate for `localhost` and its key; returns the certificate.
fn certify(certificate: &Path, key: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(certificate, made.cert.pem()).unwrap();
    made.cert.der().clone()
}

/// Sends a request over TLS, trusting only this certificate.
fn ask(address: SocketAddr, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    ask_by(address, trusted, rustls::DEFAULT_VERSIONS)
}

/// The same with one of these TLS versions.
fn ask_by(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<String> {
    let mut stream = StreamOwned::new(client(trusted, versions, &[]), TcpStream::connect(address)?);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A client that trusts only this certificate, and offers these protocols.
fn client(
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&[u8]],
) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

/// A stream of such a client.
pub(crate) fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    protocols: &[&[u8]],
) -> StreamOwned<ClientConnection, TcpStream> {
    let client = client(trusted, rustls::DEFAULT_VERSIONS, protocols);
    StreamOwned::new(client, TcpStream::connect(address).unwrap())
}

/// A TLS server and its certificate.
pub(crate) fn encrypted(place: &Path, limits: Limits) -> (TestServer, CertificateDer<'static>) {
    let (certificate, key) = (place.join("certificate.pem"), place.join("key.pem"));
    let trusted = certify(&certificate, &key);
    let server = TestServer::with(|config| Config { tls: Some(Tls { certificate, key }), limits, ..config });
    (server, trusted)
}

/// The first message of a client whose latest version is this one: 3.1 is TLS 1.0, 3.3 is TLS 1.2.
fn hello_of(version: [u8; 2]) -> Vec<u8> {
    // Cipher suites for any version, then groups, point formats, and signatures.
    let ciphers = [0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x09, 0xc0, 0x13, 0x00, 0x2f];
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 6, 0, 4, 4, 3, 8, 4];
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    hello.extend([0, 0, ciphers.len() as u8]);
    hello.extend(ciphers);
    hello.extend([1, 0, 0, extensions.len() as u8]);
    hello.extend(extensions);
    let mut message = vec![22, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    message.extend(hello);
    message
}

#[test]
fn old_tls_versions_are_rejected() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let place = tempfile::tempdir().unwrap();
    let limits = Limits { handshake_timeout: Duration::from_secs(2), ..Limits::default() };
    let (server, trusted) = encrypted(place.path(), limits);
    let answer = |version| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&hello_of(version)).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        answer
    };
    for version in [[3, 0], [3, 1], [3, 2]] {
        // A fatal alert about the protocol version.
        let answer = answer(version);
        assert!(answer.first() == Some(&21) && answer.ends_with(&[2, 70]), "{version:?}: {answer:?}");
    }
    // With a supported version, the same handshake continues.
    assert_eq!(answer([3, 3]).get(..3), Some(&[22, 3, 3][..]));
    for version in [&TLS12, &TLS13] {
        let answer = ask_by(server.address(), &trusted, &[version]).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{version:?}: {answer}");
    }
}

#[test]
fn incomplete_tls_handshake_is_closed() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let place = tempfile::tempdir().unwrap();
    let limits = Limits { handshake_timeout: Duration::from_millis(100), ..Limits::default() };
    let (server, _) = encrypted(place.path(), limits);
    // No data, and half of a first message.
    for said in [&[][..], &hello_of([3, 3])[..20]] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(said).unwrap();
        let still_there = stream
            .read(&mut [0; 64])
            .is_err_and(|error| matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
        assert!(!still_there, "who said {} bytes is waited for", said.len());
    }
}

#[test]
fn tls_certificate_is_reloaded() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let place = tempfile::tempdir().unwrap();
    let (certificate, key) = (place.path().join("certificate.pem"), place.path().join("key.pem"));
    let first = certify(&certificate, &key);
    let tls = Tls { certificate: certificate.clone(), key: key.clone() };
    let server = TestServer::with(|config| Config { tls: Some(tls), ..config });
    let answer = ask(server.address(), &first).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Welcome"), "{answer}");
    // Unencrypted requests are not understood.
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).ok();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    let second = certify(&certificate, &key);
    assert_ne!(first, second);
    let started = std::time::Instant::now();
    while ask(server.address(), &second).is_err() {
        assert!(started.elapsed().as_secs() < 30, "the new certificate is never used");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(ask(server.address(), &first).is_err(), "the old certificate is no longer used");
    // An unusable certificate is ignored.
    std::fs::write(&certificate, "no certificate").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(ask(server.address(), &second).is_ok());
}

#[test]
fn server_does_not_start_with_an_invalid_certificate() {
    let place = tempfile::tempdir().unwrap();
    let (certificate, key, other) =
        (place.path().join("c.pem"), place.path().join("k.pem"), place.path().join("o.pem"));
    certify(&other, &key);
    certify(&certificate, &other);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for (certificate, key) in [(&certificate, &key), (&key, &key), (&place.path().join("nothing"), &key)] {
        let tls = Tls { certificate: certificate.clone(), key: key.clone() };
        let config =
            Config { tls: Some(tls), address: ([127, 0, 0, 1], 0).into(), ..Config::new(place.path().join("dbs")) };
        assert!(runtime.block_on(stemmadb_server::Server::start(config)).is_err());
    }
}
