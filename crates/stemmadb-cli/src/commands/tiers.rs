//! `stemma tiers`: defines, shows and runs the tiers of a database on a server.

use stemmadb::{Object, Value};
use stemmadb_server::Method;

use super::Session;
use super::topology::{definition, print};
use crate::arguments::{OutputOptions, Tiers, TiersCommand};
use crate::database::request;
use crate::failure::{Failure, Result, notice};
use crate::output::OutputFormat;

/// Runs one of the subcommands.
pub(super) fn run(tiers: &Tiers, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("tiers belong to databases of servers, not to the open database")
            .with_hint("leave the shell and use `stemma tiers URL show`"));
    }
    let database = tiers.database.trim_end_matches('/');
    let ask = |method: Method, body: Option<&Value>| request(method, database, "/_tiers", body);
    let order = |name: &str, value: bool| {
        let body: Object = [(name, Value::from(value))].into_iter().collect();
        ask(Method::POST, Some(&body.into()))
    };
    match &tiers.command {
        TiersCommand::Show { output } => show(&ask(Method::GET, None)?, *output),
        TiersCommand::Define { file } => ask(Method::PUT, Some(&definition(file)?)).map(drop),
        TiersCommand::Run { output } => {
            let answer = order("run", true)?;
            let result = answer.get("result").and_then(Value::as_object).cloned().unwrap_or_default();
            print(OutputFormat::choose(*output, OutputFormat::JsonLines), [result])
        }
        TiersCommand::Pause => order("paused", true).map(drop),
        TiersCommand::Resume => order("paused", false).map(drop),
        TiersCommand::Remove => ask(Method::DELETE, None).map(drop),
    }
}

/// Prints one row for each tier.
fn show(status: &Value, output: OutputOptions) -> Result<()> {
    let tiers = status.get("tiers").and_then(Value::as_array).into_iter().flatten();
    let members = ["name", "database", "documents", "stubs", "bytes"];
    let row = |tier: &Value| members.into_iter().filter_map(|name| Some((name, tier.get(name)?.clone()))).collect();
    print(OutputFormat::choose(output, OutputFormat::Table), tiers.map(row))?;
    if let Some(error) = status.get("error").and_then(Value::as_str) {
        notice(format!("the last run failed: {error}"));
    }
    Ok(())
}
