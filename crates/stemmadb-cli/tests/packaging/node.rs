//! The Node package and the adapter of PouchDB: they are built and packed with npm, installed from their tarballs into
//! a new directory, and tested there with Node's test runner.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// The oldest version of Node that the tests run with.
const MAJOR_MIN: u32 = 20;

/// What the tests use, and the adapter of PouchDB depends on.
const TOOLS: [&str; 10] = [
    "typescript@5",
    "@types/node@20",
    "pouchdb-core@9",
    "pouchdb-replication@9",
    "pouchdb-adapter-http@9",
    "pouchdb-adapter-memory@9",
    "pouchdb-adapter-utils@9",
    "pouchdb-errors@9",
    "pouchdb-merge@9",
    "pouchdb-utils@9",
];

fn node_major() -> Option<u32> {
    let version = run(Command::new("node").arg("--version")).ok()?;
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Copies the files of a directory, without its directories.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in from.read_dir().unwrap().flatten().map(|entry| entry.path()) {
        if file.is_file() {
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// Copies what belongs to the package, so that a build leaves nothing in the checkout. It stands where cargo finds the
/// crates beside it.
fn copied_package(directory: &Path) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stemmadb-node").canonicalize().unwrap();
    let copy = directory.join("package");
    copy_files(&package, &copy);
    copy_files(&package.join("lib"), &copy.join("lib"));
    for part in ["pouchdb-adapter-stemma", "pouchdb-adapter-stemma/lib"] {
        copy_files(&package.join(part), &directory.join(part));
    }
    copy
}

/// Builds the library as users get it, except for optimization. Dependencies that this build has compiled already are
/// used again.
fn build(source: &Path, package: &Path) {
    let target = Path::new(env!("CARGO_BIN_EXE_stemma")).ancestors().nth(2).unwrap();
    let mut build = Command::new("node");
    build.args(["build.js", "--profile", "dev"]).current_dir(package).env("CARGO_TARGET_DIR", target);
    run(build.env("STEMMA_NODE_SOURCE", source)).unwrap_or_else(|error| panic!("{error}"));
}

/// Builds the package, installs it beside nothing but test tools, and runs the tests of `crates/stemmadb-node/tests`.
/// Skipped without Node 20 or npm's registry.
#[test]
fn node_package_passes_its_tests() {
    if node_major().is_none_or(|major| major < MAJOR_MIN) {
        eprintln!("skipped: there is no Node.js {MAJOR_MIN} or newer");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let user = directory.path().join("user");
    std::fs::create_dir(&user).unwrap();
    std::fs::write(user.join("package.json"), r#"{"private": true}"#).unwrap();
    let npm = |arguments: &[&str], directory: &Path| {
        run(Command::new("npm").args(arguments).args(["--no-audit", "--no-fund", "--silent"]).current_dir(directory))
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stemmadb-node").canonicalize().unwrap();
    let package = copied_package(directory.path());
    // Tools are downloaded while the library is built.
    let installed = std::thread::scope(|scope| {
        let installed = scope.spawn(|| npm(&[&["install"], &TOOLS[..]].concat(), &user));
        build(&source, &package);
        installed.join().unwrap()
    });
    if let Err(error) = installed {
        eprintln!("skipped: TypeScript and PouchDB can't be installed from npm: {error}");
        return;
    }
    for package in [package, directory.path().join("pouchdb-adapter-stemma")] {
        let packed =
            npm(&["pack", "--pack-destination", "../user"], &package).unwrap_or_else(|error| panic!("{error}"));
        let tarball = format!("./{}", packed.lines().last().unwrap().trim());
        npm(&["install", "--prefer-offline", &tarball], &user).unwrap_or_else(|error| panic!("{error}"));
    }

    let tests = user.join("tests");
    copy_files(&source.join("tests"), &tests);
    let mut compiler = Command::new(user.join("node_modules/.bin/tsc"));
    compiler.args(["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "esnext"]);
    run(compiler.args(["--types", "node"]).arg(tests.join("types.ts")).current_dir(&user))
        .unwrap_or_else(|error| panic!("{error}"));

    let pages = ["README.md", "../../docs/guide/node.md", "../../README.md"].map(|page| source.join(page));
    let mut files: Vec<PathBuf> = tests.read_dir().unwrap().flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.to_str().is_some_and(|name| name.ends_with(".test.js")));
    files.sort();
    let mut tester = Command::new("node");
    tester.arg("--test").args(files).current_dir(&user).env("STEMMA_BIN", env!("CARGO_BIN_EXE_stemma"));
    tester.env("STEMMA_PAGES", std::env::join_paths(pages).unwrap());
    let printed = run(&mut tester).unwrap_or_else(|error| panic!("{error}"));
    let figures = printed.lines().filter(|line| line.starts_with("# pass") || line.starts_with("# skipped"));
    println!("{}", figures.collect::<Vec<_>>().join(", "));
}
