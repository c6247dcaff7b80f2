//! `stemma serve`: every database in a directory, over HTTP, until interrupted.

use stemmadb_server::{Administrator, Config, Cors, Server};

use super::Session;
use crate::arguments::Serve;
use crate::face::durability_of;
use crate::failure::{Exit, Failure, Result, remark};

/// Where the administrator's name and password are looked for: not among the arguments, which other users of the machine can read.
const ADMIN: &str = "STEMMA_ADMIN";

pub(super) fn run(serve: &Serve, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("a server can't be run from the shell").with_hint("leave the shell first"));
    }
    let administrator = administrator(std::env::var(ADMIN).ok())?;
    let origins = serve.cors_origin.clone();
    let config = Config {
        cors: (!origins.is_empty()).then_some(Cors { origins, credentials: true }),
        address: serve.listen,
        administrator,
        durability: durability_of(serve.durability.durability),
        ..Config::new(&serve.directory)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Unavailable, format!("cannot start threads: {error}")))?;
    runtime.block_on(until_interrupted(config))
}

async fn until_interrupted(config: Config) -> Result<()> {
    let durability = config.durability;
    let server = Server::start(config).await.map_err(|failure| Failure::new(Exit::Unavailable, failure.reason()))?;
    remark(format_args!("listening on http://{} (durability: {durability})", server.address()));
    if let Some(password) = server.generated_password() {
        remark(format_args!(
            "administrator for this run: admin, password {password} (set {ADMIN}=NAME:PASSWORD for one that stays)"
        ));
    }
    let interrupted = tokio::signal::ctrl_c().await;
    interrupted.map_err(|error| Failure::new(Exit::Unavailable, format!("cannot wait for signals: {error}")))?;
    server.stop().await;
    Ok(())
}

/// The administrator that `NAME:PASSWORD` is.
fn administrator(text: Option<String>) -> Result<Option<Administrator>> {
    let Some(text) = text else { return Ok(None) };
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() && !password.is_empty() => {
            Ok(Some(Administrator { name: name.to_owned(), password: password.to_owned() }))
        }
        _ => Err(Failure::usage(format!("{ADMIN} is not NAME:PASSWORD"))
            .with_hint(format!("for example {ADMIN}=ada:secret"))),
    }
}
