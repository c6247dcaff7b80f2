//! Connections to a cluster.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::{Consistency, SerialConsistency};
use stemmadb::log_storage::LogStorage;
use tokio::runtime::Runtime;

use crate::log::CassandraLog;
use crate::requests::Requests;
use crate::schema::{self, Statements};

/// How to reach a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    nodes: Vec<String>,
    keyspace: String,
    replication: u8,
    credentials: Option<(String, String)>,
    translations: HashMap<SocketAddr, SocketAddr>,
    request_timeout: Duration,
    patience: Duration,
}

impl ClusterOptions {
    /// A cluster with these nodes, each `host:port`: any of them; the others are found. The tables are in `keyspace`,
    /// which is created if it does not exist.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>, keyspace: impl Into<String>) -> Self {
        ClusterOptions {
            nodes: nodes.into_iter().map(Into::into).collect(),
            keyspace: keyspace.into(),
            replication: 3,
            credentials: None,
            translations: HashMap::new(),
            request_timeout: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        }
    }

    /// Sets how many nodes have each row of a keyspace that is created. Default: 3. A keyspace that exists keeps its
    /// replication.
    #[must_use]
    pub fn replication(mut self, nodes: u8) -> Self {
        self.replication = nodes.max(1);
        self
    }

    /// Sets user and password.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Uses the address `reached` for the node that calls itself `known`, for example behind a proxy.
    #[must_use]
    pub fn translate(mut self, known: SocketAddr, reached: SocketAddr) -> Self {
        self.translations.insert(known, reached);
        self
    }

    /// Sets how long a request may take before it is repeated. Default: 5 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how long requests are repeated before a read or a write fails. Default: 30 s. After a write that failed,
    /// the database has to be reopened.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// Connections to a Cassandra or ScyllaDB cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) session: Session,
    pub(crate) statements: Statements,
    pub(crate) patience: Duration,
    runtime: RuntimeInBackground,
}

/// A runtime that may be dropped by a thread of another one.
struct RuntimeInBackground(Option<Runtime>);

impl Drop for RuntimeInBackground {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Cluster {
    /// Connects, and creates keyspace and tables if they don't exist.
    ///
    /// # Errors
    /// `InvalidInput` if the keyspace's name is not one; errors of the driver.
    pub fn connect(options: ClusterOptions) -> io::Result<Self> {
        let ClusterOptions { keyspace, .. } = &options;
        let is_name = !keyspace.is_empty() && keyspace.len() <= 48 && !keyspace.starts_with('_');
        if !is_name || !keyspace.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        {
            let message = format!("a keyspace can't be named {keyspace:?}: use up to 48 of a-z, 0-9 and _");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("stemma-cassandra")
            .enable_all()
            .build()?;
        let patience = options.patience;
        let (session, statements) = wait(&runtime, connect(options))?;
        let runtime = RuntimeInBackground(Some(runtime));
        Ok(Cluster(Arc::new(Shared { session, statements, patience, runtime })))
    }

    /// The log `name`, for [`Options::log_storage`](stemmadb::Options::log_storage).
    pub fn log(&self, name: &str) -> Arc<CassandraLog> {
        Arc::new(CassandraLog::new(self.0.clone(), name))
    }

    /// The names of all logs in the keyspace, in order. Reads a row of each.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn logs(&self) -> io::Result<Vec<String>> {
        let requests = Requests::new(&self.0, "", 0);
        self.0.wait(async move { requests.logs().await })
    }

    /// Takes over the log `name`, and deletes it with everything in it. Does nothing if there is none.
    ///
    /// # Errors
    /// Errors of the cluster: then it may be deleted in part, and can't be opened. Repeat the call.
    pub fn delete_log(&self, name: &str) -> io::Result<()> {
        let log = self.log(name);
        if !log.exists()? {
            return Ok(());
        }
        let files = log.take_over()?;
        log.delete_all(files)
    }

    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Cluster(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    /// Runs a future on the cluster's runtime.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime.0 {
            runtime.spawn(future);
        }
    }

    /// Runs a future on the cluster's runtime, and waits for it on this thread, whatever this thread is.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        match &self.runtime.0 {
            Some(runtime) => wait(runtime, future),
            None => Err(io::Error::other("the cluster's connections are closed")),
        }
    }
}

fn wait<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.spawn(async move { sender.send(future.await) });
    receiver.recv().unwrap_or_else(|_| Err(io::Error::other("a request to the cluster was given up")))
}

async fn connect(options: ClusterOptions) -> io::Result<(Session, Statements)> {
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::Quorum)
        .serial_consistency(Some(SerialConsistency::Serial))
        .request_timeout(Some(options.request_timeout))
        // What is repeated, and when, is decided with the knowledge of what was asked.
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.nodes)
        .connection_timeout(options.request_timeout)
        .default_execution_profile_handle(profile.into_handle());
    if let Some((user, password)) = &options.credentials {
        builder = builder.user(user, password);
    }
    if !options.translations.is_empty() {
        builder = builder.address_translator(Arc::new(options.translations.clone()));
    }
    let session = builder.build().await.map_err(io::Error::other)?;
    schema::create(&session, &options.keyspace, options.replication).await?;
    let statements = Statements::prepare(&session, &options.keyspace).await.map_err(io::Error::other)?;
    Ok((session, statements))
}
