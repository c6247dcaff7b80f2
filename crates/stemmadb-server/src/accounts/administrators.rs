//! Server administrators: the one that the configuration names, and those created over HTTP. There is always at least
//! one.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use stemmadb::Object;
use uuid::Uuid;

use crate::auth::Credential;
use crate::config::{Administrator, Config};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::settings::SettingStore;

/// The kind of their records in the catalog.
const KIND: &str = "administrator";

/// The server administrators by name.
pub(crate) struct Administrators(RwLock<BTreeMap<String, AdministratorRecord>>);

struct AdministratorRecord {
    credential: Credential,
    /// Whether the configuration names this administrator.
    is_configured: bool,
}

impl Administrators {
    /// Loads the administrators. If there is none, creates `admin` with a generated password, which is returned and
    /// stored as a hash. Blocks.
    pub(crate) fn load(config: &Config, directory: &Directory) -> Result<(Self, Option<String>)> {
        let mut administrators = stored(directory)?;
        let mut generated = None;
        if let Some(administrator) = &config.administrator {
            let credential = match directory.is_in_cluster() {
                true => shared_credential(directory, &administrators, administrator)?,
                false => Credential::new(&administrator.password)?,
            };
            administrators.insert(administrator.name.clone(), AdministratorRecord { credential, is_configured: true });
        } else if administrators.is_empty() && directory.is_in_cluster() {
            return Err(Failure::bad_request(
                "A cluster needs an administrator: give all its servers the same STEMMA_ADMIN_PASSWORD.",
            ));
        } else if administrators.is_empty() {
            let password = Uuid::new_v4().simple().to_string();
            let credential = store_administrator(directory, "admin", &password)?;
            administrators.insert("admin".to_owned(), AdministratorRecord { credential, is_configured: false });
            generated = Some(password);
        }
        Ok((Administrators(RwLock::new(administrators)), generated))
    }

    /// Reads what other servers of the cluster have changed. Blocks.
    pub(super) fn reload(&self, directory: &Directory) -> Result<()> {
        let mut administrators = self.0.write();
        let stored = stored(directory)?;
        administrators.retain(|name, known| known.is_configured || stored.contains_key(name));
        for (name, record) in stored {
            let is_configured = administrators.get(&name).is_some_and(|known| known.is_configured);
            administrators.insert(name, AdministratorRecord { is_configured, ..record });
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.read().keys().cloned().collect()
    }

    /// The credential of the administrator `name`.
    pub(super) fn credential(&self, name: &str) -> Option<Credential> {
        self.0.read().get(name).map(|administrator| administrator.credential.clone())
    }

    /// Creates the administrator `name` or changes its password. Hashing takes some tens of milliseconds. Blocks.
    ///
    /// # Errors
    /// 400 if the name or password is invalid; 403 for the administrator that the configuration names.
    pub(crate) fn set(&self, directory: &Directory, name: &str, password: &str) -> Result<()> {
        if name.is_empty() || name.contains(':') || password.is_empty() {
            return Err(Failure::bad_request("a name has no colon, and neither name nor password is empty"));
        }
        if ["-pbkdf2", "-hashed-", "-argon2"].iter().any(|prefix| password.starts_with(prefix)) {
            return Err(Failure::bad_request("this is what another server keeps of a password: send the password"));
        }
        self.check_changeable(name)?;
        let credential = store_administrator(directory, name, password)?;
        self.0.write().insert(name.to_owned(), AdministratorRecord { credential, is_configured: false });
        Ok(())
    }

    /// Removes the administrator `name`. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 403 for the one that the configuration names, and for the last one.
    pub(crate) fn remove(&self, directory: &Directory, name: &str) -> Result<()> {
        self.check_changeable(name)?;
        let mut administrators = self.0.write();
        match (administrators.contains_key(name), administrators.len()) {
            (false, _) => return Err(Failure::not_found("unknown_config_value")),
            (true, 1) => return Err(Failure::forbidden("A server has an administrator: make another one first.")),
            (true, _) => {}
        }
        directory.remove_record(KIND, name)?;
        administrators.remove(name);
        Ok(())
    }

    fn check_changeable(&self, name: &str) -> Result<()> {
        match self.0.read().get(name) {
            Some(administrator) if administrator.is_configured => {
                Err(Failure::forbidden("The configuration names this administrator: change it there."))
            }
            _ => Ok(()),
        }
    }
}

/// The credential of the configured administrator of a cluster. Its servers share the hash: a session of one is one of
/// all.
fn shared_credential(
    directory: &Directory,
    stored: &BTreeMap<String, AdministratorRecord>,
    configured: &Administrator,
) -> Result<Credential> {
    match stored.get(&configured.name).filter(|known| known.credential.matches(&configured.password)) {
        Some(known) => Ok(known.credential.clone()),
        None => store_administrator(directory, &configured.name, &configured.password),
    }
}

/// The administrators of the catalog.
fn stored(directory: &Directory) -> Result<BTreeMap<String, AdministratorRecord>> {
    let records = directory.records(KIND)?.into_iter().map(|(name, value)| {
        let credential = Credential::from_user(&value);
        let credential = credential.ok_or_else(|| Failure::internal("an administrator in the catalog is damaged"))?;
        Ok((name, AdministratorRecord { credential, is_configured: false }))
    });
    records.collect()
}

fn store_administrator(directory: &Directory, name: &str, password: &str) -> Result<Credential> {
    let credential = Credential::new(password)?;
    let mut object = Object::new();
    credential.put(&mut object);
    directory.put_record(KIND, name, &stemmadb::Value::Object(object).deserialize_into()?)?;
    Ok(credential)
}
