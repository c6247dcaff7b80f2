//! Support for client suites: a server, directories, and processes.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stemmadb::Durability;
use stemmadb::log_storage::ClusterStore;
use stemmadb::testing::MemoryCluster;
use stemmadb_cassandra::{Cluster, ClusterOptions};
use stemmadb_server::script::WorkerCommand;
use stemmadb_server::{Administrator, Config, Server, ServerBuilder};
use tokio::runtime::Runtime;

/// A server in this process, on its own port; stopped on drop.
pub(crate) struct TestServer {
    runtime: Runtime,
    config: Config,
    server: Option<Server>,
    /// The other servers of its cluster, if `STEMMA_TEST_CLUSTER` asks for one: requests for their databases are passed
    /// on to them.
    others: Vec<Server>,
    join: Option<Box<Join>>,
    directory: tempfile::TempDir,
}

/// Makes the server at a URL a member of the cluster of a test.
type Join = dyn Fn(&str) -> Arc<dyn ClusterStore>;

/// How long a member may be silent.
const LEASE: Duration = Duration::from_secs(10);

/// The cluster of a test, if `STEMMA_TEST_CLUSTER` asks for one: `memory`, or `cassandra` for a keyspace of its own at
/// the node that `STEMMA_CASSANDRA` names.
fn cluster() -> Option<Box<Join>> {
    if std::env::var("STEMMA_TEST_CLUSTER").ok()? != "cassandra" {
        let cluster = MemoryCluster::new(LEASE);
        return Some(Box::new(move |url| cluster.join(url)));
    }
    let node = std::env::var("STEMMA_CASSANDRA").expect("STEMMA_CASSANDRA names a node");
    let keyspace = format!("stemma_clients_{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let cluster = Cluster::connect(ClusterOptions::new([node], keyspace)).expect("a cluster");
    Some(Box::new(move |url| Arc::new(cluster.join(url, LEASE).expect("a member"))))
}

/// The server of a configuration, which has its address; a member of the cluster, if there is one.
fn builder(config: &Config, join: Option<&Join>) -> ServerBuilder {
    let builder = Server::builder(config.clone());
    join.map(|join| join(&format!("http://{}", config.address))).into_iter().fold(builder, ServerBuilder::cluster)
}

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    /// Starts a server with a modified configuration.
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = change(Config {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
            // The suites do not depend on durability, and a thousand flushes take long.
            durability: Durability::None,
            scripts: Some(WorkerCommand {
                program: PathBuf::from(env!("CARGO_BIN_EXE_stemma-script-worker")),
                arguments: Vec::new(),
            }),
            ..Config::new(directory.path().join("databases"))
        });
        std::fs::create_dir(directory.path().join("local")).unwrap();
        let join = cluster();
        let Some(joined) = join.as_deref() else {
            let server = Some(runtime.block_on(Server::start(config.clone())).unwrap());
            return TestServer { runtime, config, server, others: Vec::new(), join, directory };
        };
        let config_of = |number: usize| Config {
            address: TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap(),
            directory: directory.path().join(format!("databases-{number}")),
            durability: Durability::Sync,
            ..config.clone()
        };
        let configs: Vec<_> = (0..3).map(config_of).collect();
        let start = |config| runtime.block_on(builder(config, Some(joined)).start()).unwrap();
        let mut others: Vec<_> = configs.iter().map(start).collect();
        // They know each other then.
        std::thread::sleep(Duration::from_secs(3));
        let (server, config) = (others.pop(), configs.last().cloned().unwrap_or(config));
        TestServer { runtime, config, server, others, join, directory }
    }

    /// Stops the server, and starts it again at the same address.
    pub(crate) fn restart(&mut self) {
        let server = self.server.take().unwrap();
        self.config.address = server.address();
        self.runtime.block_on(server.stop());
        let builder = builder(&self.config, self.join.as_deref());
        self.server = Some(self.runtime.block_on(builder.start()).unwrap());
    }

    /// The server's URL, including credentials.
    pub(crate) fn url(&self) -> String {
        let address = self.server.as_ref().map(Server::address).unwrap();
        format!("http://admin:secret@{address}")
    }

    /// A directory for a client's local databases.
    pub(crate) fn local(&self) -> PathBuf {
        self.directory.path().join("local")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        for server in self.server.take().into_iter().chain(self.others.drain(..)) {
            self.runtime.block_on(server.stop());
        }
    }
}

/// Copies the files of a directory.
pub(crate) fn copy_to(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Copies a directory and everything below it, as files that can be written.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy_tree(&from, &to),
            false => std::fs::write(to, std::fs::read(from).unwrap()).unwrap(),
        }
    }
}

/// Runs a command to completion; fails with its output if the command fails, otherwise returns what it printed.
pub(crate) fn run(command: &mut Command, needs: &str) -> String {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} can't be run: {error}. Install {needs} to run this test"),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}\n{err}");
    out.into_owned()
}

/// A program that runs beside a suite; killed on drop.
pub(crate) struct Beside(Child);

impl Beside {
    /// Starts a program, and waits for its first line of output.
    pub(crate) fn start(command: &mut Command, needs: &str) -> (Self, String) {
        let mut child = match command.stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => panic!("{command:?} can't be run: {error}. Install {needs} to run this test"),
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Beside(child), line.trim().to_owned())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It may have exited already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The first of these programs that is installed.
pub(crate) fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file()))
}
