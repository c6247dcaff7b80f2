//! Server settings. Each is defined once, in a table, and can be set by a flag, an environment variable or a key of a
//! file, in this order of precedence.
//!
//! ```text
//! table    definitions of all settings      kind    syntax of values
//! load     loading from all sources         file    parsing of the settings file
//! runtime  settings changed over HTTP       render  effective settings as TOML, and the guide's table
//! ```

mod file;
mod kind;
mod load;
mod render;
mod runtime;
mod table;

use crate::config::Config;

pub use kind::Kind;
pub use load::{LoadedSettings, SettingSource, SettingSources, SettingValue};
pub use render::guide;
pub(crate) use runtime::{RuntimeSettings, SettingStore};

/// The prefix of environment variables.
pub const ENVIRONMENT_PREFIX: &str = "STEMMA_";
/// The default settings file, in the directory of the databases.
pub const FILE: &str = "stemma.toml";

/// The definition of a setting.
pub struct Setting {
    /// The key in a file: `section.key`, or `key`.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The description, in one line without a full stop.
    pub help: &'static str,
    /// The description of the default, if it is not a fixed value.
    default_text: Option<&'static str>,
    /// Sets the values in a configuration. An error describes what is wrong with them.
    apply: fn(&mut Config, &[String]) -> Result<(), String>,
    /// Reads the values from a configuration; empty for secrets.
    show: fn(&Config) -> Vec<String>,
}

/// An error in the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// What is wrong, and in which source.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

/// All settings, in the order of the documentation.
pub fn settings() -> &'static [Setting] {
    table::SETTINGS
}

impl Setting {
    /// The flag, without dashes. Secrets have none, because other users of the machine can read command lines.
    pub fn flag(&self) -> Option<String> {
        (self.kind != Kind::Secret).then(|| self.name.replace(['.', '_'], "-"))
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("{ENVIRONMENT_PREFIX}{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// The default value or its description.
    pub fn default_text(&self) -> String {
        match self.default_text {
            Some(text) => text.to_owned(),
            None => (self.show)(&Config::new("")).join(","),
        }
    }
}

impl SettingsError {
    fn new(message: impl Into<String>) -> Self {
        SettingsError { message: message.into(), hint: None }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        SettingsError { hint: Some(hint.into()), ..self }
    }
}

/// Finds the setting with the most similar name, if one is similar enough.
fn nearest(name: &str) -> Option<&'static Setting> {
    const SIMILARITY_MIN: f64 = 0.8;
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let similarity = |setting: &Setting| {
        let whole = strsim::jaro_winkler(setting.name, name);
        // The right key in the wrong section.
        whole.max(strsim::jaro_winkler(&last(setting.name), &last(name)) - 0.01)
    };
    let best = settings().iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) >= SIMILARITY_MIN).then_some(best)
}
