//! Backups of databases: `POST /{db}/_backup`.

use std::path::PathBuf;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;
use stemmadb::backup::{BackupOptions, DirectoryTarget};

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};

/// `POST /{db}/_backup`
pub(crate) async fn back_up(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    let served = call.open_database().await?;
    let path = target(&call, &body)?;
    let options = options(&body)?;
    blocking(move || {
        let target = DirectoryTarget::create(&path)?;
        let report = served.database().maintenance().backup_with(&target, &options, |_| ());
        let report = report.map_err(|error| match error.kind() {
            // A conflict of writers, not of documents.
            stemmadb::ErrorKind::Conflict => Failure::new(StatusCode::CONFLICT, "conflict", error.message().to_owned()),
            _ => error.into(),
        })?;
        if let Some(error) = &report.cleanup_error {
            tracing::warn!(target: "stemma::database", "old files of a backup were not deleted: {error}");
        }
        let answer = json!({
            "ok": true,
            "backup": report.number,
            "sequence": report.sequence.get(),
            "copied_bytes": report.copied_bytes,
            "linked_bytes": report.linked_bytes,
            "total_bytes": report.byte_count,
        });
        HttpResponse::json(StatusCode::CREATED, &answer)
    })
    .await
}

/// The directory below the configured one: that of the given name, or of the database's name.
fn target(call: &Call, body: &Value) -> Result<PathBuf> {
    let Some(directory) = &call.state.config.backups else {
        return Err(Failure::forbidden("the server has no directory for backups: set `backups`"));
    };
    let name = match body.get("target") {
        None => call.parameter("db")?.replace('/', "%2F"),
        Some(name) => match name.as_str() {
            Some(name) if is_name(name) => name.to_owned(),
            _ => return Err(Failure::bad_request("`target` is a name of letters, digits, `_`, `-` and inner dots")),
        },
    };
    Ok(directory.join(name))
}

/// Whether a text names a directory right below another one.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    text.len() <= 200 && !text.starts_with('.') && !text.is_empty() && text.bytes().all(is_allowed)
}

fn options(body: &Value) -> Result<BackupOptions> {
    match body.get("keep") {
        None => Ok(BackupOptions::new()),
        Some(keep) => match keep.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count @ 1..) => Ok(BackupOptions::new().keep(count)),
            _ => Err(Failure::bad_request("`keep` must be a positive integer")),
        },
    }
}
