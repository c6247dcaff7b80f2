//! Tests of partial reductions alone: incremental updates compared with a rebuild, and detection of missing updates.

use std::collections::BTreeSet;

use crate::index::DocumentNumber;
use crate::value::Value;
use crate::value::collate::key;
use crate::vfs::Random;
use crate::view::check::check_rows;
use crate::view::layered::{Layered, Overlay};
use crate::view::layout::{self, BackReference, SlotNumber};
use crate::view::partials;
use crate::view::reduce::BuiltIn;

fn empty() -> Layered {
    let tree = crate::engine::directory::memory_tree(&crate::Options::new()).unwrap().read();
    Layered::new(tree, layout::slot_prefix(SlotNumber(1)).into(), Overlay::default())
}

/// Puts or removes the row of a number.
fn change(rows: &mut Layered, number: u64, value: Option<u64>) -> Vec<u8> {
    let mut key_bytes = Vec::new();
    key::encode(&Value::from(number), &mut key_bytes);
    let row = layout::row_key(&key_bytes, DocumentNumber(number), 0);
    let document = layout::local_back_reference_key(DocumentNumber(number));
    match value {
        Some(value) => {
            rows.put(&layout::local_row_key(&row), value.to_string().as_bytes()).unwrap();
            rows.put(&document, &BackReference::Rows(vec![key_bytes]).encode()).unwrap();
        }
        None => {
            rows.remove(&layout::local_row_key(&row)).unwrap();
            rows.remove(&document).unwrap();
        }
    }
    row
}

fn problems(rows: &Layered) -> Vec<String> {
    let count = partials::count_rows(rows, &[], None).unwrap();
    check_rows(rows, Some(&BuiltIn::Sum), count).unwrap()
}

#[test]
fn incremental_updates_equal_a_rebuild() {
    let (mut rows, mut random) = (empty(), Random::new(5));
    for round in 0..300 {
        let mut changed = BTreeSet::new();
        for _ in 0..1 + random.below(if round % 5 == 0 { 200 } else { 3 }) {
            let value = (!random.chance(300)).then(|| random.below(1_000));
            changed.insert(change(&mut rows, random.below(4_000), value));
        }
        partials::refresh(&mut rows, &BuiltIn::Sum, &changed).unwrap();
        assert_eq!(problems(&rows), Vec::<String>::new());
    }
    let boundaries = (0..4_000u64).filter(|number| {
        let mut key_bytes = Vec::new();
        key::encode(&Value::from(*number), &mut key_bytes);
        partials::level_of(&layout::row_key(&key_bytes, DocumentNumber(*number), 0)) > 1
    });
    assert!(boundaries.count() > 5, "higher levels are part of it");
}

/// When a boundary that forms a whole group is removed, the group before it does not change, but every level above has
/// one row less.
#[test]
fn removing_a_single_row_group_updates_higher_levels() {
    let mut rows = empty();
    let all: BTreeSet<_> = (0..2_000).map(|number| change(&mut rows, number, Some(1))).collect();
    partials::refresh(&mut rows, &BuiltIn::Sum, &all).unwrap();
    let level = |number: u64| {
        let mut key_bytes = Vec::new();
        key::encode(&Value::from(number), &mut key_bytes);
        partials::level_of(&layout::row_key(&key_bytes, DocumentNumber(number), 0))
    };
    let alone: Vec<u64> = (1..1_999).filter(|number| level(*number) > 0 && level(number + 1) > 0).collect();
    assert!(!alone.is_empty(), "there are some among so many");
    for number in alone {
        for value in [None, Some(1)] {
            let changed = BTreeSet::from([change(&mut rows, number, value)]);
            partials::refresh(&mut rows, &BuiltIn::Sum, &changed).unwrap();
            assert_eq!(problems(&rows), Vec::<String>::new());
        }
    }
}

/// Verifies the checker: without it the other tests here would detect nothing.
#[test]
fn check_detects_outdated_partials() {
    let (mut rows, mut random) = (empty(), Random::new(6));
    let all: BTreeSet<_> = (0..4_000).map(|number| change(&mut rows, number, Some(random.below(1_000)))).collect();
    partials::refresh(&mut rows, &BuiltIn::Sum, &all).unwrap();
    assert_eq!(problems(&rows), Vec::<String>::new());
    let whole = |rows: &Layered| partials::reduce_range(rows, &BuiltIn::Sum, &[], None).unwrap();
    // A changed value, a new row, a removed row; boundaries among them.
    for (number, value) in [(17, Some(5_000)), (9_999, Some(1)), (40, None)] {
        let mut wrong = rows.clone();
        change(&mut wrong, number, value);
        assert!(!problems(&wrong).is_empty());
        assert_eq!(whole(&wrong), whole(&rows), "the change does not show in what is kept");
    }
    let boundary = all.iter().find(|row| partials::level_of(row) > 0).unwrap();
    let mut wrong = rows.clone();
    wrong.remove(&layout::local_row_key(boundary)).unwrap();
    assert!(problems(&wrong).iter().any(|problem| problem.contains("no boundary")));
}
