//! How is the server set? Each setting is defined once, in a table; it is given by a flag, a variable of the environment, a key of a
//! file, or not at all, and counts in this order.
//!
//! ```text
//! table   all settings                     kind    how values are written
//! gather  where each value comes from      file    a file's keys
//! runtime what is changed over HTTP
//! render  what is in force as TOML, and the guide's table
//! ```

mod file;
mod gather;
mod kind;
mod render;
mod runtime;
mod table;

use crate::config::Config;

pub use gather::{Given, LoadedSettings, Origin, Sources};
pub use kind::Kind;
pub use render::guide;
pub(crate) use runtime::{RuntimeSettings, SettingStore};

/// What the variables of the environment begin with.
pub const ENVIRONMENT_PREFIX: &str = "STEMMA_";
/// The file that is read in the directory of the databases, where no other is named.
pub const FILE: &str = "stemma.toml";

/// One setting.
pub struct Setting {
    /// Its key in a file: `section.key`, or `key`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it says, in one line without a full stop.
    pub help: &'static str,
    /// The default, where it is not one value.
    default_text: Option<&'static str>,
    /// Puts values into a configuration; an error says what is wrong with them.
    apply: fn(&mut Config, &[String]) -> Result<(), String>,
    /// The values that a configuration has; none for those that are not told.
    show: fn(&Config) -> Vec<String>,
}

/// What is wrong with how the server is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// What is wrong, and where it came from.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Every setting, in the order in which they are told.
pub fn settings() -> &'static [Setting] {
    table::SETTINGS
}

impl Setting {
    /// Its flag without the dashes; none for a secret, since other users of the machine can read a command line.
    pub fn flag(&self) -> Option<String> {
        (self.kind != Kind::Secret).then(|| self.name.replace(['.', '_'], "-"))
    }

    /// Its variable of the environment.
    pub fn variable(&self) -> String {
        format!("{ENVIRONMENT_PREFIX}{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// What it is where nobody says anything.
    pub fn default_text(&self) -> String {
        match self.default_text {
            Some(told) => told.to_owned(),
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

/// The setting that is called nearly so, if there is one.
fn nearest(name: &str) -> Option<&'static Setting> {
    const NEAR_ENOUGH: f64 = 0.8;
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |setting: &Setting| {
        let whole = strsim::jaro_winkler(setting.name, name);
        // The right key in the wrong section.
        whole.max(strsim::jaro_winkler(&last(setting.name), &last(name)) - 0.01)
    };
    let best = settings().iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= NEAR_ENOUGH).then_some(best)
}
