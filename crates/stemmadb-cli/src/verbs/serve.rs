//! `stemma serve`: every database in a directory, over HTTP, until interrupted.

use std::io::Write as _;

use stemmadb_server::settings::{Gathered, Sources, Wrong};
use stemmadb_server::{Config, Format, Server};

use super::Session;
use crate::arguments::Serve;
use crate::failure::{Exit, Failure, Result, remark};

pub(super) fn run(serve: &Serve, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("a server can't be run from the shell").with_hint("leave the shell first"));
    }
    let gathered = gather(serve)?;
    gathered.remarks.iter().for_each(|told| remark(format_args!("{told}")));
    if serve.print_config {
        return write!(std::io::stdout().lock(), "{}", gathered.told()).map_err(Failure::output);
    }
    // The runtime panics where it gets none.
    let runtime = try_threads().and_then(|()| tokio::runtime::Builder::new_multi_thread().enable_all().build());
    runtime.map_err(stemmadb::Error::no_thread)?.block_on(until_interrupted(gathered.config))
}

/// Those of a log, of what blocks, and of two databases.
const THREADS_BESIDE_WORKERS: usize = 8;

/// Whether as many threads can be started as a server begins with.
fn try_threads() -> std::io::Result<()> {
    let worker_count = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = Vec::new();
    let mut outcome = Ok(());
    while outcome.is_ok() && threads.len() < worker_count + THREADS_BESIDE_WORKERS {
        outcome = std::thread::Builder::new().spawn(std::thread::park).map(|thread| threads.push(thread));
    }
    for thread in threads {
        thread.thread().unpark();
        thread.join().ok();
    }
    outcome
}

/// What the command line, the environment and the file say.
fn gather(serve: &Serve) -> Result<Gathered> {
    let sources = Sources {
        directory: serve.directory.clone(),
        file: serve.config.clone(),
        flags: serve.settings.0.clone(),
        environment: std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect(),
    };
    sources.gather().map_err(|Wrong { message, hint }| {
        let failure = Failure::usage(message);
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    })
}

async fn until_interrupted(config: Config) -> Result<()> {
    let (log, durability, scheme) =
        (config.log, config.durability, if config.tls.is_some() { "https" } else { "http" });
    let _logging = log.install(std::io::stderr()).map_err(|failure| Failure::new(Exit::Internal, failure.reason()))?;
    let server = Server::start(config).await.map_err(|failure| Failure::new(Exit::Unavailable, failure.reason()))?;
    let address = server.address();
    match log.format {
        Format::Text => remark(format_args!("listening on {scheme}://{address} (durability: {durability})")),
        Format::Json => tracing::info!(target: "stemma", scheme, %address, %durability, "listening"),
    }
    if let Some(password) = server.generated_password() {
        remark(format_args!(
            "administrator: admin, password {password} (made up now and told once; STEMMA_ADMIN_PASSWORD sets another)"
        ));
    }
    let told = told_to_stop().await;
    told.map_err(|error| Failure::new(Exit::Unavailable, format!("cannot wait for signals: {error}")))?;
    server.stop().await;
    Ok(())
}

/// Waits for Ctrl-C, or for what ends a service.
pub(super) async fn told_to_stop() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
