//! What is it measured on? Documents and questions as data, and the truth about them.

mod corpus;
mod question;
mod records;

pub(crate) use corpus::{Corpus, number_of};
pub(crate) use question::{Answer, Condition, Question, Truth, Wanted, check_bodies, parse};
pub(crate) use records::{OF_A_THOUSAND, OF_TEN, Records, UNIQUE};
