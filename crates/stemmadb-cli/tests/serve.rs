//! A server as it is run: what it says at its start, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server in a process of its own, ended when it is dropped.
struct Running {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command.args(["serve", "databases", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(directory.path());
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Running { child, said, _directory: directory }
    }

    /// The next line that contains this; all before it are skipped.
    fn line_with(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "{wanted} was never said, but\n{all}");
            if line.contains(wanted) {
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
fn it_says_where_it_listens_and_how_durable_it_is_and_ends_when_told_to() {
    for (arguments, said) in [(&[][..], "sync"), (&["--durability", "none"], "none")] {
        let mut server = Running::start(arguments, &[("STEMMA_ADMIN_PASSWORD", "secret")]);
        let line = server.line_with("listening on");
        assert!(line.contains(&format!("durability: {said}")), "{line}");
        let mut stream = TcpStream::connect(address(&line)).unwrap();
        stream.write_all(b"GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let told = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_password_that_was_made_up_is_told_once() {
    let mut server = Running::start(&[], &[]);
    server.line_with("listening on");
    let line = server.line_with("administrator: admin, password ");
    assert!(line.contains("STEMMA_ADMIN_PASSWORD"), "{line}");
}

#[test]
fn a_log_in_json_is_json_from_its_first_line() {
    let arguments = ["--log-format", "json", "--durability", "interval:100ms"];
    let mut server = Running::start(&arguments, &[("STEMMA_ADMIN_PASSWORD", "secret")]);
    let mut first = String::new();
    server.said.read_line(&mut first).unwrap();
    assert!(first.starts_with('{') && first.trim_end().ends_with('}'), "{first}");
    for part in ["\"message\":\"listening\"", "\"address\":\"127.0.0.1:", "\"durability\":\"interval 100 ms\""] {
        assert!(first.contains(part), "{part} is not in {first}");
    }
}
