//! The changes feed of a virtual database: the changes of its shards, merged.
//!
//! A position is a token that names the sequence of each shard. A document that changes its shard may be reported again
//! with the same revision.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use stemmadb::{Change, Document, ErrorKind, Value};
use stemmadb_federation::{VirtualChangeRows, VirtualChanges};
use stemmadb_http::url::encode_segment;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::app::Call;
use crate::auth::Restriction;
use crate::changes::{
    BATCH_BYTES, ChangeDocument, ChangeRow, ChangesFilter, FeedClient, FeedMode, PENDING_COUNTED, live_response,
    parse_heartbeat, parse_paths, shows_sequence,
};
use crate::design::document_json;
use crate::documents::{DocumentPrinter, ShowOptions, parse_show_options, readable_leaves};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, Query, blocking, initial_read, streamed};
use crate::virtual_databases::{OpenVirtual, Shard, ShardSignals};

/// The parameters of a request.
struct VirtualChangesRequest {
    feed: FeedMode,
    since: Option<String>,
    limit: u64,
    all_leaves: bool,
    include_docs: bool,
    show: ShowOptions,
    /// The parameters of `show`, for other servers.
    document_parameters: String,
    seq_interval: u64,
    heartbeat: Option<Duration>,
    timeout: Duration,
    filter: ChangesFilter,
    /// Patterns of paths, one of which a document has; none: any document.
    paths: Vec<String>,
    descending: bool,
    /// The documents that the user may read; `None`: all.
    restriction: Option<Restriction>,
}

impl VirtualChangesRequest {
    async fn parse(call: &mut Call, open: &OpenVirtual) -> Result<Self> {
        let body = match call.parts.method == Method::POST {
            true => call.json_if_any().await?,
            false => None,
        };
        let filter = ChangesFilter::parse(call, &open.own, body.as_ref()).await?;
        let query = &call.query;
        let in_body = |name: &str| body.as_ref().and_then(|body| body.get(name));
        let paths = parse_paths(&open.own, query, body.as_ref())?;
        let header = call.header("last-event-id");
        let since = header.or_else(|| query.text("since")).map(str::to_owned);
        let since = since.or_else(|| in_body("since").and_then(Value::as_str).map(str::to_owned));
        let since = match since.as_deref().map(|since| since.trim_matches('"')) {
            None | Some("" | "0") => None,
            Some("now") => Some(open.database.changes().newest_token()),
            Some(token) => Some(token.to_owned()),
        };
        Ok(VirtualChangesRequest {
            feed: FeedMode::parse(query.text("feed"))?,
            since,
            limit: query.number("limit")?.unwrap_or(u64::MAX),
            all_leaves: query.text("style") == Some("all_docs"),
            include_docs: query.flag("include_docs", false)?,
            show: parse_show_options(query)?,
            document_parameters: document_parameters(query),
            seq_interval: query.number("seq_interval")?.unwrap_or(1).max(1),
            heartbeat: parse_heartbeat(query)?,
            timeout: query.number("timeout")?.map_or(call.state.config.limits.feed_timeout, Duration::from_millis),
            filter,
            paths,
            descending: query.flag("descending", false)?,
            restriction: call.restriction.clone(),
        })
    }

    /// Applies the filters that the library evaluates.
    fn restrict(&self, changes: VirtualChanges) -> Result<VirtualChanges> {
        let chosen = match &self.filter {
            ChangesFilter::Selector(selector) => Some((**selector).clone()),
            _ => None,
        };
        let selector = match (self.restriction.as_ref().map(Restriction::selector), chosen) {
            (Some(readable), Some(chosen)) => Some(readable.and(chosen)),
            (readable, chosen) => readable.or(chosen),
        };
        // Documents that the client could read before are reported as deleted.
        let changes = match selector {
            Some(selector) => changes.selector(&selector, self.restriction.is_some())?,
            None => changes,
        };
        Ok(if self.paths.is_empty() { changes } else { changes.paths(&self.paths) })
    }
}

/// The parameters that say how documents are printed, to follow others.
fn document_parameters(query: &Query) -> String {
    let names = ["attachments", "att_encoding_info", "conflicts", "revs", "revs_info"];
    let given = names.iter().filter_map(|name| Some((name, query.text(name)?)));
    given.map(|(name, text)| format!("&{name}={}", encode_segment(text))).collect()
}

/// `GET /{db}/_changes`, `POST /{db}/_changes`
pub(super) async fn changes(mut call: Call) -> Result<HttpResponse> {
    let open = call.entered()?.open.clone();
    let request = VirtualChangesRequest::parse(&mut call, &open).await?;
    // A feed lasts long, and holds back no move.
    drop(call.virtual_database.take());
    // A malformed token fails the request and not the open feed.
    let (checked, token) = (open.clone(), request.since.clone());
    blocking(move || match changes_after(&checked, token.as_deref()).limit(0).run() {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(error.into()),
        _ => Ok(()),
    })
    .await?;
    let (feed, since, descending) = (request.feed, request.since.clone(), request.descending);
    let mut rows = Feed { open, request: Arc::new(request), since, count: 0, descending, descent: None };
    if feed == FeedMode::Normal {
        let stall_timeout = call.state.config.limits.stall_timeout;
        return streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
            out.buffer.extend_from_slice(b"{\"results\":[\n");
            while rows.write_batch(&mut out.buffer)? {
                out.flush_if_full().await;
            }
            out.buffer.extend_from_slice(rows.ending()?.as_bytes());
            Ok(())
        })
        .await;
    }
    let (state, session_check) = (call.state.clone(), call.session_check());
    Ok(live_response(feed, session_check, state.config.limits.stall_timeout, |client| async move {
        let (request, open) = (rows.request.clone(), rows.open.clone());
        let (rows, stopping) = (Some(rows), state.stopping.clone());
        LiveFeed { rows, request, open, client, stopping, idle_since: Instant::now() }.run().await
    }))
}

/// The changes after a position.
fn changes_after(open: &OpenVirtual, since: Option<&str>) -> VirtualChanges {
    let changes = open.database.changes();
    since.into_iter().fold(changes, |changes, since| changes.after(since))
}

/// The changes that are passed to a filter function in one call.
const FILTER_BATCH: usize = 256;

/// A change that was read, and the position after it if it is known already.
struct ReadChange {
    change: Change,
    token: Option<String>,
}

/// The newest changes that are read first, and where reading goes on after them.
struct Descent {
    rows: VirtualChangeRows,
    newest: String,
}

/// A feed and its progress.
struct Feed {
    open: Arc<OpenVirtual>,
    request: Arc<VirtualChangesRequest>,
    /// The token of the position; `None` is the beginning.
    since: Option<String>,
    /// The number of rows sent.
    count: u64,
    /// Whether the changes that exist are sent in descending order.
    descending: bool,
    descent: Option<Descent>,
}

impl Feed {
    fn is_complete(&self) -> bool {
        self.count >= self.request.limit || self.request.feed == FeedMode::Longpoll && self.count > 0
    }

    fn rows(&self) -> Result<VirtualChangeRows> {
        let with_documents = self.request.include_docs || self.request.filter.needs_documents();
        let changes = changes_after(&self.open, self.since.as_deref()).documents(with_documents);
        // Documents that have moved are filtered after the limit.
        let is_unfiltered = matches!(self.request.filter, ChangesFilter::All)
            && self.request.restriction.is_none()
            && self.request.paths.is_empty();
        let has_limit = self.descending && is_unfiltered;
        let changes = match usize::try_from(self.request.limit) {
            Ok(limit) if has_limit => changes.limit(limit),
            _ => changes,
        };
        Ok(self.request.restrict(changes.descending(self.descending))?.run()?)
    }

    /// Writes the next rows; returns whether there may be more. Blocks.
    fn write_batch(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if self.descending {
            return self.write_descending(out);
        }
        let epoch = self.open.database.epoch();
        let read = match self.rows() {
            Ok(mut rows) => self.write_rows(&mut rows, out)?,
            Err(failure) => Err(failure),
        };
        match read {
            // A shard on another server was deleted, because its documents have moved: others report them.
            Err(_) if self.open.database.epoch() != epoch => Ok(true),
            read => read,
        }
    }

    /// Writes the next rows of those that exist, from the newest to the oldest.
    fn write_descending(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let mut descent = match self.descent.take() {
            Some(descent) => descent,
            None => Descent { newest: self.open.database.changes().newest_token(), rows: self.rows()? },
        };
        let has_more = self.write_rows(&mut descent.rows, out)??;
        match has_more {
            true => self.descent = Some(descent),
            // A feed that waits goes on with newer changes.
            false if matches!(self.request.feed, FeedMode::Continuous | FeedMode::EventSource) => {
                (self.descending, self.since) = (false, Some(descent.newest));
            }
            false => {}
        }
        Ok(has_more)
    }

    /// As [`Feed::write_batch`]; the inner error is one of reading the changes, all of which were written before.
    fn write_rows(&mut self, rows: &mut VirtualChangeRows, out: &mut Vec<u8>) -> Result<Result<bool>> {
        let written = self.write_read(rows, out)?;
        let is_at_end = matches!(written, Ok(false)) && self.count < self.request.limit;
        if is_at_end || !self.request.filter.needs_documents() {
            self.since = Some(rows.token());
        }
        Ok(written)
    }

    fn write_read(&mut self, rows: &mut VirtualChangeRows, out: &mut Vec<u8>) -> Result<Result<bool>> {
        let begin = out.len();
        while self.count < self.request.limit {
            if out.len() - begin >= BATCH_BYTES {
                return Ok(Ok(true));
            }
            let batch = match self.read_batch(rows) {
                Ok(batch) => batch,
                Err(failure) => return Ok(Err(failure)),
            };
            if batch.is_empty() {
                break;
            }
            let (changes, tokens): (Vec<_>, Vec<_>) = batch.into_iter().map(|read| (read.change, read.token)).unzip();
            let print = |change: &Change, document: &Document| self.printed(change.id.as_str(), document);
            let accepted = self.request.filter.evaluate_with(&changes, print)?;
            for ((change, token), is_accepted) in changes.into_iter().zip(tokens).zip(accepted) {
                if self.count >= self.request.limit {
                    break;
                }
                if is_accepted && self.is_requested(&change) {
                    self.write_row(&change, || token.clone().unwrap_or_else(|| rows.token()), out)?;
                    self.count += 1;
                }
                self.since = token.or(self.since.take());
            }
        }
        Ok(Ok(false))
    }

    /// The next changes. Only a filter function takes several at a time.
    fn read_batch(&self, rows: &mut VirtualChangeRows) -> Result<Vec<ReadChange>> {
        let has_function = self.request.filter.needs_documents();
        let mut batch = Vec::new();
        while batch.len() < if has_function { FILTER_BATCH } else { 1 } {
            let Some(change) = rows.next().transpose()? else { break };
            let token = has_function.then(|| rows.token());
            batch.push(ReadChange { change, token });
        }
        Ok(batch)
    }

    fn is_requested(&self, change: &Change) -> bool {
        !matches!(&self.request.filter, ChangesFilter::Ids(ids) if !ids.contains(change.id.as_str()))
    }

    /// A document as functions receive it. Blocks.
    fn printed(&self, id: &str, document: &Document) -> Result<String> {
        match self.open.layout().shard_of(id) {
            Shard::Here(served) => Ok(document_json(&served, document)?),
            Shard::There(remote) => {
                let text = String::from_utf8(remote.print(document, "")?);
                text.map_err(|_| Failure::internal("a shard has printed a document as no text"))
            }
        }
    }

    fn write_row(&self, change: &Change, token: impl Fn() -> String, out: &mut Vec<u8>) -> Result<()> {
        let request = &self.request;
        let is_event = request.feed == FeedMode::EventSource;
        // Writing a token takes longer than the rest of the row.
        let has_sequence = is_event || shows_sequence(request.limit, self.count, request.seq_interval);
        let sequence = has_sequence.then(token);
        let all_leaves = if request.all_leaves { &change.leaves[..] } else { &change.leaves[..1] };
        let (mut printed, mut stored, mut leaves) = (None, None, Cow::Borrowed(all_leaves));
        let document = change.document.as_ref().filter(|_| request.include_docs);
        let is_restricted = request.restriction.is_some();
        if document.is_some() || is_restricted {
            match self.open.layout().shard_of(change.id.as_str()) {
                Shard::Here(served) => {
                    let snapshot = served.database().snapshot()?;
                    leaves = readable_leaves(&snapshot, change.id.as_str(), all_leaves, request.restriction.as_ref())?;
                    stored = document.map(|document| (served, snapshot, document));
                }
                Shard::There(remote) => {
                    // Whether the user may read other branches is not known here.
                    leaves = Cow::Borrowed(if is_restricted { &all_leaves[..1] } else { all_leaves });
                    let parameters = if is_restricted { "" } else { &request.document_parameters };
                    printed = document.map(|document| remote.print(document, parameters)).transpose()?;
                }
            }
        }
        let without_branches = request.show.without_branches();
        let show = if is_restricted && change.deleted { &without_branches } else { &request.show };
        let stored = stored.as_ref().map(|(served, snapshot, document)| {
            ChangeDocument::Stored(DocumentPrinter { served, snapshot, show }, document)
        });
        let row = ChangeRow {
            feed: request.feed,
            index: self.count,
            sequence: sequence.as_deref(),
            event_id: sequence.as_deref().unwrap_or_default(),
            change,
            leaves: &leaves,
            document: printed.map(ChangeDocument::Printed).or(stored),
        };
        row.write(out)
    }

    /// The text after the last row. Blocks.
    fn ending(&self) -> Result<String> {
        let last = match &self.since {
            Some(since) => since.clone(),
            None => "0".to_owned(),
        };
        let pending = match (self.count >= self.request.limit && !self.descending, &self.request.restriction) {
            (false, _) => 0,
            (true, None) => self.rows()?.pending(PENDING_COUNTED)?,
            // Others are not to be told.
            (true, Some(_)) => {
                self.rows()?.take(PENDING_COUNTED as usize).collect::<stemmadb::Result<Vec<_>>>()?.len() as u64
            }
        };
        Ok(self.request.feed.ending(&last, pending))
    }
}

/// A feed that stays open and waits for changes.
struct LiveFeed {
    /// None while it is read.
    rows: Option<Feed>,
    request: Arc<VirtualChangesRequest>,
    open: Arc<OpenVirtual>,
    client: FeedClient,
    stopping: watch::Receiver<bool>,
    idle_since: Instant,
}

/// Why a waiting feed wakes up.
enum WakeReason {
    Changes,
    Heartbeat,
    End,
}

impl LiveFeed {
    async fn run(&mut self) -> Result<()> {
        if self.request.feed == FeedMode::Longpoll {
            self.client.send("{\"results\":[\n".into()).await?;
        }
        loop {
            // Before the feed reads, so that nothing is missed in between.
            let mut signals = self.open.signals();
            self.catch_up().await?;
            if self.rows.as_ref().is_none_or(Feed::is_complete) {
                break;
            }
            match self.wait(&mut signals).await? {
                WakeReason::Changes => {}
                WakeReason::Heartbeat => self.client.send(self.request.feed.heartbeat().into()).await?,
                WakeReason::End => break,
            }
        }
        let rows = self.take_rows()?;
        self.client.send(initial_read(move || rows.ending()).await?.into()).await
    }

    fn take_rows(&mut self) -> Result<Feed> {
        self.rows.take().ok_or_else(|| Failure::internal("a feed is read twice"))
    }

    async fn catch_up(&mut self) -> Result<()> {
        loop {
            let mut rows = self.take_rows()?;
            let before = rows.count;
            let read = move || {
                let mut batch = Vec::new();
                let has_more = rows.write_batch(&mut batch)?;
                Ok((rows, batch, has_more))
            };
            let (rows, batch, has_more) = match self.request.filter.needs_documents() {
                // A function may take seconds.
                true => blocking(read).await?,
                false => initial_read(read).await?,
            };
            if rows.count > before {
                self.idle_since = Instant::now();
            }
            self.rows = Some(rows);
            if !batch.is_empty() {
                self.client.send(batch.into()).await?;
            }
            if !has_more {
                return Ok(());
            }
        }
    }

    async fn wait(&mut self, signals: &mut ShardSignals) -> Result<WakeReason> {
        let request = self.request.clone();
        let deadline = match request.heartbeat {
            Some(heartbeat) => Instant::now() + heartbeat,
            None => self.idle_since + request.timeout,
        };
        tokio::select! {
            is_open = signals.changed() => Ok(if is_open { WakeReason::Changes } else { WakeReason::End }),
            _ = self.stopping.wait_for(|stopping| *stopping) => Ok(WakeReason::End),
            () = sleep_until(deadline) => match request.heartbeat {
                Some(_) => Ok(WakeReason::Heartbeat),
                None => Ok(WakeReason::End),
            },
            failure = self.client.left() => Err(failure),
        }
    }
}
