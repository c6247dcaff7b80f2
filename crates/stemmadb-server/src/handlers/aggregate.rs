//! The route `_aggregate`: counts, sums and other aggregates of matching documents, and pipelines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use stemmadb::aggregation::Pipeline;
use stemmadb::{Aggregation, ErrorKind, Object, Selector, Value};

use crate::app::Call;
use crate::auth::refused;
use crate::config::Limits;
use crate::design;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, current_cancellation, reading, streamed};
use crate::mango::exclude_design_documents;
use crate::metrics::QueryTimer;

/// `POST /{db}/_aggregate`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        let body = call.json().await?;
        let database = call.take_reading()?;
        return super::virtual_database::aggregate(&call, database, body).await;
    }
    let served = call.open_database().await?;
    let body = call.json().await?;
    match body.get("pipeline") {
        Some(stages) => {
            let pipeline = Pipeline::parse(stages)?;
            let is_explained = explains(&body)?;
            if is_explained && call.restriction.is_some() {
                return Err(refused("the plan of a query"));
            }
            run_pipeline(&call, served, pipeline, is_explained).await
        }
        None => aggregate(&call, served, Aggregation::parse(&body)?).await,
    }
}

/// The parameter `explain` beside a pipeline.
fn explains(body: &Value) -> Result<bool> {
    let other = body.as_object().into_iter().flatten().find(|(name, _)| !matches!(*name, "pipeline" | "explain"));
    if let Some((name, _)) = other {
        return Err(Failure::bad_request(format!("`{name}` can't stand beside a pipeline, only `explain` can")));
    }
    match body.get("explain") {
        None => Ok(false),
        Some(Value::Bool(is_explained)) => Ok(*is_explained),
        Some(_) => Err(Failure::bad_request("`explain` is true or false")),
    }
}

async fn aggregate(call: &Call, served: Arc<ServedDatabase>, aggregation: Aggregation) -> Result<HttpResponse> {
    let time_limit = call.state.config.limits.query_time;
    let failure = failure_within(time_limit);
    let as_of = call.as_of()?;
    let aggregation = match time_limit {
        Some(time) => aggregation.time_limit(time),
        None => aggregation,
    };
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), "aggregate");
    let restriction = call.restriction.clone();
    reading(move || {
        let snapshot = served.read(as_of)?;
        let aggregation = match design::has_any(&snapshot)? {
            true => aggregation.narrowed(exclude_design_documents(Selector::everything())),
            false => aggregation,
        };
        let aggregation = match &restriction {
            Some(restriction) => aggregation.narrowed(restriction.selector()),
            None => aggregation,
        };
        let rows = aggregation.rows(&snapshot).map_err(failure)?;
        timer.add_rows_read(rows.len() as u64);
        let mut text = rows_text(rows);
        if restriction.is_none() {
            write_warning(aggregation.hints(&snapshot)?, &mut text);
        }
        text.extend_from_slice(b"}\n");
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}

/// The beginning of a response: its rows of keys and figures. Other members may follow, and the end of the object.
pub(super) fn rows_text(rows: Vec<(Value, Object)>) -> Vec<u8> {
    let mut text = b"{\"rows\":[".to_vec();
    for (at, (key, figures)) in rows.into_iter().enumerate() {
        text.extend_from_slice(if at == 0 { b"\n{\"key\":" } else { b",\n{\"key\":" });
        key.write_json(&mut text);
        text.extend_from_slice(b",\"value\":");
        Value::Object(figures).write_json(&mut text);
        text.push(b'}');
    }
    text.extend_from_slice(b"\n]");
    text
}

/// Streams the rows of a pipeline, or explains it.
async fn run_pipeline(
    call: &Call,
    served: Arc<ServedDatabase>,
    pipeline: Pipeline,
    is_explained: bool,
) -> Result<HttpResponse> {
    let Limits { stall_timeout, query_time, .. } = call.state.config.limits;
    let mut timer = QueryTimer::start(&call.state.metrics, served.name(), "pipeline");
    let pipeline = match query_time {
        Some(time) => pipeline.time_limit(time),
        None => pipeline,
    };
    // The stages check this more often than reads do.
    let pipeline = match current_cancellation() {
        Some(cancellation) => pipeline.cancelled_by(&cancellation),
        None => pipeline,
    };
    let failure = failure_within(query_time);
    let (as_of, restriction) = (call.as_of()?, call.restriction.clone());
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let snapshot = served.read(as_of)?;
        let pipeline = match design::has_any(&snapshot)? {
            true => pipeline.narrowed(exclude_design_documents(Selector::everything())),
            false => pipeline,
        };
        // Documents that `$lookup` adds are narrowed as well.
        let pipeline = match &restriction {
            Some(restriction) => pipeline.narrowed(restriction.selector()),
            None => pipeline,
        };
        if is_explained {
            pipeline.explain(&snapshot)?.write_json(&mut out.buffer);
            out.buffer.push(b'\n');
            return Ok(());
        }
        out.buffer.extend_from_slice(b"{\"rows\":[");
        let mut separator: &[u8] = b"\n";
        for row in pipeline.run(&snapshot).map_err(failure)? {
            out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
            timer.add_rows_read(1);
            row.map_err(failure)?.write_json(&mut out.buffer);
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"\n]");
        if restriction.is_none() {
            write_warning(pipeline.hints(&snapshot)?, &mut out.buffer);
        }
        out.buffer.extend_from_slice(b"}\n");
        Ok(())
    })
    .await
}

/// Converts errors of an aggregation that begins now. It is stopped by its time limit, or else by the number of groups.
fn failure_within(time_limit: Option<Duration>) -> impl Fn(stemmadb::Error) -> Failure + Copy {
    let started = Instant::now();
    move |error| match error.kind() {
        ErrorKind::Stopped if time_limit.is_none_or(|time| started.elapsed() < time) => {
            Failure::too_large(error.message().to_owned())
        }
        _ => error.into(),
    }
}

fn write_warning(hints: Vec<String>, text: &mut Vec<u8>) {
    if !hints.is_empty() {
        text.extend_from_slice(b",\n\"warning\":");
        Value::from(hints.join("; ")).write_json(text);
    }
}
