//! Settings that are changed over HTTP while the server runs: kept in the catalogue, they count where no flag, variable or file says
//! anything, so that there is never a doubt about which counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use stemmadb::Value;

use super::{Setting, settings};
use crate::config::Config;
use crate::error::{Failure, Result};

/// What they are kept under in the catalogue.
const KIND: &str = "setting";
/// Those that can be changed.
const CHANGEABLE: [&str; 5] =
    ["session_timeout", "require_valid_user", "cors.enabled", "cors.origins", "cors.credentials"];

/// Where changed settings are stored: records by kind and name.
pub(crate) trait SettingStore {
    /// All records of a kind: names and values. Blocks.
    fn records(&self, kind: &str) -> Result<Vec<(String, Value)>>;

    /// Stores a record, in place of the one of this name. Blocks until it is flushed.
    fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()>;

    /// Removes a record, if there is one of this name. Blocks until that is flushed.
    fn remove_record(&self, kind: &str, name: &str) -> Result<()>;
}

/// The configuration in force.
pub(crate) struct RuntimeSettings {
    /// As the server was started.
    started: Config,
    changed: Mutex<BTreeMap<&'static str, Vec<String>>>,
    current: RwLock<Arc<Config>>,
}

impl RuntimeSettings {
    /// As the server is started, with what was changed before and is not said otherwise now. Blocks.
    pub(crate) fn load(config: &Config, store: &dyn SettingStore) -> Result<Self> {
        let mut changed = BTreeMap::new();
        for (name, value) in store.records(KIND)? {
            let Ok(setting) = changeable(config, &name) else { continue };
            let texts: Vec<String> = value.get("texts").cloned().unwrap_or_default().deserialize_into()?;
            changed.insert(setting.name, texts);
        }
        let current = RwLock::new(Arc::new(with(config, &changed)?));
        Ok(RuntimeSettings { started: config.clone(), changed: Mutex::new(changed), current })
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.current.read().clone()
    }

    /// Gives a setting other values, or with none those that it was started with. Blocks until that is flushed.
    ///
    /// # Errors
    /// 403 for one that can't be changed while the server runs, 400 for values that are none.
    pub(crate) fn change(&self, store: &dyn SettingStore, name: &str, texts: Option<Vec<String>>) -> Result<()> {
        let setting = changeable(&self.started, name)?;
        let mut kept = self.changed.lock();
        let mut changed = kept.clone();
        match &texts {
            Some(texts) => changed.insert(setting.name, texts.clone()),
            None => changed.remove(setting.name),
        };
        let config = with(&self.started, &changed)?;
        if texts.is_some() && admits_anybody(&config) {
            let reason =
                "cors.origins: `*` does not go with credentials, any site could act as its visitor: name the sites";
            return Err(Failure::bad_request(reason));
        }
        match &texts {
            Some(texts) => store.put_record(KIND, name, &serde_json::json!({ "texts": texts }))?,
            None => store.remove_record(KIND, name)?,
        }
        *self.current.write() = Arc::new(config);
        *kept = changed;
        Ok(())
    }
}

/// The setting of this name, if it can be changed.
fn changeable(config: &Config, name: &str) -> Result<&'static Setting> {
    if let Some(origin) = config.given.get(name) {
        return Err(Failure::forbidden(format!("{name} is set by {origin}: change it there.")));
    }
    let setting = settings().iter().find(|setting| setting.name == name && CHANGEABLE.contains(&name));
    setting.ok_or_else(|| Failure::forbidden(format!("{name} is set when the server is started.")))
}

fn with(config: &Config, changed: &BTreeMap<&'static str, Vec<String>>) -> Result<Config> {
    let mut config = config.clone();
    for setting in settings() {
        if let Some(texts) = changed.get(setting.name) {
            let wrong = |why| Failure::bad_request(format!("{}: {why}", setting.name));
            (setting.apply)(&mut config, texts).map_err(wrong)?;
        }
    }
    Ok(config)
}

/// Whether a page of any site would act as its visitor. (It may not, whatever is set; here somebody can be told.)
fn admits_anybody(config: &Config) -> bool {
    let cors = &config.cors;
    cors.enabled && cors.credentials && cors.origins.iter().any(|origin| origin == "*")
}
