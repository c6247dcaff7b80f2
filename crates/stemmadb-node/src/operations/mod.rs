//! What can be called, by name. Arguments and results are JSON.

mod declared;
pub(crate) mod documents;
mod history;
mod queries;
mod replica;
mod upkeep;
mod views;

use std::sync::Arc;

use stemmadb::{Error, Result, Value};
use stemmadb_client::bindings::{OpenTransaction, Reader, TransactionHints};

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::cursor::{Cursor, Source};
use crate::handle::{Handle, State};

/// What to do about errors of transactions.
const HINTS: TransactionHints =
    TransactionHints { ended: "await every call within the transaction's function", changed: "run it again" };

/// Makes a call.
pub(crate) fn run(state: &State, operation: &str, mut arguments: Arguments) -> Result<Answer> {
    if operation == "close" {
        state.close()?;
        return Ok(Answer::Nothing);
    }
    let reader = state.reader()?;
    let arguments = &mut arguments;
    match operation {
        "get" => documents::get(reader, arguments),
        "getMany" => documents::get_many(reader, arguments),
        "getRevision" => documents::get_revision(reader.database()?, arguments),
        "insert" => documents::insert(reader, arguments),
        "upsert" => documents::upsert(reader, arguments),
        "replace" => documents::replace(reader, arguments),
        "update" => documents::update(reader, arguments),
        "delete" => documents::delete(reader, arguments),
        "insertMany" => documents::insert_many(reader, arguments),
        "readFile" => documents::read_file(reader.database()?, arguments),
        "detach" => documents::detach(reader, arguments),
        "rows" => queries::rows(reader, arguments).map(|rows| Answer::Cursor(Cursor::new(Source::Rows(rows)))),
        "all" => queries::all(reader, arguments),
        "page" => queries::page(reader, arguments),
        "figure" => queries::figure(reader, arguments).map(json),
        "aggregate" => queries::aggregate(reader, arguments).map(json),
        "explain" => queries::explain(reader, arguments).map(json),
        "updateWhere" => queries::update_where(reader.database()?, arguments).map(json),
        "deleteWhere" => queries::delete_where(reader.database()?, arguments).map(json),
        "changes" => queries::changes(reader.database()?, arguments),
        "watch" => queries::watch(reader.database()?, arguments),
        "begin" => {
            let transaction = OpenTransaction::begin(reader.database()?.clone(), HINTS)?;
            Ok(Answer::Handle(Handle::new(Reader::Transaction(Arc::new(transaction)))))
        }
        "end" => match reader {
            Reader::Transaction(transaction) => {
                transaction.end(arguments.flag("commits")?)?;
                Ok(Answer::Nothing)
            }
            _ => Err(Error::internal("only a transaction ends")),
        },
        "snapshot" => Ok(Answer::Handle(Handle::new(Reader::Snapshot(reader.embedded()?.snapshot()?)))),
        "asOf" => history::as_of(reader.database()?, arguments),
        "history" => history::revisions(reader.database()?, arguments),
        "differences" => history::differences(reader.database()?, arguments),
        "keepHistory" => history::keep(reader.database()?, arguments),
        "undelete" => history::undelete(reader.database()?, arguments).map(json),
        "createIndex" => declared::create_index(reader.database()?, arguments),
        "indexes" => declared::indexes(reader.database()?).map(json),
        "dropIndex" => declared::drop_index(reader.database()?, arguments),
        "requireSchema" => declared::require_schema(reader.database()?, arguments),
        "addExpiration" => declared::add_expiration(reader, arguments),
        "expire" => declared::expire(reader, arguments),
        "defineView" => views::define(reader.database()?, arguments),
        "views" => views::definitions(reader.database()?).map(json),
        "dropView" => views::remove(reader.database()?, arguments),
        "viewRows" => views::rows(reader.database()?, arguments),
        "viewReduce" => views::reduce(reader.database()?, arguments).map(json),
        "viewGroups" => views::groups(reader.database()?, arguments).map(json),
        "sequence" => upkeep::sequence(reader).map(json),
        "paths" => upkeep::paths(reader).map(json),
        "info" => upkeep::info(reader).map(json),
        "flush" => upkeep::flush(reader.database()?),
        "backup" => upkeep::backup(reader, arguments),
        "check" => upkeep::check(reader).map(json),
        "compact" => upkeep::compact(reader).map(json),
        "replica.get" => replica::get(reader.embedded()?, arguments),
        "replica.file" => replica::file(reader.embedded()?, arguments),
        "replica.write" => replica::write(reader.embedded()?, arguments),
        "replica.list" => replica::list(reader.embedded()?, arguments),
        "replica.changes" => replica::changes(reader.embedded()?, arguments),
        "replica.info" => replica::info(reader.embedded()?).map(json),
        "replica.localGet" => replica::local_get(reader.embedded()?, arguments),
        "replica.localPut" => replica::local_put(reader.embedded()?, arguments).map(json),
        "replica.localDelete" => replica::local_delete(reader.embedded()?, arguments),
        _ => Err(Error::internal(format!("the native library does not know the call `{operation}`"))),
    }
}

fn json(value: Value) -> Answer {
    Answer::Text(value.to_json())
}
