//! `stemma salvage`: writes the readable revisions of a damaged database as JSON Lines for `stemma import --revisions`.

use std::fs::File;
use std::io::{BufWriter, Write};

use stemmadb::Value;
use stemmadb::salvage::SalvageReport;

use super::{Session, attachment};
use crate::arguments::Salvage;
use crate::database::{SalvagedItem, salvage};
use crate::failure::{self, Exit, Failure, Result};
use crate::shell::interrupt;

/// Salvages to a file or standard output.
pub(super) fn run(arguments: &Salvage, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(
            Failure::usage("the shell has the database open").with_hint("leave the shell, then `stemma salvage`")
        );
    }
    let report = match &arguments.output {
        None => write_all(arguments, &mut BufWriter::with_capacity(64 << 10, std::io::stdout()), &Failure::output)?,
        Some(path) => {
            let name = path.display();
            let fault = |error| Failure::new(Exit::Unavailable, format!("cannot write {name}: {error}"));
            let mut out = BufWriter::with_capacity(1 << 20, attachment::create_output(path, false)?);
            let report = write_all(arguments, &mut out, &fault)?;
            out.get_ref().sync_all().map_err(fault)?;
            report
        }
    };
    print_report(arguments, &report)
}

fn write_all(
    arguments: &Salvage,
    out: &mut dyn Write,
    fault: &dyn Fn(std::io::Error) -> Failure,
) -> Result<SalvageReport> {
    if let Some(directory) = &arguments.files {
        let fault = |error| Failure::new(Exit::Unavailable, format!("cannot create {}: {error}", directory.display()));
        std::fs::create_dir(directory).map_err(fault)?;
    }
    let (mut line, mut settings) = (Vec::new(), None);
    let mut write_line = |object: &Value, out: &mut dyn Write| {
        line.clear();
        object.write_json(&mut line);
        line.push(b'\n');
        out.write_all(&line).map_err(fault)
    };
    let report = salvage(&arguments.database, &mut |item| {
        interrupt::check()?;
        match item {
            SalvagedItem::Document(object) => write_line(&object, out),
            SalvagedItem::Settings(newest) => {
                settings = Some(newest);
                Ok(())
            }
            SalvagedItem::Content(name, mut content) => match &arguments.files {
                None => Ok(()),
                Some(directory) => {
                    let path = directory.join(name);
                    let fault =
                        |error| Failure::new(Exit::Unavailable, format!("cannot write {}: {error}", path.display()));
                    let mut file = File::create_new(&path).map_err(fault)?;
                    std::io::copy(&mut content, &mut file).map_err(fault)?;
                    file.sync_all().map_err(fault)
                }
            },
        }
    })?;
    if let Some(settings) = settings {
        write_line(&settings, out)?;
    }
    out.flush().map_err(fault)?;
    Ok(report)
}

/// Prints what was recovered and what was skipped; fails with [`Exit::Corrupt`] if anything was skipped.
fn print_report(arguments: &Salvage, report: &SalvageReport) -> Result<()> {
    for gap in &report.skipped {
        let range = if gap.start == gap.end { String::new() } else { format!(", bytes {} to {}", gap.start, gap.end) };
        failure::notice(format!("skipped {}{range}: {}", gap.file, gap.what));
    }
    let attachments = match arguments.files {
        Some(_) => "attachments",
        None => "attachments (--files saves their content)",
    };
    failure::notice(format!(
        "salvaged {} revisions, {} versions of local documents, {} {attachments}",
        report.revision_count, report.local_count, report.content_count
    ));
    if report.reattached_count > 0 {
        failure::notice(format!(
            "attached {} revisions to the nearest readable ancestor of a lost one",
            report.reattached_count
        ));
    }
    if report.ambiguous_count > 0 {
        failure::notice(format!(
            "{} documents may have an outdated or deleted winner: later revisions are lost",
            report.ambiguous_count
        ));
    }
    match report.skipped.len() {
        0 => Ok(()),
        count => Err(Failure::new(Exit::Corrupt, format!("the database is damaged in {count} places"))
            .with_hint("everything else was saved: import it into a new database with `stemma import --revisions`")),
    }
}
