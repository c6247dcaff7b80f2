//! What every suite needs: a server, a place, and a process that is waited for.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use stemmadb::Durability;
use stemmadb_server::script::Launch;
use stemmadb_server::{Administrator, Config, Server};
use tokio::runtime::Runtime;

/// A server in this process, on a port of its own; stopped when it is dropped.
pub(crate) struct Started {
    runtime: Runtime,
    server: Option<Server>,
    directory: tempfile::TempDir,
}

impl Started {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
            // What a suite shows does not depend on it, and a thousand flushes take a while.
            durability: Durability::None,
            scripts: Some(Launch {
                program: PathBuf::from(env!("CARGO_BIN_EXE_stemma-script-worker")),
                arguments: Vec::new(),
            }),
            ..Config::new(directory.path().join("databases"))
        };
        std::fs::create_dir(directory.path().join("local")).unwrap();
        let server = Some(runtime.block_on(Server::start(config)).unwrap());
        Started { runtime, server, directory }
    }

    /// The server, with credentials.
    pub(crate) fn url(&self) -> String {
        let address = self.server.as_ref().map(Server::address).unwrap();
        format!("http://admin:secret@{address}")
    }

    /// Where a client may keep databases of its own.
    pub(crate) fn local(&self) -> PathBuf {
        self.directory.path().join("local")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

/// Copies the files of a directory.
pub(crate) fn copy_to(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Runs a command to its end, and fails with its output if it does.
pub(crate) fn run(command: &mut Command, needs: &str) {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} can't be run: {error}. Install {needs} to run this test"),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}\n{err}");
}
