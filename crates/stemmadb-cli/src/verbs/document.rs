//! One document: write it, read it, delete it.

use std::path::Path;

use stemmadb::{Object, Value};

use super::{Session, argument, written};
use crate::arguments::{Delete, Get, Put};
use crate::face::{Over, Wanted, Write};
use crate::failure::{Failure, Result};
use crate::read::{self, Found, Place, Source};
use crate::show::{Look, Show};

/// Writes one document and shows its revision.
pub(super) fn put(put: &Put, session: Session<'_>) -> Result<()> {
    let write = write_of(put)?;
    let id = write.id.clone();
    let revision = session.with_new(&put.database, |db| db.put(write, put.durability.durability))?;
    let mut show = Show::new(Look::of(put.form, Look::Table));
    show.record(written(&id, &revision))?;
    show.flush()
}

/// Shows one document.
pub(super) fn get(get: &Get, session: Session<'_>) -> Result<()> {
    let wanted = Wanted { revision: get.rev.as_deref(), ancestry: get.revs, conflicts: get.conflicts };
    let document = session.with(&get.database, |db| db.get(&get.id, wanted))?;
    let mut show = Show::new(Look::of(get.form, Look::Pretty));
    show.record(document)?;
    show.flush()
}

/// Deletes one document and shows the deletion's revision.
pub(super) fn delete(delete: &Delete, session: Session<'_>) -> Result<()> {
    let revision = session
        .with(&delete.database, |db| db.delete(&delete.id, delete.rev.as_deref(), delete.durability.durability))?;
    let mut show = Show::new(Look::of(delete.form, Look::Table));
    show.record(written(&delete.id, &revision))?;
    show.flush()
}

/// What is to be written, from the arguments and the document itself.
fn write_of(put: &Put) -> Result<Write> {
    let (id, text) = match (&put.id, &put.document) {
        // The first thing anybody tries: `stemma put library.stemma '{"title": "Emma"}'`.
        (Some(id), None) if id.starts_with('{') => (None, Some(id)),
        (id, text) => (id.as_ref(), text.as_ref()),
    };
    let document = match text.map(String::as_str) {
        None | Some("-") => {
            let source = Source::open(Path::new("-"))?;
            let name = source.name.clone();
            read::parse(&source.text()?, Found { place: Place::START, exact: true })
                .map_err(|failure| failure.within(name))?
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
    let over = match (&put.rev, own_revision) {
        _ if put.upsert => Over::Anything,
        (Some(revision), _) => Over::Revision(revision.clone()),
        (None, Some(own)) => Over::Revision(own),
        (None, None) => Over::Nothing,
    };
    Ok(Write { id, body, over })
}

/// Takes a field out that must be a string.
fn take_text(body: &mut Object, name: &str) -> Result<Option<String>> {
    match body.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::usage(format!("`{name}` is not a string"))),
    }
}
