//! A program with its own HTTP server, which has a route of its own and serves databases below `/db`.
//!
//! Run it with `cargo run -p stemmadb-server --example mounted`, and then `curl http://127.0.0.1:8080/total`.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use stemmadb::Selector;
use stemmadb_server::{Config, MountedService, ResponseBody, Server};
use tokio::net::TcpListener;

type Body = Either<Full<Bytes>, ResponseBody>;

/// A route of the program: it reads a database of the server by the library.
async fn total(server: &Server) -> Response<Body> {
    let counted = match server.database("shop").await {
        Ok(shop) => shop.find(Selector::everything()).count().map_err(|error| error.to_string()),
        Err(failure) => Err(failure.to_string()),
    };
    let (status, text) = match counted {
        Ok(count) => (StatusCode::OK, format!("{count} documents\n")),
        Err(reason) => (StatusCode::NOT_FOUND, format!("{reason}\n")),
    };
    let mut response = Response::new(Either::Left(Full::from(text)));
    *response.status_mut() = status;
    response
}

/// Requests below `/db` go to the server, without that prefix.
async fn route(server: Arc<Server>, service: MountedService, mut request: Request<Incoming>) -> Response<Body> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let within = match target.strip_prefix("/db") {
        Some("") => Some("/"),
        Some(rest) if rest.starts_with(['/', '?']) => Some(rest),
        _ => None,
    };
    match within.map(str::parse::<Uri>) {
        Some(Ok(uri)) => {
            *request.uri_mut() = uri;
            service.handle(request).await.map(Either::Right)
        }
        _ => total(&server).await,
    }
}

/// Serves connections until the program ends.
pub(crate) async fn serve(listener: TcpListener, server: Arc<Server>) -> std::io::Result<Infallible> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let (server, service) = (server.clone(), server.service().for_peer(peer));
        let handler = service_fn(move |request| {
            let (server, service) = (server.clone(), service.clone());
            async move { Ok::<_, Infallible>(route(server, service, request).await) }
        });
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), handler);
        // Upgrades are for live queries over WebSockets.
        tokio::spawn(connection.with_upgrades());
    }
}

#[tokio::main]
#[allow(dead_code, reason = "a test includes this file for `serve`")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Arc::new(Server::mounted(Config::new("databases")).await?);
    if let Some(password) = server.generated_password() {
        println!("the administrator is `admin`, the password {password}");
    }
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    println!("serving databases on http://{}/db", listener.local_addr()?);
    serve(listener, server).await?;
    Ok(())
}
