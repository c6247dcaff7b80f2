//! Document ids.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use smol_str::SmolStr;

use crate::{Error, Result};

/// The id of a document, unique in its database: 1 to 1,024 bytes of UTF-8.
///
/// Ids that begin with `_` are reserved: only `_design/…` and `_local/…` are accepted. Cloning is cheap: short ids are
/// stored inline, long ones are shared.
#[derive(Clone)]
pub struct DocumentId(SmolStr);

impl DocumentId {
    /// The maximum length of an id in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// Validates an id.
    ///
    /// # Errors
    /// `Invalid` if the text is empty, too long, or begins with `_` and is neither a design nor a local id.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        validate(text)?;
        Ok(DocumentId(text.into()))
    }

    /// Validates an id that was read from storage.
    ///
    /// # Errors
    /// `Corrupt` if the text is not a valid id.
    #[inline]
    pub(crate) fn from_stored(text: &str) -> Result<Self> {
        if text.as_bytes().first().is_none_or(|first| *first == b'_') || text.len() > Self::BYTES_MAX {
            validate(text).map_err(|error| Error::corrupt(error.message()).within("a stored document id"))?;
        }
        Ok(DocumentId(text.into()))
    }

    /// The id as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The heap bytes of the id, which its clones share.
    pub(crate) fn shared_bytes(&self) -> usize {
        if self.0.is_heap_allocated() { self.0.len() + 2 * size_of::<usize>() } else { 0 }
    }

    /// Whether this is the id of a `_local/…` document, which is neither indexed nor in the changes feed nor
    /// replicated.
    pub fn is_local(&self) -> bool {
        self.as_str().starts_with("_local/")
    }

    /// Whether this is the id of a `_design/…` document.
    pub fn is_design(&self) -> bool {
        self.as_str().starts_with("_design/")
    }
}

fn validate(text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid("a document id must not be empty"));
    }
    if text.len() > DocumentId::BYTES_MAX {
        let message = format!("a document id of {} bytes is too long", text.len());
        return Err(Error::invalid(message).with_hint("an id has at most 1024 bytes of UTF-8"));
    }
    let name = text.strip_prefix("_design/").or_else(|| text.strip_prefix("_local/"));
    if text.starts_with('_') && name.is_none_or(str::is_empty) {
        let message = format!("`{}` is not a document id", text.escape_debug());
        return Err(Error::invalid(message)
            .with_hint("ids that begin with `_` are reserved for `_design/name` and `_local/name`"));
    }
    Ok(())
}

impl PartialEq for DocumentId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for DocumentId {}

impl PartialOrd for DocumentId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DocumentId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// Hashes the text, as `Borrow<str>` requires.
impl Hash for DocumentId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for DocumentId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<&str> for DocumentId {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl AsRef<str> for DocumentId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for DocumentId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for DocumentId {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for DocumentId {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn ordinary_design_and_local_ids_are_accepted() {
        let (short, long) = ("x".repeat(24), "x".repeat(25));
        for text in
            ["a", "größe/1", "a_b", "\0", "_design/views", "_local/checkpoint", &short, &long, &"x".repeat(1024)]
        {
            let id = DocumentId::new(text).unwrap();
            assert_eq!(id, *text);
            assert_eq!(id.clone().as_str(), text);
            assert_eq!(DocumentId::from_stored(text).unwrap(), id);
        }
        assert!(DocumentId::new("_local/a").unwrap().is_local());
        assert!(DocumentId::new("_design/a").unwrap().is_design());
        assert!(!DocumentId::new("local/a").unwrap().is_local());
    }

    #[test]
    fn ids_are_as_small_as_strings_and_compare_like_strings() {
        assert_eq!(size_of::<DocumentId>(), 24);
        let ids = ["a", "ab", &"a".repeat(25), "b"].map(|text| DocumentId::new(text).unwrap());
        let mut sorted = ids.clone();
        sorted.sort();
        assert_eq!(sorted.map(|id| id.as_str().to_owned()), ["a", &"a".repeat(25), "ab", "b"]);
        let set: std::collections::HashSet<DocumentId> = ids.into_iter().collect();
        assert!(set.contains("ab") && set.contains(&*"a".repeat(25)) && !set.contains("c"));
    }

    #[test]
    fn other_ids_are_rejected() {
        for text in ["", "_", "_all_docs", "_design/", "_local/", "_design", &"x".repeat(1025)] {
            assert_eq!(DocumentId::new(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
            assert_eq!(DocumentId::from_stored(text).unwrap_err().kind(), ErrorKind::Corrupt, "{text}");
        }
    }
}
