//! `stemma serve` as a process that can be killed and started again at the same address.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD};

/// How long a server may take to listen, in a test's slowest hour.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// A server on its directory, ended when it is dropped.
pub(crate) struct Server {
    child: Option<Child>,
    place: PathBuf,
    arguments: Vec<String>,
    /// What it runs within: `ulimit -n 64;` of a shell.
    before: String,
    address: SocketAddr,
}

/// The command: the one that was built with the tests, or the one that `STEMMA_NETWORK_COMMAND` names.
pub(crate) fn stemma() -> String {
    std::env::var("STEMMA_NETWORK_COMMAND").unwrap_or_else(|_| env!("CARGO_BIN_EXE_stemma").to_owned())
}

/// Waits for a condition.
pub(crate) fn until(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < patience, "waited in vain for {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    /// Starts a server below `place`: its databases and what it says are there.
    pub(crate) fn start(place: &Path, arguments: &[&str]) -> Self {
        Self::start_within(place, arguments, "")
    }

    /// Starts a server after a command of the shell, which may bound it.
    pub(crate) fn start_within(place: &Path, arguments: &[&str], before: &str) -> Self {
        std::fs::create_dir_all(place).unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server = Server {
            child: None,
            place: place.to_owned(),
            arguments,
            before: before.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        server.restart();
        server
    }

    /// Starts it again, at the same address; returns how long it took to listen.
    pub(crate) fn restart(&mut self) -> Duration {
        assert!(self.child.is_none(), "it runs");
        let begun = Instant::now();
        let said = self.place.join("said.txt");
        let offset = self.said().len();
        let log = File::options().create(true).append(true).open(&said).unwrap();
        let script = format!("{} exec \"$@\"", self.before);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", &stemma(), "serve", "databases"]);
        command.args(["--listen", &self.address.to_string()]).args(&self.arguments);
        command.env("STEMMA_ADMIN_PASSWORD", PASSWORD).current_dir(&self.place);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.child = Some(child);
        until("the server listens", START_PATIENCE, || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the server ended at its start, {ended:?}: {}", &self.said()[offset..]);
            let said = self.said();
            // The whole line: it may be read while it is written.
            let told = said[offset..].split("listening on http://").nth(1).filter(|told| told.contains('\n'));
            let Some(told) = told else { return false };
            self.address = told.split_whitespace().next().unwrap().parse().unwrap();
            true
        });
        begun.elapsed()
    }

    /// Ends it at once, wherever it is.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends SIGKILL, while others still use it.
    pub(crate) fn kill_now(&self) {
        let told = Command::new("kill").args(["-KILL", &self.pid().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Asks it to end, and waits until it did.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert!(child.wait().unwrap().success(), "{}", self.said());
    }

    /// Kills it and starts it with all that it may need: its files are as they must be, and it holds what it should.
    pub(crate) fn assert_recovers(mut self, acknowledged: &BTreeSet<String>, database_count: usize) {
        self.assert_calm();
        self.kill();
        self.check();
        let mut again = Server::start(&self.place, &[]);
        again.assert_holds(acknowledged, database_count);
        again.stop();
    }

    /// Everything acknowledged is there, and the databases `d0`, `d1` and so on can be made now, or are there, and work.
    pub(crate) fn assert_holds(&self, acknowledged: &BTreeSet<String>, database_count: usize) {
        let mut client = self.client();
        for path in acknowledged {
            client.good("GET", path, None);
        }
        for number in 0..database_count {
            let made = client.must("PUT", &format!("/d{number}"), None);
            assert!(matches!(made.status, 201 | 412), "{}", made.shown());
            client.good("POST", &format!("/d{number}"), Some(&json!({})));
        }
    }

    /// All that it said since it was first started.
    pub(crate) fn said(&self) -> String {
        let bytes = std::fs::read(self.place.join("said.txt")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether it never panicked.
    pub(crate) fn assert_calm(&self) {
        let said = self.said();
        let panic = said.lines().find(|line| line.contains("panicked at"));
        assert!(panic.is_none(), "a server panicked: {panic:?}");
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Where its databases are.
    pub(crate) fn databases(&self) -> PathBuf {
        self.place.join("databases")
    }

    /// A client of its own.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// A database's files are as they must be; the server does not run meanwhile.
    pub(crate) fn check(&self) {
        assert!(self.child.is_none(), "it runs");
        let entries = self.databases().read_dir().unwrap().flatten();
        // One whose making failed has nothing in it yet.
        let is_made = |path: &PathBuf| path.join("log").is_dir();
        let directories: Vec<_> = entries.map(|entry| entry.path()).filter(is_made).collect();
        assert!(!directories.is_empty(), "no databases below {}", self.databases().display());
        for directory in directories {
            let checked = Command::new(stemma()).arg("check").arg(&directory).output().unwrap();
            let told =
                String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{}: {told}", directory.display());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process takes up, as the kernel tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) resident_bytes: u64,
    pub(crate) resident_bytes_most: u64,
    /// What of it belongs to no file.
    pub(crate) anonymous_bytes: u64,
    pub(crate) thread_count: u64,
    pub(crate) descriptor_count: u64,
}

impl Taken {
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {status}"));
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        Taken {
            resident_bytes: number("VmRSS:") << 10,
            resident_bytes_most: number("VmHWM:") << 10,
            anonymous_bytes: number("RssAnon:") << 10,
            thread_count: number("Threads:"),
            descriptor_count: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64,
        }
    }

    /// What is taken now, from where on the most is counted: what came before, like the first log-in's hash, is no part of it.
    pub(crate) fn afresh(pid: u32) -> Self {
        let mut seen = 0;
        // What was freed may still be on its way back to the system.
        until("steady memory", Duration::from_secs(60), || {
            let resident_bytes = Taken::of(pid).resident_bytes;
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut seen, resident_bytes) == resident_bytes
        });
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        Taken::of(pid)
    }
}

/// The text at a place of JSON.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {pointer} of {value}"))
}
