//! Servers as they are run, each a process of its own, under kill -9, cut connections, hostile peers and long load.
//!
//! Every test prints its seed; `STEMMA_NETWORK_SEED` sets it, `STEMMA_NETWORK_COMMAND` another `stemma` than the one that is
//! built with the tests. The long forms are verbs of the justfile.

mod bombs;
mod checkpoints;
mod client;
mod crowd;
mod descriptors;
mod flood;
mod history;
mod hostile;
mod kill;
mod linear;
mod partition;
mod proxy;
mod random;
mod server;
mod soak;
mod threads;
