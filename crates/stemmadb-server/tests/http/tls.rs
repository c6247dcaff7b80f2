//! Encrypted connections, and certificates that are renewed while the server runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use stemmadb_server::{Config, Tls};

use crate::client::Started;

/// Writes a new certificate for `localhost` and its key; returns the certificate.
fn certify(certificate: &Path, key: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(certificate, made.cert.pem()).unwrap();
    made.cert.der().clone()
}

/// Asks over TLS, trusting this certificate alone.
fn ask(address: SocketAddr, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn what_is_said_is_encrypted_and_the_certificate_is_renewed() {
    let place = tempfile::tempdir().unwrap();
    let (certificate, key) = (place.path().join("certificate.pem"), place.path().join("key.pem"));
    let first = certify(&certificate, &key);
    let tls = Tls { certificate: certificate.clone(), key: key.clone() };
    let server = Started::with(|config| Config { tls: Some(tls), ..config });
    let answer = ask(server.address(), &first).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Welcome"), "{answer}");
    // Who speaks without encryption is not understood.
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
    assert!(ask(server.address(), &first).is_err(), "the old one is not used any more");
    // One that can't be used changes nothing.
    std::fs::write(&certificate, "no certificate").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(ask(server.address(), &second).is_ok());
}

#[test]
fn a_server_does_not_start_with_a_certificate_that_is_none() {
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
