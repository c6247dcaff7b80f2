//! Virtual databases that are restored from backups of their shards and of what they store themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::remote::{Locations, PLACEMENTS, RemoteShard, Shard, VirtualRecord};
use super::{VirtualDatabases, database_name, kind_of_shard, of_kind, open_shard_here};
use crate::directory::DatabaseKind;
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::servers::HERE;

/// What a backup of a virtual database consists of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VirtualManifest {
    version: u32,
    /// Which shard has which documents.
    placement: serde_json::Value,
    /// The greatest number that a shard's name ever had.
    last_number: u64,
    shard_bytes_max: Option<u64>,
    /// What the virtual database stores itself.
    own: PartBackup,
    shards: BTreeMap<String, PartBackup>,
}

/// A backup of a database.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartBackup {
    /// The server that made it, in its directory for backups.
    pub(crate) server: String,
    pub(crate) target: String,
    pub(crate) backup: u64,
}

impl PartBackup {
    pub(crate) fn new(server: &str, target: String, backup: u64) -> Self {
        PartBackup { server: server.to_owned(), target, backup }
    }
}

/// Restores a backup of this server to a path.
pub(crate) type RestorePart = Arc<dyn Fn(&PartBackup, &Path) -> Result<()> + Send + Sync>;

/// The version of manifests that is written and read.
const VERSION: u32 = 1;

impl VirtualManifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// 500 if it is malformed, or of a newer version.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        let malformed =
            |why: String| Failure::internal(format!("the manifest of a virtual database is malformed: {why}"));
        let manifest: VirtualManifest = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(malformed(format!("its version is {other}"))),
        }
    }

    /// The number of the backup.
    pub(crate) fn number(&self) -> u64 {
        self.own.backup
    }

    /// The number of the part that is in a target, if there is one.
    pub(crate) fn number_in(&self, target: &str) -> Option<u64> {
        let mut parts = self.shards.values().chain([&self.own]);
        parts.find(|part| part.target == target).map(|part| part.backup)
    }
}

impl VirtualDatabases {
    /// The manifest of a backup whose parts exist. No document moved while they were made.
    ///
    /// # Errors
    /// 503 if the record of the virtual database can't be read.
    pub(crate) async fn manifest(
        &self,
        name: &str,
        own: PartBackup,
        shards: BTreeMap<String, PartBackup>,
    ) -> Result<VirtualManifest> {
        let record = self.slot(name)?.record();
        blocking(move || {
            let placement = record.read(PLACEMENTS)?;
            let placement = placement.ok_or_else(|| Failure::internal("a virtual database has no placement"))?;
            let placement = serde_json::to_value(&placement).map_err(|error| Failure::internal(error.to_string()))?;
            let Locations { last_number, shard_bytes_max, .. } = record.locations()?;
            Ok(VirtualManifest { version: VERSION, placement, last_number, shard_bytes_max, own, shards })
        })
        .await
    }

    /// Creates a virtual database from a backup. A failed restore leaves nothing behind.
    ///
    /// # Errors
    /// 412 if there is a database of this name; 404 if a server is not known; those of `restore`.
    pub(crate) async fn restore(&self, name: &str, manifest: VirtualManifest, restore: RestorePart) -> Result<()> {
        let _creating = self.creating.lock().await;
        self.directory.check_virtual_name(name)?;
        // An earlier creation or deletion was interrupted.
        for shard in self.directory.shards_of(name) {
            self.delete_shard_here(&shard).await?;
        }
        let mut created = Vec::new();
        let result = self.restore_parts(name, manifest, restore, &mut created).await;
        if result.is_err() {
            self.delete_created(name, created).await;
        }
        result
    }

    async fn restore_parts(
        &self,
        name: &str,
        manifest: VirtualManifest,
        restore: RestorePart,
        created: &mut Vec<(String, Shard)>,
    ) -> Result<()> {
        let VirtualManifest { placement, last_number, shard_bytes_max, own, shards, .. } = manifest;
        let mut locations = Locations { last_number, shard_bytes_max, ..Locations::default() };
        for (shard, backup) in shards {
            let database = database_name(name, &shard);
            if backup.server == HERE {
                let (restore, kind) = (restore.clone(), kind_of_shard(&self.servers, name));
                self.directory.create_filled(&database, kind, move |path| restore(&backup, path)).await?;
                let part = open_shard_here(&self.directory, &self.servers, &database).await?;
                created.push((shard, part.clone()));
                part.begin(name).await?;
                continue;
            }
            let remote = Arc::new(RemoteShard::new(self.servers.get(&backup.server)?, database));
            let body = json!({"target": backup.target, "backup": backup.backup}).to_string();
            remote.ask(Method::POST, "/_restore", Some(body.into()), None).await?;
            let part = Shard::There(remote.clone());
            created.push((shard.clone(), part.clone()));
            part.begin(name).await?;
            locations.add(&shard, &remote);
        }
        let record = VirtualRecord::of(&self.directory, name);
        blocking(move || {
            record.remove()?;
            record.change(|stored| *stored = locations)?;
            record.put(PLACEMENTS, &placement)
        })
        .await?;
        let kind = of_kind(DatabaseKind::Virtual);
        self.directory.create_filled(name, kind, move |path| restore(&own, path)).await
    }
}
