//! What does each route do? One module a topic; each handler reads its parameters, asks the library, and prints what it says.

pub(crate) mod database;
pub(crate) mod server;
