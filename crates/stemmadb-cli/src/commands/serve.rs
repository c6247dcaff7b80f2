//! `stemma serve`: serves the databases in a directory over HTTP until interrupted.

use std::io::Write as _;
use std::time::Duration;

use stemmadb_server::settings::{LoadedSettings, SettingSources, SettingsError};
use stemmadb_server::{BLOCKING_THREADS_MAX, Config, Format, Server, ServerBuilder, raise_descriptor_limit};

use super::{Session, cluster};
use crate::arguments::Serve;
use crate::failure::{Exit, Failure, Result, notice};

pub(super) fn run(serve: &Serve, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("a server can't be run from the shell").with_hint("leave the shell first"));
    }
    let gathered = gather(serve)?;
    gathered.warnings.iter().for_each(|remark| notice(format_args!("{remark}")));
    if serve.print_config {
        return write!(std::io::stdout().lock(), "{}", gathered.to_toml()).map_err(Failure::output);
    }
    run_server(gathered.config, announce)
}

/// Runs a server until it is interrupted. `announce` is called once it listens.
pub(super) fn run_server(config: Config, announce: impl FnOnce(&Server, &Config) -> Result<()>) -> Result<()> {
    raise_descriptor_limit();
    // The runtime panics if it cannot start its threads, so check first.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.max_blocking_threads(BLOCKING_THREADS_MAX).enable_all();
    let runtime = check_thread_limit().and_then(|()| runtime.build());
    let runtime = runtime.map_err(stemmadb::Error::no_thread)?;
    let served = runtime.block_on(serve_until_interrupted(config, announce));
    // The databases are closed: work that still runs can't do anything but fail.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    served
}

/// How long threads that still run have to notice that the databases are closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads needed besides the runtime's workers: for logging, blocking calls and two open databases.
const EXTRA_THREAD_COUNT: usize = 8;

/// Starts and joins as many threads as a server needs at startup; fails if the system refuses one.
fn check_thread_limit() -> std::io::Result<()> {
    let worker_count = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = Vec::new();
    let mut outcome = Ok(());
    while outcome.is_ok() && threads.len() < worker_count + EXTRA_THREAD_COUNT {
        outcome = std::thread::Builder::new().spawn(std::thread::park).map(|thread| threads.push(thread));
    }
    for thread in threads {
        thread.thread().unpark();
        thread.join().ok();
    }
    outcome
}

/// Merges the settings from the command line, the environment and the configuration file.
fn gather(serve: &Serve) -> Result<LoadedSettings> {
    let sources = SettingSources {
        directory: serve.directory.clone(),
        file: serve.config.clone(),
        flags: serve.settings.0.clone(),
        environment: std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect(),
    };
    sources.load().map_err(|SettingsError { message, hint }| {
        let failure = Failure::usage(message);
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    })
}

async fn serve_until_interrupted(config: Config, announce: impl FnOnce(&Server, &Config) -> Result<()>) -> Result<()> {
    let cannot_wait = |error| Failure::new(Exit::Unavailable, format!("cannot wait for signals: {error}"));
    let shutdown = ShutdownSignal::install().map_err(cannot_wait)?;
    let _logging =
        config.log.install(std::io::stderr()).map_err(|failure| Failure::new(Exit::Internal, failure.reason()))?;
    let joining = config.clone();
    let joined = tokio::task::spawn_blocking(move || cluster::join(&joining)).await;
    let joined = joined.map_err(|error| Failure::new(Exit::Internal, error.to_string()))??;
    let builder = joined.into_iter().fold(Server::builder(config.clone()), ServerBuilder::cluster);
    let started = builder.start().await;
    let server = started.map_err(|failure| Failure::new(Exit::Unavailable, failure.reason()))?;
    let announced = announce(&server, &config);
    if announced.is_ok() {
        shutdown.wait().await.map_err(cannot_wait)?;
    }
    server.stop().await;
    announced
}

/// Prints where the server listens, where its console is, and the password if it was generated.
fn announce(server: &Server, config: &Config) -> Result<()> {
    let (address, durability) = (server.address(), config.durability);
    let scheme = if config.is_encrypted() { "https" } else { "http" };
    match config.log.format {
        Format::Text => {
            notice(format_args!("listening on {scheme}://{address} (durability: {durability})"));
            notice(format_args!("console: {scheme}://{address}/_console/"));
        }
        Format::Json => {
            let console = format!("{scheme}://{address}/_console/");
            tracing::info!(target: "stemma", scheme, %address, %durability, console, "listening");
        }
    }
    if let Some(password) = server.generated_password() {
        notice(format_args!(
            "administrator: admin, password {password} (generated, shown only once; \
             set STEMMA_ADMIN_PASSWORD to choose one)"
        ));
    }
    Ok(())
}

/// SIGINT (Ctrl-C) and SIGTERM, which are handled from here on.
pub(super) struct ShutdownSignal {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 2],
}

impl ShutdownSignal {
    /// Installs the handlers. Do so before telling anyone that the program runs: a signal without a handler kills it.
    pub(super) fn install() -> std::io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(ShutdownSignal { signals: [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?] })
        }
        #[cfg(not(unix))]
        Ok(ShutdownSignal {})
    }

    /// Waits for a signal.
    pub(super) async fn wait(mut self) -> std::io::Result<()> {
        #[cfg(unix)]
        {
            let [interrupted, terminated] = &mut self.signals;
            tokio::select! {
                _ = interrupted.recv() => Ok(()),
                _ = terminated.recv() => Ok(()),
            }
        }
        #[cfg(not(unix))]
        tokio::signal::ctrl_c().await
    }
}
