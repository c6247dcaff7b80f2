//! `stemma export`: writes documents as JSON Lines that `stemma import` reads, or as CSV.

use std::io::{BufWriter, Write};
use std::path::Path;

use stemmadb::{Object, Value};

use super::{Session, attachment, selector};
use crate::arguments::{Export, ExportFormat};
use crate::database::{Database, FindRequest, ResultRow};
use crate::failure::{self, Exit, Failure, Result};
use crate::output::Printable;
use crate::progress::Progress;
use crate::shell::interrupt;

/// Exports to a file or standard output.
pub(super) fn run(export: &Export, session: Session<'_>) -> Result<()> {
    let export = Request::new(export)?;
    session.with_past(&export.arguments.database, export.arguments.past, |db| {
        if export.arguments.file == Path::new("-") {
            let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout());
            export.write_all(db, &mut out, &Failure::output)?;
            return Ok(());
        }
        export.to_file(db)
    })
}

/// What to export, and how.
struct Request<'a> {
    arguments: &'a Export,
    selector: Value,
    format: ExportFormat,
    fields: Vec<stemmadb::Path>,
}

impl<'a> Request<'a> {
    fn new(arguments: &'a Export) -> Result<Self> {
        let is_csv = arguments.file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        let by_name = if is_csv { ExportFormat::Csv } else { ExportFormat::Jsonl };
        let field = |text: &String| stemmadb::Path::parse(text).map_err(|e| Failure::from(e).with_context("--fields"));
        Ok(Request {
            arguments,
            selector: selector(&arguments.selector)?,
            format: arguments.format.unwrap_or(by_name),
            fields: arguments.fields.iter().map(field).collect::<Result<_>>()?,
        })
    }

    fn to_file(&self, db: &Database) -> Result<()> {
        let name = self.arguments.file.display();
        let fault = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}"));
        let file = attachment::create_output(&self.arguments.file, self.arguments.force)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let outcome = self.write_all(db, &mut out, &fault);
        out.get_ref().sync_all().map_err(fault)?;
        failure::notice(outcome?);
        Ok(())
    }

    /// Writes every readable document; returns a summary for the user.
    fn write_all(
        &self,
        db: &Database,
        out: &mut dyn Write,
        fault: &dyn Fn(std::io::Error) -> Failure,
    ) -> Result<String> {
        let columns = match self.format {
            ExportFormat::Csv => Some(self.columns(db)?),
            ExportFormat::Jsonl => None,
        };
        let mut line = Vec::new();
        if let Some(columns) = &columns {
            write_record(columns.iter().map(|(name, _)| name.clone()), &mut line);
            out.write_all(&line).map_err(fault)?;
        }
        let total = if self.is_everything() { db.document_count().ok() } else { None };
        let progress = Progress::for_documents("export", total);
        let (mut count, mut damaged_count) = (0, 0);
        for document in self.rows(db)? {
            let document = match document {
                // A query ends at a damaged document.
                Err(failure) if failure.exit() == Exit::Corrupt && self.is_everything() => {
                    failure.print();
                    damaged_count += 1;
                    continue;
                }
                document => document?,
            };
            line.clear();
            match &columns {
                Some(columns) => {
                    let document = Value::Object(document.into_object()?);
                    write_record(columns.iter().map(|(_, path)| cell(path.get(&document))), &mut line);
                }
                None => {
                    document.write_json(&mut line)?;
                    line.push(b'\n');
                }
            }
            out.write_all(&line).map_err(fault)?;
            count += 1;
            if count % 256 == 0 {
                progress.set_position(count);
                interrupt::check()?;
            }
        }
        out.flush().map_err(fault)?;
        match damaged_count {
            0 => Ok(progress.summary("exported", count)),
            _ => Err(Failure::new(
                Exit::Corrupt,
                format!("{damaged_count} of {} documents could not be read", count + damaged_count),
            )
            .with_hint("all others were exported")),
        }
    }

    /// Whether all documents are exported whole, which also works on a damaged database.
    fn is_everything(&self) -> bool {
        let is_whole = self.fields.is_empty() || self.format == ExportFormat::Csv;
        is_whole && self.selector.as_object().is_some_and(Object::is_empty)
    }

    fn rows<'d>(&self, db: &'d Database) -> Result<Box<dyn Iterator<Item = Result<ResultRow>> + 'd>> {
        if self.is_everything() {
            return Ok(Box::new(db.all_documents()));
        }
        let fields = match self.format {
            ExportFormat::Csv => Vec::new(),
            ExportFormat::Jsonl => self.arguments.fields.clone(),
        };
        let mut rows = db.find(&FindRequest { selector: self.selector.clone(), fields, ..FindRequest::default() })?;
        Ok(Box::new(std::iter::from_fn(move || rows.next().transpose())))
    }

    /// The columns of CSV: the requested fields, or the top-level fields of all documents in order of appearance.
    fn columns(&self, db: &Database) -> Result<Vec<(String, stemmadb::Path)>> {
        if !self.fields.is_empty() {
            return Ok(self.arguments.fields.iter().cloned().zip(self.fields.iter().cloned()).collect());
        }
        let mut names: Vec<String> = Vec::new();
        let mut known = std::collections::HashSet::new();
        for document in self.rows(db)? {
            let document = match document {
                Err(failure) if failure.exit() == Exit::Corrupt => continue,
                document => document?.into_object()?,
            };
            for name in document.names().filter(|name| *name != "_rev" && !name.is_empty()) {
                if known.insert(name.to_owned()) {
                    names.push(name.to_owned());
                }
            }
            interrupt::check()?;
        }
        names.into_iter().map(|name| Ok((name.clone(), stemmadb::Path::new([name])?))).collect()
    }
}

/// The text of a cell: that of a string, otherwise JSON; empty for a missing value and null.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_json(),
    }
}

/// Appends a line of CSV. Cells with a comma, quote or line break are quoted.
fn write_record(cells: impl Iterator<Item = String>, out: &mut Vec<u8>) {
    for (at, cell) in cells.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        if cell.contains([',', '"', '\n', '\r']) || cell.trim() != cell {
            out.push(b'"');
            out.extend_from_slice(cell.replace('"', "\"\"").as_bytes());
            out.push(b'"');
        } else {
            out.extend_from_slice(cell.as_bytes());
        }
    }
    out.push(b'\n');
}
