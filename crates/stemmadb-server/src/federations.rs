//! Federations: databases of this and of other servers that are read as one, under a name.
//!
//! Definitions are records of the directory, because URLs contain credentials. A federation is opened by a question:
//! clients of other servers connect when they are first needed and are kept, and so is what is known about documents
//! that several members have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use stemmadb::Value;
use stemmadb_client::{AnyDatabase, Client, ClientOptions, TlsTrust};
use stemmadb_federation::{Federation, Member, without_credentials};
use stemmadb_http::network::is_server_address;
use stemmadb_http::url::host_of;

use crate::auth::User;
use crate::directory::{Directory, KnownRecords, ServedDatabase, check_plain_name};
use crate::error::{Failure, Result};
use crate::outbound::OutboundClient;
use crate::servers::Reached;
use crate::settings::SettingStore;

/// The kind of the directory's records of federations.
const RECORDS: &str = "federation";

const NAME_BYTES_MAX: usize = 64;
const MEMBERS_MAX: usize = 256;

/// How long a server that refuses connections is tried again: the question waits meanwhile.
const RECONNECT_TIME: Duration = Duration::from_secs(3);

/// Databases that are read as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FederationDefinition {
    members: Vec<MemberDefinition>,
    /// Whether no document is in two members.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    disjoint: bool,
    /// Who may ask a federation that has members on other servers, besides administrators of this server.
    #[serde(default, skip_serializing_if = "Readers::is_nobody")]
    readers: Readers,
}

/// A database of a federation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberDefinition {
    pub(crate) name: String,
    /// A database of this server, or a URL.
    pub(crate) database: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

/// Users, by name and by role.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Readers {
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    roles: Vec<String>,
}

impl Readers {
    fn is_nobody(&self) -> bool {
        self.names.is_empty() && self.roles.is_empty()
    }

    fn contain(&self, user: &User) -> bool {
        user.name.as_ref().is_some_and(|name| self.names.contains(name))
            || user.roles.iter().any(|role| self.roles.contains(role))
    }
}

impl MemberDefinition {
    /// Whether the database is on another server.
    pub(crate) fn is_remote(&self) -> bool {
        self.database.contains("://")
    }

    /// The host and the port of a URL, without the port if it names none.
    fn authority(&self) -> &str {
        let rest = self.database.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }

    /// The host of a URL, without the port.
    fn host(&self) -> &str {
        host_of(self.authority())
    }

    fn check(&self, outbound: &OutboundClient) -> Result<()> {
        check_plain_name("a member", &self.name, NAME_BYTES_MAX)?;
        if !self.is_remote() {
            return Ok(());
        }
        if self.host().is_empty() {
            return Err(Failure::bad_request(format!("the URL of the member {:?} names no host", self.name)));
        }
        outbound.check(self.host())?;
        let client = Client::lazy(&self.database, ClientOptions::new())?;
        match client.default_database() {
            Some(_) => Ok(()),
            None => Err(Failure::bad_request(format!("the URL of the member {:?} names no database", self.name))),
        }
    }
}

impl FederationDefinition {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no federation: {error}")))
    }

    fn check(&self, outbound: &OutboundClient) -> Result<()> {
        if !(1..=MEMBERS_MAX).contains(&self.members.len()) {
            return Err(Failure::bad_request(format!("a federation has 1 to {MEMBERS_MAX} members")));
        }
        let (mut names, mut databases) = (BTreeSet::new(), BTreeMap::new());
        for member in &self.members {
            member.check(outbound)?;
            if !names.insert(member.name.as_str()) {
                return Err(Failure::bad_request(format!("two members are named {:?}", member.name)));
            }
            if let Some(other) = databases.insert(without_credentials(&member.database), &member.name) {
                return Err(Failure::bad_request(format!("{other:?} and {:?} are the same database", member.name)));
            }
        }
        Ok(())
    }

    /// The definition without credentials.
    fn shown(&self) -> Json {
        let mut shown = self.clone();
        for member in &mut shown.members {
            member.database = without_credentials(&member.database);
        }
        serde_json::to_value(shown).unwrap_or_default()
    }
}

/// A federation that is defined, with what its questions keep.
pub(crate) struct DefinedFederation {
    definition: FederationDefinition,
    trust: TlsTrust,
    /// Clients of other servers, by member.
    clients: Mutex<HashMap<String, Client>>,
    /// By the tag of the question.
    opened: Mutex<HashMap<Option<String>, OpenedFederation>>,
}

/// A database on this server, or the id of one on another server of its cluster.
enum KnownLocal {
    Here(Weak<ServedDatabase>),
    There(String),
}

impl KnownLocal {
    fn of(local: &Reached) -> Self {
        match local {
            Reached::Here(served) => KnownLocal::Here(Arc::downgrade(served)),
            Reached::There(_, instance) => KnownLocal::There(instance.clone()),
        }
    }

    fn is(&self, local: &Reached) -> bool {
        match (self, local) {
            (KnownLocal::Here(known), Reached::Here(served)) => std::ptr::eq(known.as_ptr(), Arc::as_ptr(served)),
            (KnownLocal::There(known), Reached::There(_, instance)) => known == instance,
            _ => false,
        }
    }
}

/// A federation whose members may have common documents, with the databases that it reads on this server, or in its
/// cluster: those are not held.
struct OpenedFederation {
    locals: Vec<(String, KnownLocal)>,
    federation: Federation,
}

impl DefinedFederation {
    /// The members with a tag, or all.
    ///
    /// # Errors
    /// 404 if no member has the tag.
    pub(crate) fn members(&self, tag: Option<&str>) -> Result<Vec<&MemberDefinition>> {
        let has_tag = |member: &&MemberDefinition| tag.is_none_or(|tag| member.tags.iter().any(|own| own == tag));
        let members: Vec<_> = self.definition.members.iter().filter(has_tag).collect();
        match members.is_empty() {
            true => Err(Failure::not_found(format!("no member has the tag {:?}", tag.unwrap_or_default()))),
            false => Ok(members),
        }
    }

    /// Checks that a user may read the members on other servers, with the credentials of their URLs.
    ///
    /// # Errors
    /// 403 if not.
    pub(crate) fn check_reader(&self, user: &User) -> Result<()> {
        match user.is_server_admin() || self.definition.readers.contain(user) {
            true => Ok(()),
            false => Err(Failure::forbidden(
                "The federation has members on other servers, and its `readers` do not contain you.",
            )),
        }
    }

    /// Opens the members with a tag that have URLs or are in `locals`, by their names. Blocks.
    ///
    /// # Errors
    /// 400 if there is no such member.
    pub(crate) fn open(&self, tag: Option<&str>, locals: &[(String, Reached)]) -> Result<Federation> {
        let mut opened = self.opened.lock();
        let is_same = |known: &OpenedFederation| {
            known.locals.len() == locals.len()
                && known
                    .locals
                    .iter()
                    .zip(locals)
                    .all(|((name, known), (wanted, local))| name == wanted && known.is(local))
        };
        let key = tag.map(str::to_owned);
        if let Some(known) = opened.get(&key).filter(|known| is_same(known)) {
            return Ok(known.federation.clone());
        }
        let mut members = Vec::new();
        for member in self.members(tag)? {
            let local = locals.iter().find(|(name, _)| *name == member.name);
            let database = match local {
                Some((_, local)) => local.database(),
                None if member.is_remote() => self.connect(member)?,
                None => continue,
            };
            members.push(Member::from(database).named(member.name.clone()));
        }
        let federation = Federation::over(members)?.disjoint(self.definition.disjoint);
        // A kept federation holds its databases in memory, which is only worth it for what it knows about documents.
        opened.remove(&key);
        if !self.definition.disjoint {
            let locals = locals.iter().map(|(name, local)| (name.clone(), KnownLocal::of(local))).collect();
            opened.insert(key, OpenedFederation { locals, federation: federation.clone() });
        }
        Ok(federation)
    }

    /// The database of another server. Nothing is sent yet.
    fn connect(&self, member: &MemberDefinition) -> Result<AnyDatabase> {
        let mut clients = self.clients.lock();
        let client = match clients.get(&member.name) {
            Some(client) => client.clone(),
            None => {
                check_address(member.host())?;
                let options = ClientOptions::new().reconnect_time(RECONNECT_TIME).trust(self.trust.clone());
                let client = Client::lazy(&member.database, options)?;
                clients.insert(member.name.clone(), client.clone());
                client
            }
        };
        let database = client.default_database();
        database.map(AnyDatabase::from).ok_or_else(|| Failure::bad_request("the URL of a member names no database"))
    }
}

/// Checks that a name does not stand for an address that no server can have. If it stands for none, connecting fails.
fn check_address(host: &str) -> Result<()> {
    let addresses: Vec<IpAddr> = match (host.trim_matches(['[', ']']), 0).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip()).collect(),
        Err(_) => Vec::new(),
    };
    match addresses.into_iter().find(|address| !is_server_address(*address)) {
        Some(address) => Err(Failure::forbidden(format!("{host} has the address {address}, which is no server's"))),
        None => Ok(()),
    }
}

/// The federations of a server.
pub(crate) struct Federations {
    directory: Arc<Directory>,
    outbound: Arc<OutboundClient>,
    trust: TlsTrust,
    records: KnownRecords,
    by_name: Mutex<BTreeMap<String, Arc<DefinedFederation>>>,
}

impl Federations {
    /// The federations of a directory. `ca` is a file with the certificates to trust.
    pub(crate) fn new(directory: Arc<Directory>, outbound: Arc<OutboundClient>, ca: Option<PathBuf>) -> Self {
        let trust = ca.map_or(TlsTrust::System, TlsTrust::File);
        Federations { directory, outbound, trust, records: KnownRecords::new(RECORDS), by_name: Mutex::default() }
    }

    /// Reads what is recorded, and has changed since the last call. Blocks.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let mut by_name = self.by_name.lock();
        for (name, record) in self.records.changes(&self.directory)? {
            match record.map(FederationDefinition::parse) {
                None => drop(by_name.remove(&name)),
                Some(Ok(definition)) => {
                    if by_name.get(&name).is_none_or(|defined| defined.definition != definition) {
                        by_name.insert(name, self.defined(definition));
                    }
                }
                Some(Err(failure)) => {
                    tracing::error!(target: "stemma::federation", "the federation {name:?}: {}", failure.reason());
                }
            }
        }
        Ok(())
    }

    fn defined(&self, definition: FederationDefinition) -> Arc<DefinedFederation> {
        let (trust, clients, opened) = (self.trust.clone(), Mutex::default(), Mutex::default());
        Arc::new(DefinedFederation { definition, trust, clients, opened })
    }

    /// Stores a definition, in place of another one of the name. Blocks.
    ///
    /// # Errors
    /// 400 if it is not valid; 403 if a host is not allowed; 503 if it can't be stored.
    pub(crate) fn define(&self, name: &str, definition: FederationDefinition) -> Result<()> {
        check_plain_name("a federation", name, NAME_BYTES_MAX)?;
        definition.check(&self.outbound)?;
        let record = serde_json::to_value(&definition).map_err(|error| Failure::internal(error.to_string()))?;
        let mut by_name = self.by_name.lock();
        self.directory.put_record(RECORDS, name, &record)?;
        by_name.insert(name.to_owned(), self.defined(definition));
        Ok(())
    }

    /// Forgets a federation. Its members stay. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut by_name = self.by_name.lock();
        if !by_name.contains_key(name) {
            return Err(no_federation());
        }
        self.directory.remove_record(RECORDS, name)?;
        by_name.remove(name);
        Ok(())
    }

    /// All definitions, by name, without credentials.
    pub(crate) fn list(&self) -> BTreeMap<String, Json> {
        let by_name = self.by_name.lock();
        by_name.iter().map(|(name, defined)| (name.clone(), defined.definition.shown())).collect()
    }

    /// The definition of one federation, without credentials.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn shown(&self, name: &str) -> Result<Json> {
        Ok(self.get(name)?.definition.shown())
    }

    /// A federation.
    ///
    /// # Errors
    /// 404 if there is none of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<DefinedFederation>> {
        self.by_name.lock().get(name).cloned().ok_or_else(no_federation)
    }
}

fn no_federation() -> Failure {
    Failure::not_found("there is no federation of this name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls_are_found() {
        for (database, host) in [
            ("stemma://host/db", "host"),
            ("stemma+tls://ada:se@cret@db.example:1/x", "db.example"),
            ("http://[::1]:5984/db", "[::1]"),
            ("https://host?database=x", "host"),
            ("stemma+unix:///run/stemma.sock?database=x", ""),
        ] {
            let member = MemberDefinition { name: "m".into(), database: database.into(), tags: Vec::new() };
            assert_eq!(member.host(), host, "{database}");
        }
        assert!(check_address("169.254.169.254").is_err() && check_address("127.0.0.1").is_ok());
    }
}
