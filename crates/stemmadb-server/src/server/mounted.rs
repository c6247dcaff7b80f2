//! The server as a service in a program's own HTTP server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Request, Response};
use parking_lot::Mutex;

use super::serve;
use crate::app::{RecordedBody, ServerState};
use crate::http::{BodyError, ClientBody, PeerAddress};

/// Handles requests of a program's own HTTP server; see [`Server::service`](crate::Server::service). Cheap to clone.
///
/// The program's server has to limit heads, connections and idle times itself, and to drive upgrades if `_watch` and
/// `_subscribe` are to be served over WebSockets. Authentication, rights and the limits of bodies are those of the
/// server's configuration.
#[derive(Clone)]
pub struct MountedService {
    pub(crate) state: Arc<ServerState>,
    pub(crate) peer: Option<SocketAddr>,
}

impl MountedService {
    /// The service for a client at this address, which the log, and the lockout after wrong passwords, name. Without an
    /// address, all clients share the lockout of a name.
    #[must_use]
    pub fn for_peer(&self, peer: SocketAddr) -> Self {
        MountedService { state: self.state.clone(), peer: Some(peer) }
    }

    /// Handles one request. Its path begins with the name of a database: remove the prefix at which it is mounted.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let mut request = request.map(|body| ClientBody::Boxed(Mutex::new(body.map_err(Into::into).boxed_unsync())));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(PeerAddress(peer));
        }
        let Ok(response) = serve(self.state.clone(), request, Arc::default(), None).await;
        response.map(ResponseBody)
    }
}

/// The body of a response.
pub struct ResponseBody(RecordedBody);

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

type ServiceFuture = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl<B> tower_service::Service<Request<B>> for MountedService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ServiceFuture {
        hyper::service::Service::call(&*self, request)
    }
}

impl<B> hyper::service::Service<Request<B>> for MountedService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn call(&self, request: Request<B>) -> ServiceFuture {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}
