//! The route `_aggregate`: counts, sums and other aggregates of matching documents.

use hyper::StatusCode;
use stemmadb::Value;

use crate::app::Call;
use crate::design;
use crate::error::Result;
use crate::http::{HttpResponse, reading};
use crate::mango::AggregateRequest;

/// `POST /{db}/_aggregate`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let aggregate = AggregateRequest::parse(&call.json().await?)?;
    reading(move || {
        let mut text = b"{\"rows\":[".to_vec();
        let snapshot = served.database().snapshot()?;
        let rows = aggregate.rows(&snapshot, design::has_any(&snapshot)?)?;
        for (at, (key, figures)) in rows.into_iter().enumerate() {
            text.extend_from_slice(if at == 0 { b"\n{\"key\":" } else { b",\n{\"key\":" });
            key.write_json(&mut text);
            text.extend_from_slice(b",\"value\":");
            Value::Object(figures).write_json(&mut text);
            text.push(b'}');
        }
        text.extend_from_slice(b"\n]}\n");
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}
