//! `stemma key`: the key-value store.

use std::io::Write as _;
use std::time::Duration;

use stemmadb::Value;
use stemmadb::handles::KeyCondition;

use super::{Session, argument, on};
use crate::arguments::{Key, KeyCommand, KeyState, ListKeys, SetKey};
use crate::database::KeyValue;
use crate::failure::{Failure, Result};
use crate::output::{OutputFormat, Printer};

/// Runs one of the key subcommands. Values are printed as JSON.
pub(super) fn run(key: &Key, session: Session<'_>) -> Result<()> {
    let database = &key.database;
    match &key.command {
        KeyCommand::Get(get) => print(&on!(session, with, database, |db| db.key(&get.namespace.namespace, &get.key))?),
        KeyCommand::Set(set) => self::set(key, set, session),
        KeyCommand::Delete(delete) => on!(session, with, database, |db| db.delete_key(
            &delete.namespace.namespace,
            &delete.key,
            delete.durability.durability
        )),
        KeyCommand::Increment(increment) => {
            let by = argument("number", &increment.by)?;
            let namespace = &increment.namespace.namespace;
            print(&on!(session, with_new, database, |db| {
                db.increment_key(namespace, &increment.key, &by, increment.durability.durability)
            })?)
        }
        KeyCommand::List(list) => self::list(key, list, session),
    }
}

fn set(key: &Key, set: &SetKey, session: Session<'_>) -> Result<()> {
    let condition = match (set.condition, &set.expected) {
        (Some(KeyState::Absent), _) => KeyCondition::Absent,
        (Some(KeyState::Present), _) => KeyCondition::Present,
        (None, Some(expected)) => KeyCondition::Equals(argument("--expected", expected)?),
        (None, None) => KeyCondition::Always,
    };
    let (value, time) = (argument("value", &set.value)?, set.ttl.map(Duration::from_secs));
    let value = KeyValue { value, condition, time };
    let previous = on!(session, with_new, &key.database, |db| {
        db.set_key(&set.namespace.namespace, &set.key, &value, set.durability.durability)
    })?;
    if set.previous { print(&previous.unwrap_or(Value::Null)) } else { Ok(()) }
}

fn list(key: &Key, list: &ListKeys, session: Session<'_>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(list.output, OutputFormat::Table));
    let rows = on!(session, with, &key.database, |db| db.list_keys(&list.namespace.namespace, &list.prefix))?;
    rows.into_iter().try_for_each(|row| printer.row(row))?;
    printer.flush()
}

fn print(value: &Value) -> Result<()> {
    writeln!(std::io::stdout(), "{}", value.to_json()).map_err(Failure::output)
}
