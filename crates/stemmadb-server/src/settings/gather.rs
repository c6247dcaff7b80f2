//! Where does each value come from? A flag counts before the environment, that before the file, that before the default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{ENVIRONMENT_PREFIX, FILE, Kind, Setting, SettingsError, file, nearest, settings};
use crate::config::Config;

/// Where settings are looked for.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The directory of the databases.
    pub directory: PathBuf,
    /// The file that was named. None: [`FILE`] in the directory, if it is there.
    pub file: Option<PathBuf>,
    /// Names of settings, with the values that flags give them.
    pub flags: Vec<(String, Vec<String>)>,
    /// Variables of the environment; those that don't begin with [`ENVIRONMENT_PREFIX`] are not looked at.
    pub environment: Vec<(String, String)>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    Flag(String),
    /// A variable of the environment.
    Environment(String),
    /// A file, and the line in it.
    File(PathBuf, usize),
}

/// The values that somebody gave a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// As they were written.
    pub texts: Vec<String>,
    /// Where.
    pub origin: Origin,
}

/// How the server is to be run, and where that was said.
#[derive(Debug)]
pub struct LoadedSettings {
    /// How it is to be run.
    pub config: Config,
    /// What was said, by the names of settings. What is not there has its default.
    pub given: BTreeMap<&'static str, Given>,
    /// What somebody should know.
    pub remarks: Vec<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "--{flag}"),
            Origin::Environment(variable) => f.write_str(variable),
            Origin::File(path, line) => write!(f, "{}, line {line}", path.display()),
        }
    }
}

impl Sources {
    /// What all of them together say.
    ///
    /// # Errors
    /// If a name is unknown, a value is not of its kind, or a file can't be read.
    pub fn gather(self) -> Result<LoadedSettings, SettingsError> {
        let mut given = BTreeMap::new();
        let mut remarks = Vec::new();
        for (setting, value) in self.of_file()? {
            given.insert(setting.name, value);
        }
        for (setting, value) in self.of_environment(&mut remarks) {
            given.insert(setting.name, value);
        }
        for (setting, value) in self.of_flags() {
            given.insert(setting.name, value);
        }
        one_password(&mut given);
        let mut config = Config::new(&self.directory);
        for setting in settings() {
            if let Some(value) = given.get(setting.name) {
                (setting.apply)(&mut config, &value.texts).map_err(|why| wrong(setting, value, &why))?;
            }
        }
        check(&config, &given)?;
        config.given = given.iter().map(|(name, given)| (*name, given.origin.to_string())).collect();
        remarks.extend(exposed(&given));
        Ok(LoadedSettings { config, given, remarks })
    }

    fn of_file(&self) -> Result<Vec<(&'static Setting, Given)>, SettingsError> {
        let path = self.file.clone().unwrap_or_else(|| self.directory.join(FILE));
        match std::fs::read_to_string(&path) {
            Ok(text) => file::read(&path, &text),
            Err(error) if self.file.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(SettingsError::new(format!("{} can't be read: {error}", path.display()))),
        }
    }

    fn of_environment(&self, remarks: &mut Vec<String>) -> Vec<(&'static Setting, Given)> {
        let mut given = Vec::new();
        for (variable, text) in &self.environment {
            let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            match settings().iter().find(|setting| setting.variable() == *variable) {
                Some(setting) => {
                    let texts = split(setting.kind, text);
                    given.push((setting, Given { texts, origin: Origin::Environment(variable.clone()) }));
                }
                // No error: others set such variables too, a container's manager for one.
                None => {
                    let near = nearest(&rest.to_ascii_lowercase());
                    let near = near.map(|near| format!("; did you mean {}?", near.variable())).unwrap_or_default();
                    remarks.push(format!("{variable} is no setting{near}"));
                }
            }
        }
        given
    }

    fn of_flags(&self) -> Vec<(&'static Setting, Given)> {
        let known = |name: &String| settings().iter().find(|setting| setting.name == name);
        let flags = self.flags.iter().filter_map(|(name, texts)| {
            let setting = known(name)?;
            let texts = texts.iter().flat_map(|text| split(setting.kind, text)).collect();
            Some((setting, Given { texts, origin: Origin::Flag(setting.flag()?) }))
        });
        flags.collect()
    }
}

/// The values that one text has.
fn split(kind: Kind, text: &str) -> Vec<String> {
    match kind.is_list() {
        true => text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect(),
        false => vec![text.to_owned()],
    }
}

/// Of a password and a file with one, that counts which is from where counts more: the other is forgotten.
fn one_password(given: &mut BTreeMap<&'static str, Given>) {
    let rank = |given: Option<&Given>| {
        given.map(|given| match given.origin {
            Origin::Flag(_) => 3,
            Origin::Environment(_) => 2,
            Origin::File(..) => 1,
        })
    };
    let (text, file) = (rank(given.get("admin.password")), rank(given.get("admin.password_file")));
    if text.is_some() && file.is_some() && text != file {
        given.remove(if text < file { "admin.password" } else { "admin.password_file" });
    }
}

fn wrong(setting: &Setting, given: &Given, why: &str) -> SettingsError {
    let shown = match setting.kind {
        Kind::Secret => String::new(),
        _ => format!(" {:?}", given.texts.join(",")),
    };
    SettingsError::new(format!("{}{shown} (from {}): {why}", setting.name, given.origin))
}

/// What belongs together is there together.
fn check(config: &Config, given: &BTreeMap<&'static str, Given>) -> Result<(), SettingsError> {
    let from = |name: &str| given.get(name).map(|given| format!(" (from {})", given.origin)).unwrap_or_default();
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

/// A file with a password that others of the machine can read.
fn exposed(given: &BTreeMap<&'static str, Given>) -> Option<String> {
    let path = match given.get("admin.password").map(|given| &given.origin) {
        Some(Origin::File(path, _)) => path.clone(),
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
