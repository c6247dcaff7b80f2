//! Administrators of the server: whom the configuration names, and those that were made over HTTP. There is always one.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use stemmadb::Object;
use uuid::Uuid;

use crate::auth::Credential;
use crate::config::Config;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::settings::SettingStore;

/// What they are kept under in the catalogue.
const KIND: &str = "administrator";

/// Administrators of the server, by their names.
pub(crate) struct Administrators(RwLock<BTreeMap<String, Known>>);

struct Known {
    credential: Credential,
    /// Whether the configuration names them.
    is_configured: bool,
}

impl Administrators {
    /// Those that there are. Where there is none, `admin` is made, with a password that is returned and kept as a hash. Blocks.
    pub(crate) fn load(config: &Config, directory: &Directory) -> Result<(Self, Option<String>)> {
        let mut known = BTreeMap::new();
        for (name, value) in directory.records(KIND)? {
            let credential = Credential::of_user(&value);
            let credential =
                credential.ok_or_else(|| Failure::internal("an administrator in the catalogue is damaged"))?;
            known.insert(name, Known { credential, is_configured: false });
        }
        let mut generated = None;
        if let Some(administrator) = &config.administrator {
            let credential = Credential::new(&administrator.password)?;
            known.insert(administrator.name.clone(), Known { credential, is_configured: true });
        } else if known.is_empty() {
            let password = Uuid::new_v4().simple().to_string();
            let credential = keep(directory, "admin", &password)?;
            known.insert("admin".to_owned(), Known { credential, is_configured: false });
            generated = Some(password);
        }
        Ok((Administrators(RwLock::new(known)), generated))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.read().keys().cloned().collect()
    }

    /// What is kept of the password of `name`; none if they are no administrator.
    pub(super) fn credential(&self, name: &str) -> Option<Credential> {
        self.0.read().get(name).map(|known| known.credential.clone())
    }

    /// Makes `name` an administrator, or gives them another password. Takes some tens of milliseconds. Blocks.
    ///
    /// # Errors
    /// 400 if name or password can't be one; 403 for whom the configuration names.
    pub(crate) fn set(&self, directory: &Directory, name: &str, password: &str) -> Result<()> {
        if name.is_empty() || name.contains(':') || password.is_empty() {
            return Err(Failure::bad_request("a name has no colon, and neither name nor password is empty"));
        }
        if ["-pbkdf2", "-hashed-", "-argon2"].iter().any(|kept| password.starts_with(kept)) {
            return Err(Failure::bad_request("this is what another server keeps of a password: send the password"));
        }
        self.changeable(name)?;
        let credential = keep(directory, name, password)?;
        self.0.write().insert(name.to_owned(), Known { credential, is_configured: false });
        Ok(())
    }

    /// Takes `name` off the administrators. Blocks.
    ///
    /// # Errors
    /// 404 if they are none; 403 for whom the configuration names, and for the last.
    pub(crate) fn remove(&self, directory: &Directory, name: &str) -> Result<()> {
        self.changeable(name)?;
        let mut known = self.0.write();
        match (known.contains_key(name), known.len()) {
            (false, _) => return Err(Failure::not_found("unknown_config_value")),
            (true, 1) => return Err(Failure::forbidden("A server has an administrator: make another one first.")),
            (true, _) => {}
        }
        directory.remove_record(KIND, name)?;
        known.remove(name);
        Ok(())
    }

    fn changeable(&self, name: &str) -> Result<()> {
        match self.0.read().get(name) {
            Some(known) if known.is_configured => {
                Err(Failure::forbidden("The configuration names this administrator: change it there."))
            }
            _ => Ok(()),
        }
    }
}

fn keep(directory: &Directory, name: &str, password: &str) -> Result<Credential> {
    let credential = Credential::new(password)?;
    let mut object = Object::new();
    credential.put(&mut object);
    directory.put_record(KIND, name, &stemmadb::Value::Object(object).deserialize_into()?)?;
    Ok(credential)
}
