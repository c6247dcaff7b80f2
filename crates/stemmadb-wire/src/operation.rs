//! Operation codes.

use stemmadb::{Error, Result};

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $writes:literal;)+) => {
        /// The operations. `docs/wire-protocol.md` lists their arguments and results.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[doc = $doc])+ $name = $code,)+
        }

        impl Operation {
            /// All operations, in the order of their codes.
            pub const ALL: &[Operation] = &[$(Operation::$name,)+];

            /// Whether the operation changes something, so that repeating it needs a key.
            pub fn writes(self) -> bool {
                match self {
                    $(Operation::$name => $writes,)+
                }
            }
        }
    };
}

operations! {
    /// Does nothing.
    Noop = 1, false;
    /// Lists the databases.
    Databases = 2, false;
    /// Creates a database.
    CreateDatabase = 3, true;
    /// Deletes a database.
    DeleteDatabase = 4, true;
    /// Returns counts and sizes of a database.
    Info = 5, false;
    /// Reads a document.
    Get = 16, false;
    /// Reads several documents.
    GetMany = 17, false;
    /// Reads a revision of a document.
    GetRevision = 18, false;
    /// Applies one edit.
    Edit = 19, true;
    /// Applies several edits independently.
    Bulk = 20, true;
    /// Applies all edits or none, if all checks hold.
    Transact = 21, true;
    /// Flushes earlier writes.
    Flush = 22, false;
    /// Runs a query and streams its rows.
    Find = 32, false;
    /// Counts the documents that match.
    Count = 33, false;
    /// Computes figures of the documents that match, as a whole or by group.
    Aggregate = 34, false;
    /// Returns the distinct values of a path.
    Distinct = 35, false;
    /// Returns the plan of a query.
    Explain = 36, false;
    /// Keeps a snapshot for further reads, for a limited time.
    OpenSnapshot = 40, false;
    /// Closes a snapshot.
    CloseSnapshot = 41, false;
    /// Streams the changes after a sequence, up to the newest.
    Changes = 48, false;
    /// Streams the changes after a sequence, and then each new one.
    Subscribe = 49, false;
    /// Streams a query's result, and then its changes.
    Watch = 50, false;
    /// Reads a key.
    KeyGet = 64, false;
    /// Lists keys and values.
    KeyList = 65, false;
    /// Sets a key, perhaps on a condition.
    KeySet = 66, true;
    /// Removes a key.
    KeyRemove = 67, true;
    /// Adds to a number.
    KeyIncrement = 68, true;
}

impl Operation {
    pub(crate) fn from_code(code: u8) -> Result<Self> {
        let known = Self::ALL.iter().find(|operation| **operation as u8 == code);
        known.copied().ok_or_else(|| {
            Error::invalid(format!("operation {code} is unknown")).with_hint("the server may be older than the client")
        })
    }
}
