//! Nodes that replicate with each other in a random topology over the simulated network, on one thread, in simulated
//! time.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use stemmadb::replication::{ConflictRule, MissingRevisions, Peer, RunningReplication, Topology, TopologyEdge};
use stemmadb::testing::Random;
use stemmadb::{Clock, Database, DocumentId, Durability, Options, Replication, Sequence, Value};
use stemmadb_http::HttpPeer;
use stemmadb_http::runtime::BlockingRuntime;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::clients::Clients;
use super::eager_target::EagerTarget;
use super::network::{SimulatedConnector, SimulatedNetwork};
use crate::auth::{ADMIN_ROLE, User};
use crate::config::{Config, JwtAlgorithm, JwtKey};
use crate::design::WriteValidator;
use crate::directory::ServedDatabase;
use crate::http::MemoryReservation;
use crate::replicator::local::LocalPeer;
use crate::replicator::peer_limits;
use crate::server::Server;
use crate::writes::WriteOptions;

/// The largest number of nodes.
const NODES_MAX: u64 = 6;
/// The time of the nodes' clocks, in milliseconds since 1970, from which each deviates.
const TIME_MS: i64 = 1_800_000_000_000;
/// The number of steps of a run: writes, replications, restarts.
const STEP_COUNT: u64 = 24;
/// The key that signs the tokens of requests.
const KEY: &[u8] = b"a secret of at least thirty-two bytes";

/// Bugs injected to test that the simulation detects them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InjectedBugs {
    /// The network acknowledges writes that it did not deliver.
    pub(super) false_acks: bool,
    /// Targets write documents after the checkpoint that covers them.
    pub(super) eager_target: bool,
}

/// The trace and statistics of a run.
#[derive(Debug, Default)]
pub(super) struct SimulationResult {
    pub(super) trace: Vec<String>,
    pub(super) requests: u64,
    pub(super) faults: u64,
    pub(super) writes: u64,
}

/// The nodes. One server serves all: each node is one database of it, since a server has no other state that
/// replication depends on.
pub(super) struct SimulatedCluster {
    runtime: Arc<Runtime>,
    server: Arc<Server>,
    headers: Vec<(String, String)>,
    /// Never set.
    cancelled: watch::Sender<bool>,
    _directory: TempDir,
}

/// A replication from one node to another, run by one of them.
struct SimulatedJob {
    at: usize,
    /// The node that gets the documents.
    to: usize,
    name: String,
    source: Box<dyn Peer>,
    target: Box<dyn Peer>,
    batch_count: usize,
}

impl SimulatedCluster {
    pub(super) fn new() -> Self {
        // In memory where possible: the simulation does not test disks.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        // One extra thread for blocking work, which therefore runs in order, while simulated time stands still.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        let config = Config {
            address: ([127, 0, 0, 1], 0).into(),
            durability: Durability::None,
            jwt_keys: vec![JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: KEY.to_vec() }],
            ..Config::new(directory.path())
        };
        let server = runtime.block_on(Server::start(config)).expect("a server");
        let claims = serde_json::json!({"sub": "admin", "exp": 4_000_000_000_u64, "_couchdb.roles": [ADMIN_ROLE]});
        let (head, key) = (jsonwebtoken::Header::default(), jsonwebtoken::EncodingKey::from_secret(KEY));
        let token = jsonwebtoken::encode(&head, &claims, &key).expect("a token");
        let headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
        let cancelled = watch::channel(false).0;
        SimulatedCluster {
            runtime: Arc::new(runtime),
            server: Arc::new(server),
            headers,
            cancelled,
            _directory: directory,
        }
    }

    /// Runs one seed.
    ///
    /// # Errors
    /// If the nodes do not converge, or not to the acknowledged writes.
    pub(super) fn run(&self, seed: u64, bugs: InjectedBugs) -> Result<SimulationResult, String> {
        // Simulated time applies outside of the runtime's tasks too.
        let _entered = self.runtime.enter();
        let mut random = Random::new(seed);
        let topology = random_topology(&mut random);
        let nodes: Vec<Arc<ServedDatabase>> =
            topology.nodes().iter().map(|name| self.database(name, random_time(&mut random))).collect();
        let clients = Clients::new(nodes.clone());
        let network = SimulatedNetwork::new(Random::new(random.number()), clients, nodes.len(), bugs.false_acks);
        let network = Arc::new(Mutex::new(network));
        let jobs = self.jobs(&mut random, &topology, &nodes, &network, bugs);
        let agreed = self.run_steps(&mut random, nodes.len(), &jobs, &network, None);
        result_of(agreed, &network)
    }

    /// Runs one seed with a conflict rule, which some or all nodes apply: the nodes must agree on one version of each
    /// document, with the same revisions, and then write nothing more.
    ///
    /// # Errors
    /// If they don't.
    pub(super) fn run_with_rule(&self, seed: u64) -> Result<SimulationResult, String> {
        let _entered = self.runtime.enter();
        let mut random = Random::new(seed);
        let topology = random_topology(&mut random);
        let times: Vec<i64> = topology.nodes().iter().map(|_| random_time(&mut random)).collect();
        let nodes: Vec<Arc<ServedDatabase>> =
            topology.nodes().iter().zip(&times).map(|(name, time)| self.database(name, *time)).collect();
        let rule = NodeRules {
            rule: random_rule(&mut random),
            by_node: nodes.iter().enumerate().map(|(node, _)| node == 0 || random.below(4) > 0).collect(),
            nodes: nodes.clone(),
        };
        let clients = Clients::with_times(nodes.clone(), times);
        let network = SimulatedNetwork::new(Random::new(random.number()), clients, nodes.len(), false);
        let network = Arc::new(Mutex::new(network));
        let jobs = self.jobs(&mut random, &topology, &nodes, &network, InjectedBugs::default());
        let agreed = self.run_steps(&mut random, nodes.len(), &jobs, &network, Some(&rule));
        result_of(agreed.map_err(|wrong| format!("{:?}: {wrong}", rule.rule)), &network)
    }

    /// Creates a database in memory, without background threads.
    fn database(&self, name: &str, time_ms: i64) -> Arc<ServedDatabase> {
        let options = Options::new().durability(Durability::None).background(false).clock(Clock::fixed_at(time_ms));
        let database = Database::in_memory_with(options).expect("a database");
        self.server.state().directory.insert_open(name, database)
    }

    /// Creates the replications of the topology, each run by one of its two nodes.
    fn jobs(
        &self,
        random: &mut Random,
        topology: &Topology,
        nodes: &[Arc<ServedDatabase>],
        network: &Arc<Mutex<SimulatedNetwork>>,
        bugs: InjectedBugs,
    ) -> Vec<SimulatedJob> {
        let node = |name: &str| topology.nodes().iter().position(|node| node == name).expect("a node of the topology");
        let job = |edge: &TopologyEdge| {
            let (from, to) = (node(&edge.source), node(&edge.target));
            let batch_count = [1, 2, 5, 500][random.below(4) as usize];
            let (at, name, source, target): (_, _, Box<dyn Peer>, Box<dyn Peer>) = match random.below(2) {
                0 => (from, "push", Box::new(self.local(&nodes[from])), Box::new(self.remote(from, to, network))),
                _ => (to, "pull", Box::new(self.remote(to, from, network)), Box::new(self.local(&nodes[to]))),
            };
            let target = if bugs.eager_target { Box::new(EagerTarget::new(target)) } else { target };
            SimulatedJob { at, to, name: format!("{name} {from} to {to}"), source, target, batch_count }
        };
        topology.edges().iter().map(job).collect()
    }

    fn local(&self, served: &Arc<ServedDatabase>) -> LocalPeer {
        let user = User { roles: vec![ADMIN_ROLE.to_owned()], ..User::default() };
        let validator = WriteValidator {
            user,
            scripts: self.server.state().scripts.clone(),
            restriction: None,
            is_of_whole: false,
        };
        LocalPeer {
            served: served.clone(),
            options: WriteOptions { validator, new_edits: false, durability: Durability::None },
            runtime: BlockingRuntime::CurrentThread(self.runtime.clone()),
            cancelled: self.cancelled.subscribe(),
            published: Mutex::new(served.published()),
        }
    }

    fn remote(&self, from: usize, to: usize, network: &Arc<Mutex<SimulatedNetwork>>) -> HttpPeer<SimulatedConnector> {
        let connector = SimulatedConnector { from, network: network.clone(), server: self.server.clone() };
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        let url = format!("http://localhost:{}/{}", to + 1, node_name(to));
        let (runtime, state) = (BlockingRuntime::CurrentThread(self.runtime.clone()), self.server.state());
        let limits = peer_limits(state.config.limits.body_bytes, state.memory.clone());
        HttpPeer::with_client(client, url, self.headers.clone(), runtime, limits, self.cancelled.subscribe())
    }

    /// Returns a peer with one document, whose text has `byte_count` bytes, over a network without faults; and the
    /// document's id and revision.
    pub(super) fn with_document(&self, byte_count: usize) -> (impl Peer, MissingRevisions) {
        let _entered = self.runtime.enter();
        let served = self.database(&node_name(1), TIME_MS);
        let revision = served.database().insert("a", &serde_json::json!({"text": "x".repeat(byte_count)}));
        let mut network = SimulatedNetwork::new(Random::new(1), Clients::new(vec![served]), 2, false);
        let in_transit = network.stop_faults();
        assert!(in_transit.is_empty(), "nothing was sent yet");
        let wanted = MissingRevisions {
            id: DocumentId::new("a").expect("an id"),
            revisions: vec![revision.expect("new")],
            possible_ancestors: Vec::new(),
        };
        (self.remote(0, 1, &Arc::new(Mutex::new(network))), wanted)
    }

    /// Reserves the whole memory budget and the overcommit permit, until the reservations are dropped.
    pub(super) fn exhaust_memory(&self) -> [Arc<MemoryReservation>; 2] {
        let state = self.server.state();
        let reservations = [state.memory.reservation(), state.memory.reservation()];
        let bytes = usize::try_from(state.config.limits.bodies_bytes).expect("little");
        for reservation in &reservations {
            self.runtime.block_on(reservation.grow(bytes)).expect("memory");
        }
        reservations
    }

    /// Runs random steps, stops the faults, and checks that all nodes converge.
    fn run_steps(
        &self,
        random: &mut Random,
        node_count: usize,
        jobs: &[SimulatedJob],
        network: &Arc<Mutex<SimulatedNetwork>>,
        rule: Option<&NodeRules>,
    ) -> Result<(), String> {
        let mut running: Vec<Option<RunningReplication<'_>>> = jobs.iter().map(|_| None).collect();
        for _ in 0..STEP_COUNT {
            match random.below(11) {
                0..=2 => (0..=random.below(4)).for_each(|_| network.lock().write()),
                3 => {
                    let node = random.below(node_count as u64) as usize;
                    network.lock().make_unavailable(node);
                    // A restarted server loses the state of its jobs in memory.
                    let jobs_of_node = running.iter_mut().zip(jobs).filter(|(_, job)| job.at == node);
                    jobs_of_node.for_each(|(running, _)| *running = None);
                }
                4 => network.lock().divide(),
                5 => self.pass_time(Duration::from_millis(random.below(60_000))),
                _ => {
                    let at = random.below(jobs.len() as u64) as usize;
                    run_job(&jobs[at], &mut running[at], network);
                    // Not always: the node may stop before it resolves what it got.
                    if let Some(rule) = rule
                        && random.below(3) > 0
                    {
                        rule.apply(jobs[at].to)?;
                    }
                }
            }
        }
        let mut in_transit = network.lock().stop_faults();
        self.runtime.block_on(async { while in_transit.join_next().await.is_some() {} });
        let mut agreed = Err("nothing was tried".to_owned());
        // In a round, a change advances by one replication at least, and a changed checkpoint needs another round.
        // A resolved conflict is another change.
        let round_count = (node_count + 3) * if rule.is_some() { 3 } else { 1 };
        for _ in 0..round_count {
            for (job, running) in jobs.iter().zip(&mut running) {
                run_job(job, running, network);
                rule.map_or(Ok(()), |rule| rule.apply(job.to))?;
            }
            agreed = match rule {
                Some(_) => network.lock().clients.verify_resolved(),
                None => network.lock().clients.verify(),
            };
            if agreed.is_ok() {
                break;
            }
        }
        agreed?;
        let Some(rule) = rule else { return Ok(()) };
        let before = rule.positions();
        for _ in 0..2 {
            for (job, running) in jobs.iter().zip(&mut running) {
                run_job(job, running, network);
                rule.apply(job.to)?;
            }
        }
        rule.verify_unchanged(&before)
    }

    fn pass_time(&self, pause: Duration) {
        self.runtime.block_on(tokio::time::sleep(pause));
    }
}

/// A conflict rule, and the nodes that apply it.
struct NodeRules {
    rule: ConflictRule,
    by_node: Vec<bool>,
    nodes: Vec<Arc<ServedDatabase>>,
}

impl NodeRules {
    fn apply(&self, node: usize) -> Result<(), String> {
        if self.by_node[node] {
            let resolved = self.rule.resolve_all(self.nodes[node].database(), Sequence::ZERO);
            resolved.map_err(|error| format!("not resolved at {node}: {error}"))?;
        }
        Ok(())
    }

    fn positions(&self) -> Vec<Sequence> {
        self.nodes.iter().map(|served| served.database().sequence()).collect()
    }

    /// Checks that no document was written since.
    fn verify_unchanged(&self, before: &[Sequence]) -> Result<(), String> {
        for (node, (served, since)) in self.nodes.iter().zip(before).enumerate() {
            let changes = served.database().changes(*since).expect("a feed");
            if changes.count_up_to(1).expect("an undamaged database") > 0 {
                return Err(format!("endless: {node} writes on after all nodes agreed"));
            }
        }
        Ok(())
    }
}

/// A rule that reads the clients' documents.
fn random_rule(random: &mut Random) -> ConflictRule {
    match random.below(4) {
        0 => ConflictRule::LastWriter { field: "at".to_owned() },
        1 => ConflictRule::Merge { field: None },
        2 => ConflictRule::Merge { field: Some("at".to_owned()) },
        _ => ConflictRule::Function(Arc::new(|conflict| {
            // The largest `n` alone.
            let bodies = conflict.versions.iter().map(stemmadb::Document::value);
            let bodies = bodies.collect::<stemmadb::Result<Vec<Value>>>()?;
            let n = bodies.iter().filter_map(|body| body.get("n")?.as_u64()).max();
            let mut body = stemmadb::Object::new();
            body.insert("n", n.unwrap_or_default());
            Ok(body.into())
        })),
    }
}

/// The result of a run, or the error with its trace.
fn result_of(agreed: Result<(), String>, network: &Mutex<SimulatedNetwork>) -> Result<SimulationResult, String> {
    let mut network = network.lock();
    let trace = std::mem::take(&mut network.trace);
    agreed.map_err(|wrong| format!("{wrong}\n{}", trace.join("\n")))?;
    Ok(SimulationResult {
        trace,
        requests: network.request_count,
        faults: network.fault_count,
        writes: network.clients.write_count,
    })
}

/// Runs a job until it has caught up or failed. A job that failed starts over the next time.
fn run_job<'a>(job: &'a SimulatedJob, running: &mut Option<RunningReplication<'a>>, network: &Mutex<SimulatedNetwork>) {
    let mut catch_up = || {
        let mut replication = match running.take() {
            Some(replication) => replication,
            None => Replication::new(&*job.source, &*job.target).batch(job.batch_count).begin()?,
        };
        let written = replication.catch_up()?.written_count;
        *running = Some(replication);
        Ok(written)
    };
    let event = match catch_up() {
        Ok(written) => format!("{}: {written} written since its start", job.name),
        Err(error) => format!("{}: {:?}", job.name, stemmadb::Error::kind(&error)),
    };
    network.lock().trace_event(&event);
}

/// A topology in which the changes of each node reach all others.
fn random_topology(random: &mut Random) -> Topology {
    let count = 2 + random.below(NODES_MAX - 1) as usize;
    let names = || (0..count).map(node_name);
    let topology = match random.below(7) {
        0 => Topology::chain(names()).map(Topology::both_ways),
        1 => Topology::ring(names()),
        2 => Topology::ring(names()).map(Topology::both_ways),
        3 => Topology::group(names()),
        4 => Topology::fan_out(names()).map(Topology::both_ways),
        5 => Topology::fan_in(names()).map(Topology::both_ways),
        _ => {
            let nodes: Vec<String> = names().collect();
            let top_count = 1 + random.below(count as u64 - 1) as usize;
            let (top, others) = nodes.split_at(top_count);
            let tier_count = 1 + random.below(others.len() as u64) as usize;
            let tiers = std::iter::once(top).chain(others.chunks(tier_count));
            Topology::tiered(tiers.map(|tier| tier.iter().cloned())).map(Topology::both_ways)
        }
    };
    topology.expect("a topology of different names")
}

/// The time of a node's clock, which is up to a day wrong.
fn random_time(random: &mut Random) -> i64 {
    TIME_MS + random.below(172_800_000) as i64 - 86_400_000
}

fn node_name(node: usize) -> String {
    format!("n{node}")
}
