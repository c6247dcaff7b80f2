//! Declarations of typed collections: everything that a collection needs in a database, in one place.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Collection;
use super::database::CollectionDatabase;
use crate::index::{Expiry, Index};
use crate::schema::Schema;
use crate::value::Value;
use crate::view::View;
use crate::{Database, Error, Result};

/// A type whose collection is declared with it: name, key, indexes, views, expiration and schema.
///
/// With the feature `derive`, `#[derive(Collection)]` implements it:
///
/// ```
/// # #[cfg(feature = "derive")] fn main() -> stemmadb::Result<()> {
/// use serde::{Deserialize, Serialize};
/// use stemmadb::typed::DeclaredCollection;
/// use stemmadb::{Collection, Database, ErrorKind};
///
/// #[derive(Serialize, Deserialize, Collection)]
/// #[collection(name = "books", key = "isbn", unique("isbn"), index("author", "-year"))]
/// struct Book {
///     isbn: String,
///     author: String,
///     year: i32,
/// }
///
/// let db = Database::in_memory();
/// let books = Book::open(&db)?;
/// books.push(&Book { isbn: "978-1".into(), author: "Lem".into(), year: 1961 })?;
/// let copy = Book { isbn: "978-1".into(), author: "Lem".into(), year: 1970 };
/// assert_eq!(books.insert("another", &copy).unwrap_err().kind(), ErrorKind::Duplicate);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "derive"))] fn main() {}
/// ```
pub trait DeclaredCollection: Serialize + DeserializeOwned {
    /// The collection's name.
    const NAME: &'static str;

    /// What the collection declares.
    fn declarations() -> Declarations;

    /// Opens the collection, and declares in the database what is not declared there yet. Costs nothing if everything
    /// is; otherwise one read of all documents for each new index, expiration rule and schema.
    ///
    /// # Errors
    /// `Invalid` if a declaration is wrong, differs from one of the same name, or existing documents violate the
    /// schema; `Duplicate` if documents share a value of a unique index. On a server also `Forbidden` if the user is no
    /// administrator of the database, and `Invalid` for expiration rules and views, which can't be declared from there.
    fn open<D: CollectionDatabase>(db: &D) -> Result<Collection<Self, D>>
    where
        Self: Sized,
    {
        Self::declarations().declare(db, Collection::new(db.clone(), Self::NAME)?)
    }
}

/// What a [`DeclaredCollection`] declares.
#[derive(Default)]
pub struct Declarations {
    key: Option<String>,
    indexes: Vec<Index>,
    expirations: Vec<String>,
    schema: Option<Result<Value>>,
    views: Vec<OpenDeclaredView>,
}

/// Opens a view, which updates or checks it with every write if it is eager or unique.
type OpenDeclaredView = Box<dyn FnOnce(&Database) -> Result<()>>;

impl Declarations {
    /// No declarations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the keys of pushed documents from the string or integer at `path`: see [`Collection::keyed_by`].
    #[must_use]
    pub fn key(mut self, path: impl Into<String>) -> Self {
        self.key = Some(path.into());
        self
    }

    /// Declares an index. It covers all documents of the database that have its fields.
    #[must_use]
    pub fn index(mut self, index: Index) -> Self {
        self.indexes.push(index);
        self
    }

    /// Lets the documents expire at the time at `path`: see [`Collection::expire_by`].
    #[must_use]
    pub fn expire_by(mut self, path: impl Into<String>) -> Self {
        self.expirations.push(path.into());
        self
    }

    /// Requires the documents to satisfy a JSON Schema, given as JSON text or as any other serializable value.
    #[must_use]
    pub fn schema<S: Serialize + ?Sized>(mut self, schema: &S) -> Self {
        let schema = Value::from_serialize(schema).and_then(|schema| match schema.as_str() {
            Some(text) => Value::parse(text.as_bytes()),
            None => Ok(schema),
        });
        self.schema = Some(schema.map_err(|error| error.within("in the schema of the collection")));
        self
    }

    /// Opens a view with the collection. It covers all documents of the database that it emits rows for.
    #[must_use]
    pub fn view<V: View>(mut self, view: V) -> Self {
        self.views.push(Box::new(move |db| db.view(view).map(|_| ())));
        self
    }

    /// Declares everything for `collection`.
    fn declare<T, D: CollectionDatabase>(self, db: &D, collection: Collection<T, D>) -> Result<Collection<T, D>> {
        let embedded = || {
            db.embedded().ok_or_else(|| {
                Error::invalid("expiration rules and views in Rust can't be declared by a client of a server")
                    .with_hint("declare them where the database is embedded, and views also with RemoteViews::define")
            })
        };
        if !self.expirations.is_empty() || !self.views.is_empty() {
            embedded()?;
        }
        let collection = match &self.key {
            Some(path) => collection.keyed_by(path)?,
            None => collection,
        };
        if let Some(schema) = self.schema {
            let (schema, known) = (schema?, db.required_schemas()?);
            let is_required = known.iter().any(|(name, known)| name == collection.name() && *known.json() == schema);
            if !is_required {
                db.require_schema(collection.name(), Schema::new(&schema)?)?;
            }
        }
        for index in self.indexes {
            db.create_index(index)?;
        }
        for path in &self.expirations {
            embedded()?.expiration().add_rule(Expiry::at(path).of_collection(collection.name()))?;
        }
        for open in self.views {
            open(embedded()?)?;
        }
        Ok(collection)
    }
}

impl std::fmt::Debug for Declarations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (indexes, views) = (&self.indexes, self.views.len());
        f.debug_struct("Declarations").field("key", &self.key).field("indexes", indexes).field("views", &views).finish()
    }
}
