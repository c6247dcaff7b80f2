//! Routes of the feed.

use crate::changes::{Request, feed};
use crate::error::Result;
use crate::http::{Answer, Call};

/// `GET /{db}/_changes`, `POST /{db}/_changes`
pub(crate) async fn changes(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let request = Request::parse(&mut call, &served).await?;
    let standing = call.standing();
    feed(call.state, served, request, standing).await
}
