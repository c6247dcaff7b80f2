//! Members of a federation: databases with names.

use std::path::Path;
use std::sync::Arc;

use stemmadb::replication::Peer;
use stemmadb::{Database, Error, Result};
use stemmadb_client::{AnyDatabase, RemoteDatabase};

/// A database that belongs to a federation: an open handle, a path, or the URL of one on a server.
///
/// ```
/// use stemmadb::Database;
/// use stemmadb_federation::{Federation, Member};
///
/// # fn main() -> stemmadb::Result<()> {
/// let members = [Member::from(Database::in_memory()).named("archive"), Member::from(Database::in_memory())];
/// let all = Federation::over(members)?;
/// assert_eq!(all.names().collect::<Vec<_>>(), ["archive", "2"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Member {
    name: Option<String>,
    source: Source,
    copier: Option<Copier>,
}

#[derive(Clone, Debug)]
enum Source {
    Open(AnyDatabase),
    Location(String),
}

/// A member that is open.
#[derive(Clone, Debug)]
pub(crate) struct OpenMember {
    pub(crate) name: String,
    pub(crate) database: AnyDatabase,
    copier: Option<Copier>,
}

/// A database on a server as one side of a replication.
#[derive(Clone)]
struct Copier(Arc<dyn Peer>);

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Copier")
    }
}

impl Member {
    /// Gives the member a name, by which errors, changes and tokens refer to it. Without one, the name is the path, the
    /// URL without credentials, or the position among the members, from 1.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Member { name: Some(name.into()), ..self }
    }

    /// Copies documents from and to a member on a server by this peer, for example `stemmadb_http::HttpPeer`, which
    /// names the same database. Moves of buckets between shards need it; embedded members need none.
    #[must_use]
    pub fn copied_by(self, peer: Arc<dyn Peer>) -> Self {
        Member { copier: Some(Copier(peer)), ..self }
    }

    /// Opens the member at a position.
    pub(crate) fn open(self, at: usize) -> Result<OpenMember> {
        let name = self.name.unwrap_or_else(|| match &self.source {
            Source::Location(location) => without_credentials(location),
            Source::Open(_) => (at + 1).to_string(),
        });
        let database = match self.source {
            Source::Open(database) => database,
            Source::Location(location) => AnyDatabase::open(&location).map_err(|error| of_member(&name, error))?,
        };
        Ok(OpenMember { name, database, copier: self.copier })
    }
}

impl OpenMember {
    /// The member as one side of a replication.
    ///
    /// # Errors
    /// `Invalid` for a member on a server without a peer.
    pub(crate) fn peer(&self) -> Result<Arc<dyn Peer>> {
        match (&self.database, &self.copier) {
            (_, Some(Copier(peer))) => Ok(peer.clone()),
            (AnyDatabase::Embedded(database), None) => Ok(Arc::new(database.clone())),
            (AnyDatabase::Remote(_), None) => Err(Error::invalid(format!("the shard `{}` is on a server", self.name))
                .with_hint("buckets move to and from it if it has a peer: Member::copied_by")),
        }
    }

    /// An error of this member, with its name.
    pub(crate) fn error(&self, error: Error) -> Error {
        of_member(&self.name, error)
    }
}

fn of_member(name: &str, error: Error) -> Error {
    error.within(format!("member `{name}`"))
}

/// The path or URL of a member without user, password and token, for displaying it.
///
/// ```
/// let shown = stemmadb_federation::without_credentials("stemma://ada:secret@host/orders?tls=1&token=x");
/// assert_eq!(shown, "stemma://host/orders?tls=1");
/// ```
pub fn without_credentials(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return location.to_owned() };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host_end = rest.find('/').unwrap_or(rest.len());
    let host_start = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
    let shown: Vec<&str> =
        query.split('&').filter(|parameter| !parameter.is_empty() && !parameter.starts_with("token=")).collect();
    let mark = if shown.is_empty() { "" } else { "?" };
    format!("{scheme}://{}{mark}{}", &rest[host_start..], shown.join("&"))
}

impl From<AnyDatabase> for Member {
    fn from(database: AnyDatabase) -> Self {
        Member { name: None, copier: None, source: Source::Open(database) }
    }
}

impl From<Database> for Member {
    fn from(database: Database) -> Self {
        AnyDatabase::from(database).into()
    }
}

impl From<&Database> for Member {
    fn from(database: &Database) -> Self {
        database.clone().into()
    }
}

impl From<RemoteDatabase> for Member {
    fn from(database: RemoteDatabase) -> Self {
        AnyDatabase::from(database).into()
    }
}

impl From<&str> for Member {
    fn from(location: &str) -> Self {
        Member { name: None, copier: None, source: Source::Location(location.to_owned()) }
    }
}

impl From<String> for Member {
    fn from(location: String) -> Self {
        Member { name: None, copier: None, source: Source::Location(location) }
    }
}

impl From<&Path> for Member {
    fn from(path: &Path) -> Self {
        path.to_string_lossy().into_owned().into()
    }
}

impl<N: Into<String>, M: Into<Member>> From<(N, M)> for Member {
    fn from((name, member): (N, M)) -> Self {
        member.into().named(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_urls_have_no_passwords() {
        assert_eq!(without_credentials("stemma://ada:se@cret@host:1/shop@home"), "stemma://host:1/shop@home");
        assert_eq!(without_credentials("stemma://host"), "stemma://host");
        assert_eq!(without_credentials("data/shop"), "data/shop");
    }
}
