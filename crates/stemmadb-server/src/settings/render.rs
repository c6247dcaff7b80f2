//! Renders the effective settings as a TOML file, with the source of each value, and the settings table of the guide.

use std::fmt::Write as _;

use super::{Kind, LoadedSettings, Setting, settings};

impl LoadedSettings {
    /// Renders every setting with its value and source as TOML. Secrets are not shown.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for setting in settings() {
            let (within, key) = setting.name.split_once('.').unwrap_or(("", setting.name));
            if within != section {
                // Writing to a string can't fail.
                writeln!(text, "\n[{within}]").ok();
                section = within;
            }
            writeln!(text, "{}", self.line(setting, key)).ok();
        }
        text
    }

    fn line(&self, setting: &Setting, key: &str) -> String {
        let given = self.values.get(setting.name);
        let from = given.map_or("default".to_owned(), |given| format!("from {}", given.source));
        let values = given.map_or_else(|| (setting.show)(&self.config), |given| given.texts.clone());
        let written = match setting.kind {
            Kind::Secret if !values.is_empty() => format!("# {key} is set, and not shown"),
            kind if kind.is_list() => format!("{key} = {}", quoted(&values)),
            kind => match values.first() {
                Some(value) if kind.is_bare() => format!("{key} = {value}"),
                Some(value) => format!("{key} = {}", serde_json::Value::from(value.as_str())),
                None => format!("# {key} = {}", setting.default_text.unwrap_or("none")),
            },
        };
        format!("{written:<40} # {from}")
    }
}

fn quoted(values: &[String]) -> String {
    let values: Vec<_> = values.iter().map(|value| serde_json::Value::from(value.as_str()).to_string()).collect();
    format!("[{}]", values.join(", "))
}

/// The table of all settings, as Markdown.
pub fn guide() -> String {
    let mut page = "| key | what it is | default |\n|---|---|---|\n".to_owned();
    for setting in settings() {
        let default = Some(setting.default_text()).filter(|text| !text.is_empty());
        let default = default.map_or(String::new(), |text| format!("`{text}`"));
        writeln!(page, "| `{}` | {} | {default} |", setting.name, setting.help).ok();
    }
    page
}
