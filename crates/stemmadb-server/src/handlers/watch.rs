//! The route `_watch`: live queries.

use crate::app::Call;
use crate::error::Result;
use crate::http::HttpResponse;
use crate::watch::{WatchRequest, watch, watch_virtual};

/// `GET /{db}/_watch`, `POST /{db}/_watch`
pub(crate) async fn watch_query(mut call: Call) -> Result<HttpResponse> {
    if let Some(entered) = &call.virtual_database {
        let open = entered.open.clone();
        let request = WatchRequest::parse(&mut call, &open.own.clone()).await?;
        // A live query lasts long, and holds back no move.
        call.virtual_database = None;
        return watch_virtual(call, open, request);
    }
    let served = call.open_database().await?;
    let request = WatchRequest::parse(&mut call, &served).await?;
    watch(call, served, request)
}
