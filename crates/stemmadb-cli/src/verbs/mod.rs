//! What does each verb do?

mod care;
mod changes;
mod document;
mod export;
mod file;
mod follow;
mod import;
mod index;
mod mirror;
mod query;
mod salvage;
mod serve;
mod view;
mod watch;

use std::path::Path;

use stemmadb::{Object, Value};

use crate::arguments::Verb;
use crate::face::Database;
use crate::failure::{Failure, Result};
use crate::read::{self, Found, Place};
use crate::shell;

/// Does what `verb` says, with the database that is `open` already or the one it names.
pub(crate) fn run(verb: &Verb, open: Option<&Database>) -> Result<()> {
    let session = Session { open };
    match verb {
        Verb::Import(import) => import::run(import, session),
        Verb::Export(export) => export::run(export, session),
        Verb::Put(put) => document::put(put, session),
        Verb::Get(get) => document::get(get, session),
        Verb::Delete(delete) => document::delete(delete, session),
        Verb::Files(files) => file::list(files, session),
        Verb::Attach(attach) => file::attach(attach, session),
        Verb::Fetch(fetch) => file::fetch(fetch, session),
        Verb::Detach(detach) => file::detach(detach, session),
        Verb::Find(find) => query::find(find, session),
        Verb::Explain(explain) => query::explain(explain, session),
        Verb::Count(count) => query::count(count, session),
        Verb::Changes(changes) => changes::run(changes, session),
        Verb::Watch(watch) => watch::run(watch, session),
        Verb::Mirror(mirror) => mirror::run(mirror, session),
        Verb::View(view) => view::run(view, session),
        Verb::Info(info) => care::info(info, session),
        Verb::Index(index) => index::run(index, session),
        Verb::Paths(paths) => care::paths(paths, session),
        Verb::Check(check) => care::check(check, session),
        Verb::Rebuild(rebuild) => care::rebuild(rebuild, session),
        Verb::Salvage(salvage) => salvage::run(salvage, session),
        Verb::Compact(compact) => care::compact(compact, session),
        Verb::Serve(serve) => serve::run(serve, session),
        Verb::Shell(shell) => session.with_new(&shell.database, |db| shell::run(db, &shell.database)),
    }
}

/// Where the database comes from: the shell has it open already.
#[derive(Clone, Copy)]
struct Session<'a> {
    open: Option<&'a Database>,
}

impl Session<'_> {
    /// Acts on the database at `path`, which must be there.
    fn with<T>(self, path: &Path, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        refuse_url(path)?;
        match self.open {
            Some(database) => act(database),
            None => finish(Database::existing(path)?, act),
        }
    }

    /// Acts on the database at `path`, which is made if there is none.
    fn with_new<T>(self, path: &Path, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        refuse_url(path)?;
        match self.open {
            Some(database) => act(database),
            None => finish(Database::or_new(path)?, act),
        }
    }
}

/// Closes the database whatever came of the act; its failure is the one to report.
fn finish<T>(database: Database, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
    let outcome = act(&database);
    let closed = database.close();
    let outcome = outcome?;
    closed?;
    Ok(outcome)
}

fn refuse_url(path: &Path) -> Result<()> {
    let path = path.to_string_lossy();
    if path.contains("://") {
        return Err(Failure::usage(format!("{path} is a URL: databases on a server are not reached yet"))
            .with_hint("name the directory of a database on this machine"));
    }
    Ok(())
}

/// The JSON value of an argument called `what`.
fn argument(what: &str, text: &str) -> Result<Value> {
    let found = Found { place: Place::START, exact: true };
    read::parse(text.as_bytes(), found).map_err(|failure| failure.within(what))
}

/// The selector of an argument, which is an object.
fn selector(text: &str) -> Result<Value> {
    let selector = argument("selector", text)?;
    if selector.as_object().is_none() {
        return Err(
            Failure::usage("a selector is a JSON object").with_hint("for example '{\"year\": {\"$gte\": 1960}}'")
        );
    }
    Ok(selector)
}

/// What a write answers: the id and its new revision.
fn written(id: &str, revision: &str) -> Object {
    [("id", Value::from(id)), ("rev", Value::from(revision))].into_iter().collect()
}
