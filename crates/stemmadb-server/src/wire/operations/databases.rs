//! Operations on databases: list, create, delete, describe, flush.

use stemmadb::Value;

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::rights::RightsOf;

pub(super) fn list(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::AllDatabases, None)?;
    let names = call.server.state.directory.names().into_iter().map(Value::from).collect::<Vec<_>>();
    Ok(call.reply(&Value::Array(names)))
}

pub(super) fn create(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateDatabase, None)?;
    call.server.wait(call.server.state.directory.create(call.request.database))?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn delete(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::DeleteDatabase, None)?;
    call.server.wait(call.server.state.directory.delete(call.request.database))?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn info(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::Info, None)?;
    let info = served.database().info()?;
    let info = object([
        ("documents", info.document_count.into()),
        ("deleted", info.deleted_count.into()),
        ("sequence", served.database().sequence().get().into()),
        ("instance", served.instance_id().into()),
    ]);
    Ok(call.reply(&info))
}

pub(super) fn flush(call: &Call<'_>) -> Result<Vec<u8>> {
    call.open(RightsOf::Flush, None)?.database().flush()?;
    Ok(call.reply(&Value::Null))
}
