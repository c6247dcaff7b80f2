//! Query tests: selectors by example, and planned queries against the reference evaluator.

pub(super) mod arbitrary;
mod cached_lookups;
mod chunks;
mod collections;
mod columns;
mod declared;
mod estimates;
mod limits;
pub(super) mod memory;
mod plans;
mod queries;
mod selectors;
mod whole_database;
mod write_steps;

pub(super) use queries::{filled, id as id_of, policy};

/// The number of cases of a property test: `STEMMA_QUERY_CASES` if it is set, otherwise `usual`.
pub(super) fn cases(usual: u32) -> u32 {
    let configured = std::env::var("STEMMA_QUERY_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    configured.unwrap_or(usual)
}
