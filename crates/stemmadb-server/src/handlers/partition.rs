//! Routes of a partition of a partitioned database: its size, and the routes that list or search only its documents.

use serde_json::json;
use stemmadb::{Sequence, field};

use super::listing::partition_count;
use super::{listing, mango, view};
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::{check_partition, partition_end, partition_prefix};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};

/// Checks that the database has partitions, and names the partition of the path in the query, as CouchDB does.
async fn within_partition(mut call: Call) -> Result<Call> {
    // Of a virtual database, the shard with the documents of the partition is asked.
    if !call.open_database().await?.is_partitioned() && !call.is_of_whole {
        return Err(Failure::bad_request("database is not partitioned"));
    }
    let partition = call.parameter("partition")?.to_owned();
    check_partition(&partition)?;
    if call.query.text("partition").is_some_and(|named| named != partition) {
        return Err(Failure::bad_request("Conflicting value for `partition` in query string"));
    }
    call.query.set("partition", &partition);
    Ok(call)
}

/// `GET /{db}/_partition/{partition}`
pub(crate) async fn info(call: Call) -> Result<HttpResponse> {
    let call = within_partition(call).await?;
    let served = call.open_database().await?;
    let (partition, restriction) = (call.parameter("partition")?.to_owned(), call.restriction.clone());
    blocking(move || {
        if let Some(restriction) = restriction {
            let ids = field("_id").ge(partition_prefix(&partition)).and(field("_id").lt(partition_end(&partition)));
            // Without sizes and deletions, as in the description of the database.
            return HttpResponse::ok(&json!({
                "db_name": served.name(),
                "doc_count": served.database().find(restriction.selector().and(ids)).count()?,
                "doc_del_count": 0,
                "partition": partition,
                "sizes": {"active": 0, "external": 0},
            }));
        }
        use std::ops::Bound::{Excluded, Included};
        let snapshot = served.database().snapshot()?;
        let (first, end) = (partition_prefix(&partition), partition_end(&partition));
        let listing = snapshot.list().from(Included(first.as_str())).to(Excluded(end.as_str())).documents(true);
        let mut byte_count = 0;
        for listed in listing.run() {
            if let Some(document) = listed?.document {
                byte_count += document.to_json()?.len();
            }
        }
        HttpResponse::ok(&json!({
            "db_name": served.name(),
            "doc_count": partition_count(&snapshot, &partition)?,
            "doc_del_count": deleted_count(&served, &partition)?,
            "partition": partition,
            "sizes": {"active": byte_count, "external": byte_count},
        }))
    })
    .await
}

/// The number of deleted documents of a partition. Reads the whole feed, because tombstones are not indexed.
fn deleted_count(served: &ServedDatabase, partition: &str) -> Result<u64> {
    if served.database().info()?.deleted_count == 0 {
        return Ok(0);
    }
    let prefix = partition_prefix(partition);
    let mut count = 0;
    for change in served.database().changes(Sequence::ZERO)?.run() {
        let change = change?;
        count += u64::from(change.deleted && change.id.as_str().starts_with(&prefix));
    }
    Ok(count)
}

/// `GET /{db}/_partition/{partition}/_all_docs`, `POST` the same
pub(crate) async fn all_docs(call: Call) -> Result<HttpResponse> {
    listing::all_docs(within_partition(call).await?).await
}

/// `POST /{db}/_partition/{partition}/_find`
pub(crate) async fn find(call: Call) -> Result<HttpResponse> {
    mango::find(within_partition(call).await?).await
}

/// `POST /{db}/_partition/{partition}/_explain`
pub(crate) async fn explain(call: Call) -> Result<HttpResponse> {
    mango::explain(within_partition(call).await?).await
}

/// `GET /{db}/_partition/{partition}/_design/{ddoc}/_view/{view}`, `POST` the same
pub(crate) async fn view(call: Call) -> Result<HttpResponse> {
    view::get(within_partition(call).await?).await
}

/// `GET /{db}/_partition/{partition}/{rest*}`, `POST` the same
pub(crate) async fn unknown(call: Call) -> Result<HttpResponse> {
    within_partition(call).await?;
    Err(Failure::missing())
}
