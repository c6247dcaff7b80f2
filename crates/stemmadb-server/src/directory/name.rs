//! Validation of databases' names.

use hyper::StatusCode;

use crate::error::{Failure, Result};

const NAME_BYTES_MAX: usize = 238;

/// System databases, the only names that may begin with an underscore.
const SYSTEM_DATABASES: [&str; 4] = ["_users", "_replicator", "_global_changes", "_dbs"];

/// The part of a name that shows whether it is a system database, which may have a prefix: `team/_users`.
fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Whether this is the name of a system database.
pub(super) fn is_of_system(name: &str) -> bool {
    SYSTEM_DATABASES.contains(&last_part(name))
}

/// Checks the name of `what`, such as "a trigger".
///
/// # Errors
/// 400 if the name is empty or too long, or has other characters than letters, digits, `-`, `.` and `_`.
pub(crate) fn check_plain_name(what: &str, name: &str, bytes_max: usize) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match (1..=bytes_max).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(()),
        false => {
            let reason = format!("{what}'s name has 1 to {bytes_max} letters, digits, `-`, `.` or `_`");
            Err(Failure::bad_request(reason))
        }
    }
}

/// Checks a database's name by CouchDB's rules.
///
/// # Errors
/// 400 if the name is invalid.
pub(super) fn check(name: &str) -> Result<()> {
    let refuse = |word: &'static str, reason: String| Err(Failure::new(StatusCode::BAD_REQUEST, word, reason));
    if name.len() > NAME_BYTES_MAX {
        let reason = format!("Database name: `{name}` is too long: at most {NAME_BYTES_MAX} bytes.");
        return refuse("database_name_too_long", reason);
    }
    let last = last_part(name);
    let rest = if SYSTEM_DATABASES.contains(&last) { name.strip_suffix(last).unwrap_or_default() } else { name };
    let has_valid_start = rest.is_empty() || rest.starts_with(|first: char| first.is_ascii_lowercase());
    let has_valid_characters = rest
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'$' | b'(' | b')' | b'+' | b'-' | b'/'));
    if name.is_empty() || !has_valid_start || !has_valid_characters {
        let reason = format!(
            "Name: '{name}'. Only lowercase characters (a-z), digits (0-9), and any of the characters \
             _, $, (, ), +, -, and / are allowed. Must begin with a letter."
        );
        return refuse("illegal_database_name", reason);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_couchdb() {
        for name in ["a", "a1", "a/b-c_d$(+)", "_users", "_replicator", "team/_users"] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "A", "1a", "_a", "a.b", "ä", "a b", "../a", "/a", "_users2", &"a".repeat(239)] {
            assert_eq!(check(name).unwrap_err().status(), StatusCode::BAD_REQUEST, "{name}");
        }
    }
}
