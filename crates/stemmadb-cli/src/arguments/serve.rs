//! What may be written after `stemma serve`?

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::DurabilityArgument;

/// The arguments of `stemma serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma serve databases\n  \
    STEMMA_ADMIN=ada:secret stemma serve databases --listen 0.0.0.0:5984\n\n\
    The directory holds databases (NAME.stemma, or those made over HTTP); each belongs to the server as long as it runs. Without \
    an administrator in STEMMA_ADMIN a password is made up and printed, and only this machine is listened to.")]
pub(crate) struct Serve {
    /// The directory of the databases, made if there is none
    pub(crate) directory: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5984")]
    pub(crate) listen: SocketAddr,
    /// A site whose pages may use the server, with passwords; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    #[command(flatten)]
    pub(crate) durability: DurabilityArgument,
}
