//! Waiting for changes of a database on a server, without a thread.

use std::time::Duration;

use hyper::Method;
use hyper_util::client::legacy::connect::Connect;
use stemmadb::Value;

use crate::foundation::Body;
use crate::peer::{HttpPeer, sequence_text};
use crate::url::encode_segment;

impl<C: Connect + Clone + Send + Sync + 'static> HttpPeer<C> {
    /// Waits until the database may have changes after a position of its feed, at most for `timeout`. Holds no thread,
    /// unlike [`Peer::wait`](stemmadb::replication::Peer::wait).
    ///
    /// # Errors
    /// The error that the server returns; `Unavailable` if it does not answer.
    #[doc(hidden)]
    pub async fn changed(&self, since: &Value, timeout: Duration) -> stemmadb::Result<()> {
        let since = encode_segment(&sequence_text(since));
        let milliseconds = timeout.as_millis();
        let path = format!("/_changes?style=all_docs&feed=longpoll&limit=1&timeout={milliseconds}&since={since}");
        let patience = timeout + self.limits.stall_timeout;
        let response = self.send(Method::GET, &path, None, Body::Full(None), patience).await?;
        self.read_response(response).await.map(drop)
    }
}
