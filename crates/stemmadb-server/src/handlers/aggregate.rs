//! The route `_aggregate`: counts, sums and other aggregates of matching documents.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use stemmadb::{Aggregation, ErrorKind, Selector, Value};

use crate::app::Call;
use crate::design;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, reading};
use crate::mango::exclude_design_documents;
use crate::metrics::QueryTimer;

/// `POST /{db}/_aggregate`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let mut aggregation = Aggregation::parse(&call.json().await?)?;
    let (time_limit, started) = (call.state.config.limits.query_time, Instant::now());
    if let Some(time) = time_limit {
        aggregation = aggregation.time_limit(time);
    }
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), "aggregate");
    reading(move || {
        let mut text = b"{\"rows\":[".to_vec();
        let snapshot = served.database().snapshot()?;
        let aggregation = match design::has_any(&snapshot)? {
            true => aggregation.narrowed(exclude_design_documents(Selector::everything())),
            false => aggregation,
        };
        let rows = aggregation.rows(&snapshot).map_err(|error| match error.kind() {
            // Not by the time limit, but by the number of groups.
            ErrorKind::Stopped if started.elapsed() < time_limit.unwrap_or(Duration::MAX) => {
                Failure::too_large(error.message().to_owned())
            }
            _ => error.into(),
        })?;
        timer.add_rows_read(rows.len() as u64);
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
