//! A request and an answer as handlers see them.

mod answer;
mod body;
mod call;
mod path;
mod query;

pub(crate) use answer::{Answer, Body, Served};
pub(crate) use call::{Call, State, blocking};
pub(crate) use path::{Parameters, segments};
pub(crate) use query::Query;
