//! Tests of what was asked and what came back: selectors by example, and everything against the naive evaluator.

mod answers;
pub(super) mod arbitrary;
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
mod steps;
mod stored;

pub(super) use queries::{filled, policy};

/// How many cases a property is tried on: `STEMMA_QUERY_CASES` if that is set.
pub(super) fn cases(usual: u32) -> u32 {
    let wanted = std::env::var("STEMMA_QUERY_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    wanted.unwrap_or(usual)
}
