//! Names of databases' directories: the database's name, percent-encoded where needed, and `.stemma`.
//!
//! Names of databases have no capital letters, so names that differ only in case do not occur. A directory that can't
//! have the plain name, because another one has it, gets a suffix with a dot: no database's name has one.

use std::fmt::Write as _;

use uuid::Uuid;

use super::name;

/// The extension of databases' directories.
pub(super) const EXTENSION: &str = "stemma";

/// The longest encoded name; file systems allow 255 bytes, of which the suffix and the extension take some.
const ENCODED_BYTES_MAX: usize = 230;

/// Names that Windows reserves for devices, with any extension.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];
const NUMBERED_DEVICES: [&str; 2] = ["com", "lpt"];

/// The directory of the database `name`: the first one that is free, so that a new database never gets the files of
/// another one.
pub(super) fn directory_of(name: &str, is_free: impl Fn(&str) -> bool) -> String {
    let (encoded, plain) = (encode(name), plain_directory(name));
    match encoded.len() <= ENCODED_BYTES_MAX && is_free(&plain) {
        true => plain,
        false => unique_directory(name),
    }
}

/// A directory of the database `name` that no other one has.
pub(super) fn unique_directory(name: &str) -> String {
    let short: String = encode(name).chars().take(ENCODED_BYTES_MAX).collect();
    let id = Uuid::new_v4().simple().to_string();
    format!("{short}.{}.{EXTENSION}", &id[..8])
}

/// The directory that the database `name` usually has.
pub(super) fn plain_directory(name: &str) -> String {
    format!("{}.{EXTENSION}", encode(name))
}

/// The name of the database that a directory of this name is, if it was copied there; none if it can't be one.
pub(super) fn database_of(directory: &str) -> Option<String> {
    let stem = directory.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    let name = percent_encoding::percent_decode_str(stem).decode_utf8().ok()?;
    name::check(&name).is_ok().then(|| name.into_owned())
}

fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for (index, character) in name.chars().enumerate() {
        match character {
            'a'..='z' | '0'..='9' | '_' | '$' | '(' | ')' | '+' | '-' if index > 0 || !is_device(name) => {
                encoded.push(character);
            }
            // Writing to a string can't fail. Names are ASCII.
            other => write!(encoded, "%{:02X}", u32::from(other)).unwrap_or_default(),
        }
    }
    encoded
}

fn is_device(name: &str) -> bool {
    let is_numbered = NUMBERED_DEVICES
        .iter()
        .any(|device| name.strip_prefix(device).is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'9'])));
    DEVICES.contains(&name) || is_numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_and_decode_to_themselves() {
        for (name, directory) in [
            ("library", "library.stemma"),
            ("_users", "_users.stemma"),
            ("a_b$(c)+d-e", "a_b$(c)+d-e.stemma"),
            ("team/_users", "team%2F_users.stemma"),
            ("con", "%63on.stemma"),
            ("lpt1", "%6Cpt1.stemma"),
            ("console", "console.stemma"),
        ] {
            assert_eq!(directory_of(name, |_| true), directory);
            assert_eq!(database_of(directory).as_deref(), Some(name));
        }
    }

    #[test]
    fn taken_and_long_names_get_a_suffix() {
        let taken = directory_of("a", |directory| directory != "a.stemma");
        assert!(taken.starts_with("a.") && taken.len() == "a.12345678.stemma".len(), "{taken}");
        assert_eq!(database_of(&taken), None, "it is not adopted");
        let name = format!("a{}", "/".repeat(237));
        let long = directory_of(&name, |_| true);
        assert!(long.len() <= 255 && long.starts_with("a%2F"), "{long}");
    }

    #[test]
    fn other_files_are_no_databases() {
        for directory in ["catalogue", "library", ".stemma", "Library.stemma", "a.b.stemma", "%FF.stemma", "a%2.stemma"]
        {
            assert_eq!(database_of(directory), None, "{directory}");
        }
    }
}
