//! What a query may take.

use std::time::Duration;

use super::super::limits::{Cancellation, Guarded};
use super::super::{Query, Selector, count, documents, field, ids};
use super::memory::MemorySource;
use crate::index::{DocumentNumber, Policy};
use crate::value::Value;
use crate::{ErrorKind, Result};

fn source() -> MemorySource {
    let mut source = MemorySource::new(Policy::default());
    for at in 0..1000u64 {
        let body = format!(r#"{{"at": {at}, "text": "{at} and a few words more"}}"#);
        source.put(DocumentNumber(at), &format!("id{at}"), Value::parse(body.as_bytes()).expect("good JSON"));
    }
    source
}

fn stopped<T>(result: Result<T>) {
    assert_eq!(result.err().map(|error| error.kind()), Some(ErrorKind::Stopped));
}

fn guarded<'s>(source: &'s MemorySource, query: &Query) -> Guarded<&'s MemorySource> {
    Guarded::new(source, query.limits())
}

#[test]
fn time_rows_memory_and_cancellation_stop_a_query() {
    let source = source();
    let all = Query::new(field("at").ge(0)).sort("text");
    let late = all.clone().time_limit(Duration::ZERO);
    stopped(ids(guarded(&source, &late), &late).map(|_| ()));
    stopped(count(guarded(&source, &late), &late));
    let in_time = all.clone().time_limit(Duration::from_secs(600)).memory_max(10_000_000).rows_max(1000);
    assert_eq!(ids(guarded(&source, &in_time), &in_time).expect("good").filter(|id| id.is_ok()).count(), 1000);

    let few = all.clone().rows_max(10);
    let rows: Vec<_> = documents(guarded(&source, &few), &few).expect("good").collect();
    assert_eq!(rows.len(), 11);
    assert!(rows[..10].iter().all(Result::is_ok));
    stopped(rows.into_iter().collect::<Result<Vec<_>>>());

    let small = Query::new(Selector::everything()).sort("_id").memory_max(20_000);
    stopped(ids(guarded(&source, &small), &small).and_then(|rows| rows.collect::<Result<Vec<_>>>()));
    let limited = Query::new(Selector::everything()).sort("text").limit(3).memory_max(20_000);
    assert_eq!(ids(guarded(&source, &limited), &limited).expect("little memory").count(), 3);

    let cancellation = Cancellation::new();
    let cancelled = all.cancelled_by(&cancellation);
    let mut rows = ids(guarded(&source, &cancelled), &cancelled).expect("good");
    assert!(rows.next().is_some_and(|row| row.is_ok()));
    cancellation.cancel();
    assert!(rows.any(|row| row.is_err_and(|error| error.kind() == ErrorKind::Stopped)));
    assert!(rows.next().is_none());
}
