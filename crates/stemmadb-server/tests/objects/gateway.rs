//! A real S3 server for tests: versitygw, which keeps its objects as files of a directory.
//!
//! It is built once, by Go, into the target directory: about 90 seconds of processor time. `--sidecar` keeps its
//! metadata; with `--nometa` it ignores the conditions of requests, which one test makes use of.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::go;

const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const KEY: &str = "stemma";
const SECRET: &str = "a secret of the tests";

/// A running server with one bucket, `backups`.
pub(crate) struct Gateway {
    process: Child,
    pub port: u16,
    pub directory: tempfile::TempDir,
}

/// How the server keeps what is known of objects.
#[derive(Clone, Copy)]
pub(crate) enum Metadata {
    Kept,
    /// Conditions of requests are ignored.
    None,
}

impl Gateway {
    /// Starts a server; `None`, with a message, if it can't be built here.
    pub(crate) fn start(metadata: Metadata) -> Option<Self> {
        let binary = binary()?;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["objects/backups", "metadata", "iam"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let port = free_port();
        let mut command = Command::new(binary);
        command.args(["--port", &format!("127.0.0.1:{port}"), "--access", KEY, "--secret", SECRET, "--quiet"]);
        command.args(["--iam-dir".as_ref(), path("iam").as_os_str(), "posix".as_ref()]);
        match metadata {
            Metadata::Kept => command.arg("--sidecar").arg(path("metadata")),
            Metadata::None => command.arg("--nometa"),
        };
        let log = std::fs::File::create(path("log")).unwrap();
        command.arg(path("objects")).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut gateway = Gateway { process: command.spawn().unwrap(), port, directory };
        let start = Instant::now();
        while !answers(port) {
            let log = || std::fs::read_to_string(gateway.directory.path().join("log")).unwrap_or_default();
            if let Some(status) = gateway.process.try_wait().unwrap() {
                panic!("versitygw ended: {status}: {}", log());
            }
            assert!(start.elapsed() < Duration::from_secs(60), "versitygw does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(gateway)
    }

    /// The files of the objects below a prefix of the bucket.
    pub(crate) fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let directory = self.directory.path().join("objects/backups").join(prefix);
        let entries = directory.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
        files.sort();
        files
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The variables by which a server at `port` is reached.
pub(crate) fn variables(port: u16) -> Vec<(String, String)> {
    [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ("AWS_TIMEOUT", "2s".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Whether a server answers by HTTP. That the port connects is not enough: a client whose own port is the same is
/// connected to itself, and a server may be starting still.
fn answers(port: u16) -> bool {
    let mut head = [0; 5];
    let asked = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        stream.read_exact(&mut head)
    });
    asked.is_ok() && head == *b"HTTP/"
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The program, built if it is not there yet.
fn binary() -> Option<&'static Path> {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    BINARY.get_or_init(|| go::program(MODULE)).as_deref()
}
