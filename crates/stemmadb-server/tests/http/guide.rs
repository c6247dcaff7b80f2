//! The guide's page on HTTP says what is so: its commands are run, and their answers compared.

use crate::client::{Answer, Started};

/// The commands of the page, each with what it says that comes back.
fn commands(page: &str) -> Vec<(String, String)> {
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let commands = blocks.flat_map(|block| block.split("$ curl ").skip(1));
    commands.map(|command| command.split_once('\n').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

/// Runs what `curl` would.
fn run(server: &Started, command: &str) -> Answer {
    let (command, body) = match command.split_once(" --json '") {
        Some((command, body)) => (command, body.strip_suffix('\'').unwrap()),
        None => (command, ""),
    };
    let (method, path) = match command.strip_prefix("-X ") {
        Some(rest) => rest.split_once(' ').unwrap(),
        None => (if body.is_empty() { "GET" } else { "POST" }, command),
    };
    let path = path.strip_prefix("$DB").unwrap();
    server.send_as_admin(method, path, &[("Content-Type", "application/json")], body.as_bytes())
}

/// Whether `told` is what was expected, where `…` may be anything and white space is nothing.
fn is_as_told(expected: &str, told: &str) -> bool {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let (expected, told) = (without_space(expected), without_space(told));
    let parts: Vec<&str> = expected.split('…').collect();
    let [first, middle @ .., last] = &parts[..] else { return expected == told };
    let Some(mut rest) = told.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    middle.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[test]
fn the_page_on_http_says_what_is_so() {
    let server = Started::new();
    let commands = commands(include_str!("../../../../docs/guide/http.md"));
    assert!(commands.len() > 12);
    let mut handle = String::new();
    for (command, expected) in commands {
        let answer = run(&server, &command.replace("$handle", &handle));
        assert!(is_as_told(&expected, &answer.text), "{command}\nsays {}", answer.text);
        if let Some(made) = answer.json()["handle"].as_str() {
            handle = made.to_owned();
        }
    }
}

#[test]
fn the_comparison_can_fail() {
    assert!(is_as_told("{\"a\": \"…\"}", "{\"a\":\"b\"}\n") && is_as_told("{…}", "{1}") && is_as_told("a…", "abc"));
    assert!(!is_as_told("{\"a\":\"…\"}", "{\"a\":1}") && !is_as_told("a…b", "abc") && !is_as_told("ab", "abc"));
}
