//! Dependency policy: sources and licenses, according to `deny.toml`. `cargo deny check` also checks advisories, which
//! it downloads (`just nightly-audit`); this test needs only cargo.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The allowed licenses: `("", license)` for every package and `(package, license)` for exceptions.
fn allowed() -> BTreeSet<(String, String)> {
    let rules = std::fs::read_to_string(workspace().join("deny.toml")).unwrap();
    let quoted = |text: &str| -> Vec<String> { text.split('"').skip(1).step_by(2).map(str::to_owned).collect() };
    let list =
        |name: &str| rules.split(&format!("\n{name} = [\n")).nth(1).unwrap().split("\n]").next().unwrap().to_owned();
    let of_all = quoted(&list("allow")).into_iter().map(|license| (String::new(), license));
    let exceptions = list("exceptions");
    let of_some = exceptions.lines().map(|line| match &quoted(line)[..] {
        [package, license] => (package.clone(), license.clone()),
        other => panic!("an exception names a package and a license: {other:?}"),
    });
    of_all.chain(of_some).collect()
}

/// Whether the allowed licenses satisfy a package's SPDX expression. `/` between licenses, as in old manifests, means
/// `OR`.
fn is_allowed(package: &str, expression: &str, allowed: &BTreeSet<(String, String)>) -> bool {
    let Ok(expression) = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX) else { return false };
    expression.evaluate(|license| {
        let license = license.to_string();
        // "This version or later" is satisfied by this version.
        let license = license.trim_end_matches('+').to_owned();
        ["", package].iter().any(|of| allowed.contains(&((*of).to_owned(), license.clone())))
    })
}

/// The packages built on this platform.
fn packages() -> Vec<Value> {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(workspace()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = run(&rustc, &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let text = run(&cargo, &["metadata", "--format-version", "1", "--locked", "--filter-platform", host]);
    let metadata: Value = serde_json::from_str(&text).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn licenses_are_allowed_by_deny_toml() {
    let (allowed, packages) = (allowed(), packages());
    assert!(packages.len() > 150, "the dependencies were not found");
    let wrong: Vec<_> = packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap(), package["license"].as_str().unwrap_or("none")))
        .filter(|(name, license)| !is_allowed(name, license, &allowed))
        .collect();
    assert!(wrong.is_empty(), "deny.toml does not allow {wrong:#?}");
    for (package, license) in allowed.iter().filter(|(package, _)| !package.is_empty()) {
        assert!(is_allowed(package, license, &allowed) && !is_allowed("another", license, &allowed), "{package}");
    }
    assert!(!is_allowed("x", "GPL-3.0-only", &allowed) && !is_allowed("x", "MIT AND GPL-3.0-only", &allowed));
    assert!(
        !is_allowed("x", "(MIT OR Apache-2.0) AND GPL-3.0-only", &allowed)
            && is_allowed("x", "GPL-3.0-only OR MIT", &allowed)
    );
}

#[test]
fn dependencies_come_from_the_registry_with_a_checksum() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock", "crates/stemmadb-bench/bonsaidb/Cargo.lock"] {
        let text = std::fs::read_to_string(workspace().join(lock)).unwrap();
        let packages: Vec<&str> = text.split("[[package]]").skip(1).collect();
        assert!(packages.len() > 150, "{lock} was not understood");
        for package in packages {
            let value = |name: &str| {
                package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'))
            };
            let name = value("name").unwrap();
            if name.starts_with("stemmadb") {
                assert_eq!(value("source"), None, "{lock}: {name}");
                continue;
            }
            assert_eq!(value("source"), Some(REGISTRY), "{lock}: {name}");
            assert!(value("checksum").is_some_and(|checksum| checksum.len() == 64), "{lock}: {name}");
            assert!(!matches!(name, "openssl-sys" | "native-tls"), "{lock}: {name}: there is one TLS, in Rust");
        }
    }
}

#[test]
fn core_dependencies_have_one_version() {
    let text = std::fs::read_to_string(workspace().join("Cargo.lock")).unwrap();
    for name in ["serde", "serde_json", "tokio", "hyper", "rustls", "rquickjs", "regex", "icu_collator", "subtle"] {
        let count = text.matches(&format!("name = \"{name}\"\n")).count();
        assert_eq!(count, 1, "{name} is there in {count} versions");
    }
}
