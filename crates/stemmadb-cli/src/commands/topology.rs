//! `stemma topology`: defines, shows, pauses and removes the topologies of a server.

use std::collections::BTreeMap;
use std::path::Path;

use stemmadb::{Object, Value};
use stemmadb_server::Method;

use super::Session;
use crate::arguments::{OutputOptions, Topology, TopologyCommand};
use crate::database::request;
use crate::failure::{Failure, Result};
use crate::input::{self, DocumentOrigin, Source, TextPosition};
use crate::output::{OutputFormat, Printer};

/// Runs one of the topology subcommands.
pub(super) fn run(topology: &Topology, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("topologies belong to servers, not to the open database")
            .with_hint("leave the shell and use `stemma topology SERVER list`"));
    }
    let server = topology.server.trim_end_matches('/');
    let ask = |method: Method, route: &str, body: Option<&Value>| request(method, server, route, body);
    match &topology.command {
        TopologyCommand::List { output } => list(&ask(Method::GET, "/_topology", None)?, *output),
        TopologyCommand::Show { name, output } => show(&ask(Method::GET, &route(name)?, None)?, *output),
        TopologyCommand::Define { name, file } => ask(Method::PUT, &route(name)?, Some(&definition(file)?)).map(drop),
        TopologyCommand::Pause { name } => ask(Method::POST, &format!("{}/_pause", route(name)?), None).map(drop),
        TopologyCommand::Resume { name } => ask(Method::POST, &format!("{}/_resume", route(name)?), None).map(drop),
        TopologyCommand::Remove { name } => ask(Method::DELETE, &route(name)?, None).map(drop),
    }
}

fn route(name: &str) -> Result<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match name.bytes().all(is_name) {
        true => Ok(format!("/_topology/{name}")),
        false => Err(Failure::usage(format!("{name:?}: a topology's name has letters, digits, `-`, `.` and `_` only"))),
    }
}

/// Reads a definition, as JSON.
pub(super) fn definition(file: &Path) -> Result<Value> {
    let source = Source::open(file)?;
    let name = source.name.clone();
    let origin = DocumentOrigin { position: TextPosition::START, is_verbatim: true };
    input::parse(&source.text()?, origin).map_err(|failure| failure.with_context(name))
}

fn rows<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Prints one row for each topology.
fn list(answer: &Value, output: OutputOptions) -> Result<()> {
    let topologies = answer.get("topologies").and_then(Value::as_object).into_iter().flatten();
    let row = |(name, topology): (&str, &Value)| {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for state in rows(topology, "replications").filter_map(|edge| edge.get("state")?.as_str()) {
            *counts.entry(state).or_default() += 1;
        }
        let mut row = Object::new();
        row.insert("name", name);
        row.insert("replications", counts.into_iter().collect::<Object>());
        row
    };
    print(OutputFormat::choose(output, OutputFormat::Table), topologies.map(row))
}

/// Prints one row for each replication.
fn show(topology: &Value, output: OutputOptions) -> Result<()> {
    let members = ["source", "target", "state", "lag_s", "pending", "written", "refused", "error", "retry_at"];
    let row = |edge: &Value| {
        let present = members.into_iter().filter_map(|member| Some((member, edge.get(member)?.clone())));
        present.filter(|(_, value)| *value != Value::Null).collect()
    };
    print(OutputFormat::choose(output, OutputFormat::Table), rows(topology, "replications").map(row))
}

/// Prints rows.
pub(super) fn print(format: OutputFormat, rows: impl IntoIterator<Item = Object>) -> Result<()> {
    let mut printer = Printer::new(format);
    rows.into_iter().try_for_each(|row| printer.row(row))?;
    printer.flush()
}
