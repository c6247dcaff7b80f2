//! Model tests of document sets against `BTreeSet<u64>`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Model = BTreeSet<u64>;

/// Sets with members in few, partly distant chunks, scattered and in stretches.
fn sets() -> impl Strategy<Value = Model> {
    let chunk = || prop_oneof![0..6u64, Just(1 << 40), Just(u64::MAX >> 16)];
    let stretch = (chunk(), any::<u16>(), 0..9000u64, 1..9u64).prop_map(|(chunk, low, len, step)| {
        let first = chunk << 16 | u64::from(low);
        (0..=len).step_by(step as usize).map(|at| first.saturating_add(at)).collect::<Vec<_>>()
    });
    let single = (chunk(), any::<u16>()).prop_map(|(chunk, low)| vec![chunk << 16 | u64::from(low)]);
    prop::collection::vec(prop_oneof![stretch, single], 0..6).prop_map(|parts| parts.into_iter().flatten().collect())
}

fn of(model: &Model) -> DocumentSet {
    DocumentSet::from_sorted(model.iter().copied().map(DocumentNumber))
}

fn check(set: &DocumentSet, model: &Model) {
    assert!(set.iter().map(|document| document.0).eq(model.iter().copied()));
    assert_eq!(set.len() as usize, model.len());
    assert_eq!(set.is_empty(), model.is_empty());
    assert_eq!(set.first().map(|document| document.0), model.first().copied());
    assert_eq!(set.last().map(|document| document.0), model.last().copied());
    assert!(set.chunks.iter().all(|chunk| !chunk.members.is_empty()));
    assert!(set.chunks.is_sorted_by(|a, b| a.number < b.number));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn set_operations_match_the_model(a in sets(), b in sets()) {
        let (x, y) = (of(&a), of(&b));
        check(&x, &a);
        check(&x.and(&y), &(&a & &b));
        check(&x.or(&y), &(&a | &b));
        check(&x.and_not(&y), &(&a - &b));
        prop_assert_eq!(x.and_len(&y) as usize, (&a & &b).len());
        let count = Probe::new(&x).count(&y);
        prop_assert_eq!((count.documents as usize, count.chunks as usize), ((&a & &b).len(), y.chunks().len()));
        let mut both = x.clone();
        both.and_with(&y);
        check(&both, &(&a & &b));
        check(&x, &a);
        prop_assert_eq!(x == y, a == b);
    }

    #[test]
    fn unions_match_the_model(parts in prop::collection::vec(sets(), 0..6), singles: Vec<u64>) {
        let mut union = Union::new();
        let mut model: Model = singles.iter().copied().collect();
        singles.iter().for_each(|&single| union.add(DocumentNumber(single)));
        for (at, part) in parts.iter().enumerate() {
            let set = of(part);
            if at % 2 == 0 {
                union.add_set(&set);
            } else {
                for (chunk, members) in set.chunks() {
                    let mut stored = Vec::new();
                    members.encode(&mut stored);
                    union.add_stored(chunk, &stored).unwrap();
                }
            }
            model.extend(part);
        }
        check(&union.finish(), &model);
        check(&model.iter().rev().copied().map(DocumentNumber).collect(), &model);
    }

    #[test]
    fn changes_and_ranges_match_the_model(
        a in sets(),
        changes: Vec<(bool, u16, u8)>,
        from: prop::sample::Index,
        to: prop::sample::Index,
    ) {
        let (mut set, mut model) = (of(&a), a.clone());
        for (adds, low, chunk) in changes {
            let number = u64::from(chunk % 8) << 16 | u64::from(low);
            let number = if adds { number } else { model.range(number..).next().copied().unwrap_or(number) };
            if adds {
                prop_assert_eq!(set.insert(DocumentNumber(number)), model.insert(number));
            } else {
                prop_assert_eq!(set.remove(DocumentNumber(number)), model.remove(&number));
            }
            prop_assert_eq!(set.contains(DocumentNumber(number)), adds);
        }
        check(&set, &model);
        let members: Vec<u64> = model.iter().copied().chain([0, u64::MAX]).collect();
        let (from, to) = (*from.get(&members), *to.get(&members));
        let (from, to) = (from.min(to), from.max(to).saturating_add(1));
        let (first, last) = (DocumentNumber(from), DocumentNumber(to));
        let found: Vec<u64> = set.range(first, last).rev().map(|document| document.0).collect();
        prop_assert!(found.into_iter().eq(model.range(from..=to).rev().copied()));
        prop_assert_eq!(set.range(last, first).count(), usize::from(from == to && model.contains(&from)));
    }
}

#[test]
fn damaged_containers_are_corrupt() {
    assert!(Union::new().add_stored(0, &[9, 9, 9]).is_err());
}
