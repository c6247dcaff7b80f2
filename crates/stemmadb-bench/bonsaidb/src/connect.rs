//! Connections to BonsaiDb: within this process, or by WebSocket to its server in a child process.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsaidb::client::url::Url;
use bonsaidb::client::{BlockingClient, BlockingRemoteDatabase};
use bonsaidb::core::connection::{AsyncStorageConnection, Connection, StorageConnection};
use bonsaidb::local::Database;
use bonsaidb::local::config::{Builder, StorageConfiguration};
use bonsaidb::server::{DefaultPermissions, Server, ServerConfiguration};
use tokio::io::AsyncReadExt;

use crate::Result;
use crate::schema::ShopSchema;

const NAME: &str = "shop";
/// How long the server may take to listen.
const START: Duration = Duration::from_secs(60);

/// A database that agents connect to.
pub(crate) trait Connect {
    /// An agent's own connection.
    type Connection: Connection + Send;

    fn connect(&self) -> Result<Self::Connection>;
}

/// A database within this process, as it opens by default.
pub(crate) struct Embedded {
    database: Database,
}

impl Embedded {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Embedded { database: Database::open::<ShopSchema>(StorageConfiguration::new(path))? })
    }
}

impl Connect for Embedded {
    type Connection = Database;

    fn connect(&self) -> Result<Database> {
        Ok(self.database.clone())
    }
}

/// A server in a child process, which stops when its stdin is closed.
pub(crate) struct WebSocket {
    server: Child,
    url: Url,
    runtime: tokio::runtime::Runtime,
}

impl WebSocket {
    pub(crate) fn start(path: &Path) -> Result<Self> {
        // BonsaiDb does not tell which port it chose, so choose a free one for it.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut server = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(path)
            .arg(address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().ok_or("the server has no output")?).read_line(&mut line)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let socket = WebSocket { server, url: Url::parse(&format!("ws://{address}"))?, runtime };
        if line.trim() != "created" {
            return Err("the server did not start".into());
        }
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > START {
                return Err(format!("nothing listens at {address}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(socket)
    }
}

impl Connect for WebSocket {
    type Connection = BlockingRemoteDatabase;

    fn connect(&self) -> Result<BlockingRemoteDatabase> {
        let client = BlockingClient::build(self.url.clone()).with_runtime(self.runtime.handle().clone()).build()?;
        Ok(client.database::<ShopSchema>(NAME)?)
    }
}

impl Drop for WebSocket {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        _ = self.server.wait();
    }
}

/// Serves an empty shop at `address` until stdin ends.
pub(crate) fn serve(path: &Path, address: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let configuration = ServerConfiguration::new(path)
            .default_permissions(DefaultPermissions::AllowAll)
            .with_schema::<ShopSchema>()?;
        let server = Server::open(configuration).await?;
        server.create_database::<ShopSchema>(NAME, false).await?;
        println!("created");
        let listening = server.clone();
        let address = address.to_owned();
        let listener = tokio::spawn(async move { listening.listen_for_websockets_on(address, false).await });
        tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
        server.shutdown(Some(Duration::from_secs(5))).await?;
        listener.abort();
        Ok(())
    })
}
