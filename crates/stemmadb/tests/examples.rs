//! Each example prints the output quoted in its header. `STEMMA_BLESS=1` updates the header.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The example program that `cargo test` built next to the tests.
fn built_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(file);
    assert!(program.exists(), "the example is not built: run `cargo test -p stemmadb` without naming targets");
    program
}

fn check_output(name: &str) {
    const OPEN: &str = "//! ```text\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    let source = std::fs::read_to_string(&path).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let run = || {
        let output = Command::new(built_program(name)).arg(directory.path().join("db.stemma")).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let printed: String = run().lines().map(|line| format!("//! {line}\n")).collect();
    let start = source.find(OPEN).expect("the header quotes the output") + OPEN.len();
    let end = start + source[start..].find("//! ```\n").unwrap();
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(&path, [&source[..start], &printed, &source[end..]].concat()).unwrap();
    } else {
        assert_eq!(source[start..end], printed, "STEMMA_BLESS=1 writes down what {name} prints");
    }
    // An existing database is no obstacle.
    run();
}

#[test]
fn shop() {
    check_output("shop");
}

#[test]
fn todo() {
    check_output("todo");
}

#[test]
fn time_series() {
    check_output("time_series");
}

#[test]
fn graph() {
    check_output("graph");
}
