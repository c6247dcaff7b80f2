//! Random writes to a database, before it is asked.

use proptest::prelude::*;

use crate::database::Database;
use crate::value::Value;

/// What is done to the database.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(usize, Value),
    Delete(usize),
    Checkpoint,
}

/// Any step on one of so many documents, writes so many times as likely as a checkpoint.
pub(super) fn step(document_count: usize, writes: u32, body: BoxedStrategy<Value>) -> BoxedStrategy<Step> {
    prop_oneof![
        writes => (0..document_count, body).prop_map(|(at, body)| Step::Write(at, body)),
        2 => (0..document_count).prop_map(Step::Delete),
        1 => Just(Step::Checkpoint),
    ]
    .boxed()
}

/// Does the steps; `id` names the documents.
pub(super) fn apply(db: &Database, steps: &[Step], id: impl Fn(usize) -> String) {
    for step in steps {
        match step {
            Step::Write(at, body) => _ = db.upsert(&id(*at), body).expect("a good document"),
            Step::Delete(at) => {
                if let Some(found) = db.get(&id(*at)).expect("sound") {
                    db.delete(&id(*at), found.revision()).expect("no conflict");
                }
            }
            Step::Checkpoint => db.maintenance().checkpoint().expect("in memory"),
        }
    }
}

/// All rows of a query, page by page.
pub(super) fn pages(page: impl Fn() -> crate::Find) -> Vec<String> {
    let (mut pages, mut token) = (Vec::new(), None::<String>);
    loop {
        let mut page = token.into_iter().fold(page(), crate::Find::after).ids().expect("good");
        pages.extend(page.by_ref().map(|id| id.expect("sound").to_string()));
        token = page.token().expect("good");
        if token.is_none() {
            return pages;
        }
    }
}
