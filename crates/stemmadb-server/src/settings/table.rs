//! The table of all settings: name, kind, help, and where each goes in a [`Config`].
//!
//! Flags, keys of the file, variables of the environment, the guide and what is printed are made from it.

use std::path::Path;

use super::Setting;
use super::kind::{self, Kind, Written, path};
use crate::config::{Administrator, Config, JwtAlgorithm, JwtKey, Tls};

/// A setting that is one field of the configuration.
macro_rules! setting {
    ($name:literal $kind:ident $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            default_text: None,
            apply: |config, texts| {
                let read = texts.first().and_then(|text| kind::$kind::read(text));
                config.$($field).+ = read.ok_or_else(|| not_of(Kind::$kind))?;
                Ok(())
            },
            show: |config| vec![kind::$kind::write(&config.$($field).+)],
        }
    };
}

/// A setting that is a list of texts.
macro_rules! list {
    ($name:literal $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::List,
            help: $help,
            default_text: None,
            apply: |config, texts| {
                config.$($field).+ = texts.to_vec();
                Ok(())
            },
            show: |config| config.$($field).+.clone(),
        }
    };
}

/// What is said of a value that is not of its kind.
fn not_of(kind: Kind) -> String {
    format!("expected {}", kind.expected())
}

/// The only text there is.
fn one(texts: &[String]) -> Result<&str, String> {
    match texts {
        [text] if !text.is_empty() => Ok(text),
        _ => Err(not_of(Kind::Text)),
    }
}

/// Every setting, in the order in which they are told.
pub(super) static SETTINGS: &[Setting] = &[
    setting!("listen" Address address, "Where to listen; port 0 takes any free one"),
    setting!("durability" Durability durability, "When a write is acknowledged: flushed to the disk (sync), at most so much before (interval), any time (none)"),
    setting!("cache_bytes" Bytes cache_bytes, "What is kept of reads in memory, for each open database"),
    setting!("memory_bytes" Bytes memory_bytes, "What recent writes may take of memory, for each open database, until they are merged into its tree"),
    list!("hosts" hosts, "Names that this server is known by, beside numbers and localhost; none: any, if more than this machine is listened to"),
    setting!("session_timeout" Duration session_timeout, "How long a session lasts without a request"),
    setting!("require_valid_user" Flag require_valid_user, "Whether everybody has to say who they are, but for logging in and for asking whether the server is up"),
    Setting {
        name: "dashboard",
        kind: Kind::Path,
        help: "A directory with the files of a dashboard, shown at /_utils: Fauxton's dist/release",
        default_text: None,
        apply: |config, texts| {
            config.dashboard = Some(path(one(texts)?).ok_or_else(|| not_of(Kind::Path))?);
            Ok(())
        },
        show: |config| config.dashboard.iter().map(|path| path.display().to_string()).collect(),
    },
    Setting {
        name: "admin.name",
        kind: Kind::Text,
        help: "The name of who may do everything",
        default_text: Some("admin"),
        apply: |config, texts| {
            let name = one(texts)?;
            if name.contains(':') {
                return Err("a name has no colon".to_owned());
            }
            administrator(config).name = name.to_owned();
            Ok(())
        },
        show: |config| config.administrator.iter().map(|administrator| administrator.name.clone()).collect(),
    },
    Setting {
        name: "admin.password",
        kind: Kind::Secret,
        help: "Their password; none: one is made up at the first start, and only this machine is listened to",
        default_text: None,
        apply: |config, texts| {
            administrator(config).password = one(texts)?.to_owned();
            Ok(())
        },
        show: |_| Vec::new(),
    },
    Setting {
        name: "admin.password_file",
        kind: Kind::Path,
        help: "A file with their password, on one line",
        default_text: None,
        apply: |config, texts| {
            let text = read(Path::new(one(texts)?))?;
            let text = String::from_utf8(text).map_err(|_| "the file is no text".to_owned())?;
            let line = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text)).unwrap_or(&text);
            if line.is_empty() || line.contains('\n') {
                return Err("the file has not one line, which is the password".to_owned());
            }
            administrator(config).password = line.to_owned();
            Ok(())
        },
        show: |_| Vec::new(),
    },
    setting!("cors.enabled" Flag cors.enabled, "Whether the sites of cors.origins may use the server"),
    list!("cors.origins" cors.origins, "Pages of which sites may use the server from a browser: https://example.org, or * for all (without credentials)"),
    setting!("cors.credentials" Flag cors.credentials, "Whether they may send cookies and passwords"),
    Setting {
        name: "jwt.keys",
        kind: Kind::Keys,
        help: "Whose tokens are trusted: HS256 to HS512 with a secret of at least 32 bytes in a file; RS256 to RS512, ES256, ES384 with a public key as PEM",
        default_text: None,
        apply: |config, texts| {
            config.jwt_keys = texts.iter().map(|text| jwt_key(text)).collect::<Result<_, _>>()?;
            Ok(())
        },
        show: |_| Vec::new(),
    },
    Setting {
        name: "replicator.ca",
        kind: Kind::Path,
        help: "Certificates, as PEM, that the replicator trusts beside those that the system trusts",
        default_text: None,
        apply: |config, texts| {
            config.replicator.ca = Some(path(one(texts)?).ok_or_else(|| not_of(Kind::Path))?);
            Ok(())
        },
        show: |config| config.replicator.ca.iter().map(|path| path.display().to_string()).collect(),
    },
    list!("replicator.hosts" replicator.hosts, "The only hosts that the replicator reaches, without ports; none: any"),
    setting!("replicator.retry_wait" Duration replicator.retry_wait, "How long a replication that failed waits until it is tried again; twice as long after each further failure in which it did not get on"),
    setting!("replicator.retry_wait_max" Duration replicator.retry_wait_max, "The longest such wait"),
    Setting {
        name: "tls.certificate",
        kind: Kind::Path,
        help: "The certificate and those that it stands on, as PEM; read again when it changes",
        default_text: None,
        apply: |config, texts| {
            tls(config).certificate = texts.first().and_then(|text| path(text)).ok_or_else(|| not_of(Kind::Path))?;
            Ok(())
        },
        show: |config| config.tls.iter().map(|tls| tls.certificate.display().to_string()).collect(),
    },
    Setting {
        name: "tls.key",
        kind: Kind::Path,
        help: "Its private key, as PEM",
        default_text: None,
        apply: |config, texts| {
            tls(config).key = texts.first().and_then(|text| path(text)).ok_or_else(|| not_of(Kind::Path))?;
            Ok(())
        },
        show: |config| config.tls.iter().map(|tls| tls.key.display().to_string()).collect(),
    },
    setting!("lockout.tries" Count lockout.tries, "Wrong passwords of one name from one address before it has to wait there, twice as long after each"),
    setting!("lockout.wait_max" Duration lockout.wait_max, "The longest such wait"),
    setting!("scripts.time" Duration script_bounds.time, "How long one call of a design document's function may take"),
    setting!("scripts.memory_bytes" Bytes script_bounds.memory_bytes, "How much memory one engine of such functions may take"),
    Setting {
        default_text: Some("2 for each processor, 2 to 16"),
        ..setting!("scripts.worker_count" Count script_bounds.worker_count, "How many processes run such functions at most")
    },
    setting!("log.level" Level log.level, "How much is logged: each request with info"),
    setting!("log.format" Format log.format, "How a line of the log looks"),
    setting!("limits.body_bytes" Bytes limits.body_bytes, "The largest JSON body"),
    setting!("limits.bodies_bytes" Bytes limits.bodies_bytes, "What the bodies of all requests, and the answers that the replicator reads, take of memory together, once they are parsed too; more wait, and are refused with 503 after limits.stall_timeout"),
    setting!("limits.attachment_bytes" Bytes limits.attachment_bytes, "The largest file"),
    setting!("limits.head_bytes" Bytes limits.head_bytes, "The largest head of a request"),
    setting!("limits.head_timeout" Duration limits.head_timeout, "How long a request's head may take, and how long a connection may be idle"),
    setting!("limits.handshake_timeout" Duration limits.handshake_timeout, "How long it may take to agree on encryption"),
    setting!("limits.stall_timeout" Duration limits.stall_timeout, "How long a body may stand still, in either direction"),
    setting!("limits.connection_count" Count limits.connection_count, "Connections at once; more wait to be accepted"),
    setting!("limits.connection_count_per_address" Count limits.connection_count_per_address, "Connections at once of one address; more are closed"),
    setting!("limits.grace" Duration limits.grace, "How long requests may go on after the server was told to stop"),
];

fn administrator(config: &mut Config) -> &mut Administrator {
    let nobody = || Administrator { name: "admin".to_owned(), password: String::new() };
    config.administrator.get_or_insert_with(nobody)
}

fn tls(config: &mut Config) -> &mut Tls {
    config.tls.get_or_insert_with(|| Tls { certificate: Default::default(), key: Default::default() })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("the file can't be read: {error}"))
}

/// The key that `ALGORITHM[:ID]=FILE` names.
fn jwt_key(text: &str) -> Result<JwtKey, String> {
    use JwtAlgorithm::{Es256, Es384, Hs256, Hs384, Hs512, Rs256, Rs384, Rs512};
    let (what, file) = text.split_once('=').ok_or_else(|| not_of(Kind::Keys))?;
    let (name, id) = what.split_once(':').map_or((what, None), |(name, id)| (name, Some(id)));
    let all = [Hs256, Hs384, Hs512, Rs256, Rs384, Rs512, Es256, Es384];
    let algorithm = all.into_iter().find(|algorithm| format!("{algorithm:?}").eq_ignore_ascii_case(name));
    let algorithm = algorithm.ok_or_else(|| not_of(Kind::Keys))?;
    let mut key = read(Path::new(file)).map_err(|why| format!("{why} ({file})"))?;
    // The line's end of a file with a secret is not part of it.
    if matches!(algorithm, Hs256 | Hs384 | Hs512) && key.last() == Some(&b'\n') {
        key.pop();
    }
    Ok(JwtKey { id: id.map(str::to_owned), algorithm, key })
}
