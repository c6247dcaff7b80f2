//! Row keys: where a row of a sorted query is in the order, comparable between databases.

use super::page_token::{from_base64url, to_base64url};
use super::sort::SortedPosition;
use crate::revision::DocumentId;
use crate::value::Value;
use crate::{Error, Result};

/// The position of a row in the order of a sorted query: its encoded sort key, then its id.
///
/// Row keys of the same sort order compare as the rows do, also if they come from different databases. The rows of
/// several databases are merged by their keys. See [`Find::keys`](crate::Find::keys).
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # fn main() -> stemmadb::Result<()> {
/// let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({"year": 2}))?;
/// south.insert("b", &serde_json::json!({"year": 1}))?;
/// let first = |db: &Database| db.find(Selector::everything()).sort("year").keys(1)?.next().expect("a row");
/// assert!(first(&south)?.key < first(&north)?.key);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey(pub(in crate::query) SortedPosition);

impl RowKey {
    /// The document's id.
    pub fn id(&self) -> &DocumentId {
        &self.0.id
    }

    /// The key as a JSON array, for another process.
    pub fn to_value(&self) -> Value {
        Value::Array(vec![to_base64url(&self.0.key).into(), self.0.id.as_str().into()])
    }

    /// Reads what [`RowKey::to_value`] wrote.
    ///
    /// # Errors
    /// `Invalid` if it is anything else.
    pub fn from_value(value: &Value) -> Result<Self> {
        let malformed = || Error::invalid("the row key is malformed").with_hint("pass a key as it was returned");
        let Some([Value::String(key), Value::String(id)]) = value.as_array() else { return Err(malformed()) };
        let key = from_base64url(key).ok_or_else(malformed)?;
        Ok(RowKey(SortedPosition { key: key.into(), id: DocumentId::new(id)? }))
    }
}
