//! Server settings: precedence of sources, and error messages.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stemmadb::Durability;
use stemmadb_server::settings::{FILE, Kind, LoadedSettings, SettingSources, SettingsError, guide, settings};
use stemmadb_server::{Config, JwtAlgorithm};

/// A configuration without its sources.
fn format_without_sources(gathered: LoadedSettings) -> String {
    format!("{:?}", Config { setting_sources: Default::default(), ..gathered.config })
}

/// A directory of databases with this settings file.
struct SettingsDirectory(tempfile::TempDir);

impl SettingsDirectory {
    fn new(file: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), file).unwrap();
        SettingsDirectory(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn gather(&self, flags: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<LoadedSettings, SettingsError> {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>()
        };
        let flags = owned(flags).into_iter().map(|(name, text)| (name, vec![text])).collect();
        SettingSources { directory: self.0.path().to_owned(), file: None, flags, environment: owned(environment) }
            .load()
    }

    fn rejection(&self, flags: &[(&str, &str)], environment: &[(&str, &str)]) -> String {
        let wrong = self.gather(flags, environment).unwrap_err();
        let text = wrong.message.replace(&self.0.path().display().to_string(), "DIR");
        wrong.hint.map_or(text.clone(), |hint| format!("{text} | {hint}"))
    }
}

fn refusal_of_file(file: &str) -> String {
    SettingsDirectory::new(file).rejection(&[], &[])
}

#[test]
fn flags_override_variables_override_file() {
    let directory =
        SettingsDirectory::new("durability = \"none\"\ncache_bytes = \"1MiB\"\nsession_timeout = \"1min\"\n");
    let gathered = directory
        .gather(
            &[("durability", "interval:100ms")],
            &[("STEMMA_DURABILITY", "sync"), ("STEMMA_CACHE_BYTES", "2MiB"), ("PATH", "/bin")],
        )
        .unwrap();
    let config = &gathered.config;
    assert_eq!(config.durability, Durability::Interval(Duration::from_millis(100)));
    assert_eq!((config.cache_bytes, config.session_timeout), (2 << 20, Duration::from_secs(60)));
    assert_eq!(config.limits.body_bytes, stemmadb_server::Limits::default().body_bytes);
    let message: Vec<_> =
        gathered.to_toml().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let message = message.join("\n");
    for line in [
        "durability = \"interval:100ms\" # from --durability",
        "cache_bytes = \"2MiB\" # from STEMMA_CACHE_BYTES",
        "require_valid_user = false # default",
    ] {
        assert!(message.contains(line), "{line} is not in\n{message}");
    }
    assert!(message.contains("stemma.toml, line 3"), "{message}");
    assert!(gathered.warnings.is_empty(), "{:?}", gathered.warnings);
}

#[test]
fn every_setting_has_file_variable_and_flag_forms() {
    let directory = SettingsDirectory::new("");
    std::fs::write(directory.path("key"), "a secret of at least thirty-two bytes\n").unwrap();
    let key = directory.path("key").display().to_string();
    let example = |name: &str, kind: Kind| match (name, kind) {
        ("admin.password_file" | "proxy.secret_file", _) => key.clone(),
        (_, Kind::Address) => "127.0.0.1:1234".to_owned(),
        (_, Kind::Bytes) => "3MiB".to_owned(),
        (_, Kind::Count) => "7".to_owned(),
        (_, Kind::Durability) => "interval:5s".to_owned(),
        (_, Kind::Duration) => "3min".to_owned(),
        ("cors.enabled" | "wire.websocket", _) => "false".to_owned(),
        (_, Kind::Flag) => "true".to_owned(),
        (_, Kind::Level) => "debug".to_owned(),
        (_, Kind::Format) => "json".to_owned(),
        (_, Kind::Keys) => format!("HS256:k={key}"),
        (_, Kind::List) => "https://a.example,https://b.example".to_owned(),
        (_, Kind::Path) => "some.pem".to_owned(),
        (_, Kind::Secret | Kind::Text) => "words".to_owned(),
    };
    for setting in settings() {
        // Settings that require each other are set together.
        let company: &[(&str, &str)] = match setting.name {
            "admin.name" => &[("STEMMA_ADMIN_PASSWORD", "x")],
            "cors.credentials" => &[("STEMMA_CORS_ORIGINS", "https://a.example")],
            "tls.certificate" => &[("STEMMA_TLS_KEY", "k.pem")],
            "tls.key" => &[("STEMMA_TLS_CERTIFICATE", "c.pem")],
            _ => &[],
        };
        let text = example(setting.name, setting.kind);
        let default = directory.gather(&[], company).or_else(|_| directory.gather(&[], &[])).unwrap();
        let default = format_without_sources(default);
        let mut environment = company.to_vec();
        let variable = setting.variable();
        environment.push((&variable, &text));
        let by_variable = format_without_sources(directory.gather(&[], &environment).unwrap());
        assert_ne!(by_variable, default, "{} changes nothing", setting.name);
        if setting.flag().is_some() {
            let by_flag = format_without_sources(directory.gather(&[(setting.name, &text)], company).unwrap());
            assert_eq!(by_flag, by_variable, "{}", setting.name);
        }
        let (section, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
        let heading = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let value = match setting.kind {
            Kind::Count | Kind::Flag => text.clone(),
            kind if kind.is_list() => serde_json::json!(text.split(',').collect::<Vec<_>>()).to_string(),
            _ => serde_json::json!(text).to_string(),
        };
        std::fs::write(directory.path(FILE), format!("{heading}{name} = {value}\n")).unwrap();
        let by_file = format_without_sources(directory.gather(&[], company).unwrap());
        assert_eq!(by_file, by_variable, "{}", setting.name);
        std::fs::write(directory.path(FILE), "").unwrap();
    }
}

#[test]
fn printed_settings_round_trip() {
    let directory =
        SettingsDirectory::new("hosts = [\"db.example\"]\n[limits]\nbody_bytes = \"1MiB\"\nconnection_count = 10\n");
    let gathered = directory.gather(&[("cors.origins", "https://a.example,https://b.example")], &[]).unwrap();
    let again = SettingsDirectory::new(&gathered.to_toml());
    assert_eq!(
        format_without_sources(again.gather(&[], &[]).unwrap()),
        format_without_sources(gathered)
            .replace(&directory.0.path().display().to_string(), &again.0.path().display().to_string())
    );
}

#[test]
fn password_comes_from_file_or_variable_and_is_never_printed() {
    let directory = SettingsDirectory::new("[admin]\nname = \"ada\"\npassword = \"in the file\"\n");
    let password = |gathered: &LoadedSettings| gathered.config.administrator.as_ref().unwrap().password.clone();
    let gathered = directory.gather(&[], &[]).unwrap();
    assert_eq!(
        (password(&gathered).as_str(), gathered.config.administrator.as_ref().unwrap().name.as_str()),
        ("in the file", "ada")
    );
    assert!(
        !gathered.to_toml().contains("in the file") && gathered.to_toml().contains("# password is set, and not shown")
    );
    assert!(!format!("{gathered:?}").contains("password: \"in the file\""), "{:?}", gathered.config);
    std::fs::write(directory.path("password"), "of its own\r\n").unwrap();
    let file = directory.path("password").display().to_string();
    assert_eq!(password(&directory.gather(&[("admin.password_file", &file)], &[]).unwrap()), "of its own");
    assert_eq!(
        password(&directory.gather(&[], &[("STEMMA_ADMIN_PASSWORD", "of the environment")]).unwrap()),
        "of the environment"
    );
    let both = directory.gather(&[("admin.password_file", &file)], &[("STEMMA_ADMIN_PASSWORD", "x")]).unwrap();
    assert_eq!(password(&both), "of its own", "a flag counts before a variable");
    let message = directory.rejection(&[], &[("STEMMA_ADMIN_PASSWORD", "x"), ("STEMMA_ADMIN_PASSWORD_FILE", &file)]);
    assert!(message.starts_with("there are two passwords"), "{message}");
    for (content, why) in [("", "not one line"), ("a\nb\n", "not one line")] {
        std::fs::write(directory.path("password"), content).unwrap();
        let message = directory.rejection(&[("admin.password_file", &file)], &[]);
        assert!(message.contains(why), "{message}");
    }
    // A secret setting has no flag.
    assert!(settings().iter().all(|setting| setting.kind != Kind::Secret || setting.flag().is_none()));
}

#[cfg(unix)]
#[test]
fn readable_password_file_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let directory = SettingsDirectory::new("[admin]\npassword = \"x\"\n");
    for (mode, is_remarked) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(directory.path(FILE), PermissionsExt::from_mode(mode)).unwrap();
        let remarks = directory.gather(&[], &[]).unwrap().warnings;
        assert_eq!(remarks.iter().any(|remark| remark.contains("chmod 600")), is_remarked, "{mode:o}: {remarks:?}");
    }
}

#[test]
fn unknown_setting_suggests_the_closest_one() {
    assert_eq!(
        refusal_of_file("\n[limits]\nbody_byte = 1\n"),
        "DIR/stemma.toml, line 3: there is no setting limits.body_byte | did you mean limits.body_bytes?"
    );
    assert_eq!(
        refusal_of_file("body_bytes = 1\n"),
        "DIR/stemma.toml, line 1: there is no setting body_bytes | did you mean limits.body_bytes?"
    );
    assert_eq!(
        refusal_of_file("weather = \"fine\"\n"),
        "DIR/stemma.toml, line 1: there is no setting weather | `stemma serve --help` lists them"
    );
    let remarks = SettingsDirectory::new("")
        .gather(&[], &[("STEMMA_ADMIN_PASWORD", "x"), ("STEMMA_PORT", "tcp://1")])
        .unwrap()
        .warnings;
    assert_eq!(remarks[0], "STEMMA_ADMIN_PASWORD is no setting; did you mean STEMMA_ADMIN_PASSWORD?");
    assert!(remarks[1].starts_with("STEMMA_PORT is no setting"), "{remarks:?}");
}

#[test]
fn invalid_value_reports_expectation_and_location() {
    assert_eq!(
        SettingsDirectory::new("").rejection(&[], &[("STEMMA_LIMITS_BODY_BYTES", "lots")]),
        "limits.body_bytes \"lots\" (from STEMMA_LIMITS_BODY_BYTES): expected a size, such as 64MiB (B, KiB, MiB, GiB)"
    );
    assert_eq!(
        refusal_of_file("# settings\nlisten = 5984\n"),
        "listen \"5984\" (from DIR/stemma.toml, line 2): expected an address and a port, such as 127.0.0.1:5984"
    );
    assert_eq!(
        refusal_of_file("listen = 1979-05-27\n"),
        "DIR/stemma.toml, line 1: listen: expected an address and a port, such as 127.0.0.1:5984"
    );
    assert_eq!(
        SettingsDirectory::new("").rejection(&[("require_valid_user", "maybe")], &[]),
        "require_valid_user \"maybe\" (from --require-valid-user): expected true or false"
    );
    assert!(refusal_of_file("listen = \n").starts_with("DIR/stemma.toml, line 1: "));
    assert!(
        refusal_of_file("[admin]\nname = \"ada\"\n")
            .starts_with("admin.name (from DIR/stemma.toml, line 2) has no password | ")
    );
    assert!(refusal_of_file("[tls]\nkey = \"k.pem\"\n").starts_with("tls.certificate is missing"));
    let message = SettingsDirectory::new("").rejection(&[("jwt.keys", "HS256:a=/nowhere/key")], &[]);
    assert!(message.contains("can't be read") && message.contains("/nowhere/key"), "{message}");
    assert!(
        SettingsDirectory::new("")
            .rejection(&[("jwt.keys", "MD5=/nowhere/key")], &[])
            .contains("expected ALGORITHM=FILE")
    );
    let missing = SettingSources { file: Some(PathBuf::from("/nowhere/stemma.toml")), ..SettingSources::default() }
        .load()
        .unwrap_err();
    assert!(missing.message.starts_with("/nowhere/stemma.toml can't be read"), "{missing:?}");
}

#[test]
fn jwt_keys_are_read_from_files() {
    let directory = SettingsDirectory::new("");
    std::fs::write(directory.path("a"), "a secret of at least thirty-two bytes\n").unwrap();
    let keys = format!("HS256={0},hs512:2026={0}", directory.path("a").display());
    let keys = directory.gather(&[("jwt.keys", &keys)], &[]).unwrap().config.jwt_keys;
    let found: Vec<_> = keys.iter().map(|key| (key.id.as_deref(), key.algorithm)).collect();
    assert_eq!(found, [(None, JwtAlgorithm::Hs256), (Some("2026"), JwtAlgorithm::Hs512)]);
    assert_eq!(keys[0].key, b"a secret of at least thirty-two bytes");
}

/// `STEMMA_BLESS=1` writes the table into the guide.
#[test]
fn guide_lists_all_settings() {
    const BEGIN: &str = "<!-- settings: written by a test -->\n";
    const END: &str = "<!-- end of settings -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/serve.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find(BEGIN).expect("the guide has a place for the table") + BEGIN.len();
    let end = page.find(END).unwrap();
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(&path, [&page[..begin], &guide(), &page[end..]].concat()).unwrap();
    } else {
        assert_eq!(page[begin..end], guide(), "STEMMA_BLESS=1 writes it down");
    }
}
