//! The HTTP server: listener, connections and their limits, request handling, shutdown; and the server as a service in
//! a program's own HTTP server.

mod background;
mod builder;
mod event_loops;
mod http2;
mod mounted;
mod passed_on;
mod polled;
mod virtual_parts;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, EXPECT, HOST, HeaderName, ORIGIN, SERVER, SET_COOKIE, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use stemmadb::log_storage::ClusterStore;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::accounts::{Authenticator, Identity};
use crate::app::{Call, Dashboard, RecordedBody, RequestRecord, ServerState, UPLOADS_MAX};
use crate::auth::{
    Access, PREFLIGHT, SERVER_SEAL, User, check_host, check_origin, cors_headers, is_script_request, refused,
};
use crate::config::Config;
use crate::connections::{Activity, ConnectionSlot, RunningRequest};
use crate::directory::{Directory, tend_cluster};
use crate::error::{Failure, Result};
use crate::federations::Federations;
use crate::functions::Functions;
use crate::http::{
    ClientBody, HttpResponse, MemoryBudget, PeerAddress, Query, RequestBody, RequestLineStream, RewrittenRequest,
    blocking, segments,
};
use crate::outbound::OutboundClient;
use crate::replicator::{
    ConflictRules, JOB_THREADS_MAX, JobContext, Jobs, Topologies, follow, signing_key, tend_topologies,
};
use crate::routes::{RouteMatch, as_of_all_shards, find, openapi};
use crate::script::{Scripts, WorkerCommand};
use crate::servers::OtherServers;
use crate::settings::RuntimeSettings;
use crate::shipping::{Shipping, tend};
use crate::spans::{Spans, TraceParent};
use crate::tiers::{Tiers, tend as tend_tiers};
use crate::tls::{CHALLENGE_PROTOCOL, Certificates, HTTP_2};
use crate::triggers::{TriggerContext, Triggers, tend_triggers};
use crate::virtual_databases::{DelegatedRequest, VirtualDatabases};
use crate::wire::WireServer;
use background::{
    announce, catch_up, concerns_definitions, divide_memory, keep_blocking_thread, reload_changed,
    tend_virtual_databases,
};
pub use builder::ServerBuilder;
use event_loops::{EventLoops, adopt};
pub use mounted::{MountedService, ResponseBody};
use passed_on::{Passed, database_of, no_longer_owned, of_handler, pass_on, was_passed_on};
use polled::PolledStream;
use virtual_parts::{document_of, enter_virtual, part_of};

/// The connections that may wait to be accepted; Linux takes at most `net.core.somaxconn`. With the usual 128, some of
/// 300 clients that connect at once wait for a second or more.
const BACKLOG: u32 = 4096;

/// A running server. Dropping it aborts the server; [`Server::stop`] shuts it down gracefully.
pub struct Server {
    state: Arc<ServerState>,
    address: SocketAddr,
    generated_password: Option<String>,
    stopping: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
    /// They also run what connections began, so they end last.
    loops: Arc<EventLoops>,
    wire: Option<Arc<WireServer>>,
}

impl Server {
    /// Opens the directory and starts to listen.
    ///
    /// # Errors
    /// 503 if the directory can't be opened; 500 if the address can't be bound; 400 if the server would be reachable
    /// from other machines without a configured administrator.
    pub async fn start(config: Config) -> Result<Self> {
        Self::builder(config).start().await
    }

    /// Opens the directory without listening: the program serves requests with its own HTTP server, and passes them to
    /// [`Server::service`]. Clients of the wire protocol are served if the configuration names a listener for them.
    ///
    /// Without a configured administrator, a password is generated at the first start, see
    /// [`Server::generated_password`]. If the program can be reached under names other than `localhost`, set
    /// [`Config::hosts`] to them: other `Host` headers are refused.
    ///
    /// # Errors
    /// 503 if the directory can't be opened.
    pub async fn mounted(config: Config) -> Result<Self> {
        Self::builder(config).mounted().await
    }

    async fn open(
        mut config: Config,
        functions: Functions,
        cluster: Option<Arc<dyn ClusterStore>>,
        listens: bool,
    ) -> Result<Self> {
        let certificates = if listens { Certificates::prepare(&mut config)? } else { None };
        let opened = config.clone();
        let (directory, settings, authenticator, generated_password, signing_key) = blocking(move || {
            let directory = Arc::new(Directory::open_in(&opened, cluster)?);
            directory.limit_open_files();
            let settings = Arc::new(RuntimeSettings::load(&opened, &*directory)?);
            let (authenticator, generated_password) = Authenticator::load(&settings, &directory)?;
            let signing_key = signing_key(&directory)?;
            Ok((directory, settings, authenticator, generated_password, signing_key))
        })
        .await?;
        let outbound = Arc::new(OutboundClient::new(&config.replicator)?);
        let dashboard = Dashboard::open(config.dashboard.as_deref())?;
        let (mut address, mut listening) = (config.address, None);
        if listens {
            let challenges = certificates.as_ref().map(Certificates::challenges);
            let tls = config.tls.as_ref().map(|tls| crate::tls::acceptor(tls, challenges)).transpose()?;
            let listener = listen(config.address)
                .map_err(|error| Failure::internal(format!("cannot listen on {}: {error}", config.address)))?;
            address = listener.local_addr().map_err(|error| Failure::internal(error.to_string()))?;
            listening = Some((listener, tls));
        }
        let command = match &config.scripts {
            Some(command) => command.clone(),
            None => WorkerCommand::this_program().map_err(|error| Failure::internal(error.to_string()))?,
        };
        let scripts = Arc::new(Scripts::new(command, config.script_limits));
        let (stopping, stopped) = watch::channel(false);
        let memory = MemoryBudget::new(config.limits.bodies_bytes, config.limits.stall_timeout);
        let conflict_rules = ConflictRules::new(directory.clone(), scripts.clone(), config.durability, stopped.clone());
        let ca = config.replicator.ca.clone();
        let answers = (config.limits.body_bytes, memory.clone());
        let seal = authenticator.server_seal();
        let servers =
            OtherServers::new(directory.clone(), outbound.clone(), ca.clone(), seal, answers, stopped.clone())?;
        let servers = Arc::new(servers);
        let virtual_databases = Arc::new(VirtualDatabases::new(directory.clone(), servers.clone(), stopped.clone()));
        let jobs = Arc::new(Jobs::new(JobContext {
            conflict_rules: Arc::new(conflict_rules),
            threads: Semaphore::new(JOB_THREADS_MAX),
            directory: directory.clone(),
            virtual_databases: virtual_databases.clone(),
            scripts: scripts.clone(),
            outbound: outbound.clone(),
            memory: memory.clone(),
            body_bytes_max: config.limits.body_bytes,
            durability: config.durability,
            signing_key: Arc::new(signing_key),
            server_seal: (SERVER_SEAL.to_string(), authenticator.server_seal()),
            retry_wait: config.replicator.retry_wait,
            retry_wait_max: config.replicator.retry_wait_max,
            stopping: stopped.clone(),
        }));
        let triggers = Arc::new(Triggers::new(TriggerContext {
            directory: directory.clone(),
            scripts: scripts.clone(),
            outbound: outbound.clone(),
            servers: servers.clone(),
            durability: config.durability,
            calls: Semaphore::new(config.triggers.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            limits: config.triggers.clone(),
            stopping: stopped.clone(),
        }));
        let federations = Federations::new(directory.clone(), outbound.clone(), ca);
        let tiers = Arc::new(Tiers::new(directory.clone(), stopped.clone()));
        let spans = Spans::new(config.otlp_endpoint.as_deref())?;
        let watch_count = config.limits.watch_count.min(Semaphore::MAX_PERMITS);
        let state = ServerState {
            config: Config { address, ..config },
            settings,
            metrics: Arc::default(),
            spans: Arc::new(spans),
            shipping: Arc::new(Shipping::new(directory.clone(), virtual_databases.clone())),
            triggers,
            directory,
            authenticator: Arc::new(authenticator),
            scripts,
            topologies: Arc::new(Topologies::new(jobs.clone())),
            jobs,
            federations: Arc::new(federations),
            servers,
            outbound,
            virtual_databases,
            tiers,
            connections: Arc::default(),
            functions: Arc::new(functions),
            dashboard,
            started: Instant::now(),
            memory,
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            watches: Arc::new(Semaphore::new(watch_count)),
            wire: OnceLock::new(),
            stopping: stopped.clone(),
            openapi,
        };
        let state = Arc::new(state);
        tokio::spawn(follow(state.jobs.clone()));
        let loaded = state.clone();
        blocking(move || loaded.catch_up()).await?;
        let virtual_databases = state.virtual_databases.clone();
        let tended = tend_virtual_databases(virtual_databases.clone(), stopped.clone());
        tokio::spawn(async move {
            virtual_databases.continue_moves().await;
            tended.await;
        });
        tokio::spawn(tend_cluster(state.directory.clone(), stopped.clone()));
        tokio::spawn(reload_changed(state.clone()));
        tokio::spawn(tend(state.shipping.clone(), stopped.clone()));
        tokio::spawn(tend_tiers(state.tiers.clone(), stopped.clone()));
        tokio::spawn(tend_triggers(state.triggers.clone(), stopped.clone()));
        tokio::spawn(tend_topologies(state.topologies.clone(), stopped.clone()));
        tokio::spawn(keep_blocking_thread(stopped.clone()));
        if let Some(certificates) = certificates {
            tokio::spawn(certificates.tend(stopped.clone()));
        }
        tokio::spawn(divide_memory(state.directory.clone(), stopped.clone()));
        let (wire_state, runtime) = (state.clone(), tokio::runtime::Handle::current());
        let wire = blocking(move || WireServer::start(&wire_state, runtime)).await?;
        let loops = Arc::<EventLoops>::default();
        let (accepted, accepted_loops) = (state.clone(), loops.clone());
        let accepting = tokio::spawn(async move {
            if let Some((listener, tls)) = listening {
                accept(listener, tls, accepted, accepted_loops, stopped).await;
            }
        });
        Ok(Server { state, address, generated_password, stopping, accepting, loops, wire })
    }

    /// A service for requests of a program's own HTTP server, for hyper, axum and others that take a
    /// `tower::Service`.
    ///
    /// ```no_run
    /// # async fn example() -> stemmadb_server::Result<()> {
    /// use stemmadb_server::{Config, Server};
    ///
    /// let server = Server::mounted(Config::new("databases")).await?;
    /// // With axum, which removes the prefix: `Router::new().nest_service("/db", server.service())`.
    /// let service = server.service();
    /// # let request = hyper::Request::new(http_body_util::Empty::<bytes::Bytes>::new());
    /// let response = service.handle(request).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn service(&self) -> MountedService {
        MountedService { state: self.state.clone(), peer: None }
    }

    /// Opens a database of the server, for the program's own routes. Writes to it by the library skip the validation
    /// functions and access rules that apply to clients.
    ///
    /// # Errors
    /// 404 if there is none.
    pub async fn database(&self, name: &str) -> Result<stemmadb::Database> {
        Ok(self.state.directory.open_database(name).await?.database().clone())
    }

    /// The address that the server listens on; that of the configuration if it is mounted.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that clients of the wire protocol connect to, if it listens for them on TCP.
    pub fn wire_address(&self) -> Option<SocketAddr> {
        self.wire.as_ref()?.address()
    }

    /// The UDP address that clients of the wire protocol connect to by QUIC, if it listens for them.
    #[cfg(feature = "quic")]
    pub fn quic_address(&self) -> Option<SocketAddr> {
        self.wire.as_ref()?.quic_address()
    }

    /// The password of `admin`, if it was generated at this start.
    pub fn generated_password(&self) -> Option<&str> {
        self.generated_password.as_deref()
    }

    /// The state shared by requests.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Serves one in-memory connection to its end.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn serve_stream<S>(&self, stream: S) -> impl Future<Output = ()> + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let counted = self.state.connections.admit(peer.ip(), usize::MAX);
        let slot =
            permit.ok().zip(counted).map(|(permit, counted)| ConnectionSlot { _permit: permit, _counted: counted });
        let (state, stopped) = (self.state.clone(), self.stopping.subscribe());
        async move {
            if let Some(slot) = slot {
                drive_connection(connection(stream, peer, Arc::new(slot), &state, Arc::default()), stopped).await;
            }
        }
    }

    /// Shuts down: accepts no more requests, waits for running ones and for replications, for `limits.grace` in all,
    /// and closes the databases, which ends what still runs.
    pub async fn stop(self) {
        let grace = self.state.config.limits.grace;
        let directory = self.state.directory.clone();
        let left = blocking(move || Ok(directory.hand_over(Instant::now() + grace)));
        // Without its cluster, the server can't leave it: others wait for the lease.
        if let Ok(Ok(Some(until_known))) = timeout(2 * grace, left).await {
            tokio::time::sleep(until_known).await;
        }
        let deadline = Instant::now() + grace;
        self.stopping.send_replace(true);
        self.state.virtual_databases.stop();
        let (jobs, runtime) = (self.state.jobs.clone(), tokio::runtime::Handle::current());
        let stopped_jobs = blocking(move || {
            jobs.stop(&runtime, deadline);
            Ok(())
        });
        let wire = self.wire;
        let stopped_wire = blocking(move || {
            wire.iter().for_each(|wire| wire.stop(deadline));
            Ok(())
        });
        let triggers = self.state.triggers.clone();
        let stopped_triggers = blocking(move || {
            triggers.stop();
            Ok(())
        });
        // The listener waits for its connections, for as long.
        let (_, _, _, _) = tokio::join!(self.accepting, stopped_jobs, stopped_wire, stopped_triggers);
        let shipping = self.state.shipping.clone();
        let shipped = blocking(move || {
            shipping.stop();
            Ok(())
        });
        timeout(CLOSING_TIMEOUT, shipped).await.ok();
        let closing_until = Instant::now() + CLOSING_TIMEOUT;
        let state = self.state.clone();
        let closed = blocking(move || {
            state.directory.close();
            state.spans.stop(CLOSING_TIMEOUT);
            Ok(())
        });
        timeout(CLOSING_TIMEOUT, closed).await.ok();
        // Another server can open the directory only once all running work has released it.
        let directory = Arc::downgrade(&self.state.directory);
        drop((self.state, self.loops));
        while directory.strong_count() > 0 && Instant::now() < closing_until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// How long the databases have to be closed when the server stops. Writes that are not merged by then are read
/// from their logs at the next start.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens on an address. Must be called within a runtime.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server must not wait for the connections of its predecessor to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    state: Arc<ServerState>,
    loops: Arc<EventLoops>,
    mut stopped: watch::Receiver<bool>,
) {
    let connection_count = state.config.limits.connection_count;
    let slots = Arc::new(Semaphore::new(connection_count));
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = async {
                let permit = slots.clone().acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        let (Ok(permit), accepted) = accepted else { break };
        let Ok((stream, peer)) = accepted else {
            // Usually out of file descriptors: close databases, and wait until connections are closed.
            let directory = state.directory.clone();
            blocking(move || Ok(directory.release_descriptors())).await.ok();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let count_max = state.config.limits.connection_count_per_address;
        let Some(connected) = state.connections.admit(peer.ip(), count_max) else { continue };
        stream.set_nodelay(true).ok();
        let slot = Arc::new(ConnectionSlot { _permit: permit, _counted: connected });
        let (stopped, state, tls) = (stopped.clone(), state.clone(), tls.clone());
        // A few connections are polled; a thread that serves several can't do that.
        let is_polled = state.connections.count() <= polled::CONNECTIONS_MAX;
        let event_loop = if is_polled { None } else { loops.next() };
        event_loop.unwrap_or_else(Handle::current).spawn(async move {
            let Ok(stream) = adopt(stream) else { return };
            match tls {
                None => {
                    let activity = Arc::new(Activity::noting_what_is_sent());
                    let stream = PolledStream::new(stream, state.clone(), activity.clone());
                    drive_connection(connection(stream, peer, slot, &state, activity), stopped).await;
                }
                Some(tls) => {
                    let handshake = timeout(state.config.limits.handshake_timeout, tls.accept(stream)).await;
                    let Ok(Ok(stream)) = handshake else { return };
                    match stream.get_ref().1.alpn_protocol() {
                        Some(HTTP_2) => http2::drive(stream, peer, slot, state, stopped).await,
                        // The handshake was the answer.
                        Some(CHALLENGE_PROTOCOL) => {}
                        _ => drive_connection(connection(stream, peer, slot, &state, Arc::default()), stopped).await,
                    }
                }
            }
        });
    }
    drop(listener);
    // Once every slot is free again, all connections are closed.
    let all = u32::try_from(connection_count).unwrap_or(u32::MAX);
    timeout(state.config.limits.grace, slots.acquire_many(all)).await.ok();
}

/// Serves a connection to its end, or, once the server stops, to the end of its current request.
async fn drive_connection<S, V>(connection: http1::UpgradeableConnection<S, V>, mut stopped: watch::Receiver<bool>)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    V: hyper::service::HttpService<Incoming, ResBody = RecordedBody, Error = std::convert::Infallible>,
{
    let mut connection = std::pin::pin!(connection);
    // Errors of a connection concern only its client.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await.ok();
}

/// A connection's stream with a write timeout.
type Io<S> = TokioIo<Pin<Box<TimeoutStream<RequestLineStream<S>>>>>;

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    slot: Arc<ConnectionSlot>,
    state: &Arc<ServerState>,
    activity: Arc<Activity>,
) -> http1::UpgradeableConnection<
    Io<S>,
    impl hyper::service::Service<
        Request<Incoming>,
        Response = hyper::Response<RecordedBody>,
        Error = std::convert::Infallible,
        Future: Send,
    > + use<S>,
> {
    let limits = &state.config.limits;
    let state = state.clone();
    // A client that never reads its response would hold the memory of it forever.
    let begins_request = Arc::new(AtomicBool::new(true));
    let mut stream = TimeoutStream::new(RequestLineStream::new(stream, begins_request.clone()));
    stream.set_write_timeout(Some(limits.stall_timeout));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes.max(8192))
        .serve_connection(
            TokioIo::new(Box::pin(stream)),
            service_fn(move |mut request| {
                request.extensions_mut().insert(PeerAddress(peer));
                request.extensions_mut().insert(slot.clone());
                serve(state.clone(), request.map(ClientBody::Incoming), begins_request.clone(), Some(activity.begin()))
            }),
        )
        .with_upgrades()
}

/// Answers a request. `running` is dropped after the last byte of the response is sent.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    request: Request<ClientBody>,
    begins_request: Arc<AtomicBool>,
    running: Option<RunningRequest>,
) -> Result<hyper::Response<RecordedBody>, std::convert::Infallible> {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let mut record = RequestRecord::begin(state.metrics.clone(), state.spans.clone(), request.method().clone(), peer);
    record.trace = TraceParent::of(request.headers());
    record.running = running;
    let origin = request.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok()).map(str::to_owned);
    let cors = cors_headers(&state.settings.config(), origin.as_deref());
    let can_be_challenged = !is_script_request(request.headers());
    let stall_timeout = state.config.limits.stall_timeout;
    let is_http_1 = request.version() < Version::HTTP_2;
    let expects_continue = request.headers().contains_key(EXPECT);
    let accepts_gzip = accepts_gzip(request.headers());
    let (parts, body) = request.into_parts();
    let (body, unread) = RequestBody::new(body, begins_request);
    let request = Request::from_parts(parts, body);
    let answer = catch_panic(handle(state, request, &mut record)).await.unwrap_or_else(|failure| {
        record.record_failure(&failure);
        let challenges = can_be_challenged && failure.status() == hyper::StatusCode::UNAUTHORIZED;
        let answer = HttpResponse::from(failure);
        if challenges { answer.with(WWW_AUTHENTICATE, "Basic realm=\"server\"") } else { answer }
    });
    let mut answer = answer
        .with(SERVER, concat!("Stemma/", env!("CARGO_PKG_VERSION")))
        .with(HeaderName::from_static("x-couch-request-id"), &record.id);
    for (name, value) in cors {
        answer = answer.with(HeaderName::from_static(name), &value);
    }
    if accepts_gzip && !record.is_streamed {
        answer = answer.compressed();
    }
    // Without this header a pooled connection would be closed while the client sends its next request.
    if !unread.discard(expects_continue).await && is_http_1 {
        answer = answer.with(CONNECTION, "close");
    }
    Ok(record.answered(answer, stall_timeout))
}

/// Whether a client accepts responses that are compressed with gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let listed = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = parameters.trim().strip_prefix("q=").and_then(|quality| quality.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality != Some(0.0)
    })
}

/// Runs a handler and converts a panic into a 500 response, so that the client sees a reason instead of a closed
/// connection. Locks that the handler held are released.
async fn catch_panic<T>(handler: impl Future<Output = Result<T>>) -> Result<T> {
    let answered = AssertUnwindSafe(handler).catch_unwind().await;
    answered.unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Failure {
    Failure::internal("a handler panicked: the server's stderr shows where")
}

/// Handles a request, and those that it is rewritten to.
async fn handle(
    state: Arc<ServerState>,
    mut request: Request<RequestBody>,
    record: &mut RequestRecord,
) -> Result<HttpResponse> {
    loop {
        let answer = handle_once(state.clone(), request, record).await?;
        match RewrittenRequest::of(&answer) {
            Some(rewritten) => request = rewritten,
            None => return Ok(answer),
        }
    }
}

async fn handle_once(
    state: Arc<ServerState>,
    request: Request<RequestBody>,
    record: &mut RequestRecord,
) -> Result<HttpResponse> {
    let config = state.settings.config();
    let (mut parts, mut body) = request.into_parts();
    if parts.version == Version::HTTP_11 && !parts.headers.contains_key(HOST) {
        return Err(Failure::bad_request("An HTTP/1.1 request must have a Host header."));
    }
    let is_passed_on = was_passed_on(&state, &mut parts)?;
    if !is_passed_on {
        check_host(&config, &parts)?;
    }
    if let Some(answer) = preflight(&config, &parts) {
        return Ok(answer);
    }
    let path = segments(parts.uri.path())?;
    let mut query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let (endpoint, parameters) = match find(&parts.method, &path) {
        RouteMatch::Route(endpoint, parameters) => (endpoint, parameters),
        found => {
            // Authenticate before revealing which routes exist.
            let Identity { user, .. } = state.authenticator.authenticate(&state.directory, &parts).await?;
            record.user = user.name.clone();
            require_user(&config, &user, "")?;
            return Err(match found {
                RouteMatch::MethodNotAllowed(methods) => Failure::method_not_allowed(&methods),
                _ => Failure::missing(),
            });
        }
    };
    let route = &endpoint.route;
    record.route = route.path;
    record.is_streamed = endpoint.is_streamed();
    let (mut served_here, mut announced) = (None, None);
    if state.directory.is_in_cluster() {
        // What few requests wait for has memory of its own, so that others need less.
        if let Some(name) = database_of(route, &parameters) {
            let creates = route.path == "/{db}" && parts.method == Method::PUT;
            let passed = Box::pin(pass_on(&state, &mut parts, name, is_passed_on, creates, body));
            (served_here, body) = match passed.await? {
                Passed::Here(served, body) => (served, body),
                Passed::Answered(answer) => return Ok(answer),
            };
        }
        if concerns_definitions(route) {
            Box::pin(catch_up(&state)).await?;
            let changes = !parts.method.is_safe() && !route.only_reads() && parameters.get("db").is_none();
            announced = changes.then(|| (state.clone(), parts.clone()));
        }
    }
    // A request to log in or out may carry an old session, which must not affect it.
    let identity = match (route.path, &parts.method) {
        ("/_session", &Method::POST | &Method::DELETE) => Identity::anonymous(),
        _ => state.authenticator.authenticate(&state.directory, &parts).await?,
    };
    let Identity { user, proof, scope, signed_content, cookie } = identity;
    if let Some(hash) = signed_content {
        body.require_hash(hash);
    }
    record.user = user.name.clone();
    require_user(&config, &user, route.path)?;
    // Browsers send cookies, and passwords entered in their own dialog, with requests of any page.
    if matches!(user.how, Some("cookie" | "default" | "proxy")) || route.path == "/_session" {
        check_origin(&config, &parts, matches!(user.how, Some("cookie" | "proxy")))?;
    }
    if let Some(scope) = scope {
        scope.allow(&parts.method, route.path, parameters.get("db"), route.access == Access::Anonymous)?;
    }
    let delegated = DelegatedRequest::of(&parts.headers, &user)?;
    let mut restriction = state.authenticator.authorize(&state.directory, route, &parameters, &user).await?;
    let shard = match parameters.get("db") {
        Some(name) if user.is_cluster_server() => Box::pin(state.directory.open_cluster_shard(name)).await?,
        _ => None,
    };
    let (mut user, mut is_of_whole) = (user, false);
    if let (Some(delegated), Some(name)) = (delegated, parameters.get("db")) {
        match &shard {
            Some(shard) => delegated.check(shard)?,
            None => delegated.check(&*state.directory.open_database(name).await?)?,
        }
        (user, restriction, is_of_whole) = (delegated.user, delegated.restriction, true);
        record.user = user.name.clone();
    }
    endpoint.check_parameters(&query)?;
    if restriction.is_some() && query.text("as_of").is_some() {
        return Err(refused("a state of the past (`as_of`)"));
    }
    let mut virtual_database = enter_virtual(&state, route, &parameters).await?;
    if let Some(entered) = &mut virtual_database
        && let Some(time) = as_of_all_shards(route, &query)?
    {
        let id = document_of(route, &parameters);
        Box::pin(entered.read_past(time, id.as_deref())).await?;
        if let Some(state) = id.and_then(|id| entered.as_of(&entered.shard_of(&id)).map(str::to_owned)) {
            query.set("as_of", &state);
        }
    }
    let (part, forwarded) = match &virtual_database {
        Some(entered) => part_of(entered, route, &parameters),
        None => (shard, None),
    };
    let is_virtual = virtual_database.is_some();
    // Of the document of a virtual database: the shard has not got the request if it was misdirected.
    let may_be_repeated = is_passed_on && (route.only_reads() || forwarded.is_some());
    let reservation = state.memory.reservation();
    record.reservation = Some(reservation.clone());
    let call = Call {
        state,
        parts,
        route,
        parameters,
        query,
        user,
        virtual_database,
        part,
        restriction,
        is_of_whole: is_of_whole || is_virtual,
        proof,
        body: Some(body),
        reservation: reservation.clone(),
    };
    let handler = reservation.scope(endpoint.answer(call, forwarded));
    let answer = match route.only_reads() {
        true => record.cancellation.run(handler).await.unwrap_or_else(|| Err(panicked())),
        false => handler.await,
    };
    let answer = answer.map_err(|failure| of_handler(failure, may_be_repeated))?;
    if let Some((state, parts)) = announced {
        Box::pin(announce(&state, &parts)).await;
    }
    if served_here.is_some_and(|served| !served.is_owned()) {
        return Err(no_longer_owned(is_passed_on && route.only_reads()));
    }
    Ok(match cookie {
        Some(cookie) => answer.with(SET_COOKIE, &cookie),
        None => answer,
    })
}

/// Checks that a request is authenticated if `require_valid_user` is set, except for logging in, `/_up`, and
/// connections of the wire protocol, which authenticate themselves.
fn require_user(config: &Config, user: &User, path: &str) -> Result<()> {
    let is_refused =
        config.require_valid_user && user.name.is_none() && !matches!(path, "/_session" | "/_up" | "/_wire");
    if is_refused { Err(Failure::unauthorized("Authentication required.")) } else { Ok(()) }
}

/// The response to a CORS preflight request of an allowed site.
fn preflight(config: &Config, parts: &hyper::http::request::Parts) -> Option<HttpResponse> {
    let asks = parts.method == Method::OPTIONS && parts.headers.contains_key("access-control-request-method");
    let origin = parts.headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).filter(|_| asks)?;
    if cors_headers(config, Some(origin)).is_empty() {
        return None;
    }
    let mut answer = HttpResponse::empty(hyper::StatusCode::NO_CONTENT);
    for (name, value) in PREFLIGHT {
        answer = answer.with(HeaderName::from_static(name), value);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panicking_handler_returns_500() {
        let failing: Result<()> = catch_panic(async { panic!("a bug") }).await;
        assert_eq!(failing.map_err(|failure| failure.status()), Err(hyper::StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(catch_panic(async { Ok(7) }).await.ok(), Some(7));
    }
}
