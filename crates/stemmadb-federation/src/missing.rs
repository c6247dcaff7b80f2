//! Partial answers: the members that did not answer.

use std::sync::Arc;

use parking_lot::Mutex;
use stemmadb::Error;

/// Allows answers without the members that fail, and collects their names. See
/// [`FederatedFind::partial`](crate::FederatedFind::partial).
///
/// ```
/// use stemmadb::{Database, Selector};
/// use stemmadb_federation::{Federation, MissingMembers};
///
/// # fn main() -> stemmadb::Result<()> {
/// let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({}))?;
/// let both = Federation::over([("north", north), ("south", south.clone())])?;
/// south.close()?;
/// assert!(both.find(Selector::everything()).count().is_err());
/// let missing = MissingMembers::new();
/// assert_eq!(both.find(Selector::everything()).partial(&missing).count()?, 1);
/// assert_eq!(missing.members()[0].name, "south");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MissingMembers(Arc<Mutex<Vec<MissingMember>>>);

/// A member that did not answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MissingMember {
    /// Its name.
    pub name: String,
    /// Why, with the name in front.
    pub reason: String,
}

impl MissingMembers {
    /// An empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The members that were left out so far, each once.
    pub fn members(&self) -> Vec<MissingMember> {
        self.0.lock().clone()
    }

    /// Whether every member answered.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn add(&self, name: &str, error: &Error) {
        let mut members = self.0.lock();
        if members.iter().all(|member| member.name != name) {
            members.push(MissingMember { name: name.to_owned(), reason: error.message().to_owned() });
        }
    }
}
