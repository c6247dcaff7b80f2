//! Deterministic simulation of replication: the real replicator, client and server over a simulated network that loses,
//! cuts, delays and repeats messages, is divided, and whose servers become unavailable, lose their jobs, and have wrong
//! clocks. The nodes form a random topology. All choices are drawn from a seed, and everything runs on one thread in
//! simulated time, so a seed always produces the same sequence of events.
//!
//! After the faults stop, all nodes must have exactly the leaves that follow from the acknowledged writes: none is
//! missing, no replaced revision is a leaf again, each leaf has its body and files, and all nodes choose the same
//! winners.
//!
//! `STEMMA_SIMULATION_SEEDS` sets the number of seeds, `STEMMA_SIMULATION_SEED` the first one. The printed hash of the
//! traces is the same on every machine.

mod clients;
mod cluster;
mod eager_target;
mod network;

use stemmadb::replication::Peer;
use stemmadb::{ErrorKind, Value};

use cluster::{InjectedBugs, SimulatedCluster, SimulationResult};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn nodes_converge_to_acknowledged_writes_despite_faults() {
    let cluster = SimulatedCluster::new();
    let (first, count) = (setting("STEMMA_SIMULATION_SEED", 1), setting("STEMMA_SIMULATION_SEEDS", 120));
    let (mut all, mut traces) = (SimulationResult::default(), blake3::Hasher::new());
    for seed in first..first + count {
        let result = cluster.run(seed, InjectedBugs::default()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        traces.update(result.trace.join("\n").as_bytes());
        all.requests += result.requests;
        all.faults += result.faults;
        all.writes += result.writes;
    }
    assert!(count < 10 || all.faults > count, "too few faults");
    println!("hash of the traces: {}", traces.finalize().to_hex());
    let SimulationResult { requests, faults, writes, .. } = all;
    println!(
        "simulation: {count} seeds from {first}, {writes} acknowledged writes, {requests} requests, {faults} faults: \
         0 diverged, 0 missing, 0 resurrected"
    );
}

#[test]
fn conflict_rules_give_the_same_result_on_all_nodes() {
    let cluster = SimulatedCluster::new();
    let (first, count) = (setting("STEMMA_SIMULATION_SEED", 1), setting("STEMMA_SIMULATION_SEEDS", 60));
    let (mut writes, mut faults) = (0, 0);
    for seed in first..first + count {
        let result = cluster.run_with_rule(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        writes += result.writes;
        faults += result.faults;
    }
    println!(
        "conflict rules: {count} seeds from {first}, {writes} acknowledged writes, {faults} faults: 0 diverged, \
         0 unresolved, 0 without an end"
    );
}

#[test]
fn same_seed_produces_same_trace() {
    let (one, other) = (SimulatedCluster::new(), SimulatedCluster::new());
    for seed in 1..=5 {
        // Later, and in a cluster that has already run another seed.
        other.run(seed + 100, InjectedBugs::default()).unwrap();
        let [first, second] = [&one, &other].map(|cluster| cluster.run(seed, InjectedBugs::default()).unwrap().trace);
        assert!(first.len() > 20, "{first:?}");
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first, second, "seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

/// Runs seeds until one fails, and returns its error.
fn first_failure(bugs: InjectedBugs) -> String {
    let cluster = SimulatedCluster::new();
    let found = (1..=200).find_map(|seed| cluster.run(seed, bugs).err());
    found.unwrap_or_else(|| panic!("no seed detects {bugs:?}"))
}

#[test]
fn false_acknowledgements_are_detected() {
    let found = first_failure(InjectedBugs { false_acks: true, ..InjectedBugs::default() });
    assert!(found.contains("missing: "), "{found}");
}

#[test]
fn checkpoint_before_documents_is_detected() {
    let found = first_failure(InjectedBugs { eager_target: true, ..InjectedBugs::default() });
    assert!(found.contains("missing: "), "{found}");
}

#[test]
fn responses_are_charged_to_the_memory_budget() {
    let cluster = SimulatedCluster::new();
    let (peer, wanted) = cluster.with_document(1 << 20);
    let read = || {
        let mut texts = Vec::new();
        peer.read(std::slice::from_ref(&wanted), &mut |transfer| {
            texts.extend(transfer.body.get("text").and_then(Value::as_str).map(str::len));
            Ok(())
        })
        .map(|()| texts)
    };
    let others = cluster.exhaust_memory();
    let refused = read().expect_err("no memory is free");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "it is tried again: {refused}");
    assert!(refused.to_string().contains("limits.bodies_bytes"), "{refused}");
    drop(others);
    // Repeatedly, since each read releases its memory.
    for _ in 0..400 {
        assert_eq!(read().unwrap(), [1 << 20]);
    }
}
