//! Responses of `_changes`: a single list, or a live feed that waits for further changes.

use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::Sequence;

use super::format::{PENDING_COUNTED, live_response};
use super::live::LiveFeed;
use super::request::{ChangesRequest, FeedMode};
use super::rows::{ChangeRows, FeedPosition};
use crate::accounts::SessionCheck;
use crate::app::ServerState;
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{HttpResponse, streamed};

/// Creates the response to a `_changes` request.
pub(crate) async fn feed(
    state: Arc<ServerState>,
    served: Arc<ServedDatabase>,
    request: ChangesRequest,
    session_check: SessionCheck,
) -> Result<HttpResponse> {
    let request = Arc::new(request);
    if request.feed == FeedMode::Normal {
        return normal(&state, served, request).await;
    }
    let (feed, stall_timeout) = (request.feed, state.config.limits.stall_timeout);
    Ok(live_response(feed, session_check, stall_timeout, |client| async move {
        LiveFeed::new(&state, served, request, client).run().await
    }))
}

async fn normal(
    state: &ServerState,
    served: Arc<ServedDatabase>,
    request: Arc<ChangesRequest>,
) -> Result<HttpResponse> {
    streamed(StatusCode::OK, "application/json", state.config.limits.stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut rows = ChangeRows::new(&served, &request, FeedPosition { since: request.since, count: 0 })?;
        while rows.write_batch(&mut out.buffer)? {
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(ending(&served, &request, rows.position())?.as_bytes());
        Ok(())
    })
    .await
}

/// The text after the last row. Blocks if the feed ends at its limit.
pub(super) fn ending(served: &ServedDatabase, request: &ChangesRequest, position: FeedPosition) -> Result<String> {
    let last = served.sequence_text(position.since);
    let pending = if is_cut_off(request, position) { pending(served, request, position.since)? } else { 0 };
    Ok(request.feed.ending(&last, pending))
}

/// Whether the feed ends at its limit, and its ending has the number of further changes.
pub(super) fn is_cut_off(request: &ChangesRequest, position: FeedPosition) -> bool {
    position.count >= request.limit && !request.descending
}

/// The number of changes after `since`: exact below [`PENDING_COUNTED`], otherwise an upper bound, or a lower one for a
/// user who may read only some documents.
fn pending(served: &ServedDatabase, request: &ChangesRequest, since: Sequence) -> Result<u64> {
    let changes = served.database().changes(since)?;
    if let Some(restriction) = &request.restriction {
        let readable =
            changes.selector(&restriction.selector())?.departures(true).limit(PENDING_COUNTED as usize).run();
        return Ok(readable.collect::<stemmadb::Result<Vec<_>>>()?.len() as u64);
    }
    Ok(match changes.count_up_to(PENDING_COUNTED)? {
        PENDING_COUNTED => changes.last_sequence().get() - since.get(),
        count => count,
    })
}
