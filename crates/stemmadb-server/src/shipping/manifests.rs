//! The manifests of the backups of a virtual database: each names the backups of all parts.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::ErrorKind;
use stemmadb::backup::Target;

use super::reported;
use crate::error::{Failure, Result};
use crate::objects::backup_target;
use crate::virtual_databases::VirtualManifest;

/// After how long a client may ask again for a manifest that can't be read.
const RETRY_WAIT: Duration = Duration::from_secs(10);

/// The manifests beside the backups of what a virtual database stores itself.
pub(crate) struct Manifests(Arc<dyn Target>);

impl Manifests {
    /// Those of the backups at `place`, to read them. None if there are none. Blocks, like all that follows.
    ///
    /// # Errors
    /// Those of the target.
    pub(crate) fn find(place: &Path) -> Result<Option<Self>> {
        match backup_target(&place_of_manifests(place), false) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(Manifests(opened?)).filter(|found| found.names().is_ok_and(|names| !names.is_empty()))),
        }
    }

    /// Those of the backups at `place`, to add one.
    ///
    /// # Errors
    /// Those of the target.
    pub(super) fn create(place: &Path) -> Result<Self> {
        Ok(Manifests(backup_target(&place_of_manifests(place), true)?))
    }

    /// The names, ascending by the numbers of the backups.
    fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.0.list("")?.into_iter().filter(|name| name.ends_with(".json")).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The manifest of a backup, or the newest one.
    ///
    /// # Errors
    /// 404 if there is no such backup; 500 if the manifest is malformed; 503 if it can't be read.
    pub(crate) fn read(&self, backup: Option<u64>) -> Result<VirtualManifest> {
        let name = match backup {
            Some(number) => Some(name_of(number)),
            None => self.names()?.pop(),
        };
        self.read_named(&name.ok_or_else(|| Failure::not_found("there is no backup"))?)
    }

    fn read_named(&self, name: &str) -> Result<VirtualManifest> {
        let mut text = Vec::new();
        self.0.get(name).map_err(reported)?.read_to_end(&mut text).map_err(|error| {
            Failure::unavailable(format!("The manifest of the backup can't be read: {error}"), RETRY_WAIT)
        })?;
        VirtualManifest::parse(&text)
    }

    /// The newest manifests.
    ///
    /// # Errors
    /// As [`Manifests::read`].
    pub(super) fn newest(&self, count: usize) -> Result<Vec<VirtualManifest>> {
        self.names()?.iter().rev().take(count).map(|name| self.read_named(name)).collect()
    }

    /// Adds the manifest of a backup that is complete.
    ///
    /// # Errors
    /// 409 if there is one of this number; those of the target.
    pub(super) fn add(&self, manifest: &VirtualManifest) -> Result<()> {
        let (name, text) = (name_of(manifest.number()), json!(manifest).to_string());
        if !self.0.put_new(&name, text.as_bytes())? {
            let reason = format!("{} has a manifest {name} already", self.0.describe());
            return Err(Failure::new(StatusCode::CONFLICT, "conflict", reason));
        }
        Ok(self.0.flush()?)
    }

    /// Deletes all but the newest manifests. The next backup deletes what only they named.
    ///
    /// # Errors
    /// Those of the target.
    pub(super) fn keep_newest(&self, count: usize) -> Result<()> {
        let names = self.names()?;
        let surplus = names.len().saturating_sub(count);
        names[..surplus].iter().try_for_each(|name| self.0.delete(name))?;
        Ok(self.0.flush()?)
    }
}

fn name_of(backup: u64) -> String {
    format!("{backup:020}.json")
}

fn place_of_manifests(place: &Path) -> PathBuf {
    beside(place, "virtual")
}

/// The place beside that of a target, for a part that has a name.
pub(super) fn beside(place: &Path, part: &str) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".");
    name.push(part);
    name.into()
}
