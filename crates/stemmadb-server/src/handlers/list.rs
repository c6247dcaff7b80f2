//! The route `_list`: a function of a design document renders the rows of a view.
//!
//! The function gets all rows at once, so their number is limited by the memory of the script engine and by
//! [`ROWS_BYTES_MAX`].

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::ETAG;
use hyper::{Method, StatusCode};
use stemmadb::Value;

use super::document::has_etag;
use super::function_inputs::FunctionInputs;
use super::row_parameters::Precedence;
use super::show::{rendered, rendered_etag, variant_of};
use super::view_query::ViewQuery;
use super::{listing, spread, view, view_update};
use crate::app::Call;
use crate::design::request_value;
use crate::documents::parse_show_options;
use crate::error::{Failure, Result};
use crate::http::{
    BodyTimeout, HttpResponse, JsonPurpose, Parameters, TimeLimit, blocking, read_all, read_json, read_json_within,
};
use crate::script::{CallKind, Scripts};

/// The most bytes of rows, as JSON.
const ROWS_BYTES_MAX: usize = 32 << 20;

/// The rows of a list: its head, and the JSON of a row in each line.
#[derive(Default)]
pub(super) struct ListRows {
    /// `total_rows`, `offset` and `update_seq`, where the result has them.
    pub(super) head: stemmadb::Object,
    pub(super) lines: Vec<u8>,
    /// The state that the rows depend on besides the request.
    pub(super) state: String,
}

impl ListRows {
    /// Ends a row.
    ///
    /// # Errors
    /// 413 if there are too many.
    pub(super) fn end_row(&mut self) -> Result<()> {
        self.lines.push(b'\n');
        match self.lines.len() <= ROWS_BYTES_MAX {
            true => Ok(()),
            false => Err(Failure::too_large(format!("the rows of a list can have at most {ROWS_BYTES_MAX} bytes"))),
        }
    }
}

/// The name that stands for the documents of the database instead of a view.
const ALL_DOCUMENTS: &str = "_all_docs";

/// `GET /{db}/_design/{ddoc}/_list/{function}/{view}`, `…/{function}/{other}/{view}`, `POST` the same
pub(crate) async fn list(mut call: Call) -> Result<HttpResponse> {
    let text = call.json_text().await?;
    call.reservation.grow(text.len().saturating_mul(super::update::MEMORY_FACTOR)).await?;
    let body = if text.is_empty() { None } else { Some(read_json(&text, JsonPurpose::Parameters)?) };
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let view_design = call.parameters.get("other").unwrap_or(&design).to_owned();
    let view = call.parameter("view")?.to_owned();
    let request_body = String::from_utf8_lossy(&text);
    let inputs = FunctionInputs::read(&call, &design, None).await?;
    let served = inputs.served.clone();
    let request = request_value(&served, &call.user, &call.parts, &call.query, &request_body, None).to_json();
    let show = parse_show_options(&call.query)?;
    let (query, scripts) = (call.query.clone(), call.state.scripts.clone());
    let variant = variant_of(&call) + &request_body;
    let if_none_match = call.header("if-none-match").map(str::to_owned);
    let limit = TimeLimit::start(call.state.config.limits.query_time);
    if call.virtual_database.is_some() {
        let rows = limit.wait(rows_of_whole(&mut call, view_design, view, text.clone())).await?;
        return render(inputs, scripts, &function, rows, request, (&variant, if_none_match.as_deref())).await;
    }
    if view != ALL_DOCUMENTS {
        let query = ViewQuery::parse(&query, body.as_ref(), Precedence::QueryString)?;
        let path = (view_design.clone(), view.clone());
        view_update::update_for_list(served.clone(), scripts.clone(), path, query, &limit).await?;
    }
    let reading = scripts.clone();
    let rows = blocking(move || {
        let body: Option<&Value> = body.as_ref();
        match view.as_str() {
            ALL_DOCUMENTS => listing::list_rows(&served, &query, body, &show),
            view => view::list_rows(served.clone(), &reading, &view_design, view, (&query, body), &show),
        }
    });
    let rows = limit.check(rows.await)?;
    let rendered = render(inputs, scripts, &function, rows, request, (&variant, if_none_match.as_deref()));
    limit.check(rendered.await)
}

/// Calls the function with rows, unless the client has the result.
async fn render(
    inputs: FunctionInputs,
    scripts: Arc<Scripts>,
    function: &str,
    rows: ListRows,
    request: String,
    (variant, if_none_match): (&str, Option<&str>),
) -> Result<HttpResponse> {
    let etag = rendered_etag(&[inputs.revisions()[0], &rows.state, variant]);
    if if_none_match.is_some_and(|tags| has_etag(tags, &etag)) {
        return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
    }
    let function = function.to_owned();
    blocking(move || {
        let functions = inputs.functions(&scripts)?;
        let lines = String::from_utf8(rows.lines).map_err(|_| Failure::internal("rows were printed as no text"))?;
        let arguments = [Value::Object(rows.head).to_json(), request, lines];
        let result = functions.call(CallKind::List, &["lists", &function], &[arguments])?.pop();
        rendered(result, &etag)
    })
    .await
}

/// The rows of a virtual database: those of the view's own route.
async fn rows_of_whole(call: &mut Call, design: String, view: String, body: Bytes) -> Result<ListRows> {
    let mut parameters = Parameters::default();
    parameters.push("db", call.parameter("db")?.to_owned());
    parameters.push("ddoc", design);
    let is_of_view = view != ALL_DOCUMENTS;
    parameters.push("view", view);
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    let mut asked = call.derived(method, parameters, call.query.clone(), Some(body));
    asked.virtual_database = call.virtual_database.take();
    let answer = match is_of_view {
        true => spread::view_rows(asked).await?,
        false => spread::document_rows(asked).await?,
    };
    let timeouts = BodyTimeout::for_peer(call.state.config.limits.stall_timeout);
    let text = read_all(answer.into_response().into_body(), ROWS_BYTES_MAX, timeouts, Some(&call.reservation)).await?;
    let state = blake3::hash(&text).to_hex().to_string();
    let Value::Object(mut head) = read_json_within(&text, JsonPurpose::Documents, &call.reservation).await? else {
        return Err(Failure::internal("a view has no rows"));
    };
    let rows = head.remove("rows");
    let mut list = ListRows { head, state, ..ListRows::default() };
    for row in rows.as_ref().and_then(Value::as_array).unwrap_or_default() {
        row.write_json(&mut list.lines);
        list.end_row()?;
    }
    Ok(list)
}
