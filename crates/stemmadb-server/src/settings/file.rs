//! Parses the TOML settings file, whose keys are `key` at the top or `key` in a `[section]`.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::load::{SettingSource, SettingValue};
use super::{Setting, SettingsError, nearest, settings};

/// Reads the settings of a file's text, in the order of the file.
pub(super) fn read(path: &Path, text: &str) -> Result<Vec<(&'static Setting, SettingValue)>, SettingsError> {
    let line_of = |at: usize| text[..at.min(text.len())].lines().count().max(1);
    let parsed = DeTable::parse(text).map_err(|error| {
        let line = line_of(error.span().map_or(0, |span| span.start));
        SettingsError::new(format!("{}, line {line}: {}", path.display(), error.message()))
    })?;
    let mut values = Vec::new();
    for (name, value) in keys(parsed.get_ref()) {
        let line = line_of(value.span().end);
        let setting = settings().iter().find(|setting| setting.name == name);
        let setting = setting.ok_or_else(|| unknown(&format!("{}, line {line}", path.display()), &name))?;
        let texts = texts(value.get_ref()).ok_or_else(|| {
            let message = format!("{}, line {line}: {name}: expected {}", path.display(), setting.kind.expected());
            SettingsError::new(message)
        })?;
        values.push((setting, SettingValue { texts, source: SettingSource::File(path.to_owned(), line) }));
    }
    Ok(values)
}

/// The error for an unknown key.
fn unknown(place: &str, name: &str) -> SettingsError {
    let error = SettingsError::new(format!("{place}: there is no setting {name}"));
    match nearest(name) {
        Some(near) => error.with_hint(format!("did you mean {}?", near.name)),
        None => error.with_hint("`stemma serve --help` lists them"),
    }
}

/// The keys of a table and of its sections, with their values.
fn keys<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(String, &'a Spanned<DeValue<'i>>)> {
    let mut keys = Vec::new();
    for (name, value) in table {
        match value.get_ref() {
            DeValue::Table(section) => {
                let within = keys_below(section, name.get_ref());
                keys.extend(within);
            }
            _ => keys.push((name.get_ref().to_string(), value)),
        }
    }
    keys
}

fn keys_below<'a, 'i>(section: &'a DeTable<'i>, name: &str) -> Vec<(String, &'a Spanned<DeValue<'i>>)> {
    section.iter().map(|(key, value)| (format!("{name}.{}", key.get_ref()), value)).collect()
}

/// Converts a value to the texts that a flag would have. Returns `None` for dates and tables.
fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
        value => text(value).map(|text| vec![text]),
    }
}

fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}
