//! The samples of the guide "Remote access" are parts of an example program, which runs against a server.

mod support;

#[path = "../examples/remote.rs"]
#[allow(dead_code, reason = "the example's `main` is not called")]
mod remote;

const GUIDE: &str = include_str!("../../../docs/guide/remote.md");
const EXAMPLE: &str = include_str!("../examples/remote.rs");

#[test]
fn example_of_the_guide_runs() {
    let server = support::TestServer::start(support::Transport::Tcp);
    remote::run(&server.url("root:geheim@")).unwrap();
}

#[test]
fn samples_of_the_guide_are_parts_of_the_example() {
    let unindented = |text: &str| -> String { text.lines().map(|line| format!("{}\n", line.trim())).collect() };
    let example = unindented(EXAMPLE);
    let samples: Vec<_> = GUIDE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(samples.len() >= 4);
    for sample in samples {
        assert!(example.contains(&unindented(sample)), "{sample}");
    }
}
