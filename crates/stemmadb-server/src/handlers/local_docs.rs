//! Routes that list local documents, which are not replicated.

use hyper::StatusCode;
use stemmadb::{Object, Value};

use super::listing::{ListingQuery, parse_queries, print_head};
use super::row_parameters::Precedence;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{HttpResponse, ResponseWriter, streamed};

/// `GET /{db}/_local_docs`, `POST /{db}/_local_docs`
pub(crate) async fn list(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?;
    let query = ListingQuery::parse(&call.query, body.as_ref(), Precedence::QueryString)?;
    let served = call.open_database().await?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        write(&served, &query, &mut out).await?;
        out.buffer.push(b'\n');
        Ok(())
    })
    .await
}

/// `POST /{db}/_local_docs/queries`
pub(crate) async fn queries(mut call: Call) -> Result<HttpResponse> {
    let queries = parse_queries(&mut call).await?;
    let served = call.open_database().await?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, query) in queries.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            write(&served, query, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

/// Writes a listing.
async fn write(served: &ServedDatabase, query: &ListingQuery, out: &mut ResponseWriter) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"total_rows\":null,\"offset\":null,\"rows\":[");
    let mut separator: &[u8] = b"\n";
    for key in keys(served, query)? {
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        match key.as_str().map(|id| served.database().local_documents().get(id)).transpose()?.flatten() {
            Some((number, body)) => write_row(key.as_str().unwrap_or_default(), number, &body, query.include_docs, out),
            None => {
                out.buffer.extend_from_slice(b"{\"key\":");
                key.write_json(&mut out.buffer);
                out.buffer.extend_from_slice(b",\"error\":\"not_found\"}");
            }
        }
        out.flush_if_full().await;
    }
    out.buffer.extend_from_slice(b"\n]}");
    Ok(())
}

/// The keys of the rows in order: the requested keys, or the ids within the range.
fn keys(served: &ServedDatabase, query: &ListingQuery) -> Result<Vec<Value>> {
    let mut keys = match &query.keys {
        Some(keys) => keys.clone(),
        None => {
            let locals = served.database().local_documents().list("_local/")?.into_iter();
            locals.map(|(id, _)| id).filter(|id| query.contains(id)).map(Value::from).collect()
        }
    };
    if query.descending {
        keys.reverse();
    }
    let (skip, limit) = (query.skip, query.limit.unwrap_or(u64::MAX));
    let to_usize = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Ok(keys.into_iter().skip(to_usize(skip)).take(to_usize(limit)).collect())
}

fn write_row(id: &str, number: u64, body: &Value, has_document: bool, out: &mut ResponseWriter) {
    print_head(id, &mut out.buffer);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"0-{number}\"}}").as_bytes());
    if has_document {
        out.buffer.extend_from_slice(b",\"doc\":");
        let mut document = Object::new();
        document.insert("_id", id);
        document.insert("_rev", format!("0-{number}"));
        document.extend(body.as_object().into_iter().flatten().map(|(name, value)| (name, value.clone())));
        Value::Object(document).write_json(&mut out.buffer);
    }
    out.buffer.push(b'}');
}
