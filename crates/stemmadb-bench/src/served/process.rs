//! The server as a process of its own, so that its memory is its own and clients are beside it.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stemmadb::Durability;
use stemmadb_server::{Administrator, Config, Server};

use super::Site;
use crate::Result;
use crate::harness::process_kib;

const NAME: &str = "bench";
const PASSWORD: &str = "measured";

/// A server that runs. It ends with this.
pub(crate) struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    /// Starts a server of the databases in `directory`, as durable as `durability` says, by its name in the settings.
    pub(crate) fn start(directory: &Path, durability: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve-child")
            .arg(directory)
            .arg(durability)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("the server has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse().map_err(|_| format!("the server did not start: {line:?}"))?;
        Ok(Served { child, address })
    }

    /// Where it is, for its administrator.
    pub(crate) fn site(&self) -> Site {
        Site { address: self.address, authorization: Self::authorization() }
    }

    /// What a request of its administrator says who asks.
    fn authorization() -> String {
        use base64::Engine;
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{NAME}:{PASSWORD}"));
        format!("Basic {pair}")
    }

    /// What the process holds, as `/proc` has it under this name, in KiB.
    pub(crate) fn memory_kib(&self, name: &str) -> Result<u64> {
        process_kib(self.child.id(), name)
            .ok_or_else(|| "the system does not say how much memory the server has".into())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It stops when nobody is left to write to it.
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// The child: serves until its input ends.
pub(crate) fn run_child(directory: PathBuf, durability: &str) -> Result<()> {
    let durability = match durability {
        "sync" => Durability::Sync,
        "none" => Durability::None,
        other => return Err(format!("no durability is called {other}").into()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = Config {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            durability,
            administrator: Some(Administrator { name: NAME.to_owned(), password: PASSWORD.to_owned() }),
            ..Config::new(&directory)
        };
        // As `stemma serve` does: a line for each request.
        let log = std::fs::File::create(directory.with_extension("log"))?;
        let _logging = config.log.install(log).map_err(|failure| failure.reason().to_owned())?;
        let server = Server::start(config).await.map_err(|failure| failure.reason().to_owned())?;
        println!("{}", server.address());
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        server.stop().await;
        Ok(())
    })
}
