//! A request that replaces another one, on the way from a handler to the router.

use std::sync::Arc;

use hyper::Request;
use parking_lot::Mutex;

use super::request_body::RequestBody;
use super::response::HttpResponse;

/// A request to handle instead, carried by a response that is never sent.
#[derive(Clone)]
pub(crate) struct RewrittenRequest(Arc<Mutex<Option<Request<RequestBody>>>>);

/// The path that the client requested, if the request was rewritten.
#[derive(Debug, Clone)]
pub(crate) struct RequestedPath(pub(crate) String);

impl RewrittenRequest {
    /// The response that asks the router to handle `request`.
    pub(crate) fn response(request: Request<RequestBody>) -> HttpResponse {
        HttpResponse::empty(hyper::StatusCode::OK).extended(RewrittenRequest(Arc::new(Mutex::new(Some(request)))))
    }

    /// The request that a response carries, if it is one of [`RewrittenRequest::response`].
    pub(crate) fn of(response: &HttpResponse) -> Option<Request<RequestBody>> {
        response.extension::<RewrittenRequest>()?.0.lock().take()
    }
}
