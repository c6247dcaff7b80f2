//! `_watch`: the answer to a query, and what changes in it.

use crate::app::Call;
use crate::error::Result;
use crate::http::Answer;
use crate::watch::{Request, watch};

/// `GET /{db}/_watch`, `POST /{db}/_watch`
pub(crate) async fn follow(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let request = Request::parse(&mut call, &served).await?;
    watch(call, served, request)
}
