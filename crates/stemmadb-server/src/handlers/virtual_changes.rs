//! The changes feed of a virtual database: the changes of its shards, merged.
//!
//! A position is a token that names the sequence of each shard. A document that changes its shard may be reported again
//! with the same revision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use stemmadb::{Change, ErrorKind, Value};
use stemmadb_federation::{VirtualChangeRows, VirtualChanges};
use stemmadb_http::url::encode_segment;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::app::Call;
use crate::changes::{
    BATCH_BYTES, ChangeDocument, ChangeRow, FeedClient, FeedMode, PENDING_COUNTED, live_response, parse_heartbeat,
    parse_ids, shows_sequence,
};
use crate::documents::{DocumentPrinter, ShowOptions, parse_show_options};
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
    /// The documents whose changes are reported; `None`: all.
    ids: Option<BTreeSet<String>>,
    designs_only: bool,
}

impl VirtualChangesRequest {
    async fn parse(call: &mut Call, open: &OpenVirtual) -> Result<Self> {
        let body = match call.parts.method == Method::POST {
            true => call.json_if_any().await?,
            false => None,
        };
        let query = &call.query;
        if query.flag("descending", false)? {
            return Err(unsupported("`descending`"));
        }
        let in_body = |name: &str| body.as_ref().and_then(|body| body.get(name));
        if query.text("path").is_some() || in_body("paths").is_some() {
            return Err(unsupported("patterns of paths"));
        }
        let (ids, designs_only) = match query.text("filter") {
            None | Some("") => (None, false),
            Some("_doc_ids") => (Some(parse_ids(query, body.as_ref())?), false),
            Some("_design") => (None, true),
            Some(filter) => return Err(unsupported(&format!("the filter `{filter}`"))),
        };
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
            ids,
            designs_only,
        })
    }

    fn accepts(&self, change: &Change) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(change.id.as_str()))
            && (!self.designs_only || change.id.is_design())
    }
}

/// The parameters that say how documents are printed, to follow others.
fn document_parameters(query: &Query) -> String {
    let names = ["attachments", "att_encoding_info", "conflicts", "revs", "revs_info"];
    let given = names.iter().filter_map(|name| Some((name, query.text(name)?)));
    given.map(|(name, text)| format!("&{name}={}", encode_segment(text))).collect()
}

fn unsupported(what: &str) -> Failure {
    Failure::not_implemented(format!(
        "The changes feed of a virtual database has no {what}: read all changes, or those of `_doc_ids` or `_design`."
    ))
}

/// `GET /{db}/_changes`, `POST /{db}/_changes`
pub(super) async fn changes(mut call: Call) -> Result<HttpResponse> {
    let entered = call.virtual_database.take();
    // A feed lasts long, and holds back no move.
    let open = entered.map(|entered| entered.open.clone()).ok_or_else(Failure::no_database)?;
    let request = VirtualChangesRequest::parse(&mut call, &open).await?;
    // A malformed token fails the request and not the open feed.
    let (checked, token) = (open.clone(), request.since.clone());
    blocking(move || match changes_after(&checked, token.as_deref()).limit(0).run() {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(error.into()),
        _ => Ok(()),
    })
    .await?;
    let (feed, since) = (request.feed, request.since.clone());
    let mut rows = Feed { open, request: Arc::new(request), since, count: 0 };
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
        LiveFeed { rows, client, stopping: state.stopping.clone(), idle_since: Instant::now() }.run().await
    }))
}

/// The changes after a position.
fn changes_after(open: &OpenVirtual, since: Option<&str>) -> VirtualChanges {
    let changes = open.database.changes();
    since.into_iter().fold(changes, |changes, since| changes.after(since))
}

/// A feed and its progress.
#[derive(Clone)]
struct Feed {
    open: Arc<OpenVirtual>,
    request: Arc<VirtualChangesRequest>,
    /// The token of the position; `None` is the beginning.
    since: Option<String>,
    /// The number of rows sent.
    count: u64,
}

impl Feed {
    fn is_complete(&self) -> bool {
        self.count >= self.request.limit || self.request.feed == FeedMode::Longpoll && self.count > 0
    }

    fn rows(&self) -> Result<VirtualChangeRows> {
        Ok(changes_after(&self.open, self.since.as_deref()).documents(self.request.include_docs).run()?)
    }

    /// Writes the next rows; returns whether there may be more. Blocks.
    fn write_batch(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let epoch = self.open.database.epoch();
        let read = match self.rows() {
            Ok(mut rows) => {
                let read = self.write_rows(&mut rows, out)?;
                self.since = Some(rows.token());
                read
            }
            Err(failure) => Err(failure),
        };
        match read {
            // A shard on another server was deleted, because its documents have moved: others report them.
            Err(_) if self.open.database.epoch() != epoch => Ok(true),
            read => read,
        }
    }

    /// As [`Feed::write_batch`]; the inner error is one of reading the changes, all of which were written before.
    fn write_rows(&mut self, rows: &mut VirtualChangeRows, out: &mut Vec<u8>) -> Result<Result<bool>> {
        let begin = out.len();
        while self.count < self.request.limit {
            if out.len() - begin >= BATCH_BYTES {
                return Ok(Ok(true));
            }
            let change = match rows.next().transpose() {
                Ok(Some(change)) => change,
                Ok(None) => break,
                Err(error) => return Ok(Err(error.into())),
            };
            if self.request.accepts(&change) {
                self.write_row(&change, rows, out)?;
                self.count += 1;
            }
        }
        Ok(Ok(false))
    }

    fn write_row(&self, change: &Change, rows: &VirtualChangeRows, out: &mut Vec<u8>) -> Result<()> {
        let request = &self.request;
        let is_event = request.feed == FeedMode::EventSource;
        // Writing a token takes longer than the rest of the row.
        let has_sequence = is_event || shows_sequence(request.limit, self.count, request.seq_interval);
        let sequence = if has_sequence { Some(rows.token()) } else { None };
        let (mut printed, mut stored) = (None, None);
        if let Some(document) = change.document.as_ref().filter(|_| request.include_docs) {
            match self.open.layout().shard_of(change.id.as_str()) {
                Shard::Here(served) => {
                    let snapshot = served.database().snapshot()?;
                    stored = Some((served, snapshot, document));
                }
                Shard::There(remote) => printed = Some(remote.print(document, &request.document_parameters)?),
            }
        }
        let stored = stored.as_ref().map(|(served, snapshot, document)| {
            ChangeDocument::Stored(DocumentPrinter { served, snapshot, show: &request.show }, document)
        });
        let row = ChangeRow {
            feed: request.feed,
            index: self.count,
            sequence: sequence.as_deref(),
            event_id: sequence.as_deref().unwrap_or_default(),
            change,
            leaves: if request.all_leaves { &change.leaves } else { &change.leaves[..1] },
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
        let pending = if self.count >= self.request.limit { self.rows()?.pending(PENDING_COUNTED)? } else { 0 };
        Ok(self.request.feed.ending(&last, pending))
    }
}

/// A feed that stays open and waits for changes.
struct LiveFeed {
    rows: Feed,
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
        if self.rows.request.feed == FeedMode::Longpoll {
            self.client.send("{\"results\":[\n".into()).await?;
        }
        loop {
            // Before the feed reads, so that nothing is missed in between.
            let mut signals = self.rows.open.signals();
            self.catch_up().await?;
            if self.rows.is_complete() {
                break;
            }
            match self.wait(&mut signals).await? {
                WakeReason::Changes => {}
                WakeReason::Heartbeat => self.client.send(self.rows.request.feed.heartbeat().into()).await?,
                WakeReason::End => break,
            }
        }
        let rows = self.rows.clone();
        self.client.send(initial_read(move || rows.ending()).await?.into()).await
    }

    async fn catch_up(&mut self) -> Result<()> {
        loop {
            let (mut rows, before) = (self.rows.clone(), self.rows.count);
            let read = move || {
                let mut batch = Vec::new();
                let has_more = rows.write_batch(&mut batch)?;
                Ok((rows, batch, has_more))
            };
            let (rows, batch, has_more) = initial_read(read).await?;
            self.rows = rows;
            if self.rows.count > before {
                self.idle_since = Instant::now();
            }
            if !batch.is_empty() {
                self.client.send(batch.into()).await?;
            }
            if !has_more {
                return Ok(());
            }
        }
    }

    async fn wait(&mut self, signals: &mut ShardSignals) -> Result<WakeReason> {
        let request = self.rows.request.clone();
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
