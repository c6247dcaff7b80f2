//! What is left of a damaged database goes out, one JSON object a line, as `import --revisions` takes it back.

use std::fs::File;
use std::io::{BufWriter, Write};

use stemmadb::{SalvageReport, Value};

use super::{Session, file, refuse_url};
use crate::arguments::Salvage;
use crate::face::{Rescued, salvage};
use crate::failure::{self, Exit, Failure, Result};
use crate::shell::interrupt;

/// Salvages to a file or standard output.
pub(super) fn run(arguments: &Salvage, session: Session<'_>) -> Result<()> {
    refuse_url(&arguments.database)?;
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
            let mut out = BufWriter::with_capacity(1 << 20, file::output(path, false)?);
            let report = write_all(arguments, &mut out, &fault)?;
            out.get_ref().sync_all().map_err(fault)?;
            report
        }
    };
    tell(arguments, &report)
}

fn write_all(
    arguments: &Salvage,
    out: &mut dyn Write,
    fault: &dyn Fn(std::io::Error) -> Failure,
) -> Result<SalvageReport> {
    if let Some(directory) = &arguments.files {
        let fault = |error| Failure::new(Exit::Unavailable, format!("cannot make {}: {error}", directory.display()));
        std::fs::create_dir(directory).map_err(fault)?;
    }
    let (mut line, mut settings) = (Vec::new(), None);
    let mut write_line = |object: &Value, out: &mut dyn Write| {
        line.clear();
        object.write_json(&mut line);
        line.push(b'\n');
        out.write_all(&line).map_err(fault)
    };
    let report = salvage(&arguments.database, &mut |rescued| {
        interrupt::check()?;
        match rescued {
            Rescued::Document(object) => write_line(&object, out),
            Rescued::Settings(newest) => {
                settings = Some(newest);
                Ok(())
            }
            Rescued::Content(name, mut content) => match &arguments.files {
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

/// Says what was saved, and what was not.
fn tell(arguments: &Salvage, report: &SalvageReport) -> Result<()> {
    for gap in &report.skipped {
        let place = if gap.start == gap.end { String::new() } else { format!(", bytes {} to {}", gap.start, gap.end) };
        failure::remark(format!("skipped {}{place}: {}", gap.file, gap.what));
    }
    let saved = match arguments.files {
        Some(_) => "contents of files",
        None => "contents of files (--files saves them)",
    };
    failure::remark(format!(
        "salvaged {} revisions, {} versions of local documents, {} {saved}",
        report.revision_count, report.local_count, report.content_count
    ));
    if report.joined_count > 0 {
        failure::remark(format!("joined {} revisions to what came before a lost one", report.joined_count));
    }
    if report.parted_count > 0 {
        failure::remark(format!(
            "{} documents may show what was replaced or deleted: what came after it is lost",
            report.parted_count
        ));
    }
    match report.skipped.len() {
        0 => Ok(()),
        places => Err(Failure::new(Exit::Corrupt, format!("the database is damaged in {places} places"))
            .with_hint("everything else was saved: `stemma import --revisions` puts it into a new database")),
    }
}
