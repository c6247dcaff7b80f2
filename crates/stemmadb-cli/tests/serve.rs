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
