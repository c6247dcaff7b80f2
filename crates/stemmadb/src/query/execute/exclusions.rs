//! Leaves out of a plan what excludes no document. Plans are made from the catalog alone, which knows paths and not
//! terms.
//!
//! Queries over CouchDB's protocol, and those of restricted users, exclude design documents; most databases have none.

use std::sync::Arc;

use super::evaluate::ids_in_range;
use crate::Result;
use crate::query::plan::{Node, Order, Plan};
use crate::query::source::IndexStatistics;

/// The largest number of ids, those of deleted documents included, that are visited to see whether a range has a live
/// document.
const VISITED_IDS_MAX: u64 = 64;

/// The plan without the conditions that exclude only the documents of a term or of a range of ids that no document has.
pub(super) fn without_vacuous_exclusions(plan: Arc<Plan>, source: &impl IndexStatistics) -> Result<Arc<Plan>> {
    let mut vacuous = Vec::new();
    for node in plan.filter.conjuncts() {
        if excludes_nothing(node, source)? {
            vacuous.push(node.clone());
        }
    }
    if vacuous.is_empty() {
        return Ok(plan);
    }
    let without = |node: &Node| Node::intersection(node.conjuncts().iter().filter(|at| !vacuous.contains(at)).cloned());
    let mut plan = Plan::clone(&plan);
    plan.filter = without(&plan.filter);
    for driving in &mut plan.driving_conditions {
        driving.rest = without(&driving.rest);
    }
    if let Order::Sorted { declared: Some(declared), .. } = &mut plan.order {
        declared.rest = without(&declared.rest);
    }
    Ok(Arc::new(plan))
}

fn excludes_nothing(node: &Node, source: &impl IndexStatistics) -> Result<bool> {
    match node {
        Node::Difference(from, without) => match (&**from, &**without) {
            (Node::All, Node::Equal { path, key }) => Ok(source.equal_len(*path, key)? == 0),
            (Node::All, Node::IdRange { lower, upper }) => {
                let found = ids_in_range(source, lower, upper, VISITED_IDS_MAX)?;
                Ok(found.is_some_and(|found| found.is_empty()))
            }
            _ => Ok(false),
        },
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Options, Query, field, not};

    /// A database with 40 people, of whom every fourth is old.
    fn people() -> Database {
        let db = Database::in_memory_with(Options::new().background(false)).unwrap();
        for n in 0..40 {
            db.insert(&format!("person-{n}"), &serde_json::json!({"old": n % 4 == 0, "tall": n % 8 == 0})).unwrap();
        }
        db
    }

    fn old_people(db: &Database) -> Query {
        let selector = field("old").eq(true).and(not(field("_id").begins_with("_design/")));
        db.prepare(selector).unwrap()
    }

    #[test]
    fn condition_that_excludes_nothing_is_left_out() {
        let db = people();
        for checkpointed in [false, true] {
            if checkpointed {
                db.maintenance().checkpoint().unwrap();
            }
            let query = old_people(&db);
            let plan = || db.find(&query).explain().unwrap().to_string();
            assert!(!plan().contains("range of ids"), "{}", plan());
            assert_eq!(db.find(&query).count().unwrap(), 10);
            // The plan of a prepared query serves a later state as well.
            let views = db.insert("_design/views", &serde_json::json!({"old": true})).unwrap();
            assert!(plan().contains("range of ids"), "{}", plan());
            assert_eq!(db.find(&query).count().unwrap(), 10);
            db.delete("_design/views", &views).unwrap();
            assert_eq!(db.find(&query).count().unwrap(), 10);
        }
    }

    #[test]
    fn few_excluded_ids_are_looked_up_without_reading_documents() {
        let db = people();
        db.insert("_design/views", &serde_json::json!({"old": true})).unwrap();
        db.maintenance().checkpoint().unwrap();
        let query = old_people(&db);
        let mut rows = db.find(&query).ids().unwrap();
        assert_eq!(rows.by_ref().count(), 10);
        assert_eq!(rows.documents_read(), 0);
        let plan = db.find(&query).explain_analyze().unwrap().to_string();
        assert!(plan.contains("range of ids"), "{plan}");
    }
}
