//! A private PostgreSQL server in the scratch directory, reachable only from this machine.
//!
//! PostgreSQL refuses to run as root; as root, the benchmark runs it as the system user `postgres`. The server is
//! started through `setpriv`, so that the kernel terminates it if the benchmark dies; otherwise it is stopped by
//! process id on drop.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use rustix::process::{Pid, Signal, getuid, kill_process};

use crate::Result;
use crate::harness::ScratchDirectory;

/// The measured major version.
const VERSION: &str = "15";
/// The database superuser.
const SUPERUSER: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings that an experienced administrator would choose for this machine; listed in the report.
const CONFIGURATION: [(&str, &str); 18] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "1GB"),
    ("effective_cache_size", "8GB"),
    ("work_mem", "32MB"),
    ("maintenance_work_mem", "256MB"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("wal_buffers", "64MB"),
    ("wal_compression", "lz4"),
    ("min_wal_size", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("checkpoint_completion_target", "0.9"),
    ("random_page_cost", "1.1"),
    ("effective_io_concurrency", "200"),
    ("jit", "off"),
];

/// How clients connect to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Through a Unix socket in the server's directory.
    Socket,
    /// Over TCP on the loopback interface.
    Tcp,
}

/// A running server.
pub(crate) struct PostgresServer {
    process: Child,
    directory: PathBuf,
    port: u16,
}

impl PostgresServer {
    /// Describes the server configuration, for the report.
    pub(crate) fn settings() -> String {
        let settings = CONFIGURATION.map(|(name, value)| format!("{name}={value}"));
        format!(
            "PostgreSQL: reached by a Unix socket (over the network: by TCP on this machine), locale C, {}",
            settings.join(" ")
        )
    }

    /// Starts a new server in `scratch`, if PostgreSQL is installed.
    pub(crate) fn start_if_installed(scratch: &ScratchDirectory) -> Result<Option<Self>> {
        if programs().is_ok() { Self::start(scratch).map(Some) } else { Ok(None) }
    }

    /// Starts a new server in `scratch`.
    pub(crate) fn start(scratch: &ScratchDirectory) -> Result<Self> {
        let programs = programs()?;
        let directory = scratch.fresh_path("postgresql")?;
        std::fs::create_dir(&directory)?;
        let user = unprivileged_user()?;
        if let Some(user) = user {
            chown(&directory, Some(user.id), Some(user.group_id))?;
            // The server's user needs to traverse the parent of its own directory.
            std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o711))?;
        }
        let data = directory.join("data");
        let mut make = command(&programs.join("initdb"), user, &directory);
        make.arg("-D").arg(&data);
        make.args(["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions", "-U", SUPERUSER]);
        let made = make.output().map_err(|error| format!("cannot run initdb: {error}"))?;
        if !made.status.success() {
            return Err(format!("initdb failed: {}", String::from_utf8_lossy(&made.stderr)).into());
        }
        let mut run = command(&programs.join("postgres"), user, &directory);
        let port = free_port()?;
        run.arg("-D").arg(&data).arg("-k").arg(&directory);
        run.args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        for (name, value) in CONFIGURATION {
            run.arg("-c").arg(format!("{name}={value}"));
        }
        let log = std::fs::File::create(directory.join("log"))?;
        let process = run.stdout(Stdio::null()).stderr(log).spawn()?;
        let mut server = PostgresServer { process, directory, port };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns the version that the server reports.
    pub(crate) fn version(&self) -> Result<String> {
        let row = self.connect("postgres", Transport::Socket)?.query_one("SHOW server_version", &[])?;
        Ok(format!("PostgreSQL {}", row.get::<_, &str>(0).split(' ').next().unwrap_or(VERSION)))
    }

    /// Creates an empty database, replacing any existing one of that name.
    pub(crate) fn create_database(&self, name: &str) -> Result<()> {
        self.drop_database(name)?;
        Ok(self
            .connect("postgres", Transport::Socket)?
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))?)
    }

    /// Drops a database if it exists.
    pub(crate) fn drop_database(&self, name: &str) -> Result<()> {
        Ok(self
            .connect("postgres", Transport::Socket)?
            .batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))?)
    }

    /// Opens a connection to a database.
    pub(crate) fn connect(&self, database: &str, transport: Transport) -> Result<Client> {
        let mut config = Config::new();
        match transport {
            Transport::Socket => config.host_path(&self.directory),
            Transport::Tcp => config.host("127.0.0.1"),
        };
        config.port(self.port).user(SUPERUSER).dbname(database);
        Ok(config.connect(NoTls)?)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let error = match self.connect("postgres", Transport::Socket) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let is_over = self.process.try_wait()?.is_some();
            if is_over || start.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                return Err(format!("PostgreSQL did not start: {error}\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops the server, even with open connections.
    fn stop(&mut self) -> Result<()> {
        if self.process.try_wait()?.is_some() {
            return Ok(());
        }
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).ok_or("the server has no process id")?;
        // SIGINT requests a fast shutdown. The child is the server itself, because `setpriv` executes it in place.
        kill_process(id, Signal::INT)?;
        let start = Instant::now();
        while self.process.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                kill_process(id, Signal::QUIT)?;
                self.process.wait()?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("warning: the PostgreSQL server {} was not ended: {error}", self.process.id());
        }
    }
}

/// Returns an unused port. If another process takes it first, the server fails to start.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A system user.
#[derive(Clone, Copy)]
struct User {
    id: u32,
    group_id: u32,
}

/// Returns the user to run the server as: `postgres` for root, otherwise the current user.
fn unprivileged_user() -> Result<Option<User>> {
    if !getuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let user = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_wanted = fields.first() == Some(&"postgres") && fields.len() > 3;
        is_wanted.then(|| Some(User { id: fields[2].parse().ok()?, group_id: fields[3].parse().ok()? })).flatten()
    });
    Ok(Some(user.ok_or("PostgreSQL does not run as root, and there is no user `postgres` to run it as")?))
}

/// Builds a command that runs `program` with the user's rights and is terminated by the kernel when the benchmark
/// exits.
fn command(program: &Path, user: Option<User>, directory: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT"]);
    if let Some(User { id, group_id }) = user {
        command.arg(format!("--reuid={id}")).arg(format!("--regid={group_id}")).arg("--clear-groups");
    }
    command.arg(program).current_dir(directory).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Returns the directory of PostgreSQL's programs.
fn programs() -> Result<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/postgresql/{VERSION}/bin"));
    let asked = Command::new("pg_config").arg("--bindir").output().ok();
    let asked = asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    [Some(debian), asked].into_iter().flatten().find(|path| path.join("initdb").exists()).ok_or_else(|| {
        format!(
            "PostgreSQL {VERSION} is not installed: on Debian, `apt-get install postgresql-{VERSION}`; \
             the bench runs a server of its own, so that of the system may be off"
        )
        .into()
    })
}
