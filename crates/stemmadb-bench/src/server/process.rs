//! The server as a child process, so that its memory can be measured separately.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stemmadb::Durability;
use stemmadb_client::{Client, ClientOptions, Credentials};
use stemmadb_server::{Administrator, Config, Server, Wire};

use super::Endpoint;
use crate::Result;
use crate::engine::shop::Transport;
use crate::harness::process_kib;

const NAME: &str = "bench";
const PASSWORD: &str = "measured";

/// A running server, stopped on drop.
pub(crate) struct ServerProcess {
    child: Child,
    address: SocketAddr,
    wire_address: SocketAddr,
    socket: PathBuf,
}

impl ServerProcess {
    /// Starts a server on the databases in `directory`; `durability` is the setting's name.
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
        let addresses: Option<Vec<SocketAddr>> = line.split_whitespace().map(|one| one.parse().ok()).collect();
        let Some(&[address, wire_address]) = addresses.as_deref() else {
            return Err(format!("the server did not start: {line:?}").into());
        };
        Ok(ServerProcess { child, address, wire_address, socket: socket(directory) })
    }

    /// Connects over the wire protocol as the administrator.
    pub(crate) fn connect(&self, transport: Transport) -> Result<Client> {
        self.connect_with(transport, Credentials::Password { user: NAME.to_owned(), password: PASSWORD.to_owned() })
    }

    /// Connects over the wire protocol as somebody.
    pub(crate) fn connect_with(&self, transport: Transport, credentials: Credentials) -> Result<Client> {
        let url = match transport {
            Transport::Tcp => format!("stemma://{}", self.wire_address),
            Transport::Socket => format!("stemma+unix://{}", self.socket.display()),
        };
        Ok(Client::connect_with(&url, ClientOptions::new().credentials(credentials))?)
    }

    /// Returns its address with the administrator's credentials.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint { address: self.address, authorization: Self::authorization() }
    }

    /// Returns the administrator's Authorization header.
    fn authorization() -> String {
        use base64::Engine;
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{NAME}:{PASSWORD}"));
        format!("Basic {pair}")
    }

    /// Returns a memory field of the process's `/proc` status, in KiB.
    pub(crate) fn memory_kib(&self, name: &str) -> Result<u64> {
        process_kib(self.child.id(), name)
            .ok_or_else(|| "the system does not say how much memory the server has".into())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The child stops when its stdin is closed.
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// The Unix socket of a server on the databases in `directory`.
fn socket(directory: &Path) -> PathBuf {
    directory.with_extension("socket")
}

/// Entry point of the child process: serves until stdin ends.
pub(crate) fn run_child(directory: PathBuf, durability: &str) -> Result<()> {
    let durability = match durability {
        "sync" => Durability::Sync,
        "none" => Durability::None,
        other => return Err(format!("no durability is called {other}").into()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = Config {
            address: any,
            wire: Wire { address: Some(any), unix: Some(socket(&directory)), ..Wire::default() },
            durability,
            administrator: Some(Administrator { name: NAME.to_owned(), password: PASSWORD.to_owned() }),
            ..Config::new(&directory)
        };
        // One log line per request, as in `stemma serve`.
        let log = std::fs::File::create(directory.with_extension("log"))?;
        let _logging = config.log.install(log).map_err(|failure| failure.reason().to_owned())?;
        let server = Server::start(config).await.map_err(|failure| failure.reason().to_owned())?;
        println!("{} {}", server.address(), server.wire_address().ok_or("the server has no wire address")?);
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        server.stop().await;
        Ok(())
    })
}
