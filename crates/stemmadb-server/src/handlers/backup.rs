//! Backups, restores and branches of databases: `POST /{db}/_backup`, `_restore` and `_branch`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::backup::{At, BackupOptions, FollowStatus, RestoreOptions, restore as restore_backup};
use stemmadb::{Database, ErrorKind, Selector, Value, past};

use crate::app::Call;
use crate::directory::NewDatabase;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::objects::backup_target;
use crate::shipping::{ContinuousBackup, place_in};
use crate::virtual_databases::{PartBackup, VirtualManifest};

/// The interval of a continuous backup, unless the request names one.
const INTERVAL: Duration = Duration::from_secs(10);

/// `POST /{db}/_backup`
pub(crate) async fn back_up(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    let place = place(&call, &body)?;
    match (flag(&body, "continuous")?, flag(&body, "cancel")?) {
        (true, true) => cancel(call).await,
        (true, false) => follow(call, &body, place).await,
        (false, true) => Err(Failure::bad_request("`cancel` ends a continuous backup: add `\"continuous\": true`")),
        (false, false) => back_up_once(call, &body, place).await,
    }
}

async fn back_up_once(call: Call, body: &Value, place: PathBuf) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let has_tree = body.get("tree").is_none() || flag(body, "tree")?;
    let mut options = BackupOptions::new().tree(has_tree);
    if let Some(count) = keep(body)? {
        options = options.keep(count);
    }
    blocking(move || {
        let target = backup_target(&place, true)?;
        let report = served.database().maintenance().backup_with(&*target, &options, |_| ()).map_err(reported)?;
        if let Some(error) = &report.cleanup_error {
            tracing::warn!(target: "stemma::backup", "old files of a backup were not deleted: {error}");
        }
        if report.lost_count > 0 {
            let name = served.name();
            tracing::error!(target: "stemma::backup", "{name}: {} has lost {} files of the last backup; they were put \
                again", target.describe(), report.lost_count);
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

/// Starts a continuous backup.
async fn follow(call: Call, body: &Value, place: PathBuf) -> Result<HttpResponse> {
    let interval = milliseconds(body, "interval")?;
    let backup = ContinuousBackup {
        place,
        interval_ms: interval.unwrap_or(INTERVAL.as_millis() as u64),
        keep: keep(body)?,
        check_ms: milliseconds(body, "check")?,
    };
    let served = call.open_database().await?;
    let shipping = call.state.shipping.clone();
    blocking(move || shipping.start(served, backup)).await?;
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}

async fn cancel(call: Call) -> Result<HttpResponse> {
    let (shipping, name) = (call.state.shipping.clone(), call.parameter("db")?.to_owned());
    blocking(move || shipping.cancel(&name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `POST /{db}/_restore`
pub(crate) async fn restore(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    let place = place(&call, &body)?;
    let options = call.state.directory.restore_options().at(state(&body)?);
    match flag(&body, "revert")? {
        true if call.state.directory.is_virtual(call.parameter("db")?) => {
            Err(Failure::not_implemented("A virtual database can't be reverted: restore it under another name."))
        }
        true => revert(call, place, options).await,
        false => match virtual_manifest(&call, &body).await? {
            Some(manifest) => restore_virtual(call, manifest).await,
            None => restore_new(call, &body, place, options).await,
        },
    }
}

/// The place of the manifests of the backups of a virtual database.
///
/// # Errors
/// 400 if its name can't be part of the names of its shards' targets; 403 without a directory for backups.
pub(super) fn manifest_place(call: &Call, target: &str) -> Result<PathBuf> {
    match is_name(target) {
        true => place_of(call, &format!("{target}.virtual")),
        false => Err(Failure::bad_request(
            "Name a `target` of letters, digits, `_`, `-` and inner dots, with which those of the shards begin",
        )),
    }
}

/// The name of a manifest.
pub(super) fn manifest_name(backup: u64) -> String {
    format!("{backup:020}.json")
}

/// The manifest of the backup that a request names, if the target has backups of a virtual database.
///
/// # Errors
/// 404 if there is no such backup; 400 for another state than that of a backup.
async fn virtual_manifest(call: &Call, body: &Value) -> Result<Option<VirtualManifest>> {
    let (target, at) = (target_name(call, body)?, state(body)?);
    if !is_name(&target) {
        return Ok(None);
    }
    let place = manifest_place(call, &target)?;
    blocking(move || {
        let manifests = match backup_target(&place, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            manifests => manifests?,
        };
        let name = match (at, manifests.list("")?.into_iter().filter(|name| name.ends_with(".json")).max()) {
            (_, None) => return Ok(None),
            (At::Latest, Some(newest)) => newest,
            (At::Backup(number), _) => manifest_name(number),
            (_, Some(_)) => {
                let reason = "A virtual database is restored to the state of a backup: name a `backup`, not `at`";
                return Err(Failure::bad_request(reason));
            }
        };
        let mut text = Vec::new();
        manifests.get(&name).map_err(reported)?.read_to_end(&mut text).map_err(|error| {
            Failure::unavailable(format!("The manifest of the backup can't be read: {error}"), INTERVAL)
        })?;
        VirtualManifest::parse(&text).map(Some)
    })
    .await
}

/// Restores a virtual database that does not exist, with all shards.
async fn restore_virtual(call: Call, manifest: VirtualManifest) -> Result<HttpResponse> {
    let configured = place_of(&call, "")?;
    let (name, options) = (call.parameter("db")?.to_owned(), call.state.directory.restore_options());
    let restore = move |part: &PartBackup, path: &std::path::Path| {
        let options = options.clone().at(At::Backup(part.backup));
        restore_backup(&*backup_target(&place_in(&configured, &part.target), false)?, path, options)
            .map_err(reported)?;
        Ok(())
    };
    let number = manifest.number();
    call.state.virtual_databases.restore(&name, manifest, Arc::new(restore)).await?;
    HttpResponse::json(StatusCode::CREATED, &json!({"ok": true, "backup": number}))
}

/// Restores a database that does not exist.
async fn restore_new(call: Call, body: &Value, place: PathBuf, options: RestoreOptions) -> Result<HttpResponse> {
    let new = NewDatabase { is_partitioned: flag(body, "partitioned")?, ..NewDatabase::default() };
    let directory = call.state.directory.clone();
    let fill = move |path: &std::path::Path| {
        let report = restore_backup(&*backup_target(&place, false)?, path, options).map_err(reported)?;
        let documents = report.check.map_or(0, |check| check.document_count);
        Ok(json!({
            "ok": true,
            "backup": report.backup,
            "sequence": report.sequence.get(),
            "bytes": report.byte_count,
            "documents": documents,
        }))
    };
    let answer = directory.create_filled(call.parameter("db")?, new, fill).await?;
    HttpResponse::json(StatusCode::CREATED, &answer)
}

/// Sets a database to the state of a backup, by new revisions.
async fn revert(call: Call, place: PathBuf, options: RestoreOptions) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let directory = call.state.directory.clone();
    blocking(move || {
        let restored = directory.unfinished()?;
        let report = restore_backup(&*backup_target(&place, false)?, restored.path(), options).map_err(reported)?;
        let copy = Database::open_with(restored.path(), directory.database_options())?;
        let changed = served.database().history().revert_to_copy(Selector::everything(), &copy);
        copy.close()?;
        let answer = json!({
            "ok": true,
            "backup": report.backup,
            "sequence": report.sequence.get(),
            "changed": changed?,
        });
        HttpResponse::json(StatusCode::CREATED, &answer)
    })
    .await
}

/// `POST /{db}/_branch`
pub(crate) async fn branch(mut call: Call) -> Result<HttpResponse> {
    let body = call.json().await?;
    let name = body.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| Failure::bad_request("`name` is the name of the new database"))?.to_owned();
    let at = state(&body)?;
    let served = call.open_database().await?;
    let new = NewDatabase { is_partitioned: served.is_partitioned(), ..NewDatabase::default() };
    let fill = move |path: &std::path::Path| served.database().maintenance().branch(path, at).map_err(reported);
    call.state.directory.create_filled(&name, new, fill).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// How far a continuous backup has come, as it is shown in a database's info.
pub(super) fn status_value(status: &FollowStatus) -> serde_json::Value {
    let check = status
        .check
        .as_ref()
        .map(|check| json!({"ok": check.error.is_none(), "error": check.error, "sequence": check.sequence.get()}));
    json!({
        "target": status.target,
        "backup": status.backup,
        "sequence": status.sequence.get(),
        "lag_seconds": status.lag.as_secs_f64(),
        "lag_sequences": status.lag_sequences,
        "failures": status.failure_count,
        "error": status.error,
        "running": status.is_running,
        "check": check,
    })
}

/// An error with its message: a conflict is one of writers, and what is not found is a backup.
fn reported(error: stemmadb::Error) -> Failure {
    let message = match error.hint() {
        Some(hint) => format!("{} ({hint})", error.message()),
        None => error.message().to_owned(),
    };
    match error.kind() {
        ErrorKind::Conflict => Failure::new(StatusCode::CONFLICT, "conflict", message),
        ErrorKind::NotFound => Failure::not_found(message),
        _ => error.into(),
    }
}

/// The directory or prefix within the configured place: that of the given name, or of the database's name.
fn place(call: &Call, body: &Value) -> Result<PathBuf> {
    // Without a configured place, nothing is said about the name.
    place_of(call, "")?;
    place_of(call, &target_name(call, body)?)
}

/// The directory or prefix of a name within the configured place; without a name, that place.
fn place_of(call: &Call, name: &str) -> Result<PathBuf> {
    match &call.state.config.backups {
        Some(configured) if name.is_empty() => Ok(configured.clone()),
        Some(configured) => Ok(place_in(configured, name)),
        None => Err(Failure::forbidden("the server has no directory for backups: set `backups`")),
    }
}

/// The given name of the backups, or the database's name.
///
/// # Errors
/// 400 if it is no name.
pub(super) fn target_name(call: &Call, body: &Value) -> Result<String> {
    match body.get("target") {
        None => Ok(call.parameter("db")?.replace('/', "%2F")),
        Some(name) => match name.as_str() {
            Some(name) if is_name(name) => Ok(name.to_owned()),
            _ => Err(Failure::bad_request("`target` is a name of letters, digits, `_`, `-` and inner dots")),
        },
    }
}

/// Whether a text names a directory right below another one.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    text.len() <= 200 && !text.starts_with('.') && !text.is_empty() && text.bytes().all(is_allowed)
}

/// The state to restore or to branch from.
fn state(body: &Value) -> Result<At> {
    let (backup, at) = (body.get("backup"), body.get("at"));
    match (backup, at) {
        (Some(_), Some(_)) => Err(Failure::bad_request("name a `backup` or `at`, not both")),
        (Some(number), None) => match number.as_u64() {
            Some(number) => Ok(At::Backup(number)),
            None => Err(Failure::bad_request("`backup` is the number of a backup")),
        },
        (None, Some(at)) => {
            let text = at.as_u64().map(|sequence| sequence.to_string()).or_else(|| at.as_str().map(str::to_owned));
            let text = text.ok_or_else(|| Failure::bad_request("`at` is a sequence, a time, or how long ago"))?;
            Ok(At::from(text.parse::<past::At>()?))
        }
        (None, None) => Ok(At::Latest),
    }
}

fn flag(body: &Value, name: &str) -> Result<bool> {
    match body.get(name) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| Failure::bad_request(format!("`{name}` must be true or false"))),
    }
}

fn keep(body: &Value) -> Result<Option<usize>> {
    match body.get("keep") {
        None => Ok(None),
        Some(keep) => match keep.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count @ 1..) => Ok(Some(count)),
            _ => Err(Failure::bad_request("`keep` must be a positive integer")),
        },
    }
}

/// A time in seconds, as milliseconds.
fn milliseconds(body: &Value, name: &str) -> Result<Option<u64>> {
    match body.get(name) {
        None => Ok(None),
        Some(seconds) => match seconds.as_f64() {
            Some(seconds) if (0.001..=31_536_000.0).contains(&seconds) => Ok(Some((seconds * 1000.0) as u64)),
            _ => Err(Failure::bad_request(format!("`{name}` must be a number of seconds"))),
        },
    }
}
