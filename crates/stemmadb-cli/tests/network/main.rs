//! Tests with server processes: kill -9, network partitions, hostile peers, resource limits and sustained load.
//!
//! Every test prints its seed; `STEMMA_NETWORK_SEED` sets it. `STEMMA_NETWORK_COMMAND` selects another `stemma` binary
//! than the one built with the tests. The recipes of the justfile run the long forms.

mod bombs;
mod checkpoints;
mod client;
mod cluster;
mod descriptors;
mod feeds;
mod flood;
mod full_disk;
mod history;
mod hostile;
mod idle_jobs;
mod kill;
mod linear;
mod many_databases;
mod partition;
mod proxy;
mod random;
mod server;
mod shards;
mod slow_clients;
mod soak;
mod threads;
mod wire;
