//! The author of writes: who the calling thread writes for.

use std::cell::RefCell;
use std::sync::Arc;

use crate::engine::Store;
use crate::{Error, Result};

/// The longest name of an author, in bytes.
const AUTHOR_BYTES_MAX: usize = 256;

thread_local! {
    static AUTHOR: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `write`, and records `author` with each revision that it writes on this thread to databases that
/// [keep history](crate::handles::History::keep). [`History::revisions`](crate::handles::History::revisions) returns
/// it. An author has at most 256 bytes: with a longer one, writes are `Invalid`. It is not replicated.
///
/// ```
/// use stemmadb::past::{Retention, writing_as};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = stemmadb::Database::in_memory();
/// db.history().keep(Retention::Everything)?;
/// writing_as("jane", || db.insert("emma", &serde_json::json!({"year": 1815})))?;
/// assert_eq!(db.history().revisions("emma")?[0].author.as_deref(), Some("jane"));
/// # Ok(())
/// # }
/// ```
pub fn writing_as<T>(author: &str, write: impl FnOnce() -> T) -> T {
    let _before = Restored(AUTHOR.replace(Some(author.into())));
    write()
}

/// Sets the author that was there before, also after a panic.
struct Restored(Option<Arc<str>>);

impl Drop for Restored {
    fn drop(&mut self) {
        AUTHOR.set(self.0.take());
    }
}

/// Whom to record as the author of what is written to this database now.
pub(super) fn current_author(store: &Store) -> Result<Option<Arc<str>>> {
    let author = AUTHOR.try_with(|author| author.borrow().clone()).ok().flatten();
    match author.filter(|_| store.history_rules().keeps_past()) {
        Some(author) if author.len() > AUTHOR_BYTES_MAX => {
            Err(Error::invalid(format!("the author has more than {AUTHOR_BYTES_MAX} bytes")))
        }
        author => Ok(author),
    }
}
