//! The route `_bulk_get`: returns documents and revisions in the order of the request, as JSON or as a multipart
//! message whose parts contain the documents and their attachments.

use hyper::StatusCode;
use stemmadb::{Branch, Document, Revision, Snapshot, Value};
use uuid::Uuid;

use super::multipart::{with_following_content, write_document_part};
use crate::app::Call;
use crate::auth::Restriction;
use crate::directory::ServedDatabase;
use crate::documents::{
    DocumentPrinter, FileView, OpenRevs, OpenedRevision, ShowOptions, open_revs, parse_revision, parse_revisions,
    parse_show_options, visible_branches,
};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, ResponseWriter, streamed};
use crate::virtual_databases::Databases;

/// An entry of the request.
struct BulkGetEntry {
    id: String,
    /// The requested revision as text, which may be invalid.
    revision: Option<String>,
    since: Vec<Revision>,
}

impl BulkGetEntry {
    fn parse(value: &Value) -> Result<Self> {
        let id = value.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| Failure::bad_request("document id missed"))?;
        let since = value.get("atts_since").map(parse_revisions).transpose()?.unwrap_or_default();
        let revision = value.get("rev").and_then(Value::as_str).map(str::to_owned);
        Ok(BulkGetEntry { id: id.to_owned(), revision, since })
    }
}

/// A row of the response: the results for one entry.
struct BulkGetRow {
    id: String,
    show: ShowOptions,
    branches: Vec<Branch>,
    results: Vec<BulkGetResult>,
}

enum BulkGetResult {
    Document(Box<Document>),
    /// The requested revision as text, and why it can't be returned.
    Error(Option<String>, Failure),
}

impl BulkGetRow {
    fn open(
        snapshot: &Snapshot,
        entry: BulkGetEntry,
        latest: bool,
        show: &ShowOptions,
        restriction: Option<&Restriction>,
    ) -> Result<Self> {
        let BulkGetEntry { id, revision, since } = entry;
        let content = show.files.content || !since.is_empty();
        let show = ShowOptions { files: FileView { content, since, ..show.files }, ..show.clone() };
        let visible = visible_branches(snapshot, &id, restriction)?;
        let requested = match revision.as_deref().map(parse_revision) {
            Some(Err(failure)) => Err(failure),
            Some(Ok(revision)) => Ok(OpenRevs::These(vec![revision])),
            None if visible.branches.is_empty() => Err(Failure::missing()),
            None => Ok(OpenRevs::All),
        };
        let results = match requested {
            Err(failure) => vec![BulkGetResult::Error(revision, failure)],
            Ok(requested) => {
                let opened = open_revs(snapshot, &id, &visible, &requested, latest, restriction)?.into_iter();
                let results = opened.map(|opened| match opened {
                    OpenedRevision::Document(document) => BulkGetResult::Document(document),
                    OpenedRevision::Missing(revision) => {
                        BulkGetResult::Error(Some(revision.to_string()), Failure::missing())
                    }
                });
                results.collect()
            }
        };
        Ok(BulkGetRow { id, show, branches: visible.branches, results })
    }

    fn write_json(&self, served: &ServedDatabase, snapshot: &Snapshot, out: &mut ResponseWriter) -> Result<()> {
        let printer = DocumentPrinter { served, snapshot, show: &self.show };
        out.buffer.extend_from_slice(b"{\"id\":");
        out.string(&self.id);
        out.buffer.extend_from_slice(b",\"docs\":[");
        for (at, result) in self.results.iter().enumerate() {
            if at > 0 {
                out.buffer.push(b',');
            }
            match result {
                BulkGetResult::Document(document) => {
                    out.buffer.extend_from_slice(b"{\"ok\":");
                    printer.print_with_branches(document, &self.branches, &mut out.buffer)?;
                    out.buffer.push(b'}');
                }
                BulkGetResult::Error(revision, failure) => {
                    out.buffer.extend_from_slice(b"{\"error\":");
                    write_error(&self.id, revision.as_deref(), failure, out);
                    out.buffer.push(b'}');
                }
            }
        }
        out.buffer.extend_from_slice(b"]}");
        Ok(())
    }

    async fn write_parts(
        &self,
        served: &ServedDatabase,
        snapshot: &Snapshot,
        outer: &str,
        out: &mut ResponseWriter,
    ) -> Result<()> {
        let printer = DocumentPrinter { served, snapshot, show: &self.show };
        for result in &self.results {
            let revision = match result {
                BulkGetResult::Document(document) => Some(document.revision().to_string()),
                BulkGetResult::Error(revision, _) => revision.clone(),
            };
            let mut head = format!("\r\n--{outer}\r\nX-Doc-Id: {}\r\n", header_value(&self.id));
            if let Some(revision) = &revision {
                head.push_str(&format!("X-Rev-Id: {}\r\n", header_value(revision)));
            }
            out.buffer.extend_from_slice(head.as_bytes());
            match result {
                BulkGetResult::Document(document) => {
                    write_document_part(&printer, document, &self.branches, out).await?
                }
                BulkGetResult::Error(_, failure) => {
                    out.buffer.extend_from_slice(b"Content-Type: application/json; error=\"true\"\r\n\r\n");
                    write_error(&self.id, revision.as_deref(), failure, out);
                }
            }
            out.flush_if_full().await;
        }
        Ok(())
    }
}

/// Replaces control characters, so that the text can't end the header line.
fn header_value(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

fn write_error(id: &str, revision: Option<&str>, failure: &Failure, out: &mut ResponseWriter) {
    out.buffer.extend_from_slice(b"{\"id\":");
    out.string(id);
    out.buffer.extend_from_slice(b",\"rev\":");
    out.string(revision.unwrap_or("undefined"));
    out.buffer.extend_from_slice(b",\"error\":");
    out.string(failure.error());
    out.buffer.extend_from_slice(b",\"reason\":");
    out.string(failure.reason());
    out.buffer.push(b'}');
}

/// Whether the client accepts multipart responses but not JSON.
fn wants_multipart(accept: &str) -> bool {
    let has = |kind: &str| accept.contains(kind);
    (has("multipart/mixed") || has("multipart/related")) && !has("application/json")
}

/// `POST /{db}/_bulk_get`
pub(crate) async fn bulk_get(mut call: Call) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    let show = parse_show_options(&call.query)?;
    let latest = call.query.flag("latest", false)?;
    let body = call.json().await?;
    let entries = body.get("docs").and_then(Value::as_array);
    let entries = entries.ok_or_else(|| Failure::bad_request("Missing JSON list of 'docs'."))?;
    let entries = entries.iter().map(BulkGetEntry::parse).collect::<Result<Vec<_>>>()?;
    match wants_multipart(call.header("accept").unwrap_or_default()) {
        true => multipart_response(&call, databases, entries, latest, with_following_content(show)).await,
        false => json_response(&call, databases, entries, latest, show).await,
    }
}

async fn json_response(
    call: &Call,
    databases: Databases,
    entries: Vec<BulkGetEntry>,
    latest: bool,
    show: ShowOptions,
) -> Result<HttpResponse> {
    let (stall_timeout, restriction) = (call.state.config.limits.stall_timeout, call.restriction.clone());
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let snapshots = databases.snapshots()?;
        out.buffer.extend_from_slice(b"{\"results\": [");
        for (at, entry) in entries.into_iter().enumerate() {
            if at > 0 {
                out.buffer.push(b',');
            }
            let (served, snapshot) = snapshots.of(&entry.id);
            BulkGetRow::open(snapshot, entry, latest, &show, restriction.as_ref())?
                .write_json(served, snapshot, &mut out)?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"]}\n");
        Ok(())
    })
    .await
}

async fn multipart_response(
    call: &Call,
    databases: Databases,
    entries: Vec<BulkGetEntry>,
    latest: bool,
    show: ShowOptions,
) -> Result<HttpResponse> {
    let (stall_timeout, restriction) = (call.state.config.limits.stall_timeout, call.restriction.clone());
    let outer = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/mixed; boundary=\"{outer}\"");
    streamed(StatusCode::OK, &content_type, stall_timeout, move |mut out| async move {
        let snapshots = databases.snapshots()?;
        for entry in entries {
            let (served, snapshot) = snapshots.of(&entry.id);
            let row = BulkGetRow::open(snapshot, entry, latest, &show, restriction.as_ref())?;
            row.write_parts(served, snapshot, &outer, &mut out).await?;
        }
        out.buffer.extend_from_slice(format!("\r\n--{outer}--").as_bytes());
        Ok(())
    })
    .await
}
