//! Views of an embedded or remote database.

use std::ops::RangeBounds;

use serde::Serialize;
use stemmadb::handles::Views;
use stemmadb::views::{ViewInfo, ViewRow};
use stemmadb::{DeclaredView, OpenView, Result, Value, ViewQuery};

use crate::views::{RemoteView, RemoteViewQuery, RemoteViews};

/// Operations on views of either database. See [`Views`].
pub enum AnyViews<'a> {
    /// Of an embedded one.
    Embedded(Views<'a>),
    /// Of a remote one.
    Remote(RemoteViews),
}

impl AnyViews<'_> {
    /// Stores a definition and opens the view. See [`Views::define`].
    ///
    /// # Errors
    /// Those of [`Views::define`].
    pub fn define<D: Serialize + ?Sized>(&self, name: &str, definition: &D) -> Result<AnyView> {
        Ok(match self {
            AnyViews::Embedded(views) => AnyView::Embedded(views.define(name, definition)?),
            AnyViews::Remote(views) => AnyView::Remote(views.define(name, definition)?),
        })
    }

    /// Opens a view. See [`Views::open`].
    ///
    /// # Errors
    /// Those of [`Views::open`].
    pub fn open(&self, name: &str) -> Result<AnyView> {
        Ok(match self {
            AnyViews::Embedded(views) => AnyView::Embedded(views.open(name)?),
            AnyViews::Remote(views) => AnyView::Remote(views.open(name)?),
        })
    }

    /// Lists the definitions. See [`Views::definitions`].
    ///
    /// # Errors
    /// Those of [`Views::definitions`].
    pub fn definitions(&self) -> Result<Vec<(String, Value)>> {
        match self {
            AnyViews::Embedded(views) => views.definitions(),
            AnyViews::Remote(views) => views.definitions(),
        }
    }

    /// Removes a view. See [`Views::remove`].
    ///
    /// # Errors
    /// Those of [`Views::remove`].
    pub fn remove(&self, name: &str) -> Result<()> {
        match self {
            AnyViews::Embedded(views) => views.remove(name),
            AnyViews::Remote(views) => views.remove(name),
        }
    }
}

/// A view of either database.
pub enum AnyView {
    /// Of an embedded one.
    Embedded(OpenView<DeclaredView>),
    /// Of a remote one.
    Remote(RemoteView),
}

impl AnyView {
    /// Starts a query for all rows. See [`OpenView::query`].
    pub fn query(&self) -> AnyViewQuery {
        match self {
            AnyView::Embedded(view) => AnyViewQuery::Embedded(Box::new(view.query())),
            AnyView::Remote(view) => AnyViewQuery::Remote(Box::new(view.query())),
        }
    }

    /// Updates the view. See [`OpenView::update`].
    ///
    /// # Errors
    /// Those of [`OpenView::update`].
    pub fn update(&self) -> Result<()> {
        match self {
            AnyView::Embedded(view) => view.update(),
            AnyView::Remote(view) => view.update(),
        }
    }

    /// Row counts and position. See [`OpenView::info`].
    ///
    /// # Errors
    /// Those of [`OpenView::info`].
    pub fn info(&self) -> Result<ViewInfo> {
        match self {
            AnyView::Embedded(view) => view.info(),
            AnyView::Remote(view) => view.info(),
        }
    }
}

/// A query of a view of either database.
#[must_use = "a query does nothing until it is run"]
pub enum AnyViewQuery {
    /// Of an embedded one.
    Embedded(Box<ViewQuery<DeclaredView>>),
    /// Of a remote one.
    Remote(Box<RemoteViewQuery>),
}

macro_rules! steps {
    ($($(#[$doc:meta])+ $name:ident $(<$generic:ident>)? ($($argument:ident: $type:ty),*);)+) => {
        impl AnyViewQuery {
            $($(#[$doc])+
            pub fn $name $(<$generic: Serialize>)? (self, $($argument: $type),*) -> Self {
                match self {
                    AnyViewQuery::Embedded(query) => AnyViewQuery::Embedded(Box::new(query.$name($($argument),*))),
                    AnyViewQuery::Remote(query) => AnyViewQuery::Remote(Box::new(query.$name($($argument),*))),
                }
            })+
        }
    };
}

steps! {
    /// Selects the rows with this key. See [`ViewQuery::key`].
    key<Q>(key: Q);
    /// Selects the rows with any of these keys. See [`ViewQuery::keys`].
    keys<Q>(keys: impl IntoIterator<Item = Q>);
    /// Selects the rows with keys in the range. See [`ViewQuery::range`].
    range<Q>(range: impl RangeBounds<Q>);
    /// Selects the rows with keys that begin so. See [`ViewQuery::prefix`].
    prefix<Q>(prefix: Q);
    /// Returns rows from the last key to the first. See [`ViewQuery::descending`].
    descending();
    /// Limits the rows or groups. See [`ViewQuery::limit`].
    limit(count: u64);
    /// Skips rows or groups. See [`ViewQuery::skip`].
    skip(count: u64);
    /// Returns rows with their documents. See [`ViewQuery::with_documents`].
    with_documents();
}

impl AnyViewQuery {
    /// Returns the rows. See [`ViewQuery::rows`].
    ///
    /// # Errors
    /// Those of [`ViewQuery::rows`].
    pub fn rows(self) -> Result<Vec<ViewRow<DeclaredView>>> {
        match self {
            AnyViewQuery::Embedded(query) => query.rows()?.collect(),
            AnyViewQuery::Remote(query) => query.rows()?.collect(),
        }
    }

    /// Counts the rows. See [`ViewQuery::count`].
    ///
    /// # Errors
    /// Those of [`ViewQuery::count`].
    pub fn count(self) -> Result<u64> {
        match self {
            AnyViewQuery::Embedded(query) => query.count(),
            AnyViewQuery::Remote(query) => query.count(),
        }
    }

    /// Reduces the rows. See [`ViewQuery::reduce`].
    ///
    /// # Errors
    /// Those of [`ViewQuery::reduce`].
    pub fn reduce(self) -> Result<Option<Value>> {
        match self {
            AnyViewQuery::Embedded(query) => query.reduce(),
            AnyViewQuery::Remote(query) => query.reduce(),
        }
    }

    /// Groups the rows by key. See [`ViewQuery::group`].
    ///
    /// # Errors
    /// Those of [`ViewQuery::group`].
    pub fn group(self) -> Result<Vec<(Value, Value)>> {
        match self {
            AnyViewQuery::Embedded(query) => query.group()?.collect(),
            AnyViewQuery::Remote(query) => query.group()?.collect(),
        }
    }

    /// Groups the rows by the first elements of their keys. See [`ViewQuery::group_level`].
    ///
    /// # Errors
    /// Those of [`ViewQuery::group_level`].
    pub fn group_level(self, level: usize) -> Result<Vec<(Value, Value)>> {
        match self {
            AnyViewQuery::Embedded(query) => query.group_level(level)?.collect(),
            AnyViewQuery::Remote(query) => query.group_level(level)?.collect(),
        }
    }
}
