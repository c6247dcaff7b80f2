//! Settings changed over HTTP while the server runs. They are stored in the catalog, and apply only if no flag,
//! variable or file sets them, so that the effective value is never ambiguous.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use stemmadb::Value;

use super::{Setting, settings};
use crate::config::Config;
use crate::error::{Failure, Result};

/// The kind of their records in the catalog.
const KIND: &str = "setting";
/// The settings that can be changed.
const CHANGEABLE: [&str; 7] = [
    "session_timeout",
    "require_valid_user",
    "cors.enabled",
    "cors.origins",
    "cors.credentials",
    "limits.body_bytes",
    "limits.attachment_bytes",
];

/// The storage of changed settings: records by kind and name.
pub(crate) trait SettingStore {
    /// Returns the names and values of all records of a kind. Blocks.
    fn records(&self, kind: &str) -> Result<Vec<(String, Value)>>;

    /// Stores a record, replacing the one of the same name. Blocks until it is flushed.
    fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()>;

    /// Removes a record if it exists. Blocks until that is flushed.
    fn remove_record(&self, kind: &str, name: &str) -> Result<()>;
}

/// The effective configuration.
pub(crate) struct RuntimeSettings {
    /// The configuration that the server was started with.
    started: Config,
    changed: Mutex<BTreeMap<&'static str, Vec<String>>>,
    current: RwLock<Arc<Config>>,
}

impl RuntimeSettings {
    /// Creates the effective configuration: `config` with the stored changes of settings that it does not set
    /// explicitly. Blocks.
    pub(crate) fn load(config: &Config, store: &dyn SettingStore) -> Result<Self> {
        let mut changed = BTreeMap::new();
        for (name, value) in store.records(KIND)? {
            let Ok(setting) = changeable(config, &name) else { continue };
            let texts: Vec<String> = value.get("texts").cloned().unwrap_or_default().deserialize_into()?;
            changed.insert(setting.name, texts);
        }
        let current = RwLock::new(Arc::new(with_changes(config, &changed)?));
        Ok(RuntimeSettings { started: config.clone(), changed: Mutex::new(changed), current })
    }

    /// Returns the effective configuration.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.current.read().clone()
    }

    /// Changes the values of a setting, or with `None` resets them to those at the start. Blocks until that is flushed.
    ///
    /// # Errors
    /// 403 for a setting that can't be changed while the server runs, 400 for invalid values.
    pub(crate) fn change(&self, store: &dyn SettingStore, name: &str, texts: Option<Vec<String>>) -> Result<()> {
        let setting = changeable(&self.started, name)?;
        let mut current_changes = self.changed.lock();
        let mut changed = current_changes.clone();
        match &texts {
            Some(texts) => changed.insert(setting.name, texts.clone()),
            None => changed.remove(setting.name),
        };
        let config = with_changes(&self.started, &changed)?;
        if texts.is_some() && allows_any_site(&config) {
            let reason =
                "cors.origins: `*` does not go with credentials, any site could act as its visitor: name the sites";
            return Err(Failure::bad_request(reason));
        }
        match &texts {
            Some(texts) => store.put_record(KIND, name, &serde_json::json!({ "texts": texts }))?,
            None => store.remove_record(KIND, name)?,
        }
        *self.current.write() = Arc::new(config);
        *current_changes = changed;
        Ok(())
    }
}

/// Returns the setting of this name if it can be changed.
fn changeable(config: &Config, name: &str) -> Result<&'static Setting> {
    if let Some(origin) = config.setting_sources.get(name) {
        return Err(Failure::forbidden(format!("{name} is set by {origin}: change it there.")));
    }
    let setting = settings().iter().find(|setting| setting.name == name && CHANGEABLE.contains(&name));
    setting.ok_or_else(|| Failure::forbidden(format!("{name} is set when the server is started.")))
}

fn with_changes(config: &Config, changed: &BTreeMap<&'static str, Vec<String>>) -> Result<Config> {
    let mut config = config.clone();
    for setting in settings() {
        if let Some(texts) = changed.get(setting.name) {
            let wrong = |why| Failure::bad_request(format!("{}: {why}", setting.name));
            (setting.apply)(&mut config, texts).map_err(wrong)?;
        }
    }
    Ok(config)
}

/// Whether pages of any site could act as their visitors. Requests with credentials are refused for `*` in any case;
/// this allows to reject the setting.
fn allows_any_site(config: &Config) -> bool {
    let cors = &config.cors;
    cors.enabled && cors.credentials && cors.origins.iter().any(|origin| origin == "*")
}
