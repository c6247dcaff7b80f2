//! `stemma mirror`: killed at random times, following another process, and mirroring from a server.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stemmadb::Value;
use support::{Running, Workspace};

/// `admin:secret` in Base64.
const CREDENTIALS: &str = "YWRtaW46c2VjcmV0";

impl Workspace {
    /// Runs the command; returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the command in the background.
    fn start(&self, arguments: &[&str]) -> Running {
        Running(self.command(arguments).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Imports cars: some ids are new in each round, and all values change between rounds.
    fn import(&self, round: usize, count: usize) {
        let mut text = String::new();
        for number in 0..count {
            let (colour, id) = (["red", "blue", "a/b"][(number + round) % 3], number * 7 % 1000 + round);
            let line = format!(
                "{{\"_id\": \"car/{id}\", \"colour\": \"{colour}\", \"keywords\": [\"k{}\", {round}]}}\n",
                id % 5
            );
            text.push_str(&line);
        }
        fs::write(self.path("cars.jsonl"), text).unwrap();
        self.run(&["import", "cars.stemma", "cars.jsonl", "--on-conflict", "replace", "--durability", "none"]);
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn json(path: &Path) -> Value {
    Value::parse(fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).unwrap().as_str().unwrap().to_owned()
}

type Links = BTreeSet<(String, String, String)>;

/// The mirrored documents by id, and the links: path, value, id.
fn mirrored(root: &Path) -> (BTreeMap<String, String>, Links) {
    let documents = names_in(&root.join("documents")).into_iter().map(|file| {
        let document = json(&root.join("documents").join(file));
        (text(&document, "_id"), document.to_json())
    });
    let mut links = Links::new();
    for path in names_in(&root.join("by")) {
        for value in names_in(&root.join("by").join(&path)) {
            let directory = root.join("by").join(&path).join(&value);
            let files = names_in(&directory);
            assert!(!files.is_empty(), "by/{path}/{value} is empty");
            links.extend(
                files.into_iter().map(|file| (path.clone(), value.clone(), text(&json(&directory.join(file)), "_id"))),
            );
        }
    }
    (documents.collect(), links)
}

/// The documents and links that the mirror should have, from `stemma export`.
fn exported(workspace: &Workspace) -> (BTreeMap<String, String>, Links) {
    let (mut documents, mut links) = (BTreeMap::new(), Links::new());
    for line in workspace.run(&["export", "cars.stemma"]).lines() {
        let document = Value::parse(line.as_bytes()).unwrap();
        let id = text(&document, "_id");
        links.insert(("colour".to_owned(), text(&document, "colour").replace('/', "%2F"), id.clone()));
        for keyword in document.get("keywords").unwrap().as_array().unwrap() {
            let name = keyword.as_str().map_or_else(|| keyword.to_json(), str::to_owned);
            links.insert(("keywords".to_owned(), name, id.clone()));
        }
        documents.insert(id, document.to_json());
    }
    (documents, links)
}

const MIRROR: [&str; 7] = ["mirror", "cars.stemma", "copy", "--by", "colour", "--by", "keywords[]"];

#[test]
fn next_run_repairs_a_killed_mirror() {
    let workspace = Workspace::new();
    let mut killed_count = 0;
    for round in 0..12 {
        workspace.import(round, 400);
        let once: Vec<&str> = MIRROR.into_iter().chain(["--once"]).collect();
        // Later kills leave more of the mirror done.
        for delay_ms in [3, 10 + 7 * round as u64] {
            let mut mirror = workspace.start(&once);
            std::thread::sleep(Duration::from_millis(delay_ms));
            killed_count += u32::from(mirror.0.try_wait().unwrap().is_none());
            mirror.0.kill().ok();
            mirror.0.wait().unwrap();
        }
        if round % 4 == 3 {
            workspace.run(&once);
            assert_eq!(mirrored(&workspace.path("copy")), exported(&workspace), "round {round}");
        }
    }
    assert!(killed_count > 5, "only {killed_count} were still running when killed");
}

#[test]
fn follows_other_processes_until_interrupted() {
    let workspace = Workspace::new();
    workspace.import(0, 50);
    let mirror = workspace.start(&MIRROR);
    let copy = workspace.path("copy");
    wait_for("the first copy", || mirrored_sequence(&copy).is_some());
    for round in 1..4 {
        workspace.import(round, 50);
        let expected = exported(&workspace);
        wait_for("the imported documents", || names_in(&copy.join("documents")).len() == expected.0.len());
    }
    assert_eq!(mirror.interrupt(), Some(0));
    workspace.run(&MIRROR.into_iter().chain(["--once"]).collect::<Vec<_>>());
    assert_eq!(mirrored(&copy), exported(&workspace));
}

/// The sequence in the mirror's state file, if it has been written.
fn mirrored_sequence(copy: &Path) -> Option<Value> {
    let state = Value::parse(fs::read(copy.join(".stemma-mirror.json")).ok()?).ok()?;
    state.get("sequence").filter(|sequence| !sequence.is_null()).cloned()
}

/// Starts a server on the directory `databases`; returns its address, too.
fn serve(workspace: &Workspace, listen: &str) -> (Running, String) {
    let mut command = workspace.command(&["serve", "databases", "--listen", listen]);
    let mut child = command.env("STEMMA_ADMIN_PASSWORD", "secret").stdout(Stdio::null()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let running = Running(child);
    loop {
        let mut line = String::new();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "the server did not start");
        if let Some((_, address)) = line.split_once("listening on http://") {
            let address = address.split_whitespace().next().unwrap().to_owned();
            // Drain standard error, so that the server does not block on a full pipe.
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
            return (running, address);
        }
    }
}

fn request(address: &str, method: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {CREDENTIALS}\r\nConnection: close\r\n"
    );
    let head = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 20"), "{method} {path}: {response}");
    Value::parse(response.split_once("\r\n\r\n").unwrap().1.as_bytes()).unwrap()
}

#[test]
fn follows_a_server_across_a_restart_and_continues_from_its_files() {
    let workspace = Workspace::new();
    let (server, address) = serve(&workspace, "127.0.0.1:0");
    request(&address, "PUT", "/cars", "");
    request(&address, "PUT", "/cars/corvet", r#"{"colour": "red"}"#);
    let files = r#"{"colour": "blue", "_attachments": {"a.txt": {"content_type": "text/plain", "data": "aGVsbG8="}}}"#;
    let fiat = text(&request(&address, "PUT", "/cars/fiat", files), "rev");
    let url = format!("http://admin:secret@{address}/cars");
    let mirror = workspace.start(&["mirror", &url, "copy", "--by", "colour", "--files"]);
    let copy = workspace.path("copy");
    let exists = |name: &str| copy.join(name).exists();
    wait_for("the first copy", || exists("by/colour/red/corvet.json") && exists("by/colour/blue/fiat.json"));
    assert_eq!(fs::read_to_string(copy.join("files/fiat/a.txt")).unwrap(), "hello");
    request(&address, "PUT", "/cars/a%2Fb", r#"{"colour": "red"}"#);
    request(&address, "DELETE", &format!("/cars/fiat?rev={fiat}"), "");
    wait_for("the changes", || exists("by/colour/red/a%2Fb.json") && !exists("documents/fiat.json"));
    wait_for("the end of the file", || !exists("files/fiat") && !exists("by/colour/blue"));

    assert_eq!(server.interrupt(), Some(0));
    let (server, address) = serve(&workspace, &address);
    request(&address, "PUT", "/cars/later", r#"{"colour": "green"}"#);
    wait_for("the document written after the restart", || exists("by/colour/green/later.json"));
    assert_eq!(mirror.interrupt(), Some(0));

    // A mirror cannot be continued from another database.
    request(&address, "PUT", "/other", "");
    let other = format!("http://admin:secret@{address}/other");
    let refused =
        workspace.command(&["mirror", &other, "copy", "--by", "colour", "--files", "--once"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is the mirror of another database"));

    request(&address, "PUT", "/cars/last", r#"{"colour": "green"}"#);
    assert_eq!(server.interrupt(), Some(0));
    let databases = workspace.path("databases");
    let found = names_in(&databases).into_iter().map(|name| databases.join(name));
    let cars = found.filter(|path| path.join("log").is_dir()).find(|path| {
        let outcome = workspace.command(&["get", path.to_str().unwrap(), "last"]).output().unwrap();
        outcome.status.success()
    });
    let cars = cars.unwrap();
    workspace.run(&["mirror", cars.to_str().unwrap(), "copy", "--by", "colour", "--files", "--once"]);
    let mut names = names_in(&copy.join("documents"));
    names.sort();
    assert_eq!(names, ["a%2Fb.json", "corvet.json", "last.json", "later.json"]);
    assert!(exists("by/colour/green/last.json"));
}
