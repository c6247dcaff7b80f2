//! Request smuggling: messages that two servers could delimit differently are refused and the connection is closed, so
//! that the rest is never read as a request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::json;
use stemmadb_server::{Config, Limits};

use crate::client::{TestServer, raw_response};

/// A request that would be read if the message before it ended elsewhere.
const SMUGGLED: &str = "GET /db/smuggled HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Header fields that make the end of a message ambiguous.
const AMBIGUOUS: [&str; 13] = [
    "Content-Length: 3\r\nContent-Length: 4",
    "Content-Length: 3, 4",
    "Content-Length: +5",
    "Content-Length: -1",
    "Content-Length: 0x3",
    "Content-Length: 3 3",
    "Content-Length: ",
    "Content-Length: 99999999999999999999999",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: gzip",
];

/// A message with such fields.
fn ambiguous(fields: &str) -> String {
    format!("POST /db HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n0\r\n\r\n{SMUGGLED}")
}

fn server() -> TestServer {
    // Clients that have not completed a message are disconnected soon.
    let moment = Duration::from_secs(1);
    let limits = Limits { head_timeout: moment, stall_timeout: moment, ..Limits::default() };
    let server = TestServer::with(|config| Config { limits, ..config });
    server.database("db", &[json!({"_id": "a"})]);
    server
}

/// The number of responses, and the status of the first one.
fn answers(address: SocketAddr, message: &str) -> (usize, Option<u16>) {
    let answer = raw_response(address, message.as_bytes());
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    (answer.matches("HTTP/1.1 ").count(), status)
}

#[test]
fn ambiguous_lengths_are_rejected() {
    let server = server();
    for fields in AMBIGUOUS {
        assert_eq!(answers(server.address(), &ambiguous(fields)), (1, Some(400)), "{fields}");
    }
}

/// Reads up to a terminator.
fn received(stream: &mut TcpStream, end: &str) -> String {
    let mut message = Vec::new();
    while !message.ends_with(end.as_bytes()) {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "it ended before {end:?}");
        message.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(message).unwrap()
}

/// A deliberately lenient server: it reads chunks regardless of other fields, and responds to every request that it
/// finds.
fn lenient() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().take(AMBIGUOUS.len()).flatten() {
            let text = received(&mut stream, SMUGGLED);
            let requests = text.split("\r\n0\r\n\r\n").count();
            stream.write_all("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(requests).as_bytes()).unwrap();
        }
    });
    address
}

/// Verifies the messages and the detection: with a lenient server the tests fail.
#[test]
fn lenient_server_is_detected() {
    let address = lenient();
    for fields in AMBIGUOUS {
        assert_eq!(answers(address, &ambiguous(fields)), (2, Some(200)), "{fields}");
    }
}

/// The preface of an HTTP/2 client with prior knowledge, and an upgrade request.
const PRIOR_KNOWLEDGE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const UPGRADE_REQUEST: &str = "GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
    Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n";

/// Whether a server handles both as HTTP/1 only: it refuses the first and responds to the second as if there were no
/// upgrade.
fn speaks_http1_only(address: SocketAddr) -> bool {
    let known = raw_response(address, PRIOR_KNOWLEDGE.as_bytes());
    let closing = "GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    (known.is_empty() || known.starts_with("HTTP/1.1 400 "))
        && answers(address, &format!("{UPGRADE_REQUEST}{closing}")) == (2, Some(200))
}

/// Without TLS, the server speaks HTTP/1 only.
#[test]
fn http2_is_not_spoken() {
    assert!(speaks_http1_only(server().address()));
}

#[test]
fn http2_server_is_detected() {
    let settings = &b"\0\0\0\x04\0\0\0\0\0"[..];
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let right = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (to_who_knows, to_who_asks, is_one) in
        [(settings, &right[..], false), (b"", &switched[..], false), (b"", &right[..], true)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (answer, mut stream) in [to_who_knows, to_who_asks].into_iter().zip(listener.incoming().flatten()) {
                let end = if answer == to_who_knows { "SM\r\n\r\n" } else { "close\r\n\r\n" };
                received(&mut stream, end);
                stream.write_all(answer).unwrap();
            }
        });
        assert_eq!(speaks_http1_only(address), is_one, "{to_who_knows:?} {to_who_asks:?}");
    }
}

#[test]
fn length_with_chunks_closes_the_connection() {
    let server = server();
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
    ] {
        let message = format!("POST /_session HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n0\r\n\r\n{SMUGGLED}");
        assert_eq!(answers(server.address(), &message).0, 1, "{fields}");
    }
}

#[test]
fn malformed_heads_are_rejected() {
    let server = server();
    for head in [
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX : a\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
        "GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: localhost\r\n\r\n",
        "GET / HTTP/3.7\r\nHost: localhost\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET\t/\tHTTP/1.1\r\nHost: localhost\r\n\r\n",
        "G\x00T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let (count, status) = answers(server.address(), &format!("{head}{SMUGGLED}"));
        assert!(count <= 1 && status.is_none_or(|status| status == 400), "{head:?}: {count} answers, {status:?}");
    }
}

#[test]
fn duplicate_host_headers_are_rejected() {
    let server = server();
    for hosts in [
        "Host: localhost\r\nHost: evil.example",
        "Host: evil.example\r\nHost: localhost",
        "Host: localhost\r\nHost: localhost",
    ] {
        let message = format!("GET / HTTP/1.1\r\n{hosts}\r\nConnection: close\r\n\r\n");
        assert_eq!(answers(server.address(), &message), (1, Some(400)), "{hosts}");
    }
}

#[test]
fn malformed_chunks_close_the_connection() {
    let server = server();
    for chunks in [
        "5\r\nab\r\n0\r\n\r\n",
        "-1\r\n\r\n0\r\n\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "1 \x0b\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "fffffffffffffffff\r\na\r\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\na\n0\n\n",
        "zz\r\n",
    ] {
        let message = format!(
            "POST /_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: \
            chunked\r\n\r\n{chunks}{SMUGGLED}"
        );
        let (count, status) = answers(server.address(), &message);
        assert!(count <= 1 && status.is_none_or(|status| status >= 400), "{chunks:?}: {count} answers, {status:?}");
    }
    // Very long chunk extensions do not keep a thread busy.
    let message = format!(
        "POST /_session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        format!("1;{}\r\na\r\n", "x".repeat(1000)).repeat(100)
    );
    assert!(answers(server.address(), &message).0 <= 1);
}

#[test]
fn valid_pipelined_requests_are_answered_in_order() {
    let server = server();
    let two = "POST /_session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}GET /_up HTTP/1.1\r\nHost: \
    localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(answers(server.address(), two).0, 2);
    // A method name in a header or a parameter is not a method.
    for name in ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"] {
        assert_eq!(
            server.send_as_admin("GET", "/db/a?_method=DELETE&method=DELETE", &[(name, "DELETE")], b"").status,
            200
        );
    }
    assert_eq!(server.get("/db/a").status, 200);
}

#[test]
fn requests_without_a_host_are_rejected() {
    let server = server();
    let answer = |version: &str| answers(server.address(), &format!("GET / {version}\r\nConnection: close\r\n\r\n"));
    assert_eq!((answer("HTTP/1.1").1, answer("HTTP/1.0").1), (Some(400), Some(200)));
}

/// Reads one response with a JSON body.
fn one_response(stream: &mut TcpStream) -> String {
    received(stream, "}\n")
}

#[test]
fn connection_is_usable_after_an_unread_body() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"})]);
    let next = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for path in ["/db/_bulk_docs", "/nothing/_bulk_docs", "/db/_nothing/x/y"] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // The body arrives after the server could have answered.
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&[b' '; 100_000]).unwrap();
        let refused = one_response(&mut stream);
        assert!(refused.starts_with("HTTP/1.1 40"), "{refused}");
        assert!(!refused.to_ascii_lowercase().contains("connection: close"), "{refused}");
        stream.write_all(next.as_bytes()).unwrap();
        assert!(one_response(&mut stream).starts_with("HTTP/1.1 200"), "{path}");
    }
}

#[test]
fn connection_with_too_much_unread_is_announced_as_closed() {
    let server = TestServer::new();
    for more in ["Content-Length: 10000000\r\n", "Content-Length: 10\r\nExpect: 100-continue\r\n"] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("POST /_replicate HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let refused = one_response(&mut stream);
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(refused.to_ascii_lowercase().contains("connection: close"), "{refused}");
    }
}
