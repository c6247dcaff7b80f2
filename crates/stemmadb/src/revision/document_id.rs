//! The name of a document.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, Result};

/// The name of a document, unique in its database: 1 to 1,024 bytes of UTF-8.
///
/// Names that begin with `_` are reserved: only `_design/…` and `_local/…` are accepted. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentId(Arc<str>);

impl DocumentId {
    /// The longest id, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// The id `text`, checked.
    ///
    /// # Errors
    /// `Invalid` if it is empty, too long, or begins with `_` without being a design or local id.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        validate(text)?;
        Ok(DocumentId(text.into()))
    }

    /// The id in stored bytes, checked again.
    ///
    /// # Errors
    /// `Corrupt` if these bytes can't be an id.
    pub(crate) fn from_stored(bytes: &[u8]) -> Result<Self> {
        let text = str::from_utf8(bytes).map_err(|_| Error::corrupt("a stored document id is not UTF-8"))?;
        validate(text).map_err(|error| Error::corrupt(error.message()).within("a stored document id"))?;
        Ok(DocumentId(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this names a `_local/…` document: one that is neither indexed, nor in the feed, nor replicated.
    pub fn is_local(&self) -> bool {
        self.0.starts_with("_local/")
    }

    /// Whether this names a `_design/…` document.
    pub fn is_design(&self) -> bool {
        self.0.starts_with("_design/")
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

impl fmt::Display for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
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
        &self.0
    }
}

impl Borrow<str> for DocumentId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for DocumentId {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for DocumentId {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn ordinary_design_and_local_ids_are_accepted() {
        for text in ["a", "größe/1", "a_b", "\0", "_design/views", "_local/checkpoint", &"x".repeat(1024)] {
            let id = DocumentId::new(text).unwrap();
            assert_eq!(id, *text);
            assert_eq!(DocumentId::from_stored(text.as_bytes()).unwrap(), id);
        }
        assert!(DocumentId::new("_local/a").unwrap().is_local());
        assert!(DocumentId::new("_design/a").unwrap().is_design());
        assert!(!DocumentId::new("local/a").unwrap().is_local());
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "_", "_all_docs", "_design/", "_local/", "_design", &"x".repeat(1025)] {
            assert_eq!(DocumentId::new(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
            assert_eq!(DocumentId::from_stored(text.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{text}");
        }
        assert_eq!(DocumentId::from_stored(&[0xff]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
