//! The systemd unit and the Containerfile use existing flags and settings, verified with the built command; the Python
//! wheel and the Node package are built and tested.

#[path = "packaging/node.rs"]
mod node;
#[path = "packaging/python.rs"]
mod python;

use std::path::{Path, PathBuf};
use std::process::Command;

use stemmadb_server::settings::settings;

/// Returns what a command printed, as the error if it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    if output.status.success() { Ok(printed) } else { Err(format!("{command:?}: {}\n{printed}", output.status)) }
}

fn packaging(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A temporary directory with the files an administrator installs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("admin-password"), "of the administrator\n").unwrap();
        std::fs::write(directory.path().join("stemma.toml"), packaging("stemma.toml")).unwrap();
        Machine(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// The effective settings that the command prints for these arguments and environment variables.
    fn effective_settings(&self, arguments: &[String], environment: &[(String, String)]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stemma"));
        command.args(arguments).arg("--print-config").current_dir(self.path());
        let output = command.envs(environment.iter().cloned()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("no setting"), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Whether a line begins with `value` and names the source `from`.
fn has_setting(settings: &str, value: &str, from: &str) -> bool {
    settings.lines().any(|line| line.starts_with(value) && line.contains(from))
}

/// The values of a key in a systemd unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn service_uses_existing_flags() {
    let (unit, machine) = (packaging("stemma.service"), Machine::new());
    let directory = machine.path().display().to_string();
    let start = values(&unit, "ExecStart")[0].to_owned();
    assert!(start.starts_with("/usr/bin/stemma serve /var/lib/stemma "), "{start}");
    let start = start.replace("/etc/stemma", &directory).replace("${CREDENTIALS_DIRECTORY}", &directory);
    let arguments: Vec<String> = start.split_whitespace().skip(1).map(str::to_owned).collect();
    for flag in arguments.iter().filter_map(|argument| argument.strip_prefix("--")) {
        let is_setting = settings().iter().any(|setting| setting.flag().as_deref() == Some(flag));
        assert!(is_setting || flag == "config", "--{flag}");
    }
    let effective = machine.effective_settings(&arguments, &[]);
    assert!(has_setting(&effective, "format = \"json\"", "--log-format"), "{effective}");
    assert!(has_setting(&effective, "listen = \"0.0.0.0:5984\"", "stemma.toml"), "{effective}");
    assert!(has_setting(&effective, "password_file", "--admin-password-file"), "{effective}");
    assert!(!effective.contains("of the administrator"), "{effective}");
    // The password file that the flag names is the credential that systemd provides.
    assert_eq!(values(&unit, "LoadCredential"), ["admin-password:/etc/stemma/admin-password"]);
    assert_eq!(values(&unit, "StateDirectory"), ["stemma"]);
}

#[test]
fn service_is_sandboxed() {
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
    // Every line is a section, a comment, or a key with a value.
    let is_known = |line: &&str| line.is_empty() || line.starts_with(['#', '[']) || line.contains('=');
    assert!(unit.lines().all(|line| is_known(&line)), "{unit}");
}

#[test]
fn container_uses_existing_variables() {
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
    assert_eq!(entry, ["/usr/bin/stemma", "serve", "/var/lib/stemma"]);
    assert!(file.contains(" /image/usr/bin/stemma ") && file.contains("\nCOPY --from=build /image /\n"), "{file}");
    let effective = machine.effective_settings(&["serve".to_owned(), "databases".to_owned()], &environment);
    assert!(has_setting(&effective, "listen = \"0.0.0.0:5984\"", "STEMMA_LISTEN"), "{effective}");
    assert!(has_setting(&effective, "format = \"json\"", "STEMMA_LOG_FORMAT"), "{effective}");
    // The comment at the top of the file names a variable, too.
    let named = file.split("--env ").nth(1).unwrap().split('=').next().unwrap();
    assert!(settings().iter().any(|setting| setting.variable() == named), "{named}");
    assert!(file.contains("\nUSER 5984:5984\n"), "it does not run as root");
}
