//! The table of all settings: name, kind, help, and the field of [`Config`].
//!
//! Flags, file keys, environment variables, the guide's table and `--print-config` are generated from it.

use std::path::Path;

use super::Setting;
use super::kind::{self, Kind, SettingText, path};
use crate::config::{Administrator, Config, JwtAlgorithm, JwtKey, ProxySecret, Tls};

/// Defines a setting that is one field of the configuration.
macro_rules! setting {
    ($name:literal $kind:ident $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            default_text: None,
            apply: |config, texts| {
                let read = texts.first().and_then(|text| kind::$kind::read(text));
                config.$($field).+ = read.ok_or_else(|| expected(Kind::$kind))?;
                Ok(())
            },
            show: |config| vec![kind::$kind::write(&config.$($field).+)],
        }
    };
}

/// Defines a setting that is one field of the configuration and may be absent.
macro_rules! optional {
    ($name:literal $kind:ident $($field:ident).+, $default:literal, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            default_text: Some($default),
            apply: |config, texts| {
                let read = texts.first().and_then(|text| kind::$kind::read(text));
                config.$($field).+ = Some(read.ok_or_else(|| expected(Kind::$kind))?);
                Ok(())
            },
            show: |config| config.$($field).+.iter().map(kind::$kind::write).collect(),
        }
    };
}

/// Defines a setting that is a path and may be absent.
macro_rules! optional_path {
    ($name:literal $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::Path,
            help: $help,
            default_text: None,
            apply: |config, texts| {
                config.$($field).+ = Some(path(single(texts)?).ok_or_else(|| expected(Kind::Path))?);
                Ok(())
            },
            show: |config| config.$($field).+.iter().map(|path| path.display().to_string()).collect(),
        }
    };
}

/// Defines a setting that is a list of texts.
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

/// Defines a setting that is a text.
macro_rules! text {
    ($name:literal $($field:ident).+, $help:literal) => {
        Setting {
            name: $name,
            kind: Kind::Text,
            help: $help,
            default_text: None,
            apply: |config, texts| {
                config.$($field).+ = single(texts)?.to_owned();
                Ok(())
            },
            show: |config| vec![config.$($field).+.clone()],
        }
    };
}

/// The error for a value that is not of its kind.
fn expected(kind: Kind) -> String {
    format!("expected {}", kind.expected())
}

/// Returns the single text of a value.
fn single(texts: &[String]) -> Result<&str, String> {
    match texts {
        [text] if !text.is_empty() => Ok(text),
        _ => Err(expected(Kind::Text)),
    }
}

/// All settings, in the order of the documentation.
pub(super) static SETTINGS: &[Setting] = &[
    setting!("listen" Address address, "The address to listen on; port 0 selects any free port"),
    setting!("durability" Durability durability,
        "When a write is acknowledged: once flushed to disk (sync), or before its flush, which follows within an \
         interval (interval) or at any time (none)"
    ),
    setting!("poll_us" Count poll_us,
        "Microseconds for which a thread polls a connection for the next request before it sleeps, while few \
         connections are active"
    ),
    setting!("cache_bytes" Bytes cache_bytes, "Read caches of all open databases together"),
    optional!("index_cache_bytes" Bytes index_cache_bytes, "three quarters of cache_bytes",
        "Read caches of all open databases for their indexes"
    ),
    optional!("document_cache_bytes" Bytes document_cache_bytes, "a quarter of cache_bytes",
        "Read caches of all open databases for documents"
    ),
    setting!("memory_bytes" Bytes memory_bytes,
        "Memory for recent writes of all open databases together, until they are merged into their trees"
    ),
    list!("hosts" hosts,
        "Names accepted in Host headers, besides IP addresses and localhost; none: any name, unless the server \
         listens on loopback only"
    ),
    setting!("session_timeout" Duration session_timeout, "How long a session lasts without a request"),
    setting!("require_valid_user" Flag require_valid_user,
        "Whether all requests must be authenticated, except /_session and /_up"
    ),
    optional_path!("dashboard" dashboard,
        "A directory with the files of a dashboard, served at /_utils: Fauxton's dist/release"
    ),
    optional_path!("backups" backups,
        "A directory, or s3://BUCKET/PREFIX, in which POST /{db}/_backup makes backups, each database in a \
         directory of its own"
    ),
    optional_path!("key_file" key_file,
        "A file with the key that all databases are encrypted with, 64 hexadecimal digits; none: they are not \
         encrypted"
    ),
    Setting {
        name: "admin.name",
        kind: Kind::Text,
        help: "Name of the server administrator",
        default_text: Some("admin"),
        apply: |config, texts| {
            let name = single(texts)?;
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
        help: "Password of the administrator; none: one is generated at the first start, and the server must listen \
            on loopback",
        default_text: None,
        apply: |config, texts| {
            administrator(config).password = single(texts)?.to_owned();
            Ok(())
        },
        show: |_| Vec::new(),
    },
    Setting {
        name: "admin.password_file",
        kind: Kind::Path,
        help: "A file with the administrator's password, on one line",
        default_text: None,
        apply: |config, texts| {
            let text = read(Path::new(single(texts)?))?;
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
    list!("cors.origins" cors.origins,
        "Sites whose pages may use the server from a browser: https://example.org, or * for all (without credentials)"
    ),
    setting!("cors.credentials" Flag cors.credentials, "Whether these pages may send cookies and passwords"),
    Setting {
        name: "jwt.keys",
        kind: Kind::Keys,
        help: "Keys of trusted JSON Web Tokens: HS256 to HS512 with a secret of at least 32 bytes in a file; RS256 to \
            RS512, ES256, ES384 with a public key as PEM",
        default_text: None,
        apply: |config, texts| {
            config.jwt_keys = texts.iter().map(|text| jwt_key(text)).collect::<Result<_, _>>()?;
            Ok(())
        },
        show: |_| Vec::new(),
    },
    Setting {
        name: "proxy.secret_file",
        kind: Kind::Path,
        help: "A file with the secret of CouchDB's proxy authentication, at least 16 bytes",
        default_text: None,
        apply: |config, texts| {
            let secret = read(Path::new(single(texts)?))?;
            let secret = secret.trim_ascii_end().to_vec();
            if secret.len() < 16 {
                return Err("the secret has less than 16 bytes".to_owned());
            }
            config.proxy_secret = Some(ProxySecret(secret));
            Ok(())
        },
        show: |_| Vec::new(),
    },
    optional_path!("replicator.ca" replicator.ca,
        "Certificates, as PEM, that the replicator and webhooks trust in addition to the system's"
    ),
    list!("replicator.hosts" replicator.hosts,
        "The only hosts that the replicator and webhooks may connect to, without ports; none: any"
    ),
    setting!("replicator.retry_wait" Duration replicator.retry_wait,
        "Wait before a failed replication is retried; doubled after each further failure without progress"
    ),
    setting!("replicator.retry_wait_max" Duration replicator.retry_wait_max, "The longest such wait"),
    Setting {
        name: "tls.certificate",
        kind: Kind::Path,
        help: "The TLS certificate with its chain, as PEM; read again when it changes",
        default_text: None,
        apply: |config, texts| {
            tls(config).certificate = texts.first().and_then(|text| path(text)).ok_or_else(|| expected(Kind::Path))?;
            Ok(())
        },
        show: |config| config.tls.iter().map(|tls| tls.certificate.display().to_string()).collect(),
    },
    Setting {
        name: "tls.key",
        kind: Kind::Path,
        help: "The private key of the certificate, as PEM",
        default_text: None,
        apply: |config, texts| {
            tls(config).key = texts.first().and_then(|text| path(text)).ok_or_else(|| expected(Kind::Path))?;
            Ok(())
        },
        show: |config| config.tls.iter().map(|tls| tls.key.display().to_string()).collect(),
    },
    list!("acme.domains" acme.domains,
        "Obtain and renew a certificate for these domains from an ACME server; their port 443 must lead to listen"
    ),
    list!("acme.contact" acme.contact, "The mail addresses of the account at the ACME server"),
    Setting {
        name: "acme.directory",
        kind: Kind::Text,
        help: "The URL of the ACME server's directory; its terms of service are agreed to",
        default_text: Some("Let's Encrypt"),
        apply: |config, texts| {
            config.acme.directory = Some(single(texts)?.to_owned());
            Ok(())
        },
        show: |config| config.acme.directory.iter().cloned().collect(),
    },
    optional_path!("acme.ca" acme.ca,
        "The root certificate of a private ACME server, as PEM"
    ),
    setting!("lockout.tries" Count lockout.tries,
        "Wrong passwords for one name from one address before the name has to wait there, twice as long after each"
    ),
    setting!("lockout.wait_max" Duration lockout.wait_max, "The longest such wait"),
    setting!("scripts.time" Duration script_limits.time,
        "Time limit for one call of a design document's function"
    ),
    setting!("scripts.memory_bytes" Bytes script_limits.memory_bytes,
        "Memory limit of one JavaScript engine"
    ),
    Setting {
        default_text: Some("2 for each processor, 2 to 16"),
        ..setting!("scripts.worker_count" Count script_limits.worker_count, "Maximum number of script worker processes")
    },
    setting!("triggers.count" Count triggers.count,
        "Maximum number of webhooks and trigger functions over all databases; each has a thread"
    ),
    setting!("triggers.concurrency" Count triggers.concurrency,
        "Maximum number of their calls at a time, over all databases; more wait"
    ),
    setting!("triggers.timeout" Duration triggers.timeout, "Time limit of a webhook's request"),
    setting!("triggers.retry_wait" Duration triggers.retry_wait,
        "Wait before a failed call of a trigger is repeated; doubled after each further failure"
    ),
    setting!("triggers.retry_wait_max" Duration triggers.retry_wait_max, "The longest such wait"),
    setting!("log.level" Level log.level, "The least severe level that is logged; info logs each request"),
    setting!("log.format" Format log.format, "Format of log lines"),
    Setting {
        name: "otlp.endpoint",
        kind: Kind::Text,
        help: "The URL of an OpenTelemetry collector (OTLP over HTTP) that each request is reported to as a span; \
            needs the cargo feature otlp",
        default_text: Some("none"),
        apply: |config, texts| {
            config.otlp_endpoint = Some(single(texts)?.to_owned());
            Ok(())
        },
        show: |config| config.otlp_endpoint.iter().cloned().collect(),
    },
    setting!("limits.body_bytes" Bytes limits.body_bytes, "The largest JSON body"),
    setting!("limits.bodies_bytes" Bytes limits.bodies_bytes,
        "Memory for the bodies of all requests and the responses that the replicator reads, as received and as \
         parsed; further requests wait, and fail with 503 after limits.stall_timeout"
    ),
    optional!("limits.log_copies_bytes" Bytes limits.log_copies_bytes, "no limit",
        "Local copies of logs that are in a cluster or bucket, of all open databases together; more is read from there"
    ),
    setting!("limits.attachment_bytes" Bytes limits.attachment_bytes, "The largest attachment"),
    setting!("limits.head_bytes" Bytes limits.head_bytes, "The largest head of a request"),
    setting!("limits.head_timeout" Duration limits.head_timeout,
        "Timeout for the head of a request, and for an idle connection"
    ),
    setting!("limits.handshake_timeout" Duration limits.handshake_timeout,
        "Timeout of the TLS handshake"
    ),
    setting!("limits.stall_timeout" Duration limits.stall_timeout,
        "Timeout for a body without progress, in either direction"
    ),
    setting!("limits.feed_timeout" Duration limits.feed_timeout,
        "Time after which a feed of changes ends if nothing changes, unless the request names one or a heartbeat"
    ),
    setting!("limits.connection_count" Count limits.connection_count,
        "Maximum number of connections; more wait to be accepted"
    ),
    setting!("limits.connection_count_per_address" Count limits.connection_count_per_address,
        "Maximum number of connections of one address; more are closed"
    ),
    setting!("limits.watch_count" Count limits.watch_count,
        "Maximum number of live queries; more are refused with 503"
    ),
    setting!("limits.open_databases" Count limits.open_databases,
        "Maximum number of databases that stay open while not in use"
    ),
    optional!("limits.query_time" Duration limits.query_time, "none",
        "Time limit of a query by _find, _prepared, _aggregate or a view, until its last row is sent; it fails with 408"
    ),
    setting!("limits.grace" Duration limits.grace, "Time that running requests have to finish when the server stops"),
    optional!("wire.listen" Address wire.address, "none",
        "The address to listen on for clients of the wire protocol (stemma://); port 0 selects any free port"
    ),
    setting!("wire.plain" Flag wire.is_plain,
        "Whether connections to wire.listen are not encrypted although tls.certificate is set"
    ),
    optional_path!("wire.unix" wire.unix,
        "The path of a Unix socket to listen on for clients of the wire protocol"
    ),
    optional!("wire.quic" Address wire.quic, "none",
        "The UDP address to listen on for clients of the wire protocol by QUIC (stemma+quic://); needs tls.certificate"
    ),
    setting!("wire.websocket" Flag wire.websocket,
        "Whether clients of the wire protocol may connect to the route /_wire over a WebSocket (http://, stemma+ws://)"
    ),
    setting!("wire.connection_count" Count wire.connection_count,
        "Maximum number of connections of the wire protocol; more are refused"
    ),
    setting!("wire.thread_count" Count wire.thread_count,
        "Maximum number of threads of the wire protocol: one for each connection in use, stream and long request"
    ),
    setting!("wire.idle_timeout" Duration wire.idle_timeout,
        "Time after which a connection of the wire protocol without requests is closed"
    ),
    setting!("wire.snapshot_time" Duration wire.snapshot_time,
        "How long a snapshot is kept for a transaction of a client of the wire protocol"
    ),
    setting!("wire.snapshot_count" Count wire.snapshot_count,
        "Maximum number of such snapshots; more transactions are refused"
    ),
    list!("cluster.nodes" cluster.nodes,
        "Nodes of the Cassandra or ScyllaDB cluster that has the databases, host:port; needs the cargo feature cluster"
    ),
    list!("cluster.translate" cluster.translate,
        "How nodes are reached that know themselves by other addresses, each known:port=reached:port"
    ),
    text!("cluster.keyspace" cluster.keyspace, "The keyspace; created if it does not exist"),
    setting!("cluster.replication" Count cluster.replication,
        "How many nodes have each row of a keyspace that is created"
    ),
    Setting {
        name: "cluster.address",
        kind: Kind::Text,
        help: "The URL at which the other servers of the cluster reach this one",
        default_text: Some("that of listen"),
        apply: |config, texts| {
            config.cluster.address = Some(single(texts)?.trim_end_matches('/').to_owned());
            Ok(())
        },
        show: |config| config.cluster.address.iter().cloned().collect(),
    },
    setting!("cluster.lease" Duration cluster.lease,
        "How long a server of the cluster may be silent before others take its databases"
    ),
    Setting {
        name: "cluster.user",
        kind: Kind::Text,
        help: "The user at the nodes",
        default_text: Some("none"),
        apply: |config, texts| {
            config.cluster.user = Some(single(texts)?.to_owned());
            Ok(())
        },
        show: |config| config.cluster.user.iter().cloned().collect(),
    },
    Setting {
        name: "cluster.password",
        kind: Kind::Secret,
        help: "The password of cluster.user",
        default_text: None,
        apply: |config, texts| {
            config.cluster.password = single(texts)?.to_owned();
            Ok(())
        },
        show: |_| Vec::new(),
    },
];

fn administrator(config: &mut Config) -> &mut Administrator {
    let default_administrator = || Administrator { name: "admin".to_owned(), password: String::new() };
    config.administrator.get_or_insert_with(default_administrator)
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
    let (what, file) = text.split_once('=').ok_or_else(|| expected(Kind::Keys))?;
    let (name, id) = what.split_once(':').map_or((what, None), |(name, id)| (name, Some(id)));
    let all = [Hs256, Hs384, Hs512, Rs256, Rs384, Rs512, Es256, Es384];
    let algorithm = all.into_iter().find(|algorithm| format!("{algorithm:?}").eq_ignore_ascii_case(name));
    let algorithm = algorithm.ok_or_else(|| expected(Kind::Keys))?;
    let mut key = read(Path::new(file)).map_err(|why| format!("{why} ({file})"))?;
    // A newline at the end of a file with a secret is not part of the secret.
    if matches!(algorithm, Hs256 | Hs384 | Hs512) && key.last() == Some(&b'\n') {
        key.pop();
    }
    Ok(JwtKey { id: id.map(str::to_owned), algorithm, key })
}
