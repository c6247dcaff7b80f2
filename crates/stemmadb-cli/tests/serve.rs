//! Startup messages and shutdown of `stemma serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server process, killed when dropped.
struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command.args(["serve", "databases", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(directory.path());
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, stderr, _directory: directory }
    }

    /// Returns the next line of standard error that contains `pattern`, skipping the ones before it.
    fn line_with(&mut self, pattern: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "{pattern} was not printed:\n{all}");
            if line.contains(pattern) {
                return line;
            }
            all.push_str(&line);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The address in `listening on http://…`.
fn address(line: &str) -> String {
    line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn prints_address_and_durability_and_stops_on_sigterm() {
    for (arguments, durability) in [(&[][..], "sync"), (&["--durability", "none"], "none")] {
        let mut server = Running::start(arguments, &[("STEMMA_ADMIN_PASSWORD", "secret")]);
        let line = server.line_with("listening on");
        assert!(line.contains(&format!("durability: {durability}")), "{line}");
        let console = server.line_with("console: ");
        assert!(console.contains(&format!("http://{}/_console/", address(&line))), "{console}");
        let mut stream = TcpStream::connect(address(&line)).unwrap();
        stream.write_all(b"GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let status = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
        assert!(status.success());
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

/// The response to a request on a connection of its own.
fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn console_serves_one_database_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let temporary = directory.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let stemma = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command.args(arguments).current_dir(directory.path()).env("TMPDIR", &temporary).stdin(Stdio::null());
        command
    };
    assert!(stemma(&["put", "Library.stemma", "solaris", "{}"]).output().unwrap().status.success());
    let mut child = stemma(&["console", "Library.stemma"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (host, password) = line.trim().split_once("/_console/#login=console:").unwrap();
    let host = host.strip_prefix("http://").unwrap();
    assert!(host.starts_with("127.0.0.1:"), "{line}");

    let page = exchange(host, "GET /_console/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("app.js"), "{page}");
    let anonymous = exchange(host, "GET /library HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(anonymous.starts_with("HTTP/1.1 401"), "{anonymous}");
    let body = format!("{{\"name\": \"console\", \"password\": \"{password}\"}}");
    let login = exchange(
        host,
        &format!(
            "POST /_session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
            Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    );
    let cookie = login.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let ask = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n");
        exchange(host, &head)
    };
    assert!(ask("/_all_dbs").ends_with("[\"library\"]\n"), "{}", ask("/_all_dbs"));
    assert!(ask("/library").contains("\"doc_count\":1"), "{}", ask("/library"));

    let busy = stemma(&["console", "Library.stemma"]).output().unwrap();
    assert!(!busy.status.success() && busy.stdout.is_empty(), "{busy:?}");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(temporary.read_dir().unwrap().count(), 0, "the temporary directory is removed");
    let kept = stemma(&["count", "Library.stemma"]).output().unwrap();
    assert!(kept.status.success(), "{kept:?}");
    let missing = stemma(&["console", "nothing.stemma"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}

#[test]
fn generated_password_is_printed() {
    let mut server = Running::start(&[], &[]);
    server.line_with("listening on");
    let line = server.line_with("administrator: admin, password ");
    assert!(line.contains("STEMMA_ADMIN_PASSWORD"), "{line}");
}

#[test]
fn json_log_is_json_from_the_first_line() {
    let arguments = ["--log-format", "json", "--durability", "interval:100ms"];
    let mut server = Running::start(&arguments, &[("STEMMA_ADMIN_PASSWORD", "secret")]);
    let mut first = String::new();
    server.stderr.read_line(&mut first).unwrap();
    assert!(first.starts_with('{') && first.trim_end().ends_with('}'), "{first}");
    for part in ["\"message\":\"listening\"", "\"address\":\"127.0.0.1:", "\"durability\":\"interval 100 ms\""] {
        assert!(first.contains(part), "{part} is not in {first}");
    }
}

/// A request that reads for long does not keep the server running: the databases are closed, and its reads fail.
#[test]
fn a_long_request_does_not_delay_the_end() {
    let arguments = ["--limits-grace", "100ms", "--durability", "none"];
    let mut server = Running::start(&arguments, &[("STEMMA_ADMIN_PASSWORD", "secret")]);
    let address = address(&server.line_with("listening on"));
    let send = |request: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YWRtaW46c2VjcmV0\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let answer = |request: &str, body: &str| {
        let mut response = String::new();
        send(request, body).read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    };
    answer("PUT /db", "");
    let numbers: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    answer("PUT /db/a", &format!("{{\"a\":[{}]}}", numbers.join(",")));
    // These take years, and have no row as their result.
    let copies = r#"{"$set":{"b":"$a","c":"$a","d":"$a","e":"$a"}}"#;
    let unwound = ["a", "b", "c", "d", "e"].map(|field| format!(r#"{{"$unwind":"${field}"}}"#)).join(",");
    let pipeline = format!(r#"{{"pipeline":[{copies},{unwound},{{"$match":{{"a":-1}}}}]}}"#);
    let requests: Vec<_> = (0..8).map(|_| send("POST /db/_aggregate", &pipeline)).collect();
    // However slow the machine is: a request that has not begun yet ends as well.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let status = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let begun = std::time::Instant::now();
    let ended = loop {
        if let Some(ended) = server.child.try_wait().unwrap() {
            break ended;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "the server does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert!(ended.success(), "{ended:?}");
    drop(requests);
}
