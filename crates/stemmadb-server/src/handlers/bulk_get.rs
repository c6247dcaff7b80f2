//! `_bulk_get`: documents and revisions in the order asked; as JSON, or each as a part of a message, with its files in parts of their own.

use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::{Branch, Document, Revision, Snapshot, Value};
use uuid::Uuid;

use super::multipart::{following, write_opened};
use crate::app::Call;
use crate::directory::Served;
use crate::documents::{FileView, OpenRevs, Opened, Printer, Show, open_revs, parse_revision, revision_list, show_of};
use crate::error::{Failure, Result};
use crate::http::{Answer, Pieces, streamed};

/// One row of a request.
struct Asked {
    id: String,
    /// The revision as it was asked for, which may be none that could be.
    revision: Option<String>,
    since: Vec<Revision>,
}

impl Asked {
    fn parse(value: &Value) -> Result<Self> {
        let id = value.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| Failure::bad_request("document id missed"))?;
        let since = value.get("atts_since").map(revision_list).transpose()?.unwrap_or_default();
        let revision = value.get("rev").and_then(Value::as_str).map(str::to_owned);
        Ok(Asked { id: id.to_owned(), revision, since })
    }
}

/// What is there of one row.
struct Row {
    id: String,
    show: Show,
    branches: Vec<Branch>,
    found: Vec<Got>,
}

enum Got {
    Document(Box<Document>),
    /// The revision as it was asked for, and why it can't be had.
    Refused(Option<String>, Failure),
}

impl Row {
    fn open(snapshot: &Snapshot, asked: Asked, latest: bool, show: &Show) -> Result<Self> {
        let Asked { id, revision, since } = asked;
        let content = show.files.content || !since.is_empty();
        let show = Show { files: FileView { content, since, ..show.files }, ..show.clone() };
        let branches = snapshot.revisions(&id)?;
        let wanted = match revision.as_deref().map(parse_revision) {
            Some(Err(failure)) => Err(failure),
            Some(Ok(revision)) => Ok(OpenRevs::These(vec![revision])),
            None if branches.is_empty() => Err(Failure::missing()),
            None => Ok(OpenRevs::All),
        };
        let found = match wanted {
            Err(failure) => vec![Got::Refused(revision, failure)],
            Ok(wanted) => {
                let opened = open_revs(snapshot, &id, &branches, &wanted, latest)?.into_iter();
                let got = opened.map(|opened| match opened {
                    Opened::Document(document) => Got::Document(document),
                    Opened::Missing(revision) => Got::Refused(Some(revision.to_string()), Failure::missing()),
                });
                got.collect()
            }
        };
        Ok(Row { id, show, branches, found })
    }

    fn write_json(&self, served: &Served, snapshot: &Snapshot, out: &mut Pieces) -> Result<()> {
        let printer = Printer { served, snapshot, show: &self.show };
        out.buffer.extend_from_slice(b"{\"id\":");
        out.string(&self.id);
        out.buffer.extend_from_slice(b",\"docs\":[");
        for (at, got) in self.found.iter().enumerate() {
            if at > 0 {
                out.buffer.push(b',');
            }
            match got {
                Got::Document(document) => {
                    out.buffer.extend_from_slice(b"{\"ok\":");
                    printer.print_of(document, &self.branches, &mut out.buffer)?;
                    out.buffer.push(b'}');
                }
                Got::Refused(revision, failure) => {
                    out.buffer.extend_from_slice(b"{\"error\":");
                    write_refusal(&self.id, revision.as_deref(), failure, out);
                    out.buffer.push(b'}');
                }
            }
        }
        out.buffer.extend_from_slice(b"]}");
        Ok(())
    }

    async fn write_parts(&self, served: &Served, snapshot: &Snapshot, outer: &str, out: &mut Pieces) -> Result<()> {
        let printer = Printer { served, snapshot, show: &self.show };
        for got in &self.found {
            let revision = match got {
                Got::Document(document) => Some(document.revision().to_string()),
                Got::Refused(revision, _) => revision.clone(),
            };
            let mut head = format!("\r\n--{outer}\r\nX-Doc-Id: {}\r\n", in_a_line(&self.id));
            if let Some(revision) = &revision {
                head.push_str(&format!("X-Rev-Id: {}\r\n", in_a_line(revision)));
            }
            out.buffer.extend_from_slice(head.as_bytes());
            match got {
                Got::Document(document) => write_opened(&printer, document, &self.branches, out).await?,
                Got::Refused(_, failure) => {
                    out.buffer.extend_from_slice(b"Content-Type: application/json; error=\"true\"\r\n\r\n");
                    write_refusal(&self.id, revision.as_deref(), failure, out);
                }
            }
            out.flush_if_full().await;
        }
        Ok(())
    }
}

/// A text as a header's value, which ends with its line.
fn in_a_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

fn write_refusal(id: &str, revision: Option<&str>, failure: &Failure, out: &mut Pieces) {
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

/// Whether a message of several parts is asked for. Who takes JSON too gets that.
fn wants_parts(accept: &str) -> bool {
    let has = |kind: &str| accept.contains(kind);
    (has("multipart/mixed") || has("multipart/related")) && !has("application/json")
}

/// `POST /{db}/_bulk_get`
pub(crate) async fn bulk_get(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let show = show_of(&call.query)?;
    let latest = call.query.flag("latest", false)?;
    let body = call.json().await?;
    let asked = body.get("docs").and_then(Value::as_array);
    let asked = asked.ok_or_else(|| Failure::bad_request("Missing JSON list of 'docs'."))?;
    let asked = asked.iter().map(Asked::parse).collect::<Result<Vec<_>>>()?;
    match wants_parts(call.header("accept").unwrap_or_default()) {
        true => in_parts(&call, served, asked, latest, following(show)).await,
        false => as_json(&call, served, asked, latest, show).await,
    }
}

async fn as_json(call: &Call, served: Arc<Served>, asked: Vec<Asked>, latest: bool, show: Show) -> Result<Answer> {
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(b"{\"results\": [");
        for (at, asked) in asked.into_iter().enumerate() {
            if at > 0 {
                out.buffer.push(b',');
            }
            Row::open(&snapshot, asked, latest, &show)?.write_json(&served, &snapshot, &mut out)?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"]}\n");
        Ok(())
    })
    .await
}

async fn in_parts(call: &Call, served: Arc<Served>, asked: Vec<Asked>, latest: bool, show: Show) -> Result<Answer> {
    let patience = call.state.config.limits.stall_timeout;
    let outer = Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/mixed; boundary=\"{outer}\"");
    streamed(StatusCode::OK, &content_type, patience, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        for asked in asked {
            let row = Row::open(&snapshot, asked, latest, &show)?;
            row.write_parts(&served, &snapshot, &outer, &mut out).await?;
        }
        out.buffer.extend_from_slice(format!("\r\n--{outer}--").as_bytes());
        Ok(())
    })
    .await
}
