//! `stemma put` and `get`: one document.

use std::path::Path;

use stemmadb::{Object, Value};

use super::{Session, argument, write_result};
use crate::arguments::{Get, Put};
use crate::database::{DocumentWrite, GetOptions, WriteMode};
use crate::failure::{Failure, Result};
use crate::input::{self, DocumentOrigin, Source, TextPosition};
use crate::output::{OutputFormat, Printer};

/// Writes a document and prints its revision.
pub(super) fn put(put: &Put, session: Session<'_>) -> Result<()> {
    let write = write_from_arguments(put)?;
    let id = write.id.clone();
    let revision = session.with_created(&put.database, &put.creation, |db| db.put(write, put.durability.durability))?;
    let mut printer = Printer::new(OutputFormat::choose(put.output, OutputFormat::Table));
    printer.record(write_result(&id, &revision))?;
    printer.flush()
}

/// Prints a document.
pub(super) fn get(get: &Get, session: Session<'_>) -> Result<()> {
    let options = GetOptions { revision: get.rev.as_deref(), with_ancestors: get.revs, with_conflicts: get.conflicts };
    let document = session.with_past(&get.database, get.past, |db| db.get(&get.id, options))?;
    let mut printer = Printer::new(OutputFormat::choose(get.output, OutputFormat::PrettyJson));
    printer.record(document)?;
    printer.flush()
}

/// Builds the write from the arguments and from the `_id` and `_rev` of the document.
pub(super) fn write_from_arguments(put: &Put) -> Result<DocumentWrite> {
    let (id, text) = match (&put.id, &put.document) {
        // A single argument may be the document: `stemma put library.stemma '{"title": "Emma"}'`.
        (Some(id), None) if id.starts_with('{') => (None, Some(id)),
        (id, text) => (id.as_ref(), text.as_ref()),
    };
    let document = match text.map(String::as_str) {
        None | Some("-") => {
            let source = Source::open(Path::new("-"))?;
            let name = source.name.clone();
            input::parse(&source.text()?, DocumentOrigin { position: TextPosition::START, is_verbatim: true })
                .map_err(|failure| failure.with_context(name))?
        }
        Some(text) => argument("document", text)?,
    };
    let Value::Object(mut body) = document else {
        return Err(Failure::usage("a document is a JSON object").with_hint("for example '{\"title\": \"Emma\"}'"));
    };
    let own_id = take_text(&mut body, "_id")?;
    let own_revision = take_text(&mut body, "_rev")?;
    let id = match (id, own_id) {
        (Some(id), Some(own)) if *id != own => {
            return Err(Failure::usage(format!("two ids: {id:?} as argument, {own:?} in the document")));
        }
        (Some(id), _) => id.clone(),
        (None, Some(own)) => own,
        (None, None) => uuid::Uuid::now_v7().to_string(),
    };
    let mode = match (&put.rev, own_revision) {
        _ if put.upsert => WriteMode::Upsert,
        (Some(revision), _) => WriteMode::Replace(revision.clone()),
        (None, Some(own)) => WriteMode::Replace(own),
        (None, None) => WriteMode::Insert,
    };
    Ok(DocumentWrite { id, body, mode })
}

/// Removes a field and returns its value, which must be a string.
fn take_text(body: &mut Object, name: &str) -> Result<Option<String>> {
    match body.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::usage(format!("`{name}` is not a string"))),
    }
}
