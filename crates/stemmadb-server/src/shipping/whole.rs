//! Backups of virtual databases: one of each shard, made by its server, one of what the virtual database stores itself,
//! and a manifest, which is written last.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::try_join_all;
use hyper::{Method, StatusCode};
use serde_json::json;
use stemmadb::Value;
use stemmadb::backup::BackupOptions;

use super::manifests::{Manifests, beside};
use super::{BackupSize, back_up};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::servers::HERE;
use crate::virtual_databases::{PartBackup, Shard, VirtualDatabases, VirtualManifest};

/// A backup of a virtual database that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WholeBackup {
    /// The place of the backups of what the virtual database stores itself. Those of the shards are beside it.
    pub(crate) place: PathBuf,
    pub(crate) has_tree: bool,
    /// How many backups stay.
    pub(crate) keep: Option<usize>,
}

impl WholeBackup {
    /// The name of the place. On all servers, those of the shards begin with it.
    fn target(&self) -> Result<&str> {
        let name = self.place.file_name().and_then(|name| name.to_str());
        name.ok_or_else(|| Failure::internal("the place of a backup has no name"))
    }
}

/// Makes a backup of a virtual database; returns its number and size.
///
/// # Errors
/// 404 if there is no such virtual database; 409 if documents move between its shards, or there is another writer to a
/// target; 503 if a shard's server does not answer; those of the targets.
pub(crate) async fn back_up_whole(
    databases: &VirtualDatabases,
    name: &str,
    backup: &WholeBackup,
) -> Result<(u64, BackupSize)> {
    // No fence is held: if documents have begun to move by the end, the backup is discarded.
    let open = databases.open(name).await?;
    let layout = open.layout();
    if layout.is_moving() {
        return Err(is_moving());
    }
    let (target, place, keep) = (backup.target()?, backup.place.clone(), backup.keep);
    let kept = blocking(move || Ok(Kept::read(&place, keep)?.map(Arc::new))).await?;
    let shards = layout.names().iter().zip(layout.all());
    let parts = shards.map(|(shard, part)| {
        let (target, kept) = (format!("{target}.{shard}"), kept.clone());
        async move {
            let (number, size) = match part {
                Shard::Here(served) => {
                    let place = beside(&backup.place, shard);
                    here(served.clone(), place, backup.has_tree, kept, target.clone()).await?
                }
                Shard::There(remote) => {
                    let mut body = json!({"target": target, "tree": backup.has_tree});
                    if let Some(kept) = kept {
                        body["keep"] = json!(kept.numbers(&target));
                    }
                    let (_, answer) = remote.ask(Method::POST, "/_backup", Some(body.to_string().into()), None).await?;
                    parse_answer(&answer)?
                }
            };
            Ok::<_, Failure>((shard.clone(), PartBackup::new(part.server(), target, number), size))
        }
    });
    let parts = try_join_all(parts).await?;
    let (number, mut total) =
        here(open.own.clone(), backup.place.clone(), backup.has_tree, kept, target.to_owned()).await?;
    parts.iter().for_each(|(_, _, size)| total.add(size));
    let parts: BTreeMap<_, _> = parts.into_iter().map(|(shard, part, _)| (shard, part)).collect();
    let own = PartBackup::new(HERE, target.to_owned(), number);
    let manifest = databases.manifest(name, own, parts).await?;
    if layout.epoch() != Some(open.database.epoch()) {
        return Err(is_moving());
    }
    let (place, keep) = (backup.place.clone(), backup.keep);
    blocking(move || {
        let manifests = Manifests::create(&place)?;
        manifests.add(&manifest)?;
        keep.map_or(Ok(()), |count| manifests.keep_newest(count))
    })
    .await?;
    Ok((number, total))
}

/// Makes a backup of a part that is on this server.
async fn here(
    served: Arc<ServedDatabase>,
    place: PathBuf,
    has_tree: bool,
    kept: Option<Arc<Kept>>,
    target: String,
) -> Result<(u64, BackupSize)> {
    blocking(move || {
        let options = BackupOptions::new().tree(has_tree);
        let options = kept.iter().fold(options, |options, kept| options.keep_only(kept.numbers(&target)));
        let report = back_up(&served, &place, &options)?;
        Ok((report.number, BackupSize::from(&report)))
    })
    .await
}

/// The backups that stay until the new one is complete.
struct Kept(Vec<VirtualManifest>);

impl Kept {
    /// Reads the newest `count` manifests, and deletes all others, whose parts will not stay; none if all backups stay.
    fn read(place: &Path, count: Option<usize>) -> Result<Option<Self>> {
        let Some(count) = count else { return Ok(None) };
        let manifests = Manifests::create(place)?;
        manifests.keep_newest(count)?;
        Ok(Some(Kept(manifests.newest(count)?)))
    }

    /// The numbers of the backups in a target.
    fn numbers(&self, target: &str) -> Vec<u64> {
        self.0.iter().filter_map(|manifest| manifest.number_in(target)).collect()
    }
}

/// The answer of a server that has backed up a shard.
fn parse_answer(answer: &[u8]) -> Result<(u64, BackupSize)> {
    let answer = Value::parse(answer)?;
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let backup = number("backup").ok_or_else(|| Failure::internal("a backup has no number"))?;
    let size = |name: &str| number(name).unwrap_or_default();
    Ok((backup, BackupSize { copied: size("copied_bytes"), linked: size("linked_bytes"), total: size("total_bytes") }))
}

fn is_moving() -> Failure {
    let reason = "Documents of the virtual database move between shards: repeat the request after the move.";
    Failure::new(StatusCode::CONFLICT, "conflict", reason)
}
