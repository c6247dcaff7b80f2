//! What is it measured on? Documents and questions as data, and the truth about them.

mod accounts;
mod cars;
mod corpus;
mod people;
mod question;
mod records;
pub(crate) mod shop;
mod truth;
mod users;

pub(crate) use accounts::Account;
pub(crate) use cars::{COLOR, Car, Cars, KEYWORD, name as car_name};
pub(crate) use corpus::Corpus;
pub(crate) use people::{GROUPS, People};
pub(crate) use question::{Condition, Pattern, Question, Test, Wanted};
pub(crate) use records::{OF_A_THOUSAND, OF_TEN, Records, UNIQUE};
pub(crate) use truth::{Answer, Truth, check_bodies, parse};
pub(crate) use users::Users;
