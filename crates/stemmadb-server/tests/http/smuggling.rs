//! Messages that two servers could take apart differently: this one refuses them and hangs up, so that what follows is nobody's request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::json;
use stemmadb_server::{Config, Limits};

use crate::client::{Started, answer_to};

/// What would be taken for a request if the message before it ended elsewhere.
const SMUGGLED: &str = "GET /db/smuggled HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Fields that leave open where a message ends.
const UNCLEAR: [&str; 13] = [
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
fn unclear(fields: &str) -> String {
    format!("POST /db HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n0\r\n\r\n{SMUGGLED}")
}

fn server() -> Started {
    // Who waits for more of a message does so for a moment only.
    let moment = Duration::from_secs(1);
    let limits = Limits { head_timeout: moment, stall_timeout: moment, ..Limits::default() };
    let server = Started::with(|config| Config { limits, ..config });
    server.database("db", &[json!({"_id": "a"})]);
    server
}

/// How many answers came, and the first one's status.
fn answers(address: SocketAddr, message: &str) -> (usize, Option<u16>) {
    let answer = answer_to(address, message.as_bytes());
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    (answer.matches("HTTP/1.1 ").count(), status)
}

#[test]
fn lengths_that_are_unclear_are_refused() {
    let server = server();
    for fields in UNCLEAR {
        assert_eq!(answers(server.address(), &unclear(fields)), (1, Some(400)), "{fields}");
    }
}

/// What is sent, up to what it ends with.
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

/// A server that makes of each message what it can: it reads chunks whatever the fields say, and answers all requests it comes upon.
fn lenient() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().take(UNCLEAR.len()).flatten() {
            let text = received(&mut stream, SMUGGLED);
            let requests = text.split("\r\n0\r\n\r\n").count();
            stream.write_all("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(requests).as_bytes()).unwrap();
        }
    });
    address
}

/// That the messages are what they are meant to be, and that the test sees it.
#[test]
fn a_server_that_is_not_strict_is_noticed() {
    let address = lenient();
    for fields in UNCLEAR {
        assert_eq!(answers(address, &unclear(fields)), (2, Some(200)), "{fields}");
    }
}

/// How a client of HTTP's second version begins: it knows that the server speaks it, or asks for it.
const KNOWING: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ASKING: &str = "GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n";

/// Whether a server answers these two as if there were HTTP's first version only: a refusal, and the answer to what was asked.
fn speaks_one_version(address: SocketAddr) -> bool {
    let known = answer_to(address, KNOWING.as_bytes());
    let closing = "GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    (known.is_empty() || known.starts_with("HTTP/1.1 400 "))
        && answers(address, &format!("{ASKING}{closing}")) == (2, Some(200))
}

/// Of HTTP there is one version here: its second one's floods (resets, continuations, settings) can't be sent.
#[test]
fn another_version_is_not_spoken() {
    assert!(speaks_one_version(server().address()));
}

#[test]
fn a_server_of_another_version_is_noticed() {
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
        assert_eq!(speaks_one_version(address), is_one, "{to_who_knows:?} {to_who_asks:?}");
    }
}

#[test]
fn a_length_beside_chunks_ends_the_connection() {
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
fn heads_that_are_written_wrongly_are_refused() {
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
fn two_hosts_are_refused() {
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
fn chunks_that_are_written_wrongly_end_the_connection() {
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
            "POST /_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{SMUGGLED}"
        );
        let (count, status) = answers(server.address(), &message);
        assert!(count <= 1 && status.is_none_or(|status| status >= 400), "{chunks:?}: {count} answers, {status:?}");
    }
    // Very long extensions of chunks are no way to keep a thread busy.
    let message = format!(
        "POST /_session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        format!("1;{}\r\na\r\n", "x".repeat(1000)).repeat(100)
    );
    assert!(answers(server.address(), &message).0 <= 1);
}

#[test]
fn what_is_right_is_answered_one_after_the_other() {
    let server = server();
    let two = "POST /_session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(answers(server.address(), two).0, 2);
    // A method in a header or a parameter is no method.
    for name in ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"] {
        assert_eq!(
            server.send_as_admin("GET", "/db/a?_method=DELETE&method=DELETE", &[(name, "DELETE")], b"").status,
            200
        );
    }
    assert_eq!(server.get("/db/a").status, 200);
}
