//! The service's unit and the container's file start the server as it can be started: what they say is tried by the command itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use stemmadb_server::settings::settings;

fn packaging(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A directory in place of a machine's, with what an administrator puts there.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("admin-password"), "of the administrator\n").unwrap();
        std::fs::write(place.path().join("stemma.toml"), packaging("stemma.toml")).unwrap();
        Machine(place)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// What the command says is in force, started with these arguments and variables.
    fn in_force(&self, arguments: &[String], environment: &[(String, String)]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command.args(arguments).arg("--print-config").current_dir(self.path());
        let output = command.envs(environment.iter().cloned()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(!said.contains("no setting"), "{said}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Whether a line says that a key has this value from there.
fn says(told: &str, value: &str, from: &str) -> bool {
    told.lines().any(|line| line.starts_with(value) && line.contains(from))
}

/// The values of a key of a unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_service_is_started_by_flags_that_there_are() {
    let (unit, machine) = (packaging("stemma.service"), Machine::new());
    let place = machine.path().display().to_string();
    let start = values(&unit, "ExecStart")[0].to_owned();
    assert!(start.starts_with("/usr/bin/stemma serve /var/lib/stemma "), "{start}");
    let start = start.replace("/etc/stemma", &place).replace("${CREDENTIALS_DIRECTORY}", &place);
    let arguments: Vec<String> = start.split_whitespace().skip(1).map(str::to_owned).collect();
    for flag in arguments.iter().filter_map(|argument| argument.strip_prefix("--")) {
        let is_setting = settings().iter().any(|setting| setting.flag().as_deref() == Some(flag));
        assert!(is_setting || flag == "config", "--{flag}");
    }
    let told = machine.in_force(&arguments, &[]);
    assert!(says(&told, "format = \"json\"", "--log-format"), "{told}");
    assert!(says(&told, "listen = \"0.0.0.0:5984\"", "stemma.toml"), "{told}");
    assert!(says(&told, "password_file", "--admin-password-file") && !told.contains("of the administrator"), "{told}");
    // What it is told to read is what it is given.
    assert_eq!(values(&unit, "LoadCredential"), ["admin-password:/etc/stemma/admin-password"]);
    assert_eq!(values(&unit, "StateDirectory"), ["stemma"]);
}

#[test]
fn the_service_may_do_no_more_than_it_needs() {
    let unit = packaging("stemma.service");
    for (key, value) in [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("CapabilityBoundingSet", ""),
        ("SystemCallFilter", "@system-service"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("UMask", "0077"),
    ] {
        assert_eq!(values(&unit, key), [value], "{key}");
    }
    // Every line is a section, a remark, or a key with a value.
    let is_known = |line: &&str| line.is_empty() || line.starts_with(['#', '[']) || line.contains('=');
    assert!(unit.lines().all(|line| is_known(&line)), "{unit}");
}

#[test]
fn the_container_is_set_by_variables_that_there_are() {
    let (file, machine) = (packaging("Containerfile"), Machine::new());
    let environment: Vec<(String, String)> = file
        .lines()
        .filter_map(|line| line.strip_prefix("ENV "))
        .flat_map(str::split_whitespace)
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert!(environment.len() >= 2, "{environment:?}");
    for (name, _) in &environment {
        assert!(settings().iter().any(|setting| setting.variable() == *name), "{name}");
    }
    let entry = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).unwrap();
    let entry: Vec<String> =
        entry.trim_matches(['[', ']']).split(", ").map(|word| word.trim_matches('"').to_owned()).collect();
    assert_eq!(entry, ["stemma", "serve", "/var/lib/stemma"]);
    let told = machine.in_force(&["serve".to_owned(), "databases".to_owned()], &environment);
    assert!(says(&told, "listen = \"0.0.0.0:5984\"", "STEMMA_LISTEN"), "{told}");
    assert!(says(&told, "format = \"json\"", "STEMMA_LOG_FORMAT"), "{told}");
    // Also the variable that its heading names.
    let named = file.split("--env ").nth(1).unwrap().split('=').next().unwrap();
    assert!(settings().iter().any(|setting| setting.variable() == named), "{named}");
    assert!(file.contains("\nUSER 5984:5984\n"), "it does not run as root");
}
