//! What tests of running commands share: a directory in which they run, and processes that end with the test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A temporary directory in which commands run.
pub(crate) struct Workspace(tempfile::TempDir);

impl Workspace {
    pub(crate) fn new() -> Self {
        Workspace(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// A process that is killed when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    /// Sends SIGINT and waits; returns the exit status.
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        self.signal("-INT");
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
