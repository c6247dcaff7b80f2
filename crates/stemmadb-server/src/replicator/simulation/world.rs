//! Three nodes that replicate with each other over made-up wires, on one thread, in a time that goes on when nothing else does.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use stemmadb::replication::{MissingRevisions, Peer, RunningReplication};
use stemmadb::testing::Random;
use stemmadb::{Database, DocumentId, Durability, Options, Replication};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::clients::Clients;
use super::eager_target::EagerTarget;
use super::wire::{Net, Wire};
use crate::auth::{ADMIN_ROLE, User};
use crate::config::{Config, JwtAlgorithm, JwtKey};
use crate::design::WriteValidator;
use crate::directory::Served;
use crate::http::MemoryReservation;
use crate::replicator::local::Local;
use crate::replicator::remote::Remote;
use crate::replicator::runtime::JobRuntime;
use crate::server::Server;
use crate::writes::WriteOptions;

const NODE_COUNT: usize = 3;
/// What happens to the nodes one after the other: writes, replications, restarts.
const STEP_COUNT: u64 = 24;
/// Once nothing fails any more they agree after so many rounds.
const ROUNDS_MAX: usize = 6;
/// The key that requests are signed by.
const KEY: &[u8] = b"a secret of at least thirty-two bytes";

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wrong {
    /// Wires say that documents were written, which they have not passed on.
    pub(super) lies: bool,
    /// Targets write documents after the checkpoint that says that they have them.
    pub(super) is_eager: bool,
}

/// What happened.
#[derive(Debug, Default)]
pub(super) struct SimulationResult {
    pub(super) trace: Vec<String>,
    pub(super) requests: u64,
    pub(super) faults: u64,
    pub(super) writes: u64,
}

/// One server: what tells nodes apart is their database, since servers have nothing else that replications are made of.
pub(super) struct World {
    runtime: Arc<Runtime>,
    server: Arc<Server>,
    headers: Vec<(String, String)>,
    /// Nothing is ever cancelled.
    cancelled: watch::Sender<bool>,
    _place: TempDir,
}

/// Replicates from one node to another, by the server of one of them.
struct Job {
    at: usize,
    name: String,
    source: Box<dyn Peer>,
    target: Box<dyn Peer>,
    batch_count: usize,
}

impl World {
    pub(super) fn new() -> Self {
        // In memory, where that can be had: nothing here is about disks.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        // One thread more, for what blocks: what is done there is done in order, and the time stands still meanwhile.
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
            ..Config::new(place.path())
        };
        let server = runtime.block_on(Server::start(config)).expect("a server");
        let claims = serde_json::json!({"sub": "admin", "exp": 4_000_000_000_u64, "_couchdb.roles": [ADMIN_ROLE]});
        let (head, key) = (jsonwebtoken::Header::default(), jsonwebtoken::EncodingKey::from_secret(KEY));
        let token = jsonwebtoken::encode(&head, &claims, &key).expect("a token");
        let headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
        let cancelled = watch::channel(false).0;
        World { runtime: Arc::new(runtime), server: Arc::new(server), headers, cancelled, _place: place }
    }

    /// What one seed comes to.
    ///
    /// # Errors
    /// If nodes don't agree at last, or not on what was acknowledged.
    pub(super) fn run(&self, seed: u64, wrong: Wrong) -> Result<SimulationResult, String> {
        // The time is that of the runtime, outside of it too.
        let _entered = self.runtime.enter();
        let mut random = Random::new(seed);
        let nodes: Vec<Arc<Served>> = (0..NODE_COUNT).map(|node| self.database(&name_of(node))).collect();
        let clients = Clients::new(nodes.clone());
        let net = Net::new(Random::new(random.number()), clients, NODE_COUNT, wrong.lies);
        let net = Arc::new(Mutex::new(net));
        let jobs = self.jobs(&mut random, &nodes, &net, wrong);
        let agreed = self.live(&mut random, &jobs, &net);
        let mut net = net.lock();
        let trace = std::mem::take(&mut net.trace);
        agreed.map_err(|wrong| format!("{wrong}\n{}", trace.join("\n")))?;
        Ok(SimulationResult {
            trace,
            requests: net.request_count,
            faults: net.fault_count,
            writes: net.clients.write_count,
        })
    }

    /// A new database in memory, without threads of its own.
    fn database(&self, name: &str) -> Arc<Served> {
        let options = Options::new().durability(Durability::None).background(false);
        let database = Database::in_memory_with(options).expect("a database");
        self.server.state().directory.take_in(name, database)
    }

    /// Replications between all nodes, each by one of its two: a ring, a line that goes both ways, or each with each.
    fn jobs(&self, random: &mut Random, nodes: &[Arc<Served>], net: &Arc<Mutex<Net>>, wrong: Wrong) -> Vec<Job> {
        let pairs: &[(usize, usize)] = match random.below(3) {
            0 => &[(0, 1), (1, 2), (2, 0)],
            1 => &[(0, 1), (1, 0), (1, 2), (2, 1)],
            _ => &[(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)],
        };
        let job = |&(from, to): &(usize, usize)| {
            let batch_count = [1, 2, 5, 500][random.below(4) as usize];
            let (at, name, source, target): (_, _, Box<dyn Peer>, Box<dyn Peer>) = match random.below(2) {
                0 => (from, "push", Box::new(self.local(&nodes[from])), Box::new(self.remote(from, to, net))),
                _ => (to, "pull", Box::new(self.remote(to, from, net)), Box::new(self.local(&nodes[to]))),
            };
            let target = if wrong.is_eager { Box::new(EagerTarget::new(target)) } else { target };
            Job { at, name: format!("{name} {from} to {to}"), source, target, batch_count }
        };
        pairs.iter().map(job).collect()
    }

    fn local(&self, served: &Arc<Served>) -> Local {
        let user = User { roles: vec![ADMIN_ROLE.to_owned()], ..User::default() };
        let validator = WriteValidator { user, scripts: self.server.state().scripts.clone() };
        Local {
            served: served.clone(),
            options: WriteOptions { validator, new_edits: false, durability: Durability::None },
            runtime: JobRuntime::Within(self.runtime.clone()),
            cancelled: self.cancelled.subscribe(),
            published: Mutex::new(served.published()),
        }
    }

    fn remote(&self, from: usize, to: usize, net: &Arc<Mutex<Net>>) -> Remote<Wire> {
        let wire = Wire { from, net: net.clone(), server: self.server.clone() };
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(wire);
        let url = format!("http://localhost:{}/{}", to + 1, name_of(to));
        let (runtime, state) = (JobRuntime::Within(self.runtime.clone()), self.server.state());
        let (bytes_max, memory) = (state.config.limits.body_bytes, state.memory.clone());
        Remote::new(client, url, self.headers.clone(), runtime, bytes_max, memory, self.cancelled.subscribe())
    }

    /// A peer that has one document, with a text of so many bytes, over a wire that fails in nothing; and the document's id and revision.
    pub(super) fn with_document(&self, byte_count: usize) -> (impl Peer, MissingRevisions) {
        let _entered = self.runtime.enter();
        let served = self.database(&name_of(1));
        let revision = served.database().insert("a", &serde_json::json!({"text": "x".repeat(byte_count)}));
        let mut net = Net::new(Random::new(1), Clients::new(vec![served]), NODE_COUNT, false);
        let calm = net.calm();
        assert!(calm.is_empty(), "nothing was sent yet");
        let wanted = MissingRevisions {
            id: DocumentId::new("a").expect("an id"),
            revisions: vec![revision.expect("new")],
            possible_ancestors: Vec::new(),
        };
        (self.remote(0, 1, &Arc::new(Mutex::new(net))), wanted)
    }

    /// Takes all the memory of the budget and the overcommit permit, until the reservations are dropped.
    pub(super) fn take_memory(&self) -> [Arc<MemoryReservation>; 2] {
        let state = self.server.state();
        let reservations = [state.memory.reservation(), state.memory.reservation()];
        let bytes = usize::try_from(state.config.limits.bodies_bytes).expect("little");
        for reservation in &reservations {
            self.runtime.block_on(reservation.grow(bytes)).expect("memory");
        }
        reservations
    }

    /// Lets things happen, then lets nothing fail any more, and looks whether all agree.
    fn live(&self, random: &mut Random, jobs: &[Job], net: &Arc<Mutex<Net>>) -> Result<(), String> {
        let mut running: Vec<Option<RunningReplication<'_>>> = jobs.iter().map(|_| None).collect();
        for _ in 0..STEP_COUNT {
            match random.below(10) {
                0..=2 => (0..=random.below(4)).for_each(|_| net.lock().write()),
                3 => {
                    let node = random.below(NODE_COUNT as u64) as usize;
                    net.lock().take_away(node);
                    // What a server keeps of its jobs in memory is gone.
                    let of_it = running.iter_mut().zip(jobs).filter(|(_, job)| job.at == node);
                    of_it.for_each(|(running, _)| *running = None);
                }
                4 => self.pass_time(Duration::from_millis(random.below(60_000))),
                _ => {
                    let at = random.below(jobs.len() as u64) as usize;
                    work(&jobs[at], &mut running[at], net);
                }
            }
        }
        let mut on_the_way = net.lock().calm();
        self.runtime.block_on(async { while on_the_way.join_next().await.is_some() {} });
        let mut agreed = Err("nothing was tried".to_owned());
        for _ in 0..ROUNDS_MAX {
            for (job, running) in jobs.iter().zip(&mut running) {
                work(job, running, net);
            }
            agreed = net.lock().clients.verify();
            if agreed.is_ok() {
                break;
            }
        }
        agreed
    }

    fn pass_time(&self, pause: Duration) {
        self.runtime.block_on(tokio::time::sleep(pause));
    }
}

/// Does what a job does until it has nothing to do, or fails; then it begins again the next time.
fn work<'a>(job: &'a Job, running: &mut Option<RunningReplication<'a>>, net: &Mutex<Net>) {
    let mut go_on = || {
        let mut going = match running.take() {
            Some(going) => going,
            None => Replication::new(&*job.source, &*job.target).batch(job.batch_count).begin()?,
        };
        let written = going.catch_up()?.written_count;
        *running = Some(going);
        Ok(written)
    };
    let told = match go_on() {
        Ok(written) => format!("{}: {written} since it began", job.name),
        Err(error) => format!("{}: {:?}", job.name, stemmadb::Error::kind(&error)),
    };
    net.lock().note(&told);
}

fn name_of(node: usize) -> String {
    format!("n{node}")
}
