//! Listening, connections, their bounds in time and number, and the end.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{HeaderName, ORIGIN, SERVER, SET_COOKIE, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use crate::auth::{
    Access, Administrators, Auth, Identity, PREFLIGHT, Peer, Tokens, User, check_host, check_origin, cors_headers,
    is_of_script, permit,
};
use crate::config::Config;
use crate::connections::Connected;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::handlers::dashboard::Dashboard;
use crate::http::{Answer, Call, Query, Room, Served, State, UPLOADS_MAX, Watch, Watched, blocking, segments};
use crate::replicator::{Jobs, Reach, follow};
use crate::routes::{Found, find};
use crate::script::{Launch, Scripts};
use crate::settings::Live;

/// A server that listens. Dropped, it stops without ceremony; [`Server::stop`] ends it in good order.
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
    generated_password: Option<String>,
    stopping: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

/// The threads of the blocking pool end when they had nothing to do for 10 seconds.
const THREAD_KEPT: Duration = Duration::from_secs(4);

/// Keeps the last thread of the blocking pool: where no other can be started, what blocks waits for it. Without any, the pool would panic.
async fn keep_a_thread(mut stopped: watch::Receiver<bool>) {
    while timeout(THREAD_KEPT, stopped.wait_for(|stopped| *stopped)).await.is_err() {
        blocking(|| Ok(())).await.ok();
    }
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
        let opened = config.clone();
        let (directory, live, auth, generated_password) = blocking(move || {
            let directory = Arc::new(Directory::open(&opened)?);
            let live = Arc::new(Live::load(&opened, &directory)?);
            let (auth, generated_password) = identify(&live, &directory)?;
            Ok((directory, live, auth, generated_password))
        })
        .await?;
        let reach = Reach::new(&config.replicator)?;
        let dashboard = Dashboard::open(config.dashboard.as_deref())?;
        let tls = config.tls.as_ref().map(crate::tls::acceptor).transpose()?;
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
        let room = Room::new(config.limits.bodies_bytes, config.limits.stall_timeout);
        let state = State {
            config: Config { address, ..config },
            live,
            metrics: Arc::default(),
            directory,
            auth,
            scripts,
            jobs: Jobs::default(),
            reach,
            connections: Arc::default(),
            dashboard,
            started: Instant::now(),
            room,
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            watches: Arc::new(Semaphore::new(crate::watch::WATCHES_MAX)),
            stopping: stopped.clone(),
        };
        let state = Arc::new(state);
        tokio::spawn(follow(state.clone()));
        tokio::spawn(keep_a_thread(stopped.clone()));
        let accepting = tokio::spawn(accept(listener, tls, state.clone(), stopped));
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

    /// What its requests share.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Serves one connection that did not come over the network, to its end.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn attend_to<S>(&self, stream: S) -> impl Future<Output = ()> + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let address = self.state.connections.admit(peer.ip(), usize::MAX);
        let place = room.ok().zip(address).map(|(room, address)| Place { _room: room, _address: address });
        let (state, stopped) = (self.state.clone(), self.stopping.subscribe());
        async move {
            if let Some(place) = place {
                attend(connection(stream, peer, Arc::new(place), &state), stopped).await;
            }
        }
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
        // What still runs lets go soon; until then the directory is not another server's to open.
        let deadline = Instant::now() + self.state.config.limits.grace;
        while Arc::strong_count(&self.state) > 1 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// What tells who is who: administrators, tokens, and the secret of cookies. The password that was made up, if there was none.
fn identify(live: &Arc<Live>, directory: &Directory) -> Result<(Auth, Option<String>)> {
    let (kept, _) = directory.kept("secret", || {
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        Ok(serde_json::json!({ "secret": secret }))
    })?;
    let secret = kept.get("secret").and_then(stemmadb::Value::as_str).unwrap_or_default().as_bytes().to_vec();
    if secret.len() < 64 {
        return Err(Failure::internal("the server's secret in the catalogue is damaged"));
    }
    let (administrators, generated) = Administrators::load(&live.config(), directory)?;
    Ok((Auth::new(live.clone(), administrators, Tokens::load(directory)?, secret)?, generated))
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    state: Arc<State>,
    mut stopped: watch::Receiver<bool>,
) {
    let place_count = state.config.limits.connection_count;
    let room = Arc::new(Semaphore::new(place_count));
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = async {
                let place = room.clone().acquire_owned().await;
                (place, listener.accept().await)
            } => accepted,
        };
        let (Ok(place), accepted) = accepted else { break };
        let Ok((stream, peer)) = accepted else {
            // Out of descriptors, mostly: those who are served give some back.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let count_max = state.config.limits.connection_count_per_address;
        let Some(connected) = state.connections.admit(peer.ip(), count_max) else { continue };
        stream.set_nodelay(true).ok();
        let place = Arc::new(Place { _room: place, _address: connected });
        let (stopped, state, tls) = (stopped.clone(), state.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => attend(connection(stream, peer, place, &state), stopped).await,
                Some(tls) => {
                    let shaken = timeout(state.config.limits.handshake_timeout, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = shaken {
                        attend(connection(stream, peer, place, &state), stopped).await;
                    }
                }
            }
        });
    }
    drop(listener);
    // Once every place is free again, everybody is gone.
    let all = u32::try_from(place_count).unwrap_or(u32::MAX);
    timeout(state.config.limits.grace, room.acquire_many(all)).await.ok();
}

/// What a connection takes up, until it is over; what becomes of it, a WebSocket, holds it on.
pub(crate) struct Place {
    _room: OwnedSemaphorePermit,
    _address: Connected,
}

/// Serves a connection to its end; from when the server stops, to the end of the request that it is at.
async fn attend<S, V>(connection: http1::UpgradeableConnection<S, V>, mut stopped: watch::Receiver<bool>)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    V: hyper::service::HttpService<Incoming, ResBody = Watched, Error = std::convert::Infallible>,
{
    let mut connection = std::pin::pin!(connection);
    // A connection that breaks is the client's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await.ok();
}

/// A connection's stream, with an end to how long nothing is taken from it.
type Io<S> = TokioIo<Pin<Box<TimeoutStream<S>>>>;

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    place: Arc<Place>,
    state: &Arc<State>,
) -> http1::UpgradeableConnection<
    Io<S>,
    impl hyper::service::Service<
        Request<Incoming>,
        Response = hyper::Response<Watched>,
        Error = std::convert::Infallible,
        Future: Send,
    > + use<S>,
> {
    let limits = &state.config.limits;
    let state = state.clone();
    // Who takes nothing of an answer would hold it for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.stall_timeout));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes.max(8192))
        .serve_connection(
            TokioIo::new(Box::pin(stream)),
            service_fn(move |mut request| {
                request.extensions_mut().insert(Peer(peer));
                request.extensions_mut().insert(place.clone());
                serve(state.clone(), request)
            }),
        )
        .with_upgrades()
}

async fn serve(state: Arc<State>, request: Request<Incoming>) -> Served {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let mut watch = Watch::begin(state.metrics.clone(), request.method().clone(), peer);
    let origin = request.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok()).map(str::to_owned);
    let for_pages = cors_headers(&state.live.config(), origin.as_deref());
    let can_be_challenged = !is_of_script(request.headers());
    let patience = state.config.limits.stall_timeout;
    let answer = caught(answer(state, request, &mut watch)).await.unwrap_or_else(|failure| {
        watch.refused(&failure);
        let challenges = can_be_challenged && failure.status() == hyper::StatusCode::UNAUTHORIZED;
        let answer = Answer::from(failure);
        if challenges { answer.with(WWW_AUTHENTICATE, "Basic realm=\"server\"") } else { answer }
    });
    let mut answer = answer
        .with(SERVER, concat!("Stemma/", env!("CARGO_PKG_VERSION")))
        .with(HeaderName::from_static("x-couch-request-id"), &watch.id);
    for (name, value) in for_pages {
        answer = answer.with(HeaderName::from_static(name), &value);
    }
    Ok(watch.answered(answer, patience))
}

/// What a handler answers, also one that panics: with no answer at all, nobody would know why the connection is gone. Its locks are let go.
async fn caught<T>(answering: impl Future<Output = Result<T>>) -> Result<T> {
    let answered = AssertUnwindSafe(answering).catch_unwind().await;
    answered
        .unwrap_or_else(|_| Err(Failure::internal("a handler panicked: what the server says on stderr tells where")))
}

async fn answer(state: Arc<State>, request: Request<Incoming>, watch: &mut Watch) -> Result<Answer> {
    let config = state.live.config();
    let (parts, body) = request.into_parts();
    check_host(&config, &parts)?;
    if let Some(answer) = preflight(&config, &parts) {
        return Ok(answer);
    }
    let path = segments(parts.uri.path())?;
    let query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let (route, parameters) = match find(&parts.method, &path) {
        Found::Route(route, parameters) => (route, parameters),
        found => {
            // What there is, is told to those who are who they say.
            let Identity { user, .. } = state.auth.authenticate(&state.directory, &parts).await?;
            watch.user = user.name.clone();
            require_user(&config, &user, "")?;
            return Err(match found {
                Found::Methods(methods) => Failure::method_not_allowed(&methods),
                _ => Failure::missing(),
            });
        }
    };
    watch.route = route.path;
    // Whoever logs in, or out, may still have a session of somebody.
    let identity = match (route.path, &parts.method) {
        ("/_session", &Method::POST | &Method::DELETE) => Identity::nobody(),
        _ => state.auth.authenticate(&state.directory, &parts).await?,
    };
    let Identity { user, claim, scope, cookie } = identity;
    watch.user = user.name.clone();
    require_user(&config, &user, route.path)?;
    // Browsers send cookies by themselves, and passwords that were typed into their own question too.
    if matches!(user.how, Some("cookie" | "default")) || route.path == "/_session" {
        check_origin(&config, &parts, user.how == Some("cookie"))?;
    }
    if let Some(scope) = scope {
        scope.allow(&parts.method, route.path, parameters.get("db"), route.access == Access::Anonymous)?;
    }
    permit(&state.directory, route, &parameters, &user).await?;
    let share = state.room.share();
    watch.share = Some(share.clone());
    let call = Call { state, parts, route, parameters, query, user, claim, body: Some(body), share: share.clone() };
    let answer = share.during((route.handler)(call)).await?;
    Ok(match cookie {
        Some(cookie) => answer.with(SET_COOKIE, &cookie),
        None => answer,
    })
}

/// Where everybody has to say who they are: refuses those who did not, but for what they need for it.
fn require_user(config: &Config, user: &User, path: &str) -> Result<()> {
    let is_refused = config.require_valid_user && user.name.is_none() && !matches!(path, "/_session" | "/_up");
    if is_refused { Err(Failure::unauthorized("Authentication required.")) } else { Ok(()) }
}

/// What a browser is answered that asks, before a page's request, whether it may make it.
fn preflight(config: &Config, parts: &hyper::http::request::Parts) -> Option<Answer> {
    let asks = parts.method == Method::OPTIONS && parts.headers.contains_key("access-control-request-method");
    let origin = parts.headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).filter(|_| asks)?;
    if cors_headers(config, Some(origin)).is_empty() {
        return None;
    }
    let mut answer = Answer::empty(hyper::StatusCode::NO_CONTENT);
    for (name, value) in PREFLIGHT {
        answer = answer.with(HeaderName::from_static(name), value);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_for() {
        let failing: Result<()> = caught(async { panic!("it was wrong to think that this can't be") }).await;
        assert_eq!(failing.map_err(|failure| failure.status()), Err(hyper::StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(caught(async { Ok(7) }).await.ok(), Some(7));
    }
}
