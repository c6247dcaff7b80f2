//! Routes of the feed.

use crate::app::Call;
use crate::changes::{Request, feed};
use crate::error::Result;
use crate::http::Answer;

/// `GET /{db}/_changes`, `POST /{db}/_changes`
pub(crate) async fn changes(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let request = Request::parse(&mut call, &served).await?;
    let session_check = call.session_check();
    feed(call.state, served, request, session_check).await
}
