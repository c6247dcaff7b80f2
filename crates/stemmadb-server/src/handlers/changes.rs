//! The route `_changes`.

use crate::app::Call;
use crate::changes::{ChangesRequest, feed};
use crate::error::Result;
use crate::http::HttpResponse;

/// `GET /{db}/_changes`, `POST /{db}/_changes`
pub(crate) async fn changes(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        return super::virtual_changes::changes(call).await;
    }
    let served = call.open_database().await?;
    let request = ChangesRequest::parse(&mut call, &served).await?;
    let session_check = call.session_check();
    feed(call.state, served, request, session_check).await
}
