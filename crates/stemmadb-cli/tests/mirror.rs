//! A copy in plain files as the command keeps it: killed at any moment, following, from a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stemmadb::Value;

/// `admin:secret`, as a request says it.
const CREDENTIALS: &str = "YWRtaW46c2VjcmV0";

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end, which is a good one.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts it; what it says is in its output and errors.
    fn start(&self, arguments: &[&str]) -> Running {
        Running(self.command(arguments).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Writes cars, some of them new, all of them with other values than in another round.
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

/// A process that is ended when this is dropped.
struct Running(Child);

impl Running {
    /// Tells it to stop, and waits; its exit status.
    fn interrupt(mut self) -> Option<i32> {
        let told = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap();
        assert!(told.success());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} never came");
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

/// The copy's documents by id, and its links: path, value, id.
fn copied(root: &Path) -> (BTreeMap<String, String>, Links) {
    let documents = names_in(&root.join("documents")).into_iter().map(|file| {
        let document = json(&root.join("documents").join(file));
        (text(&document, "_id"), document.to_json())
    });
    let mut links = Links::new();
    for path in names_in(&root.join("by")) {
        for value in names_in(&root.join("by").join(&path)) {
            let directory = root.join("by").join(&path).join(&value);
            let files = names_in(&directory);
            assert!(!files.is_empty(), "by/{path}/{value} has nothing in it");
            links.extend(
                files.into_iter().map(|file| (path.clone(), value.clone(), text(&json(&directory.join(file)), "_id"))),
            );
        }
    }
    (documents.collect(), links)
}

/// What `stemma export` says that the copy should have.
fn exported(place: &Place) -> (BTreeMap<String, String>, Links) {
    let (mut documents, mut links) = (BTreeMap::new(), Links::new());
    for line in place.run(&["export", "cars.stemma"]).lines() {
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
fn killed_at_any_moment_it_is_mended_by_the_next_run() {
    let place = Place::new();
    let mut broken_off_count = 0;
    for round in 0..12 {
        place.import(round, 400);
        let once: Vec<&str> = MIRROR.into_iter().chain(["--once"]).collect();
        // The later, the further it has come.
        for patience_ms in [3, 10 + 7 * round as u64] {
            let mut mirror = place.start(&once);
            std::thread::sleep(Duration::from_millis(patience_ms));
            broken_off_count += u32::from(mirror.0.try_wait().unwrap().is_none());
            mirror.0.kill().ok();
            mirror.0.wait().unwrap();
        }
        if round % 4 == 3 {
            place.run(&once);
            assert_eq!(copied(&place.path("copy")), exported(&place), "round {round}");
        }
    }
    assert!(broken_off_count > 5, "only {broken_off_count} were still at it");
}

#[test]
fn it_follows_what_other_processes_write_until_it_is_interrupted() {
    let place = Place::new();
    place.import(0, 50);
    let mirror = place.start(&MIRROR);
    let copy = place.path("copy");
    wait_for("the first copy", || json_if_there(&copy).is_some());
    for round in 1..4 {
        place.import(round, 50);
        let expected = exported(&place);
        wait_for("what was imported", || names_in(&copy.join("documents")).len() == expected.0.len());
    }
    assert_eq!(mirror.interrupt(), Some(0));
    place.run(&MIRROR.into_iter().chain(["--once"]).collect::<Vec<_>>());
    assert_eq!(copied(&copy), exported(&place));
}

/// What the copy says of itself, once it has come anywhere.
fn json_if_there(copy: &Path) -> Option<Value> {
    let state = Value::parse(fs::read(copy.join(".stemma-mirror.json")).ok()?).ok()?;
    state.get("sequence").filter(|sequence| !sequence.is_null()).cloned()
}

/// A server of the place's `databases`; its address.
fn serve(place: &Place, listen: &str) -> (Running, String) {
    let mut command = place.command(&["serve", "databases", "--listen", listen]);
    let mut child = command.env("STEMMA_ADMIN_PASSWORD", "secret").stdout(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let running = Running(child);
    loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server did not start");
        if let Some((_, address)) = line.split_once("listening on http://") {
            let address = address.split_whitespace().next().unwrap().to_owned();
            // Whatever else it says is nobody's concern, but has to go somewhere.
            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
            return (running, address);
        }
    }
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {CREDENTIALS}\r\nConnection: close\r\n"
    );
    let head = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
    Value::parse(answer.split_once("\r\n\r\n").unwrap().1.as_bytes()).unwrap()
}

#[test]
fn a_servers_database_is_followed_through_a_restart_and_goes_on_without_the_server() {
    let place = Place::new();
    let (server, address) = serve(&place, "127.0.0.1:0");
    ask(&address, "PUT", "/cars", "");
    ask(&address, "PUT", "/cars/corvet", r#"{"colour": "red"}"#);
    let files = r#"{"colour": "blue", "_attachments": {"a.txt": {"content_type": "text/plain", "data": "aGVsbG8="}}}"#;
    let fiat = text(&ask(&address, "PUT", "/cars/fiat", files), "rev");
    let url = format!("http://admin:secret@{address}/cars");
    let mirror = place.start(&["mirror", &url, "copy", "--by", "colour", "--files"]);
    let copy = place.path("copy");
    let there = |name: &str| copy.join(name).exists();
    wait_for("the first copy", || there("by/colour/red/corvet.json") && there("by/colour/blue/fiat.json"));
    assert_eq!(fs::read_to_string(copy.join("files/fiat/a.txt")).unwrap(), "hello");
    ask(&address, "PUT", "/cars/a%2Fb", r#"{"colour": "red"}"#);
    ask(&address, "DELETE", &format!("/cars/fiat?rev={fiat}"), "");
    wait_for("the changes", || there("by/colour/red/a%2Fb.json") && !there("documents/fiat.json"));
    wait_for("the end of the file", || !there("files/fiat") && !there("by/colour/blue"));

    assert_eq!(server.interrupt(), Some(0));
    let (server, address) = serve(&place, &address);
    ask(&address, "PUT", "/cars/later", r#"{"colour": "green"}"#);
    wait_for("what was written after the restart", || there("by/colour/green/later.json"));
    assert_eq!(mirror.interrupt(), Some(0));

    // Another database of the same name is another database.
    ask(&address, "PUT", "/other", "");
    let other = format!("http://admin:secret@{address}/other");
    let refused = place.command(&["mirror", &other, "copy", "--by", "colour", "--files", "--once"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is the mirror of another database"));

    ask(&address, "PUT", "/cars/last", r#"{"colour": "green"}"#);
    assert_eq!(server.interrupt(), Some(0));
    let databases = place.path("databases");
    let found = names_in(&databases).into_iter().map(|name| databases.join(name));
    let cars = found.filter(|path| path.join("log").is_dir()).find(|path| {
        let outcome = place.command(&["get", path.to_str().unwrap(), "last"]).output().unwrap();
        outcome.status.success()
    });
    let cars = cars.unwrap();
    place.run(&["mirror", cars.to_str().unwrap(), "copy", "--by", "colour", "--files", "--once"]);
    let mut names = names_in(&copy.join("documents"));
    names.sort();
    assert_eq!(names, ["a%2Fb.json", "corvet.json", "last.json", "later.json"]);
    assert!(there("by/colour/green/last.json"));
}
