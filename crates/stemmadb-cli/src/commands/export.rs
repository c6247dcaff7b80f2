//! `stemma export`: writes all documents as JSON Lines that `stemma import` reads.

use std::io::{BufWriter, Write};
use std::path::Path;

use super::{Session, attachment};
use crate::arguments::Export;
use crate::database::Database;
use crate::failure::{self, Exit, Failure, Result};
use crate::output::Printable;
use crate::progress::Progress;
use crate::shell::interrupt;

/// Exports to a file or standard output.
pub(super) fn run(export: &Export, session: Session<'_>) -> Result<()> {
    session.with(&export.database, |db| {
        if export.file == Path::new("-") {
            let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout());
            write_all(db, &mut out, &Failure::output)?;
            return Ok(());
        }
        to_file(db, export)
    })
}

fn to_file(db: &Database, export: &Export) -> Result<()> {
    let name = export.file.display();
    let fault = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}"));
    let file = attachment::create_output(&export.file, export.force)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let outcome = write_all(db, &mut out, &fault);
    out.get_ref().sync_all().map_err(fault)?;
    failure::notice(outcome?);
    Ok(())
}

/// Writes every readable document; returns a summary for the user.
fn write_all(db: &Database, out: &mut dyn Write, fault: &dyn Fn(std::io::Error) -> Failure) -> Result<String> {
    let progress = Progress::for_documents("export", db.document_count().ok());
    let (mut line, mut count, mut damaged_count) = (Vec::new(), 0, 0);
    for document in db.all_documents() {
        let document = match document {
            Err(failure) if failure.exit() == Exit::Corrupt => {
                failure.print();
                damaged_count += 1;
                continue;
            }
            document => document?,
        };
        line.clear();
        document.write_json(&mut line)?;
        line.push(b'\n');
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
