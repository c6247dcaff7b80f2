//! Routes that list the documents that are not replicated.

use hyper::StatusCode;
use stemmadb::{Object, Value};

use super::listing::{Wanted, queries_of, write_head};
use crate::app::Call;
use crate::directory::Served;
use crate::error::Result;
use crate::http::{Answer, Pieces, streamed};

/// `GET /{db}/_local_docs`, `POST /{db}/_local_docs`
pub(crate) async fn list(mut call: Call) -> Result<Answer> {
    let body = call.json_if_any().await?;
    let wanted = Wanted::parse(&call.query, body.as_ref())?;
    let served = call.database().await?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        write(&served, &wanted, &mut out).await?;
        out.buffer.push(b'\n');
        Ok(())
    })
    .await
}

/// `POST /{db}/_local_docs/queries`
pub(crate) async fn queries(mut call: Call) -> Result<Answer> {
    let wanted = queries_of(&mut call).await?;
    let served = call.database().await?;
    streamed(StatusCode::OK, "application/json", call.state.config.limits.stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (at, wanted) in wanted.iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            write(&served, wanted, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

/// Writes those that are wanted, by id.
async fn write(served: &Served, wanted: &Wanted, out: &mut Pieces) -> Result<()> {
    out.buffer.extend_from_slice(b"{\"total_rows\":null,\"offset\":null,\"rows\":[");
    let mut separator: &[u8] = b"\n";
    for key in keys(served, wanted)? {
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        match key.as_str().map(|id| served.database().local_documents().get(id)).transpose()?.flatten() {
            Some((number, body)) => write_row(key.as_str().unwrap_or_default(), number, &body, wanted.documents, out),
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

/// The keys of the rows, in their order: those that are asked for, whatever is there, or the ids within the range.
fn keys(served: &Served, wanted: &Wanted) -> Result<Vec<Value>> {
    let mut keys = match &wanted.keys {
        Some(keys) => keys.clone(),
        None => {
            let locals = served.database().local_documents().list("_local/")?.into_iter();
            locals.map(|(id, _)| id).filter(|id| wanted.has(id)).map(Value::from).collect()
        }
    };
    if wanted.descending {
        keys.reverse();
    }
    let (skip, limit) = (wanted.skip, wanted.limit.unwrap_or(u64::MAX));
    let within = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Ok(keys.into_iter().skip(within(skip)).take(within(limit)).collect())
}

fn write_row(id: &str, number: u64, body: &Value, has_document: bool, out: &mut Pieces) {
    write_head(id, out);
    out.buffer.extend_from_slice(format!(",\"value\":{{\"rev\":\"0-{number}\"}}").as_bytes());
    if has_document {
        out.buffer.extend_from_slice(b",\"doc\":");
        let mut shown = Object::new();
        shown.insert("_id", id);
        shown.insert("_rev", format!("0-{number}"));
        shown.extend(body.as_object().into_iter().flatten().map(|(name, value)| (name, value.clone())));
        Value::Object(shown).write_json(&mut out.buffer);
    }
    out.buffer.push(b'}');
}
