//! Stands in for language collation in builds without the `collation` feature.

use crate::{Error, Result};

/// The collation rules of one language: never constructed in such a build.
pub(super) enum Collator {}

impl Collator {
    /// Fails: this build has no collation data.
    ///
    /// # Errors
    /// Always `Unavailable`.
    pub(super) fn new(tag: &str) -> Result<(String, Self)> {
        let shown: String = tag.chars().take(64).collect();
        Err(Error::unavailable(format!("this build of Stemma can't sort by the language `{shown}`"))
            .with_hint("build it with the cargo feature `collation`"))
    }

    pub(super) fn write_sort_key(&self, _: &str, _: &mut Vec<u8>) {
        match *self {}
    }
}
