//! Typed collections in remote databases, and in databases that are either: the library's own.

use std::time::Duration;

use stemmadb::typed::{CollectionDatabase, CollectionFeed, CollectionFind, CollectionRows, Refinement};
use stemmadb::{
    Change, Collection, Database, Delta, Document, DocumentId, Edit, Index, Query, Result, Revision, Schema, Selector,
    Sequence, Value,
};

use crate::any::{AnyDatabase, AnyFind, AnyRows, AnySubscription, AnyWatch};
use crate::database::RemoteDatabase;
use crate::find::{RemoteFind, RemoteRows};
use crate::stream::{RemoteSubscription, RemoteWatch};

impl RemoteDatabase {
    /// Returns the collection of documents whose ids begin with `name:`. Nothing is declared or stored. See
    /// [`Database::collection`].
    ///
    /// ```no_run
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)] struct Book { title: String }
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = stemmadb_client::Client::connect("stemma://localhost:5985")?.database("library");
    /// let books = db.collection::<Book>("books")?;
    /// let key = books.push(&Book { title: "Solaris".into() })?;
    /// assert_eq!(books.get(&key)?.expect("just pushed").content.title, "Solaris");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the name is empty, begins with `_` or contains a colon.
    pub fn collection<T>(&self, name: &str) -> Result<Collection<T, RemoteDatabase>> {
        Collection::new(self.clone(), name)
    }
}

impl AnyDatabase {
    /// Returns the collection of documents whose ids begin with `name:`. See [`Database::collection`].
    ///
    /// # Errors
    /// Those of [`Database::collection`].
    pub fn collection<T>(&self, name: &str) -> Result<Collection<T, AnyDatabase>> {
        Collection::new(self.clone(), name)
    }
}

/// The methods that call those of the same names.
macro_rules! forwarded {
    ($database:ident) => {
        fn get(&self, id: &str) -> Result<Option<Document>> {
            $database::get(self, id)
        }

        fn edit(&self, edit: Edit) -> Result<Revision> {
            $database::edit(self, edit)
        }

        fn find(&self, query: Query) -> Self::Find {
            $database::find(self, query)
        }

        fn watch(&self, query: Query) -> Result<Self::Watch> {
            $database::watch(self, query)
        }

        fn required_schemas(&self) -> Result<Vec<(String, Schema)>> {
            self.schemas().list()
        }

        fn require_schema(&self, collection: &str, schema: Schema) -> Result<()> {
            self.schemas().require(collection, schema)
        }

        fn create_index(&self, index: Index) -> Result<()> {
            self.indexes().create(index)
        }
    };
}

impl CollectionDatabase for RemoteDatabase {
    type Find = RemoteFind;
    type Subscription = RemoteSubscription;
    type Watch = RemoteWatch;

    forwarded!(RemoteDatabase);

    fn edit_found(&self, query: Query, edit: &mut dyn FnMut(&[DocumentId]) -> Result<Edit>) -> Result<()> {
        self.optimistic(|tx| {
            let found = tx.find(query.clone())?;
            let ids: Vec<_> = found.iter().take(2).map(|document| document.id().clone()).collect();
            tx.edit(edit(&ids)?)
        })
    }

    fn changes_of(&self, since: Sequence, selector: &Selector) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        self.changes(since).documents(true).selector(selector)?.run()
    }

    fn subscribe_to(&self, since: Sequence, selector: &Selector) -> Result<RemoteSubscription> {
        self.subscribe(since).documents(true).selector(selector)
    }
}

macro_rules! either {
    ($self:ident, $database:ident => $call:expr) => {
        match $self {
            AnyDatabase::Embedded($database) => $call,
            AnyDatabase::Remote($database) => $call,
        }
    };
}

impl CollectionDatabase for AnyDatabase {
    type Find = AnyFind;
    type Subscription = AnySubscription;
    type Watch = AnyWatch;

    forwarded!(AnyDatabase);

    fn edit_found(&self, query: Query, edit: &mut dyn FnMut(&[DocumentId]) -> Result<Edit>) -> Result<()> {
        either!(self, database => database.edit_found(query, edit))
    }

    fn modify(&self, id: &DocumentId, change: &mut dyn FnMut(&Document) -> Result<Value>) -> Result<Option<Revision>> {
        either!(self, database => database.modify(id, change))
    }

    fn remove(&self, id: &DocumentId) -> Result<bool> {
        either!(self, database => database.remove(id))
    }

    fn changes_of(&self, since: Sequence, selector: &Selector) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        let changes: Box<dyn Iterator<Item = Result<Change>> + Send> = match self {
            AnyDatabase::Embedded(database) => Box::new(database.changes_of(since, selector)?),
            AnyDatabase::Remote(database) => Box::new(database.changes_of(since, selector)?),
        };
        Ok(changes)
    }

    fn subscribe_to(&self, since: Sequence, selector: &Selector) -> Result<AnySubscription> {
        Ok(match self {
            AnyDatabase::Embedded(database) => {
                AnySubscription::Embedded(Box::new(database.subscribe_to(since, selector)?))
            }
            AnyDatabase::Remote(database) => AnySubscription::Remote(Box::new(database.subscribe_to(since, selector)?)),
        })
    }

    fn embedded(&self) -> Option<&Database> {
        match self {
            AnyDatabase::Embedded(database) => Some(database),
            AnyDatabase::Remote(_) => None,
        }
    }
}

/// Implements the traits of queries for both types of them.
macro_rules! collection_find {
    ($($find:ident $rows:ident)+) => {
        $(impl CollectionFind for $find {
            type Rows = $rows<Document>;

            fn refine(self, refinement: Refinement<'_>) -> Self {
                match refinement {
                    Refinement::Sort(path) => self.sort(path),
                    Refinement::SortDescending(path) => self.sort_descending(path),
                    Refinement::Limit(count) => self.limit(count),
                    Refinement::Skip(count) => self.skip(count),
                    Refinement::After(token) => self.after(token),
                    Refinement::TimeLimit(time) => self.time_limit(time),
                    Refinement::CancelledBy(cancellation) => self.cancelled_by(cancellation),
                }
            }

            fn run(self) -> Result<Self::Rows> {
                $find::run(self)
            }

            fn all_ids(self) -> Result<Vec<DocumentId>> {
                self.ids()?.collect()
            }

            fn count(self) -> Result<u64> {
                $find::count(self)
            }

            fn exists(self) -> Result<bool> {
                $find::exists(self)
            }
        }

        impl CollectionRows for $rows<Document> {
            fn token(&self) -> Result<Option<String>> {
                $rows::token(self)
            }
        })+
    };
}

collection_find! {
    RemoteFind RemoteRows
    AnyFind AnyRows
}

/// Implements the trait of feeds for both types of each.
macro_rules! collection_feed {
    ($($feed:ident $row:ident $next:ident)+) => {
        $(impl CollectionFeed<$row> for $feed {
            fn next_row(&mut self) -> Result<Option<$row>> {
                self.$next()
            }

            fn next_row_within(&mut self, timeout: Duration) -> Result<Option<$row>> {
                self.next_within(timeout)
            }
        })+
    };
}

collection_feed! {
    RemoteSubscription Change next_change
    AnySubscription Change next_change
    RemoteWatch Delta next_delta
    AnyWatch Delta next_delta
}
