//! The route `_aggregate`: counts, sums and other aggregates of matching documents.

use hyper::StatusCode;
use stemmadb::{Aggregation, ErrorKind, Selector, Value};

use crate::app::Call;
use crate::design;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, reading};
use crate::mango::exclude_design_documents;

/// `POST /{db}/_aggregate`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let aggregation = Aggregation::parse(&call.json().await?)?;
    reading(move || {
        let mut text = b"{\"rows\":[".to_vec();
        let snapshot = served.database().snapshot()?;
        let aggregation = match design::has_any(&snapshot)? {
            true => aggregation.narrowed(exclude_design_documents(Selector::everything())),
            false => aggregation,
        };
        let rows = aggregation.rows(&snapshot).map_err(|error| match error.kind() {
            ErrorKind::Stopped => Failure::too_large(error.message().to_owned()),
            _ => error.into(),
        })?;
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
