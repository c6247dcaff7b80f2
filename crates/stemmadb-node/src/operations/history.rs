//! The past.

use std::time::UNIX_EPOCH;

use stemmadb::past::{Difference, PastRevision};
use stemmadb::{Error, Result, Value};
use stemmadb_client::AnyDatabase;
use stemmadb_client::bindings::Reader;

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::handle::Handle;
use crate::text::{into_text, write_array, write_document};

/// The database as of a point in the past.
pub(crate) fn as_of(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let at = arguments.point("at")?;
    Ok(Answer::Handle(Handle::new(match database {
        AnyDatabase::Embedded(database) => Reader::Snapshot(database.as_of(at)?),
        AnyDatabase::Remote(database) => Reader::RemotePast(database.as_of(at)),
    })))
}

/// Writes the members of a revision; the package makes a `Date` of its milliseconds.
fn write_revision(revision: PastRevision, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(format!("{{\"sequence\":{}", revision.sequence.get()).as_bytes());
    if let Some(time) = revision.time {
        let ms = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        out.extend_from_slice(format!(",\"time\":{ms}").as_bytes());
    }
    if let Some(author) = revision.author {
        out.extend_from_slice(b",\"author\":");
        Value::from(author).write_json(out);
    }
    out.extend_from_slice(b",\"document\":");
    write_document(&revision.document, out)?;
    out.push(b'}');
    Ok(())
}

/// The stored revisions of a document, the newest first.
pub(crate) fn revisions(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let mut json = Vec::with_capacity(1024);
    write_array(database.history().revisions(&arguments.text("id")?)?, &mut json, write_revision)?;
    into_text(json).map(Answer::Text)
}

fn write_difference(difference: Difference, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"id\":");
    Value::from(difference.id().as_str()).write_json(out);
    let (before, after, paths) = match &difference {
        Difference::Added(after) => (None, Some(after), None),
        Difference::Removed(before) => (Some(before), None, None),
        Difference::Changed { before, after, paths } => (Some(before), Some(after), Some(paths)),
        other => return Err(Error::internal(format!("document `{}` differs in an unknown way", other.id()))),
    };
    for (name, document) in [("before", before), ("after", after)] {
        if let Some(document) = document {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            write_document(document, out)?;
        }
    }
    let paths: Value = paths.into_iter().flatten().map(|path| Value::from(path.as_str())).collect();
    out.extend_from_slice(b",\"paths\":");
    paths.write_json(out);
    out.push(b'}');
    Ok(())
}

/// The documents that differ between two points in the past.
pub(crate) fn differences(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let (start, end, selector) = (arguments.point("start")?, arguments.point("end")?, arguments.selector()?);
    let mut json = Vec::with_capacity(1024);
    let found = database.history().differences(start, end, selector.as_ref())?;
    write_array(found, &mut json, write_difference)?;
    into_text(json).map(Answer::Text)
}

pub(crate) fn keep(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    database.history().keep(arguments.retention()?)?;
    Ok(Answer::Nothing)
}

pub(crate) fn undelete(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Value> {
    Ok(Value::from(database.history().undelete(&arguments.text("id")?)?.to_string()))
}
