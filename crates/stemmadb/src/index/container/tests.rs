//! Model tests of containers against `BTreeSet<u16>`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Model = BTreeSet<u16>;

/// Sets that lead to every representation: scattered, dense, in runs, near the ends.
pub(crate) fn sets() -> impl Strategy<Value = Model> {
    let scattered = prop::collection::btree_set(any::<u16>(), 0..40);
    let near = prop::collection::btree_set(0..64u16, 0..40);
    let runs = prop::collection::vec((any::<u16>(), 0..3000u16), 0..6)
        .prop_map(|runs| runs.into_iter().flat_map(|(first, len)| first..=first.saturating_add(len)).collect());
    let dense = (1..20u16, any::<u16>(), any::<u16>())
        .prop_map(|(step, a, b)| (a.min(b)..=a.max(b)).step_by(usize::from(step)).collect());
    let ends = Just(Model::from([0, 1, 65_534, 65_535]));
    let whole = Just((0..=u16::MAX).collect());
    prop_oneof![4 => scattered, 2 => near, 4 => runs, 4 => dense, 1 => ends, 1 => whole]
}

fn of(model: &Model) -> Container {
    let values: Vec<u16> = model.iter().copied().collect();
    Container::from_sorted(&values)
}

/// The same set in every representation that storing it can lead to.
fn representations(model: &Model) -> Vec<Container> {
    let container = of(model);
    let mut all = vec![container.clone()];
    if !model.is_empty() {
        all.push(stored(&container));
        let values: Vec<u16> = model.iter().copied().collect();
        let runs: Runs =
            values.chunk_by(|a, b| b - a == 1).map(|run| Run { first: run[0], last: run[run.len() - 1] }).collect();
        if runs.len() <= RUNS_MAX {
            all.push(Container(Repr::Runs(runs)));
        }
    }
    all
}

fn stored(container: &Container) -> Container {
    let mut out = Vec::new();
    container.encode(&mut out);
    assert_eq!(Container::stored_len(&out).unwrap(), container.len());
    Container::decode(&out).unwrap()
}

fn check(container: &Container, model: &Model) {
    assert_eq!(container.len() as usize, model.len());
    assert!(container.iter().eq(model.iter().copied()), "{container:?}");
    match &container.0 {
        Repr::Array(values) => assert!(values.len() <= ARRAY_MAX),
        Repr::Bitmap(bitmap) => assert!(bitmap.len() as usize > ARRAY_MAX),
        Repr::Runs(runs) => assert!((1..=RUNS_MAX).contains(&runs.len())),
    }
}

#[test]
fn the_smallest_encoding_is_stored() {
    let size = |container: &Container| {
        let mut out = Vec::new();
        container.encode(&mut out);
        assert_eq!(&Container::decode(&out).unwrap(), container);
        out.len()
    };
    assert_eq!(size(&Container::of_one(65_535)), 2);
    assert_eq!(size(&Container::from_sorted(&[1000, 65_535])), 5);
    assert_eq!(size(&Container::from_sorted(&[0, 3])), 3);
    assert_eq!(size(&Container::of_range(0, 65_535)), 5);
    assert_eq!(size(&Container::of_range(7, 7)), 2);
    assert_eq!(size(&Container::from_sorted(&(0..=65_535).collect::<Vec<_>>())), 5);
    assert_eq!(size(&Container::from_sorted(&(0..30_000).step_by(10).collect::<Vec<_>>())), 1 + 29_990 / 8 + 1);
    assert_eq!(size(&Container::from_sorted(&(0..65_535).step_by(2).collect::<Vec<_>>())), 8193);
}

#[test]
fn damaged_bytes_are_corrupt() {
    let bad: [&[u8]; 12] = [
        &[],
        &[1],
        &[1, 0, 1, 0],
        &[1, 0, 2, 0, 1],
        &[1, 0, 1, 0, 1],
        &[2, 0, 0, 0],
        &[2, 0, 2, 0, 1],
        &[2, 0, 0, 0, 1, 0, 2, 0, 3],
        &[3, 0, 0],
        &[3; 8194],
        &[4, 0, 0],
        &[1; 2 * ARRAY_MAX + 3],
    ];
    for bytes in bad {
        assert_eq!(Container::decode(bytes).unwrap_err().kind(), crate::ErrorKind::Corrupt, "{bytes:?}");
        let probe = ContainerProbe::new(&Container::of_range(0, 500));
        assert_eq!(probe.stored_len(bytes).unwrap_err().kind(), crate::ErrorKind::Corrupt, "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn set_operations_match_the_model(a in sets(), b in sets()) {
        for x in representations(&a) {
            check(&stored_or_empty(&x), &a);
            for y in representations(&b) {
                check(&x.and(&y), &(&a & &b));
                check(&x.or(&y), &(&a | &b));
                check(&x.and_not(&y), &(&a - &b));
                let mut both = x.clone();
                both.and_with(&y);
                check(&both, &(&a & &b));
                prop_assert_eq!(x.and_len(&y) as usize, (&a & &b).len());
                let probe = ContainerProbe::new(&x);
                prop_assert_eq!(probe.len(&y) as usize, (&a & &b).len());
                if !y.is_empty() {
                    let mut stored = Vec::new();
                    y.encode(&mut stored);
                    prop_assert_eq!(probe.stored_len(&stored).unwrap() as usize, (&a & &b).len());
                }
                prop_assert_eq!(x == y, a == b);
            }
        }
    }

    #[test]
    fn single_changes_match_the_model(
        a in sets(),
        changes in prop::collection::vec((any::<bool>(), any::<u16>()), 0..60),
    ) {
        for mut container in representations(&a) {
            let mut model = a.clone();
            for &(adds, value) in &changes {
                // Half of the changes are next to a member, where runs grow and merge.
                let near = model.range(value..).next().map_or(value, |member| member.wrapping_sub(1 - (value & 1)));
                for value in [value, near] {
                    if adds {
                        prop_assert_eq!(container.insert(value), model.insert(value));
                    } else {
                        prop_assert_eq!(container.remove(value), model.remove(&value));
                    }
                }
            }
            check(&container, &model);
        }
    }

    #[test]
    fn batches_match_the_model(a in sets(), adds in sets(), removes in sets()) {
        let expected = &(&a - &removes) | &adds;
        let sorted = |model: &Model| model.iter().copied().collect::<Vec<_>>();
        let (adds, removes) = (sorted(&adds), sorted(&removes));
        for container in representations(&a) {
            let mut container = container;
            container.and_not_with(&Container::from_sorted(&removes));
            container.or_with(&Container::from_sorted(&adds));
            check(&container, &expected);
        }
    }

    #[test]
    fn iterators_match_the_model(a in sets(), from: u16, to: u16, turns: Vec<bool>) {
        let (from, to) = (from.min(to), from.max(to));
        for container in representations(&a) {
            prop_assert!(container.range(from, to).eq(a.range(from..=to).copied()));
            prop_assert!(container.range(from, to).rev().eq(a.range(from..=to).rev().copied()));
            prop_assert_eq!(container.range(to, from).count() as u16, u16::from(from == to && a.contains(&from)));
            let (mut walk, mut expected) = (container.range(from, to), a.range(from..=to));
            for &back in turns.iter().cycle().take(if turns.is_empty() { 0 } else { 200 }) {
                let pair = if back { (walk.next_back(), expected.next_back()) } else { (walk.next(), expected.next()) };
                prop_assert_eq!(pair.0, pair.1.copied());
            }
            prop_assert_eq!((container.first(), container.last()), (a.first().copied(), a.last().copied()));
            let rank = a.range(..from).count() as u32;
            prop_assert_eq!(container.rank(from), rank);
            prop_assert_eq!(container.select(rank), a.range(from..).next().copied());
            prop_assert_eq!(container.select(a.len() as u32), None);
            prop_assert_eq!(container.contains(from), a.contains(&from));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), tag in 0..5u8) {
        for bytes in [bytes.clone(), [&[tag][..], &bytes].concat()] {
            if let Ok(container) = Container::decode(&bytes) {
                let model: Model = container.iter().collect();
                check(&container, &model);
                check(&stored(&container), &model);
            }
            let _outcome = Container::stored_len(&bytes);
        }
    }
}

fn stored_or_empty(container: &Container) -> Container {
    if container.is_empty() { container.clone() } else { stored(container) }
}
