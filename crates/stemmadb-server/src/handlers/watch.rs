//! The route `_watch`: live queries.

use crate::app::Call;
use crate::error::Result;
use crate::http::HttpResponse;
use crate::watch::{WatchRequest, watch};

/// `GET /{db}/_watch`, `POST /{db}/_watch`
pub(crate) async fn watch_query(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let request = WatchRequest::parse(&mut call, &served).await?;
    watch(call, served, request)
}
