//! Replication on a network that is made up: the real replicator, the real client and the real server, over wires that lose, cut, delay and
//! repeat what they carry, and servers that are away and forget their jobs. Everything is drawn from a seed, and happens on one thread in a
//! time of its own, so that a seed is always the same course of events.
//!
//! Once nothing fails any more all nodes have exactly the leaves that come of what clients were told is written: none is missing, none
//! that something was written after is back, each has its body and its files, and the winners are the same.
//!
//! `STEMMA_SIMULATION_SEEDS` says how many seeds there are, `STEMMA_SIMULATION_SEED` where to begin. What is printed of their course is the
//! same wherever they run.

mod clients;
mod eager_target;
mod wire;
mod world;

use stemmadb::replication::Peer;
use stemmadb::{ErrorKind, Value};

use world::{SimulationResult, World, Wrong};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn nodes_agree_on_what_was_acknowledged_whatever_wires_do() {
    let world = World::new();
    let (first, count) = (setting("STEMMA_SIMULATION_SEED", 1), setting("STEMMA_SIMULATION_SEEDS", 200));
    let (mut all, mut course) = (SimulationResult::default(), blake3::Hasher::new());
    for seed in first..first + count {
        let told = world.run(seed, Wrong::default()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        course.update(told.trace.join("\n").as_bytes());
        all.requests += told.requests;
        all.faults += told.faults;
        all.writes += told.writes;
    }
    assert!(count < 10 || all.faults > count, "too little goes wrong");
    println!("the course of these seeds: {}", course.finalize().to_hex());
    let SimulationResult { requests, faults, writes, .. } = all;
    println!(
        "simulation: {count} seeds from {first}, {writes} acknowledged writes, {requests} requests, {faults} faults: 0 diverged, 0 missing, 0 resurrected"
    );
}

#[test]
fn a_seed_is_always_the_same_course_of_events() {
    let (one, other) = (World::new(), World::new());
    for seed in 1..=5 {
        // At another time, and in a world that other things happened in before.
        other.run(seed + 100, Wrong::default()).unwrap();
        let [first, second] = [&one, &other].map(|world| world.run(seed, Wrong::default()).unwrap().trace);
        assert!(first.len() > 20, "{first:?}");
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first, second, "seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

/// Runs seeds until something is found.
fn found(wrong: Wrong) -> String {
    let world = World::new();
    let found = (1..=200).find_map(|seed| world.run(seed, wrong).err());
    found.unwrap_or_else(|| panic!("{wrong:?} is not found"))
}

#[test]
fn a_wire_that_says_what_it_has_not_passed_on_is_done_is_found() {
    let found = found(Wrong { lies: true, ..Wrong::default() });
    assert!(found.contains("missing: "), "{found}");
}

#[test]
fn a_checkpoint_that_is_written_before_the_documents_is_found() {
    let found = found(Wrong { is_eager: true, ..Wrong::default() });
    assert!(found.contains("missing: "), "{found}");
}

#[test]
fn what_is_answered_takes_room_of_what_there_is_for_bodies() {
    let world = World::new();
    let (peer, wanted) = world.with_document(1 << 20);
    let read = || {
        let mut texts = Vec::new();
        peer.read(std::slice::from_ref(&wanted), &mut |transfer| {
            texts.extend(transfer.body.get("text").and_then(Value::as_str).map(str::len));
            Ok(())
        })
        .map(|()| texts)
    };
    let others = world.take_memory();
    let refused = read().expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "it is tried again: {refused}");
    assert!(refused.to_string().contains("limits.bodies_bytes"), "{refused}");
    drop(others);
    // More than once: it is given back.
    for _ in 0..400 {
        assert_eq!(read().unwrap(), [1 << 20]);
    }
}
