//! Listening, connections, their bounds in time and number, and the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HeaderName, SERVER, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::auth::{Access, Auth, authorize};
use crate::config::{Administrator, Config};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::{Answer, Call, Query, Served, State, blocking, segments};
use crate::replicator::{Jobs, follow};
use crate::routes::{Found, find};
use crate::script::{Launch, Scripts};

/// A server that listens. Dropped, it stops without ceremony; [`Server::stop`] ends it in good order.
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
    generated_password: Option<String>,
    stopping: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Opens the directory and listens.
    ///
    /// # Errors
    /// 503 if the directory or the address can't be had; 400 if it would be reachable from elsewhere without an administrator.
    pub async fn start(config: Config) -> Result<Self> {
        if config.administrator.is_none() && !config.address.ip().is_loopback() {
            return Err(Failure::bad_request(format!(
                "{} can be reached from other machines: name an administrator first",
                config.address
            )));
        }
        let generated_password = config.administrator.is_none().then(|| Uuid::new_v4().simple().to_string());
        let administrator = match (&config.administrator, &generated_password) {
            (Some(administrator), _) => administrator.clone(),
            (None, password) => {
                Administrator { name: "admin".to_owned(), password: password.clone().unwrap_or_default() }
            }
        };
        let opened = config.clone();
        let directory = Arc::new(blocking(move || Directory::open(&opened)).await?);
        let listener = TcpListener::bind(config.address)
            .await
            .map_err(|error| Failure::internal(format!("cannot listen on {}: {error}", config.address)))?;
        let address = listener.local_addr().map_err(|error| Failure::internal(error.to_string()))?;
        let launch = match &config.scripts {
            Some(launch) => launch.clone(),
            None => Launch::this_program().map_err(|error| Failure::internal(error.to_string()))?,
        };
        let scripts = Arc::new(Scripts::new(launch, config.script_bounds));
        let (stopping, stopped) = watch::channel(false);
        let auth = Auth::new(administrator);
        let state = State {
            config,
            directory,
            auth,
            scripts,
            jobs: Jobs::default(),
            started: Instant::now(),
            stopping: stopped.clone(),
        };
        let state = Arc::new(state);
        tokio::spawn(follow(state.clone()));
        let accepting = tokio::spawn(accept(listener, state.clone(), stopped));
        Ok(Server { state, address, generated_password, stopping, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The password of `admin`, if it was made up for want of another.
    pub fn generated_password(&self) -> Option<&str> {
        self.generated_password.as_deref()
    }

    /// Takes no more requests, lets those that run come to their end for a while, and closes the databases.
    pub async fn stop(self) {
        self.stopping.send_replace(true);
        self.accepting.await.ok();
        let (state, runtime) = (self.state.clone(), tokio::runtime::Handle::current());
        let closed = blocking(move || {
            state.jobs.stop(&runtime, state.config.limits.grace);
            state.directory.close();
            Ok(())
        });
        closed.await.ok();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, mut stopped: watch::Receiver<bool>) {
    let connections = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(state.config.limits.connection_count));
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = async {
                let place = room.clone().acquire_owned().await;
                (place, listener.accept().await)
            } => accepted,
        };
        let (Ok(place), accepted) = accepted else { break };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, mostly: those who are served give some back.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let connection = connections.watch(connection(stream, &state));
        tokio::spawn(async move {
            // A connection that breaks is the client's affair.
            connection.await.ok();
            drop(place);
        });
    }
    drop(listener);
    timeout(state.config.limits.grace, connections.shutdown()).await.ok();
}

fn connection(
    stream: TcpStream,
    state: &Arc<State>,
) -> http1::Connection<
    TokioIo<TcpStream>,
    impl hyper::service::Service<
        Request<Incoming>,
        Response = hyper::Response<crate::http::Body>,
        Error = std::convert::Infallible,
        Future: Send,
    > + use<>,
> {
    let limits = &state.config.limits;
    stream.set_nodelay(true).ok();
    let state = state.clone();
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes.max(8192))
        .serve_connection(TokioIo::new(stream), service_fn(move |request| serve(state.clone(), request)))
}

async fn serve(state: Arc<State>, request: Request<Incoming>) -> Served {
    let id = Uuid::new_v4().simple().to_string();
    let answer = answer(state, request).await.unwrap_or_else(|failure| {
        let challenges = failure.status() == hyper::StatusCode::UNAUTHORIZED;
        let answer = Answer::from(failure);
        if challenges { answer.with(WWW_AUTHENTICATE, "Basic realm=\"server\"") } else { answer }
    });
    let answer = answer
        .with(SERVER, concat!("Stemma/", env!("CARGO_PKG_VERSION")))
        .with(HeaderName::from_static("x-couch-request-id"), &id[..10]);
    Ok(answer.into_response())
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer> {
    let (parts, body) = request.into_parts();
    let path = segments(parts.uri.path())?;
    let query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let user = state.auth.authenticate(&parts)?;
    let (route, parameters) = match find(&parts.method, &path) {
        Found::Route(route, parameters) => (route, parameters),
        Found::Methods(methods) => return Err(Failure::method_not_allowed(&methods)),
        Found::Nothing => return Err(Failure::missing()),
    };
    let security = match (route.access, parameters.get("db")) {
        (Access::Member | Access::DatabaseAdmin, Some(name)) => Some(state.directory.security(name).await?),
        _ => None,
    };
    authorize(&user, route.access, security.as_deref())?;
    (route.handler)(Call { state, parts, parameters, query, user, body: Some(body) }).await
}
