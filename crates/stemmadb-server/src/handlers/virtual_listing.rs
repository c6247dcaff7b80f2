//! Listings of the documents of a virtual database, merged from those of its shards.

use stemmadb::{Listed, Value};

use super::listing::{ListingQuery, Scope, print_key_row, print_row};
use crate::documents::{DocumentPrinter, ShowOptions};
use crate::error::{Failure, Result};
use crate::http::ResponseWriter;
use crate::virtual_databases::{OpenVirtual, Snapshots};

/// The rows of all shards in the order of their ids.
struct MergedListing<'a> {
    snapshots: &'a Snapshots,
    descending: bool,
    shards: Vec<Box<dyn Iterator<Item = stemmadb::Result<Listed>> + Send>>,
    /// The next row of each shard.
    next: Vec<Option<Listed>>,
}

impl<'a> MergedListing<'a> {
    fn new(snapshots: &'a Snapshots, query: &ListingQuery) -> Result<Self> {
        let (from, to) = query.bounds();
        let mut merged =
            MergedListing { snapshots, descending: query.descending, shards: Vec::new(), next: Vec::new() };
        for index in 0..snapshots.len() {
            let listing = snapshots.at(index).1.list().from(from).to(to);
            let listing = listing.descending(query.descending).documents(query.include_docs);
            merged.shards.push(Box::new(listing.run()));
            merged.next.push(None);
            merged.advance(index)?;
        }
        Ok(merged)
    }

    /// Reads the next row of a shard. Copies of documents that another shard has are skipped.
    fn advance(&mut self, index: usize) -> Result<()> {
        self.next[index] = None;
        for listed in self.shards[index].by_ref() {
            let listed = listed?;
            if self.snapshots.is_owner(index, listed.id.as_str()) {
                self.next[index] = Some(listed);
                break;
            }
        }
        Ok(())
    }

    /// The next row, and the index of its shard.
    fn next(&mut self) -> Result<Option<(usize, Listed)>> {
        let rows = self.next.iter().enumerate().filter_map(|(index, listed)| Some((index, listed.as_ref()?)));
        let by_id = |one: &(usize, &Listed), other: &(usize, &Listed)| one.1.id.as_str().cmp(other.1.id.as_str());
        let first = if self.descending { rows.max_by(by_id) } else { rows.min_by(by_id) };
        let Some(index) = first.map(|(index, _)| index) else { return Ok(None) };
        let row = self.next[index].take();
        self.advance(index)?;
        Ok(row.map(|row| (index, row)))
    }
}

/// The number of documents of a scope.
fn total(open: &OpenVirtual, snapshots: &Snapshots, scope: &Scope) -> Result<u64> {
    match scope {
        Scope::All => Ok(open.database.find(stemmadb::Selector::everything()).count()?),
        Scope::Designs => {
            let query = ListingQuery::default().design_documents_only();
            let (mut rows, mut count) = (MergedListing::new(snapshots, &query)?, 0);
            while rows.next()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
        Scope::Partition(_) => Err(Failure::bad_request("A virtual database has no partitions")),
    }
}

/// Writes a listing. The offset is null if it would have to be counted.
pub(super) async fn write_virtual_listing(
    open: &OpenVirtual,
    snapshots: &Snapshots,
    query: &ListingQuery,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<()> {
    let total = total(open, snapshots, &query.scope)?;
    let is_from_first = query.keys.is_none() && query.start.is_none();
    let offset = if is_from_first { query.skip.min(total).to_string() } else { "null".to_owned() };
    out.buffer.extend_from_slice(format!("{{\"total_rows\":{total},\"offset\":{offset}").as_bytes());
    if query.update_seq {
        out.buffer.extend_from_slice(b",\"update_seq\":");
        out.string(&open.database.changes().newest_token());
    }
    out.buffer.extend_from_slice(b",\"rows\":[");
    let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(query.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let mut separator: &[u8] = b"\n";
    if let Some(keys) = &query.keys {
        let mut keys: Vec<&Value> = keys.iter().collect();
        if query.descending {
            keys.reverse();
        }
        for key in keys.into_iter().skip(skip).take(limit) {
            out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
            let (served, snapshot) = snapshots.of(key.as_str().unwrap_or_default());
            print_key_row(&DocumentPrinter { served, snapshot, show }, query, key, &mut out.buffer)?;
            out.flush_if_full().await;
        }
    } else {
        let (mut rows, mut left) = (MergedListing::new(snapshots, query)?, limit);
        for _ in 0..skip {
            if rows.next()?.is_none() {
                break;
            }
        }
        while left > 0
            && let Some((index, listed)) = rows.next()?
        {
            left -= 1;
            out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
            let (served, snapshot) = snapshots.at(index);
            print_row(&DocumentPrinter { served, snapshot, show }, &listed, &mut out.buffer)?;
            out.flush_if_full().await;
        }
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}
