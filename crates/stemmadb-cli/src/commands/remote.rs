//! Commands on a database of a server, which a URL names: those on documents, queries and the changes feed.

use std::path::Path;

use super::{document, query, selector, update, write_result};
use crate::arguments::{Aggregate, AsOfArgument, Changes, Command, Count, Explain, Find, Get, Put, Watch};
use crate::database::{ChangesRequest, LiveQuery, ServerDatabase, is_remote};
use crate::failure::{self, Failure, Result};
use crate::output::{OutputFormat, Printable, Printer};
use crate::shell::interrupt;

/// Runs a command if it names a database of a server and works on those. Other commands report what is wrong.
pub(super) fn run(command: &Command) -> Option<Result<()>> {
    Some(match command {
        Command::Get(command) if is_remote(&command.database) => get(command),
        Command::Put(command) if is_remote(&command.database) => put(command),
        Command::Find(command) if is_remote(&command.database) => find(command),
        Command::Explain(command) if is_remote(&command.database) => explain(command),
        Command::Count(command) if is_remote(&command.database) => count(command),
        Command::Aggregate(command) if is_remote(&command.database) => aggregate(command),
        Command::Changes(command) if is_remote(&command.database) => changes(command),
        Command::Watch(command) if is_remote(&command.database) => watch(command),
        _ => return None,
    })
}

/// Opens the database, for a command without this option.
fn open_without(url: &Path, option: &str, is_given: bool) -> Result<ServerDatabase> {
    match is_given {
        true => Err(Failure::usage(format!("{option} works on local databases only"))
            .with_hint("leave it out, or name the directory of a database on this machine")),
        false => ServerDatabase::open(url),
    }
}

fn open_at(url: &Path, past: AsOfArgument) -> Result<ServerDatabase> {
    let database = ServerDatabase::open(url)?;
    match past.as_of {
        Some(at) => database.as_of(at),
        None => Ok(database),
    }
}

fn get(get: &Get) -> Result<()> {
    let db = open_at(&get.database, get.past)?;
    if get.revs || get.conflicts {
        return Err(Failure::usage("--revs and --conflicts work on local databases only"));
    }
    let mut printer = Printer::new(OutputFormat::choose(get.output, OutputFormat::PrettyJson));
    printer.record(db.get(&get.id, get.rev.as_deref())?)?;
    printer.flush()
}

fn put(put: &Put) -> Result<()> {
    let db = open_without(&put.database, "--index-policy", put.creation.index_policy.is_some())?;
    let write = document::write_from_arguments(put)?;
    let id = write.id.clone();
    let revision = db.put(write, put.durability.durability)?;
    update::print(put.output, write_result(&id, &revision))
}

fn find(find: &Find) -> Result<()> {
    let mut request = query::request(&find.query)?;
    let format = OutputFormat::choose(find.output, OutputFormat::Table);
    if format == OutputFormat::Table && !request.ids {
        request.fields.clear();
    }
    let db = open_at(&find.database, find.query.past)?;
    let mut printer = Printer::new(format);
    let mut rows = db.find(&request)?;
    while let Some(row) = rows.next()? {
        match format {
            OutputFormat::Table => printer.row(query::columns(row.into_object()?, &find.query.fields))?,
            _ => printer.row(row)?,
        }
        interrupt::check()?;
    }
    printer.flush()?;
    if let Some(token) = rows.token()? {
        failure::hint(format!("more with --page {token}"));
    }
    Ok(())
}

fn explain(explain: &Explain) -> Result<()> {
    let request = query::request(&explain.query)?;
    let db = open_without(&explain.database, "--analyze", explain.analyze)?;
    let mut printer = Printer::new(OutputFormat::JsonLines);
    printer.text(&db.explain(&request)?)?;
    printer.flush()
}

fn count(count: &Count) -> Result<()> {
    let selector = selector(&count.selector)?;
    let number = open_at(&count.database, count.past)?.count(&selector, count.timeout.timeout)?;
    let mut printer = Printer::new(OutputFormat::JsonLines);
    printer.text(&number.to_string())?;
    printer.flush()
}

fn aggregate(command: &Aggregate) -> Result<()> {
    if command.pipeline.is_some() {
        return open_without(&command.database, "--pipeline", true).map(drop);
    }
    let db = open_at(&command.database, command.past)?;
    super::aggregate::print(command, db.aggregate(&super::aggregate::request(command)?)?)
}

fn changes(changes: &Changes) -> Result<()> {
    let request = ChangesRequest {
        since: changes.since,
        documents: changes.docs,
        ids: changes.ids.clone(),
        selector: changes.selector.as_deref().map(selector).transpose()?,
        paths: changes.path.clone(),
        limit: changes.limit,
    };
    let on_terminal = if changes.follow || changes.docs { OutputFormat::JsonLines } else { OutputFormat::Table };
    let mut printer = Printer::new(OutputFormat::choose(changes.output, on_terminal));
    let db = open_without(&changes.database, "--as-of", changes.past.as_of.is_some())?;
    db.changes(&request, changes.follow, |row| {
        printer.row(row)?;
        if changes.follow {
            printer.flush()?;
        }
        interrupt::check()
    })?;
    printer.flush()
}

/// Prints the events of a live query until interrupted.
fn watch(watch: &Watch) -> Result<()> {
    let query = LiveQuery::new(selector(&watch.selector)?, watch.docs);
    let mut printer = Printer::new(OutputFormat::choose(watch.output, OutputFormat::JsonLines));
    let mut remaining = watch.limit.unwrap_or(u64::MAX);
    ServerDatabase::open(&watch.database)?.watch(&query, &mut |event| {
        let Some(event) = event else { return Ok(!interrupt::happened()) };
        printer.row(event)?;
        printer.flush()?;
        remaining = remaining.saturating_sub(1);
        Ok(remaining > 0)
    })
}
