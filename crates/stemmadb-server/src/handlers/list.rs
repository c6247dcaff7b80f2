//! The route `_list`: a function of a design document renders the rows of a view.
//!
//! The function gets all rows at once, so their number is limited by the memory of the script engine and by
//! [`ROWS_BYTES_MAX`].

use hyper::StatusCode;
use hyper::header::ETAG;
use stemmadb::Value;

use super::document::has_etag;
use super::row_parameters::Precedence;
use super::show::{rendered, rendered_etag, variant_of};
use super::view_query::ViewQuery;
use super::{listing, view, view_update};
use crate::app::Call;
use crate::design::{self, DesignFunctions, request_value};
use crate::documents::parse_show_options;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, TimeLimit, blocking, read_json};
use crate::script::CallKind;

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
    let served = call.open_database().await?;
    let text = call.json_text().await?;
    call.reservation.grow(text.len().saturating_mul(super::update::MEMORY_FACTOR)).await?;
    let body = if text.is_empty() { None } else { Some(read_json(&text, JsonPurpose::Parameters)?) };
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let view_design = call.parameters.get("other").unwrap_or(&design).to_owned();
    let view = call.parameter("view")?.to_owned();
    let request_body = String::from_utf8_lossy(&text);
    let request = request_value(&served, &call.user, &call.parts, &call.query, &request_body, None).to_json();
    let show = parse_show_options(&call.query)?;
    let (query, scripts) = (call.query.clone(), call.state.scripts.clone());
    let variant = variant_of(&call) + &request_body;
    let if_none_match = call.header("if-none-match").map(str::to_owned);
    let limit = TimeLimit::start(call.state.config.limits.query_time);
    if view != ALL_DOCUMENTS {
        let query = ViewQuery::parse(&query, body.as_ref(), Precedence::QueryString)?;
        let path = (view_design.clone(), view.clone());
        view_update::update_for_list(served.clone(), scripts.clone(), path, query, &limit).await?;
    }
    let work = move || {
        let snapshot = served.database().snapshot()?;
        let design = design::open(&snapshot, &design)?;
        let functions = DesignFunctions::new(&served, &scripts, &design)?;
        let body: Option<&Value> = body.as_ref();
        let rows = match view.as_str() {
            ALL_DOCUMENTS => listing::list_rows(&served, &query, body, &show)?,
            view => view::list_rows(served.clone(), &scripts, &view_design, view, (&query, body), &show)?,
        };
        let etag = rendered_etag(&[&design.revision().to_string(), &rows.state, &variant]);
        if if_none_match.is_some_and(|tags| has_etag(&tags, &etag)) {
            return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
        }
        let lines = String::from_utf8(rows.lines).map_err(|_| Failure::internal("rows were printed as no text"))?;
        let arguments = [Value::Object(rows.head).to_json(), request, lines];
        let result = functions.call(CallKind::List, &["lists", &function], &[arguments])?.pop();
        rendered(result, &etag)
    };
    limit.check(blocking(work).await)
}
