//! Operation codes.

use stemmadb::{Error, Result};

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $repetition:ident;)+) => {
        /// The operations. `docs/wire-protocol.md` lists their arguments and results.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[doc = $doc])+ $name = $code,)+
        }

        impl Operation {
            /// The operation's name, as `docs/wire-protocol.md` lists it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$name => stringify!($name),)+
                }
            }

            /// All operations, in the order of their codes.
            pub const ALL: &[Operation] = &[$(Operation::$name,)+];

            /// What a client does if the connection is lost before the answer.
            pub fn repetition(self) -> Repetition {
                match self {
                    $(Operation::$name => Repetition::$repetition,)+
                }
            }
        }
    };
}

/// Whether an operation may be sent again when its answer did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repetition {
    /// It changes nothing, or the same again: it may be repeated.
    Safe,
    /// It may be repeated with its write key: the server applies it once.
    Keyed,
    /// It may have been applied, and repeating it could apply it twice or fail.
    Once,
}

operations! {
    /// Does nothing.
    Noop = 1, Safe;
    /// Lists the databases.
    Databases = 2, Safe;
    /// Creates a database.
    CreateDatabase = 3, Once;
    /// Deletes a database.
    DeleteDatabase = 4, Once;
    /// Returns counts and sizes of a database.
    Info = 5, Safe;
    /// Reads a document.
    Get = 16, Safe;
    /// Reads several documents.
    GetMany = 17, Safe;
    /// Reads a revision of a document.
    GetRevision = 18, Safe;
    /// Applies one edit.
    Edit = 19, Keyed;
    /// Applies several edits independently.
    Bulk = 20, Keyed;
    /// Applies all edits or none, if all checks hold.
    Transact = 21, Keyed;
    /// Flushes earlier writes.
    Flush = 22, Safe;
    /// Updates or deletes all documents that match a query, or none.
    UpdateWhere = 23, Keyed;
    /// Reads and writes in one transaction, where later steps use the results of earlier ones.
    Batch = 24, Keyed;
    /// Streams the content of a file.
    ReadFile = 25, Safe;
    /// Attaches a file, whose content follows.
    AttachFile = 26, Keyed;
    /// Runs a query and streams its rows.
    Find = 32, Safe;
    /// Counts the documents that match.
    Count = 33, Safe;
    /// Computes figures of the documents that match, as a whole or by group.
    Aggregate = 34, Safe;
    /// Returns the distinct values of a path.
    Distinct = 35, Safe;
    /// Returns the plan of a query.
    Explain = 36, Safe;
    /// Returns count, sum, minimum and maximum of the numbers at a path.
    Summary = 37, Safe;
    /// Returns the smallest or largest value at a path.
    Extreme = 38, Safe;
    /// Groups the documents that match, and counts or summarizes each group.
    GroupBy = 39, Safe;
    /// Keeps a snapshot for further reads, for a limited time.
    OpenSnapshot = 40, Safe;
    /// Closes a snapshot.
    CloseSnapshot = 41, Safe;
    /// Streams the changes after a sequence, up to the newest.
    Changes = 48, Safe;
    /// Streams the changes after a sequence, and then each new one.
    Subscribe = 49, Safe;
    /// Streams a query's result, and then its changes.
    Watch = 50, Safe;
    /// Streams the documents whose values at matching paths change.
    SubscribePaths = 51, Safe;
    /// Reads a key.
    KeyGet = 64, Safe;
    /// Lists keys and values.
    KeyList = 65, Safe;
    /// Sets a key, perhaps on a condition.
    KeySet = 66, Keyed;
    /// Removes a key.
    KeyRemove = 67, Keyed;
    /// Adds to a number.
    KeyIncrement = 68, Keyed;
    /// Stores the definition of a view.
    ViewDefine = 80, Safe;
    /// Removes a view.
    ViewRemove = 81, Once;
    /// Lists the definitions of views.
    ViewList = 82, Safe;
    /// Returns the row count and position of a view.
    ViewInfo = 83, Safe;
    /// Streams the rows or groups of a view, counts or reduces them.
    ViewQuery = 84, Safe;
    /// Declares an index and builds it.
    IndexCreate = 96, Safe;
    /// Removes an index.
    IndexRemove = 97, Once;
    /// Lists the declared indexes.
    IndexList = 98, Safe;
    /// Requires the documents of a collection to match a schema.
    SchemaRequire = 100, Safe;
    /// Removes the schema of a collection.
    SchemaRemove = 101, Once;
    /// Lists the schemas.
    SchemaList = 102, Safe;
    /// Returns documents that violate the schema of their collection.
    SchemaViolations = 103, Safe;
    /// Streams the stored revisions of a document.
    Revisions = 112, Safe;
    /// Reads a document as it was.
    DocumentAt = 113, Safe;
    /// Streams the differences between two states.
    Differences = 114, Safe;
    /// Writes the last revision of a deleted document again.
    Undelete = 115, Once;
    /// Sets documents to an earlier state, or counts how many that would change.
    Revert = 116, Once;
    /// Keeps a state readable.
    Pin = 117, Once;
    /// Removes a pin.
    Release = 118, Once;
    /// Sets how much of the past is kept.
    Keep = 119, Safe;
    /// Returns the retention, the pins and the oldest readable state.
    Retention = 120, Safe;
    /// Returns the sequence of a point in the past.
    SequenceAt = 121, Safe;
    /// Calls a function of the program that runs the server.
    CallFunction = 128, Once;
    /// Publishes a message to a topic.
    Publish = 144, Once;
    /// Streams the messages of topics that match patterns.
    SubscribeTopic = 145, Safe;
}

impl Operation {
    /// The operation with this code.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn from_code(code: u8) -> Result<Self> {
        let known = Self::ALL.iter().find(|operation| **operation as u8 == code);
        known.copied().ok_or_else(|| {
            Error::invalid(format!("operation {code} is unknown")).with_hint("the server may be older than the client")
        })
    }
}
