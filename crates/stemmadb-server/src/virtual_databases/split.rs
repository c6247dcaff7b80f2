//! Shards that become too large are split.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use stemmadb::Value;

use super::moves::MoveTarget;
use super::remote::Shard;
use super::{MoveRequest, OpenVirtual, VirtualDatabases, VirtualRecord};
use crate::error::{Failure, Result};
use crate::http::blocking;

/// How often the sizes of shards are read.
pub(crate) const TEND_INTERVAL: Duration = Duration::from_secs(10);

/// The least size above which shards may be split.
const BYTES_MIN: u64 = 1 << 20;
/// The most shards that splitting makes.
const SHARDS_MAX: usize = 1_024;

impl VirtualDatabases {
    /// Sets the live bytes above which a shard is split; `None` for never.
    ///
    /// # Errors
    /// 404 if there is no virtual database of this name; 400 for less than 1 MiB.
    pub(crate) async fn set_shard_bytes_max(&self, name: &str, bytes: Option<u64>) -> Result<()> {
        check_shard_bytes_max(bytes)?;
        self.open(name).await?;
        let record = self.slot(name)?.record();
        blocking(move || record.change(|locations| locations.shard_bytes_max = bytes)).await
    }

    /// The live bytes above which a shard is split.
    ///
    /// # Errors
    /// 404 if there is no virtual database of this name.
    pub(crate) async fn shard_bytes_max(&self, name: &str) -> Result<Option<u64>> {
        let record = self.slot(name)?.record();
        blocking(move || Ok(record.locations()?.shard_bytes_max)).await
    }

    /// Splits shards that are too large, one of each virtual database at a time; in a cluster, also opens the virtual
    /// databases that this server is to have, so that their moves go on.
    pub(crate) async fn tend(&self) {
        if self.servers.cluster().is_some() {
            self.continue_moves().await;
        }
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            let Some(open) = slot.opened.read().clone() else { continue };
            let is_moving = slot.mover.lock().is_active() || open.database.map().planned_move().is_some();
            if is_moving || !open.is_usable() {
                continue;
            }
            if let Err(failure) = self.split_largest(&slot.name, &open, slot.record()).await {
                tracing::warn!(target: "stemma::database", "splitting a shard of {}: {failure}", slot.name);
            }
        }
    }

    async fn split_largest(&self, name: &str, open: &Arc<OpenVirtual>, record: VirtualRecord) -> Result<()> {
        let Some(bytes_max) = blocking(move || Ok(record.locations()?.shard_bytes_max)).await? else { return Ok(()) };
        let shards = open.database.shards();
        if shards.len() >= SHARDS_MAX {
            return Ok(());
        }
        let mut largest: Option<(u64, String)> = None;
        for (shard, bucket_count) in shards {
            let part = open.shards.read().get(&shard).cloned();
            let Some(part) = part.filter(|_| bucket_count > 1) else { continue };
            let bytes = live_bytes(&part).await?;
            if bytes > bytes_max && largest.as_ref().is_none_or(|(most, _)| bytes > *most) {
                largest = Some((bytes, shard));
            }
        }
        let Some((_, shard)) = largest else { return Ok(()) };
        let to = MoveTarget::New(open.server_of(&shard));
        self.start_move(name, MoveRequest::Split { shard, to }).await
    }
}

/// Checks the live bytes above which shards are split.
///
/// # Errors
/// 400 for less than 1 MiB.
pub(super) fn check_shard_bytes_max(bytes: Option<u64>) -> Result<()> {
    match bytes {
        Some(bytes) if bytes < BYTES_MIN => {
            Err(Failure::bad_request(format!("`shard_bytes_max` is a number of bytes from {BYTES_MIN}")))
        }
        _ => Ok(()),
    }
}

/// The bytes of the documents of a shard.
async fn live_bytes(shard: &Shard) -> Result<u64> {
    match shard {
        Shard::Here(served) => {
            let served = served.clone();
            blocking(move || Ok(served.database().info()?.live_bytes)).await
        }
        Shard::There(remote) => {
            let (_, info) = remote.ask(Method::GET, "", None, None).await?;
            let info = Value::parse(&info)?;
            let bytes = info.get("sizes").and_then(|sizes| sizes.get("external")).and_then(Value::as_u64);
            bytes.ok_or_else(|| Failure::internal("a shard says nothing of its size"))
        }
    }
}
