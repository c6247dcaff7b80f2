//! The operations of the protocol: each reads its arguments, checks rights, calls the library and writes frames.

mod databases;
mod documents;
mod edits;
mod feeds;
mod keys;
mod queries;

use stemmadb::Value;
use stemmadb_wire::Operation;

use super::call::Call;
use super::failure::Result;

/// Executes a request; returns its last frame.
pub(super) fn execute(call: &Call<'_>) -> Result<Vec<u8>> {
    match call.request.operation {
        Operation::Noop => Ok(call.reply(&Value::Null)),
        Operation::Databases => databases::list(call),
        Operation::CreateDatabase => databases::create(call),
        Operation::DeleteDatabase => databases::delete(call),
        Operation::Info => databases::info(call),
        Operation::Flush => databases::flush(call),
        Operation::Get => documents::get(call),
        Operation::GetMany => documents::get_many(call),
        Operation::GetRevision => documents::get_revision(call),
        Operation::Edit => edits::edit(call),
        Operation::Bulk => edits::bulk(call),
        Operation::Transact => edits::transact(call),
        Operation::Find => queries::find(call),
        Operation::Count => queries::count(call),
        Operation::Aggregate => queries::aggregate(call),
        Operation::Distinct => queries::distinct(call),
        Operation::Explain => queries::explain(call),
        Operation::OpenSnapshot => queries::open_snapshot(call),
        Operation::CloseSnapshot => queries::close_snapshot(call),
        Operation::KeyGet => keys::get(call),
        Operation::KeyList => keys::list(call),
        Operation::KeySet => keys::set(call),
        Operation::KeyRemove => keys::remove(call),
        Operation::KeyIncrement => keys::increment(call),
        Operation::Changes => feeds::changes(call),
        Operation::Subscribe => feeds::subscribe(call),
        Operation::Watch => feeds::watch(call),
    }
}
