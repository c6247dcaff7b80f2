//! Sort keys of strings in one language, by ICU4X.

use std::fmt;

use icu_collator::CollatorBorrowed;
use icu_collator::options::CollatorOptions;
use icu_locale_core::Locale;

use crate::{Error, Result};

/// The collation rules of one language.
pub(super) struct Collator(CollatorBorrowed<'static>);

impl Collator {
    /// Loads the rules of the language with this BCP 47 tag; also returns the tag in canonical form.
    ///
    /// # Errors
    /// `Invalid` if the tag is not a valid language tag.
    pub(super) fn new(tag: &str) -> Result<(String, Self)> {
        let shown = || tag.chars().take(64).collect::<String>();
        let invalid = |error: &dyn fmt::Display| {
            Error::invalid(format!("`{}` is not a language: {error}", shown())).with_hint(
                "write a BCP 47 tag such as `de`, `sv`, `de-u-co-phonebk`, or `und` for no particular language",
            )
        };
        let locale = Locale::try_from_str(tag).map_err(|error| invalid(&error))?;
        let collator = icu_collator::Collator::try_new((&locale).into(), CollatorOptions::default())
            .map_err(|error| invalid(&error))?;
        Ok((locale.to_string(), Collator(collator)))
    }

    /// Appends the sort key of a string.
    pub(super) fn write_sort_key(&self, text: &str, out: &mut Vec<u8>) {
        let Ok(()) = self.0.write_sort_key_to(text, out);
    }
}
