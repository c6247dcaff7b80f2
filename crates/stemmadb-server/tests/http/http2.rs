//! HTTP/2 over TLS.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use stemmadb_server::Limits;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::client::{TestServer, basic};

/// Much longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection, and the task that ends with it.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    async fn open(address: SocketAddr, trusted: &CertificateDer<'static>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream =
            TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        Connection { sender, driver: tokio::spawn(connection) }
    }

    /// Sends a request as the administrator; returns the head of the response and its body, which may be unfinished.
    fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header("authorization", basic("admin", "secret"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let mut sender = self.sender.clone();
        async move {
            sender.ready().await?;
            sender.send_request(request).await
        }
    }

    /// Sends a request; returns the status and the JSON of the response.
    async fn ask(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.send(method, path, body).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }
}

fn server(limits: Limits) -> (TestServer, CertificateDer<'static>, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let (server, trusted) = crate::tls::encrypted(place.path(), limits);
    (server, trusted, place)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("it takes too long") });
}

#[test]
fn requests_share_a_connection_with_a_feed() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let (server, trusted, _place) = server(Limits::default());
    run(async {
        let connection = Connection::open(server.address(), &trusted).await;
        assert_eq!(connection.ask(Method::PUT, "/shop", &Value::Null).await.0, StatusCode::CREATED);
        let feed =
            connection.send(Method::GET, "/shop/_changes?feed=continuous&heartbeat=1000", String::new()).await.unwrap();
        assert_eq!(feed.status(), StatusCode::OK);
        let puts: Vec<_> = (0..50)
            .map(|number| connection.send(Method::PUT, &format!("/shop/doc-{number}"), format!("{{\"n\":{number}}}")))
            .collect();
        // All are under way before the first is waited for.
        let puts: Vec<_> = puts.into_iter().map(tokio::spawn).collect();
        for put in puts {
            let response = put.await.unwrap().unwrap();
            assert_eq!(response.status(), StatusCode::CREATED);
            assert!(response.headers()["location"].to_str().unwrap().starts_with("http"), "{:?}", response.headers());
            assert!(response.headers()["location"].to_str().unwrap().contains("//localhost/shop/doc-"));
            assert!(!response.headers().contains_key("connection"));
        }
        let mut feed = feed.into_body();
        let mut text = String::new();
        while text.matches("\"id\"").count() < 50 {
            let frame = feed.frame().await.expect("the feed goes on").unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        let (status, found) = connection.ask(Method::POST, "/shop/_find", &json!({"selector": {"n": 7}})).await;
        assert_eq!((status, &found["docs"][0]["_id"]), (StatusCode::OK, &json!("doc-7")));
        // A client that leaves one stream keeps the others.
        drop(feed);
        assert_eq!(connection.ask(Method::GET, "/shop/doc-7", &Value::Null).await.1["n"], 7);
    });
}

#[test]
fn refused_body_costs_only_its_request() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let limits = Limits { body_bytes: 10_000, ..Limits::default() };
    let (server, trusted, _place) = server(limits);
    run(async {
        let connection = Connection::open(server.address(), &trusted).await;
        connection.ask(Method::PUT, "/shop", &Value::Null).await;
        for _ in 0..3 {
            let large = format!("{{\"text\":\"{}\"}}", "x".repeat(20_000_000));
            // The server may end the stream before the whole body was sent.
            if let Ok(response) = connection.send(Method::PUT, "/shop/large", large).await {
                assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
            }
            assert_eq!(connection.ask(Method::GET, "/shop/large", &Value::Null).await.0, StatusCode::NOT_FOUND);
        }
        assert!(!connection.driver.is_finished());
    });
}

#[test]
fn missing_rights_are_refused() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let (server, trusted, _place) = server(Limits::default());
    run(async {
        let connection = Connection::open(server.address(), &trusted).await;
        let anonymous = Request::builder().uri("https://localhost/_all_dbs").body(Full::default()).unwrap();
        let response = connection.sender.clone().send_request(anonymous).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    });
}

#[test]
fn idle_connection_is_closed_but_not_one_with_a_feed() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let limits = Limits { head_timeout: Duration::from_secs(3), ..Limits::default() };
    let (server, trusted, _place) = server(limits);
    run(async {
        let (idle, used) =
            (Connection::open(server.address(), &trusted).await, Connection::open(server.address(), &trusted).await);
        used.ask(Method::PUT, "/shop", &Value::Null).await;
        let feed = used.send(Method::GET, "/shop/_changes?feed=continuous&heartbeat=250", String::new()).await.unwrap();
        idle.ask(Method::GET, "/", &Value::Null).await;
        idle.driver.await.unwrap().unwrap();
        let mut feed = feed.into_body();
        for _ in 0..20 {
            feed.frame().await.expect("the feed goes on").unwrap();
        }
        assert!(!used.driver.is_finished());
        drop(feed);
        used.driver.await.unwrap().unwrap();
    });
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `GET https://localhost/`, compressed.
const GET: &[u8] = b"\x82\x87\x84\x41\x09localhost";

/// Sends the preface and then what `next` makes, as long as the server takes it; returns how many it took.
fn flood(address: SocketAddr, trusted: &CertificateDer<'static>, mut next: impl FnMut(u32) -> Vec<u8>) -> u32 {
    const FLOOD_MAX: u32 = 200_000;
    let mut stream = crate::tls::connect(address, trusted, &[b"h2"]);
    stream.sock.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    for number in 0..FLOOD_MAX {
        if stream.write_all(&next(number)).is_err() {
            return number;
        }
        // Takes the answers, so that the server is not held up by them.
        let read = if number % 64 == 0 { stream.read(&mut [0; 16 << 10]) } else { continue };
        match read {
            Ok(0) => return number,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return number,
            _ => {}
        }
    }
    panic!("the server takes all of a flood");
}

/// Requests that are taken back at once, and a head that never ends.
#[test]
fn floods_of_frames_end_their_connection_only() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let (server, trusted, _place) = server(Limits::default());
    let resets = |number: u32| {
        let stream = 2 * number + 1;
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        [frame(HEADERS, END_STREAM | END_HEADERS, stream, GET), reset].concat()
    };
    let endless_head = |number: u32| match number {
        0 => frame(HEADERS, END_STREAM, 1, GET),
        _ => frame(CONTINUATION, 0, 1, &[b"\x00\x01x\x7f\x89\x1f", &[b'y'; 400][..]].concat()),
    };
    let (of_resets, of_heads) =
        (flood(server.address(), &trusted, resets), flood(server.address(), &trusted, endless_head));
    println!("ended after {of_resets} resets and {of_heads} parts of a head");
    run(async {
        let connection = Connection::open(server.address(), &trusted).await;
        assert_eq!(connection.ask(Method::GET, "/", &Value::Null).await.0, StatusCode::OK);
    });
}
