//! `stemma console`: the web console for one database of this machine.
//!
//! A server whose directory is temporary serves a link to the database. The directory holds the server's own files, so
//! that nothing is created beside the database, and is removed at the end.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stemmadb_server::{Administrator, Config, Level, Log, Server};
use uuid::Uuid;

use super::serve::run_server;
use super::{Session, refuse_url, run_and_close};
use crate::arguments::Console;
use crate::database::{Database, key_file};
use crate::failure::{Failure, Result, notice};

/// Nobody can type the password of a console again, so its session lasts as long as a browser window usually does.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30 * 86_400);
const ADMINISTRATOR: &str = "console";

pub(super) fn run(console: &Console, session: Session<'_>) -> Result<()> {
    refuse_url(&console.database)?;
    if session.open.is_some() {
        return Err(Failure::usage("a server can't be run from the shell").with_hint("leave the shell first"));
    }
    let path = std::path::absolute(&console.database).map_err(|error| Failure::usage(error.to_string()))?;
    // Reports a database that does not exist, is in use, or needs another key.
    run_and_close(Database::open_existing(&path)?, |_| Ok(()))?;
    let password = Uuid::new_v4().simple().to_string();
    let directory = ServerDirectory::new(&path)?;
    let config = Config {
        address: SocketAddr::from(([127, 0, 0, 1], console.port)),
        administrator: Some(Administrator { name: ADMINISTRATOR.to_owned(), password: password.clone() }),
        session_timeout: SESSION_TIMEOUT,
        key_file: key_file()?,
        log: Log { level: Level::Warn, ..Log::default() },
        ..Config::new(directory.databases())
    };
    run_server(config, |server, _| announce(server, console, &directory, &password))
}

/// Prints the address, with the password in its fragment: browsers do not send it, and the console removes it.
fn announce(server: &Server, console: &Console, directory: &ServerDirectory, password: &str) -> Result<()> {
    let address = format!("http://{}/_console/#login={ADMINISTRATOR}:{password}", server.address());
    writeln!(std::io::stdout().lock(), "{address}").map_err(Failure::output)?;
    notice(format_args!("the console of {}; Ctrl-C ends it", console.database.display()));
    if console.open
        && let Err(error) = directory.open_in_browser(&address)
    {
        notice(format_args!("no browser can be opened: {error}"));
    }
    Ok(())
}

/// A temporary directory with the files of a server, and a link to the only database. Removed on drop.
struct ServerDirectory(PathBuf);

impl ServerDirectory {
    fn new(database: &Path) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("stemma-console-{}", Uuid::new_v4().simple()));
        let failed = |error: std::io::Error| {
            Failure::usage(format!("cannot create {}: {error}", path.display())).with_hint("set TMPDIR")
        };
        create_private(&path).map_err(failed)?;
        let directory = ServerDirectory(path.clone());
        std::fs::create_dir(directory.databases()).map_err(failed)?;
        let link = directory.databases().join(format!("{}.stemma", database_name(database)));
        link_directory(database, &link).map_err(failed)?;
        Ok(directory)
    }

    fn databases(&self) -> PathBuf {
        self.0.join("databases")
    }

    /// Opens the address by a file that leads to it: other users can see the arguments of processes.
    fn open_in_browser(&self, address: &str) -> std::io::Result<()> {
        let page = self.0.join("open.html");
        std::fs::write(&page, format!("<meta http-equiv=\"refresh\" content=\"0; url={address}\">"))?;
        let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        let mut command = match cfg!(windows) {
            true => Command::new("explorer"),
            false => Command::new(opener),
        };
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // Waits for it, so that it does not remain a zombie.
        std::thread::spawn(move || child.wait());
        Ok(())
    }
}

impl Drop for ServerDirectory {
    fn drop(&mut self) {
        // The link is removed, not what it leads to.
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            notice(format_args!("{} was not removed: {error}", self.0.display()));
        }
    }
}

/// A valid name for a database from the name of its directory.
fn database_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let allowed = |character: char| character.is_ascii_alphanumeric() || "_$()+-".contains(character);
    let name: String =
        stem.chars().map(|character| if allowed(character) { character } else { '_' }).take(200).collect();
    match name.starts_with(|first: char| first.is_ascii_lowercase()) {
        true => name,
        false => format!("database{name}"),
    }
}

#[cfg(unix)]
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

#[cfg(not(unix))]
fn create_private(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir(path)
}

#[cfg(unix)]
fn link_directory(to: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, link)
}

#[cfg(windows)]
fn link_directory(to: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_dir(to, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_databases_are_valid() {
        let named = |path: &str| database_name(Path::new(path));
        assert_eq!(named("/data/library.stemma"), "library");
        assert_eq!(named("My Books.stemma"), "my_books");
        assert_eq!(named("2026"), "database2026");
        assert_eq!(named("größe.stemma"), "gr__e");
    }

    #[test]
    fn removing_the_directory_keeps_the_database() {
        let parent = tempfile::tempdir().unwrap();
        let database = parent.path().join("library.stemma");
        std::fs::create_dir(&database).unwrap();
        std::fs::write(database.join("file"), "content").unwrap();
        let directory = ServerDirectory::new(&database).unwrap();
        assert!(directory.databases().join("library.stemma/file").exists());
        let path = directory.0.clone();
        drop(directory);
        assert!(!path.exists() && database.join("file").exists());
    }
}
