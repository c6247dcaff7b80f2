//! The experiments, beside their peers.

fn main() {}
