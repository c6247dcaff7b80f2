//! Tests that listings match what was written, in memtables and in the tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::layout::{ID_KEY_BYTES_MAX, id_key};
use crate::testing::Random;
use crate::{Database, Options};

fn listed(db: &Database, from: Bound<&str>, to: Bound<&str>, descending: bool) -> Vec<(String, String)> {
    let listing = db.snapshot().unwrap().list().from(from).to(to).descending(descending).documents(true);
    let rows = listing.run().map(|row| {
        let row = row.unwrap();
        let document = row.document.unwrap();
        assert_eq!((document.id(), document.revision()), (&row.id, &row.revision));
        (row.id.as_str().to_owned(), document.to_json().unwrap())
    });
    rows.collect()
}

#[test]
fn ids_are_listed_in_order_from_memory_and_tree() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let mut random = Random::new(7);
    let mut expected = BTreeMap::new();
    for round in 0..6 {
        for _ in 0..400 {
            let id = format!("{:03}", random.below(900));
            match db.get(&id).unwrap() {
                Some(found) if random.chance(400) => {
                    db.delete(&id, found.revision()).unwrap();
                    expected.remove(&id);
                }
                _ => {
                    db.upsert(&id, &serde_json::json!({"round": round})).unwrap();
                    expected.insert(id, format!("{{\"round\":{round}}}"));
                }
            }
        }
        if round % 2 == 0 {
            db.maintenance().checkpoint().unwrap();
        }
        let bounds = ["", "2", "450", "45", "899", "9"].map(str::to_owned);
        for from in &bounds {
            for to in bounds.iter().filter(|to| *to > from) {
                for (lower, upper) in [
                    (Bound::Included(from.as_str()), Bound::Included(to.as_str())),
                    (Bound::Excluded(from.as_str()), Bound::Excluded(to.as_str())),
                ] {
                    let within = expected.range::<str, _>((lower, upper));
                    let mut within: Vec<_> = within.map(|(id, json)| (id.clone(), json.clone())).collect();
                    assert_eq!(listed(&db, lower, upper, false), within);
                    within.reverse();
                    assert_eq!(listed(&db, lower, upper, true), within);
                }
            }
        }
        assert_eq!(listed(&db, Bound::Unbounded, Bound::Unbounded, false).len(), expected.len());
    }
}

/// Ids longer than tree keys, many with the same prefix, are listed by their keys and found by their full text.
#[test]
fn long_ids_are_within_their_bounds_in_memory_and_tree() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let mut random = Random::new(11);
    let beginnings = ["a", "b", "ü"].map(|letter| letter.repeat(ID_KEY_BYTES_MAX / letter.len()));
    let mut ids: Vec<String> = Vec::new();
    for round in 0..6 {
        for _ in 0..20 {
            let beginning = &beginnings[random.below(3) as usize];
            let cut = random.below(4) as usize * 100;
            let id = format!("{}{}", &beginning[..beginning.len() - cut], random.below(1_000));
            db.upsert(&id, &serde_json::json!({})).unwrap();
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        if round % 3 == 2 {
            db.maintenance().checkpoint().unwrap();
        }
        for _ in 0..40 {
            let mut bounds = [0; 2].map(|_| ids[random.below(ids.len() as u64) as usize].as_str());
            bounds.sort_unstable();
            let (lower, upper) = (Bound::Included(bounds[0]), Bound::Excluded(bounds[1]));
            let within: Vec<&String> = ids.iter().filter(|id| (bounds[0]..bounds[1]).contains(&id.as_str())).collect();
            let found = db.snapshot().unwrap().ids_in_range(lower, upper).unwrap();
            assert_eq!(found.len() as usize, within.len(), "from {} to {}", bounds[0], bounds[1]);
            let [from, to] = bounds.map(id_key);
            let mut within: Vec<&String> = ids.iter().filter(|id| id_key(id) >= from && id_key(id) < to).collect();
            within.sort_by_key(|id| id_key(id));
            let listed = listed(&db, lower, upper, false);
            assert_eq!(listed.iter().map(|(id, _)| id).collect::<Vec<_>>(), within);
        }
    }
}
