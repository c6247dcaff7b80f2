//! Property tests: declared indexes change how rows are sorted, but neither the rows nor their order.

use proptest::prelude::*;

use super::super::{Query, Selector, explain, ids};
use super::arbitrary;
use super::memory::MemorySource;
use super::queries::{all_ids, all_pages, filled, id, number, policy};
use crate::index::Index;
use crate::value::Value;

/// Sort paths, each with a direction and possibly a language.
fn declared_sort() -> BoxedStrategy<Vec<(String, bool, Option<&'static str>)>> {
    let language = prop_oneof![4 => Just(None), 1 => Just(Some("de")), 1 => Just(Some("und"))];
    prop::collection::vec((arbitrary::sort_path(), any::<bool>(), language), 1..4)
        .prop_map(|mut keys| {
            let mut seen = std::collections::BTreeSet::new();
            keys.retain(|(path, ..)| seen.insert(path.clone()));
            keys
        })
        .boxed()
}

fn ordered(query: Query, (path, descending, language): &(String, bool, Option<&str>)) -> Query {
    match (descending, language) {
        (false, None) => query.sort(path),
        (true, None) => query.sort_descending(path),
        (false, Some(language)) => query.sort_collated(path, language),
        (true, Some(language)) => query.sort_collated_descending(path, language),
    }
}

/// Returns an index on these paths, or `None` if one of them cannot be indexed.
fn index(keys: &[(String, bool, Option<&str>)]) -> Option<Index> {
    let mut index: Option<Index> = None;
    for (path, descending, language) in keys {
        let with = match (index, descending) {
            (None, false) => Index::on(path),
            (None, true) => Index::on_descending(path),
            (Some(index), false) => index.then(path),
            (Some(index), true) => index.then_descending(path),
        };
        index = Some(match language {
            Some(language) => with.collated(language),
            None => with,
        });
    }
    index.filter(|index| index.define(1).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: super::cases(2048),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn declared_indexes_do_not_change_results(
        policy in policy(),
        bodies in prop::collection::vec(arbitrary::body(), 0..14),
        selector in arbitrary::selector(),
        fixed in prop::option::of((arbitrary::sort_path(), arbitrary::scalar())),
        sort in declared_sort(),
        indexes in prop::collection::vec(declared_sort(), 1..4),
        skip in 0u64..3,
        limit in 1u64..5,
    ) {
        let selector = match &fixed {
            None => selector,
            Some((path, value)) => {
                let both = Value::Array(vec![arbitrary::single(path, value.clone()), selector]);
                arbitrary::single("$and", both)
            }
        };
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = sort.iter().fold(Query::new(selector.clone()), ordered);
        let plain = filled(policy.clone(), &bodies);
        let mut source = MemorySource::new(policy);
        // The sort order itself, its reverse, the order after a fixed value, and unrelated ones.
        let reversed = sort.iter().map(|(path, descending, language)| (path.clone(), !descending, *language)).collect();
        let lead = fixed.iter().map(|(path, _)| (path.clone(), skip == 1, None));
        let prefixed = lead.chain(sort.iter().cloned()).collect();
        let declared = [sort.clone(), reversed, prefixed].into_iter().chain(indexes).filter_map(|keys| index(&keys));
        source.declare(&declared.enumerate().map(|(at, index)| index.named(format!("{at}"))).collect::<Vec<_>>());
        for (at, body) in bodies.iter().enumerate() {
            source.put(number(at), &id(at), body.clone());
        }
        let expected = all_ids(&plain, &query);
        let plan = || explain(&source, &query, true).expect("a good query").to_string();
        prop_assert_eq!(&all_ids(&source, &query), &expected, "{} by {:?}\n{}", &selector, &sort, plan());
        let pages = all_pages(&source, &query, limit);
        prop_assert_eq!(&pages, &expected, "pages of {} by {:?}\n{}", &selector, &sort, plan());
        let part: Vec<String> = expected.iter().skip(skip as usize).take(limit as usize).cloned().collect();
        prop_assert_eq!(all_ids(&source, &query.clone().skip(skip).limit(limit)), part);
        // A token stays valid if other indexes exist when the next page is read.
        let mut first = ids(&plain, &query.clone().limit(limit)).expect("a good query");
        let mut rows: Vec<String> = first.by_ref().map(|id| id.expect("a sound snapshot").to_string()).collect();
        if let Some(token) = first.token().expect("a good query") {
            rows.extend(all_ids(&source, &query.clone().after(token)));
        }
        prop_assert_eq!(&rows, &expected);
    }
}
