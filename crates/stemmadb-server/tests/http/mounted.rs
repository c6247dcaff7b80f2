//! The server mounted in a program's own HTTP server: the example.

#[path = "../../examples/mounted.rs"]
mod example;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::{Request, StatusCode};
use serde_json::json;
use stemmadb_server::{Administrator, Config, MountedService, Server};
use tokio::net::TcpListener;
use tower_service::Service;

use crate::client::{basic, raw_response};

fn mounted(directory: &std::path::Path) -> (tokio::runtime::Runtime, Arc<Server>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let administrator = Administrator { name: "admin".to_owned(), password: "secret".to_owned() };
    let config = Config { administrator: Some(administrator), ..Config::new(directory) };
    let server = Arc::new(runtime.block_on(Server::mounted(config)).unwrap());
    (runtime, server)
}

fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let credentials = basic("admin", "secret");
    raw_response(
        address,
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {credentials}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    )
}

#[test]
fn a_program_serves_databases_beside_its_own_routes() {
    let directory = tempfile::tempdir().unwrap();
    let (runtime, server) = mounted(directory.path());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = runtime.spawn(example::serve(listener, server.clone()));
    assert!(ask(address, "GET", "/total", "").contains("404 Not Found"));
    assert!(ask(address, "PUT", "/db/shop", "").contains("201 Created"));
    let written = ask(address, "POST", "/db/shop/_bulk_docs", r#"{"docs": [{"_id": "a"}, {"_id": "b"}]}"#);
    assert!(written.contains("201 Created") && written.contains("\"id\":\"b\""), "{written}");
    assert!(ask(address, "GET", "/total", "").ends_with("2 documents\n"));
    assert!(ask(address, "GET", "/db/shop/_all_docs?limit=1", "").contains("\"total_rows\":2"));
    assert!(ask(address, "GET", "/db", "").contains("\"couchdb\":\"Welcome\""));
    // Without credentials, and under an unknown name, nothing is served.
    let anonymous = raw_response(address, b"GET /db/shop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(anonymous.contains("401 Unauthorized"), "{anonymous}");
    let rebound = raw_response(address, b"GET /db/shop HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(rebound.contains("403 Forbidden"), "{rebound}");
    // A live query over a WebSocket: the connection is upgraded.
    let upgrade = format!(
        "GET /db/shop/_watch?selector=%7B%7D HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\
         Connection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        basic("admin", "secret")
    );
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, upgrade.as_bytes()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains("\"type\":\"state\"") {
        let mut buffer = [0; 4096];
        let count = std::io::Read::read(&mut stream, &mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&buffer[..count]);
    }
    assert!(String::from_utf8_lossy(&received).starts_with("HTTP/1.1 101"));
    drop(stream);
    serving.abort();
    runtime.block_on(async { serving.await.ok() });
    drop(server);
}

#[test]
fn the_service_is_a_tower_service() {
    let directory = tempfile::tempdir().unwrap();
    let (runtime, server) = mounted(directory.path());
    let mut service: MountedService = server.service();
    let request = |method: &str, path: &str, body: String| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("authorization", basic("admin", "secret"))
            .header("content-type", "application/json")
            .body(body)
            .unwrap()
    };
    runtime.block_on(async {
        std::future::poll_fn(|context| Service::<Request<String>>::poll_ready(&mut service, context)).await.unwrap();
        let created = service.call(request("PUT", "/shop", String::new())).await.unwrap();
        assert_eq!(created.status(), StatusCode::CREATED);
        let written = service.call(request("PUT", "/shop/a", json!({"n": 1}).to_string())).await.unwrap();
        assert_eq!(written.status(), StatusCode::CREATED);
        let read = service.call(request("GET", "/shop/a", String::new())).await.unwrap();
        let read = http_body_util::BodyExt::collect(read.into_body()).await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&read).contains("\"n\":1"));
        assert!(server.database("shop").await.unwrap().get("a").unwrap().is_some());
        let server = Arc::into_inner(server).unwrap();
        drop(service);
        server.stop().await;
    });
}
