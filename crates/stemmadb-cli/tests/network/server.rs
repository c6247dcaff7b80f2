//! `stemma serve` as a process that can be killed and restarted at the same address.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD};

/// How long a server may take to listen, on an overloaded machine.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A server process and its directory; killed when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    directory: PathBuf,
    arguments: Vec<String>,
    /// Shell commands run before the server starts, such as `ulimit -n 64;`.
    prefix: String,
    address: SocketAddr,
}

/// The path of the `stemma` binary: the one built with the tests, or the one that `STEMMA_NETWORK_COMMAND` names.
pub(crate) fn stemma() -> String {
    std::env::var("STEMMA_NETWORK_COMMAND").unwrap_or_else(|_| env!("CARGO_BIN_EXE_stemma").to_owned())
}

/// Waits until `condition` is true.
///
/// # Panics
/// After `timeout`.
pub(crate) fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < timeout, "timeout after {timeout:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    /// Starts a server in `directory`, which holds its databases and its standard error.
    pub(crate) fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::start_with_prefix(directory, arguments, "")
    }

    /// Starts a server at an address.
    pub(crate) fn start_at(address: SocketAddr, directory: &Path, arguments: &[&str]) -> Self {
        Self::start_with(directory, arguments, "", address)
    }

    /// Starts a server after the shell commands `prefix`, which may set limits.
    pub(crate) fn start_with_prefix(directory: &Path, arguments: &[&str], prefix: &str) -> Self {
        Self::start_with(directory, arguments, prefix, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn start_with(directory: &Path, arguments: &[&str], prefix: &str, address: SocketAddr) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server =
            Server { child: None, directory: directory.to_owned(), arguments, prefix: prefix.to_owned(), address };
        server.restart();
        server
    }

    /// Restarts the server at the same address; returns the time until it listened.
    pub(crate) fn restart(&mut self) -> Duration {
        assert!(self.child.is_none(), "the server is running");
        let started = Instant::now();
        let path = self.directory.join("stderr.txt");
        let offset = self.stderr().len();
        let log = File::options().create(true).append(true).open(&path).unwrap();
        let script = format!("{} exec \"$@\"", self.prefix);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", &stemma(), "serve", "databases"]);
        command.args(["--listen", &self.address.to_string()]).args(&self.arguments);
        command.env("STEMMA_ADMIN_PASSWORD", PASSWORD).current_dir(&self.directory);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.child = Some(child);
        wait_until("the server listens", START_TIMEOUT, || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the server exited during startup, {ended:?}: {}", &self.stderr()[offset..]);
            let stderr = self.stderr();
            // Wait for the whole line: it may be read while it is written.
            let line = stderr[offset..].split("listening on http://").nth(1).filter(|line| line.contains('\n'));
            let Some(line) = line else { return false };
            self.address = line.split_whitespace().next().unwrap().parse().unwrap();
            true
        });
        started.elapsed()
    }

    /// Kills the server and waits for its end.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends SIGKILL while other threads still use the server.
    pub(crate) fn send_sigkill(&self) {
        self.signal("-KILL");
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap().success());
    }

    /// Sends SIGTERM and waits for a successful exit.
    pub(crate) fn stop(&mut self) {
        self.signal("-TERM");
        let mut child = self.child.take().expect("the server is running");
        assert!(child.wait().unwrap().success(), "{}", self.stderr());
    }

    /// Kills the server, checks its files, and restarts it without limits: it must have everything acknowledged.
    pub(crate) fn assert_recovers(mut self, acknowledged: &BTreeSet<String>, database_count: usize) {
        self.assert_no_panic();
        self.kill();
        self.check();
        let mut restarted = Server::start(&self.directory, &[]);
        restarted.assert_holds(acknowledged, database_count);
        restarted.stop();
    }

    /// Asserts that everything acknowledged exists, and that the databases `d0`, `d1` and so on exist or can be
    /// created, and accept writes.
    pub(crate) fn assert_holds(&self, acknowledged: &BTreeSet<String>, database_count: usize) {
        let mut client = self.client();
        for path in acknowledged {
            client.expect_success("GET", path, None);
        }
        for number in 0..database_count {
            let created = client.expect_response("PUT", &format!("/d{number}"), None);
            assert!(matches!(created.status, 201 | 412), "{}", created.summary());
            client.expect_success("POST", &format!("/d{number}"), Some(&json!({})));
        }
    }

    /// The standard error since the first start.
    pub(crate) fn stderr(&self) -> String {
        let bytes = std::fs::read(self.directory.join("stderr.txt")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Asserts that the server never panicked.
    pub(crate) fn assert_no_panic(&self) {
        let stderr = self.stderr();
        let panic = stderr.lines().find(|line| line.contains("panicked at"));
        assert!(panic.is_none(), "a server panicked: {panic:?}");
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is running").id()
    }

    /// The directory of the databases.
    pub(crate) fn databases(&self) -> PathBuf {
        self.directory.join("databases")
    }

    /// A new client.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Runs `stemma check` on every database; the server must be stopped.
    pub(crate) fn check(&self) {
        assert!(self.child.is_none(), "the server is running");
        let entries = self.databases().read_dir().unwrap().flatten();
        // A database whose creation failed has no log yet.
        let is_created = |path: &PathBuf| path.join("log").is_dir();
        let directories: Vec<_> = entries.map(|entry| entry.path()).filter(is_created).collect();
        assert!(!directories.is_empty(), "no databases below {}", self.databases().display());
        for directory in directories {
            let checked = Command::new(stemma()).arg("check").arg(&directory).output().unwrap();
            let output =
                String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{}: {output}", directory.display());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Resources used by a process, from `/proc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResourceUsage {
    pub(crate) resident_bytes: u64,
    pub(crate) peak_resident_bytes: u64,
    /// Resident bytes that are not backed by files.
    pub(crate) anonymous_bytes: u64,
    pub(crate) thread_count: u64,
    pub(crate) descriptor_count: u64,
}

impl ResourceUsage {
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {status}"));
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        ResourceUsage {
            resident_bytes: number("VmRSS:") << 10,
            peak_resident_bytes: number("VmHWM:") << 10,
            anonymous_bytes: number("RssAnon:") << 10,
            thread_count: number("Threads:"),
            descriptor_count: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64,
        }
    }

    /// The current usage; resets the peak, so that earlier allocations (such as those of hashing the first password) do
    /// not count.
    pub(crate) fn after_reset(pid: u32) -> Self {
        let mut last = 0;
        // Freed memory may not have been returned to the system yet.
        wait_until("steady memory", Duration::from_secs(60), || {
            let resident_bytes = ResourceUsage::of(pid).resident_bytes;
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut last, resident_bytes) == resident_bytes
        });
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        ResourceUsage::of(pid)
    }
}

/// The string at a JSON pointer.
pub(crate) fn str_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no string at {pointer} of {value}"))
}
