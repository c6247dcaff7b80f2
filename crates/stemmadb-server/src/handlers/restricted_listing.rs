//! `_all_docs` for users that an access rule limits to some documents: a query of the rule and the range of ids, so
//! that totals, offsets and pages are those of the documents that they may read.

use std::ops::Bound;
use std::sync::Arc;

use stemmadb::{Query, Selector, Snapshot, all_of, field};

use super::listing::{ListingQuery, print_head, print_key_row, print_not_found};
use crate::auth::Restriction;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, is_readable};
use crate::error::Result;
use crate::http::ResponseWriter;

/// The documents with ids in a range.
fn within(from: Bound<&str>, to: Bound<&str>) -> Selector {
    let lower = match from {
        Bound::Included(id) => Some(field("_id").ge(id)),
        Bound::Excluded(id) => Some(field("_id").gt(id)),
        Bound::Unbounded => None,
    };
    let upper = match to {
        Bound::Included(id) => Some(field("_id").le(id)),
        Bound::Excluded(id) => Some(field("_id").lt(id)),
        Bound::Unbounded => None,
    };
    all_of(lower.into_iter().chain(upper))
}

/// Writes a listing of the documents that the user may read.
pub(super) async fn write_restricted_listing(
    served: &Arc<ServedDatabase>,
    snapshot: &Snapshot,
    query: &ListingQuery,
    restriction: &Restriction,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<()> {
    let scope = query.scope.ids();
    let in_scope = match &scope {
        Some((first, last)) => within(Bound::Included(first), Bound::Excluded(last)),
        None => Selector::everything(),
    };
    let readable = all_of([restriction.selector(), in_scope]);
    let total = snapshot.find(readable.clone()).count()?;
    let (from, to) = query.bounds();
    let before = match (query.descending, from, to) {
        (false, Bound::Included(id), _) => Some(within(Bound::Unbounded, Bound::Excluded(id))),
        (true, _, Bound::Included(id)) => Some(within(Bound::Excluded(id), Bound::Unbounded)),
        _ => None,
    };
    let offset = match (&query.keys, before) {
        (Some(_), _) => None,
        (None, None) => Some(0),
        (None, Some(before)) => Some(snapshot.find(all_of([readable.clone(), before])).count()?),
    };
    let offset = offset.map(|before| before + query.skip.min(total.saturating_sub(before)));
    let offset = offset.map_or("null".to_owned(), |offset| offset.to_string());
    out.buffer.extend_from_slice(format!("{{\"total_rows\":{total},\"offset\":{offset}").as_bytes());
    if query.update_seq {
        out.buffer.extend_from_slice(b",\"update_seq\":");
        out.string(&served.sequence_text(snapshot.sequence()));
    }
    out.buffer.extend_from_slice(b",\"rows\":[");
    let printer = DocumentPrinter { served, snapshot, show };
    let mut separator: &[u8] = b"\n";
    if let Some(keys) = &query.keys {
        let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
        let limit = query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let keys: Vec<_> = if query.descending { keys.iter().rev().collect() } else { keys.iter().collect() };
        for key in keys.into_iter().skip(skip).take(limit) {
            out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
            let id = key.as_str().unwrap_or_default();
            match is_readable(snapshot, id, &snapshot.revisions(id)?, Some(restriction))? {
                true => print_key_row(&printer, query, key, &mut out.buffer)?,
                false => print_not_found(key, &mut out.buffer)?,
            }
            out.flush_if_full().await;
        }
    } else {
        let found = Query::new(all_of([readable, within(from, to)])).skip(query.skip);
        let found = query.limit.into_iter().fold(found, |found, limit| found.limit(limit));
        let found = if query.descending { found.sort_descending("_id") } else { found.sort("_id") };
        for document in snapshot.find(found).run()? {
            let document = document?;
            out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
            print_head(document.id().as_str(), &mut out.buffer);
            out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"{}\"}}", document.revision()).as_bytes());
            if query.include_docs {
                out.buffer.extend_from_slice(b",\"doc\":");
                printer.print(&document, &mut out.buffer)?;
            }
            out.buffer.push(b'}');
            out.flush_if_full().await;
        }
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}
