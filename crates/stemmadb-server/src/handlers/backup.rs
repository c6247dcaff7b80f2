//! Backups, restores and branches of databases: `POST /{db}/_backup`, `_restore` and `_branch`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::backup::{At, BackupOptions, FollowStatus, RestoreOptions, restore as restore_backup};
use stemmadb::{Database, Selector, Sequence, Value, past};
use tokio::runtime::Handle;

use crate::app::Call;
use crate::directory::NewDatabase;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::objects::backup_target;
use crate::shipping::{self, BackupSize, ContinuousBackup, Manifests, WholeBackup, place_in, reported};
use crate::virtual_databases::{PartBackup, VirtualManifest};

/// The interval of a continuous backup, unless the request names one.
const INTERVAL: Duration = Duration::from_secs(10);

/// `POST /{db}/_backup`
pub(crate) async fn back_up(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    let place = place(&call, &body)?;
    let is_whole = call.state.directory.is_virtual(call.parameter("db")?);
    if is_whole {
        check_whole_target(&target_name(&call, &body)?)?;
    }
    match (flag(&body, "continuous")?, flag(&body, "cancel")?) {
        (true, true) => cancel(call).await,
        (true, false) => follow(call, &body, place).await,
        (false, true) => Err(Failure::bad_request("`cancel` ends a continuous backup: add `\"continuous\": true`")),
        (false, false) if is_whole => back_up_whole(call, &body, place).await,
        (false, false) => back_up_once(call, &body, place).await,
    }
}

async fn back_up_once(call: Call, body: &Value, place: PathBuf) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let mut options = BackupOptions::new().tree(has_tree(body)?);
    match keep(body)? {
        Some(Keep::Newest(count)) => options = options.keep(count),
        Some(Keep::These(numbers)) => options = options.keep_only(numbers),
        None => {}
    }
    blocking(move || {
        let report = shipping::back_up(&served, &place, &options)?;
        made(report.number, &BackupSize::from(&report), Some(report.sequence))
    })
    .await
}

/// Makes a backup of a virtual database: its server makes that of each shard.
async fn back_up_whole(call: Call, body: &Value, place: PathBuf) -> Result<HttpResponse> {
    let backup = WholeBackup { place, has_tree: has_tree(body)?, keep: keep_count(body)? };
    let (number, size) = shipping::back_up_whole(&call.state.virtual_databases, call.parameter("db")?, &backup).await?;
    made(number, &size, None)
}

/// The answer for a backup that was made; one of a virtual database has no sequence.
fn made(number: u64, size: &BackupSize, sequence: Option<Sequence>) -> Result<HttpResponse> {
    let mut answer = json!({
        "ok": true,
        "backup": number,
        "copied_bytes": size.copied,
        "linked_bytes": size.linked,
        "total_bytes": size.total,
    });
    if let Some(sequence) = sequence {
        answer["sequence"] = json!(sequence.get());
    }
    HttpResponse::json(StatusCode::CREATED, &answer)
}

/// Starts a continuous backup.
async fn follow(call: Call, body: &Value, place: PathBuf) -> Result<HttpResponse> {
    let name = call.parameter("db")?.to_owned();
    let check_ms = milliseconds(body, "check")?;
    if check_ms.is_some() && call.state.directory.is_virtual(&name) {
        return Err(Failure::not_implemented("Backups of a virtual database are not checked: restore one yourself."));
    }
    let interval = milliseconds(body, "interval")?;
    let backup = ContinuousBackup {
        place,
        interval_ms: interval.unwrap_or(INTERVAL.as_millis() as u64),
        keep: keep_count(body)?,
        check_ms,
    };
    let (shipping, runtime) = (call.state.shipping.clone(), Handle::current());
    blocking(move || shipping.start(&name, backup, &runtime)).await?;
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

/// Checks that the names of the targets of shards may begin with a name.
///
/// # Errors
/// 400 if they can't.
fn check_whole_target(target: &str) -> Result<()> {
    match is_name(target) {
        true => Ok(()),
        false => Err(Failure::bad_request(
            "Name a `target` of letters, digits, `_`, `-` and inner dots, with which those of the shards begin",
        )),
    }
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
    let place = place_of(call, &target)?;
    blocking(move || {
        let Some(manifests) = Manifests::find(&place)? else { return Ok(None) };
        let number = match at {
            At::Latest => None,
            At::Backup(number) => Some(number),
            _ => {
                let reason = "A virtual database is restored to the state of a backup: name a `backup`, not `at`";
                return Err(Failure::bad_request(reason));
            }
        };
        manifests.read(number).map(Some)
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

/// Shows in the info of a database how far its continuous backup has come, if it has one.
///
/// # Errors
/// 500 if the request names no database.
pub(super) fn show_status(call: &Call, info: &mut serde_json::Value) -> Result<()> {
    if let Some(status) = call.state.shipping.status(call.parameter("db")?) {
        info["backup"] = status_value(&status);
    }
    Ok(())
}

fn status_value(status: &FollowStatus) -> serde_json::Value {
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
fn target_name(call: &Call, body: &Value) -> Result<String> {
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

fn has_tree(body: &Value) -> Result<bool> {
    Ok(body.get("tree").is_none() || flag(body, "tree")?)
}

/// Which backups stay.
enum Keep {
    /// The newest ones, with the new one.
    Newest(usize),
    /// Those with these numbers, and the new one.
    These(Vec<u64>),
}

fn keep(body: &Value) -> Result<Option<Keep>> {
    let Some(keep) = body.get("keep") else { return Ok(None) };
    if let Some(numbers) = keep.as_array() {
        let numbers = numbers.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
        return match numbers {
            Some(numbers) => Ok(Some(Keep::These(numbers))),
            None => Err(Failure::bad_request("`keep` as an array has the numbers of backups")),
        };
    }
    match keep.as_u64().and_then(|count| usize::try_from(count).ok()) {
        Some(count @ 1..) => Ok(Some(Keep::Newest(count))),
        _ => Err(Failure::bad_request("`keep` must be a positive integer, or an array of the numbers of backups")),
    }
}

/// How many backups stay.
fn keep_count(body: &Value) -> Result<Option<usize>> {
    match keep(body)? {
        None => Ok(None),
        Some(Keep::Newest(count)) => Ok(Some(count)),
        Some(Keep::These(_)) => Err(Failure::bad_request("`keep` must be a positive integer here")),
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
