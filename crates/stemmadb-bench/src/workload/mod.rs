//! Workloads: documents and queries as data, and their expected results. Independent of engines.

mod accounts;
mod cars;
mod corpus;
mod events;
mod expected;
mod people;
mod query_spec;
mod records;
pub(crate) mod shop;
mod users;

pub(crate) use accounts::Account;
pub(crate) use cars::{COLOR, Car, Cars, KEYWORD, name as car_name};
pub(crate) use corpus::Corpus;
pub(crate) use events::{AMOUNT_MAX, Events};
pub(crate) use expected::{ExpectedRows, QueryResult, check_bodies, parse};
pub(crate) use people::{GROUPS, People};
pub(crate) use query_spec::{Condition, Pattern, Predicate, Projection, QuerySpec};
pub(crate) use records::{OF_A_THOUSAND, OF_TEN, Records, UNIQUE};
pub(crate) use users::Users;
