//! The subcommands of `stemma`, one module for each group.

mod aggregate;
mod attachment;
mod backup;
mod changes;
mod cluster;
mod completions;
mod console;
mod document;
mod encryption;
mod export;
mod follow;
mod history;
mod import;
mod index;
mod keys;
mod maintenance;
mod manual;
mod mirror;
mod query;
mod remote;
mod replicate;
mod salvage;
mod serve;
mod tiers;
mod topology;
mod update;
mod view;
mod watch;

use std::path::Path;

use stemmadb::{Object, Value};

use crate::arguments::{AsOfArgument, Command, CreationArgument};
use crate::database::{Database, ServerDatabase};
use crate::failure::{Failure, Result};
use crate::input::{self, DocumentOrigin, TextPosition};
use crate::shell;
pub(crate) use encryption::use_key;

/// Runs a command on the database that is already `open`, or on the one it names.
pub(crate) fn run(command: &Command, open: Option<&Database>) -> Result<()> {
    let session = Session { open };
    if let Some(outcome) = remote::run(command) {
        return outcome;
    }
    match command {
        Command::Import(import) => import::run(import, session),
        Command::Export(export) => export::run(export, session),
        Command::Put(put) => document::put(put, session),
        Command::Get(get) => document::get(get, session),
        Command::Update(update) => update::update(update, session),
        Command::Delete(delete) => update::delete(delete, session),
        Command::Log(log) => history::log(log, session),
        Command::Diff(diff) => history::diff(diff, session),
        Command::Undelete(undelete) => history::undelete(undelete, session),
        Command::Revert(revert) => history::revert(revert, session),
        Command::History(history) => history::history(history, session),
        Command::Files(files) => attachment::list(files, session),
        Command::Attach(attach) => attachment::attach(attach, session),
        Command::Fetch(fetch) => attachment::fetch(fetch, session),
        Command::Detach(detach) => attachment::detach(detach, session),
        Command::Find(find) => query::find(find, session),
        Command::Explain(explain) => query::explain(explain, session),
        Command::Count(count) => query::count(count, session),
        Command::Aggregate(aggregate) => aggregate::run(aggregate, session),
        Command::Changes(changes) => changes::run(changes, session),
        Command::Watch(watch) => watch::run(watch, session),
        Command::Mirror(mirror) => mirror::run(mirror, session),
        Command::Replicate(replicate) => replicate::run(replicate, session),
        Command::Topology(topology) => topology::run(topology, session),
        Command::Tiers(tiers) => tiers::run(tiers, session),
        Command::View(view) => view::run(view, session),
        Command::Info(info) => maintenance::info(info, session),
        Command::Index(index) => index::run(index, session),
        Command::Key(key) => keys::run(key, session),
        Command::Paths(paths) => maintenance::paths(paths, session),
        Command::Check(check) => maintenance::check(check, session),
        Command::Rebuild(rebuild) => maintenance::rebuild(rebuild, session),
        Command::Salvage(salvage) => salvage::run(salvage, session),
        Command::Backup(backup) => backup::backup(backup, session),
        Command::Restore(restore) => backup::restore(restore, session),
        Command::Branch(branch) => backup::branch(branch, session),
        Command::Follow(follow) => backup::run_follow(follow, session),
        Command::Encrypt(encrypt) => encryption::encrypt(encrypt, session),
        Command::Decrypt(decrypt) => encryption::decrypt(decrypt, session),
        Command::Rekey(rekey) => encryption::rekey(rekey, session),
        Command::Compact(compact) => maintenance::compact(compact, session),
        Command::Serve(serve) => serve::run(serve, session),
        Command::Console(console) => console::run(console, session),
        Command::Completions(completions) => completions::run(completions),
        Command::Manual(manual) => manual::run(manual),
        Command::Shell(shell) => session.with_new(&shell.database, |db| shell::run(db, &shell.database, run)),
    }
}

/// Source of the database a command works on: the shell has one open, otherwise the command opens it.
#[derive(Clone, Copy)]
struct Session<'a> {
    open: Option<&'a Database>,
}

impl Session<'_> {
    /// Runs `act` on the existing database at `path`.
    fn with<T>(self, path: &Path, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        refuse_url(path)?;
        match self.open {
            Some(database) => act(database),
            None => run_and_close(Database::open_existing(path)?, act),
        }
    }

    /// Like [`Session::with`], reading as of a point in the past if there is one.
    fn with_past<T>(self, path: &Path, as_of: AsOfArgument, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        self.with(path, |db| match as_of.as_of {
            Some(at) => act(&db.as_of(at)?),
            None => act(db),
        })
    }

    /// Runs `act` on the database at `path`, creating it if it does not exist.
    fn with_new<T>(self, path: &Path, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        refuse_url(path)?;
        match self.open {
            Some(database) => act(database),
            None => run_and_close(Database::open_or_create(path, None)?, act),
        }
    }

    /// Like [`Session::with_new`], with the options that the database is created with.
    fn with_created<T>(
        self,
        path: &Path,
        creation: &CreationArgument,
        act: impl FnOnce(&Database) -> Result<T>,
    ) -> Result<T> {
        let Some(policy) = &creation.index_policy else { return self.with_new(path, act) };
        refuse_url(path)?;
        let policy = argument("--index-policy", policy)?;
        match self.open {
            Some(_) => Err(Failure::usage("--index-policy needs a database that is not open")),
            None => run_and_close(Database::open_or_create(path, Some(&policy))?, act),
        }
    }
}

/// Runs an expression with the database that a path or URL names: `on!(session, with, path, |db| …)`. The methods of a
/// [`Database`] and of a [`ServerDatabase`] have the same names and results.
macro_rules! on {
    ($session:expr, past $past:expr, $path:expr, |$db:ident| $act:expr) => {
        on!($session, with, $path, |opened| match $past.as_of {
            Some(at) => {
                let $db = &opened.as_of(at)?;
                $act
            }
            None => {
                let $db = opened;
                $act
            }
        })
    };
    ($session:expr, $with:ident, $path:expr, |$db:ident| $act:expr) => {
        match crate::database::is_remote($path) {
            true => super::on_server($path, |$db| $act),
            false => $session.$with($path, |$db| $act),
        }
    };
}
use on;

/// Runs `act` on the database of a server that a URL names.
fn on_server<T>(url: &Path, act: impl FnOnce(&ServerDatabase) -> Result<T>) -> Result<T> {
    act(&ServerDatabase::open(url)?)
}

/// Runs `act` and closes the database in any case. A failure of `act` takes precedence over one of closing.
fn run_and_close<T>(mut database: Database, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
    let outcome = act(&database).map_err(|failure| database.cause_of(failure));
    let closed = database.close();
    let outcome = outcome?;
    closed?;
    Ok(outcome)
}

fn refuse_url(path: &Path) -> Result<()> {
    let path = path.to_string_lossy();
    if let Some((scheme, rest)) = path.split_once("://") {
        // A password is not repeated.
        let path = format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host));
        return Err(Failure::usage(format!("{path} is a URL: this command works on local databases only"))
            .with_hint("name the directory of a database on this machine"));
    }
    Ok(())
}

/// Parses a JSON argument; error messages begin with `what`.
fn argument(what: &str, text: &str) -> Result<Value> {
    let origin = DocumentOrigin { position: TextPosition::START, is_verbatim: true };
    input::parse(text.as_bytes(), origin).map_err(|failure| failure.with_context(what))
}

/// Parses a selector argument, which must be an object.
fn selector(text: &str) -> Result<Value> {
    let selector = argument("selector", text)?;
    if selector.as_object().is_none() {
        return Err(
            Failure::usage("a selector is a JSON object").with_hint("for example '{\"year\": {\"$gte\": 1960}}'")
        );
    }
    Ok(selector)
}

/// The output of a write: the document's id and new revision.
fn write_result(id: &str, revision: &str) -> Object {
    [("id", Value::from(id)), ("rev", Value::from(revision))].into_iter().collect()
}
