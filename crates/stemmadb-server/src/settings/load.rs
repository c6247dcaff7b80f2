//! Loads the settings of a server from flags, environment variables, the settings file and defaults, in this order of
//! precedence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{ENVIRONMENT_PREFIX, FILE, Kind, Setting, SettingsError, file, nearest, settings};
use crate::config::Config;

/// The sources of settings.
#[derive(Debug, Clone, Default)]
pub struct SettingSources {
    /// The directory of the databases.
    pub directory: PathBuf,
    /// The settings file. `None`: [`FILE`] in the directory, if it exists.
    pub file: Option<PathBuf>,
    /// The flags: names of settings with their values.
    pub flags: Vec<(String, Vec<String>)>,
    /// The environment variables. Those that do not begin with [`ENVIRONMENT_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// A flag.
    Flag(String),
    /// An environment variable.
    Environment(String),
    /// A file and a line in it.
    File(PathBuf, usize),
}

/// The explicit value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingValue {
    /// The texts as they were written; several for a list.
    pub texts: Vec<String>,
    /// Their source.
    pub source: SettingSource,
}

/// The loaded configuration, with the sources of its values.
#[derive(Debug)]
pub struct LoadedSettings {
    /// The configuration.
    pub config: Config,
    /// The explicit values by name of setting. All other settings have their defaults.
    pub values: BTreeMap<&'static str, SettingValue>,
    /// Warnings to show to the user.
    pub warnings: Vec<String>,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Flag(flag) => write!(f, "--{flag}"),
            SettingSource::Environment(variable) => f.write_str(variable),
            SettingSource::File(path, line) => write!(f, "{}, line {line}", path.display()),
        }
    }
}

impl SettingSources {
    /// Loads the settings from all sources.
    ///
    /// # Errors
    /// If a name is unknown, a value is not of its kind, or a file can't be read.
    pub fn load(self) -> Result<LoadedSettings, SettingsError> {
        let mut given = BTreeMap::new();
        let mut warnings = Vec::new();
        for (setting, value) in self.read_file()? {
            given.insert(setting.name, value);
        }
        for (setting, value) in self.read_environment(&mut warnings) {
            given.insert(setting.name, value);
        }
        for (setting, value) in self.read_flags() {
            given.insert(setting.name, value);
        }
        keep_one_password(&mut given);
        let mut config = Config::new(&self.directory);
        for setting in settings() {
            if let Some(value) = given.get(setting.name) {
                (setting.apply)(&mut config, &value.texts).map_err(|why| invalid_value(setting, value, &why))?;
            }
        }
        check(&config, &given)?;
        config.setting_sources = given.iter().map(|(name, given)| (*name, given.source.to_string())).collect();
        warnings.extend(exposed_password(&given));
        Ok(LoadedSettings { config, values: given, warnings })
    }

    fn read_file(&self) -> Result<Vec<(&'static Setting, SettingValue)>, SettingsError> {
        let path = self.file.clone().unwrap_or_else(|| self.directory.join(FILE));
        match std::fs::read_to_string(&path) {
            Ok(text) => file::read(&path, &text),
            Err(error) if self.file.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(SettingsError::new(format!("{} can't be read: {error}", path.display()))),
        }
    }

    fn read_environment(&self, warnings: &mut Vec<String>) -> Vec<(&'static Setting, SettingValue)> {
        let mut given = Vec::new();
        for (variable, text) in &self.environment {
            let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            match settings().iter().find(|setting| setting.variable() == *variable) {
                Some(setting) => {
                    let texts = split(setting.kind, text);
                    given.push((setting, SettingValue { texts, source: SettingSource::Environment(variable.clone()) }));
                }
                // Not an error, because other programs, such as container managers, set variables with this prefix.
                None => {
                    let near = nearest(&rest.to_ascii_lowercase());
                    let near = near.map(|near| format!("; did you mean {}?", near.variable())).unwrap_or_default();
                    warnings.push(format!("{variable} is no setting{near}"));
                }
            }
        }
        given
    }

    fn read_flags(&self) -> Vec<(&'static Setting, SettingValue)> {
        let known = |name: &String| settings().iter().find(|setting| setting.name == name);
        let flags = self.flags.iter().filter_map(|(name, texts)| {
            let setting = known(name)?;
            let texts = texts.iter().flat_map(|text| split(setting.kind, text)).collect();
            Some((setting, SettingValue { texts, source: SettingSource::Flag(setting.flag()?) }))
        });
        flags.collect()
    }
}

/// Splits a text into its values, if the setting is a list.
fn split(kind: Kind, text: &str) -> Vec<String> {
    match kind.is_list() {
        true => text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect(),
        false => vec![text.to_owned()],
    }
}

/// If both a password and a password file are set, keeps the one from the source of higher precedence.
fn keep_one_password(given: &mut BTreeMap<&'static str, SettingValue>) {
    let rank = |given: Option<&SettingValue>| {
        given.map(|given| match given.source {
            SettingSource::Flag(_) => 3,
            SettingSource::Environment(_) => 2,
            SettingSource::File(..) => 1,
        })
    };
    let (text, file) = (rank(given.get("admin.password")), rank(given.get("admin.password_file")));
    if text.is_some() && file.is_some() && text != file {
        given.remove(if text < file { "admin.password" } else { "admin.password_file" });
    }
}

fn invalid_value(setting: &Setting, given: &SettingValue, why: &str) -> SettingsError {
    let shown = match setting.kind {
        Kind::Secret => String::new(),
        _ => format!(" {:?}", given.texts.join(",")),
    };
    SettingsError::new(format!("{}{shown} (from {}): {why}", setting.name, given.source))
}

/// Checks that settings that require each other are set together.
fn check(config: &Config, given: &BTreeMap<&'static str, SettingValue>) -> Result<(), SettingsError> {
    let from = |name: &str| given.get(name).map(|given| format!(" (from {})", given.source)).unwrap_or_default();
    if given.contains_key("admin.password") && given.contains_key("admin.password_file") {
        let message = format!(
            "there are two passwords: admin.password{} and admin.password_file{}",
            from("admin.password"),
            from("admin.password_file")
        );
        return Err(SettingsError::new(message));
    }
    if config.administrator.as_ref().is_some_and(|administrator| administrator.password.is_empty()) {
        let message = format!("admin.name{} has no password", from("admin.name"));
        return Err(SettingsError::new(message).with_hint("STEMMA_ADMIN_PASSWORD or --admin-password-file gives one"));
    }
    if let Some(tls) = &config.tls {
        let missing = [("tls.certificate", &tls.certificate), ("tls.key", &tls.key)];
        if let Some((name, _)) = missing.into_iter().find(|(_, path)| path.as_os_str().is_empty()) {
            return Err(SettingsError::new(format!("{name} is missing: a certificate and its key belong together")));
        }
    }
    Ok(())
}

/// Returns a warning if a file with a password is readable by other users of the machine.
fn exposed_password(given: &BTreeMap<&'static str, SettingValue>) -> Option<String> {
    let path = match given.get("admin.password").map(|given| &given.source) {
        Some(SettingSource::File(path, _)) => path.clone(),
        _ => PathBuf::from(given.get("admin.password_file")?.texts.first()?),
    };
    is_readable_by_others(&path)
        .then(|| format!("{} has a password, and others can read it: chmod 600", path.display()))
}

#[cfg(unix)]
fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &Path) -> bool {
    false
}
