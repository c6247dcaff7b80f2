//! Random writes that prepare a database for queries.

use proptest::prelude::*;

use crate::database::Database;
use crate::value::Value;

/// A write, or a checkpoint.
#[derive(Clone, Debug)]
pub(super) enum WriteStep {
    Write(usize, Value),
    Delete(usize),
    Checkpoint,
}

/// A step on one of `document_count` documents; writes are `writes` times as likely as checkpoints.
pub(super) fn step(document_count: usize, writes: u32, body: BoxedStrategy<Value>) -> BoxedStrategy<WriteStep> {
    prop_oneof![
        writes => (0..document_count, body).prop_map(|(at, body)| WriteStep::Write(at, body)),
        2 => (0..document_count).prop_map(WriteStep::Delete),
        1 => Just(WriteStep::Checkpoint),
    ]
    .boxed()
}

/// Executes the steps; `id` names the documents.
pub(super) fn apply(db: &Database, write_steps: &[WriteStep], id: impl Fn(usize) -> String) {
    for step in write_steps {
        match step {
            WriteStep::Write(at, body) => _ = db.upsert(&id(*at), body).expect("a good document"),
            WriteStep::Delete(at) => {
                if let Some(found) = db.get(&id(*at)).expect("sound") {
                    db.delete(&id(*at), found.revision()).expect("no conflict");
                }
            }
            WriteStep::Checkpoint => db.maintenance().checkpoint().expect("in memory"),
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
