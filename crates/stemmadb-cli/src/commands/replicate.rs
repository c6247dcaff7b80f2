//! `stemma replicate`: replicates from one database to another, each on this machine or on a server.

use std::path::Path;

use stemmadb::Cancellation;
use stemmadb_http::SigningKey;

use super::follow::refuse_in_shell;
use super::serve::ShutdownSignal;
use super::{Session, selector};
use crate::arguments::Replicate;
use crate::database::{Database, ReplicationNotice, ReplicationRequest, ReplicationSide};
use crate::failure::{self, Exit, Failure, Result};
use crate::progress::Progress;

/// Replicates once, or until interrupted.
pub(super) fn run(replicate: &Replicate, session: Session<'_>) -> Result<()> {
    refuse_in_shell(session, "replicate", "replicate SOURCE TARGET")?;
    let (is_url, same) = (|path: &Path| path.to_string_lossy().contains("://"), replicate.source == replicate.target);
    let is_local = !is_url(&replicate.source) && !is_url(&replicate.target);
    if same {
        return Err(Failure::usage("the source and the target are the same database"));
    }
    if is_local && replicate.continuous {
        let reason = "no other process can change a database while this command has it open";
        return Err(Failure::usage(reason).with_hint("omit --continuous, or name the URL of a server"));
    }
    if replicate.filter.is_some() && !is_url(&replicate.source) {
        return Err(Failure::usage("filter functions are run by servers only").with_hint("use --selector"));
    }
    let request = ReplicationRequest {
        selector: replicate.selector.as_deref().map(selector).transpose()?,
        ids: replicate.ids.clone(),
        filter: replicate.filter.clone(),
        batch: replicate.batch,
        is_continuous: replicate.continuous,
        retries: replicate.retries,
        cancellation: cancelled_by_signals()?,
    };
    let ca = replicate.ca.as_deref();
    let source_access = Access {
        token_file: replicate.source_token_file.as_deref(),
        key_file: replicate.source_key_file.as_deref(),
        ca,
    };
    let target_access = Access {
        token_file: replicate.target_token_file.as_deref(),
        key_file: replicate.target_key_file.as_deref(),
        ca,
    };
    let source = side(&replicate.source, source_access, false)?;
    let target = match side(&replicate.target, target_access, replicate.create) {
        Ok(target) => target,
        Err(failure) => {
            source.close()?;
            return Err(failure);
        }
    };
    let outcome = target.prepare(replicate.create).and_then(|()| run_and_report(request, &source, &target));
    let closed = source.close().and(target.close());
    outcome?;
    closed
}

fn run_and_report(request: ReplicationRequest, source: &ReplicationSide, target: &ReplicationSide) -> Result<()> {
    let (cancellation, is_continuous) = (request.cancellation.clone(), request.is_continuous);
    let progress = Progress::for_documents("replicate", None);
    let mut is_reported = false;
    let outcome = request.run(source, target, |notice| match notice {
        ReplicationNotice::Progress(written_count) => progress.set_position(written_count),
        ReplicationNotice::CaughtUp(written_count, refused_count) if is_continuous => {
            progress.set_position(written_count);
            if !std::mem::replace(&mut is_reported, true) {
                report(&progress, written_count, refused_count);
                failure::notice("waiting for changes");
            }
        }
        ReplicationNotice::CaughtUp(..) => {}
        ReplicationNotice::Failed(reason, seconds) => {
            is_reported = false;
            failure::notice(format_args!("{reason}; trying again in {seconds:.1} s"));
        }
    });
    match outcome {
        Err(_) if cancellation.is_cancelled() => {
            failure::notice("interrupted; the same command continues");
            Err(Failure::silent(Exit::Interrupted))
        }
        outcome => {
            let (written_count, refused_count) = outcome?;
            report(&progress, written_count, refused_count);
            Ok(())
        }
    }
}

fn report(progress: &Progress, written_count: u64, refused_count: u64) {
    let refused = match refused_count {
        0 => String::new(),
        count => format!("; the target refused {count}"),
    };
    failure::notice(format_args!("{}{refused}", progress.summary("replicated", written_count)));
}

/// How a side that is on a server is reached.
#[derive(Clone, Copy)]
struct Access<'a> {
    token_file: Option<&'a Path>,
    key_file: Option<&'a Path>,
    ca: Option<&'a Path>,
}

/// Opens a side.
fn side(path: &Path, access: Access<'_>, create: bool) -> Result<ReplicationSide> {
    let text = path.to_string_lossy();
    let Access { token_file, key_file, ca } = access;
    if text.contains("://") {
        let token = token_file.map(read_secret).transpose()?;
        let key = key_file.map(|file| Ok::<_, Failure>(SigningKey::from_pem(&read_secret(file)?)?)).transpose()?;
        return ReplicationSide::remote(&text, token.as_deref(), key, ca);
    }
    if token_file.is_some() || key_file.is_some() {
        return Err(Failure::usage(format!("{text} is a directory: it takes no token and no key")));
    }
    let opened = if create { Database::open_or_create(path, None) } else { Database::open_existing(path) };
    Ok(ReplicationSide::Local(opened?))
}

/// A file of one secret, without the white space around it.
fn read_secret(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Failure::usage(format!("{} can't be read: {error}", file.display())))?;
    Ok(text.trim().to_owned())
}

/// A cancellation that SIGINT and SIGTERM use.
fn cancelled_by_signals() -> Result<Cancellation> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(stemmadb::Error::no_thread)?;
    let shutdown = {
        let _context = runtime.enter();
        ShutdownSignal::install().map_err(stemmadb::Error::no_thread)?
    };
    let cancellation = Cancellation::new();
    let cancelled = cancellation.clone();
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if runtime.block_on(shutdown.wait()).is_ok() {
            cancelled.cancel();
        }
    });
    waiting.map_err(stemmadb::Error::no_thread)?;
    Ok(cancellation)
}
