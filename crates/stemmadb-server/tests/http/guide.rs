//! Runs the `curl` commands of the HTTP guide and the tutorial and compares their output.

use crate::client::{Response, TestServer};

/// Extracts the commands of the page, each with its expected output.
fn commands(page: &str) -> Vec<(String, String)> {
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let commands = blocks.flat_map(|block| block.split("$ curl ").skip(1));
    commands.map(|command| command.split_once('\n').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

/// Runs a `curl` command.
fn run(server: &TestServer, command: &str) -> Response {
    let (command, body) = match command.split_once(" --json '") {
        Some((command, body)) => (command, body.strip_suffix('\'').unwrap()),
        None => (command, ""),
    };
    let (user, command) = match command.strip_prefix("-u ").and_then(|rest| rest.split_once(' ')) {
        Some((user, command)) => (Some(user), command),
        None => (None, command),
    };
    let (method, path) = match command.strip_prefix("-X ") {
        Some(rest) => rest.split_once(' ').unwrap(),
        None => (if body.is_empty() { "GET" } else { "POST" }, command),
    };
    let path = path.trim_matches('"').strip_prefix("$DB").unwrap();
    let content_type = ("Content-Type", "application/json");
    match user.and_then(|user| user.split_once(':')) {
        Some((name, password)) => {
            let credentials = crate::client::basic(name, password);
            server.send(method, path, &[("Authorization", &credentials), content_type], body.as_bytes())
        }
        None => server.send_as_admin(method, path, &[content_type], body.as_bytes()),
    }
}

/// Whether `actual` matches `expected`, in which `…` matches anything and white space is ignored.
fn matches_pattern(expected: &str, reported: &str) -> bool {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let (expected, reported) = (without_space(expected), without_space(reported));
    let parts: Vec<&str> = expected.split('…').collect();
    let [first, middle @ .., last] = &parts[..] else { return expected == reported };
    let Some(mut rest) = reported.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    middle.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[test]
fn guide_commands_return_documented_responses() {
    check_page(include_str!("../../../../docs/guide/http.md"), 13);
}

#[test]
fn commands_of_the_page_on_keys_return_documented_responses() {
    let server = TestServer::new();
    server.database("shop", &[]);
    check_commands(&server, include_str!("../../../../docs/guide/keys.md"), 4);
}

#[test]
fn commands_of_the_page_on_messages_return_documented_responses() {
    check_page(include_str!("../../../../docs/guide/messages.md"), 6);
}

#[test]
fn commands_of_the_page_on_many_databases_return_documented_responses() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = [TestServer::new(), TestServer::new(), TestServer::new()];
    let mut page = include_str!("../../../../docs/guide/many-databases.md").to_owned();
    for (name, server) in ["localhost:5984", "localhost:5985", "localhost:5986"].iter().zip(&servers) {
        page = page.replace(name, &server.address().to_string());
    }
    check_commands(&servers[0], &page, 45);
}

#[test]
fn commands_of_the_page_on_access_rules_return_documented_responses() {
    check_page(include_str!("../../../../docs/guide/access-rules.md"), 12);
}

#[test]
fn tutorial_commands_return_documented_responses() {
    check_page(include_str!("../../../../docs/tutorial.md"), 5);
}

/// Runs all commands of the page, at least `count_min`, against one server.
fn check_page(page: &str, count_min: usize) {
    check_commands(&TestServer::new(), page, count_min);
}

fn check_commands(server: &TestServer, page: &str, count_min: usize) {
    let commands = commands(page);
    assert!(commands.len() >= count_min);
    let mut handle = String::new();
    for (command, expected) in commands {
        let answer = run(server, &command.replace("$handle", &handle));
        assert!(matches_pattern(&expected, &answer.text), "{command}\nsays {}", answer.text);
        if let Some(made) = answer.json()["handle"].as_str() {
            handle = made.to_owned();
        }
    }
}

#[test]
fn response_comparison_detects_differences() {
    assert!(
        matches_pattern("{\"a\": \"…\"}", "{\"a\":\"b\"}\n")
            && matches_pattern("{…}", "{1}")
            && matches_pattern("a…", "abc")
    );
    assert!(
        !matches_pattern("{\"a\":\"…\"}", "{\"a\":1}")
            && !matches_pattern("a…b", "abc")
            && !matches_pattern("ab", "abc")
    );
}
