//! The `stemma` command.

fn main() {}
