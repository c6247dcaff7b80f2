//! Other servers, by names, on which shards of virtual databases lie.
//!
//! They are records of the directory, because their URLs contain credentials. Everything that is asked of them is asked
//! with these credentials.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client as HttpClient;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stemmadb::Value;
use stemmadb::replication::Peer;
use stemmadb_client::{AnyDatabase, Client, ClientOptions, Credentials, RemoteDatabase, TlsTrust};
use stemmadb_http::runtime::BlockingRuntime;
use stemmadb_http::url::{DatabaseUrl, encode_segment, host_of};
use stemmadb_http::{HttpPeer, PeerLimits};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::auth::{SERVER_SEAL, SERVER_TOKEN};
use crate::directory::{Directory, KnownRecords, ServedDatabase, check_plain_name};
use crate::error::{Failure, Result};
use crate::http::{Body, BodyTimeout, MemoryBudget, MemoryReservation, read_all, server_runtime};
use crate::outbound::{Network, OutboundClient};
use crate::settings::SettingStore;

/// The kind of the directory's records of servers.
const RECORDS: &str = "server";
/// The name that stands for this server.
pub(crate) const HERE: &str = "here";

const NAME_BYTES_MAX: usize = 64;
const SERVERS_MAX: usize = 256;

/// How long a server may take to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a server that refuses connections is tried again: requests wait meanwhile.
const RECONNECT_TIME: Duration = Duration::from_secs(2);
/// The largest answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Another server, as an administrator describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerDefinition {
    /// `http://user:password@host:port` or `https://…`.
    url: String,
    /// Where the server is: replicas of a shard are placed in other zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
}

impl ServerDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no server: {error}")))
    }

    fn parsed(&self) -> Result<DatabaseUrl> {
        let parsed = DatabaseUrl::parse(&self.url).ok().filter(|parsed| is_origin(&parsed.url));
        parsed.ok_or_else(|| {
            Failure::bad_request("`url` is the URL of a server: https://user:password@host:port, without a path")
        })
    }
}

/// Whether a URL has a host and no path.
fn is_origin(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.strip_suffix('/').is_some_and(|host| !host.is_empty() && !host.contains('/'))
}

/// Another server.
pub(crate) struct OtherServer {
    pub(crate) name: String,
    definition: ServerDefinition,
    /// Without credentials and a trailing slash. Of the cluster: this server, which passes requests on.
    origin: String,
    headers: Vec<(String, String)>,
    http: HttpClient<Network, Body>,
    client: Client,
    limits: PeerLimits,
    stopping: watch::Receiver<bool>,
}

impl std::fmt::Debug for OtherServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherServer").field("name", &self.name).field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl OtherServer {
    /// Where the server is.
    pub(crate) fn zone(&self) -> Option<&str> {
        self.definition.zone.as_deref()
    }

    /// A database of the server, by the wire protocol. Nothing is sent yet.
    pub(crate) fn database(&self, name: &str) -> RemoteDatabase {
        self.client.database(name)
    }

    /// A database of the server as one side of a replication.
    pub(crate) fn peer(&self, database: &str) -> Arc<dyn Peer> {
        self.peer_with(database, [])
    }

    /// As [`OtherServer::peer`], with further headers of all requests.
    pub(crate) fn peer_with(&self, database: &str, more: impl IntoIterator<Item = (String, String)>) -> Arc<dyn Peer> {
        let (url, runtime) =
            (format!("{}/{}", self.origin, encode_segment(database)), BlockingRuntime::Threaded(server_runtime()));
        let (client, limits) = (self.http.clone(), self.limits.clone());
        let headers = self.headers.iter().cloned().chain(more).collect();
        Arc::new(HttpPeer::with_client(client, url, headers, runtime, limits, self.stopping.clone()))
    }

    /// Sends a request; `path` includes the query.
    ///
    /// # Errors
    /// 503 if the server does not answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
        wait: Duration,
    ) -> Result<Response<Incoming>> {
        let unavailable = |reason: String| {
            let reason = format!("The server `{}` does not answer: {reason}", self.name);
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        };
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.origin));
        if let Some(all) = request.headers_mut() {
            *all = headers;
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| Failure::bad_request(error.to_string()))?;
        match timeout(wait, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(unavailable(error.to_string())),
            Err(_) => Err(unavailable(format!("nothing arrived within {wait:?}"))),
        }
    }

    /// Sends a request with a JSON body, and reads the whole answer.
    ///
    /// # Errors
    /// As [`OtherServer::send`]; the error that the server answers with.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        reservation: Option<&MemoryReservation>,
    ) -> Result<(StatusCode, Bytes)> {
        self.ask_with(HeaderMap::new(), method, path, body, reservation).await
    }

    /// As [`OtherServer::ask`], with further headers.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(crate) async fn ask_with(
        &self,
        mut headers: HeaderMap,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        reservation: Option<&MemoryReservation>,
    ) -> Result<(StatusCode, Bytes)> {
        headers.insert(ACCEPT, hyper::header::HeaderValue::from_static("application/json"));
        if body.is_some() {
            headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        }
        let response = self.send(method, path, headers, Body::Full(body), ANSWER_TIMEOUT).await?;
        let response = self.checked(response).await?;
        let (status, timeouts) = (response.status(), BodyTimeout::for_peer(self.limits.stall_timeout));
        Ok((status, read_all(response.into_body(), ANSWER_BYTES_MAX, timeouts, reservation).await?))
    }

    /// A response, unless it is an error.
    ///
    /// # Errors
    /// The error that the server answers with.
    pub(crate) async fn checked(&self, response: Response<Incoming>) -> Result<Response<Incoming>> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let timeouts = BodyTimeout::for_peer(self.limits.stall_timeout);
        let bytes = read_all(response.into_body(), ANSWER_BYTES_MAX, timeouts, None).await?;
        let answer = Value::parse(&bytes).unwrap_or_default();
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        let reason = text("reason").unwrap_or_else(|| format!("the answer is {status}, without a reason"));
        let error = text("error").unwrap_or_else(|| "unknown".to_owned());
        let failure = Failure::new(status, error, reason);
        // Other errors are about the request, whichever server answers it.
        Err(if status.is_server_error() { failure.within(&format!("the server `{}`", self.name)) } else { failure })
    }
}

/// A database of this server or, in a cluster, of another one.
pub(crate) enum Reached {
    Here(Arc<ServedDatabase>),
    /// With the id that distinguishes it from others that had or have its name.
    There(RemoteDatabase, String),
}

impl Reached {
    pub(crate) fn database(&self) -> AnyDatabase {
        match self {
            Reached::Here(served) => AnyDatabase::from(served.database().clone()),
            Reached::There(database, _) => AnyDatabase::from(database.clone()),
        }
    }
}

/// The servers that this one knows.
pub(crate) struct OtherServers {
    directory: Arc<Directory>,
    outbound: Arc<OutboundClient>,
    trust: TlsTrust,
    limits: PeerLimits,
    stopping: watch::Receiver<bool>,
    cluster: Option<Arc<OtherServer>>,
    records: KnownRecords,
    by_name: Mutex<BTreeMap<String, Arc<OtherServer>>>,
}

impl OtherServers {
    /// The servers of a directory. `ca` is a file with the certificates to trust; `seal`, how this server shows others
    /// of its cluster that it is one.
    ///
    /// # Errors
    /// 400 if the URL of this server in its cluster is not valid.
    pub(crate) fn new(
        directory: Arc<Directory>,
        outbound: Arc<OutboundClient>,
        ca: Option<PathBuf>,
        seal: String,
        (document_bytes_max, memory): (usize, Arc<MemoryBudget>),
        stopping: watch::Receiver<bool>,
    ) -> Result<Self> {
        let limits = PeerLimits { document_bytes_max, memory, stall_timeout: ANSWER_TIMEOUT };
        let trust = ca.map_or(TlsTrust::System, TlsTrust::File);
        let (records, by_name) = (KnownRecords::new(RECORDS), Mutex::default());
        let mut servers =
            OtherServers { directory, outbound, trust, limits, stopping, cluster: None, records, by_name };
        if let Some(address) = servers.directory.own_address().map(str::to_owned) {
            servers.cluster = Some(Arc::new(servers.cluster_server(address, seal)?));
        }
        Ok(servers)
    }

    /// The servers of the cluster as one, which has the shards that are databases of the cluster.
    fn cluster_server(&self, address: String, seal: String) -> Result<OtherServer> {
        let definition = ServerDefinition { url: address, zone: None };
        let origin = definition.parsed()?.url.trim_end_matches('/').to_owned();
        let options = ClientOptions::new()
            .reconnect_time(RECONNECT_TIME + 2 * self.directory.lease())
            .trust(self.trust.clone())
            .credentials(Credentials::Token(format!("{SERVER_TOKEN}{seal}")));
        Ok(OtherServer {
            name: HERE.to_owned(),
            client: Client::lazy(&definition.url, options)?,
            definition,
            origin,
            headers: vec![(SERVER_SEAL.to_string(), seal)],
            http: self.outbound.client.clone(),
            limits: self.limits.clone(),
            stopping: self.stopping.clone(),
        })
    }

    /// The servers of the cluster as one; `None` without a cluster.
    pub(crate) fn cluster(&self) -> Option<&Arc<OtherServer>> {
        self.cluster.as_ref()
    }

    /// A database of this server or, in a cluster, of the one that owns it, with the rights of a server.
    ///
    /// # Errors
    /// 404 if there is none; 503 if the cluster does not answer.
    pub(crate) async fn database(&self, name: &str) -> Result<AnyDatabase> {
        Ok(self.reach(name).await?.database())
    }

    /// As [`OtherServers::database`]; one of this server stays open as long as it is held.
    ///
    /// # Errors
    /// As [`OtherServers::database`].
    pub(crate) async fn reach(&self, name: &str) -> Result<Reached> {
        match (self.directory.open_own_database(name).await?, &self.cluster) {
            (Some(served), _) => Ok(Reached::Here(served)),
            (None, Some(cluster)) => Ok(Reached::There(cluster.database(name), self.directory.instance_id(name)?)),
            (None, None) => Err(Failure::no_database()),
        }
    }

    /// Reads what is recorded, and has changed since the last call. Blocks.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let mut by_name = self.by_name.lock();
        for (name, record) in self.records.changes(&self.directory)? {
            let Some(record) = record else {
                by_name.remove(&name);
                continue;
            };
            let is_known = |definition: &ServerDefinition| {
                by_name.get(&name).is_some_and(|server: &Arc<OtherServer>| server.definition == *definition)
            };
            let parsed = ServerDefinition::parse(record);
            if parsed.as_ref().is_ok_and(is_known) {
                continue;
            }
            match parsed.and_then(|definition| self.opened(&name, definition)) {
                Ok(server) => drop(by_name.insert(name, Arc::new(server))),
                Err(failure) => {
                    tracing::error!(target: "stemma::database", "the server {name:?}: {}", failure.reason());
                }
            }
        }
        Ok(())
    }

    fn opened(&self, name: &str, definition: ServerDefinition) -> Result<OtherServer> {
        let DatabaseUrl { url, headers } = definition.parsed()?;
        let origin = url.trim_end_matches('/').to_owned();
        let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
        self.outbound.check(host_of(authority))?;
        let options = ClientOptions::new().reconnect_time(RECONNECT_TIME).trust(self.trust.clone());
        let client = Client::lazy(&definition.url, options)?;
        Ok(OtherServer {
            name: name.to_owned(),
            definition,
            origin,
            headers,
            http: self.outbound.client.clone(),
            client,
            limits: self.limits.clone(),
            stopping: self.stopping.clone(),
        })
    }

    /// Stores a server, in place of another one of the name. Shards that are open keep the former URL until the next
    /// start. Blocks.
    ///
    /// # Errors
    /// 400 if it is not valid; 403 if the host is not allowed; 503 if it can't be stored.
    pub(crate) fn define(&self, name: &str, definition: ServerDefinition) -> Result<()> {
        check_plain_name("a server", name, NAME_BYTES_MAX)?;
        if name == HERE {
            return Err(Failure::bad_request(format!("`{HERE}` stands for this server: choose another name")));
        }
        let server = Arc::new(self.opened(name, definition)?);
        let record = serde_json::to_value(&server.definition).map_err(|error| Failure::internal(error.to_string()))?;
        let mut by_name = self.by_name.lock();
        if by_name.len() >= SERVERS_MAX && !by_name.contains_key(name) {
            return Err(Failure::bad_request(format!("there are {SERVERS_MAX} servers, which is the most")));
        }
        self.directory.put_record(RECORDS, name, &record)?;
        by_name.insert(name.to_owned(), server);
        Ok(())
    }

    /// Forgets a server. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut by_name = self.by_name.lock();
        if !by_name.contains_key(name) {
            return Err(no_server(name));
        }
        self.directory.remove_record(RECORDS, name)?;
        by_name.remove(name);
        Ok(())
    }

    /// All servers by their names, without credentials.
    pub(crate) fn list(&self) -> BTreeMap<String, serde_json::Value> {
        self.by_name.lock().iter().map(|(name, server)| (name.clone(), shown(server))).collect()
    }

    /// One server, without credentials.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn shown(&self, name: &str) -> Result<serde_json::Value> {
        Ok(shown(&*self.get(name)?))
    }

    /// A server.
    ///
    /// # Errors
    /// 404 if there is none of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OtherServer>> {
        self.by_name.lock().get(name).cloned().ok_or_else(|| no_server(name))
    }
}

fn shown(server: &OtherServer) -> serde_json::Value {
    match server.zone() {
        Some(zone) => serde_json::json!({"url": server.origin, "zone": zone}),
        None => serde_json::json!({"url": server.origin}),
    }
}

fn no_server(name: &str) -> Failure {
    Failure::not_found(format!("there is no server `{name}`: PUT /_servers/{name} adds it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_servers_have_no_path() {
        let url = |url: &str| ServerDefinition { url: url.to_owned(), zone: None }.parsed().map(|parsed| parsed.url);
        assert_eq!(url("http://root:geheim@127.0.0.1:5984").unwrap(), "http://127.0.0.1:5984/");
        assert_eq!(url("https://db.example/").unwrap(), "https://db.example/");
        for wrong in ["", "db.example", "ftp://db.example", "http://", "http://db.example/orders"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }
}
